"""Rows that are steps of episodes, or times of recordings of which each column has samples at times of its own.

Both are ticks of a `Clock`; a column says which of its units are at some offsets from a tick.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from ray_h5.columns.column_resolver import Parts, of_one_kind
from ray_h5.columns.ragged.bounds import Bounds
from ray_h5.columns.ragged.csr_groups import dense_ranges
from ray_h5.columns.ragged.range_columns import Ranges
from ray_h5.columns.row_table import Listing, RowTable
from ray_h5.columns.values import InMemory
from ray_h5.errors import SchemaMismatchError, UnsupportedColumnError
from ray_h5.per_process import cached_property
from ray_h5.rows.kinds.clock import Clock
from ray_h5.rows.kinds.samples_around import TimesOfColumns
from ray_h5.rows.kinds.timestamps import TimesOf, width_of
from ray_h5.rows.row_columns import Episodes, RowColumn, RowsOfKind, Steps, sparse_steps
from ray_h5.rows.windows_option import IS_PAD, WindowColumn, Windows

_RUN = 4
"""Rows of a chunk group, as a multiple of the steps that a window spans: its windows then share most steps."""

_TIME = "time"
"""The column with the time of a row, where columns have times of their own."""


class WindowRows(RowsOfKind):
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
        self._marked = {column.name: column for column in (windows.every if windows.marks_padding else ())}
        self._sources = [*windows.sources]
        self._is_timed = windows.at is not None
        self._known_steps: dict[str, Parts] = {}
        self._times = TimesOf(episodes.columns, windows, {} if table is None else dict(table.found(TimesOfColumns).of))

    # Rows: ticks of the clock ----------------------------------------------------------------

    @property
    def num_rows(self) -> int:
        return self._clock.num_rows

    @property
    def num_steps(self) -> int:
        """How many numbers steps have in the file."""
        if self._windows.episode_bounds is not None:  # steps are rows of the file, of which some are in no episode
            return self._steps(self._sources[0]).values.array.num_rows
        return int(self._clock.counts.sum())

    @property
    def table(self) -> RowTable:
        lengths = self._clock.rows_of_recordings if self._is_timed else self._clock.counts
        table = replace(self._episodes.table, episode_lengths=lengths)
        return replace(table, of_kind=TimesOfColumns(dict(self._times.known))) if self._is_timed else table

    @cached_property
    def _clock(self) -> Clock:
        self._episodes.prepare(self._sources)
        if self._is_timed:
            return Clock.of_times(self._times, self._windows, self._where)
        lengths = self._episodes.lengths_of(self._sources)  # the table has the columns then
        table = replace(self._episodes.table, episode_lengths=lengths)
        for source in self._sources:
            self._check_offsets(source)
        return Clock.of_table(table, self._windows)

    def episode_names(self) -> np.ndarray:
        return self._episodes.episode_names()

    def episodes_of(self, rows: np.ndarray) -> np.ndarray:
        return self._clock.of(rows)[0]

    def step_numbers(self, rows: np.ndarray) -> np.ndarray:
        """Return the number of each row's step in the file: other offsets do not change it."""
        return self._clock.step_numbers(rows)

    # Which columns there are -----------------------------------------------------------------

    def listing(self) -> Listing:
        listing, windows = self._episodes.listing(), self._windows.columns
        others = [column.name for column in windows if column.name != column.source]
        marked = self._marked.values()
        others += [column.name + IS_PAD for column in marked if width_of(column, self._times) is not None]
        names = [*listing.names, *self._by_name]
        if self._is_timed:
            times = self._times.datasets - {_TIME}
            names = [*self._by_name, *(name for name in listing.names if name not in times)]
            others.append(_TIME)
        return Listing(tuple(dict.fromkeys([*names, *others])), listing.refused)

    def prepare(self, names: Iterable[str]) -> None:
        own = {*self._by_name, *(name + IS_PAD for name in self._marked), *([_TIME] if self._is_timed else [])}
        self._episodes.prepare(dict.fromkeys([*self._sources, *(name for name in names if name not in own)]))

    def adds(self, name: str) -> str | None:
        window = self._by_name.get(name)
        is_window = window is not None and window.name != window.source
        if is_window or (window is None and self._padded(name) is not None):
            return "Windows adds. Name the windows otherwise, such as {'window': ('u', range(0, 4))}"
        if self._is_timed and name == _TIME and window is None:
            said = "Windows(at=) adds: the time of a row. Leave it out with columns=[...]"
            return None if _TIME in {self._windows.at, *self._times.datasets} else said
        return self._episodes.adds(name) if window is None else None

    def has(self, name: str) -> bool:
        return self._episodes.has(name)

    def is_constant(self, name: str) -> bool:
        """Return whether a column has one value for each episode."""
        return self._by_name.get(name) is None and self._episodes.constant(name) is not None

    def _padded(self, name: str) -> WindowColumn | None:
        """Return the window whose padding a column marks."""
        of = self._marked.get(name.removesuffix(IS_PAD))
        return of if of is not None and name != of.name and width_of(of, self._times) is not None else None

    # Columns ---------------------------------------------------------------------------------

    def column(self, name: str) -> RowColumn:
        clock = self._clock  # episodes have lengths then, which say what columns are
        if name in self._by_name:
            return self._windowed(self._by_name[name])
        if (of := self._padded(name)) is not None:
            if of.name in self._by_name:
                self._check_offsets(of.source)
            width = width_of(of, self._times) or 0
            marks = InMemory.of(name, lambda rows: clock.samples(of, rows)[2] != 0, bool, (width,))
            return RowColumn(name, marks)
        if self._is_timed and name == _TIME:
            return RowColumn(name, InMemory.of(name, clock.times_of_rows, clock.dtype_of_times))
        if (constant := self._episodes.constant(name)) is not None:
            return constant.at(self.episodes_of)
        steps = self._steps(name)
        if not self._is_timed:
            self._check_entries(name, steps)
        # The nearest step, however far away.
        return self._of_steps(WindowColumn(name, name, (0,)), steps, None, 1 if self._is_timed else steps.chunk_rows)

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
        if name not in self._known_steps:
            if self._is_timed:
                self._times(name)
            self._known_steps[name] = self._episodes.steps(name)
        return self._known_steps[name]

    def _check_offsets(self, name: str) -> Parts:
        """Return where the steps of a column are; raise if it cannot have windows."""
        steps = self._steps(name)
        array = steps.values.array
        if array.kind == "sparse" and not array.type.dense:
            raise UnsupportedColumnError(
                f"{self._path}: Windows: column {name!r} is csr(dense=False): torch has no sparse batches of several "
                "rows each. Leave dense=False out, or the column out of the offsets."
            )
        if array.kind in {"number", "bool"} and array.type.enum and "zero" in self._windows.pad:
            raise UnsupportedColumnError(
                f"{self._path}: Windows: column {name!r} is an enum, {dict(array.type.enum)}, in which 0 is a value or "
                "none at all. Pass pad='edge' or 'drop'."
            )
        return steps

    def _windowed(self, window: WindowColumn) -> RowColumn:
        steps, width = self._check_offsets(window.source), width_of(window, self._times)
        if width is None:
            return self._spanned(window, steps)
        chunk_rows = 1
        if not self._is_timed:
            span = max(window.offsets) - min(window.offsets) + 1
            run = min(_RUN * span // self._windows.stride, self.num_rows)
            chunk_rows = max(steps.chunk_rows, run, 1)
        return self._of_steps(window, steps, width, chunk_rows)

    def _of_steps(self, window: WindowColumn, steps: Parts, width: int | None, chunk_rows: int) -> RowColumn:
        """Return a column of the steps at some offsets; of one, without an axis, if `width` is None."""
        clock, starts, joined = self._clock, steps.starts, steps.joined
        if self._is_timed:
            is_there = True if joined is None else joined.is_there
            is_empty = (self._times(window.source).counts == 0) & (clock.rows_of_recordings > 0) & is_there
            if is_empty.any():
                raise UnsupportedColumnError(
                    f"{self._path}: Windows: column {window.source!r} has no sample in recording {is_empty.argmax()}, "
                    "which has rows. Leave it out with columns=[...]."
                )

        def units_of(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            recordings, samples, side = clock.samples(window, rows)
            return starts[recordings][:, None] + samples, self._windows.is_blank(side)

        if joined is not None and joined.unit_shape is not None and (width is not None or joined.is_there.all()):
            joined = None
        if width is None and joined is None:
            return RowColumn(window.name, steps.values, lambda rows: units_of(rows)[0][:, 0], chunk_rows)
        taken = Steps(window.name, self._path, steps.values, width, units_of, self.episodes_of, joined=joined)
        values = sparse_steps(taken) if steps.values.array.kind == "sparse" else taken
        return RowColumn(window.name, values, None, chunk_rows if width is not None else 1)

    def _spanned(self, window: WindowColumn, steps: Parts) -> RowColumn:
        """Return a column with all samples of a span, which are more in some rows than in others."""
        assert window.span is not None
        low, high = window.span
        columns, instead = self._episodes.columns, "pass a list of offsets instead of a slice"
        if steps.joined is not None:
            columns.check_one_shape(window.source, steps.joined, "and their number varies, too", instead)
        if (part := columns.part(window.source)) is not None and part.random is not None:
            raise UnsupportedColumnError(
                f"{self._path}: Windows: column {window.source!r}: {part} draws from each sample, and the number of "
                f"samples varies: {instead}."
            )
        times = self._times(window.source)
        step = float(times.steps.mean()) / times.per_second if len(times.steps) else 0.0
        mean = min((high - low) / step if step else 1, 1 << 40)
        usual = Bounds(np.zeros(1, np.int64), np.array([max(1, round(mean))]))

        def bounds_of(rows: np.ndarray) -> Bounds:
            recordings, samples = self._clock.spans(window, rows)
            return Bounds(*(ends + steps.starts[recordings] for ends in (samples.starts, samples.stops)))

        spans = Ranges(window.name, self._path, of_one_kind(steps.values), usual, bounds_of=bounds_of)
        return RowColumn(window.name, dense_ranges(spans) if steps.values.array.kind == "sparse" else spans)
