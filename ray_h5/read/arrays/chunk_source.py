"""Where the bytes of an array are: what planners look up, and what errors say."""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, replace

import h5py
import numpy as np

from ray_h5.codecs.pipeline import ChunkDecoder
from ray_h5.errors import CorruptChunkError
from ray_h5.manifest.chunk_index import UNALLOCATED, ChunkGrid, corrupt_chunk
from ray_h5.manifest.file_state import check_same
from ray_h5.manifest.layout import ColumnLayout
from ray_h5.manifest.partition import Partition
from ray_h5.manifest.row_requests import Request
from ray_h5.per_process import cached_property
from ray_h5.read.arrays.chunk_table import ChunkTable
from ray_h5.read.library_filters import decode_by_library
from ray_h5.read.native.job_table import NO_BOXES, RAW, Field, JobTable, Origin, pipeline_number
from ray_h5.storage.byte_source import Buffer, ByteSource, FileIdentity
from ray_h5.storage.local import LocalFile


@dataclass(frozen=True, eq=False)
class ChunkSource:
    """An array that is read without libhdf5; it may consist of several arrays, in several files.

    Attributes
    ----------
    path : str
        The file, for messages; of several arrays, the first one.
    layout : ColumnLayout
        The array; its `direct` is true.
    table : ChunkTable
        Where its bytes are.
    file_key : hashable, optional
        Says which file it is, in which state, if decoded chunks may stay in memory.
    """

    path: str
    layout: ColumnLayout
    table: ChunkTable
    file_key: Hashable = None

    @property
    def byte_source(self) -> ByteSource:
        """The bytes of the file; of the first of several."""
        return self.table.files[0]

    @property
    def is_chunked(self) -> bool:
        return self.layout.chunk_shape is not None

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
    def offset(self) -> int:
        """Where the only array, which is contiguous, begins in its file; `UNALLOCATED` for others."""
        index = self.table.index
        return UNALLOCATED if index is None or self.is_chunked or len(self.table) > 1 else int(index.offsets[0])

    @property
    def is_unwritten(self) -> bool:
        """Whether it is one contiguous array that was never written, so that all values are the fill value."""
        return self.offset == UNALLOCATED and not self.is_chunked and len(self.table) == 1

    @classmethod
    def joined(cls, sources: Sequence[ChunkSource]) -> ChunkSource:
        """Return arrays that differ in their files and lengths alone as one."""
        one = sources[0]
        table = ChunkTable.joined(
            one.layout, [source.table for source in sources], lambda array: (sources[array].path, sources[array].layout)
        )
        layout = replace(one.layout, num_rows=table.rows.num_units, offset=None)
        return cls(one.path, layout, table, one.file_key if table.file_of is None else None)

    def over(self, layout: ColumnLayout) -> ChunkSource:
        """Return the same bytes with other axes: a row is several; see `rows_in_order`."""
        times = layout.num_rows // self.layout.num_rows if self.layout.num_rows else 1
        return replace(self, layout=layout, table=replace(self.table, rows=self.table.rows.times(times)))

    def as_row(self) -> ChunkSource:
        """Return the same array as one row of an array with one more axis."""
        layout, chunk = self.layout, self.layout.chunk_shape
        chunk = None if chunk is None else (1, *chunk)
        whole = layout.with_shape((1, *layout.shape), chunk_shape=chunk)
        return replace(self, layout=whole, table=replace(self.table, rows=Partition.of(np.ones(1, np.int64))))

    def begins(self, arrays: np.ndarray | None) -> tuple[np.ndarray | int, np.ndarray | int]:
        """Return of contiguous arrays, given their numbers, the file of each, and where row 0 would be in it.

        That is, if all rows before those of the array were before them in its file. None is the only array.
        """
        if arrays is None:
            return 0, self.offset
        return self.table.files_of(arrays), self.table.begins(arrays, self.row_bytes)

    def stored(self, numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return for each chunk whether it was written; and of those that were, the numbers, and jobs that read them.

        The jobs have no destination, and the numbers of their files; see `in_files`. Of chunks to which no filter was
        applied, they are `RAW`.

        Raises
        ------
        CorruptChunkError
            If a chunk to which no filter was applied has another size than its values.
        """
        offsets, sizes, masks = self.table.locate(numbers)
        written = offsets != UNALLOCATED
        if not written.all():
            numbers, offsets, sizes, masks = numbers[written], offsets[written], sizes[written], masks[written]
        raw = (masks & self.decoder.all_skipped) == self.decoder.all_skipped
        decoded = self.chunk_bytes if self.is_chunked else sizes
        for at in (raw & (sizes != decoded)).nonzero()[0].tolist():
            # Other libraries store no more of the last chunk than its rows, and no more is copied.
            if not self.least_bytes(number := int(numbers[at])) <= sizes[at] < self.chunk_bytes:
                reason = f"expected {self.chunk_bytes} bytes stored without filters, found {sizes[at]}"
                raise self.corrupt(number, reason)
        jobs = np.zeros((len(Field), len(numbers)), np.int64)
        if self.table.file_of is not None:
            jobs[Field.FILE] = self.table.files_of(self.table.chunks.part_of(numbers))
        jobs[Field.OFFSET], jobs[Field.SIZE], jobs[Field.MASK] = offsets, sizes, masks
        jobs[Field.PIPELINE], jobs[Field.DECODED] = np.where(raw, RAW, self.pipeline), decoded
        return written, numbers, jobs

    def in_files(self, jobs: np.ndarray) -> np.ndarray:
        """Return jobs with the descriptors of their files in place of the numbers."""
        jobs[Field.FILE] = self.table.descriptors_of(jobs[Field.FILE])
        return jobs

    def job_table(
        self,
        jobs: np.ndarray,
        pieces: np.ndarray,
        out: np.ndarray,
        numbers: np.ndarray | int,
        boxes: np.ndarray = NO_BOXES,
    ) -> JobTable:
        """Return a table of jobs; job i is of chunk ``numbers[i]``, or copies what is stored as it is, for -1.

        The jobs have the numbers of their files.
        """
        table = self.table
        origin = Origin(
            table.files[0], self.decoder, self.corrupt, self.least_bytes, table.by_descriptor, self.file_key
        )
        chunks = np.zeros((2, jobs.shape[1]), np.int64)
        chunks[1] = numbers
        return JobTable(self.in_files(jobs), pieces, boxes, chunks, [origin], [out])

    def least_bytes(self, number: int) -> int:
        """Return how many bytes of a chunk hold its rows."""
        _, layout, number = self._at(number)
        grid = ChunkGrid.of(layout)
        rows = min(layout.num_rows - grid.first_row(number), grid.chunk_rows)
        return rows * (self.chunk_bytes // grid.chunk_rows)

    def corrupt(self, number: int, reason: str) -> CorruptChunkError:
        """Return the error for a damaged chunk."""
        offsets, sizes, _ = self.table.locate(np.array([number]))
        return corrupt_chunk(*self._at(number), int(offsets[0]), int(sizes[0]), reason)

    def where(self, row: int) -> str:
        """Return which row of which array it is, for messages."""
        path, layout = self.path, self.layout
        if self.table.array_of is not None:
            array, row = map(int, self.table.rows.local(row))
            path, layout = self.table.array_of(array)
        return f"{path}: column {layout.name!r}, row {row}"

    def _at(self, number: int) -> tuple[str, ColumnLayout, int]:
        """Return the file and the array that have a chunk, and its number there."""
        if self.table.array_of is None:
            return self.path, self.layout, number
        array, own = map(int, self.table.chunks.local(number))
        return *self.table.array_of(array), own


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


def cut_between_chunks(request: Request, at_once: int, chunks: np.ndarray | None) -> Iterator[Request]:
    """Yield parts of about `at_once` rows of a list; no chunk is in two of them, if those of its rows are given."""
    edges = np.arange(at_once, len(request), at_once)
    if chunks is not None:
        cuts = np.flatnonzero(chunks[1:] != chunks[:-1]) + 1
        at = np.searchsorted(cuts, edges)
        edges = np.unique(cuts[at[at < len(cuts)]])
    for start, stop in itertools.pairwise([0, *edges.tolist(), len(request)]):
        yield request.select(slice(start, stop))
