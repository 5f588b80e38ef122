"""Rows that are steps of episodes, or times of recordings of which each column has samples at times of its own.

Both are ticks of a `Clock`; a column says which of its units are at some offsets from a tick.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from ray_h5.columns.column_resolver import Parts
from ray_h5.columns.ragged.bounds import Bounds, episodes_key
from ray_h5.columns.ragged.range_columns import Ranges
from ray_h5.columns.row_table import Listing, RowTable
from ray_h5.columns.sample_times import LIKE_A_NUMBER, Times
from ray_h5.columns.values import InMemory
from ray_h5.errors import OptionError, RayH5Error, SchemaMismatchError, UnsupportedColumnError
from ray_h5.rows.kinds.clock import Clock
from ray_h5.rows.kinds.timestamps import TimesOf, width_of
from ray_h5.rows.row_columns import EpisodeRows, Episodes, RowColumn, Steps
from ray_h5.rows.windows_option import IS_PAD, WindowColumn, Windows

_RUN = 4
"""Rows of a chunk group, as a multiple of the steps that a window spans: its windows then share most steps."""

_TIME = "time"
"""The column with the time of a row, where columns have times of their own."""


class WindowRows(EpisodeRows):
    """Windows over the episodes of one file.

    Parameters
    ----------
    episodes : Episodes
        The episodes.
    windows : Windows
        The windows.
    table : RowTable, optional
        What is known.
    """

    def __init__(self, episodes: Episodes, windows: Windows, table: RowTable | None) -> None:
        self._path, self._where = episodes.columns.path, episodes.columns.where
        self._episodes = episodes
        self._windows = windows
        self._by_name = {column.name: column for column in windows.columns}
        self._sources = [*dict.fromkeys(column.source for column in windows.columns)]
        self._times = TimesOf(episodes.columns, windows, {} if table is None else table.times)
        self._known: dict[str, Parts] = {}
        self._made: Clock | None = None

    # Rows: ticks of the clock ----------------------------------------------------------------

    @property
    def num_rows(self) -> int:
        return int(self._clock.row_starts[-1])

    @property
    def num_steps(self) -> int:
        """How many numbers steps have in the file."""
        if self._windows.episode_bounds is not None:  # steps are rows of the file, of which some are in no episode
            return self._steps(self._sources[0]).values.array.num_rows
        return int(self._clock.counts.sum())

    @property
    def table(self) -> RowTable:
        if self._is_timed:
            lengths, times = np.diff(self._clock.row_starts), dict(self._times.known)
            return replace(self._episodes.table, episode_lengths=lengths, times=times)
        return replace(self._episodes.table, episode_lengths=self._clock.counts)

    @property
    def _is_timed(self) -> bool:
        return self._windows.at is not None

    @property
    def _clock(self) -> Clock:
        if self._made is None:
            self._episodes.prepare(self._sources)
            if self._is_timed:
                self._made = Clock.of_times(self._times, self._windows, self._where)
                return self._made
            lengths, bounds = self._episodes.lengths_of(self._sources), self._windows.episode_bounds
            for source in self._sources:
                self._check_offsets(source)
            bounds_of_episodes = None if bounds is None else self._episodes.table.bounds[episodes_key(bounds)]
            self._made = Clock.of_steps(lengths, self._windows, bounds_of_episodes)
        return self._made

    def episode_names(self) -> np.ndarray:
        return self._episodes.episode_names()

    def episodes_of(self, rows: np.ndarray) -> np.ndarray:
        return self._clock.of(rows)[0]

    def step_numbers(self, rows: np.ndarray) -> np.ndarray:
        """Return the number of each row's step in the file: other offsets do not change it."""
        return self._clock.step_numbers(rows)

    # Which columns there are -----------------------------------------------------------------

    def listing(self) -> Listing:
        listing = self._episodes.listing()
        others = [column.name for column in self._windows.columns if column.name != column.source]
        others += [column.name + IS_PAD for column in self._windows.columns if self._marks(column)]
        if doubles := [name for name in others if name in listing.names]:
            raise OptionError(
                f"{self._path}: Windows adds a column {doubles[0]!r}, and the file has a column of that name. Name the "
                "windows otherwise, such as {'window': ('u', range(0, 4))}."
            )
        refused: dict[str, Exception] = dict(listing.refused)
        if not self._is_timed:
            return Listing(tuple(dict.fromkeys([*listing.names, *self._by_name, *others])), refused)
        names = [name for name in listing.names if self._has_times(name, refused)]
        return Listing(tuple(dict.fromkeys([*self._by_name, *names, *others, _TIME])), refused)

    def _has_times(self, name: str, refused: dict[str, Exception]) -> bool:
        """Return whether a column has times, or needs none; the times of others are no column themselves."""
        if name in self._by_name or name == _TIME:
            return True
        if name in self._times.of_columns:
            return False
        try:
            if not self._is_constant(name):
                self._times(name)
        except RayH5Error as exc:
            refused[name] = exc
            return False
        return True

    def prepare(self, names: Iterable[str]) -> None:
        own = {*self._by_name, *(column.name + IS_PAD for column in self._windows.columns)}
        own |= {_TIME} if self._is_timed else set()
        self._episodes.prepare(dict.fromkeys([*self._sources, *(name for name in names if name not in own)]))

    def _marks(self, window: WindowColumn) -> bool:
        return self._windows.marks_padding and self._width(window) is not None

    def _is_constant(self, name: str) -> bool:
        return name in self._windows.constants or self._episodes.is_constant(name)

    # Columns ---------------------------------------------------------------------------------

    def column(self, name: str) -> RowColumn:
        _ = self._clock  # episodes have lengths then, which say what columns are
        if name in self._by_name:
            return self._windowed(self._by_name[name])
        of = self._by_name.get(name.removesuffix(IS_PAD)) if name.endswith(IS_PAD) else None
        if of is not None and self._marks(of):
            self._check_offsets(of.source)
            marks = InMemory.of(name, lambda rows: self._units(of, rows)[1] != 0, bool, (self._width(of) or 0,))
            return RowColumn(name, marks)
        if self._is_timed and name == _TIME:
            times = InMemory.of(name, lambda rows: self._clock.times_of(rows)[1], np.float64)
            return RowColumn(name, times)
        if self._is_constant(name):
            return self._episodes.constant(name).at(self.episodes_of)
        return self._now(name)

    def _now(self, name: str) -> RowColumn:
        """Return a column without offsets: its value at the tick of a row."""
        steps, now = self._steps(name), WindowColumn(name, name, (0,), (0.0,))
        if not self._is_timed:
            self._check_entries(name, steps)

        if (joined := steps.joined) is None or (joined.unit_shape is not None and joined.is_there.all()):
            chunk_rows = 1 if self._is_timed else steps.chunk_rows
            return RowColumn(name, steps.values, lambda rows: self._units(now, rows)[0][:, 0], chunk_rows)

        def units_of(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            units, _ = self._units(now, rows)
            return units, np.zeros(units.shape, bool)  # the nearest step, however far away

        return RowColumn(name, Steps(name, self._path, steps.values, None, units_of, joined, self.episodes_of))

    def _check_entries(self, name: str, steps: Parts) -> None:
        """Raise unless a column has a value for each step."""
        lengths, entries = self._clock.counts, steps.lengths
        if steps.joined is not None:
            entries = np.where(steps.joined.is_there, 0 if steps.is_single else entries, lengths)
        wrong = entries != lengths if self._windows.episode_length is None else entries < lengths
        if wrong.any():
            at = int(np.argmax(wrong))
            raise SchemaMismatchError(
                f"{self._where(at)}: {name!r} is a column of steps, and the episode has {lengths[at]} steps; "
                f"{name!r} has {entries[at]} entries"
            )

    def _steps(self, name: str) -> Parts:
        """Return the steps of a column, whose times are known then."""
        if name not in self._known:
            if self._is_timed:
                self._times(name)
            self._known[name] = self._episodes.steps(name)
        return self._known[name]

    def _check_offsets(self, name: str) -> Parts:
        """Return where the steps of a column are; raise if it cannot have windows."""
        steps = self._steps(name)
        array = steps.values.array
        if array.kind == "sparse" and not array.dense:
            raise UnsupportedColumnError(
                f"{self._path}: Windows: column {name!r} is csr(dense=False): torch has no sparse batches of several "
                "rows each. Leave dense=False out, or the column out of the offsets."
            )
        if array.kind in {"number", "bool"} and array.enum and "zero" in self._windows.pad:
            raise UnsupportedColumnError(
                f"{self._path}: Windows: column {name!r} is an enum, {dict(array.enum)}, in which 0 is a value or none "
                "at all. Pass pad='edge' or 'drop'."
            )
        return steps

    def _windowed(self, window: WindowColumn) -> RowColumn:
        steps, width = self._check_offsets(window.source), self._width(window)
        varying = None if steps.joined is None or steps.joined.unit_shape is not None else steps.joined
        if width is None:
            return self._spanned(window, steps)
        before, after = (pad == "zero" for pad in self._windows.pad)

        def units_of(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            units, side = self._units(window, rows)
            return units, (before & (side < 0)) | (after & (side > 0))

        chunk_rows = 1
        if not self._is_timed:
            span = max(window.offsets) - min(window.offsets) + 1
            run = min(_RUN * span // self._windows.stride, self.num_rows)
            chunk_rows = max(steps.chunk_rows, run, 1)
        values = Steps(window.name, self._path, steps.values, width, units_of, varying, self.episodes_of)
        return RowColumn(window.name, values, None, chunk_rows)

    def _spanned(self, window: WindowColumn, steps: Parts) -> RowColumn:
        """Return a column with all samples of a span, which are more in some rows than in others."""
        assert window.span is not None
        low, high = window.span
        if (joined := steps.joined) is not None and joined.unit_shape is None:
            raise UnsupportedColumnError(
                f"{self._path}: Windows: the samples of column {window.source!r} have other shapes in other groups, "
                f"such as {joined.layouts[0].row_shape} and {joined.layouts[1].row_shape}, and their number varies, "
                "too. Pass a list of offsets instead of a slice, or choose groups that agree."
            )
        times = self._times(window.source)
        mean = (high - low) / max(float(times.steps.mean()) if len(times.steps) else 0.0, 1e-12)
        usual = Bounds(np.zeros(1, np.int64), np.array([max(1, round(mean))]))

        def bounds_of(rows: np.ndarray) -> Bounds:
            recordings, now = self._clock.times_of(rows)
            ends = (times.first(recordings, now + seconds) + steps.starts[recordings] for seconds in (low, high))
            return Bounds(*ends)

        return RowColumn(window.name, Ranges(window.name, self._path, steps.values, usual, bounds_of=bounds_of))

    # Which units are at offsets from a tick --------------------------------------------------

    def _width(self, window: WindowColumn) -> int | None:
        return width_of(window, self._times) if self._is_timed else len(window.offsets)

    def _units(self, window: WindowColumn, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the units of rows, of shape (rows, width), and on which side of the episode each would be.

        The side is -1 or 1 where the first or last unit stands for one that is not there, else 0.
        """
        starts = self._steps(window.source).starts
        if not self._is_timed:
            episodes, ticks = self._clock.of(rows)
            wanted, last = (
                ticks[:, None] + np.array(window.offsets, np.int64),
                self._clock.counts[episodes][:, None] - 1,
            )
            return starts[episodes][:, None] + np.clip(wanted, 0, last), _side(wanted, last)
        times, (recordings, now) = self._times(window.source), self._clock.times_of(rows)
        if window.span is not None:
            last = times.counts[recordings][:, None] - 1
            after_start = (now + window.span[0] - times.starts[recordings]) * times.rates[recordings]
            begins = np.ceil(after_start - LIKE_A_NUMBER).astype(np.int64)
            wanted = begins[:, None] + np.arange(self._width(window) or 0)
            return starts[recordings][:, None] + np.clip(wanted, 0, last), _side(wanted, last)
        asked = now[:, None] + np.array(window.seconds)
        recordings = np.broadcast_to(recordings[:, None], asked.shape)
        held = _held if window.source in self._windows.holds else _nearest
        units, side = held(times, recordings, asked)
        return starts[recordings] + units, side


def _side(wanted: np.ndarray, last: np.ndarray) -> np.ndarray:
    """Return -1 for what is before the first unit, 1 for what is after the last one, else 0."""
    return (wanted > last).astype(np.int8) - (wanted < 0)


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
