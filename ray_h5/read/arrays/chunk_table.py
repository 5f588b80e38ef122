"""Where the stored bytes of arrays are: the chunks of one array, or of many that follow each other, of any files."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np

from ray_h5.manifest.chunk_index import UNALLOCATED, ChunkGrid, ChunkIndex
from ray_h5.manifest.layout import ColumnLayout
from ray_h5.manifest.partition import Partition
from ray_h5.manifest.row_requests import Request, runs_between
from ray_h5.per_process import cached_property
from ray_h5.read.native.job_table import NO_DESCRIPTOR
from ray_h5.storage.byte_source import ByteSource

ArrayOf: TypeAlias = "Callable[[int], tuple[str, ColumnLayout]]"
"""Returns the file and the layout of an array, given its number."""

ListChunks: TypeAlias = "Callable[[np.ndarray], Sequence[ChunkIndex]]"
"""Returns the chunks of each of some arrays, given their numbers."""


@dataclass(frozen=True, eq=False)
class ChunkTable:
    """The chunks of arrays that follow each other as one: datasets of groups, sources of a stack, a column of files.

    A dataset is a table of one array. The rows of several, and the numbers of their chunks, are those of one after the
    other. Each array begins with a chunk, so the last chunk of the one before may have rows that are of no array: three
    arrays of 5, 2 and 3 rows, in chunks of 2 rows, of which the second is in another file::

        array   0             1       2
        row   | 0 1 2 3 4 _ | 6 7 | 8 9 10 _ |      rows     0 6 8 12
        chunk | 0   1   2   | 3   | 4   5    |      chunks   0 3 4 6
        file    0             1       0             file_of  0 1 0

    A contiguous array is one chunk, however many rows it has: of contiguous arrays, the second would be rows 5 and 6,
    and chunk 1.

    Attributes
    ----------
    rows : Partition
        The rows of each array.
    chunks : Partition
        The numbers of the chunks of each.
    files : tuple of ByteSource
        The files.
    index : ChunkIndex, optional
        The chunks of all arrays; None if they are listed where they are needed.
    list_chunks : callable, optional
        Lists them, numbered as in each array.
    file_of : numpy.ndarray, optional
        int64: the number of the file of each array; None if all are in the first.
    array_of : callable, optional
        Names one of several arrays, for messages.
    listed : dict of int to ChunkIndex
        The chunks that were listed, by the number of the array.
    """

    rows: Partition
    chunks: Partition
    files: tuple[ByteSource, ...]
    index: ChunkIndex | None = None
    list_chunks: ListChunks | None = None
    file_of: np.ndarray | None = None
    array_of: ArrayOf | None = None
    listed: dict[int, ChunkIndex] = field(default_factory=dict)

    @classmethod
    def one(cls, layout: ColumnLayout, file: ByteSource, index: ChunkIndex | None = None) -> ChunkTable:
        """Return the chunks of a dataset; `index` has those of a chunked one."""
        rows = layout.num_rows
        if index is not None:
            return cls(*partitions(layout, np.array([rows])), (file,), index)
        # Files are opened by the thousand: what all have is made once.
        places = np.array([[UNALLOCATED if layout.offset is None else layout.offset], [rows * layout.row_bytes]])
        index = ChunkIndex(_ONE.numbers, places[0], places[1], _ONE.masks)
        return cls(Partition(np.array([0, rows])), _ONE_CHUNK, (file,), index)

    @classmethod
    def joined(cls, layout: ColumnLayout, tables: Sequence[ChunkTable], array_of: ArrayOf) -> ChunkTable:
        """Return several datasets as one; they are stored as `layout` says, but for their lengths."""
        rows, chunks = partitions(layout, np.array([table.rows.num_units for table in tables]))
        index = joined_indexes([table.index for table in tables if table.index is not None], chunks.firsts)
        files = list({id(file): file for table in tables for file in table.files}.values())
        number = {id(file): number for number, file in enumerate(files)}
        file_of = np.array([number[id(table.files[0])] for table in tables])
        return cls(rows, chunks, tuple(files), index, None, file_of if len(files) > 1 else None, array_of)

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def nbytes(self) -> int:
        """Bytes of the chunks; of those that are listed, whoever lists them counts them."""
        return 0 if self.index is None else self.index.nbytes

    @property
    def descriptor(self) -> int:
        """The descriptor of the first file."""
        return NO_DESCRIPTOR if (found := self.files[0].descriptor) is None else found

    @cached_property
    def by_descriptor(self) -> dict[int, ByteSource]:
        """Several files, which all have a descriptor, by these; of one file, nothing."""
        return {} if len(self.files) == 1 else {file.descriptor or 0: file for file in self.files}

    def descriptors_of(self, numbers: np.ndarray) -> np.ndarray | int:
        """Return the descriptors of files, given their numbers; one if there is one file."""
        return self.descriptor if len(self.files) == 1 else self._descriptors[numbers]

    @cached_property
    def _descriptors(self) -> np.ndarray:
        return np.array([*self.by_descriptor], np.int64)

    def files_of(self, arrays: np.ndarray) -> np.ndarray | int:
        """Return the number of the file of each of some arrays; 0 if there is one file."""
        return 0 if self.file_of is None else self.file_of[arrays]

    def cut(self, runs: Request) -> tuple[Request, np.ndarray | None]:
        """Return the same rows as runs that are each in one array, and its number; None if there is one array."""
        return (runs, None) if len(self) == 1 else self.rows.cut(runs)

    def list_now(self, arrays: np.ndarray) -> None:
        """List the chunks of arrays, given their numbers, ascending: their file may be closed later."""
        if self.index is None and self.list_chunks is not None:
            missing = [number for number in _once(arrays).tolist() if number not in self.listed]
            if missing:
                self.listed.update(zip(missing, self.list_chunks(np.array(missing)), strict=True))

    def locate(self, numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return offsets, sizes and masks of chunks, given their numbers, ascending; as `ChunkIndex.locate`."""
        if self.index is not None:
            return self.index.locate(numbers)
        arrays = _once(self.chunks.part_of(numbers))
        self.list_now(arrays)
        indexes = [self.listed[number] for number in arrays.tolist()]
        return joined_indexes(indexes, self.chunks.starts[arrays]).locate(numbers)

    def are_written(self, arrays: np.ndarray) -> np.ndarray:
        """Return whether each of some contiguous arrays was ever written."""
        assert self.index is not None
        return self.index.offsets[arrays] != UNALLOCATED

    def begins(self, arrays: np.ndarray, row_bytes: int) -> np.ndarray:
        """Return where row 0 would be in the files of contiguous arrays, if all rows before theirs were before them."""
        assert self.index is not None
        return self.index.offsets[arrays] - self.rows.starts[arrays] * row_bytes


