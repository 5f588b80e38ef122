"""Rows along the first axis, as episodes for windows."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from ray_h5.errors import SchemaMismatchError, UnsupportedColumnError
from ray_h5.hdf5.layout import ColumnLayout
from ray_h5.hdf5.reader import RowReader
from ray_h5.planning.rows.columns import UnitColumn
from ray_h5.planning.rows.space import Column, Listing, RowTable, Steps
from ray_h5.planning.rows.windows import Windows


class AxisRows:
    """One file whose rows lie along the first axis, in episodes.

    Parameters
    ----------
    reader : RowReader
        The open file.
    windows : Windows
        Says where episodes end.
    table : RowTable, optional
        What is known.
    """

    def __init__(self, reader: RowReader, windows: Windows, table: RowTable | None) -> None:
        self._reader = reader
        self._windows = windows
        self._found = None if table is None else table.episode_lengths
        self._steps = 0 if self._found is None else int(self._found.sum())

    @property
    def num_rows(self) -> int:
        return self._steps

    @property
    def table(self) -> RowTable:
        return RowTable(None, self._found)

    def listing(self) -> Listing:
        layout = self._reader.layout
        own = {(self._windows.episode_ends or "").strip("/")}
        return Listing(tuple(name for name in layout.columns if name not in own), layout.refused)

    def prepare(self, names: Iterable[str]) -> None:
        """Do nothing: the reader describes columns one by one."""

    def column(self, name: str) -> Column:
        return UnitColumn(name, name, self._reader.find([name])[name])

    def lengths_of(self, names: Iterable[str]) -> np.ndarray:
        layouts = self._reader.find(list(names))
        num_rows = self._reader.rows_of(layouts)
        if self._found is None:
            self._found = self._lengths(num_rows)
        self._steps = num_rows
        return self._found

    def _lengths(self, num_rows: int) -> np.ndarray:
        if self._windows.episode is not None:
            return self._runs(self._windows.episode, num_rows)
        if self._windows.episode_ends is not None:
            return self._ends(self._windows.episode_ends, num_rows)
        return np.array([num_rows], np.int64)

    def _runs(self, name: str, num_rows: int) -> np.ndarray:
        """Return the lengths of runs of equal values of a column."""
        layout = self._scalar(name)
        if layout.num_rows != num_rows:
            raise SchemaMismatchError(
                f"{layout.where}: expected {num_rows} values, one for each step, found {layout.num_rows}"
            )
        values = self._reader.read([name])[name]
        if values.dtype.kind == "f" and (lost := np.flatnonzero(np.isnan(values))).size:
            raise SchemaMismatchError(f"{layout.where}: expected the episode of each row, found NaN in row {lost[0]}")
        cuts = np.flatnonzero(values[1:] != values[:-1]) + 1
        starts = np.concatenate([[0], cuts]) if num_rows else np.empty(0, np.int64)
        first: dict[object, int] = {}
        for start in starts.tolist():
            value = values[start].item() if isinstance(values[start], np.generic) else values[start]
            if value in first:
                raise SchemaMismatchError(
                    f"{layout.where}: value {value!r} is in row {first[value]} and again in row {start}, with other "
                    "values between them. Rows of an episode must follow each other; sort the file by it."
                )
            first[value] = start
        return np.diff(np.concatenate([starts, [num_rows]])).astype(np.int64) if num_rows else np.empty(0, np.int64)

    def _ends(self, name: str, num_rows: int) -> np.ndarray:
        layout = self._scalar(name)
        if layout.dtype.kind not in "iu":
            raise UnsupportedColumnError(
                f"{layout.where}: expected integers, the ends of episodes; found {layout.dtype}"
            )
        ends = self._reader.read([name])[name]
        wrong = np.flatnonzero(ends[1:] < ends[:-1])
        if len(wrong):
            at = int(wrong[0]) + 1
            raise SchemaMismatchError(
                f"{layout.where}: end {at} is {ends[at]}, below the one before, {ends[at - 1]}. Ends must ascend."
            )
        last = int(ends[-1]) if len(ends) else 0
        if len(ends) and int(ends[0]) < 0:
            raise SchemaMismatchError(f"{layout.where}: expected ends from 0 on, found {ends[0]}")
        if last != num_rows:
            raise SchemaMismatchError(
                f"{layout.where}: expected the last end to be {num_rows}, the number of steps, found {last}. Each end "
                "is the row after the last one of an episode."
            )
        return np.diff(ends.astype(np.int64), prepend=0)

    def _scalar(self, name: str) -> ColumnLayout:
        layout = self._reader.find([name])[name]
        if layout.row_shape or layout.kind not in {"number", "bool", "string"}:
            raise UnsupportedColumnError(
                f"{layout.where} has values of shape {layout.row_shape}; expected one number or text for each step"
            )
        return layout

    def steps(self, name: str, lengths: np.ndarray) -> Steps | None:
        layout = self._reader.find([name])[name]
        if layout.num_rows != lengths.sum():
            self._reader.rows_of({name: layout, **self._reader.find([self._windows.columns[0].source])})
        starts = np.concatenate([[0], np.cumsum(lengths)])[:-1].astype(np.int64)
        return Steps(name, layout, starts, layout.chunk_rows)

    def is_step(self, name: str) -> bool:  # noqa: ARG002  as the other spaces have it
        return False

    def constant(self, name: str) -> Column:
        raise AssertionError(f"{name}: each column of such a file has steps")

    def episode_names(self) -> np.ndarray:
        lengths = self._found if self._found is not None else np.empty(0)
        if self._windows.episode is None:
            return np.array([*(str(i).encode() for i in range(len(lengths))), None], object)[:-1]
        values = self._reader.read([self._windows.episode])[self._windows.episode]
        starts = np.concatenate([[0], np.cumsum(lengths)])[:-1].astype(np.int64)
        texts = [v if isinstance(v, bytes) else str(v).encode() for v in values[starts].tolist()]
        return np.array([*texts, None], object)[:-1]
