"""Columns of tables beside the files, with the line that each row has: in an index, and in a plan."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from ray_h5.buffers import objects
from ray_h5.columns.labels import Classes, levels_of
from ray_h5.columns.schema import TENSOR_KINDS, ColumnSpec, is_number, is_text
from ray_h5.content_equality import ComparedByContent
from ray_h5.errors import SchemaMismatchError
from ray_h5.manifest.file_table import FileTable
from ray_h5.manifest.value_type import ValueType
from ray_h5.read.casting import cast_error, lost

if TYPE_CHECKING:  # it imports readers of tables, which take long
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

    def of(self, files: FileTable, row_ids: np.ndarray | None) -> np.ndarray:
        """Return the lines of some rows; None stands for all."""
        if row_ids is not None:
            return self.numbers[files.files_of(row_ids) if self.by_file else row_ids]
        return files.rows.spread(self.numbers) if self.by_file else self.numbers

    def used(self, files: FileTable, row_ids: np.ndarray | None, total: int) -> tuple[Lines, np.ndarray]:
        """Return what the lines of some rows are in a table that has no others, and the numbers of these lines.

        All of `total` lines stay where most are used.
        """
        if row_ids is None:
            chosen = self.numbers
        else:
            chosen = self.numbers[np.unique(files.files_of(row_ids)) if self.by_file else row_ids]
        used = np.unique(chosen[chosen >= 0])
        if 2 * len(used) >= total:
            used = np.arange(total)
        numbers = np.full(total + 1, -1, np.min_scalar_type(-max(total, 1)))  # the last entry is for rows without one
        numbers[used] = np.arange(len(used))
        return Lines(numbers[self.numbers], self.by_file), used


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class TableColumn(ComparedByContent):
    """A column of a table, and the line of each row.

    Attributes
    ----------
    table : Table
        The table.
    stored : str
        The name of the column there.
    spec : ColumnSpec
        The column as it is delivered.
    lines : Lines
        The lines of rows. Columns of one table share them.
    """

    table: Table
    stored: str
    spec: ColumnSpec
    lines: Lines

    @property
    def values(self) -> pa.Array:
        """The value of each line, in the Arrow type that the spec has."""
        values, spec = one_array(self.table.column(self.stored)), self.spec
        if spec.kind != "ragged" and not spec.row_shape:
            return values if values.type == spec.kept_type else values.cast(spec.kept_type, safe=False)
        dtype = spec.element if spec.kind == "ragged" else spec.dtype
        if dtype is not None and dtype.kind in "iu" and values.flatten().null_count:
            raise SchemaMismatchError(
                f"column {spec.name!r} of the table has arrays of {dtype} with missing entries, which {dtype} cannot "
                "hold. Write the table with floats, or leave the column out."
            )
        return values

    def cast(self, spec: ColumnSpec, values: pa.Array) -> pa.Array:
        """Return some values of the column, cast as the user asked for; errors as for columns of files."""
        stored = self.spec
        (held, wanted), is_array = (one.element or one.dtype for one in (stored, spec)), not spec.is_scalar
        if wanted == held or (is_array and spec.casting == "unsafe"):  # arrays are cast where they are made
            return values if spec.kind != "string" or not spec.as_bytes else values.cast(pa.large_binary())
        filled = values.flatten() if is_array else values.fill_null(False if stored.kind == "bool" else 0)
        array = filled.to_numpy(zero_copy_only=False).astype(held)
        if spec.casting != "unsafe" and (wrong := lost(array, wanted, spec.casting)).any():
            where = f"{self.table.name}: column {spec.name!r}"
            raise cast_error(where, array[int(np.argmax(wrong))], wanted)
        with np.errstate(all="ignore"):
            return values if is_array else pa.array(array.astype(wanted), mask=values.is_null().to_numpy(False))

    def of(self, files: FileTable, row_ids: np.ndarray | None) -> pa.Array:
        """Return the values of some rows; None stands for all."""
        return _taken(self.values, self.lines.of(files, row_ids))

    def array(self, files: FileTable, row_ids: np.ndarray) -> np.ndarray:
        """Return the values of some rows as `FileReader` returns columns; errors as `TableColumns.array`."""
        spec, values = self.spec, self.of(files, row_ids)
        if spec.kind == "ragged":
            return objects([np.array(value.values, spec.element) if value.is_valid else None for value in values])
        if spec.kind == "string":
            return values.cast(pa.large_binary()).to_numpy(zero_copy_only=False)
        if values.null_count and spec.kind != "time" and not self._says_missing:
            raise self.no_value(files, int(row_ids[int(np.argmax(values.is_null().to_numpy(zero_copy_only=False)))]))
        if spec.row_shape:
            return values.flatten().to_numpy(zero_copy_only=False).astype(spec.dtype).reshape(-1, *spec.row_shape)
        if values.null_count and spec.kind != "time":
            values = values.fill_null(float("nan"))
        return values.to_numpy(zero_copy_only=False).astype(spec.dtype, copy=False)

    @property
    def _says_missing(self) -> bool:
        """Whether an array of the column can say that a row has no value."""
        return self.spec.kind not in TENSOR_KINDS or (self.spec.dtype.kind in "fc" and not self.spec.row_shape)

    def without_value(self, files: FileTable, row_ids: np.ndarray | None) -> SchemaMismatchError | None:
        """Return the error for a row without a value, if arrays cannot say so; None if there is none."""
        if self._says_missing or not (self.values.null_count or bool((self.lines.numbers < 0).any())):
            return None
        absent = np.concatenate([self.values.is_null().to_numpy(zero_copy_only=False), [True]])
        wrong = np.flatnonzero(absent[self.lines.of(files, row_ids)])
        return self.no_value(files, int(wrong[0] if row_ids is None else row_ids[wrong[0]])) if len(wrong) else None

    def no_value(self, files: FileTable, row: int) -> SchemaMismatchError:
        """Return the error for a row without a value: it has no line in the table, or its line has no value."""
        spec, has_line = self.spec, bool(self.lines.of(files, np.array([row]))[0] >= 0)
        why = "its entry is empty" if has_line else "it has no line"
        ways = [] if has_line else ["leave rows without a line out with missing='drop'"]
        if not spec.row_shape:
            ways.append(f"leave such rows out with the predicate ~where(**{{{spec.name!r}: None}})")
            ways.append(f"pass dtypes={{{spec.name!r}: 'float64'}}, which has NaN")
        elif has_line:
            ways.append("remove such lines from the table and pass missing='drop'")
        return SchemaMismatchError(
            f"{files.where(row)}: column {spec.name!r} of the table has no value for this row ({why}), and {spec} "
            f"cannot say so. To go on, {', or '.join(ways)}."
        )


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class TableColumns(ComparedByContent):
    """Columns of tables beside the files: all of an index, or those that a plan delivers.

    Attributes
    ----------
    columns : mapping of str to TableColumn
        The columns; in a plan, of tables in memory, which have the lines that the selected rows use.
    kept : numpy.ndarray, optional
        int64: the row ids of the rows that have a line in all tables that leave out the others; None for all rows.
    labels : mapping of str to Classes
        In a plan: the columns that are delivered as numbers of classes. They are here as they are stored.
    """

    columns: Mapping[str, TableColumn] = field(default_factory=dict)
    kept: np.ndarray | None = None
    labels: Mapping[str, Classes] = field(default_factory=dict)
    _digests: dict[str, str] = field(default_factory=dict, compare=False)

    @property
    def specs(self) -> dict[str, ColumnSpec]:
        """The columns."""
        return {name: column.spec for name, column in self.columns.items()}

    def digest(self, name: str) -> str:
        """Return a digest of the values that rows, or files, have of a column."""
        if name not in self._digests:
            column, lines = self.columns[name], self.columns[name].lines
            hasher = hashlib.blake2b(column.table.said(column.stored).encode("utf-8", "surrogateescape"), digest_size=8)
            values = None if column.table.is_in_files else column.values
            if values is None:
                hasher.update(lines.numbers.astype(np.int64).data)
            for first in range(0, len(lines.numbers), _HASHED_AT_ONCE) if values is not None else ():
                for buffer in filter(None, _taken(values, lines.numbers[first : first + _HASHED_AT_ONCE]).buffers()):
                    hasher.update(buffer)
            self._digests[name] = hasher.hexdigest()
        return self._digests[name]

    def planned(
        self, specs: Iterable[ColumnSpec], files: FileTable, selection: np.ndarray | None, labels: Iterable[Classes]
    ) -> TableColumns:
        """Return the columns that a plan delivers."""
        numbered, used = {label.name: label for label in labels}, dict[int, tuple[Lines, np.ndarray]]()
        columns = {}
        in_memory = {name: column for name, column in self.columns.items() if not column.table.is_in_files}
        for name, wanted in ((spec.name, spec) for spec in specs if spec.name in in_memory):
            column = in_memory[name]
            spec, values = column.spec if name in numbered else wanted, column.values
            if id(column.lines) not in used:
                used[id(column.lines)] = column.lines.used(files, selection, len(values))
            lines, numbers = used[id(column.lines)]
            only = values if len(numbers) == len(values) else values.take(pa.array(numbers))
            table = column.table.of(column.table.name, {name: pa.chunked_array([column.cast(spec, only)])})
            columns[name] = TableColumn(table, name, spec, lines)
        return TableColumns(columns, labels=numbered if columns else {})

    def arrow(self, name: str, files: FileTable, row_ids: np.ndarray) -> pa.Array:
        """Return the values of a column with one value a row, for some rows."""
        if name in self.labels:
            return pa.array(self.array(name, files, row_ids))
        column = self.columns[name]
        return column.of(files, row_ids).cast(column.spec.value_type)

    def array(self, name: str, files: FileTable, row_ids: np.ndarray) -> np.ndarray:
        """Return the values of a column for some rows, as `FileReader` returns columns.

        Raises
        ------
        SchemaMismatchError
            If a row has no value, in a column of integers or booleans, or of arrays of one shape.
        """
        if (classes := self.labels.get(name)) is None:
            return self.columns[name].array(files, row_ids)
        column = self.columns[name]
        levels = levels_of(column.spec)
        values = column.array(files, row_ids) if levels else objects(column.of(files, row_ids).to_pylist())
        return classes.of(values, lambda i: files.where(int(row_ids[i])), levels)

    def without_value(self, files: FileTable, row_ids: np.ndarray | None) -> SchemaMismatchError | None:
        """Return the error for a row without a value, in a column whose arrays cannot say so; None if there is none."""
        others = (column for name, column in self.columns.items() if name not in self.labels)
        return next(filter(None, (column.without_value(files, row_ids) for column in others)), None)


def spec_of(name: str, kind: pa.DataType) -> ColumnSpec | None:
    """Return the spec of a column of a table; None for a type that is not delivered."""
    if pa.types.is_dictionary(kind):
        return spec_of(name, kind.value_type)
    if (is_bool := pa.types.is_boolean(kind)) or is_number(kind):
        return ColumnSpec(name, ValueType("bool" if is_bool else "number", np.dtype(kind.to_pandas_dtype())))
    is_bytes = pa.types.is_binary(kind) or pa.types.is_large_binary(kind)
    if is_bytes or is_text(kind) or pa.types.is_string_view(kind) or pa.types.is_null(kind):
        return ColumnSpec(name, ValueType("string", np.dtype(object)), as_bytes=is_bytes)
    if (is_span := pa.types.is_duration(kind)) or pa.types.is_timestamp(kind):  # of a time zone it is the time in UTC
        return ColumnSpec(name, ValueType("time", np.dtype(f"{'m8' if is_span else 'M8'}[{kind.unit}]")))
    if pa.types.is_date(kind):
        return ColumnSpec(name, ValueType("time", np.dtype("M8[D]")))
    if pa.types.is_fixed_size_list(kind) and is_number(kind.value_type):
        return ColumnSpec(name, ValueType("number", np.dtype(kind.value_type.to_pandas_dtype()), (kind.list_size,)))
    if (pa.types.is_list(kind) or pa.types.is_large_list(kind)) and is_number(kind.value_type):
        element = np.dtype(kind.value_type.to_pandas_dtype())
        # A line may be missing, or its entry empty.
        type_ = ValueType("ragged", np.dtype(object), element=element, ragged_shape=(None,), nullable=True)
        return ColumnSpec(name, type_, mean_bytes=1 << 10)
    return None


def _taken(values: pa.Array, lines: np.ndarray) -> pa.Array:
    absent = lines < 0
    return values.take(pa.array(lines, mask=absent) if absent.any() else pa.array(lines))


def one_array(column: pa.ChunkedArray) -> pa.Array:
    """Return a column as one array."""
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
