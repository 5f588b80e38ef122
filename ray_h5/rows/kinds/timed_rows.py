"""Rows that are times of a recording, of which each column has samples at times of its own."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace

import numpy as np

from ray_h5.columns.row_table import Listing, RowTable
from ray_h5.columns.times import LIKE_A_NUMBER, Times
from ray_h5.columns.values import InMemory
from ray_h5.columns.varying.bounds import Bounds
from ray_h5.errors import OptionError, RayH5Error, UnsupportedColumnError
from ray_h5.read.reader import RowReader
from ray_h5.rows.kinds.recordings import Recordings, TimesOf, dataset_of_field
from ray_h5.rows.row_columns import Column, RowColumn, SpanColumn, StepColumn, WindowedColumn
from ray_h5.rows.row_kinds import EpisodeRows, Samples
from ray_h5.rows.windows import IS_PAD, WindowColumn, Windows


class TimedRows(EpisodeRows):
    """The recordings of one file, whose rows are times.

    Parameters
    ----------
    reader : RowReader
        The open file.
    recordings : Recordings
        Its recordings.
    windows : Windows
        The windows, with `at`.
    table : RowTable, optional
        What is known.
    """

    def __init__(self, reader: RowReader, recordings: Recordings, windows: Windows, table: RowTable | None) -> None:
        self._reader = reader
        self._recordings = recordings
        self._windows = windows
        self._by_name = {each.name: each for each in windows.columns}
        self.times = TimesOf(reader, recordings, windows, {} if table is None else table.times)
        self._known: dict[str, Samples] = {}
        self._rows: RowsInTime | None = None

    # Rows: times of the clock ----------------------------------------------------------------

    @property
    def num_rows(self) -> int:
        return int(self._clock.row_starts[-1])

    @property
    def num_steps(self) -> int:
        """How many numbers steps have in the file."""
        return self._clock.num_steps

    def step_numbers(self, rows: np.ndarray) -> np.ndarray:
        """Return the number of each row's step in the file: other offsets do not change it."""
        return self._clock.step_numbers(rows)

    @property
    def table(self) -> RowTable:
        lengths = np.diff(self._clock.row_starts)
        return replace(self._recordings.table, episode_lengths=lengths, times=dict(self.times.known))

    @property
    def _clock(self) -> RowsInTime:
        if self._rows is None:
            self._recordings.prepare(dict.fromkeys(each.source for each in self._windows.columns))
            self._rows = RowsInTime(self.times, self._windows, self.times.where)
        return self._rows

    # Columns ---------------------------------------------------------------------------------

    def listing(self) -> Listing:
        found = self._recordings.listing()
        names = dict.fromkeys([*(each.name for each in self._windows.columns)])
        clocks = self._clocks()
        marks = [each.name + IS_PAD for each in self._windows.columns if self._marks(each)]
        refused: dict[str, Exception] = dict(found.refused)
        chosen = []
        for name in found.names:
            if name in clocks and name not in names:
                continue  # the times of others have none themselves
            try:
                if not (name in names or name == "time" or self._is_constant(name)):
                    self.times(name)
            except RayH5Error as exc:
                refused[name] = exc
            else:
                chosen.append(name)
        return Listing(tuple(dict.fromkeys([*names, *chosen, *marks, "time"])), refused)

    def _clocks(self) -> set[str]:
        """Return the datasets of times that `at` names for single columns."""
        said = () if self._windows.at is None or isinstance(self._windows.at, str) else self._windows.at
        found = set()
        for column, times in said:
            if isinstance(times, str):
                above = dataset_of_field(self._recordings, column).rpartition("/")[0]
                found |= {times.strip("/"), f"{above}/{times.strip('/')}".strip("/")}
        return found

    def _is_constant(self, name: str) -> bool:
        return name in self._windows.constants or self._recordings.is_constant(name)

    def _marks(self, window: WindowColumn) -> bool:
        return self._windows.marks_padding and self._width(window) is not None

    def prepare(self, names: Iterable[str]) -> None:
        own = {*self._by_name, *(each.name + IS_PAD for each in self._windows.columns), "time"}
        self._recordings.prepare([name for name in names if name not in own])

    def column(self, name: str) -> Column:
        if name in self._by_name:
            return self._windowed(self._by_name[name])
        of = self._by_name.get(name.removesuffix(IS_PAD)) if name.endswith(IS_PAD) else None
        if of is not None and self._marks(of):
            is_pad = InMemory.of(
                name, "bool", lambda rows: self._units(of, rows)[1], np.dtype(bool), (self._width(of) or 0,)
            )
            return RowColumn(name, is_pad)
        if name == "time":
            times = InMemory.of(name, "number", lambda rows: self._clock.of(rows)[1], np.dtype(np.float64))
            return RowColumn(name, times)
        if self._is_constant(name):
            return self._recordings.constant(name).at(self.episodes_of)
        return self._now(name)

    def _now(self, name: str) -> Column:
        """Return a column without offsets: its value at the time of a row."""
        samples, now = self._samples(name), WindowColumn(name, name, (), (0.0,))
        if (joined := samples.joined) is None or joined.unit_shape is not None:
            return RowColumn(name, samples.values, lambda rows: self._units(now, rows)[0][:, 0])

        def step_of(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            recordings = self.episodes_of(rows)
            return recordings, self._units(now, rows)[0][:, 0] - samples.starts[recordings]

        return StepColumn(name, samples.values, joined, step_of)

    def _samples(self, name: str) -> Samples:
        """Return the samples of a column, whose times are known then."""
        if name not in self._known:
            self.times(name)
            self._known[name] = self._recordings.samples(name)
        return self._known[name]

    def _windowed(self, window: WindowColumn) -> Column:
        samples = self._samples(window.source)
        values, joined = samples.values, samples.joined
        if values.array.kind == "sparse" and not values.array.dense:
            raise UnsupportedColumnError(
                f"{self._reader.path}: Windows: column {window.source!r} is csr(dense=False): torch has no sparse "
                "batches of several rows each. Leave dense=False out, or the column out of the offsets."
            )
        varying = None if joined is None or joined.unit_shape is not None else joined
        width = self._width(window)
        if width is None:
            assert window.span is not None
            if varying is not None:
                raise UnsupportedColumnError(
                    f"{self._reader.path}: Windows: the samples of column {window.source!r} have other shapes in other "
                    f"groups, such as {varying.layouts[0].row_shape} and {varying.layouts[1].row_shape}, and their "
                    "number varies, too. Pass a list of offsets instead of a slice, or choose groups that agree."
                )
            steps = self.times(window.source).steps
            mean = (window.span[1] - window.span[0]) / max(float(steps.mean()) if len(steps) else 0.0, 1e-12)
            return SpanColumn(window.name, values, lambda rows: self._bounds(window, rows), mean)
        before, after = (pad == "zero" for pad in self._windows.pad)

        def units_of(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            units, is_pad = self._units(window, rows)
            recordings = self.episodes_of(rows)[:, None]
            middle = samples.starts[recordings] + samples.lengths[recordings] // 2
            return units, is_pad & np.where(units < middle, before, after)

        return WindowedColumn(window.name, values, width, units_of, joined=varying)

    def _width(self, window: WindowColumn) -> int | None:
        return _width_of(window, self.times(window.source))

    def _bounds(self, window: WindowColumn, rows: np.ndarray) -> Bounds:
        assert window.span is not None
        times, starts = self.times(window.source), self._samples(window.source).starts
        recordings, now = self._clock.of(rows)
        low, high = (times.first(recordings, now + seconds) + starts[recordings] for seconds in window.span)
        return Bounds(low, high)

    def _units(self, window: WindowColumn, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the samples of rows, and which of them stand for times that have none; of shape (rows, width)."""
        times, starts = self.times(window.source), self._samples(window.source).starts
        recordings, now = self._clock.of(rows)
        first, last = starts[recordings][:, None], times.counts[recordings][:, None] - 1
        if window.span is not None:
            after_start = (now + window.span[0] - times.starts[recordings]) * times.rates[recordings]
            begins = np.ceil(after_start - LIKE_A_NUMBER).astype(np.int64)
            wanted = begins[:, None] + np.arange(self._width(window) or 0)
            return first + np.clip(wanted, 0, last), (wanted < 0) | (wanted > last)
        asked = now[:, None] + np.array(window.seconds)
        recordings = np.broadcast_to(recordings[:, None], asked.shape)
        after, steps = times.first(recordings, asked), times.steps[recordings]
        if window.source in self._windows.holds:
            begins = np.minimum(after, last)
            is_now = (after <= last) & (times.at(recordings, begins) <= asked + steps * LIKE_A_NUMBER)
            units = np.where(is_now, begins, after - 1)
            ends = times.at(recordings, np.clip(units, 0, last)) + steps
            is_pad = (units < 0) | ((units == last) & (asked >= ends) & (steps > 0))
            return first + np.clip(units, 0, last), is_pad
        before, after = np.clip(after - 1, 0, last), np.minimum(after, last)
        is_before = asked - times.at(recordings, before) < times.at(recordings, after) - asked
        nearest = np.where(is_before, before, after)
        away = np.abs(times.at(recordings, nearest) - asked)
        return first + nearest, away > steps * (1 + LIKE_A_NUMBER)

    def episode_names(self) -> np.ndarray:
        return self._recordings.episode_names()

    def episodes_of(self, rows: np.ndarray) -> np.ndarray:
        return self._clock.of(rows)[0]


def _width_of(window: WindowColumn, times: Times) -> int | None:
    """Return how many samples each row has of a column; None if they are not equally many."""
    if window.span is None:
        return len(window.seconds)
    if not times.is_regular or not len(times.rates):
        return None
    low, high = window.span
    samples = (high - low) * times.rates
    count = round(samples[0])
    return count if (np.abs(samples - count) < LIKE_A_NUMBER * max(1, count)).all() else None


def check_widths(
    paths: Sequence[str], tables: Sequence[RowTable | None], windows: Windows, columns: Collection[str] | None
) -> None:
    """Raise if a slice has one number of samples in some files, whose rows are padded, and not in others.

    Parameters
    ----------
    paths, tables : sequence
        The files, and what is known of their rows.
    windows : Windows
        The windows, with `at`.
    columns : collection of str, optional
        The columns that are read; None for all.
    """
    for window in windows.columns if windows.marks_padding else ():
        if window.span is None or (columns is not None and window.name not in columns):
            continue
        known = {path: table.times for path, table in zip(paths, tables, strict=True) if table is not None}
        widths = {path: _width_of(window, times[window.source]) for path, times in known.items() if times}
        padded = next((path for path, width in widths.items() if width is not None), None)
        varying = next((path for path, width in widths.items() if width is None), None)
        if padded is not None and varying is not None:
            raise OptionError(
                f"Windows: column {window.name!r}: slice({window.span[0]}, {window.span[1]}) has {widths[padded]} "
                f"samples in each row of {padded}, which are padded, and as many as there are in {varying}. Pass "
                "pad='drop', or a list of offsets in seconds instead of the slice, or read these files apart."
            )


def _ticks(times_of: Callable[[str], Times], windows: Windows) -> Times:
    """Return the times of which each `stride`-th is a row, some at the ends left out."""
    clock, fps = times_of(windows.columns[0].source), windows.fps
    if fps is None:
        return clock
    some = np.flatnonzero(clock.counts)
    low, high = np.zeros((2, len(clock.counts)))
    low[some], high[some] = clock.at(some, some * 0), clock.at(some, clock.counts[some] - 1)
    counts = np.zeros_like(clock.counts)
    counts[some] = np.floor((high - low)[some] * fps + LIKE_A_NUMBER) + 1
    return Times(counts, np.full(len(counts), 1 / fps), np.full(len(counts), float(fps)), low)


def _spans(
    times_of: Callable[[str], Times], windows: Windows, where: Callable[[int], str]
) -> tuple[np.ndarray, np.ndarray]:
    """Return the first and the last time of a row in each recording."""
    is_used = times_of(windows.columns[0].source).counts > 0
    low, high = np.full((2, len(is_used)), math.inf)
    low = -low
    for each in windows.columns:
        times = times_of(each.source)
        if each.span is not None and not times.is_regular:
            continue  # of events there may be none
        if (empty := np.flatnonzero(is_used & (times.counts == 0))).size:
            raise OptionError(f"{where(int(empty[0]))}: Windows: column {each.source!r} has no sample")
        least, most = each.span or (min(each.seconds), max(each.seconds))
        used = np.flatnonzero(is_used)
        begin, end = times.at(used, used * 0), times.at(used, times.counts[used] - 1)
        if each.span is not None or each.source in windows.holds:
            end = end + times.steps[used]  # up to the end of the last sample
        if windows.pad[0] == "drop":
            low[used] = np.maximum(low[used], begin - least)
        if windows.pad[1] == "drop":
            high[used] = np.minimum(high[used], end - most)
    return low, high


class RowsInTime:
    """Row number <-> (recording, time), and the number of each row's tick in the file.

    Parameters
    ----------
    times_of : callable
        Returns the times of a column.
    windows : Windows
        The windows, with `at`.
    where : callable
        Names a recording, for messages.
    """

    def __init__(
        self, times_of: Callable[[str], Times], windows: Windows, where: Callable[[int], str] = "recording {}".format
    ) -> None:
        self._clock, self._stride = _ticks(times_of, windows), windows.stride
        clock, stride, (low, high) = self._clock, self._stride, _spans(times_of, windows, where)
        every, slack = np.arange(len(clock.counts)), clock.steps * LIKE_A_NUMBER
        begins, ends = (np.where(np.isfinite(each), each, 0.0) for each in (low, high))
        self._first = np.where(np.isfinite(low), clock.first(every, begins), 0)
        stops = np.where(np.isfinite(high), clock.first(every, ends + 2 * slack), clock.counts)
        inside = np.flatnonzero(stops < clock.counts)
        stops[inside] += clock.at(inside, stops[inside]) <= high[inside] + slack[inside]
        self.row_starts = np.concatenate([[0], np.cumsum(np.maximum(0, -(-(stops - self._first) // stride)))])

    @property
    def num_steps(self) -> int:
        """Ticks of all recordings, also those that are no rows."""
        return int(self._clock.counts.sum())

    def step_numbers(self, rows: np.ndarray) -> np.ndarray:
        """Return the number of each row's tick in the file."""
        recordings, ticks = self._ticks_of(rows)
        return (np.cumsum(self._clock.counts) - self._clock.counts)[recordings] + ticks

    def of(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the recording and the time of each row."""
        recordings, ticks = self._ticks_of(rows)
        return recordings, self._clock.at(recordings, ticks)

    def _ticks_of(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        recordings = np.searchsorted(self.row_starts, rows, side="right") - 1
        return recordings, self._first[recordings] + (rows - self.row_starts[recordings]) * self._stride
