"""Columns of tables beside the files, joined with rows: in an index, and in a plan."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from ray_h5.buffers import objects
from ray_h5.columns.labels import Classes
from ray_h5.columns.schema import TENSOR_KINDS, ColumnSpec
from ray_h5.content_equality import ComparedByContent
from ray_h5.errors import SchemaMismatchError
from ray_h5.manifest.file_table import FileTable
from ray_h5.read.casting import cast_error, lost
from ray_h5.tables.table_files import Table

_HASHED_AT_ONCE = 1 << 20
"""Rows of a table whose values are hashed together."""


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Lines(ComparedByContent):
    """The line of a table that each row has.

    Attributes
    ----------
    numbers : numpy.ndarray
        Integers: the line of each row, or of each file; -1 for none.
    by_file : bool
        Whether they are of files.
    """

    numbers: np.ndarray
    by_file: bool = False

    def of(self, files: FileTable, row_ids: np.ndarray) -> np.ndarray:
        """Return the lines of some rows."""
        return self.numbers[files.files_of(row_ids) if self.by_file else row_ids]

    def of_all(self, files: FileTable) -> np.ndarray:
        """Return the lines of all rows."""
        return np.repeat(self.numbers, np.diff(files.starts)) if self.by_file else self.numbers


@dataclass(frozen=True, slots=True, eq=False)
class JoinedTable:
    """A table and the line of each row.

    Attributes
    ----------
    table : Table
        The table.
    lines : Lines
        The lines of rows.
    columns : mapping of str to (str, ColumnSpec)
        By the name of a column: its name in the table, and what it is.
    defaults : tuple of str
        The columns that are delivered if no columns are named.
    drops : bool
        Whether rows without a line are left out.
    """

    table: Table
    lines: Lines
    columns: Mapping[str, tuple[str, ColumnSpec]]
    defaults: tuple[str, ...]
    drops: bool = False

    def values(self, name: str) -> pa.ChunkedArray:
        """Return the values of a column, a value for each line."""
        stored, spec = self.columns[name]
        return as_delivered(self.table.column(stored), spec)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Joined(ComparedByContent):
    """The tables beside the files of an index.

    Attributes
    ----------
    tables : tuple of JoinedTable
        The tables.
    kept : numpy.ndarray, optional
        int64: the row ids of the rows that have a line in all tables that leave out the others; None for all rows.
    """

    tables: tuple[JoinedTable, ...] = ()
    kept: np.ndarray | None = None
    _digests: dict[str, str] = field(default_factory=dict, compare=False)

    @property
    def specs(self) -> dict[str, ColumnSpec]:
        """All columns of the tables, as they are stored."""
        return {name: spec for table in self.tables for name, (_, spec) in table.columns.items()}

    def table_of(self, name: str) -> JoinedTable:
        return next(table for table in self.tables if name in table.columns)

    def of_all_rows(self, spec: ColumnSpec, files: FileTable) -> pa.ChunkedArray:
        """Return the values of a column of all rows, cast to what `spec` says."""
        table = self.table_of(spec.name)
        found = _taken(table.values(spec.name), table.lines.of_all(files))
        return _cast(found, table.columns[spec.name][1], spec, table.table.name)

    def digest(self, name: str) -> str:
        """Return a digest of the values that rows, or files, have of a column."""
        if name not in self._digests:
            table, found = self.table_of(name), hashlib.blake2b(digest_size=8)
            values = table.values(name)
            for first in range(0, len(table.lines.numbers), _HASHED_AT_ONCE):
                some = one_array(_taken(values, table.lines.numbers[first : first + _HASHED_AT_ONCE]))
                for buffer in filter(None, some.buffers()):
                    found.update(buffer)
            self._digests[name] = found.hexdigest()
        return self._digests[name]

    def restricted(self, selection: np.ndarray | None) -> np.ndarray | None:
        """Return those of the selected rows that are not left out."""
        if self.kept is None or selection is None:
            return self.kept if selection is None else selection
        return np.intersect1d(selection, self.kept, assume_unique=True)

    def planned(
        self,
        specs: Iterable[ColumnSpec],
        files: FileTable,
        selection: np.ndarray | None,
        labels: Iterable[Classes] = (),
    ) -> JoinedColumns | None:
        """Return the columns that a plan delivers; None if there are none."""
        stored, numbered = self.specs, {each.name: each for each in labels}
        wanted = [stored[spec.name] if spec.name in numbered else spec for spec in specs if spec.name in stored]
        columns: dict[str, tuple[Lines, pa.ChunkedArray]] = {}
        for table in self.tables:
            if mine := {spec.name: spec for spec in wanted if spec.name in table.columns}:
                columns |= _used(table, mine, files, selection)
        return JoinedColumns({spec.name: spec for spec in wanted}, columns, numbered) if columns else None


def _used(
    table: JoinedTable, specs: Mapping[str, ColumnSpec], files: FileTable, selection: np.ndarray | None
) -> dict[str, tuple[Lines, pa.ChunkedArray]]:
    """Return columns with the lines that the selected rows use."""
    columns = {name: table.values(name) for name in specs}
    total = len(next(iter(columns.values())))
    lines = table.lines
    if selection is None:
        used = np.unique(lines.numbers)
    else:
        chosen = np.unique(files.files_of(selection)) if lines.by_file else selection
        used = np.unique(lines.numbers[chosen])
    used = used[used >= 0]
    if 2 * len(used) < total:
        numbers = np.full(total + 1, -1, np.int64)  # the last entry is for rows without a line
        numbers[used] = np.arange(len(used))
        lines = Lines(numbers[lines.numbers], lines.by_file)
        columns = {name: pa.chunked_array([one_array(each).take(pa.array(used))]) for name, each in columns.items()}
    small = np.min_scalar_type(-max(total, 1))
    lines = Lines(lines.numbers.astype(small), lines.by_file)
    return {
        name: (lines, _cast(each, table.columns[name][1], specs[name], table.table.name))
        for name, each in columns.items()
    }


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class JoinedColumns(ComparedByContent):
    """The columns of tables that a plan delivers, with the line of each row.

    Attributes
    ----------
    specs : mapping of str to ColumnSpec
        The columns.
    columns : mapping of str to (Lines, pyarrow.ChunkedArray)
        The line of each row, and the values of the lines. Columns of one table share the lines.
    labels : mapping of str to Classes
        The columns that are delivered as numbers of classes; `specs` has them as they are stored.
    """

    specs: Mapping[str, ColumnSpec]
    columns: Mapping[str, tuple[Lines, pa.ChunkedArray]]
    labels: Mapping[str, Classes] = field(default_factory=dict)

    def _taken(self, name: str, files: FileTable, row_ids: np.ndarray) -> pa.Array:
        lines, values = self.columns[name]
        return one_array(_taken(values, lines.of(files, row_ids)))

    def arrow(self, name: str, files: FileTable, row_ids: np.ndarray) -> pa.Array:
        """Return the values of a column with one value a row, for some rows."""
        if name in self.labels:
            return pa.array(self.array(name, files, row_ids))
        kind, found = self.specs[name].value_type, self._taken(name, files, row_ids)
        return found if found.type == kind else found.cast(kind)

    def array(self, name: str, files: FileTable, row_ids: np.ndarray) -> np.ndarray:
        """Return the values of a column for some rows, as `RowReader` returns columns.

        Raises
        ------
        SchemaMismatchError
            If a row has no value, in a column of integers or booleans, or of arrays of one shape.
        """
        spec, found = self.specs[name], self._taken(name, files, row_ids)
        if (classes := self.labels.get(name)) is not None:
            return classes.of(objects(found.to_pylist()), lambda i: files.where(int(row_ids[i])))
        if spec.kind == "ragged":
            return objects([None if each is None else np.array(each, spec.element) for each in _lists(found)])
        if spec.kind == "string":
            return found.cast(pa.large_binary()).to_numpy(zero_copy_only=False)
        if spec.kind == "time":
            return found.to_numpy(zero_copy_only=False).astype(spec.dtype)
        if found.null_count:
            if not spec.row_shape and spec.dtype.kind == "f":
                return found.fill_null(float("nan")).to_numpy(zero_copy_only=False).astype(spec.dtype)
            row = int(row_ids[int(np.argmax(found.is_null().to_numpy(zero_copy_only=False)))])
            raise self._no_value(name, files, row)
        if spec.row_shape:
            return (
                found.flatten()
                .to_numpy(zero_copy_only=False)
                .reshape(-1, *spec.row_shape)
                .astype(spec.dtype, copy=False)
            )
        return found.to_numpy(zero_copy_only=False).astype(spec.dtype, copy=False)

    def _no_value(self, name: str, files: FileTable, row: int) -> SchemaMismatchError:
        line = self.columns[name][0].of(files, np.array([row]))[0]
        return _no_value(self.specs[name], files.where(row), has_line=bool(line >= 0))

    def without_value(self, files: FileTable, row_ids: np.ndarray | None) -> SchemaMismatchError | None:
        """Return the error for a row without a value, in a column whose arrays cannot say so; None if there is none."""
        for name, spec in self.specs.items():
            if name in self.labels or spec.kind not in TENSOR_KINDS or (spec.dtype.kind in "fc" and not spec.row_shape):
                continue
            lines, values = self.columns[name]
            if not values.null_count and not bool((lines.numbers < 0).any()):
                continue
            rows = np.arange(files.num_rows) if row_ids is None else row_ids
            absent = np.concatenate([one_array(values).is_null().to_numpy(zero_copy_only=False), [True]])
            wrong = absent[lines.of(files, rows)]
            if wrong.any():
                return self._no_value(name, files, int(rows[int(np.argmax(wrong))]))
        return None


def _no_value(spec: ColumnSpec, where: str, *, has_line: bool) -> SchemaMismatchError:
    """Return the error for a row without a value, in a column whose arrays cannot say so.

    Either the row has no line in the table, or its line has no value.
    """
    why = "its entry is empty" if has_line else "it has no line"
    ways = [] if has_line else ["leave rows without a line out with missing='drop'"]
    if not spec.row_shape:
        ways.append(f"leave such rows out with the predicate ~where(**{{{spec.name!r}: None}})")
        ways.append(f"pass dtypes={{{spec.name!r}: 'float64'}}, which has NaN")
    elif has_line:
        ways.append("remove such lines from the table and pass missing='drop'")
    return SchemaMismatchError(
        f"{where}: column {spec.name!r} of the table has no value for this row ({why}), and {spec} cannot say so. To "
        f"go on, {', or '.join(ways)}."
    )


def one_array(column: pa.ChunkedArray) -> pa.Array:
    """Return a column as one array."""
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def _taken(column: pa.ChunkedArray, lines: np.ndarray) -> pa.ChunkedArray:
    absent = lines < 0
    at = pa.array(lines, mask=absent) if absent.any() else pa.array(lines)
    return pa.chunked_array([one_array(column).take(at)], column.type)


def _lists(array: pa.Array) -> list[Any]:
    return [None if not each.is_valid else each.values.to_numpy(zero_copy_only=False) for each in array]


def as_delivered(column: pa.ChunkedArray, spec: ColumnSpec) -> pa.ChunkedArray:
    """Return a column of a table in the Arrow type that its spec has."""
    if spec.kind == "ragged" or spec.row_shape:
        dtype = spec.element if spec.kind == "ragged" else spec.dtype
        if dtype is not None and dtype.kind in "iu" and any(chunk.flatten().null_count for chunk in column.chunks):
            raise SchemaMismatchError(
                f"column {spec.name!r} of the table has arrays of {dtype} with missing entries, which {dtype} cannot "
                "hold. Write the table with floats, or leave the column out."
            )
        return column
    return column if column.type == spec.kept_type else column.cast(spec.kept_type, safe=False)


def _cast(column: pa.ChunkedArray, stored: ColumnSpec, spec: ColumnSpec, where: str) -> pa.ChunkedArray:
    """Return a column cast as the user asked for; errors as for columns of files."""
    if spec.dtype == stored.dtype or spec.kind not in TENSOR_KINDS or spec.row_shape:
        return column if spec.kind != "string" or not spec.as_bytes else column.cast(pa.large_binary())
    array = one_array(column)
    absent = array.is_null().to_numpy(zero_copy_only=False)
    values = array.fill_null(False if stored.kind == "bool" else 0).to_numpy(zero_copy_only=False).astype(stored.dtype)
    if spec.casting != "unsafe":
        wrong = lost(values, spec.dtype, spec.casting)
        if wrong.any():
            raise cast_error(f"{where}: column {spec.name!r}", values[int(np.argmax(wrong))], spec.dtype)
    with np.errstate(all="ignore"):
        return pa.chunked_array([pa.array(values.astype(spec.dtype), mask=absent)])
