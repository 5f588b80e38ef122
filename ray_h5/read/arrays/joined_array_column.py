"""Columns that consist of many datasets: one request for units of all of them, each chunk decoded once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from ray_h5.errors import UnsupportedColumnError
from ray_h5.hdf5.files.file_bytes import gather
from ray_h5.manifest.chunk_index import ChunkGrid, ChunkIndex
from ray_h5.manifest.joined_arrays import NOT_WRITTEN, JoinedArray
from ray_h5.manifest.layout import ColumnLayout
from ray_h5.manifest.row_requests import Request, RowRequest, RowRuns, RunRequest, by_part, units_of
from ray_h5.read.arrays.box_column import BoxColumn, column_of
from ray_h5.read.arrays.chunk_source import ChunkSource, Where, joined_indexes
from ray_h5.read.arrays.converted_column import ConvertedColumn, HeapReader
from ray_h5.read.arrays.direct_column import DirectColumn
from ray_h5.read.arrays.selection import Selection
from ray_h5.read.jobs import Job
from ray_h5.read.stored_items import StoredItems
from ray_h5.storage.byte_source import ByteSource

IndexOf = Callable[[str], ChunkIndex]
"""Returns the chunk index of a dataset, given its path."""


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
    sources : sequence of ChunkSource
        The classes of datasets; see `class_sources`.
    index_of : callable
        Opens one dataset, for its chunks.
    converted : mapping of int to (StoredItems, HeapReader)
        Classes whose values are made of their stored items, and what reads what these refer to.
    chunks : ChunkIndex, optional
        The chunks of all datasets, if they are known.
    taken : Selection, optional
        The parts of a unit that are read; None for whole units.
    """

    def __init__(
        self,
        path: str,
        joined: JoinedArray,
        byte_source: ByteSource,
        sources: Sequence[ChunkSource],
        index_of: IndexOf,
        converted: Mapping[int, tuple[StoredItems, HeapReader]],
        chunks: ChunkIndex | None = None,
        taken: Selection | None = None,
    ) -> None:
        self._path = path
        self._array = joined
        self._byte_source = byte_source
        self._sources = sources
        self._index_of = index_of
        self._converted = converted
        self._chunks = chunks
        self._taken = taken

    @property
    def byte_source(self) -> ByteSource:
        """The bytes that its jobs fetch."""
        return self._byte_source

    def jobs(self, request: Request | RunRequest, out: np.ndarray) -> list[Job]:
        """Return the work that fills ``out[request.places]`` with the units ``request.rows``.

        Each run of a `RunRequest` is in one dataset.
        """
        if not len(request):
            return []
        if isinstance(request, RunRequest):
            return self._run_jobs(request, out)
        if len(self._array.layouts) == 1:
            return self._jobs_of(0, request, out)
        listed = request.listed()
        classes = self._array.class_of[self._array.datasets_of(listed.rows)]
        jobs: list[Job] = []
        for number, chosen in by_part(classes):
            jobs += self._jobs_of(number, listed.select(chosen), out)
        return jobs

    def _run_jobs(self, request: RunRequest, out: np.ndarray) -> list[Job]:
        """Return the work for whole datasets, or parts of them."""
        if len(self._array.layouts) == 1:
            return self._jobs_of(0, request, out)
        at = self._array.datasets_of(request.firsts) if request.datasets is None else request.datasets
        jobs: list[Job] = []
        for number, chosen in by_part(self._array.class_of[at]):
            jobs += self._jobs_of(number, request.select(chosen), out)
        return jobs

    def _jobs_of(self, number: int, request: Request | RunRequest, out: np.ndarray) -> list[Job]:
        """Return the work for units of datasets of one class."""
        layout = self._array.layouts[number]
        if not layout.row_bytes:
            return []
        if number not in self._converted:
            return self._stored_jobs(number, self._index_of, request, out)
        items, heap = self._converted[number]
        listed, index_of = request.listed(), self._index_of
        if layout.storage == "chunked" and self._chunks is None:  # now: the file is closed when items are read
            paths = [self._array.paths[at] for at in np.unique(self._array.datasets_of(listed.rows)).tolist()]
            index_of = dict(zip(paths, gather(index_of, paths), strict=True)).__getitem__
        reads = partial(self._stored_jobs, number, index_of)
        return ConvertedColumn(self._path, items, reads, self._byte_source, heap).jobs(listed, out)

    def _stored_jobs(self, number: int, index_of: IndexOf, request: Request | RunRequest, out: np.ndarray) -> list[Job]:
        layout = self._array.layouts[number]
        if not layout.direct:
            raise no_places(f"{self._path}: column {self._array.name!r}")
        if layout.storage == "chunked":
            return self._chunked_jobs(layout, index_of, request.listed(), out)
        if self._taken is not None:
            return self._taken_jobs(layout, self._taken, request.listed(), out)
        return self._contiguous_jobs(number, request, out)

    def _contiguous_jobs(self, number: int, request: Request | RunRequest, out: np.ndarray) -> list[Job]:
        if isinstance(request, RunRequest):
            at = self._array.datasets_of(request.firsts) if request.datasets is None else request.datasets
        else:
            request = request.listed()
            at = self._array.datasets_of(request.rows)
        source = self._sources[number]
        column, absent = DirectColumn(source, self._units_at), self._array.offsets[at] == NOT_WRITTEN
        if not absent.any():
            return column.jobs(request, out)
        # Without an offset, all values are the fill value.
        return DirectColumn(source).jobs(request.select(absent), out) + column.jobs(request.select(~absent), out)

    def _units_at(self, runs: RunRequest) -> tuple[RunRequest, np.ndarray, int | np.ndarray]:
        """Return where units of contiguous datasets lie; each run is in one dataset."""
        at = self._array.datasets_of(runs.firsts) if runs.datasets is None else runs.datasets
        source = self._sources[int(self._array.class_of[at[0]])]
        offsets = self._array.offsets[at] + (runs.firsts - self._array.starts[at]) * source.layout.row_bytes
        return runs, offsets, source.file

    def _taken_jobs(self, layout: ColumnLayout, taken: Selection, request: RowRequest, out: np.ndarray) -> list[Job]:
        """Return the work for parts of units of contiguous datasets, one after the other."""
        jobs: list[Job] = []
        for dataset, local in self._by_dataset(request):
            shape, offset = (int(self._array.lengths[dataset]), *layout.row_shape), self._array.offsets[dataset]
            at = None if offset == NOT_WRITTEN else int(offset)
            own = replace(layout, name=self._array.paths[dataset], shape=shape, offset=at)
            jobs += BoxColumn(ChunkSource(self._path, own, self._byte_source), taken).jobs(local, out)
        return jobs

    def _chunked_jobs(self, layout: ColumnLayout, index_of: IndexOf, request: RowRequest, out: np.ndarray) -> list[Job]:
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
        whole = replace(layout, shape=(int(first_chunk[-1]) * chunk_rows, *layout.row_shape))
        paths = [self._array.paths[dataset] for dataset in touched.tolist()]
        first_number = first_chunk * ChunkGrid.of(whole).per_row
        index = (
            joined_indexes(gather(index_of, paths), first_number)
            if self._chunks is None
            else self._known_chunks(self._chunks, touched, first_number[:-1])
        )

        def where(number: int) -> Where:
            at = int(np.searchsorted(first_number, number, side="right")) - 1
            own = replace(layout, name=paths[at], shape=(int(lengths[at]), *layout.row_shape))
            return self._path, own, number - int(first_number[at])

        return column_of(ChunkSource(self._path, whole, self._byte_source, index, where), self._taken).jobs(moved, out)

    def _known_chunks(self, chunks: ChunkIndex, datasets: np.ndarray, first_numbers: np.ndarray) -> ChunkIndex:
        """Return the chunks of some datasets, those of the i-th numbered from ``first_numbers[i]``."""
        first = self._array.first_chunks
        low, high = np.searchsorted(chunks.numbers, [first[datasets], first[datasets + 1]])
        at = units_of(low, high - low)
        numbers = chunks.numbers[at] + np.repeat(first_numbers - first[datasets], high - low)
        return ChunkIndex(numbers, chunks.offsets[at], chunks.sizes[at], chunks.masks[at])

    def _by_dataset(self, request: RowRequest) -> Iterator[tuple[int, Request]]:
        """Yield the datasets that units are in, and their rows there."""
        of = self._array.datasets_of(request.rows)
        runs = RowRuns.split(of[1:] != of[:-1])
        for start, stop in zip(runs.start.tolist(), runs.stop.tolist(), strict=True):
            dataset = int(of[start])
            part = request.select(slice(start, stop))
            yield dataset, RowRequest(part.rows - self._array.starts[dataset], part.places).packed()


def no_places(where: str) -> UnsupportedColumnError:
    """Return the error of a column whose chunks are not found."""
    return UnsupportedColumnError(
        f"{where} is in a file with a user block, for which this libhdf5 does not say where chunks are. Install a "
        "newer h5py."
    )


def class_sources(path: str, joined: JoinedArray, byte_source: ByteSource) -> list[ChunkSource]:
    """Return each class of datasets as an array, without an offset."""
    return [ChunkSource(path, layout, byte_source) for layout in joined.layouts]
