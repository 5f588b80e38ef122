"""The chunk index: where the chunks of a column are. It is built once for a file and column, and checked."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from ray_h5.content_equality import ComparedByContent
from ray_h5.errors import CorruptChunkError
from ray_h5.manifest.layout import ColumnLayout
from ray_h5.manifest.partition import Partition
from ray_h5.manifest.row_requests import units_of

MAX_CHUNK_BYTES = 1 << 32
"""HDF5's own limit for a chunk; a header with a larger one is damaged."""

UNALLOCATED = -1
"""Offset of a chunk, or of a contiguous dataset, that was never written."""


@dataclass(frozen=True, slots=True)
class ChunkGrid:
    """The chunks of a column as a grid, numbered in C order.

    Attributes
    ----------
    shape : tuple of int
        Shape of the column.
    chunk_shape : tuple of int
        Shape of a chunk.
    counts : tuple of int
        Chunks along each axis.
    per_row : int
        Number of chunks that contain a part of one row.
    """

    shape: tuple[int, ...]
    chunk_shape: tuple[int, ...]
    counts: tuple[int, ...] = field(init=False, repr=False, compare=False)
    per_row: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        # Computed once: they are needed for each chunk that is decoded.
        counts = tuple(-(-n // c) if c else 0 for n, c in zip(self.shape, self.chunk_shape, strict=True))
        object.__setattr__(self, "counts", counts)
        object.__setattr__(self, "per_row", math.prod(counts[1:]))

    @classmethod
    def of(cls, layout: ColumnLayout) -> ChunkGrid:
        """Return the grid of a column. A column that is not chunked has one chunk."""
        chunk_shape = layout.chunk_shape or layout.shape
        # An array type adds axes to the rows. Chunks do not have these axes.
        return cls(layout.shape[: len(chunk_shape)], chunk_shape)

    @property
    def chunk_rows(self) -> int:
        """Rows of a chunk; all rows of a column that is not chunked."""
        return self.chunk_shape[0]

    def first_row(self, number: int) -> int:
        """Return the first row of chunk `number`."""
        return number // self.per_row * self.chunk_rows

    def corners(self, numbers: np.ndarray) -> list[tuple[int, ...]]:
        """Return the first index of each chunk along each axis."""
        cells = np.unravel_index(numbers, self.counts)
        axes = [(cell * size).tolist() for cell, size in zip(cells, self.chunk_shape, strict=True)]
        return list(zip(*axes, strict=True))

    def sticks_out(self, numbers: np.ndarray) -> np.ndarray:
        """Return for each chunk whether it extends past the end of an axis."""
        is_partial = np.zeros(len(numbers), bool)
        cells = np.unravel_index(numbers, self.counts)
        for cell, size, length in zip(cells, self.chunk_shape, self.shape, strict=True):
            is_partial |= (cell + 1) * size > length
        return is_partial


@dataclass(frozen=True, slots=True, eq=False)
class ChunkIndex(ComparedByContent):
    """The allocated chunks of a column, as a struct of arrays sorted by chunk number.

    Attributes
    ----------
    numbers, offsets, sizes : numpy.ndarray
        int64: number in the grid, place in the file in bytes, stored size in bytes.
    masks : numpy.ndarray
        uint32 filter masks. Partial chunks may be unfiltered although their mask in the file is 0: all bits are set
        here.
    """

    numbers: np.ndarray
    offsets: np.ndarray
    sizes: np.ndarray
    masks: np.ndarray

    @property
    def nbytes(self) -> int:
        """Bytes in memory."""
        return sum(array.nbytes for array in (self.numbers, self.offsets, self.sizes, self.masks))

    def locate(self, numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return offsets, sizes and masks of chunks; the offset of a missing chunk is `UNALLOCATED`."""
        if not len(self.numbers):  # searchsorted would return positions past the end
            nothing = np.zeros(len(numbers), np.int64)
            return nothing + UNALLOCATED, nothing, nothing.astype(np.uint32)
        last = len(self.numbers) - 1
        # Mostly all chunks are there: then a number is its place.
        at = np.minimum(numbers, last) if self.numbers[last] == last else np.searchsorted(self.numbers, numbers)
        at[at > last] = 0
        offsets = np.where(self.numbers[at] == numbers, self.offsets[at], UNALLOCATED)
        return offsets, self.sizes[at], self.masks[at]

    def renumbered(self, of_arrays: Partition, arrays: np.ndarray) -> ChunkIndex:
        """Return the chunks of some arrays, numbered from 0 on, given the numbers here of the chunks of all arrays."""
        if len(arrays) == len(of_arrays):
            return self
        firsts, stops = (np.searchsorted(self.numbers, of_arrays.starts[some]) for some in (arrays, arrays + 1))
        at, shift = units_of(firsts, stops - firsts), of_arrays.starts[arrays]
        shift = shift - Partition.of(of_arrays.lengths_of(arrays)).firsts
        numbers = self.numbers[at] - np.repeat(shift, stops - firsts)
        return ChunkIndex(numbers, self.offsets[at], self.sizes[at], self.masks[at])


def corrupt_chunk(
    path: str, layout: ColumnLayout, number: int, offset: int | None, size: int, reason: str
) -> CorruptChunkError:
    """Return the error for a damaged chunk: which one, its place if that is known, and the reason."""
    grid = ChunkGrid.of(layout)
    first = grid.first_row(number)
    last = min(first + grid.chunk_rows, layout.num_rows) - 1
    at = "" if offset is None else f", bytes {offset} to {offset + size - 1} of the file"
    return CorruptChunkError(
        f"{path}: column {layout.name!r}, chunk {number} (rows {first} to {last}{at}): {reason}. The file is damaged "
        "there: restore it from a copy."
    )
