"""Columns that consist of many datasets: one request for units of all of them, each chunk decoded once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from ray_h5.errors import UnsupportedColumnError
from ray_h5.hdf5.files.file_bytes import gather
from ray_h5.manifest.chunk_index import ChunkIndex
from ray_h5.manifest.joined_arrays import JoinedArray
from ray_h5.manifest.layout import ColumnLayout
from ray_h5.manifest.row_requests import Request, RowRuns, by_part, units_of
from ray_h5.read.arrays.chunk_source import ChunkSource, joined_indexes
from ray_h5.read.arrays.converted_column import ConvertedColumn, HeapReader
from ray_h5.read.arrays.plan_boxes import column_of
from ray_h5.read.arrays.selection import Selection
from ray_h5.read.jobs import Job
from ray_h5.read.stored_items import StoredItems
from ray_h5.storage.byte_source import ByteSource

IndexOf = Callable[[str], ChunkIndex]
"""Returns the chunk index of a dataset, given its path."""


@dataclass(frozen=True, slots=True, eq=False)
class JoinedArrayColumn:
    """Reads units of a column that consists of many datasets.

    Datasets that are alike are read as one array: what is contiguous by a table of offsets, and what is chunked by the
    chunk indexes of the datasets concerned, one after the other.

    Attributes
    ----------
    joined : JoinedArray
        The datasets.
    sources : sequence of ChunkSource
        The classes of datasets, each as one array; see `class_sources`.
    index_of : callable
        Opens one dataset, for its chunks.
    converted : mapping of int to (StoredItems, HeapReader)
        Classes whose values are made of their stored items, and what reads what these refer to.
    chunks : ChunkIndex, optional
        The chunks of all datasets, if they are known.
    taken : Selection, optional
        The parts of a unit that are read; None for whole units.
    """

    joined: JoinedArray
    sources: Sequence[ChunkSource]
    index_of: IndexOf
    converted: Mapping[int, tuple[StoredItems, HeapReader]]
    chunks: ChunkIndex | None = None
    taken: Selection | None = None

    @property
    def byte_source(self) -> ByteSource:
        """The bytes that its jobs fetch."""
        return self.sources[0].byte_source

    def jobs(self, request: Request, out: np.ndarray) -> list[Job]:
        """Return the work that fills ``out[request.places]`` with the units ``request.rows``.

        Each run is in one dataset, unless it is all that is asked for.
        """
        if not len(request):
            return []
        if len(self.sources) == 1:
            return self._jobs_of(0, request, out)
        runs = request.listed() if request.is_range else request
        classes = self.joined.class_of[self.joined.datasets_of(runs.firsts)]
        return [job for number, chosen in by_part(classes) for job in self._jobs_of(number, runs.select(chosen), out)]

    def _jobs_of(self, number: int, request: Request, out: np.ndarray) -> list[Job]:
        """Return the work for units of datasets of one class."""
        source = self.sources[number]
        if not source.layout.row_bytes:
            return []
        if number not in self.converted:
            return self._stored_jobs(source, self.index_of, request, out)
        items, heap = self.converted[number]
        listed, index_of = request.listed(), self.index_of
        if source.layout.storage == "chunked" and self.chunks is None:  # now: the file is closed when items are read
            paths = [self.joined.paths[at] for at in np.unique(self.joined.datasets_of(listed.rows)).tolist()]
            index_of = dict(zip(paths, gather(index_of, paths), strict=True)).__getitem__
        reads = partial(self._stored_jobs, source, index_of)
        return ConvertedColumn(source.path, items, reads, source.byte_source, heap).jobs(listed, out)

    def _stored_jobs(self, source: ChunkSource, index_of: IndexOf, request: Request, out: np.ndarray) -> list[Job]:
        if not source.layout.direct:
            raise no_places(f"{source.path}: column {self.joined.name!r}")
        if source.layout.storage == "chunked":
            source, request = self._touched(source, index_of, request.listed())
        return column_of(source, self.taken).jobs(request, out)

    def _touched(self, like: ChunkSource, index_of: IndexOf, request: Request) -> tuple[ChunkSource, Request]:
        """Return the datasets concerned as one array, and the rows there."""
        of = self.joined.datasets_of(request.rows)
        runs = RowRuns.split(of[1:] != of[:-1])
        touched = of[runs.start]

        def index(first_chunks: np.ndarray) -> ChunkIndex:
            if self.chunks is not None:
                return self._known_chunks(self.chunks, touched, first_chunks[:-1])
            return joined_indexes(gather(index_of, [self.joined.paths[at] for at in touched.tolist()]), first_chunks)

        source = ChunkSource.joined(
            like,
            self.joined.lengths[touched],
            lambda part: (like.path, _layout_of(self.joined, int(touched[part]), like)),
            index,
        )
        assert source.parts is not None
        shift = source.parts.starts[:-1] - self.joined.starts[touched]
        return source, Request(request.rows + np.repeat(shift, runs.stop - runs.start), request.places)

    def _known_chunks(self, chunks: ChunkIndex, datasets: np.ndarray, first_numbers: np.ndarray) -> ChunkIndex:
        """Return the chunks of some datasets, those of the i-th numbered from ``first_numbers[i]``."""
        first = self.joined.first_chunks
        low, high = np.searchsorted(chunks.numbers, [first[datasets], first[datasets + 1]])
        at = units_of(low, high - low)
        numbers = chunks.numbers[at] + np.repeat(first_numbers - first[datasets], high - low)
        return ChunkIndex(numbers, chunks.offsets[at], chunks.sizes[at], chunks.masks[at])


def no_places(where: str) -> UnsupportedColumnError:
    """Return the error of a column whose chunks are not found."""
    return UnsupportedColumnError(
        f"{where} is in a file with a user block, for which this libhdf5 does not say where chunks are. Install a "
        "newer h5py."
    )


def class_sources(path: str, joined: JoinedArray, byte_source: ByteSource) -> list[ChunkSource]:
    """Return each class of datasets as one array; of chunked ones, the parts are those that a read touches."""

    def source(layout: ColumnLayout) -> ChunkSource:
        like = ChunkSource(path, layout, byte_source)
        if layout.storage == "chunked":
            return like
        return ChunkSource.joined(
            like, joined.lengths, lambda part: (path, _layout_of(joined, part, like)), offsets=joined.offsets
        )

    return [source(layout) for layout in joined.layouts]


def _layout_of(joined: JoinedArray, dataset: int, like: ChunkSource) -> ColumnLayout:
    """Return the layout of one dataset."""
    shape = int(joined.lengths[dataset]), *like.layout.row_shape
    return replace(like.layout, name=joined.paths[dataset], shape=shape)
