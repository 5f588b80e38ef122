"""How the values of a dataset are stored, as far as libhdf5 does not say it: its layout, and its tree of chunks."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Sequence
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
)

_Cell: TypeAlias = tuple[int, ...]
_Within: TypeAlias = tuple[_Cell | None, _Cell | None]
"""The cells that libhdf5 looks for below a node: from one on, and below another one; None for all."""


def widths_of(found: h5py.File | h5py.Dataset) -> Widths:
    """Return the widths of numbers in the file of an object."""
    return Widths(*map(int, found.file.id.get_create_plist().get_sizes()))


def layout_of(dataset: h5py.Dataset) -> tuple[Layout, Message]:
    """Return how the values of a dataset are stored, and the message that says it."""
    widths = widths_of(dataset)
    try:
        _, messages = object_header(reader_of(dataset)[0], address_of(dataset.id)[1], widths)
        message = next((each for each in messages if each[0] == MessageKind.LAYOUT), (0, 0, b"", 0))
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


def wrong_tree(dataset: h5py.Dataset) -> str | None:
    """Return what is wrong with the nodes of the chunk index of a dataset; None if nothing, or it is of another kind.

    Each chunk that is listed must be where libhdf5 looks for it: otherwise h5py returns fill values for its rows.
    """
    layout, _ = layout_of(dataset)
    if layout.version > 3 or layout.kind != CHUNKED:
        return None  # indexes of other kinds have checksums
    return ChunkTree(*reader_of(dataset), widths_of(dataset), layout).wrong()


class ChunkTree:
    """A chunk index of version 1, looked at before libhdf5 walks through it. Its nodes have no checksum.

    libhdf5 (2.0) lists every node as often as others lead to it: four nodes of 64 entries, each of which leads to one
    node, are 16 million. And it lists chunks that it does not find by their place; h5py returns fill values for them.

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
    keeps : bool
        Whether the level and the keys of each node stay in `nodes`.
    """

    def __init__(self, read: ReadBytes, end: int, widths: Widths, layout: Layout, *, keeps: bool = False) -> None:
        self._read, self._end = read, end
        self.chunk_shape = np.array(layout.chunk_shape, np.uint64)
        self._root = layout.address
        self._head_bytes, self._address_bytes = 8 + 2 * widths.address, widths.address
        axes, child = self.chunk_shape.shape, f"<u{widths.address}"
        self.entry = np.dtype([("size", "<u4"), ("mask", "<u4"), ("at", "<u8", axes), ("child", child)])
        self._seen: set[int] = set()
        self._level: dict[int, _Within] = {}
        self._depth = 0
        self._keeps = keeps
        self.nodes: list[tuple[int, np.ndarray]] = []

    def wrong(self) -> str | None:
        """Return what is wrong with a node; None if nothing is, or there is none."""
        if self._root is None or not self.chunk_shape.all():
            return None
        root = self._node(self._root)
        self._depth = root[5] if len(root) >= 8 else 0
        self._level = {self._root: (None, None)}
        while level := self._level:
            self._level = {}
            # Of a remote file, all nodes of a level are missed together.
            if reason := next(filter(None, gather(lambda node: self._wrong_node(*node), level.items())), None):
                return reason
            self._depth -= 1
        return None

    def _wrong_node(self, at: int, within: _Within) -> str | None:
        """Return what is wrong with a node; add the nodes that it leads to to the next level."""
        node = self._node(at)
        if node[:5] != b"TREE\1" or node[5:6] != bytes([self._depth]):
            return f"no node at byte {at}, to which another one leads"
        count = int.from_bytes(node[6:8], "little")
        keys_bytes = (count + 1) * self.entry.itemsize
        if self._head_bytes + keys_bytes > len(node) + self._address_bytes:
            return f"a node at byte {at} that goes past the file's end at {self._end}"
        keys = np.frombuffer(node[self._head_bytes :].ljust(keys_bytes, b"\0"), self.entry, count + 1)
        if self._keeps:
            self.nodes.append((self._depth, keys))
        cells = list(map(tuple, (keys["at"] // self.chunk_shape).tolist()))
        if any(map(operator.ge, cells, cells[1:])):
            return f"a chunk in the node at byte {at} that is listed twice, or out of its order"
        low, high = within
        if self._depth == 0:
            # libhdf5 looks for corners with 0 along the axis of the bytes of a value.
            lost = bool((keys["at"][:count, -1] >= self.chunk_shape[-1]).any())
            lost |= count > 0 and ((low is not None and cells[0] < low) or (high is not None and cells[-2] >= high))
            return f"chunks in the node at byte {at} that libhdf5 lists and does not find" if lost else None
        for child, (begin, end) in zip(keys["child"].tolist(), itertools.pairwise(cells), strict=False):
            if child in self._seen:
                return f"two ways to the node at byte {child}"
            self._seen.add(child)
            self._level[child] = begin if low is None else max(low, begin), end if high is None else min(high, end)
        return None

    def _node(self, at: int) -> bytes:
        """Return the bytes of a node; fewer at the end of the file."""
        # All at once, as libhdf5 reads it: of a remote file, what is missed is a request.
        usual, width = self._head_bytes - self._address_bytes, self.entry.itemsize
        node = self._read(at, usual + (USUAL_ENTRIES + 1) * width)
        count = int.from_bytes(node[6:8], "little")
        return node if count <= USUAL_ENTRIES else self._read(at, usual + (count + 1) * width)

    def listed(self) -> np.ndarray:
        """Return the entries of the leaves that `wrong` went through."""
        keys: Sequence[np.ndarray] = [node[:-1] for level, node in self.nodes if level == 0]
        return np.concatenate(keys or [np.empty(0, self.entry)])
