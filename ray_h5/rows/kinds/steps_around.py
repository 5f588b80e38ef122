"""The steps of all files that windows have around rows, by arithmetic: values of these steps may lie anywhere."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from typing import Any, TypeAlias

import numpy as np

from ray_h5.columns.row_table import RowTable
from ray_h5.content_equality import ComparedByContent
from ray_h5.lru import LRU
from ray_h5.manifest.file_table import FileTable
from ray_h5.manifest.partition import Partition
from ray_h5.per_process import cached_property
from ray_h5.rows.frames_option import Frames
from ray_h5.rows.kinds.clock import Clock
from ray_h5.rows.windows_option import WindowColumn, Windows

_CLOCKS = 64
"""Files whose clocks stay in memory."""


@dataclass(frozen=True, eq=False, repr=False)
class StepsAround(ComparedByContent):
    """Steps of episodes in files, numbered through all files: in each, episode after episode.

    Attributes
    ----------
    tables : tuple of RowTable
        What is known of the rows of each file.
    windows : Windows
        The windows.
    column : WindowColumn
        The one whose offsets count.
    """

    tables: tuple[RowTable | None, ...] = field(compare=False)
    windows: Windows
    column: WindowColumn

    @cached_property
    def in_files(self) -> Partition:
        """The steps of each file."""
        counts = (0 if table is None else int(table.lengths.sum()) for table in self.tables)
        return Partition.of(np.array([*counts], np.int64))

    def of(self, files: FileTable, row_ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the steps of some rows, and which are before (-1) or after (1) the episode: of shape (rows, width)."""
        of_rows, rows = files.rows.local(row_ids)
        steps = np.empty((len(row_ids), len(self.column.offsets)), np.int64)
        side = np.empty(steps.shape, np.int8)
        order = np.argsort(of_rows, kind="stable")
        # Rows of a file at once: a call has few files, and a dataset may have 100,000.
        cuts = np.flatnonzero(np.diff(of_rows[order])) + 1
        for here in np.split(order, cuts) if len(order) else ():
            file = int(of_rows[here[0]])
            episodes, places, side[here] = self._clock(file).samples(self.column, rows[here])
            firsts = Partition.of(self._table(file).lengths).firsts + self.in_files.starts[file]
            steps[here] = firsts[episodes][:, None] + places
        return steps, side

    @cached_property
    def _clocks(self) -> LRU[Clock]:
        return LRU(_CLOCKS)

    def __getstate__(self) -> dict[str, Any]:
        return _given(self)

    def _table(self, file: int) -> RowTable:
        return self.tables[file] or RowTable()

    def _clock(self, file: int) -> Clock:
        known = self._clocks.get(file)
        if known is None:
            known = Clock.of_steps(self._table(file), self.windows)
            self._clocks.put(file, known)
        return known


@dataclass(frozen=True, eq=False, repr=False)
class FilesAround(ComparedByContent):
    """Files that are steps: a step has the number of its file.

    Attributes
    ----------
    files : FileTable
        The files.
    kind : Frames
        Which of them are neighbours.
    column : WindowColumn
        The one whose offsets count.
    """

    files: FileTable = field(compare=False)
    kind: Frames
    column: WindowColumn

    @property
    def windows(self) -> Windows:
        """The windows."""
        return self.kind.windows

    def of(self, files: FileTable, row_ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return what `StepsAround.of` does."""
        return self.around(files.files_of(row_ids), self.column)

    def around(self, files: np.ndarray, column: WindowColumn) -> tuple[np.ndarray, np.ndarray]:
        """Return the same around some files, of any window of theirs."""
        in_order, episodes, place = self._episodes
        of = episodes.part_of(place[files])
        first, length = episodes.firsts[of][:, None], episodes.lengths[of][:, None]
        steps = place[files][:, None] - first + np.array(column.offsets, np.int64)
        side = (steps >= length).astype(np.int8) - (steps < 0)
        return in_order[first + np.clip(steps, 0, length - 1)], side

    @cached_property
    def _episodes(self) -> tuple[np.ndarray, Partition, np.ndarray]:
        """The files, one episode after the other; the episodes; and where each file is among these."""
        listed = self.kind.episodes_of_files(self.files.all_paths())
        in_order = np.array([file for episode in listed for file in episode], np.int64)
        return in_order, Partition.of(np.array([len(episode) for episode in listed], np.int64)), np.argsort(in_order)

    def __getstate__(self) -> dict[str, Any]:
        return _given(self)


def _given(around: Around) -> dict[str, Any]:
    """Return what an object was made of: another process looks up again what it needs."""
    return {field.name: getattr(around, field.name) for field in fields(around)}


Around: TypeAlias = StepsAround | FilesAround


def pieces(num_rows: int, selection: np.ndarray | None, size: int) -> Iterator[np.ndarray]:
    """Yield the ids of selected rows, `size` at a time: what is made of them may be longer than they are."""
    count = num_rows if selection is None else len(selection)
    for begin in range(0, count, size):
        end = min(begin + size, count)
        yield np.arange(begin, end) if selection is None else selection[begin:end]
