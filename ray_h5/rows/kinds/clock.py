"""The clock of windows: which tick of which recording a row is, and which samples columns have around it."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Sequence

import numpy as np

from ray_h5.columns.column_resolver import are_single_values
from ray_h5.columns.ragged.bounds import Bounds, episodes_key
from ray_h5.columns.row_table import LIKE_A_NUMBER, RowTable, Times
from ray_h5.errors import OptionError
from ray_h5.lru import first_time
from ray_h5.messages import few
from ray_h5.rows.kinds.timestamps import regular, width_of
from ray_h5.rows.windows_option import WindowColumn, Windows

logger = logging.getLogger(__name__)


class Clock:
    """Row number <-> (recording, tick), and the samples that columns have at offsets from a tick.

    Each `stride`-th tick of a recording is a row, from its first one on that has a window. The steps of an episode are
    the ticks of whole numbers, which all columns share.

    Parameters
    ----------
    windows : Windows
        The windows.
    times_of : callable
        Returns the times of the samples of a column.
    ticks : Times
        The times of ticks.
    rows : Bounds
        The first tick of each recording that may be a row, and the one after the last.
    bounds : Bounds, optional
        Where recordings are among the ticks of the file; by default they follow each other.
    """

    def __init__(
        self,
        windows: Windows,
        times_of: Callable[[str], Times],
        ticks: Times,
        rows: Bounds,
        bounds: Bounds | None = None,
    ) -> None:
        self._windows, self._times_of, self._ticks, self.counts = windows, times_of, ticks, ticks.counts
        self._starts = np.cumsum(ticks.counts) - ticks.counts if bounds is None else bounds.starts
        self._first, length = rows.starts, rows.stops - rows.starts
        self.row_starts = np.concatenate([[0], np.cumsum(np.maximum(0, -(-length // windows.stride)))])

    @classmethod
    def of_steps(cls, lengths: np.ndarray, windows: Windows, bounds: Bounds | None = None) -> Clock:
        """Return the clock of whole numbers, whose ticks are the steps of episodes of these lengths."""
        (first, beyond), steps = _margins(windows), regular(lengths, np.ones(len(lengths)), np.zeros(len(lengths)))
        rows = Bounds(np.full_like(lengths, first), lengths - beyond)
        return cls(windows, lambda _: steps, steps, rows, bounds)

    @classmethod
    def of_times(
        cls, times_of: Callable[[str], Times], windows: Windows, where: Callable[[int], str] = "recording {}".format
    ) -> Clock:
        """Return the clock whose ticks are samples of the first column, or `fps` of them a second.

        `where` returns the name of a recording, for messages.
        """
        ticks, (low, high) = _ticks(times_of, windows), _spans(times_of, windows, where)
        every, slack = np.arange(len(ticks.counts)), ticks.steps * LIKE_A_NUMBER
        begins, ends = (np.where(np.isfinite(limits), limits, 0.0) for limits in (low, high))
        first = np.where(np.isfinite(low), ticks.first(every, begins), 0)
        stops = np.where(np.isfinite(high), ticks.first(every, ends + 2 * slack), ticks.counts)
        inside = np.flatnonzero(stops < ticks.counts)
        stops[inside] += ticks.at(inside, stops[inside]) <= high[inside] + slack[inside]
        stops[(low == math.inf) | (high == -math.inf)] = 0  # no time fits
        return cls(windows, times_of, ticks, Bounds(first, stops))

    @classmethod
    def of_table(cls, table: RowTable, windows: Windows) -> Clock:
        """Return the clock of a file, given what is known of it."""
        if windows.at is not None:
            return cls.of_times(table.times.__getitem__, windows)
        has_bounds = windows.episode_bounds is not None and len(table.lengths)
        bounds = table.bounds[episodes_key(windows.episode_bounds or "")] if has_bounds else None
        return cls.of_steps(table.lengths, windows, bounds)

    def of(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the recording and the tick of each row."""
        recordings = np.searchsorted(self.row_starts, rows, side="right") - 1
        return recordings, self._first[recordings] + (rows - self.row_starts[recordings]) * self._windows.stride

    def times_of_rows(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the recording and the time of each row."""
        recordings, ticks = self.of(rows)
        return recordings, self._ticks.at(recordings, ticks)

    def step_numbers(self, rows: np.ndarray) -> np.ndarray:
        """Return the number of each row's tick in the file: other offsets do not change it."""
        recordings, ticks = self.of(rows)
        return self._starts[recordings] + ticks

    def samples(self, window: WindowColumn, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the recording of rows; and of shape (rows, width) their samples, and on which side each would be.

        The side is -1 or 1 where the first or last sample stands for one that is not there, else 0.
        """
        times, (recordings, ticks) = self._times_of(window.source), self.of(rows)
        last = times.counts[recordings][:, None] - 1
        if self._windows.at is None:
            wanted = ticks[:, None] + np.array(window.offsets, np.int64)
        elif window.span is not None:
            now = self._ticks.at(recordings, ticks)
            after_start = (now + window.span[0] - times.starts[recordings]) * times.rates[recordings]
            begins = np.ceil(after_start - LIKE_A_NUMBER).astype(np.int64)
            wanted = begins[:, None] + np.arange(width_of(window, self._times_of) or 0)
        else:
            asked = self._ticks.at(recordings, ticks)[:, None] + np.array(window.offsets)
            held = _held if window.source in self._windows.holds else _nearest
            return recordings, *held(times, np.broadcast_to(recordings[:, None], asked.shape), asked)
        return recordings, np.clip(wanted, 0, last), (wanted > last).astype(np.int8) - (wanted < 0)


def _held(times: Times, recordings: np.ndarray, asked: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the samples that hold at some times, and on which side of a recording these are."""
    after, last, steps = times.first(recordings, asked), times.counts[recordings] - 1, times.steps[recordings]
    begins = np.minimum(after, last)
    is_now = (after <= last) & (times.at(recordings, begins) <= asked + steps * LIKE_A_NUMBER)
    units = np.where(is_now, begins, after - 1)
    ends = times.at(recordings, np.clip(units, 0, last)) + steps
    is_over = (units == last) & (asked >= ends) & (steps > 0)
    return np.clip(units, 0, last), np.where(units < 0, -1, is_over.astype(np.int8))


def _nearest(times: Times, recordings: np.ndarray, asked: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the samples that are nearest to some times, and the side of a recording of those that are far away."""
    after, counts = times.first(recordings, asked), times.counts[recordings]
    before, after = np.clip(after - 1, 0, counts - 1), np.minimum(after, counts - 1)
    is_before = asked - times.at(recordings, before) < times.at(recordings, after) - asked
    nearest = np.where(is_before, before, after)
    is_far = np.abs(times.at(recordings, nearest) - asked) > times.steps[recordings] * (1 + LIKE_A_NUMBER)
    return nearest, is_far * np.where(2 * nearest + (asked > times.at(recordings, nearest)) < counts, -1, 1)


def _margins(windows: Windows) -> tuple[int, int]:
    """Return how many steps at the beginning and at the end of an episode have no row."""
    if windows.at is not None:
        return 0, 0
    first = max(0, -min(min(column.offsets) for column in windows.columns))
    last = max(0, *(max(column.offsets) for column in windows.columns))
    return first if windows.pad[0] == "drop" else 0, last if windows.pad[1] == "drop" else 0


def _ticks(times_of: Callable[[str], Times], windows: Windows) -> Times:
    """Return the times of ticks: those of the first column, or `fps` a second from its first to its last one."""
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
    for column in windows.columns:
        times = times_of(column.source)
        if column.span is not None and windows.times_of(column.source) == column.source:
            continue  # of events there may be none
        used, empty = (np.flatnonzero(is_used & some) for some in (times.counts > 0, times.counts == 0))
        if empty.size and (column.span is None or times.is_regular):
            raise OptionError(f"{where(int(empty[0]))}: Windows: column {column.source!r} has no sample")
        least, most = column.ends
        begin, end = times.at(used, used * 0), times.at(used, times.counts[used] - 1)
        if column.span is not None or column.source in windows.holds:
            end = end + times.steps[used]  # up to the end of the last sample
        if windows.pad[0] == "drop":
            low[used], low[empty] = np.maximum(low[used], begin - least), math.inf
        if windows.pad[1] == "drop":
            high[used], high[empty] = np.minimum(high[used], end - most), -math.inf
    return low, high


def steps_of_rows(table: RowTable, windows: Windows) -> np.ndarray:
    """Return the number in its file of the step of each row, given what is known of the file.

    It is the same for all kinds of windows, with any offsets: the row of the file where episodes lie along the first
    axis; the ordinal of the step where groups or files are episodes, or the last axis of a grid is time; with times,
    the number of the sample, or of the tick of `fps`, that is the row's time.
    """
    if windows.at is not None and not table.times:
        return np.empty(0, np.int64)
    clock = Clock.of_table(table, windows)
    return clock.step_numbers(np.arange(clock.row_starts[-1]))


def check_any_row(paths: Sequence[str], tables: Sequence[RowTable | None], windows: Windows) -> None:
    """Raise if no episode is long enough for a row; warn of episodes that are too short.

    Raises
    ------
    OptionError
        With the longest episode, and the steps that the windows need.
    """
    of_files = [np.empty(0, np.int64) if table is None else table.lengths for table in tables]
    lengths, need = np.concatenate([np.empty(0, np.int64), *of_files]), sum(_margins(windows)) + 1
    if (lengths >= need).any():
        short = int(((lengths < need) & (lengths > 0)).sum())
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
    starts, longest = np.cumsum([0, *map(len, of_files)]), int(lengths.argmax())
    file = int(np.searchsorted(starts, longest, side="right")) - 1
    episode, groups = longest - int(starts[file]), None if (table := tables[file]) is None else table.groups
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
        if (joined := table.groups.columns.get(name)) is None:
            continue
        same = [joined.lengths == _entries(table, column) for column in {column.source for column in windows.columns}]
        fits = np.any(same, axis=0) & (not are_single_values(joined))
        for answer in {True, False} - shown.keys():
            if (fits[joined.is_there] == answer).any():
                group = int(np.argmax((fits == answer) & joined.is_there))
                counts = (_entries(table, column)[group] for column in (name, windows.columns[0].source))
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
    return table.groups.columns[name].lengths if rows is None else rows.lengths


def check_steps(
    paths: Sequence[str], tables: Sequence[RowTable | None], names: Iterable[str], windows: Windows
) -> None:
    """Raise `OptionError` for a column without offsets that has steps in some files, and is a constant in others."""
    files = [(path, table) for path, table in zip(paths, tables, strict=True) if table and table.groups]
    offsets = {name for column in windows.columns for name in (column.name, column.source)}
    for name in dict.fromkeys(names):
        if name not in offsets:
            has_steps(name, [file for file in files if name not in file[1].rows], windows)
