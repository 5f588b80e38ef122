"""The clock of windows: which tick of which recording a row is, and which samples columns have around it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

import numpy as np

from ray_h5.columns.column_resolver import are_single_values
from ray_h5.columns.derived_columns import Ragged
from ray_h5.columns.ragged.bounds import Bounds
from ray_h5.columns.row_table import RowTable
from ray_h5.errors import OptionError
from ray_h5.lru import first_time
from ray_h5.manifest.partition import Partition
from ray_h5.manifest.row_requests import runs_between
from ray_h5.messages import few
from ray_h5.per_process import cached_property
from ray_h5.rows.kinds.samples_around import SamplesAround, Times, TimesOfColumns
from ray_h5.rows.kinds.timestamps import regular, width_of
from ray_h5.rows.windows_option import WindowColumn, Windows

logger = logging.getLogger(__name__)

_MOST_STEPS = 1 << 40

_MOST_IN_FLOAT = 1 << 53

_BLOCK = 1 << 16
"""Ticks that are looked at together."""


class Clock:
    """Row number <-> (recording, tick), and the samples that columns have at offsets from a tick.

    Each `stride`-th tick of a recording is a row, from its first one on that has a window. The steps of an episode are
    the ticks of whole numbers, which all columns share. Rows are in runs of ticks: one a recording, or several if
    ``pad="drop"`` leaves out rows in between, where a column has no sample for longer.

    Parameters
    ----------
    windows : Windows
        The windows.
    times_of : callable
        Returns the times of the samples of a column.
    ticks : Times
        The times of ticks.
    runs : tuple of Bounds and numpy.ndarray
        The first tick of each run that is a row, and one after the last; and its recording, ascending.
    bounds : Bounds, optional
        Where recordings are among the ticks of the file; by default they follow each other.
    """

    def __init__(
        self,
        windows: Windows,
        times_of: Callable[[str], Times],
        ticks: Times,
        runs: tuple[Bounds, np.ndarray],
        bounds: Bounds | None = None,
    ) -> None:
        self._windows, self._times_of, self._ticks, self.counts = windows, times_of, ticks, ticks.counts
        self._starts = Partition.of(ticks.counts).firsts if bounds is None else bounds.starts
        ends, self._recordings = runs
        self._first = ends.starts
        self._rows = Partition.of(np.maximum(0, -(-(ends.stops - ends.starts) // windows.stride)))  # of each run
        self.num_rows = self._rows.num_units
        self._around: dict[str, SamplesAround] = {}

    @classmethod
    def of_steps(cls, table: RowTable, windows: Windows, bounds: Bounds | None = None) -> Clock:
        """Return the clock of whole numbers, whose ticks are the steps of episodes."""
        ones, zeros = np.ones(len(table.lengths)), np.zeros(len(table.lengths))
        own = {name: regular(entries, ones, zeros) for name, entries in _own_entries(table, windows).items()}
        steps = regular(table.lengths, ones, zeros)
        runs = _rows_of_steps(table, windows), np.arange(len(table.lengths))
        return cls(windows, lambda name: own.get(name, steps), steps, runs, bounds)

    @classmethod
    def of_times(
        cls, times_of: Callable[[str], Times], windows: Windows, where: Callable[[int], str] = "recording {}".format
    ) -> Clock:
        """Return the clock whose ticks are samples of the first column, or `fps` of them a second.

        `where` returns the name of a recording, for messages.
        """
        ticks = _ticks(times_of, windows)
        every = np.arange(len(ticks.counts))
        whole = cls(windows, times_of, ticks, (Bounds(every * 0, ticks.counts), every))
        is_used = times_of(windows.columns[0].source).counts > 0
        for column in whole._limiting:
            times = times_of(column.source)
            empty = is_used & (times.counts == 0)
            if empty.any() and (column.span is None or times.is_regular):
                raise OptionError(f"{where(int(empty.argmax()))}: Windows: column {column.source!r} has no sample")
            is_used &= (times.counts > 0) | ("drop" not in windows.pad)
        if "drop" not in windows.pad:
            return whole
        return cls(windows, times_of, ticks, whole._runs_that_fit(np.flatnonzero(is_used)))

    @classmethod
    def of_table(cls, table: RowTable, windows: Windows) -> Clock:
        """Return the clock of a file, given what is known of it."""
        if windows.at is not None:
            return cls.of_times(table.found(TimesOfColumns).of.__getitem__, windows)
        name = windows.episode_bounds if len(table.lengths) else None
        return cls.of_steps(table, windows, None if name is None else table.bounds[Ragged("", bounds=name)])

    @property
    def rows_of_recordings(self) -> np.ndarray:
        """int64: how many rows each recording has."""
        rows = np.zeros(len(self.counts), np.int64)
        np.add.at(rows, self._recordings, self._rows.lengths)
        return rows

    def of(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the recording and the tick of each row."""
        runs, at = self._rows.local(rows)
        return self._recordings[runs], self._first[runs] + at * self._windows.stride

    def times_of_rows(self, rows: np.ndarray) -> np.ndarray:
        """Return the time of each row, of datetimes in seconds since 1970."""
        (recordings, ticks), times = self.of(rows), self._ticks
        if times.is_regular:
            return times.starts[recordings] / times.per_second + ticks / (times.rates[recordings] * times.per_second)
        listed = times.listed[self._starts[recordings] + ticks]
        return listed if self.dtype_of_times.kind == "i" else listed / times.per_second

    @cached_property
    def dtype_of_times(self) -> np.dtype:
        """The dtype of `times_of_rows`: float64, or int64 for integers that it does not hold, such as nanoseconds."""
        times = self._ticks
        is_integer = times.listed.dtype.kind == "i" and times.per_second == 1
        return np.dtype(np.int64 if is_integer and (np.abs(times.starts) > _MOST_IN_FLOAT).any() else np.float64)

    def step_numbers(self, rows: np.ndarray) -> np.ndarray:
        """Return the number of each row's tick in the file: other offsets do not change it."""
        recordings, ticks = self.of(rows)
        return self._starts[recordings] + ticks

    def samples(self, window: WindowColumn, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the recording of rows; and of shape (rows, width) their samples, and on which side each would be.

        The side is -1 or 1 where the first or last sample stands for one that is not there, else 0.
        """
        recordings, ticks = self.of(rows)
        return recordings, *self._samples(window, recordings, ticks)

    def spans(self, window: WindowColumn, rows: np.ndarray) -> tuple[np.ndarray, Bounds]:
        """Return the recording of rows, and the samples that their spans have."""
        recordings, ticks = self.of(rows)
        counts = self._times_of(window.source).counts[recordings]
        return recordings, Bounds(*(np.clip(ends, 0, counts) for ends in self._ends(window, recordings, ticks)))

    def _samples(
        self, window: WindowColumn, recordings: np.ndarray, ticks: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        if self._windows.at is not None and window.span is None:
            around = self._samples_around(window.source)
            asked = around.asked(recordings, ticks, window.offsets)
            find = around.holding if window.source in self._windows.holds else around.nearest
            return find(np.broadcast_to(recordings[:, None], asked.shape), asked)
        if window.span is None:
            wanted = ticks[:, None] + np.array(window.offsets, np.int64)
        else:
            begins, _ = self._ends(window, recordings, ticks)
            wanted = begins[:, None] + np.arange(width_of(window, self._times_of) or 0)
        last = self._times_of(window.source).counts[recordings][:, None] - 1
        return np.clip(wanted, 0, last), (wanted > last).astype(np.int8) - (wanted < 0)

    def _ends(self, window: WindowColumn, recordings: np.ndarray, ticks: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the first sample in the span of each tick, and the one after the last, in the recording or beyond."""
        assert window.span is not None
        around = self._samples_around(window.source)
        asked = around.asked(recordings, ticks, window.span)
        begins, ends = around.first(np.broadcast_to(recordings[:, None], asked.shape), asked).T
        width = width_of(window, self._times_of)
        return begins, ends if width is None else begins + width

    def _samples_around(self, source: str) -> SamplesAround:
        if source not in self._around:
            self._around[source] = SamplesAround(self._ticks, self._times_of(source))
        return self._around[source]

    # pad="drop": a row is what has no padding ---------------------------------------------------

    @property
    def _limiting(self) -> list[WindowColumn]:
        """The columns that may have no sample at a time; of events there may be none."""
        columns, times_of = self._windows.columns, self._windows.times_of
        return [column for column in columns if column.span is None or times_of(column.source) != column.source]

    def _sides(self, recordings: np.ndarray, ticks: np.ndarray) -> np.ndarray:
        """Return bools of shape (2, ticks): whether a window has padding for a time before or after a recording.

        It is the padding that ``<column>_is_pad`` would mark. Of spans whose length varies: that a sample is missing.
        """
        is_padded = np.zeros((2, len(ticks)), bool)
        for column in self._limiting:
            if column.span is None:
                side = self._samples(column, recordings, ticks)[1]
                is_padded |= (side < 0).any(axis=1), (side > 0).any(axis=1)
            else:
                begins, ends = self._ends(column, recordings, ticks)
                is_padded |= begins < 0, ends > self._times_of(column.source).counts[recordings]
        return is_padded & (np.array(self._windows.pad) == "drop")[:, None]

    def _runs_that_fit(self, recordings: np.ndarray) -> tuple[Bounds, np.ndarray]:
        """Return the runs of ticks without padding, and their recordings."""
        has_gaps = np.zeros(len(recordings), bool)
        for column in self._limiting:
            if column.span is None and column.source not in self._windows.holds:
                has_gaps |= self._samples_around(column.source).has_gaps(recordings)
        others = recordings[~has_gaps]
        first = self._bisected(others, np.zeros(len(others), np.int64), 0)
        of, starts, stops = [others], [first], [self._bisected(others, first, 1)]
        for recording in recordings[has_gaps].tolist():
            fits = self._ticks_that_fit(recording)
            begin, stride = int(fits.argmax()), self._windows.stride
            fits = fits[begin::stride]
            runs = np.array(runs_between(fits[1:] != fits[:-1]))
            begins, ends = runs[:, fits[runs[0]]]
            of.append(np.full(len(begins), recording))
            starts.append(begin + begins * stride)
            stops.append(begin + (ends - 1) * stride + 1)
        order = np.argsort(np.concatenate(of), kind="stable")
        return Bounds(np.concatenate(starts)[order], np.concatenate(stops)[order]), np.concatenate(of)[order]

    def _ticks_that_fit(self, recording: int) -> np.ndarray:
        """Return which ticks of a recording have no padding, a block of them at a time."""
        fits = np.empty(self.counts[recording], bool)
        for begin in range(0, len(fits), _BLOCK):
            ticks = np.arange(begin, min(begin + _BLOCK, len(fits)))
            fits[ticks] = ~self._sides(np.full(len(ticks), recording), ticks).any(axis=0)
        return fits

    def _bisected(self, recordings: np.ndarray, low: np.ndarray, side: int) -> np.ndarray:
        """Return the first tick of recordings, from `low` on, without padding before, or with padding after it."""
        high = self.counts[recordings]
        while (is_open := low < high).any():
            middle = (low + high) // 2
            is_later = self._sides(recordings, np.minimum(middle, high - 1))[side] ^ bool(side)
            low, high = np.where(is_open & is_later, middle + 1, low), np.where(is_open & ~is_later, middle, high)
        return low


def _margins(windows: Windows) -> tuple[int, int]:
    """Return how many steps at the beginning and at the end of an episode have no row."""
    if windows.at is not None:
        return 0, 0
    offsets = [0, *(offset for column in windows.every for offset in column.offsets)]
    first, last = -min(offsets), max(offsets)
    return first if windows.pad[0] == "drop" else 0, last if windows.pad[1] == "drop" else 0


def _own_entries(table: RowTable, windows: Windows) -> dict[str, np.ndarray]:
    """Return how many entries columns with offsets have in each episode, if these may be more than it has steps."""
    if windows.episode_length is None or table.groups is None:
        return {}
    return {source: _entries(table, source) for source in windows.sources}


def _rows_of_steps(table: RowTable, windows: Windows) -> Bounds:
    """Return the first step of each episode that has a row, and the one after the last."""
    (first, last), own = _margins(windows), _own_entries(table, windows)
    stops = table.lengths if own or windows.at is not None else table.lengths - last
    for column in windows.every if own and windows.pad[1] == "drop" else ():
        # The observation after the last action is the one at its next step: the action has a row.
        stops = np.minimum(stops, own.get(column.source, table.lengths) - max(0, *column.offsets))
    return Bounds(np.full_like(stops, first), stops)


def _ticks(times_of: Callable[[str], Times], windows: Windows) -> Times:
    """Return the times of ticks: those of the first column, or `fps` a second from its first to its last one."""
    clock, fps = times_of(windows.columns[0].source), windows.fps
    if fps is None:
        return clock
    every, some = np.arange(len(clock.counts)), clock.counts > 0
    ticks = regular(np.ones_like(clock.counts), np.full(len(every), float(fps)), clock.starts, clock.per_second)
    around = SamplesAround(clock, ticks)
    last = around.asked(every, np.maximum(clock.counts - 1, 0), (0.0,))[:, 0]
    counts = np.floor((last + around.near(every, last)) * ticks.rates) + 1
    if (counts[some] > _MOST_STEPS).any():
        raise OptionError(
            f"Windows: fps={fps}: a recording would have {counts[some].max():.4g} rows; expected at most "
            f"{_MOST_STEPS}. fps= is rows in a unit of the times of the first column; of datetimes, a second."
        )
    counts = np.where(some, counts, 0).astype(np.int64)
    return replace(ticks, counts=counts)


def steps_of_rows(table: RowTable, windows: Windows) -> np.ndarray:
    """Return the number in its file of the step of each row, given what is known of the file.

    It is the same for all kinds of windows, with any offsets: the row of the file where episodes lie along the first
    axis; the ordinal of the step where groups or files are episodes, or the last axis of a grid is time; with times,
    the number of the sample, or of the tick of `fps`, that is the row's time.
    """
    if windows.at is not None and not table.found(TimesOfColumns).of:
        return np.empty(0, np.int64)
    clock = Clock.of_table(table, windows)
    return clock.step_numbers(np.arange(clock.num_rows))


def check_any_row(paths: Sequence[str], tables: Sequence[RowTable | None], windows: Windows) -> None:
    """Raise if no episode is long enough for a row; warn of episodes that are too short.

    Raises
    ------
    OptionError
        With the longest episode, and the steps that the windows need.
    """
    of_files = [np.empty(0, np.int64) if table is None else table.lengths for table in tables]
    lengths, need = np.concatenate([np.empty(0, np.int64), *of_files]), sum(_margins(windows)) + 1
    rows = [_rows_of_steps(table, windows) for table in tables if table is not None]
    has_row = np.concatenate([np.empty(0, bool), *(some.stops > some.starts for some in rows)])
    if has_row.any():
        short = int((~has_row & (lengths > 0)).sum())
        if short and first_time("short episodes", repr(windows), *paths):
            said = "%s: %d of %d episodes are shorter than the %d steps that a row needs, and have no row"
            logger.warning(said, windows, short, len(lengths), need)
        return
    if windows.at is not None:
        raise OptionError(
            f"{windows}: expected recordings with samples, and times at which all columns have them; found none in "
            f"{few(paths)}. Ask for fewer seconds, or pass pad='edge'."
        )
    if not lengths.any():
        raise OptionError(f"{windows}: expected episodes with steps, found none in {few(paths)}")
    longest = int(lengths.argmax())
    file, episode = map(int, Partition.of(np.array([*map(len, of_files)], np.int64)).local(longest))
    groups = None if (table := tables[file]) is None else table.groups
    name = f"{episode}" if groups is None else repr(groups.names[episode])
    raise OptionError(
        f"{windows}: a row needs {need} steps, and no episode has as many. The longest is {name} of {paths[file]}, "
        f"with {lengths[longest]} steps. Ask for fewer offsets, or pass pad='edge'."
    )


def has_steps(name: str, files: Iterable[tuple[str, RowTable]], windows: Windows) -> bool:
    """Return whether a column without offsets has a value for each step of the groups of files, as its lengths say.

    Raises
    ------
    OptionError
        If it is as long as some episodes alone.
    """
    if name in windows.constants or name in windows.per_step:
        return name in windows.per_step
    shown: dict[bool, str] = {}
    for path, table in files:
        assert table.groups is not None
        if (joined := table.groups.values_of(name)) is None:
            continue
        same = [joined.lengths == _entries(table, column) for column in windows.sources]
        fits = np.any(same, axis=0) & (not are_single_values(joined))
        for answer in {True, False} - shown.keys():
            if (fits[joined.is_there] == answer).any():
                group = int(np.argmax((fits == answer) & joined.is_there))
                counts = (_entries(table, column)[group] for column in (name, windows.sources[0]))
                where = f"{table.groups.names[group]!r} of {path}" if table.groups.names[group] else path
                shown[answer] = "{} entries for {} steps in {}".format(*counts, where)
    if len(shown) > 1:
        raise OptionError(
            f"Windows: column {name!r} has no offsets, and is as long as some episodes alone: {shown[True]}, and "
            f"{shown[False]}. Pass Windows(..., constants=[{name!r}]) if it is a constant of each episode, or "
            f"per_step=[{name!r}] if it has a value for each step. If some lengths are wrong, leave it out by "
            "columns=[...], or choose other groups with the pattern."
        )
    return shown.keys() == {True}


def _entries(table: RowTable, name: str) -> np.ndarray:
    """Return how many entries a column has in each group."""
    assert table.groups is not None
    rows = table.rows.get(name)
    if rows is not None:
        return rows.lengths
    joined = table.groups.values_of(name)
    assert joined is not None
    return joined.lengths


def check_steps(
    paths: Sequence[str], tables: Sequence[RowTable | None], names: Iterable[str], windows: Windows
) -> None:
    """Raise `OptionError` for a column without offsets that has steps in some files, and is a constant in others."""
    files = [(path, table) for path, table in zip(paths, tables, strict=True) if table and table.groups]
    offsets = {name for column in windows.columns for name in (column.name, column.source)}
    for name in dict.fromkeys(names):
        if name not in offsets:
            has_steps(name, [file for file in files if name not in file[1].rows], windows)
