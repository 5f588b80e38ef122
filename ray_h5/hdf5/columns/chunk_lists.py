"""How the values of a dataset are stored, as far as libhdf5 does not say it; and where its chunks are, checked."""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from typing import TypeAlias

import h5py
import numpy as np

from ray_h5.errors import CorruptFileError
from ray_h5.hdf5.format.file_bytes import FileBytes, ReadBytes, Widths, address_of, filename_of, gather
from ray_h5.hdf5.format.object_headers import (
    CHUNKED,
    EXTENSIBLE_ARRAY,
    USUAL_ENTRIES,
    FormatError,
    Layout,
    Message,
    MessageKind,
    data_layout,
    object_header,
    tree_node,
)
from ray_h5.manifest.chunk_index import MAX_CHUNK_BYTES, ChunkGrid, ChunkIndex
from ray_h5.manifest.layout import ColumnLayout

_LOOKED_AT = 1 << 12
"""From this many chunks on, their bytes are added up from time to time: a damaged index may list them without end."""

_MAX_UNWRITTEN = 1 << 24
"""Chunks that were never written: an index of a few bytes can list any number of them."""

_Cell: TypeAlias = tuple[int, ...]


def layout_of(dataset: h5py.Dataset) -> tuple[Layout, Message]:
    """Return how the values of a dataset are stored, and the message that says it."""
    read, _, widths = FileBytes.of(dataset.file.id)
    try:
        _, messages = object_header(read, address_of(dataset.id)[1], widths)
        message = next((stored for stored in messages if stored[0] == MessageKind.LAYOUT), (0, 0, b"", 0))
        return data_layout(message[2], widths), message
    except FormatError as exc:
        raise CorruptFileError(
            f"{filename_of(dataset.file)}: the header of {dataset.name!r} is damaged: {exc}. Restore the file from a "
            "copy."
        ) from None


_MASK, _OFFSET, _SIZE = -3, -2, -1
"""Columns of chunks as a file lists them, after those of the corner: uint64 of shape (chunks, axes + 3).

Nothing is checked yet, so that values may not fit into int64.
"""

Lister: TypeAlias = Callable[[h5py.Dataset, int, int], np.ndarray | None]
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
    grid, where, (stored, _) = ChunkGrid.of(layout), f"{path}: column {layout.name!r}", layout_of(dataset)
    listed = listed_in_tree(dataset, where, stored)
    if listed is None and lister is not None:
        listed = lister(dataset, file_bytes(), _MAX_UNWRITTEN)
    if listed is None:
        listed = _listed_by_library(dataset, where, len(grid.shape), file_bytes)
    limits = dataset.maxshape
    if limits.count(None) == 1 and limits[0] is not None and stored.index_kind == EXTENSIBLE_ARRAY and _lists_numbers():
        listed = _in_place(listed, dataset, limits.index(None))
    if swmr:
        listed = listed[np.all(listed[:, :_MASK] < np.array(grid.shape, np.uint64), axis=1)]
    index = checked_index(listed, layout, where, file_bytes())
    if not layout.pipeline.steps or not stored.flags & 1:
        return index
    unfiltered = grid.sticks_out(index.numbers) & (index.sizes == layout.chunk_bytes)
    return replace(index, masks=index.masks | (unfiltered * np.uint32(layout.pipeline.all_skipped)))


def checked_index(listed: np.ndarray, layout: ColumnLayout, where: str, file_bytes: int) -> ChunkIndex:
    """Return the index of chunks that were listed; errors as in `build_chunk_index`."""

    def demand(holds: object, found: str) -> None:
        if not holds:
            raise _damaged_index(where, found)

    claimed = layout.chunk_bytes
    demand(0 < claimed < MAX_CHUNK_BYTES, f"a chunk of {claimed} bytes (HDF5 allows less than 4 GiB)")
    end, stored_at, stored_sizes = np.uint64(file_bytes), listed[:, _OFFSET], listed[:, _SIZE]
    past = (stored_at > end) | (stored_sizes > end - np.minimum(stored_at, end))
    for offset, size in listed[past, _OFFSET:].tolist():
        demand(False, f"{size} bytes at offset {offset}, past the file's end at {file_bytes}")
    offsets, sizes = stored_at.astype(np.int64), stored_sizes.astype(np.int64)
    demand((sizes > 0).all(), "a chunk of no bytes")
    demand((sizes < MAX_CHUNK_BYTES).all(), "a stored chunk of more than 4 GiB")
    # Damaged offsets make chunks overlap. Values would decode, and be those of another chunk.
    by_offset = np.argsort(offsets)
    ends = (offsets + sizes)[by_offset]
    demand((ends[:-1] <= offsets[by_offset][1:]).all(), "two chunks that overlap")
    grid, corners = ChunkGrid.of(layout), listed[:, :_MASK]
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
    return ChunkIndex(numbers, offsets, sizes, listed[:, _MASK].astype(np.uint32))


