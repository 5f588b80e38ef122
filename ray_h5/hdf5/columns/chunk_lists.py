"""Chunk indexes: where the chunks of a dataset are, checked."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from typing import TypeAlias

import h5py
import numpy as np

from ray_h5.hdf5.columns.chunk_tree import ListedChunks, damaged_index, layout_of, listed_in_tree
from ray_h5.hdf5.format import EXTENSIBLE_ARRAY
from ray_h5.manifest.chunk_index import MAX_CHUNK_BYTES, ChunkGrid, ChunkIndex
from ray_h5.manifest.layout import ColumnLayout

_LOOKED_AT = 1 << 12
"""From this many chunks on, their bytes are added up from time to time: a damaged index may list them without end."""

_MAX_UNWRITTEN = 1 << 24
"""Chunks that were never written: an index of a few bytes can list any number of them."""


Lister: TypeAlias = Callable[[h5py.Dataset, int, int], ListedChunks | None]
"""Lists the chunks of a dataset; None if it cannot, or they have more bytes, or more were never written, than given."""


def build_chunk_index(
    dataset: h5py.Dataset,
    layout: ColumnLayout,
    path: str,
    file_bytes: Callable[[], int],
    swmr: bool = False,
    lister: Lister | None = None,
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
    lister : callable, optional
        Lists the chunks faster than h5py does.

    Raises
    ------
    CorruptFileError
        If the list cannot be true: a chunk is off the grid, listed twice, past the end of the file,
        or overlaps another one.
    """
    grid = ChunkGrid.of(layout)
    where = f"{path}: column {layout.name!r}"
    listed = _listed(dataset, where, grid, file_bytes, lister)
    limits = dataset.maxshape
    if limits.count(None) == 1 and limits[0] is not None:
        listed = _in_place(listed, dataset, limits.index(None))
    if swmr:
        listed = listed.where(np.all(listed.corners < np.array(grid.shape, np.uint64), axis=1))
    index = checked_index(listed, layout, where, file_bytes())
    if not layout.pipeline.steps or not layout_of(dataset)[0].flags & 1:
        return index
    unfiltered = ChunkGrid.of(layout).sticks_out(index.numbers) & (index.sizes == layout.chunk_bytes)
    return replace(index, masks=index.masks | (unfiltered * np.uint32(layout.pipeline.all_skipped)))


