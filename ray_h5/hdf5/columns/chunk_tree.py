"""How the values of a dataset are stored, as far as libhdf5 does not say it: its layout, and its tree of chunks."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import h5py
import numpy as np

from ray_h5.errors import CorruptFileError
from ray_h5.hdf5.files.file_bytes import ReadBytes, address_of, filename_of, gather, reader_of
from ray_h5.hdf5.format import (
    CHUNKED,
    USUAL_ENTRIES,
    FormatError,
    Layout,
    Message,
    MessageKind,
    Widths,
    data_layout,
    object_header,
    tree_node,
)

_Cell: TypeAlias = tuple[int, ...]
_Within: TypeAlias = tuple[_Cell | None, _Cell | None]
"""The cells that libhdf5 looks for below a node: from one on, and below another one; None for all."""


def widths_of(identifier: h5py.File | h5py.Dataset) -> Widths:
    """Return the widths of numbers in the file of an object."""
    return Widths(*map(int, identifier.file.id.get_create_plist().get_sizes()))


def layout_of(dataset: h5py.Dataset) -> tuple[Layout, Message]:
    """Return how the values of a dataset are stored, and the message that says it."""
    widths = widths_of(dataset)
    try:
        _, messages = object_header(reader_of(dataset)[0], address_of(dataset.id)[1], widths)
        message = next((stored for stored in messages if stored[0] == MessageKind.LAYOUT), (0, 0, b"", 0))
        return data_layout(message[2], widths), message
    except FormatError as exc:
        raise CorruptFileError(
            f"{filename_of(dataset.file)}: the header of {dataset.name!r} is damaged: {exc}. Restore the file from a "
            "copy."
        ) from None


def compact_offset(dataset: h5py.Dataset, user_block: int) -> int:
    """Return where the values of a compact dataset begin in the file: they are in its header."""
    layout, (_, _, body, address) = layout_of(dataset)
    if len(body) < layout.begin + layout.nbytes or layout.nbytes != dataset.id.get_storage_size():
        raise CorruptFileError(
            f"{filename_of(dataset.file)}: {dataset.name!r} has {dataset.id.get_storage_size()} bytes in its header, "
            f"found {len(body) - layout.begin}. Restore the file from a copy."
        )
    return user_block + address + layout.begin


@dataclass(frozen=True, slots=True, eq=False)
class ListedChunks:
    """Chunks as a file lists them: nothing is checked yet, so that values may not fit into int64.

    Attributes
    ----------
    corners : numpy.ndarray
        uint64 of shape (chunks, axes).
    masks, offsets, sizes : numpy.ndarray
        uint64, for each chunk.
    """

    corners: np.ndarray
    masks: np.ndarray
    offsets: np.ndarray
    sizes: np.ndarray

    @classmethod
    def of(cls, rows: np.ndarray) -> ListedChunks:
        """Return the chunks of an array of shape (chunks, axes + 3): corner, mask, offset and size of each."""
        return cls(rows[:, :-3], rows[:, -3], rows[:, -2], rows[:, -1])

    def where(self, keep: np.ndarray) -> ListedChunks:
        """Return some of the chunks."""
        return ListedChunks(self.corners[keep], self.masks[keep], self.offsets[keep], self.sizes[keep])


def damaged_index(where: str, found: str) -> CorruptFileError:
    """Return the error for a chunk index that cannot be true."""
    return CorruptFileError(f"{where}: its chunk index is damaged: found {found}")


def listed_in_tree(dataset: h5py.Dataset, where: str) -> ListedChunks | None:
    """List the chunks of a dataset; None if its chunk index is of another kind: those have checksums.

    Raises
    ------
    CorruptFileError
        If libhdf5 would walk through the index without end, or not find chunks by their place: h5py returns fill
        values for their rows. `where` names the dataset.
    """
    layout, _ = layout_of(dataset)
    if layout.version > 3 or layout.kind != CHUNKED:
        return None
    try:
        chunks = chunks_in_tree(*reader_of(dataset), widths_of(dataset), layout)
    except FormatError as exc:
        raise damaged_index(where, str(exc)) from None
    # Offsets count the user block. A damaged address must not become one in the file.
    base = np.minimum(np.uint64(dataset.file.id.get_create_plist().get_userblock()), ~chunks.offsets)
    return replace(chunks, offsets=chunks.offsets + base)


def chunks_in_tree(read: ReadBytes, end: int, widths: Widths, layout: Layout, most: int = 1 << 16) -> ListedChunks:
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

    level: dict[int, _Within] = {} if layout.address is None else {layout.address: (None, None)}
    while level:
        nodes = gather(visit, level)  # of a remote file, those of a level are missed together
        height = nodes[0][0] if height < 0 else height - 1
        below: dict[int, _Within] = {}
        for (at, within), (node_height, keys) in zip(level.items(), nodes, strict=True):
            if node_height != height:
                raise FormatError(f"no node at byte {at}, to which another one leads")
            cells = _cells(at, keys["at"], chunk_shape)
            if height:
                below.update(_children(keys["child"].tolist(), cells, within, seen))
                continue
            low, high = within
            # libhdf5 looks below the keys of the nodes above, and for 0 along the axis of the bytes of a value.
            lost = keys["at"][:-1, -1].any() or (low is not None and cells[0] < low)
            if len(keys) > 1 and (lost or (high is not None and cells[-2] >= high)):
                raise FormatError(f"chunks in the node at byte {at} that libhdf5 lists and does not find")
            leaves.append(keys[:-1])
        level = below
    chunks = np.concatenate(leaves)
    masks, offsets, sizes = (chunks[name].astype(np.uint64) for name in ("mask", "child", "size"))
    return ListedChunks(chunks["at"][:, :-1], masks, offsets, sizes)


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


def _cells(at: int, corners: np.ndarray, chunk_shape: np.ndarray) -> list[_Cell]:
    """Return the places of keys in the grid of chunks; raise unless they are in order."""
    cells = list(map(tuple, (corners // chunk_shape).tolist()))
    if (corners % chunk_shape).any() or any(map(operator.ge, cells, cells[1:])):
        raise FormatError(f"a chunk in the node at byte {at} that is off the grid, listed twice, or out of its order")
    return cells


def _children(
    addresses: Sequence[int], cells: Sequence[_Cell], within: _Within, seen: set[int | None]
) -> Iterator[tuple[int, _Within]]:
    """Yield the children of a node, and the cells that libhdf5 looks for below each."""
    low, high = within
    for child, (begin, stop) in zip(addresses, itertools.pairwise(cells), strict=False):
        if child in seen:
            raise FormatError(f"two ways to the node at byte {child}")
        seen.add(child)
        yield child, (begin if low is None else max(low, begin), stop if high is None else min(high, stop))
