"""Rows that follow each other and have one value in a column: a row of `Groups(by=)`, or an episode of windows."""

from __future__ import annotations

import numpy as np

from ray_h5.buffers import objects
from ray_h5.columns.column_resolver import Columns
from ray_h5.columns.file_columns import FileColumns
from ray_h5.columns.ragged.bounds import Bounds
from ray_h5.columns.ragged.csr_groups import dense_ranges
from ray_h5.columns.ragged.range_columns import Ranges
from ray_h5.columns.row_table import Listing, RowTable
from ray_h5.columns.values import InMemory, Values, read_at, read_units
from ray_h5.errors import SchemaMismatchError, UnsupportedColumnError
from ray_h5.manifest.layout import ValueArray
from ray_h5.manifest.partition import Partition
from ray_h5.messages import counted
from ray_h5.rows.row_columns import RowColumn, RowsOfKind, with_single_values
from ray_h5.rows.row_kind_options import Groups

_BLOCK = 1 << 20
"""Values of the column that are read together."""


class EqualValueRows(RowsOfKind):
    """Rows of one file that are runs of equal values of a column, with what the other columns have beside them.

    Parameters
    ----------
    columns : FileColumns
        The columns of the file.
    kind : Groups
        Which column, as `by`.
    table : RowTable, optional
        What is known.
    """

    def __init__(self, columns: FileColumns, kind: Groups, table: RowTable | None) -> None:
        assert kind.by is not None
        self._columns, self._by, self._attrs = columns, kind.by, tuple(kind.attrs)
        self._known = None if table is None else table.episode_lengths
        self._runs: Partition | None = None

    @property
    def runs(self) -> Partition:
        """The entries of each row."""
        if self._runs is None:
            if self._known is None:
                num_rows = scalar_of_rows(self._columns, self._by).num_rows
                self._known = lengths_of_runs(self._columns, self._by, num_rows, "Groups(by=...)")
            self._runs = Partition.of(self._known)
        return self._runs

    @property
    def num_rows(self) -> int:
        return len(self.runs)

    @property
    def table(self) -> RowTable:
        return self._columns.table(episode_lengths=self.runs.lengths if self._known is None else self._known)

    def listing(self) -> Listing:
        listing = with_single_values(self._columns.listing())
        names, refused = list[str](), dict(listing.refused)
        for name in listing.names:
            try:
                self._check_entries(name)
                names.append(name)
            except UnsupportedColumnError as exc:
                refused[name] = exc
        return Listing((*names, *self._attrs), refused)

    def adds(self, name: str) -> str | None:
        return "attrs= of Groups adds. Leave it out of attrs=" if name in self._attrs else None

    def has(self, name: str) -> bool:
        return self._columns.is_there(name)

    def _check_entries(self, name: str) -> Values | None:
        """Return the values of a column, one an entry; None for a single value. Raise for another number of them."""
        if (single := self._columns.single(name)) is not None:
            return single
        values, entries = self._columns.values(name), self.runs.num_units
        if values.array.num_rows != entries:
            raise UnsupportedColumnError(
                f"{values.array.where} has {counted(values.array.num_rows, 'value')}, and {self._by!r} has {entries}: "
                f"with Groups(by={self._by!r}), columns have the same number of values, or one. Leave it out with "
                "columns=[...]"
            )
        return None

    def column(self, name: str) -> RowColumn:
        if name in self._attrs:
            return RowColumn(name, InMemory.of(name, self.runs.lengths.__getitem__, np.int64))
        if (single := self._check_entries(name)) is not None:
            return RowColumn(name, single, np.zeros_like)
        values = self._columns.values(name)
        if name == self._by:
            return RowColumn(name, self._columns.of_units(name, values), self.runs.firsts.__getitem__)
        ranges = Ranges(name, self._columns.path, values, Bounds.of(self.runs))
        self._columns.chunked[name] = None, values.array.chunk_rows
        if values.array.kind == "sparse":
            if not values.array.type.dense:
                raise UnsupportedColumnError(
                    f"{values.array.where}: rows of Groups(by={self._by!r}) are dense arrays; leave dense=False out"
                )
            return RowColumn(name, self._columns.of_units(name, dense_ranges(ranges)))
        # Letters stay letters: `of_units` makes texts of their ranges, as `ragged` does.
        whole = self._columns.part(name) is None
        return RowColumn(name, ranges if whole else self._columns.of_units(name, ranges), chunk_rows=None)

    def episode_names(self) -> np.ndarray:
        return names_of_runs(self._columns, self._by, self.runs.firsts)


