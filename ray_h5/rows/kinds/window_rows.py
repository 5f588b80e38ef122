"""Rows that are steps of episodes."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np

from ray_h5.columns.row_table import Listing, RowTable
from ray_h5.columns.values import InMemory
from ray_h5.columns.varying.bounds import episodes_key
from ray_h5.errors import OptionError, UnsupportedColumnError
from ray_h5.lru import first_time
from ray_h5.messages import few
from ray_h5.rows.row_columns import Column, RowColumn, StepColumn, WindowedColumn
from ray_h5.rows.row_kinds import EpisodeRows, Episodes, Steps
from ray_h5.rows.windows import IS_PAD, WindowColumn, Windows

logger = logging.getLogger(__name__)

_RUN = 4
"""Rows of a chunk group, as a multiple of the steps that a window spans: its windows then share most steps."""


class WindowRows(EpisodeRows):
    """Windows over the episodes of one file.

    Parameters
    ----------
    episodes : Episodes
        The episodes.
    windows : Windows
        The windows.
    path : str
        The file, for messages.
    """

    def __init__(self, episodes: Episodes, windows: Windows, path: str) -> None:
        self._episodes = episodes
        self._windows = windows
        self._path = path
        self._by_name = {each.name: each for each in windows.columns}
        self._known: Numbering | None = None

    @property
    def num_rows(self) -> int:
        return int(self._numbering.row_starts[-1])

    @property
    def num_steps(self) -> int:
        """How many numbers steps have in the file."""
        return self._numbering.num_steps

    @property
    def table(self) -> RowTable:
        return replace(self._episodes.table, episode_lengths=self._numbering.lengths)

    @property
    def _numbering(self) -> Numbering:
        if self._known is None:
            sources = list(dict.fromkeys(each.source for each in self._windows.columns))
            lengths = self._episodes.lengths_of(sources)
            first, *_ = [self._check(each, lengths) for each in self._windows.columns]
            if self._windows.episode_bounds is None:
                self._known = Numbering(lengths, self._windows)
            else:  # steps are rows of the file, of which some are in no episode
                self._known = Numbering(lengths, self._windows, first.starts, first.values.array.num_rows)
        return self._known

    def listing(self) -> Listing:
        found = self._episodes.listing()
        others = [each.name for each in self._windows.columns if each.name != each.source]
        if self._windows.marks_padding:
            others += [each.name + IS_PAD for each in self._windows.columns]
        if doubles := [name for name in others if name in found.names]:
            raise OptionError(
                f"{self._path}: Windows adds a column {doubles[0]!r}, and the file has a column of that name. Name the "
                "windows otherwise, such as {'window': ('u', range(0, 4))}."
            )
        names = dict.fromkeys([*found.names, *(each.name for each in self._windows.columns), *others])
        return Listing(tuple(names), found.refused)

    def prepare(self, names: Iterable[str]) -> None:
        sources = [each.source for each in self._windows.columns]
        plain = [name for name in names if name not in self._by_name and self._padded(name) is None]
        self._episodes.prepare(dict.fromkeys([*sources, *plain]))

    def _padded(self, name: str) -> WindowColumn | None:
        return self._by_name.get(name.removesuffix(IS_PAD)) if name.endswith(IS_PAD) else None

    def column(self, name: str) -> Column:
        numbering = self._numbering
        if name in self._by_name:
            return self._windowed(self._by_name[name])
        if (padded := self._padded(name)) is not None and self._windows.marks_padding:
            return self._is_pad(name, padded)
        steps = self._episodes.steps(name, numbering.lengths)
        if steps is not None:
            starts, joined = steps.starts, steps.joined
            if joined is not None and not (joined.unit_shape is not None and joined.is_there.all()):
                return StepColumn(name, steps.values, joined, numbering.of)
            return RowColumn(
                name,
                steps.values,
                lambda rows: starts[(found := numbering.of(rows))[0]] + found[1],
                steps.chunk_rows,
            )
        if self._episodes.is_step(name):
            step = InMemory.of(name, "number", lambda rows: numbering.of(rows)[1], np.dtype(np.int64))
            return RowColumn(name, step)
        return self._episodes.constant(name).at(lambda rows: numbering.of(rows)[0])

    def _windowed(self, window: WindowColumn) -> WindowedColumn:
        numbering = self._numbering
        steps = self._check(window, numbering.lengths)
        starts, offsets = steps.starts, np.array(window.offsets, np.int64)
        before, after = (pad == "zero" for pad in self._windows.pad)

        def units_of(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            episodes, at = numbering.of(rows)
            wanted, last = at[:, None] + offsets, numbering.lengths[episodes][:, None] - 1
            blank = (before & (wanted < 0)) | (after & (wanted > last))
            return starts[episodes][:, None] + np.clip(wanted, 0, last), blank

        span = max(window.offsets) - min(window.offsets) + 1
        run = min(_RUN * span // self._windows.stride, self.num_rows)
        chunk_rows = max(steps.chunk_rows, run, 1)
        varying = None if steps.joined is None or steps.joined.unit_shape is not None else steps.joined
        return WindowedColumn(window.name, steps.values, len(offsets), units_of, chunk_rows, varying)

    def _check(self, window: WindowColumn, lengths: np.ndarray) -> Steps:
        """Return where the steps of a column are; raise if it cannot have windows."""
        steps = self._episodes.steps(window.source, lengths)
        if steps is None:
            raise UnsupportedColumnError(
                f"{self._path}: Windows: column {window.source!r} has no axis of time; leave it out of the offsets"
            )
        array = steps.values.array
        if array.kind == "sparse" and not array.dense:
            raise UnsupportedColumnError(
                f"{self._path}: Windows: column {window.source!r} is csr(dense=False): torch has no sparse batches of "
                "several rows each. Leave dense=False out, or the column out of the offsets."
            )
        if array.kind in {"number", "bool"} and array.enum and "zero" in self._windows.pad:
            raise UnsupportedColumnError(
                f"{self._path}: Windows: column {window.source!r} is an enum, {dict(array.enum)}, in which 0 is a "
                "value or none at all. Pass pad='edge' or 'drop'."
            )
        return steps

    def _is_pad(self, name: str, window: WindowColumn) -> RowColumn:
        numbering, offsets = self._numbering, np.array(window.offsets, np.int64)

        def values(rows: np.ndarray) -> np.ndarray:
            episodes, at = numbering.of(rows)
            wanted = at[:, None] + offsets
            return (wanted < 0) | (wanted >= numbering.lengths[episodes][:, None])

        return RowColumn(name, InMemory.of(name, "bool", values, np.dtype(bool), (len(offsets),)))

    def episode_names(self) -> np.ndarray:
        return self._episodes.episode_names()

    def episodes_of(self, rows: np.ndarray) -> np.ndarray:
        return self._numbering.of(rows)[0]

    def step_numbers(self, rows: np.ndarray) -> np.ndarray:
        """Return the number of each row's step in the file: other offsets do not change it."""
        return self._numbering.step_numbers(rows)


