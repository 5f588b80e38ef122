"""The chunk index: where the chunks of a column are. It is built once for a file and column, and checked."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import h5py
import numpy as np

from ray_h5.errors import CorruptChunkError, CorruptFileError
from ray_h5.hdf5.layout import ColumnLayout

MAX_CHUNK_BYTES = 1 << 32
"""HDF5's own limit for a chunk; a header with a larger one is damaged."""

UNALLOCATED = -1
"""Offset of a chunk that was never written."""


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

    def numbers(self, along: np.ndarray) -> np.ndarray:
        """Return the numbers of all chunks at positions `along` of the first axis, counted in chunks."""
        return (along[:, None] * self.per_row + np.arange(self.per_row)).reshape(-1)

    def first_row(self, number: int) -> int:
        """Return the first row of chunk `number`."""
        return number // self.per_row * self.chunk_rows

    def corners(self, numbers: np.ndarray) -> list[tuple[int, ...]]:
        """Return the first index of each chunk along each axis."""
        cells = np.unravel_index(numbers, self.counts)
        axes = [(cell * size).tolist() for cell, size in zip(cells, self.chunk_shape, strict=True)]
        return list(zip(*axes, strict=True))

    def slices(self, number: int) -> tuple[slice, ...]:
        """Return the slices of the axes after the first that chunk `number` covers."""
        cells = np.unravel_index(number % self.per_row, self.counts[1:]) if self.counts[1:] else ()
        extents = zip(cells, self.chunk_shape[1:], self.shape[1:], strict=True)
        return tuple(slice(int(i) * c, min((int(i) + 1) * c, n)) for i, c, n in extents)

    def sticks_out(self, numbers: np.ndarray) -> np.ndarray:
        """Return for each chunk whether it extends past the end of an axis."""
        found = np.zeros(len(numbers), bool)
        cells = np.unravel_index(numbers, self.counts)
        for cell, size, length in zip(cells, self.chunk_shape, self.shape, strict=True):
            found |= (cell + 1) * size > length
        return found


