"""The guard of columns whose values are in other datasets: it looks at the chunks of those."""

from __future__ import annotations

import functools
from collections.abc import Callable
from functools import partial
from typing import TypeAlias

import h5py
import numpy as np

from ray_h5.errors import MissingSourceError
from ray_h5.hdf5.columns import Library, Worker
from ray_h5.hdf5.gather import Request, request_of
from ray_h5.hdf5.guard import ChunkGuard
from ray_h5.hdf5.mappings import Mapping, Needed

Opened: TypeAlias = Callable[[], h5py.Dataset]
GuardOf: TypeAlias = Callable[[h5py.Dataset], ChunkGuard]


class OriginGuard:
    """Does what `ChunkGuard` does for a dataset in another file, or a virtual one, whose values come from others.

    Of a virtual dataset it follows the rows that are read to those of its sources; where a mapping does
    not go row by row, to all rows of the source. What was found whole is not opened again.

    Parameters
    ----------
    guard_of : callable
        Makes the guard of a dataset that is stored in chunks.
    """

    def __init__(self, guard_of: GuardOf) -> None:
        self._guard_of = guard_of
        self._looked = False
        self._shape: tuple[int, ...] = ()
        self._chunks: ChunkGuard | None = None
        self._mappings: list[Mapping] = []
        self._bounds = np.empty((0, 2), np.int64)
        self._sources: dict[tuple[Mapping, int], OriginGuard] = {}

    def check_column(self, name: str, request: Request, worker: Worker, library: Library) -> None:
        """Raise `CorruptChunkError` unless each chunk that rows of column `name` come from is of its proper size."""
        self.check(lambda: library.dataset(name), lambda _: request.listed().rows, worker, library)

    def check(self, opened: Opened, needed: Needed, worker: Worker, library: Library) -> None:
        """Do what `check_column` does for a dataset that is opened only if there is something to look at."""
        opened = functools.cache(opened)
        if not self._looked:
            self._look(opened())
        if self._chunks is None and not self._mappings:
            return
        rows = needed(self._shape)
        rows = rows[rows < self._shape[0]]  # what lies behind the end of a source is filled in
        if not len(rows):
            return
        if self._chunks is not None:
            self._chunks.check_in(opened, request_of(rows), worker)
        # There may be thousands of mappings, and few that have a part of these rows.
        first, behind = (np.searchsorted(rows, ends) for ends in self._bounds.T)
        for number in np.flatnonzero(first < behind).tolist():
            self._follow(self._mappings[number], opened, rows[first[number] : behind[number]], worker, library)

    def _follow(self, mapping: Mapping, opened: Opened, rows: np.ndarray, worker: Worker, library: Library) -> None:
        for number, needed in mapping.followed(rows):
            source = self._sources.setdefault((mapping, number), OriginGuard(self._guard_of))
            open_source = partial(_source, library, opened, *mapping.numbered(number))
            try:
                source.check(open_source, needed, worker, library)
            except MissingSourceError:
                if not mapping.is_numbered:
                    raise
                return  # libhdf5 stops counting there

    def _look(self, dataset: h5py.Dataset) -> None:
        self._shape = dataset.shape or (1,)
        if dataset.is_virtual:
            self._mappings = list(Mapping.all_of(dataset))
            self._bounds = np.array([mapping.bounds for mapping in self._mappings], np.int64).reshape(-1, 2)
        elif dataset.chunks is not None:
            self._chunks = self._guard_of(dataset)
        self._looked = True


def _source(library: Library, opened: Opened, file_name: str, name: str) -> h5py.Dataset:
    return library.source(opened(), file_name, name)