def _once(ascending: np.ndarray) -> np.ndarray:
    """Return each of some numbers once."""
    return ascending[runs_between(ascending[1:] != ascending[:-1])[0]] if len(ascending) else ascending


def partitions(layout: ColumnLayout, lengths: np.ndarray) -> tuple[Partition, Partition]:
    """Return the rows and the chunks of arrays of these lengths, which are stored as `layout` says."""
    if layout.chunk_shape is None:
        return Partition.of(lengths), Partition(np.arange(len(lengths) + 1))
    grid = ChunkGrid.of(layout)
    along = -(-lengths // grid.chunk_rows)
    return Partition.of(along * grid.chunk_rows), Partition.of(along * grid.per_row)


def contiguous(offsets: np.ndarray, sizes: np.ndarray) -> ChunkIndex:
    """Return contiguous arrays as chunks: where each begins, or `UNALLOCATED`, and its bytes."""
    return ChunkIndex(np.arange(len(offsets)), offsets, sizes, np.zeros(len(offsets), np.uint32))


def joined_indexes(indexes: Sequence[ChunkIndex], first_numbers: np.ndarray) -> ChunkIndex:
    """Return the chunks of arrays as those of one; the chunks of array i are numbered from ``first_numbers[i]``."""
    if not indexes:
        return contiguous(nothing := np.empty(0, np.int64), nothing)
    numbers = [index.numbers + first for index, first in zip(indexes, first_numbers.tolist(), strict=False)]
    rest = zip(*((index.offsets, index.sizes, index.masks) for index in indexes), strict=True)
    return ChunkIndex(np.concatenate(numbers), *map(np.concatenate, rest))


_ONE_CHUNK = Partition(np.arange(2))
_ONE = contiguous(np.zeros(1, np.int64), np.zeros(1, np.int64))