def _margins(windows: Windows) -> tuple[int, int]:
    """Return how many steps at the beginning and at the end of an episode have no row."""
    first = max(0, -windows.least) if windows.pad[0] == "drop" else 0
    return first, max(0, windows.most) if windows.pad[1] == "drop" else 0


def steps_needed(windows: Windows) -> int:
    """Return the steps of the shortest episode that has a row."""
    return sum(_margins(windows)) + 1


class Numbering:
    """Row number <-> (episode, step), and the number of each step in the file.

    Parameters
    ----------
    lengths : numpy.ndarray
        The steps of each episode.
    windows : Windows
        The windows.
    starts : numpy.ndarray, optional
        The number of the first step of each episode; by default episodes follow each other.
    num_steps : int, optional
        Steps of the file, with those of no episode.
    """

    def __init__(
        self, lengths: np.ndarray, windows: Windows, starts: np.ndarray | None = None, num_steps: int | None = None
    ) -> None:
        self.lengths = lengths
        first, beyond = _margins(windows)
        rows = np.maximum(0, (lengths - 1 - beyond - first) // windows.stride + 1)
        self.row_starts = np.concatenate([[0], np.cumsum(rows)])
        self._step_starts = np.cumsum(lengths) - lengths if starts is None else starts
        self.num_steps = int(lengths.sum()) if num_steps is None else num_steps
        self._first, self._stride = first, windows.stride

    def of(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return episode and step of each row."""
        episodes = np.searchsorted(self.row_starts, rows, side="right") - 1
        return episodes, self._first + (rows - self.row_starts[episodes]) * self._stride

    def step_numbers(self, rows: np.ndarray) -> np.ndarray:
        """Return the number of each row's step in the file."""
        episodes, at = self.of(rows)
        return self._step_starts[episodes] + at


def steps_of_rows(table: RowTable, windows: Windows) -> np.ndarray:
    """Return the number in its file of the step of each row, given what is known of the file.

    It is the same for all kinds of windows, with any offsets: the row of the file where episodes lie along the first
    axis; the ordinal of the step where groups or files are episodes, or the last axis of a grid is time; with times,
    the number of the sample, or of the tick of `fps`, that is the row's time.
    """
    if windows.at is not None:
        from ray_h5.rows.kinds.timed_rows import RowsInTime

        if not table.times:
            return np.empty(0, np.int64)
        numbering: Numbering | RowsInTime = RowsInTime(table.times.__getitem__, windows)
    else:
        bounds = None if windows.episode_bounds is None else table.bounds.get(episodes_key(windows.episode_bounds))
        numbering = Numbering(table.lengths, windows, None if bounds is None else bounds.starts, table.num_steps)
    return numbering.step_numbers(np.arange(numbering.row_starts[-1]))


def check_any_row(paths: Sequence[str], tables: Sequence[RowTable | None], windows: Windows) -> None:
    """Raise if no episode is long enough for a row; warn of episodes that are too short.

    Raises
    ------
    OptionError
        With the longest episode, and the steps that the windows need.
    """
    known = [np.empty(0, np.int64) if each is None else each.lengths for each in tables]
    need = steps_needed(windows)
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
