"""Columns whose rows lie along the last axis, as MATLAB and loom write them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from ray_h5.errors import CorruptChunkError
from ray_h5.manifest.chunk_index import ChunkGrid, ChunkIndex, corrupt_chunk
from ray_h5.manifest.layout import ColumnLayout
from ray_h5.manifest.row_requests import Request, RowRequest, RowRuns, RunRequest
from ray_h5.read.arrays.direct_column import DirectColumn
from ray_h5.read.jobs import Job, Staged
from ray_h5.read.through_h5py.h5py_column import Library
from ray_h5.storage.byte_source import ByteSource

_MOST_TOGETHER, _GAP_BYTES = 1 << 20, 512
"""Bytes of values that one job puts into their places; those between values that are read with them."""


@dataclass(frozen=True, slots=True)
class LastAxis:
    """A column whose axes are reversed: row i is ``dataset.T[i]``, with its first `axes` axes taken together."""

    name: str
    axes: int = 1


class LastAxisColumn:
    """Reads rows along the last axis without libhdf5; each chunk is fetched and decoded once.

    Parameters
    ----------
    path : str
        The file, for messages.
    layout : ColumnLayout
        The dataset, which is direct.
    byte_source : ByteSource
        The bytes of the file.
    index : ChunkIndex, optional
        Its chunks.
    """

    needs_library = False
    takes_runs = False

    def __init__(self, path: str, layout: ColumnLayout, byte_source: ByteSource, index: ChunkIndex | None) -> None:
        self._layout = layout
        self._grid = ChunkGrid.of(layout)
        self._is_chunked = index is not None
        if index is None:
            # Each value is a row.
            self._column = DirectColumn(path, replace(layout, shape=(math.prod(layout.shape),)), byte_source, None)
        else:
            self._column = _WholeChunks(path, layout, self._grid, byte_source, index)
            along = index.numbers % self._grid.counts[-1]
            order = np.argsort(along, kind="stable")
            self._numbers, self._along = index.numbers[order], along[order]

    @property
    def byte_source(self) -> ByteSource:
        """The bytes that its jobs fetch."""
        return self._column.byte_source

    def jobs(self, request: Request, out: np.ndarray, library: Library) -> list[Job]:
        """Return the work that fills ``out[request.places]`` with ``request.rows``."""
        wanted = request.listed()
        if not out.size or not len(wanted):
            return []
        return list((self._of_chunks if self._is_chunked else self._of_values)(wanted, out, library))

    def _of_chunks(self, wanted: RowRequest, out: np.ndarray, library: Library) -> Iterator[Job]:
        count, across = math.prod(self._grid.counts[:-1]), self._grid.counts[-1]
        chunk, nbytes = self._grid.chunk_shape, self._layout.chunk_bytes
        along = wanted.rows // chunk[-1]
        runs = RowRuns.split(along[1:] != along[:-1])
        at_once = max(1, _MOST_TOGETHER // nbytes)
        for start, stop in zip(runs.start.tolist(), runs.stop.tolist(), strict=True):
            inside, places = wanted.rows[start:stop] % chunk[-1], wanted.places[start:stop]
            low, high = np.searchsorted(self._along, [along[start], along[start] + 1]).tolist()
            if high - low < count:
                # Chunks that were never written. Now, and not in a job: these run side by side.
                out[places] = self._layout.fill
            for first in range(low, high, at_once):
                numbers = self._numbers[first : min(first + at_once, high)]
                request = RowRequest(numbers, np.arange(len(numbers)))
                put = partial(self._put, numbers // across, inside, places, out)
                yield self._staged(request, (len(numbers), *chunk), library, put)

    def _put(
        self, cells: np.ndarray, inside: np.ndarray, places: np.ndarray, out: np.ndarray, chunks: np.ndarray
    ) -> None:
        """Put values of whole chunks into the output; `cells` are the chunks' places along all axes but the last."""
        for cell, values in zip(cells.tolist(), chunks, strict=True):
            at = np.unravel_index(cell, self._grid.counts[:-1])
            axes = zip(at, self._grid.chunk_shape, self._grid.shape, strict=False)
            there = [slice(int(i) * c, min((int(i) + 1) * c, n)) for i, c, n in axes]
            here: Any = (*(slice(each.stop - each.start) for each in there), inside)
            where: Any = (places, *there[::-1])
            out[where] = values[here].T

    def _of_values(self, wanted: RowRequest, out: np.ndarray, library: Library) -> Iterator[Job]:
        *lead, length = self._layout.shape
        item = self._layout.stored_dtype.itemsize
        runs = RowRuns.split(np.diff(wanted.rows) * item > _GAP_BYTES)
        firsts = wanted.rows[runs.start]
        counts = wanted.rows[runs.stop - 1] + 1 - firsts
        begins = np.cumsum(counts) - counts
        width = int(counts.sum())
        taken = wanted.rows + np.repeat(begins - firsts, runs.stop - runs.start)
        at_once = max(1, _MOST_TOGETHER // (width * item))
        for first in range(0, math.prod(lead), at_once):
            cells = np.arange(first, min(first + at_once, math.prod(lead)))
            request = RunRequest(
                (cells[:, None] * length + firsts).reshape(-1),
                (np.arange(len(cells))[:, None] * width + begins).reshape(-1),
                np.tile(counts, len(cells)),
            )
            where: Any = (wanted.places[:, None], *(each[None] for each in np.unravel_index(cells, lead)[::-1]))
            put = partial(_put_values, taken, where, out)
            yield self._staged(request, (len(cells) * width,), library, put)

    def _staged(
        self,
        request: RowRequest | RunRequest,
        shape: tuple[int, ...],
        library: Library,
        put: Callable[[np.ndarray], None],
    ) -> Staged:
        jobs_into = partial(self._column.jobs, request, library=library)
        return Staged(self.byte_source, jobs_into, shape, self._layout.stored_dtype, put)


def _put_values(taken: np.ndarray, where: Any, out: np.ndarray, values: np.ndarray) -> None:
    out[where] = values.reshape(where[1].size, -1)[:, taken].T


class _WholeChunks(DirectColumn):
    """A dataset whose chunks are rows. They keep their numbers; errors say which values they hold."""

    def __init__(
        self, path: str, layout: ColumnLayout, grid: ChunkGrid, byte_source: ByteSource, index: ChunkIndex
    ) -> None:
        shape = (math.prod(grid.counts), *grid.chunk_shape)
        super().__init__(path, replace(layout, shape=shape, chunk_shape=(1, *grid.chunk_shape)), byte_source, index)
        self._stored = layout

    def _corrupt(self, number: int, offset: int, size: int, reason: str) -> CorruptChunkError:
        return corrupt_chunk(self._path, self._stored, number, offset, size, reason)
