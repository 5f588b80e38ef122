"""The clock of windows: which tick of which episode a row is, by whole numbers of steps or by times."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Sequence

import numpy as np

from ray_h5.columns.column_resolver import is_single
from ray_h5.columns.ragged.bounds import Bounds, episodes_key, rows_key
from ray_h5.columns.row_table import RowTable
from ray_h5.columns.sample_times import LIKE_A_NUMBER, Times
from ray_h5.errors import OptionError
from ray_h5.lru import first_time
from ray_h5.messages import few
from ray_h5.rows.windows_option import Windows

logger = logging.getLogger(__name__)


class Clock:
    """Row number <-> (episode, tick), and the number of each tick in the file.

    Each `stride`-th tick of an episode is a row, from its first one on that has a window.

    Parameters
    ----------
    counts : numpy.ndarray
        int64: the ticks of each episode.
    rows : Bounds
        The first tick of each episode that may be a row, and the one after the last.
    stride : int
        Ticks from one row to the next.
    bounds : Bounds, optional
        Where episodes are among the ticks of the file; by default they follow each other.
    times : Times, optional
        The times of ticks; None if a tick is a step, which has no time.
    """

    def __init__(
        self,
        counts: np.ndarray,
        rows: Bounds,
        stride: int,
        bounds: Bounds | None = None,
        times: Times | None = None,
    ) -> None:
        self.counts, self._first, self._stride, self._times = counts, rows.starts, stride, times
        self._starts = np.cumsum(counts) - counts if bounds is None else bounds.starts
        self.row_starts = np.concatenate([[0], np.cumsum(np.maximum(0, -(-(rows.stops - rows.starts) // stride)))])

    @classmethod
    def of_steps(cls, lengths: np.ndarray, windows: Windows, bounds: Bounds | None = None) -> Clock:
        """Return the clock whose ticks are the steps of episodes of these lengths."""
        first, beyond = _margins(windows)
        return cls(lengths, Bounds(np.full_like(lengths, first), lengths - beyond), windows.stride, bounds)

    @classmethod
    def of_times(
        cls, times_of: Callable[[str], Times], windows: Windows, where: Callable[[int], str] = "recording {}".format
    ) -> Clock:
        """Return the clock whose ticks are samples of the first column, or `fps` of them a second.

        `times_of` returns the times of a column, and `where` the name of a recording, for messages.
        """
        ticks, (low, high) = _ticks(times_of, windows), _spans(times_of, windows, where)
        every, slack = np.arange(len(ticks.counts)), ticks.steps * LIKE_A_NUMBER
        begins, ends = (np.where(np.isfinite(limits), limits, 0.0) for limits in (low, high))
        first = np.where(np.isfinite(low), ticks.first(every, begins), 0)
        stops = np.where(np.isfinite(high), ticks.first(every, ends + 2 * slack), ticks.counts)
        inside = np.flatnonzero(stops < ticks.counts)
        stops[inside] += ticks.at(inside, stops[inside]) <= high[inside] + slack[inside]
        return cls(ticks.counts, Bounds(first, stops), windows.stride, times=ticks)

    def of(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the episode and the tick of each row."""
        episodes = np.searchsorted(self.row_starts, rows, side="right") - 1
        return episodes, self._first[episodes] + (rows - self.row_starts[episodes]) * self._stride

    def times_of(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the recording and the time of each row."""
        assert self._times is not None
        recordings, ticks = self.of(rows)
        return recordings, self._times.at(recordings, ticks)

    def step_numbers(self, rows: np.ndarray) -> np.ndarray:
        """Return the number of each row's tick in the file: other offsets do not change it."""
        episodes, ticks = self.of(rows)
        return self._starts[episodes] + ticks


def _margins(windows: Windows) -> tuple[int, int]:
    """Return how many steps at the beginning and at the end of an episode have no row."""
    first = max(0, -windows.least) if windows.pad[0] == "drop" else 0
    return first, max(0, windows.most) if windows.pad[1] == "drop" else 0


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
        if column.span is not None and not times.is_regular:
            continue  # of events there may be none
        if (empty := np.flatnonzero(is_used & (times.counts == 0))).size:
            raise OptionError(f"{where(int(empty[0]))}: Windows: column {column.source!r} has no sample")
        least, most = column.span or (min(column.seconds), max(column.seconds))
        used = np.flatnonzero(is_used)
        begin, end = times.at(used, used * 0), times.at(used, times.counts[used] - 1)
        if column.span is not None or column.source in windows.holds:
            end = end + times.steps[used]  # up to the end of the last sample
        if windows.pad[0] == "drop":
            low[used] = np.maximum(low[used], begin - least)
        if windows.pad[1] == "drop":
            high[used] = np.minimum(high[used], end - most)
    return low, high


def steps_of_rows(table: RowTable, windows: Windows) -> np.ndarray:
    """Return the number in its file of the step of each row, given what is known of the file.

    It is the same for all kinds of windows, with any offsets: the row of the file where episodes lie along the first
    axis; the ordinal of the step where groups or files are episodes, or the last axis of a grid is time; with times,
    the number of the sample, or of the tick of `fps`, that is the row's time.
    """
    if windows.at is None:
        bounds = None if windows.episode_bounds is None else table.bounds.get(episodes_key(windows.episode_bounds))
        clock = Clock.of_steps(table.lengths, windows, bounds)
    elif table.times:
        clock = Clock.of_times(table.times.__getitem__, windows)
    else:
        return np.empty(0, np.int64)
    return clock.step_numbers(np.arange(clock.row_starts[-1]))


def check_any_row(paths: Sequence[str], tables: Sequence[RowTable | None], windows: Windows) -> None:
    """Raise if no episode is long enough for a row; warn of episodes that are too short.

    Raises
    ------
    OptionError
        With the longest episode, and the steps that the windows need.
    """
    known = [np.empty(0, np.int64) if table is None else table.lengths for table in tables]
    need = sum(_margins(windows)) + 1
    if any((lengths >= need).any() for lengths in known):
        short = sum(int(((lengths < need) & (lengths > 0)).sum()) for lengths in known)
        if short and first_time("short episodes", repr(windows), *paths):
            logger.warning(
                "%s: %d of %d episodes are shorter than the %d steps that a row needs, and have no row",
                windows,
                short,
                sum(map(len, known)),
                need,
            )
        return
    if windows.at is not None:
        raise OptionError(
            f"{windows}: expected recordings with samples, and times at which all columns have them; found none in "
            f"{few(paths)}. Ask for fewer seconds, or pass pad='edge'."
        )
    longest = [int(lengths.max(initial=0)) for lengths in known]
    file = int(np.argmax(longest))
    if not longest[file]:
        raise OptionError(f"{windows}: expected episodes with steps, found none in {few(paths)}")
    episode = int(known[file].argmax())
    groups = None if (table := tables[file]) is None else table.groups
    name = f"{episode}" if groups is None else repr(groups.names[episode])
    raise OptionError(
        f"{windows}: a row needs {need} steps, and no episode has as many. The longest is {name} of {paths[file]}, "
        f"with {longest[file]} steps. Ask for fewer offsets, or pass pad='edge'."
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
    first: dict[bool, tuple[str, RowTable, int]] = {}
    for path, table in files:
        assert table.groups is not None
        joined = table.groups.columns[name]
        same = [joined.lengths == _entries(table, column) for column in {column.source for column in windows.columns}]
        fits = np.any(same, axis=0) & (not is_single(joined))
        for answer in (True, False):
            at = np.flatnonzero((fits == answer) & joined.is_there)
            if len(at):
                first.setdefault(answer, (path, table, int(at[0])))
    if len(first) > 1:
        shown = {answer: _shown(name, *episode, windows) for answer, episode in first.items()}
        raise OptionError(
            f"Windows: column {name!r} has no offsets, and is as long as some episodes alone: {shown[True]}, and "
            f"{shown[False]}. Pass Windows(..., constants=[{name!r}]) if it is a constant of each episode, or "
            f"per_step=[{name!r}] if it has a value for each step. If some lengths are wrong, leave it out by "
            "columns=[...], or choose other groups with the pattern."
        )
    return first.keys() == {True}


def _entries(table: RowTable, name: str) -> np.ndarray:
    """Return how many entries a column has in each group."""
    assert table.groups is not None
    rows = table.bounds.get(rows_key(name))
    return table.groups.columns[name].lengths if rows is None else rows.stops - rows.starts


def _shown(name: str, path: str, table: RowTable, group: int, windows: Windows) -> str:
    assert table.groups is not None
    counts = (int(_entries(table, column)[group]) for column in (name, windows.columns[0].source))
    where = f"{table.groups.names[group]!r} of {path}" if table.groups.names[group] else path
    return "{} entries for {} steps in {}".format(*counts, where)


def check_steps(
    paths: Sequence[str], tables: Sequence[RowTable | None], names: Iterable[str], windows: Windows
) -> None:
    """Raise `OptionError` for a column without offsets that has steps in some files, and is a constant in others."""
    files = [(path, table) for path, table in zip(paths, tables, strict=True) if table and table.groups]
    offsets = {name for column in windows.columns for name in (column.name, column.source)}
    for name in dict.fromkeys(names):
        there = [file for file in files if name not in offsets and rows_key(name) not in file[1].bounds]
        has_steps(name, [(p, t) for p, t in there if t.groups is not None and name in t.groups.columns], windows)
