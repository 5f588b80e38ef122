"""Rows along the first axis, and the episodes that they make for windows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from ray_h5.buffers import objects
from ray_h5.columns.column_resolver import Parts
from ray_h5.columns.derived_columns import Ragged
from ray_h5.columns.file_columns import FileColumns
from ray_h5.columns.ragged.bounds import Bounds, as_said, bounds_in, check_inside, integers_in
from ray_h5.columns.row_table import Listing, RowTable
from ray_h5.columns.values import read_units
from ray_h5.errors import SchemaMismatchError, UnknownColumnError
from ray_h5.manifest.partition import Partition
from ray_h5.rows.kinds.equal_value_rows import lengths_of_runs, names_of_runs, scalar_of_rows
from ray_h5.rows.row_columns import Episodes, RowColumn
from ray_h5.rows.windows_option import Windows

_OF_BOUNDS = (
    "Windows(episode_bounds=) names pairs of the first row of an episode and the row after its last one. If it does, "
    "the file is wrong about them."
)

_OF_EPISODES = {"episode_ends", "episode_starts", "episode_lengths", "episode_bounds"}


class AxisRows(Episodes):
    """One file whose rows lie along the first axis of its columns.

    Parameters
    ----------
    columns : FileColumns
        Its columns.
    windows : Windows, optional
        Says where episodes end.
    table : RowTable, optional
        What is known.
    """

    def __init__(self, columns: FileColumns, windows: Windows | None, table: RowTable | None) -> None:
        self.columns: FileColumns = columns
        self._windows = windows
        self._is_timed = windows is not None and windows.at is not None  # columns have times of their own
        self._known = None if table is None else table.episode_lengths
        self._steps = 0 if self._known is None else int(self._known.sum())

    @property
    def num_rows(self) -> int:
        return self._steps  # without windows each column has its own number; they are compared where they are read

    @property
    def table(self) -> RowTable:
        return self.columns.table(episode_lengths=self._known)

    def listing(self) -> Listing:
        listing = self.columns.listing()
        # A dataset with a value for each episode is no column of the steps.
        episodes = {} if self._windows is None else self._windows.episodes
        own = {name.strip("/") for option, name in episodes.items() if option in _OF_EPISODES}
        return Listing(tuple(name for name in listing.names if name not in own), listing.refused) if own else listing

    def column(self, name: str) -> RowColumn:
        return RowColumn(name, self.columns.of_units(name, self.columns.values(name)), chunk_rows=None)

    def lengths_of(self, names: Iterable[str]) -> np.ndarray:
        num_rows = self._rows_of(names)
        if self._known is None:
            self._known = self._lengths(num_rows)
        self._steps = num_rows
        return self._known

    def _lengths(self, num_rows: int) -> np.ndarray:
        assert self._windows is not None
        if self._windows.episode is not None:
            try:
                return lengths_of_runs(self.columns, str(self._windows.episode), num_rows, "Windows(episode=...)")
            except UnknownColumnError as exc:
                hint = " For files of one folder as an episode, pass rows=Files()." if self._windows.of_files else ""
                raise UnknownColumnError(f"{exc}{hint}") from None
        if self._windows.episode_flags:
            return self._flags(self._windows.episode_flags, num_rows)
        if self._windows.episode_bounds is not None:
            bounds = self._bounds_in(self._windows.episode_bounds)
            where = f"{self.columns.path}: {self._windows.episode_bounds!r}"
            with as_said(_OF_BOUNDS):
                check_inside(bounds, num_rows, where, self._windows.sources[0])
            return bounds.stops - bounds.starts
        for option, name in self._windows.episodes.items():
            return self._follow_each_other(option, name, num_rows)
        return np.array([num_rows], np.int64)

    def _bounds_in(self, name: str) -> Bounds:
        """Return where episodes begin and end, as pairs say."""
        known = self.columns.bounds
        if (key := Ragged("", bounds=name)) not in known:
            (pairs,) = self.columns.units_at(name).read(self.columns.reader)
            with as_said(_OF_BOUNDS):
                known[key] = bounds_in({"bounds": pairs}, f"{self.columns.path}: {name!r}")
        return known[key]

    def _flags(self, names: Sequence[str], num_rows: int) -> np.ndarray:
        """Return the lengths of episodes that end where a column is true."""
        is_last = np.zeros(1, bool)  # one for each step, once the first of them was read
        for name in names:
            layout = scalar_of_rows(self.columns, name, num_rows)
            if layout.kind not in {"number", "bool"}:
                raise SchemaMismatchError(
                    f"{layout.where}: expected a boolean for each step, found {layout.kind} values"
                )
            values = self._read(name)
            if (wrong := np.flatnonzero(~np.isin(values, [0, 1]))).size:
                raise SchemaMismatchError(
                    f"{layout.where}: expected a flag of the last step of each episode, found {values[wrong[0]]} in "
                    f"row {wrong[0]}. If it has one value an episode, pass episode={name!r}."
                )
            is_last = is_last | values.astype(bool)
        is_last[-1:] = True  # of an episode that was not finished
        return np.diff(np.flatnonzero(is_last), prepend=-1)

    def _follow_each_other(self, option: str, name: str, num_rows: int) -> np.ndarray:
        """Return the lengths of episodes that follow each other, of which a dataset has the ends, starts or lengths."""
        layout = scalar_of_rows(self.columns, name)
        how = {"episode_ends": "ends", "episode_starts": "offsets", "episode_lengths": "counts"}[option]
        values = self._read(name)
        with as_said(
            f"Pass the option that says what {name!r} has: the first row of each episode, the row after its last one, "
            "or how many it has: episode_starts=, episode_ends=, episode_lengths=."
        ):
            numbers = integers_in(values, layout.where)
            said = np.append(numbers, num_rows) if how == "offsets" else numbers
            bounds = bounds_in({how: said}, f"{layout.where}: episodes")
        first, last = (int(bounds.starts[0]), int(bounds.stops[-1])) if len(bounds) else (0, 0)
        if (first, last) != (0, num_rows):
            raise SchemaMismatchError(
                f"{layout.where}: expected episodes from step 0 to {num_rows}, the number of steps; found {first} to "
                f"{last}. Episodes follow each other, and each step belongs to one; otherwise pass episode_bounds=, a "
                "dataset of the first row of each, and the row after its last one."
            )
        return bounds.stops - bounds.starts

    def _read(self, name: str) -> np.ndarray:
        values = read_units(self.columns.reader, self.columns.values(name))
        return values.reshape(len(values))

    def steps(self, name: str) -> Parts:
        assert self._windows is not None
        if self._is_timed:
            return self.columns.parts(name)
        assert self._known is not None
        values, names = self.columns.values(name), (name, self._windows.sources[0])
        if self._windows.episode_bounds is not None or values.array.num_rows != self._known.sum():
            try:
                self._rows_of(names)
            except SchemaMismatchError:
                self._rows_of((*names, *self.listing().names))  # this one says which columns may be read together
                raise
        values = self.columns.of_units(name, values)
        return Parts(values, self._starts(self._known), self._known, values.array.chunk_rows)

    def constant(self, name: str) -> RowColumn | None:
        single = self.columns.single(name) if self._is_timed else None
        return None if single is None else RowColumn(name, single)

    def _rows_of(self, names: Iterable[str]) -> int:
        """Return the number of rows of columns; raise unless they have equally many."""
        return self.columns.reader.rows_of({name: self.columns.values(name).array for name in names})

    def _starts(self, lengths: np.ndarray) -> np.ndarray:
        """Return the first row of each episode."""
        if self._windows is not None and self._windows.episode_bounds is not None:
            return self._bounds_in(self._windows.episode_bounds).starts
        return Partition.of(lengths).firsts

    def episode_names(self) -> np.ndarray:
        lengths = self._known if self._known is not None else np.zeros(int(self._is_timed))
        if self._windows is None or self._windows.episode is None:
            return objects(str(i).encode() for i in range(len(lengths)))
        return names_of_runs(self.columns, str(self._windows.episode), self._starts(lengths))