def _damaged_index(where: str, found: str) -> CorruptFileError:
    return CorruptFileError(f"{where}: its chunk index is damaged: found {found}")


# Listed by the tree of the file -------------------------------------------------------------


def listed_in_tree(dataset: h5py.Dataset, where: str, stored: Layout | None = None) -> np.ndarray | None:
    """List the chunks of a dataset; None if its chunk index is of another kind: those have checksums.

    Raises
    ------
    CorruptFileError
        If libhdf5 would walk through the index without end, or not find chunks by their place: h5py returns fill
        values for their rows. `where` names the dataset.
    """
    stored = layout_of(dataset)[0] if stored is None else stored
    if stored.version > 3 or stored.kind != CHUNKED:
        return None
    read, end, widths = FileBytes.of(dataset.file.id)
    try:
        chunks = chunks_in_tree(read, end, widths, stored)
    except FormatError as exc:
        raise _damaged_index(where, str(exc)) from None
    # Offsets count the user block. A damaged address must not become one in the file.
    chunks[:, _OFFSET] += np.minimum(np.uint64(widths.user_block), ~chunks[:, _OFFSET])
    return chunks


def chunks_in_tree(read: ReadBytes, end: int, widths: Widths, layout: Layout, most: int = 1 << 16) -> np.ndarray:
    """List the chunks of an index of version 1; raise `FormatError` if it is damaged. Its nodes have no checksum.

    libhdf5 (2.0) lists every node as often as others lead to it: four nodes of 64 entries, each of which leads to one
    node, are 16 million. And it lists chunks that it does not find by their place.

    Parameters
    ----------
    read : callable
        Reads bytes of the file by their address.
    end : int
        Where the file ends.
    widths : Widths
        Of the file.
    layout : Layout
        Of the dataset.
    most : int
        Children of a node.
    """
    chunk_shape, width = np.array(layout.chunk_shape, np.uint64), widths.address
    if not chunk_shape.all():
        raise FormatError("chunks of no values")
    entry = np.dtype([("size", "<u4"), ("mask", "<u4"), ("at", "<u8", chunk_shape.shape), ("child", f"<u{width}")])
    leaves, seen, height, room = [np.empty(0, entry)], {layout.address}, -1, end

    def visit(at: int) -> tuple[int, np.ndarray]:
        nonlocal room
        node = _node(read, at, end, entry)
        room -= node[1].nbytes
        if room < 0 or len(node[1]) > most + 1:  # damaged nodes may lie in each other
            raise FormatError(f"too many chunks in the node at byte {at}")
        return node

    # The nodes of a level, and the cells that libhdf5 looks for below each: from one on, and below another one.
    level: dict[int, tuple[_Cell | None, _Cell | None]]
    level = {} if layout.address is None else {layout.address: (None, None)}
    while level:
        nodes = gather(visit, level)  # of a remote file, those of a level are missed together
        height = nodes[0][0] if height < 0 else height - 1
        parents, level = level, {}
        for (at, (low, high)), (node_height, keys) in zip(parents.items(), nodes, strict=True):
            if node_height != height:
                raise FormatError(f"no node at byte {at}, to which another one leads")
            cells: list[_Cell] = list(map(tuple, (keys["at"] // chunk_shape).tolist()))
            if (keys["at"] % chunk_shape).any() or any(map(operator.ge, cells, cells[1:])):
                raise FormatError(
                    f"a chunk in the node at byte {at} that is off the grid, listed twice, or out of its order"
                )
            if not height:
                # libhdf5 looks for 0 along the axis of the bytes of a value.
                lost = keys["at"][:-1, -1].any() or (low is not None and cells[0] < low)
                if len(keys) > 1 and (lost or (high is not None and cells[-2] >= high)):
                    raise FormatError(f"chunks in the node at byte {at} that libhdf5 lists and does not find")
                leaves.append(keys[:-1])
                continue
            for child, (begin, stop) in zip(keys["child"].tolist(), itertools.pairwise(cells), strict=False):
                if child in seen:
                    raise FormatError(f"two ways to the node at byte {child}")
                seen.add(child)
                level[child] = begin if low is None else max(low, begin), stop if high is None else min(high, stop)
    chunks = np.concatenate(leaves)
    return np.column_stack([chunks["at"][:, :-1], chunks["mask"], chunks["child"], chunks["size"]]).astype(np.uint64)


def _node(read: ReadBytes, at: int, end: int, entry: np.dtype) -> tuple[int, np.ndarray]:
    """Return the height of a node, and the keys of its children, with the key after the last one."""
    width = entry["child"].itemsize
    begin = 8 + 2 * width
    # All at once, as libhdf5 reads it: of a remote file, what is missed is a request.
    data = read(at, begin + (USUAL_ENTRIES + 1) * entry.itemsize - width)
    if data[:5] != b"TREE\1":
        raise FormatError(f"no node at byte {at}, to which another one leads")
    _, height, count = tree_node(data)
    nbytes = (count + 1) * entry.itemsize
    if count > USUAL_ENTRIES:
        data = read(at, begin + nbytes - width)
    if begin + nbytes > len(data) + width:
        raise FormatError(f"a node at byte {at} that goes past the file's end at {end}")
    return height, np.frombuffer(data[begin : begin + nbytes].ljust(nbytes, b"\0"), entry)


# Listed by libhdf5 --------------------------------------------------------------------------


def _listed_by_library(dataset: h5py.Dataset, where: str, axes: int, file_bytes: Callable[[], int]) -> np.ndarray:
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
        found = unwritten_ones if unwritten > _MAX_UNWRITTEN else "chunks of more bytes than the file"
        raise _damaged_index(where, found)
    if strange := [chunk.chunk_offset for chunk in infos if len(chunk.chunk_offset) != axes][:1]:
        raise _damaged_index(where, f"a chunk at {strange[0]}, expected {axes} axes")
    rows = [(*info.chunk_offset, info.filter_mask, info.byte_offset, info.size) for info in infos]
    return np.array(rows, np.uint64).reshape(-1, axes + 3)


@lru_cache(maxsize=1)
def _lists_numbers() -> bool:
    """Return whether this libhdf5 lists chunks in another order than that of the axes.

    If one axis can grow and it is not the first, libhdf5 (2.0) keeps the chunks in an array with that axis first, and
    lists them as if it was in the order of the axes.
    """
    corners = []
    with h5py.File.in_memory(libver="latest") as file:
        dataset = file.create_dataset("x", data=np.zeros((2, 2), "u1"), chunks=(1, 1), maxshape=(2, None))
        dataset.id.chunk_iter(lambda chunk: corners.append(chunk.chunk_offset))
    return (1, 1) not in corners


def _in_place(chunks: np.ndarray, dataset: h5py.Dataset, axis: int) -> np.ndarray:
    """Return chunks with their own corners, of a dataset whose one axis that can grow was listed first."""
    limits, chunk = dataset.maxshape, np.array(dataset.chunks, np.uint64)
    counts = [1 if limit is None else -(-int(limit) // int(size)) for limit, size in zip(limits, chunk, strict=True)]
    others, steps = counts[:axis] + counts[axis + 1 :], [math.prod(counts[at + 1 :]) for at in range(len(counts))]
    # Axes before the one that grows are listed as 0, and those after it run first.
    numbers = (chunks[:, :_MASK] // chunk).astype(np.int64) @ np.array(steps, np.int64)
    along, inside = np.divmod(numbers, math.prod(others))
    cells = np.insert(np.stack(np.unravel_index(inside, others)), axis, along, axis=0)
    corners = cells.T.astype(np.uint64) * chunk
    return np.concatenate([corners, chunks[:, _MASK:]], axis=1)[np.lexsort(corners.T[::-1])]
