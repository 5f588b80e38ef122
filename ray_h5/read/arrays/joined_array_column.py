"""Columns that consist of many datasets: one request for units of all of them, each chunk decoded once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

import numpy as np

from ray_h5.hdf5.files.file_bytes import gather
from ray_h5.manifest.chunk_index import ChunkIndex
from ray_h5.manifest.joined_arrays import NOT_WRITTEN, JoinedArray
from ray_h5.manifest.layout import ColumnLayout
from ray_h5.manifest.row_requests import Request, RowRequest, RowRuns, RunRequest, by_part, units_of
from ray_h5.read.arrays.direct_column import DirectColumn
from ray_h5.read.arrays.joined_chunks import JoinedChunks, joined_indexes
from ray_h5.read.jobs import Job
from ray_h5.read.through_h5py.h5py_column import Library
from ray_h5.storage.byte_source import ByteSource

if TYPE_CHECKING:
    from ray_h5.read.arrays.taken_column import TakenAddress
    from ray_h5.read.arrays.taken_joined_array import TakenOfJoined

IndexOf = Callable[[str], ChunkIndex]
"""Returns the chunk index of a dataset, given its path."""

ReaderOf = Callable[[str], "HasJobs"]
"""Returns the reader of a dataset that h5py reads, given its path."""


class HasJobs(Protocol):
    """A reader of one column."""

    def jobs(self, request: Request, out: np.ndarray, library: Library) -> list[Job]:
        """Return the work that fills ``out[request.places]`` with ``request.rows``."""


class JoinedArrayColumn:
    """Reads units of a column that consists of many datasets.

    Datasets that are alike are read as one column: what is contiguous by a table of offsets, and what is chunked by the
    chunk indexes of the datasets concerned, one after the other.

    Parameters
    ----------
    path : str
        The file, for messages.
    joined : JoinedArray
        The datasets.
    byte_source : ByteSource
        The bytes of the file.
    columns : sequence of DirectColumn
        The readers of each class whose datasets are contiguous; see `class_columns`.
    index_of, reader_of : callable
        Open one dataset: for its chunks, or to read it through h5py.
    chunks : ChunkIndex, optional
        The chunks of all datasets, if they are known.
    taken : TakenAddress, optional
        The parts of a unit that are read; None for whole units.
    """

    def __init__(
        self,
        path: str,
        joined: JoinedArray,
        byte_source: ByteSource,
        columns: Sequence[DirectColumn],
        index_of: IndexOf,
        reader_of: ReaderOf,
        chunks: ChunkIndex | None = None,
        taken: TakenAddress | None = None,
    ) -> None:
        self._path = path
        self._array = joined
        self._byte_source = byte_source
        self._columns = columns
        self._index_of = index_of
        self._reader_of = reader_of
        self._chunks = chunks
        self._taken = taken

    takes_runs = True

    @property
    def byte_source(self) -> ByteSource:
        """The bytes that its jobs fetch."""
        return self._byte_source

    @property
    def needs_library(self) -> bool:
        """Whether its jobs need libhdf5."""
        return not all(layout.direct for layout in self._array.layouts)

    def jobs(self, request: Request | RunRequest, out: np.ndarray, library: Library) -> list[Job]:
        """Return the work that fills ``out[request.places]`` with the units ``request.rows``.

        Each run of a `RunRequest` is in one dataset.
        """
        if not len(request):
            return []
        if isinstance(request, RunRequest):
            return self._run_jobs(request, out, library)
        if len(self._array.layouts) == 1:
            return self._jobs_of(0, request, out, library)
        listed = request.listed()
        classes = self._array.class_of[self._array.datasets_of(listed.rows)]
        jobs: list[Job] = []
        for number, chosen in by_part(classes):
            jobs += self._jobs_of(number, listed.select(chosen), out, library)
        return jobs

    def _run_jobs(self, request: RunRequest, out: np.ndarray, library: Library) -> list[Job]:
        """Return the work for whole datasets, or parts of them."""
        at = self._array.datasets_of(request.firsts) if request.datasets is None else request.datasets
        if len(self._array.layouts) == 1:
            return self._class_run_jobs(0, request, at, out, library)
        classes = self._array.class_of[at]
        jobs: list[Job] = []
        for number, chosen in by_part(classes):
            jobs += self._class_run_jobs(number, request.select(chosen), at[chosen], out, library)
        return jobs

    def _class_run_jobs(
        self, number: int, runs: RunRequest, at: np.ndarray, out: np.ndarray, library: Library
    ) -> list[Job]:
        """Return the work for runs that are in the datasets `at`, which are of one class."""
        layout, offsets = self._array.layouts[number], self._array.offsets[at]
        in_place = self._taken is None and out.dtype == layout.stored_dtype and bool(out.flags.c_contiguous)
        if layout.direct and layout.storage == "contiguous" and in_place and (offsets != NOT_WRITTEN).all():
            offsets += (runs.firsts - self._array.starts[at]) * layout.row_bytes
            return self._columns[number].copy_runs(runs, offsets, out) if layout.row_bytes else []
        return self._jobs_of(number, runs.listed(), out, library)

    def _jobs_of(self, number: int, request: Request, out: np.ndarray, library: Library) -> list[Job]:
        layout = self._array.layouts[number]
        if not layout.row_bytes:
            return []
        if not layout.direct:
            return self._h5py_jobs(request.listed(), out, library)
        if layout.storage == "contiguous" and self._taken is not None:
            return self._taken_jobs(layout, self._taken, request.listed(), out, library)
        if layout.storage == "contiguous":
            return self._contiguous_jobs(number, request.listed(), out, library)
        return self._chunked_jobs(layout, request.listed(), out, library)

    def _contiguous_jobs(self, number: int, request: RowRequest, out: np.ndarray, library: Library) -> list[Job]:
        layout, column = self._array.layouts[number], self._columns[number]
        at = self._array.datasets_of(request.rows)
        bases = self._array.offsets[at]
        offsets = bases + (request.rows - self._array.starts[at]) * layout.row_bytes
        absent = bases == NOT_WRITTEN
        jobs = column.jobs(request.select(absent), out, library)  # a layout without an offset: the fill value
        return jobs if absent.all() else jobs + column.copy_rows(request.select(~absent), offsets[~absent], out)

    def _taken_jobs(
        self, layout: ColumnLayout, taken: TakenAddress, request: RowRequest, out: np.ndarray, library: Library
    ) -> list[Job]:
        """Return the work for parts of units of contiguous datasets, one after the other."""
        from ray_h5.read.arrays.taken_column import TakenColumn

        of = self._array.datasets_of(request.rows)
        runs = RowRuns.split(of[1:] != of[:-1])
        jobs: list[Job] = []
        for start, stop in zip(runs.start.tolist(), runs.stop.tolist(), strict=True):
            dataset = int(of[start])
            shape, offset = (int(self._array.lengths[dataset]), *layout.row_shape), self._array.offsets[dataset]
            at = None if offset == NOT_WRITTEN else int(offset)
            own = replace(layout, name=self._array.paths[dataset], shape=shape, offset=at)
            part = request.select(slice(start, stop))
            local = RowRequest(part.rows - self._array.starts[dataset], part.places).packed()
            jobs += TakenColumn(self._path, own, self._byte_source, None, taken).jobs(local, out, library)
        return jobs

    def _chunked_jobs(self, layout: ColumnLayout, request: RowRequest, out: np.ndarray, library: Library) -> list[Job]:
        """Return the work for the datasets concerned, as one column: each dataset begins with a chunk."""
        assert layout.chunk_shape is not None
        chunk_rows = layout.chunk_shape[0]
        of = self._array.datasets_of(request.rows)
        runs = RowRuns.split(of[1:] != of[:-1])
        touched = of[runs.start]
        lengths = self._array.lengths[touched]
        chunks = -(-lengths // chunk_rows)  # along the first axis
        first_chunk = np.concatenate([[0], np.cumsum(chunks)])
        shift = first_chunk[:-1] * chunk_rows - self._array.starts[touched]
        moved = RowRequest(request.rows + np.repeat(shift, runs.stop - runs.start), request.places)
        shape = (int(first_chunk[-1]) * chunk_rows, *layout.row_shape)
        paths = [self._array.paths[dataset] for dataset in touched.tolist()]
        per_row = int(np.prod([-(-n // c) for n, c in zip(layout.row_shape, layout.chunk_shape[1:], strict=False)]))
        index = (
            joined_indexes(gather(self._index_of, paths), first_chunk[:-1] * per_row)
            if self._chunks is None
            else self._known_chunks(self._chunks, touched, first_chunk[:-1] * per_row)
        )
        joined = self._joined(replace(layout, shape=shape), index)
        joined.name_datasets(paths, first_chunk * per_row, lengths)
        return joined.jobs(moved, out, library)

    def _joined(self, layout: ColumnLayout, index: ChunkIndex) -> JoinedChunks | TakenOfJoined:
        if self._taken is None:
            return JoinedChunks(self._path, layout, self._byte_source, index)
        from ray_h5.read.arrays.taken_joined_array import TakenOfJoined

        return TakenOfJoined(self._path, layout, self._byte_source, index, self._taken)

    def _known_chunks(self, chunks: ChunkIndex, datasets: np.ndarray, first_numbers: np.ndarray) -> ChunkIndex:
        """Return the chunks of some datasets, those of the i-th numbered from ``first_numbers[i]``."""
        first = self._array.first_chunks
        low, high = np.searchsorted(chunks.numbers, [first[datasets], first[datasets + 1]])
        at = units_of(low, high - low)
        numbers = chunks.numbers[at] + np.repeat(first_numbers - first[datasets], high - low)
        return ChunkIndex(numbers, chunks.offsets[at], chunks.sizes[at], chunks.masks[at])

    def _h5py_jobs(self, request: RowRequest, out: np.ndarray, library: Library) -> list[Job]:
        of = self._array.datasets_of(request.rows)
        runs = RowRuns.split(of[1:] != of[:-1])
        jobs: list[Job] = []
        for start, stop in zip(runs.start.tolist(), runs.stop.tolist(), strict=True):
            dataset = int(of[start])
            part = request.select(slice(start, stop))
            local = RowRequest(part.rows - self._array.starts[dataset], part.places).packed()
            jobs += self._reader_of(self._array.paths[dataset]).jobs(local, out, library)
        return jobs


def class_columns(path: str, joined: JoinedArray, byte_source: ByteSource) -> list[DirectColumn]:
    """Return a reader for each class. Without an offset, it reads fill values, or rows whose offsets it is given."""
    return [DirectColumn(path, layout, byte_source, None) for layout in joined.layouts]