def checked_index(listed: ListedChunks, layout: ColumnLayout, where: str, file_bytes: int) -> ChunkIndex:
    """Return the index of chunks that were listed; errors as in `build_chunk_index`."""

    def demand(holds: object, found: str) -> None:
        if not holds:
            raise damaged_index(where, found)

    claimed = layout.chunk_bytes
    demand(0 < claimed < MAX_CHUNK_BYTES, f"a chunk of {claimed} bytes (HDF5 allows less than 4 GiB)")
    end = np.uint64(file_bytes)
    past = (listed.offsets > end) | (listed.sizes > end - np.minimum(listed.offsets, end))
    for size, offset in zip(listed.sizes[past].tolist(), listed.offsets[past].tolist(), strict=True):
        demand(False, f"{size} bytes at offset {offset}, past the file's end at {file_bytes}")
    offsets, sizes = listed.offsets.astype(np.int64), listed.sizes.astype(np.int64)
    demand((sizes > 0).all(), "a chunk of no bytes")
    demand((sizes < MAX_CHUNK_BYTES).all(), "a stored chunk of more than 4 GiB")
    # Damaged offsets make chunks overlap. Values would decode, and be those of another chunk.
    by_offset = np.argsort(offsets)
    ends = (offsets + sizes)[by_offset]
    demand((ends[:-1] <= offsets[by_offset][1:]).all(), "two chunks that overlap")
    grid, corners = ChunkGrid.of(layout), listed.corners
    axes = len(grid.counts)
    demand(corners.shape[1] == axes, f"chunks of {corners.shape[1]} axes, expected {axes}")
    demand(math.prod(grid.counts) < 2**63, "more chunks than can be numbered")
    chunk_shape, shape = np.array(grid.chunk_shape, np.uint64), np.array(grid.shape, np.uint64)
    off_grid = np.any((corners % chunk_shape != 0) | (corners >= shape), axis=1)
    for corner in corners[off_grid][:1].tolist():
        demand(False, f"a chunk at {tuple(corner)}, where no chunk of {grid.chunk_shape} can begin")
    steps = [math.prod(grid.counts[axis + 1 :]) for axis in range(axes)]
    numbers = (corners // chunk_shape).astype(np.int64) @ np.array(steps, np.int64)
    # libhdf5 looks chunks up by a binary search, and does not find one that is out of order.
    demand((np.diff(numbers) > 0).all(), "a chunk that is listed twice, or out of its order")
    return ChunkIndex(numbers, offsets, sizes, listed.masks.astype(np.uint32))


def _listed(
    dataset: h5py.Dataset, where: str, grid: ChunkGrid, file_bytes: Callable[[], int], lister: Lister | None = None
) -> ListedChunks:
    """Return the chunks that were written, as the file or libhdf5 lists them."""
    if (listed := listed_in_tree(dataset, where)) is not None:
        return listed
    if lister is not None and (fast := lister(dataset, file_bytes(), _MAX_UNWRITTEN)) is not None:
        return fast
    infos: list[h5py.h5d.StoreInfo] = []
    unwritten, look_at = 0, _LOOKED_AT

    def take(chunk: h5py.h5d.StoreInfo) -> object:
        nonlocal unwritten, look_at
        if chunk.byte_offset is None:
            unwritten += 1
            return True if unwritten > _MAX_UNWRITTEN else None  # ends the listing
        infos.append(chunk)
        if len(infos) < look_at:
            return None
        look_at *= 2
        return True if sum(max(1, chunk.size) for chunk in infos) > file_bytes() else None

    if dataset.id.chunk_iter(take) is not None:
        unwritten_ones = f"more than {_MAX_UNWRITTEN} chunks that were never written"
        raise damaged_index(
            where, unwritten_ones if unwritten > _MAX_UNWRITTEN else "chunks of more bytes than the file"
        )
    axes = len(grid.shape)
    if strange := [chunk.chunk_offset for chunk in infos if len(chunk.chunk_offset) != axes][:1]:
        raise damaged_index(where, f"a chunk at {strange[0]}, expected {axes} axes")
    rows = [(*info.chunk_offset, info.filter_mask, info.byte_offset, info.size) for info in infos]
    return ListedChunks.of(np.array(rows, np.uint64).reshape(-1, axes + 3))


def _in_place(chunks: ListedChunks, dataset: h5py.Dataset, axis: int) -> ListedChunks:
    """Return chunks with their own corners, of a dataset of which one axis can grow.

    If one axis can grow and it is not the first, libhdf5 (2.0) keeps the chunks in an array with that axis first, and
    lists them as if it was in the order of the axes.
    """
    if not (layout_of(dataset)[0].index_kind == EXTENSIBLE_ARRAY and _lists_numbers()):
        return chunks
    limits, chunk = dataset.maxshape, np.array(dataset.chunks, np.uint64)
    counts = [1 if limit is None else -(-int(limit) // int(size)) for limit, size in zip(limits, chunk, strict=True)]
    after, others = math.prod(counts[axis + 1 :]), counts[:axis] + counts[axis + 1 :]
    # Axes before the one that grows are listed as 0, and those after it run first.
    listed = (chunks.corners // chunk).astype(np.int64)
    numbers = listed[:, axis] * after
    for at, step in enumerate(counts[axis + 1 :], axis + 1):
        after //= step
        numbers += listed[:, at] * after
    along, inside = np.divmod(numbers, math.prod(others))
    cells = np.insert(np.stack(np.unravel_index(inside, others)), axis, along, axis=0)
    corners = cells.T.astype(np.uint64) * chunk
    return replace(chunks, corners=corners).where(np.lexsort(corners.T[::-1]))


@lru_cache(maxsize=1)
def _lists_numbers() -> bool:
    """Return whether this libhdf5 does so."""
    corners = []
    with h5py.File.in_memory(libver="latest") as file:
        dataset = file.create_dataset("x", data=np.zeros((2, 2), "u1"), chunks=(1, 1), maxshape=(2, None))
        dataset.id.chunk_iter(lambda chunk: corners.append(chunk.chunk_offset))
    return (1, 1) not in corners
