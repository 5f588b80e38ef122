"""Columns of tables beside the files, with the line that each row has: in an index, and in a plan."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ray_h5.buffers import objects
from ray_h5.columns.labels import Classes, levels_of
from ray_h5.columns.schema import TENSOR_KINDS, ColumnSpec, is_number, is_text
from ray_h5.columns.values import blank_of
from ray_h5.content_equality import ComparedByContent
from ray_h5.errors import SchemaMismatchError, UnsupportedColumnError
from ray_h5.manifest.file_table import FileTable
from ray_h5.manifest.value_type import ValueType
from ray_h5.read.casting import cast_error, lost
from ray_h5.rows.kinds.steps_around import Around, StepsAround, pieces
from ray_h5.rows.windows_option import Windows

if TYPE_CHECKING:  # it imports readers of tables, which take long
    from ray_h5.tables.table_files import Table

_HASHED_AT_ONCE = 1 << 20
"""Rows of a table whose values are hashed together, and steps of windows whose lines are looked up together."""

ABSENT, _BLANK = -1, -2
"""In the place of a line: none, and that of a step which is padded with zeros."""


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Lines(ComparedByContent):
    """The line of a table that each row has; or with windows, the lines that the steps around it have.

    Attributes
    ----------
    numbers : numpy.ndarray
        Integers: the line of each row, of each file, or of each step; -1 for none.
    by_file : bool
        Whether they are of files.
    around : StepsAround or FilesAround, optional
        Which steps are around a row: they are looked up where rows are read, so that nothing is as long as windows.
    """

    numbers: np.ndarray
    by_file: bool = False
    around: Around | None = None

    @property
    def width(self) -> int:
        """How many lines a row has."""
        return 1 if self.around is None else len(self.around.column.offsets)

    def of(self, files: FileTable, row_ids: np.ndarray | None) -> np.ndarray:
        """Return the lines of some rows; None stands for all. Of windows, their shape is (rows, width).

        They are negative where there is none: -2 for steps that are padded with zeros.
        """
        if self.around is not None:
            # One number for each step and offset, of the rows of one call alone.
            steps, side = self.around.of(files, np.arange(files.num_rows) if row_ids is None else row_ids)
            return np.where(self.around.windows.is_blank(side), _BLANK, self.numbers[steps])
        if row_ids is not None:
            return self.numbers[files.files_of(row_ids) if self.by_file else row_ids]
        return files.rows.spread(self.numbers) if self.by_file else self.numbers

    def have(self, files: FileTable, row_ids: np.ndarray | None, is_wanted: np.ndarray | None = None) -> np.ndarray:
        """Return which of some rows have one of some lines; by default, which lack a line. None stands for all rows.

        The last two entries of `is_wanted` are for steps of zeros, and for no line.
        """
        if is_wanted is None and not (self.numbers < 0).any():
            return np.zeros(files.num_rows if row_ids is None else len(row_ids), bool)
        found = []
        for some in pieces(files.num_rows, row_ids, _HASHED_AT_ONCE // self.width):
            lines = self.of(files, some)
            has_one = lines == ABSENT if is_wanted is None else is_wanted[lines]
            found.append(has_one if has_one.ndim == 1 else has_one.any(axis=1))
        return np.concatenate([*found, np.empty(0, bool)])

    def is_like(self, other: Lines) -> bool:
        """Return whether rows have the same lines of one table."""
        return self.numbers is other.numbers and self.around == other.around

    def used(self, files: FileTable, row_ids: np.ndarray | None, total: int) -> np.ndarray:
        """Return which of `total` lines some rows use; None stands for all rows."""
        is_used = np.zeros(total, bool)
        if self.around is None and (row_ids is None or self.by_file):
            chosen = self.numbers if row_ids is None else self.numbers[np.unique(files.files_of(row_ids))]
            is_used[chosen[chosen >= 0]] = True
            return is_used
        for some in pieces(files.num_rows, row_ids, _HASHED_AT_ONCE // self.width):
            lines = self.of(files, some)
            is_used[lines[lines >= 0]] = True
        return is_used

    def of_steps(self, windows: Windows) -> Lines:
        """Return the lines of rows that are the steps themselves, in windows of one step each."""
        assert isinstance(self.around, StepsAround)
        around = replace(self.around, windows=windows, column=replace(self.around.column, offsets=(0,)))
        return replace(self, around=around)


def renumbered(
    lines: Sequence[Lines], files: FileTable, row_ids: np.ndarray | None, total: int
) -> tuple[list[Lines], np.ndarray]:
    """Return what lines of some rows are in a table that has no others, and the numbers of these lines.

    All of `total` lines stay where most are used. `lines` are of one table, and may be of steps around rows.
    """
    # Windows around all rows reach nearly all steps: which they miss is not worth the look.
    those = [replace(each, around=None) if row_ids is None else each for each in lines]
    is_used = np.logical_or.reduce([each.used(files, row_ids, total) for each in those])
    used = np.arange(total) if 2 * int(is_used.sum()) >= total else np.flatnonzero(is_used)
    numbers = np.full(total + 1, -1, np.min_scalar_type(-max(total, 1)))  # the last entry is for rows without one
    numbers[used] = np.arange(len(used))
    # Windows of a table look up the same array, and go on to share one.
    small = {id(each.numbers): numbers[each.numbers] for each in lines}
    return [replace(each, numbers=small[id(each.numbers)]) for each in lines], used


def spec_of_steps(spec: ColumnSpec, width: int) -> ColumnSpec:
    """Return the column of windows of `width` lines each; raise an `UnsupportedColumnError` if there is none."""
    if spec.kind == "sparse" or None in spec.type.ragged_shape[1:]:
        held = "rows of a sparse matrix" if spec.kind == "sparse" else "arrays that differ along several axes"
        raise UnsupportedColumnError(
            f"Windows: column {spec.name!r} of a table holds {held}. Leave it out of the offsets."
        )
    if spec.kind != "ragged":
        return spec.with_type(row_shape=(width, *spec.row_shape))
    assert spec.element is not None
    inner = spec.type.ragged_shape[1:]
    lists = spec.with_type(kind="list", row_shape=(width,), element=np.dtype((spec.element, inner)), ragged_shape=())
    return replace(lists.with_type(nullable=False), mean_bytes=0)


def spec_of_line(spec: ColumnSpec, stored: ColumnSpec) -> ColumnSpec:
    """Return the column of one line, given that of windows as it is delivered, and as lines hold it."""
    if stored.kind != "ragged":
        return spec.with_type(row_shape=spec.row_shape[1:])
    element = None if spec.element is None else spec.element.base
    return replace(spec, type=replace(stored.type, element=element, nullable=False), mean_bytes=stored.mean_bytes)


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
        The value of a line as it is delivered.
    lines : Lines
        The lines of rows. Columns of one table share them, unless they are windows.
    """

    table: Table
    stored: str
    spec: ColumnSpec
    lines: Lines

    @property
    def row_spec(self) -> ColumnSpec:
        """The column as rows have it."""
        return self.spec if self.lines.around is None else spec_of_steps(self.spec, self.lines.width)

    @property
    def is_of_lines(self) -> bool:
        """Whether predicates look at values of lines: of windows, and of tables in memory."""
        return self.lines.around is not None or not self.table.is_in_files

    def with_row_spec(self, spec: ColumnSpec) -> TableColumn:
        """Return the same column, of which rows are delivered so."""
        return replace(self, spec=spec if self.lines.around is None else spec_of_line(spec, self.spec))

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
        """Return the values of some rows, which have one each; None stands for all."""
        lines = self.lines.of(files, row_ids).reshape(-1)
        values, is_blank = _taken(self.values, lines), lines == _BLANK
        if is_blank.any():
            nothing = blank_of(self.spec.type, self.spec.dtype)
            values = pc.if_else(pa.array(is_blank), pa.scalar(nothing, values.type), values)
        return values

    def array(self, files: FileTable, row_ids: np.ndarray) -> np.ndarray:
        """Return the values of some rows as `FileReader` returns columns; errors as `TableColumns.array`."""
        spec, lines = self.spec, self.lines.of(files, row_ids)
        values, is_blank = _taken(self.values, lines.reshape(-1)), lines.reshape(-1) == _BLANK
        if not self._says_missing and values.null_count:
            lacks = values.is_null().to_numpy(zero_copy_only=False) & ~is_blank
            if lacks.any():
                raise self.no_value(files, int(row_ids[int(np.argmax(lacks)) // self.lines.width]))
        found = self._as_array(values)
        if is_blank.any():
            nothing = np.empty((), found.dtype)
            nothing[()] = blank_of(spec.type, found.dtype)
            found = found if found.flags.writeable else found.copy()
            found[is_blank] = nothing
        return found if self.lines.around is None else found.reshape(*lines.shape, *spec.row_shape)

    def different(self, files: FileTable) -> pa.Array:
        """Return the different values that rows have in columns of several values a row; see `Lines`."""
        values = self.values
        used = np.flatnonzero(self.lines.used(files, None, len(values)))
        has_none = bool(self.lines.have(files, None).any())
        values = values.take(pa.array(used))
        values = values if self.spec.is_scalar else pc.list_flatten(values)
        return pa.concat_arrays([values, pa.nulls(int(has_none and self.spec.is_scalar), values.type)]).unique()

    def of_lines(self, stored: TableColumn) -> np.ndarray:
        """Return the values of all lines as they are delivered, given the column as lines hold it."""
        return self._as_array(stored.cast(self.spec, stored.values))

    def objects(self, files: FileTable, row_ids: np.ndarray) -> np.ndarray:
        """Return the values of some rows as objects, of which some are None."""
        lines = self.lines.of(files, row_ids)
        found = objects(_taken(self.values, lines.reshape(-1)).to_pylist())
        found[lines.reshape(-1) == _BLANK] = blank_of(
            self.spec.type, found.dtype if self.spec.kind == "string" else self.spec.dtype
        )
        return found.reshape(lines.shape)

    def _as_array(self, values: pa.Array) -> np.ndarray:
        """Return values as an array; zeros for those that are missing, if it cannot say so."""
        spec = self.spec
        if spec.kind == "ragged":
            return objects([np.array(value.values, spec.element) if value.is_valid else None for value in values])
        if spec.kind == "string":
            return values.cast(pa.large_binary()).to_numpy(zero_copy_only=False)
        if spec.row_shape:
            found = np.zeros((len(values), *spec.row_shape), spec.dtype)
            flat = values.flatten().to_numpy(zero_copy_only=False)  # of those that are there
            found[values.is_valid().to_numpy(zero_copy_only=False)] = flat.reshape(-1, *spec.row_shape)
            return found
        if values.null_count and spec.kind != "time":
            values = values.fill_null(False if spec.kind == "bool" else float("nan") if self._says_missing else 0)
        return values.to_numpy(zero_copy_only=False).astype(spec.dtype, copy=False)

    @property
    def _says_missing(self) -> bool:
        """Whether an array of the column can say that a row has no value."""
        if self.spec.kind == "ragged":
            return self.lines.around is None
        return self.spec.kind not in TENSOR_KINDS or (self.spec.dtype.kind in "fc" and not self.spec.row_shape)

    def without_value(self, files: FileTable, row_ids: np.ndarray | None) -> SchemaMismatchError | None:
        """Return the error for a row without a value, if arrays cannot say so; None if there is none."""
        if self._says_missing or not (self.values.null_count or bool((self.lines.numbers < 0).any())):
            return None
        is_absent = np.concatenate([self.values.is_null().to_numpy(zero_copy_only=False), [False, True]])
        wrong = np.flatnonzero(self.lines.have(files, row_ids, is_absent))
        return self.no_value(files, int(wrong[0] if row_ids is None else row_ids[wrong[0]])) if len(wrong) else None

    def no_value(self, files: FileTable, row: int) -> SchemaMismatchError:
        """Return the error for a row without a value: it has no line in the table, or its line has no value."""
        spec, has_line = self.spec, not self.lines.have(files, np.array([row]))[0]
        why = "its entry is empty" if has_line else "it has no line"
        ways = [] if has_line else ["leave rows without a line out with missing='drop'"]
        if spec.is_scalar:
            if self.lines.around is None:
                ways.append(f"leave such rows out with the predicate ~where(**{{{spec.name!r}: None}})")
            ways.append(f"pass dtypes={{{spec.name!r}: 'float64'}}, which has NaN")
        if has_line and not (spec.is_scalar and self.lines.around is None):
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
        return {name: column.row_spec for name, column in self.columns.items()}

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
        numbered, columns = {label.name: label for label in labels}, dict[str, TableColumn]()
        in_memory = {name: column for name, column in self.columns.items() if not column.table.is_in_files}
        wanted = {spec.name: spec for spec in specs if spec.name in in_memory}
        shared: dict[int, dict[int, Lines]] = {}  # lines of one table, by what all of them look up
        for lines in (in_memory[name].lines for name in wanted):
            shared.setdefault(id(lines.numbers), {})[id(lines)] = lines
        small = dict[int, tuple[Lines, np.ndarray]]()
        for name, spec in wanted.items():
            column = in_memory[name]
            values, same = column.values, shared[id(column.lines.numbers)]
            if id(column.lines) not in small:
                those, numbers = renumbered([*same.values()], files, selection, len(values))
                small |= {key: (lines, numbers) for key, lines in zip(same, those, strict=True)}
            lines, numbers = small[id(column.lines)]
            only = values if len(numbers) == len(values) else values.take(pa.array(numbers))
            made = column if name in numbered else column.with_row_spec(spec)
            table = column.table.of(column.table.name, {name: pa.chunked_array([column.cast(made.spec, only)])})
            columns[name] = TableColumn(table, name, made.spec, lines)
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
        levels = levels_of(column.row_spec)
        values = column.array(files, row_ids) if levels or not column.spec.is_scalar else column.objects(files, row_ids)
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
