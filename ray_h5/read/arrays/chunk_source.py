"""Where the bytes of an array are: what planners look up, and what errors say."""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import h5py
import numpy as np

from ray_h5.codecs.pipeline import ChunkDecoder
from ray_h5.errors import CorruptChunkError
from ray_h5.manifest.chunk_index import UNALLOCATED, ChunkGrid, ChunkIndex, corrupt_chunk
from ray_h5.manifest.file_state import check_same
from ray_h5.manifest.layout import ColumnLayout
from ray_h5.manifest.partition import Partition
from ray_h5.manifest.row_requests import Request, runs_between
from ray_h5.per_process import cached_property
from ray_h5.read.library_filters import decode_by_library
from ray_h5.read.native.job_table import NO_BOXES, NO_DESCRIPTOR, RAW, Field, JobTable, Origin, pipeline_number
from ray_h5.storage.byte_source import Buffer, ByteSource, FileIdentity
from ray_h5.storage.local import LocalFile


@dataclass(frozen=True, eq=False)
class ChunksOfParts:
    """The chunks of many arrays as those of one: they are listed where they are needed.

    Attributes
    ----------
    numbers : Partition
        The numbers of the chunks of each array.
    indexes_of : callable
        Returns the chunks of each of some arrays, given their numbers.
    known : (ChunkIndex, numpy.ndarray), optional
        The chunks of all arrays, if they are known, and the number there of the first chunk of each.
    lists : dict of int to ChunkIndex
        Those that were listed, by the number of the array.
    """

    numbers: Partition
    indexes_of: Callable[[Sequence[int]], Sequence[ChunkIndex]]
    known: tuple[ChunkIndex, np.ndarray] | None = None
    lists: dict[int, ChunkIndex] = field(default_factory=dict)
    nbytes = 0  # who lists them counts them

    def listed(self, parts: Sequence[int]) -> list[ChunkIndex]:
        """Return the chunks of some arrays, each of which is listed once."""
        if missing := [part for part in parts if part not in self.lists]:
            self.lists.update(zip(missing, self.indexes_of(missing), strict=True))
        return [self.lists[part] for part in parts]

    def locate(self, numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return offsets, sizes and masks of chunks, given their numbers, ascending; as `ChunkIndex.locate`."""
        of, own = self.numbers.local(numbers)
        if self.known is not None:
            index, first = self.known
            return index.locate(own + first[of])
        parts = of[runs_between(of[1:] != of[:-1])[0]]
        return joined_indexes(self.listed(parts.tolist()), self.numbers.starts[parts]).locate(numbers)


@dataclass(frozen=True, eq=False)
class Parts:
    """Arrays whose rows are those of one: datasets of groups, sources of a stack, a column of several files.

    Attributes
    ----------
    rows : Partition
        The rows of each. Of chunked arrays, each begins with a chunk.
    chunks : Partition
        The numbers of the chunks of each; of contiguous arrays, any.
    offsets : numpy.ndarray
        int64: where the values of each begin in its file, or `UNALLOCATED`; of chunked arrays, any.
    layout_of : callable
        Returns the file and the layout of one, for messages.
    descriptors : numpy.ndarray, optional
        int64: the descriptor of the file of each; None if all are in one file.
    byte_sources : mapping of int to ByteSource
        These files, by their descriptors.
    """

    rows: Partition
    chunks: Partition
    offsets: np.ndarray
    layout_of: Callable[[int], tuple[str, ColumnLayout]]
    descriptors: np.ndarray | None = None
    byte_sources: Mapping[int, ByteSource] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.offsets)


@dataclass(frozen=True, eq=False)
class ChunkSource:
    """An array that is read without libhdf5; it may consist of several arrays.

    Attributes
    ----------
    path : str
        The file, for messages.
    layout : ColumnLayout
        The array; its `direct` is true.
    byte_source : ByteSource
        The bytes of the file; of the first of several.
    index : ChunkIndex, optional
        The chunks; None for contiguous data.
    parts : Parts, optional
        The arrays that it consists of.
    file_key : hashable, optional
        Says which file it is, in which state, if decoded chunks may stay in memory.
    """

    path: str
    layout: ColumnLayout
    byte_source: ByteSource
    index: ChunkIndex | ChunksOfParts | None = None
    parts: Parts | None = None
    file_key: Hashable = None

    @classmethod
    def joined(
        cls,
        one: ChunkSource,
        lengths: np.ndarray,
        layout_of: Callable[[int], tuple[str, ColumnLayout]],
        index_of: Callable[[Partition], ChunkIndex | ChunksOfParts] | None = None,
        **parts: Any,
    ) -> ChunkSource:
        """Return arrays like `one` that have these lengths as an array; `parts` are attributes of `Parts`.

        `index_of` returns the chunks of chunked ones, given the numbers of those of each.
        """
        chunk_rows = one.grid.chunk_rows if one.layout.chunk_shape else 1
        of_rows = -(-lengths // chunk_rows)  # chunks along the first axis
        rows, chunks = Partition.of(of_rows * chunk_rows), Partition.of(of_rows * one.grid.per_row)
        whole = replace(one.layout, shape=(rows.num_units, *one.layout.row_shape), offset=None)
        parts = {"offsets": np.full(len(lengths), UNALLOCATED), **parts}
        index = None if index_of is None else index_of(chunks)
        joined = Parts(rows, chunks, layout_of=layout_of, **parts)
        key = one.file_key if joined.descriptors is None else None
        return cls(one.path, whole, one.byte_source, index, joined, key)

    @cached_property
    def grid(self) -> ChunkGrid:
        return ChunkGrid.of(self.layout)

    @cached_property
    def row_bytes(self) -> int:
        return self.layout.row_bytes

    @cached_property
    def chunk_rows(self) -> int:
        return self.layout.chunk_rows

    @cached_property
    def chunk_bytes(self) -> int:
        """Bytes of a decoded chunk."""
        return math.prod(self.grid.chunk_shape) * self.layout.stored_dtype.itemsize

    @cached_property
    def decoder(self) -> ChunkDecoder:
        return ChunkDecoder(self.layout.pipeline, self.chunk_bytes, decode_by_library)

    @cached_property
    def pipeline(self) -> int:
        """The row of its pipeline in the table of the compiled loop."""
        return pipeline_number(self.layout.pipeline)

    @cached_property
    def file(self) -> int:
        """The descriptor of the file."""
        return NO_DESCRIPTOR if self.byte_source.descriptor is None else self.byte_source.descriptor

    @property
    def nbytes(self) -> int:
        """Bytes of the chunk index."""
        return 0 if self.index is None else self.index.nbytes

    @cached_property
    def is_unwritten(self) -> bool:
        """Whether nothing was ever written, so that all values are the fill value."""
        return self.index is None and self.layout.offset is None and self.parts is None

    def stored(self, numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return for each chunk whether it was written; and of those that were, the numbers, and jobs that read them.

        The jobs have no destination. Of chunks to which no filter was applied, they are `RAW`.

        Raises
        ------
        CorruptChunkError
            If a chunk to which no filter was applied has another size than its values.
        """
        assert self.index is not None
        offsets, sizes, masks = self.index.locate(numbers)
        written = offsets != UNALLOCATED
        if not written.all():
            numbers, offsets, sizes, masks = numbers[written], offsets[written], sizes[written], masks[written]
        raw = (masks & self.decoder.all_skipped) == self.decoder.all_skipped
        for at in (raw & (sizes != self.chunk_bytes)).nonzero()[0].tolist():
            # Other libraries store no more of the last chunk than its rows, and no more is copied.
            if not self.least_bytes(number := int(numbers[at])) <= sizes[at] < self.chunk_bytes:
                reason = f"expected {self.chunk_bytes} bytes stored without filters, found {sizes[at]}"
                raise self.corrupt(number, reason)
        jobs = np.zeros((len(Field), len(numbers)), np.int64)
        jobs[Field.FILE] = self.file
        if self.parts is not None and self.parts.descriptors is not None:
            jobs[Field.FILE] = self.parts.descriptors[self.parts.chunks.part_of(numbers)]
        jobs[Field.OFFSET], jobs[Field.SIZE], jobs[Field.MASK] = offsets, sizes, masks
        jobs[Field.PIPELINE], jobs[Field.DECODED] = np.where(raw, RAW, self.pipeline), self.chunk_bytes
        return written, numbers, jobs

    def table(
        self,
        jobs: np.ndarray,
        pieces: np.ndarray,
        out: np.ndarray,
        numbers: np.ndarray | int,
        boxes: np.ndarray = NO_BOXES,
    ) -> JobTable:
        """Return a table of jobs; job i is of chunk ``numbers[i]``, or copies what is stored as it is, for -1."""
        files = {} if self.parts is None else self.parts.byte_sources
        origin = Origin(self.byte_source, self.decoder, self.corrupt, self.least_bytes, files, self.file_key)
        chunks = np.zeros((2, jobs.shape[1]), np.int64)
        chunks[1] = numbers
        return JobTable(jobs, pieces, boxes, chunks, [origin], [out])

    def least_bytes(self, number: int) -> int:
        """Return how many bytes of a chunk hold its rows."""
        _, layout, number = self._at(number)
        grid = ChunkGrid.of(layout)
        rows = min(layout.num_rows - grid.first_row(number), grid.chunk_rows)
        return rows * (self.chunk_bytes // grid.chunk_rows)

    def corrupt(self, number: int, reason: str) -> CorruptChunkError:
        """Return the error for a damaged chunk."""
        assert self.index is not None
        offsets, sizes, _ = self.index.locate(np.array([number]))
        return corrupt_chunk(*self._at(number), int(offsets[0]), int(sizes[0]), reason)

    def _at(self, number: int) -> tuple[str, ColumnLayout, int]:
        """Return the file and the array that have a chunk, and its number there."""
        if (parts := self.parts) is None:
            return self.path, self.layout, number
        part, own = map(int, parts.chunks.local(number))
        return *parts.layout_of(part), own


class RawFiles(ByteSource):
    """The bytes of the values of a dataset: byte 0 is the first one of its first file."""

    size = 0

    def __init__(self, layout: ColumnLayout, dataset: h5py.Dataset) -> None:
        self.path = layout.path
        self._where = layout.where
        self._states = dict(layout.sources)
        self._parts: list[tuple[str, int, int, int]] = []
        for name, offset, count in dataset.external:
            self._parts.append((os.fsdecode(name), int(offset), self.size, self.size + int(count)))
            self.size += int(count)

    def read_into(self, offset: int, buffer: Buffer) -> None:
        """Fill `buffer` with the bytes that begin at `offset`."""
        buffer = memoryview(buffer)
        for path, start, begin, end in self._parts:
            low, high = max(offset, begin), min(offset + len(buffer), end)
            if low < high:
                self._opened(path).read_into(start + low - begin, buffer[low - offset : high - offset])

    def identity(self) -> FileIdentity:
        """Return the state of the first file."""
        return self._opened(self._parts[0][0]).identity()

    def _opened(self, path: str) -> LocalFile:
        """Open a file; raise unless it is the one that may be read: its name may lead to another one by now."""
        file = LocalFile.open(path)
        check_same(f"{self._where} leads to {path}", self._states.get(path), file.identity(), leads=True)
        return file


def joined_indexes(indexes: Sequence[ChunkIndex], first_numbers: np.ndarray) -> ChunkIndex:
    """Return the chunks of arrays as those of one; the chunks of array i are numbered from ``first_numbers[i]``."""
    numbers = [index.numbers + first for index, first in zip(indexes, first_numbers.tolist(), strict=False)]
    rest = zip(*((index.offsets, index.sizes, index.masks) for index in indexes), strict=True)
    return ChunkIndex(np.concatenate(numbers), *map(np.concatenate, rest))


def cut_between_chunks(request: Request, at_once: int, chunks: np.ndarray | None) -> Iterator[Request]:
    """Yield parts of about `at_once` rows of a list; no chunk is in two of them, if those of its rows are given."""
    edges = np.arange(at_once, len(request), at_once)
    if chunks is not None:
        cuts = np.flatnonzero(chunks[1:] != chunks[:-1]) + 1
        at = np.searchsorted(cuts, edges)
        edges = np.unique(cuts[at[at < len(cuts)]])
    for start, stop in itertools.pairwise([0, *edges.tolist(), len(request)]):
        yield request.select(slice(start, stop))
