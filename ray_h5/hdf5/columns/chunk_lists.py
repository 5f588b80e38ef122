"""Chunk indexes from libhdf5: where the chunks of a dataset are, checked."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from dataclasses import dataclass, replace

import h5py
import numpy as np

from ray_h5.errors import CorruptFileError
from ray_h5.hdf5.checks.chunk_tree import wrong_tree
from ray_h5.manifest.chunk_index import MAX_CHUNK_BYTES, ChunkGrid, ChunkIndex
from ray_h5.manifest.layout import ColumnLayout

_LOOKED_AT = 1 << 12
"""From this many chunks on, their bytes are added up from time to time: a damaged index may list them without end."""

_MAX_UNWRITTEN = 1 << 24
"""Chunks that were never written: an index of a few bytes can list any number of them."""


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
    where = f"{path}: column {layout.name!r}"
    found = _listed(dataset, where, file_bytes)
    check = _Checks(where, grid, file_bytes())
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
    where = f"{path}: column {layout.name!r}"
    found = _listed(dataset, where, file_bytes)
    check = _Checks(where, ChunkGrid.of(layout), file_bytes())
    check.chunk_bytes(layout)
    check.extents(found)


def _listed(dataset: h5py.Dataset, where: str, file_bytes: Callable[[], int]) -> list[h5py.h5d.StoreInfo]:
    """Return the chunks that libhdf5 lists, without those that were never written."""
    if reason := wrong_tree(dataset):
        raise damaged_index(where, reason)
    found: list[h5py.h5d.StoreInfo] = []
    unwritten, look_at = 0, _LOOKED_AT

    def take(chunk: h5py.h5d.StoreInfo) -> object:
        nonlocal unwritten, look_at
        if chunk.byte_offset is None:
            unwritten += 1
            return True if unwritten > _MAX_UNWRITTEN else None  # ends the listing
        found.append(chunk)
        if len(found) < look_at:
            return None
        look_at *= 2
        return True if sum(max(1, chunk.size) for chunk in found) > file_bytes() else None

    if dataset.id.chunk_iter(take) is not None:
        unwritten_ones = f"more than {_MAX_UNWRITTEN} chunks that were never written"
        raise damaged_index(
            where, unwritten_ones if unwritten > _MAX_UNWRITTEN else "chunks of more bytes than the file"
        )
    return found


def damaged_index(where: str, found: str) -> CorruptFileError:
    """Return the error for a chunk index that cannot be true."""
    return CorruptFileError(f"{where}: its chunk index is damaged: found {found}")


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
            raise damaged_index(self.where, found)