def scalar_of_rows(columns: Columns, name: str, num_rows: int | None = None) -> ValueArray:
    """Return a column that says what rows belong to: one value for each of `num_rows` rows, or for each episode."""
    layout = columns.values(name).array
    is_one = all(length == 1 for length in layout.row_shape)  # libraries write flags of shape (steps, 1)
    if not is_one or layout.kind not in {"number", "bool", "string", "category", "optional"}:
        raise UnsupportedColumnError(
            f"{layout.where} has values of shape {layout.row_shape}; expected one number or text for each row. Name "
            "another column."
        )
    if num_rows is not None and layout.num_rows != num_rows:
        raise SchemaMismatchError(
            f"{layout.where}: expected {num_rows} values, one for each step, found {layout.num_rows}"
        )
    return layout


def lengths_of_runs(columns: Columns, name: str, num_rows: int, option: str) -> np.ndarray:
    """Return the lengths of runs of equal values of a column, which is read once, in blocks.

    Raises
    ------
    UnsupportedColumnError, SchemaMismatchError
        If it has no number or text for each row, or booleans; if a value is missing, or is in two runs.
    """
    layout = scalar_of_rows(columns, name, num_rows)
    if layout.kind == "bool":
        raise UnsupportedColumnError(
            f"{layout.where} is boolean; {option} expects a column with one value an episode, such as its number. For "
            f"a flag that is true in the last step of an episode, pass episode_flags={[name]} to Windows."
        )
    starts, firsts = [np.empty(0, np.int64)], list[np.ndarray]()
    before: np.ndarray | None = None
    block = max(_BLOCK // layout.chunk_rows, 1) * layout.chunk_rows  # no chunk is decoded for two blocks
    for first in range(0, num_rows, block):
        count = min(block, num_rows - first)
        values = read_units(columns.reader, columns.values(name), count, first).reshape(count)
        is_missing = [value is None for value in values] if values.dtype == object else values != values  # NaN
        if (missing := np.flatnonzero(is_missing)).size:
            raise SchemaMismatchError(
                f"{layout.where}: expected a value in each row, found a missing value in row {first + missing[0]}. "
                "Write one there, or name another column."
            )
        is_start = np.append(before is None or values[0] != before, values[1:] != values[:-1])
        starts.append(at := first + np.flatnonzero(is_start))
        firsts.append(values[at - first])
        before = values[-1]
    # What was read is gone by now: of each run, its first row and value are left.
    begins = np.concatenate(starts)
    if firsts:
        _check_once(np.concatenate(firsts), begins, layout, name)
    return np.diff(begins, append=num_rows)


def _check_once(values: np.ndarray, begins: np.ndarray, layout: ValueArray, name: str) -> None:
    """Raise if two runs, which begin in these rows, have the same value."""
    in_order = np.argsort(values, kind="stable")
    again = np.flatnonzero(values[in_order[1:]] == values[in_order[:-1]])
    if not again.size:
        return
    at = again[np.argmin(in_order[again + 1])]
    advice = "Rows with one value must follow each other; sort the file by it."
    if layout.kind == "number" and np.isin(values, [0, 1]).all():
        advice = f"If 1 stands for the last step of an episode, pass episode_flags={[name]}."
    row, later = begins[in_order[at : at + 2]].tolist()
    value = values[in_order[at : at + 1]].tolist()[0]
    raise SchemaMismatchError(
        f"{layout.where}: value {value!r} is in row {row} and again in row {later}, with other values between them. "
        f"{advice}"
    )


def names_of_runs(columns: Columns, name: str, begins: np.ndarray) -> np.ndarray:
    """Return the value of a column in each run, which begin in these rows, as bytes."""

    def names() -> np.ndarray:
        firsts = read_at(columns.reader, columns.values(name), begins).reshape(len(begins)).tolist()
        return objects(value if isinstance(value, bytes) else str(value).encode() for value in firsts)

    return columns.reader.fact(f"{name}: episodes", names)
