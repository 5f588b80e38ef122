"""A look at the nodes of a chunk index of version 1 before libhdf5 walks through them.

libhdf5 (2.0) lists every node as often as others lead to it: four nodes of 64 entries, each of which leads to one
node, are 16 million. And it lists chunks that it does not find by their place. These nodes have no checksum; those of
the other indexes have.
"""

from __future__ import annotations

import operator
from typing import TypeAlias

import h5py
import numpy as np

from ray_h5.hdf5.checks.header import FileWidths, data_layout
from ray_h5.hdf5.files.file_bytes import ReadBytes, gather, reader_of

_CHUNKED = 2
USUAL_ENTRIES = 64
"""Entries of a node: libhdf5's default, which h5py cannot change."""

_Cell: TypeAlias = tuple[int, ...]
_Within: TypeAlias = tuple[_Cell | None, _Cell | None]
"""The cells that libhdf5 looks for below a node: from one on, and below another one; None for all."""


def wrong_tree(dataset: h5py.Dataset) -> str | None:
    """Return what is wrong with the nodes of the chunk index of a dataset; None if nothing, or it is of another kind.

    Each chunk that is listed must be where libhdf5 looks for it: otherwise h5py returns fill values for its rows.
    """
    read, end = reader_of(dataset)
    widths = FileWidths.of(dataset)
    found = _root(data_layout(dataset)[0], widths)
    return None if found is None else ChunkTree(read, end, widths, found[1]).wrong(found[0])


def _root(body: bytes, widths: FileWidths) -> tuple[int, np.ndarray] | None:
    """Return the address of the first node, and the shape of a chunk with the bytes of an element as its last axis."""
    if len(body) < 3 or body[0] > 3:
        return None
    layout, axes, begin = (body[1], body[2], 3) if body[0] == 3 else (body[2], body[1], 8)
    shape = np.frombuffer(body[begin + widths.address :][: 4 * axes].ljust(4 * axes, b"\0"), "<u4").astype(np.uint64)
    address = int.from_bytes(body[begin : begin + widths.address], "little")
    undefined = address == (1 << 8 * widths.address) - 1
    return None if layout != _CHUNKED or undefined or not shape.all() else (address, shape)


class ChunkTree:
    """The nodes of one chunk index; with `keeps`, the level and the keys of each stay in `nodes`."""

    def __init__(
        self, read: ReadBytes, end: int, widths: FileWidths, chunk_shape: np.ndarray, *, keeps: bool = False
    ) -> None:
        self._read, self._end = read, end
        self._chunk_shape = chunk_shape
        self._head_bytes = 8 + 2 * widths.address
        self._address_bytes = widths.address
        self.entry = np.dtype(
            [("size", "<u4"), ("mask", "<u4"), ("at", "<u8", chunk_shape.shape), ("child", f"<u{widths.address}")]
        )
        self._seen: set[int] = set()
        self._level: dict[int, _Within] = {}
        self._depth = 0
        self.nodes: list[tuple[int, np.ndarray]] = []
        self._keeps = keeps

    def wrong(self, root: int) -> str | None:
        """Return what is wrong with the node at an address, or with one below it."""
        node = self._node(root)
        self._depth = node[5] if len(node) >= 8 else 0
        self._level = {root: (None, None)}
        while level := self._level:
            self._level = {}
            # Of a remote file, all nodes of a level are missed together.
            if reason := next(filter(None, gather(lambda node: self._wrong_node(*node), level.items())), None):
                return reason
            self._depth -= 1
        return None

    def _wrong_node(self, address: int, within: _Within) -> str | None:
        """Return what is wrong with a node; add the nodes that it leads to to the next level."""
        node = self._node(address)
        if node[:5] != b"TREE\1" or node[5:6] != bytes([self._depth]):
            return f"no node at byte {address}, to which another one leads"
        count = int.from_bytes(node[6:8], "little")
        keys_bytes = (count + 1) * self.entry.itemsize
        if self._head_bytes + keys_bytes > len(node) + self._address_bytes:
            return f"a node at byte {address} that goes past the file's end at {self._end}"
        keys = np.frombuffer(node[self._head_bytes :].ljust(keys_bytes, b"\0"), self.entry, count + 1)
        if self._keeps:
            self.nodes.append((self._depth, keys))
        cells = list(map(tuple, (keys["at"] // self._chunk_shape).tolist()))
        if any(map(operator.ge, cells, cells[1:])):
            return f"a chunk in the node at byte {address} that is listed twice, or out of its order"
        low, high = within
        if self._depth == 0:
            # libhdf5 looks for corners with 0 along the axis of the bytes of a value.
            lost = bool((keys["at"][:count, -1] >= self._chunk_shape[-1]).any())
            lost |= count > 0 and ((low is not None and cells[0] < low) or (high is not None and cells[-2] >= high))
            return f"chunks in the node at byte {address} that libhdf5 lists and does not find" if lost else None
        for child, begin, end in zip(keys["child"].tolist(), cells, cells[1:], strict=False):
            if child in self._seen:
                return f"two ways to the node at byte {child}"
            self._seen.add(child)
            self._level[child] = begin if low is None else max(low, begin), end if high is None else min(high, end)
        return None

    def _node(self, address: int) -> bytes:
        """Return the bytes of a node; fewer at the end of the file."""
        # All at once, as libhdf5 reads it: of a remote file, what is missed is a request.
        usual, width = self._head_bytes - self._address_bytes, self.entry.itemsize
        node = self._read(address, usual + (USUAL_ENTRIES + 1) * width)
        count = int.from_bytes(node[6:8], "little")
        return node if count <= USUAL_ENTRIES else self._read(address, usual + (count + 1) * width)