@dataclass(frozen=True, slots=True, eq=False)
class ChunkIndex:
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

    def locate(self, numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return offsets, sizes and masks of chunks; the offset of a missing chunk is `UNALLOCATED`."""
        if not len(self.numbers):  # searchsorted would return positions past the end
            nothing = np.zeros(len(numbers), np.int64)
            return nothing + UNALLOCATED, nothing, nothing.astype(np.uint32)
        at = np.searchsorted(self.numbers, numbers)
        at[at == len(self.numbers)] = 0
        offsets = np.where(self.numbers[at] == numbers, self.offsets[at], UNALLOCATED)
        return offsets, self.sizes[at], self.masks[at]

    def find(self, numbers: np.ndarray) -> np.ndarray:
        """Return the positions of chunks in the arrays. Missing chunks are left out."""
        at = np.searchsorted(self.numbers, numbers)
        found = at < len(self.numbers)
        found[found] = self.numbers[at[found]] == numbers[found]
        return at[found]


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


def build_chunk_index(
    dataset: h5py.Dataset, layout: ColumnLayout, path: str, file_bytes: Callable[[], int], swmr: bool = False
) -> ChunkIndex:
    """List the chunks of a chunked column.

    Parameters
    ----------
    dataset : h5py.Dataset
        The open dataset.
    layout : ColumnLayout
        Its column.
    path : str
        The file, for messages.
    file_bytes : callable
        Returns the size of the file. It is called after the chunks were listed: a writer may add to the file.
    swmr : bool
        Whether a writer may have added rows since `layout` was made. Their chunks are left out.

    Raises
    ------
    CorruptFileError
        If the list cannot be true: a chunk is off the grid, listed twice, past the end of the file,
        or overlaps another one.
    """
    grid = ChunkGrid.of(layout)
    found = _listed(dataset)
    check = _Checks(f"{path}: column {layout.name!r}", grid, file_bytes())
    check.chunk_bytes(layout)
    if swmr:
        found = [chunk for chunk in found if all(map(operator.lt, chunk.chunk_offset, grid.shape))]
    index = check.index(found)
    unfiltered = unfiltered_chunks(dataset, layout, index.numbers, index.sizes, index.masks)
    if not unfiltered.any():
        return index
    return replace(index, masks=index.masks | (unfiltered * np.uint32(layout.pipeline.all_skipped)))


def unfiltered_chunks(
    dataset: h5py.Dataset, layout: ColumnLayout, numbers: np.ndarray, sizes: np.ndarray, masks: np.ndarray
) -> np.ndarray:
    """Return for each chunk whether it was left unfiltered because it is partial. Its mask does not say so.

    Parameters
    ----------
    dataset : h5py.Dataset
        The open dataset.
    layout : ColumnLayout
        Its column.
    numbers, sizes, masks : numpy.ndarray
        As in `ChunkIndex`.

    Returns
    -------
    numpy.ndarray
        One bool for each chunk.
    """
    # The last test costs most, so it comes last and only for chunks that may be affected.
    may_be = (sizes == layout.chunk_bytes) & (masks == 0) & bool(layout.pipeline.steps)
    if may_be.any():
        may_be &= ChunkGrid.of(layout).sticks_out(numbers)
    return may_be & (bool(may_be.any()) and _leaves_partial_chunks(dataset, layout.item_bytes))


def _leaves_partial_chunks(dataset: h5py.Dataset, item_bytes: int) -> bool:
    """Return whether the partial chunks of a dataset are unfiltered (H5Pset_chunk_opts). h5py has no call for that.

    Instead, a dataset with the same creation properties is made in memory. Its partial chunk is zeros, and its filter
    is deflate: libhdf5 can only read the chunk if it takes it as unfiltered.
    """
    made, chunk_shape, dtype = dataset.id.get_create_plist(), dataset.chunks, np.dtype(f"V{item_bytes}")
    longest = int(np.argmax(chunk_shape))
    shape = tuple(length - (axis == longest) for axis, length in enumerate(chunk_shape))
    made.remove_filter(h5py.h5z.FILTER_ALL)
    made.set_deflate(1)
    made.set_fill_value(np.zeros((), dtype))  # the one in `made` has another type
    with h5py.File.in_memory(libver="latest") as file:
        space = h5py.h5s.create_simple(shape, (h5py.h5s.UNLIMITED,) * len(shape))
        alike = h5py.h5d.create(file.id, b"x", h5py.h5t.py_create(dtype), space, dcpl=made)
        alike.write_direct_chunk((0,) * len(shape), bytes(math.prod(chunk_shape) * item_bytes))
        space.select_hyperslab((0,) * len(shape), one := (1,) * len(shape))
        try:
            alike.read(h5py.h5s.create_simple(one), space, np.empty(one, dtype))
        except OSError:
            return False  # libhdf5 tried to inflate the zeros
    return True


def check_chunk_list(dataset: h5py.Dataset, layout: ColumnLayout, path: str, file_bytes: Callable[[], int]) -> None:
    """Check sizes and places of chunks that libhdf5 lists under the coordinates of other chunks.

    Parameters and errors as in `build_chunk_index`.
    """
    found = _listed(dataset)
    check = _Checks(f"{path}: column {layout.name!r}", ChunkGrid.of(layout), file_bytes())
    check.chunk_bytes(layout)
    check.extents(found)


def _listed(dataset: h5py.Dataset) -> list[h5py.h5d.StoreInfo]:
    """Return the chunks that libhdf5 lists, without those that were never written."""
    found: list[h5py.h5d.StoreInfo] = []
    dataset.id.chunk_iter(found.append)
    return [chunk for chunk in found if chunk.byte_offset is not None]


@dataclass(frozen=True, slots=True)
class _Checks:
    where: str
    grid: ChunkGrid
    file_bytes: int

    def chunk_bytes(self, layout: ColumnLayout) -> None:
        claimed = layout.chunk_bytes
        self._demand(0 < claimed < MAX_CHUNK_BYTES, f"a chunk of {claimed} bytes (HDF5 allows less than 4 GiB)")

    def index(self, chunks: list[h5py.h5d.StoreInfo]) -> ChunkIndex:
        offsets, sizes = self.extents(chunks)
        numbers = self._numbers([chunk.chunk_offset for chunk in chunks])
        # libhdf5 looks chunks up by a binary search, and does not find one that is out of order.
        self._demand(bool(np.all(np.diff(numbers) > 0)), "a chunk that is listed twice, or out of its order")
        masks = np.array([chunk.filter_mask for chunk in chunks], np.uint32)
        return ChunkIndex(numbers, offsets, sizes, masks)

    def extents(self, chunks: list[h5py.h5d.StoreInfo]) -> tuple[np.ndarray, np.ndarray]:
        """Return offsets and sizes of chunks; raise unless they are in the file and do not overlap."""
        # Python integers until the values are checked: in a damaged file they may not fit into int64.
        last = max(chunks, key=lambda chunk: chunk.byte_offset + chunk.size, default=None)
        if last is not None:
            self._demand(
                last.byte_offset + last.size <= self.file_bytes,
                f"{last.size} bytes at offset {last.byte_offset}, past the file's end at {self.file_bytes}",
            )
        offsets = np.array([chunk.byte_offset for chunk in chunks], np.int64)
        sizes = np.array([chunk.size for chunk in chunks], np.int64)
        self._demand(bool(np.all(sizes > 0)), "a chunk of no bytes")
        self._demand(bool(np.all(sizes < MAX_CHUNK_BYTES)), "a stored chunk of more than 4 GiB")
        # Damaged offsets make chunks overlap. Values would decode, and be those of another chunk.
        by_offset = np.argsort(offsets)
        ends = (offsets + sizes)[by_offset]
        self._demand(bool(np.all(ends[:-1] <= offsets[by_offset][1:])), "two chunks that overlap")
        return offsets, sizes

    def _numbers(self, corners: list[tuple[int, ...]]) -> np.ndarray:
        grid = self.grid
        self._demand(math.prod(grid.counts) < 2**63, "more chunks than can be numbered")
        strange = [corner for corner in corners if len(corner) != len(grid.shape)][:1]
        self._demand(not strange, f"a chunk at {strange}, expected {len(grid.shape)} axes")
        # uint64: HDF5's own coordinates, which int64 may not hold.
        at = np.array(corners, np.uint64).reshape(-1, len(grid.shape))
        size, length = np.array(grid.chunk_shape, np.uint64), np.array(grid.shape, np.uint64)
        off_grid = np.flatnonzero(np.any((at % size != 0) | (at >= length), axis=1))
        if len(off_grid):
            self._demand(False, f"a chunk at {corners[off_grid[0]]}, where no chunk of {grid.chunk_shape} can begin")
        steps = [math.prod(grid.counts[axis + 1 :]) for axis in range(len(grid.counts))]
        return (at // size).astype(np.int64) @ np.array(steps, np.int64)

    def _demand(self, holds: bool, found: str) -> None:
        if not holds:
            raise CorruptFileError(f"{self.where}: its chunk index is damaged: found {found}")
