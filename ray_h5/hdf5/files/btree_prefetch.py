"""What libhdf5 will read after a node of an index: the addresses in it. A wrong hint costs bytes, nothing else.

Without hints, each level of each index is a round of requests of its own, and each of its nodes one request after the
other. libhdf5 parses all of it: nothing here decides what a file holds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from ray_h5.storage.byte_source import Span

_UNDEFINED = (1 << 64) - 1
_HEADER_BYTES = 512
_GUESS_BYTES = 4 << 10
_MAX_BYTES = 8 << 20
_SIGNATURE = b"\x89HDF\r\n\x1a\n"
_MAX_DEPTH = 64
"""Of a B-tree: one that is deeper has more records than a file can hold."""

_PAGED = 1
"""The strategy of file space that puts metadata and values into pages of their own."""

_CHUNK_TREE, _CHUNK_TREES_2 = b"\1", (b"\12", b"\13")
"""What B-trees of versions 1 and 2 are of."""

_CHUNK_ENTRIES = 64
"""Children of a node of a chunk index of version 1: libhdf5's default, which h5py cannot change."""


@dataclass(frozen=True, slots=True)
class _Tree2:
    """A B-tree of version 2: sizes that its nodes do not have themselves."""

    node_bytes: int
    record_bytes: int
    depth: int
    records: int


class Hints:
    """What follows the nodes of one file.

    Parameters
    ----------
    size : int
        Bytes of the file.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._base = self._offset = 0
        self._known: dict[tuple[int, int], list[Span]] = {}
        self._headers: set[int] = set()
        self._blocks: set[int] = set()
        self._trees: dict[int, _Tree2] = {}
        self._arrays: dict[int, bytes] = {}

    def after(self, offset: int, data: memoryview) -> list[Span]:
        """Return the ranges that follow what was read at an offset."""
        key = offset, len(data)
        if key not in self._known:
            try:
                found = list(self._follow(offset, bytes(data)))
            except (IndexError, ValueError, OverflowError, ZeroDivisionError):
                found = []  # no node, or one that libhdf5 will refuse
            self._known[key] = [(at, min(count, _MAX_BYTES)) for at, count in found if 0 < at < self._size]
        return self._known[key]

    def leads_on(self, offset: int, beginning: bytes) -> bool:
        """Return whether what follows some bytes will be needed soon, though libhdf5 has not read them yet.

        That is so for object headers, of many objects at once; and for nodes of chunk indexes, which are read whole.
        """
        if beginning[:4] == b"TREE":
            return beginning[4:5] == _CHUNK_TREE
        if beginning[:4] == b"BTIN":
            return beginning[5:6] in _CHUNK_TREES_2
        return offset in self._headers

    def _follow(self, offset: int, data: bytes) -> Iterator[Span]:
        if data[:8] == _SIGNATURE:
            yield from self._superblock(data)
        follow = _FOLLOW.get(data[:4])
        if follow is not None:
            self._offset = offset  # h5py lets one thread at a time read
            yield from follow(self, data)
        elif offset in self._headers and data[:1] == b"\1" and len(data) > 16:
            yield from self._messages(data[16:], 8)
        elif offset in self._blocks:
            yield from self._messages(data, 8)

    def _at(self, data: bytes, begin: int) -> int:
        """Return the offset that an address leads to; -1 if it leads nowhere."""
        found = int.from_bytes(data[begin : begin + 8], "little")
        return -1 if found == _UNDEFINED or len(data) < begin + 8 else found + self._base

    def _header(self, at: int) -> Span:
        self._headers.add(at)
        return at, _HEADER_BYTES

    def _superblock(self, data: bytes) -> Iterator[Span]:
        version = data[8] if len(data) > 8 else 0
        if version >= 2 and len(data) >= 44:
            self._base = int.from_bytes(data[12:20], "little")
            yield self._header(self._at(data, 36))
            if (extension := self._at(data, 20)) > 0:
                yield self._header(extension)
        elif version == 0 and len(data) >= 96:
            self._base = int.from_bytes(data[24:32], "little")
            yield self._header(self._at(data, 64))
            if data[72] == 1:
                yield self._at(data, 80), _GUESS_BYTES
                yield self._at(data, 88), _GUESS_BYTES

    def _tree1(self, data: bytes) -> Iterator[Span]:
        kind, level, count = data[4], data[5], int.from_bytes(data[6:8], "little")
        if kind == 0:
            key, child = 8, _HEADER_BYTES if level == 0 else len(data)
        elif level == 0:
            return  # chunks
        else:
            key, child = (len(data) - 24 - 8 * _CHUNK_ENTRIES) // (_CHUNK_ENTRIES + 1), len(data)
        for i in range(_fitting(count, key + 8, data, 24 + key - 8)):
            yield self._at(data, 24 + key + i * (key + 8)), child

    def _symbols(self, data: bytes) -> Iterator[Span]:
        for i in range(_fitting(int.from_bytes(data[6:8], "little"), 40, data, 8)):
            begin = 8 + 40 * i
            yield self._header(self._at(data, begin + 8))
            if int.from_bytes(data[begin + 16 : begin + 20], "little") == 1:
                yield self._at(data, begin + 24), _GUESS_BYTES
                yield self._at(data, begin + 32), _GUESS_BYTES

    def _local_heap(self, data: bytes) -> Iterator[Span]:
        yield self._at(data, 24), int.from_bytes(data[8:16], "little")

    def _heap_collection(self, data: bytes) -> Iterator[Span]:
        yield self._offset, int.from_bytes(data[8:16], "little")

    def _header2(self, data: bytes) -> Iterator[Span]:
        flags = data[5]
        begin = 6 + 16 * bool(flags & 0x20) + 4 * bool(flags & 0x10)
        width = 1 << (flags & 3)
        yield from self._messages(data[begin + width :], 4 + 2 * bool(flags & 4))

    def _more_header2(self, data: bytes) -> Iterator[Span]:
        yield from self._messages(data[4:], 4)

    def _messages(self, data: bytes, head: int) -> Iterator[Span]:
        at = 0
        while at + head <= len(data):
            if head == 8:
                kind, size = (
                    int.from_bytes(data[at : at + 2], "little"),
                    int.from_bytes(data[at + 2 : at + 4], "little"),
                )
            else:
                kind, size = data[at], int.from_bytes(data[at + 1 : at + 3], "little")
            yield from self._message(kind, data[at + head : at + head + size], head)
            at += head + size

    def _message(self, kind: int, body: bytes, head: int) -> Iterator[Span]:
        if kind == 0x08:
            yield from self._layout(body)
        elif kind == 0x10:
            at = self._at(body, 0)
            if head == 8:
                self._blocks.add(at)
            yield at, int.from_bytes(body[8:16], "little")
        elif kind == 0x11:
            yield self._at(body, 0), _GUESS_BYTES
            yield self._at(body, 8), _GUESS_BYTES
        elif kind == 0x06 and len(body) > 12:
            yield self._header(self._at(body, len(body) - 8))  # a hard link ends in the address
        elif kind == 0x17 and len(body) >= 19 and body[1] == _PAGED:
            # The first page holds the metadata, if they fit.
            yield max(1, self._base), int.from_bytes(body[11:19], "little") - 1
        elif kind in {0x02, 0x15} and len(body) >= 18:
            begin = 2 + (8 if kind == 0x02 else 2) * (body[1] & 1)
            yield self._at(body, begin), _GUESS_BYTES
            yield self._at(body, begin + 8), _GUESS_BYTES

    def _layout(self, body: bytes) -> Iterator[Span]:
        if body[0] == 3 and body[1] == 2:
            key = 8 + 8 * body[2]
            yield self._at(body, 3), 24 + 8 * _CHUNK_ENTRIES + (_CHUNK_ENTRIES + 1) * key
        elif body[0] >= 4 and body[1] == 2:
            after = 5 + body[3] * body[4]
            kind = body[after]
            info = {3: 1, 4: 5, 5: 6}.get(kind)
            if info is not None:  # others have no index, or are not known: libhdf5 says so
                yield self._at(body, after + 1 + info), _HEADER_BYTES

    def _fixed_array(self, data: bytes) -> Iterator[Span]:
        entry, page_bits, count = data[6], data[7], int.from_bytes(data[8:16], "little")
        pages = count // (1 << page_bits) + 1
        yield self._at(data, 16), count * entry + 5 * pages + 64

    def _extensible_array(self, data: bytes) -> Iterator[Span]:
        self._arrays[self._offset] = data
        yield self._at(data, 60), _GUESS_BYTES

    def _array_index(self, data: bytes) -> Iterator[Span]:
        header = self._arrays.get(self._at(data, 6), b"")
        if not header:
            return
        entry, bits, first, least, pointers = header[6], header[7], header[8], header[9], header[10]
        begin = 14 + first * entry
        blocks = 2 * (pointers - 1)
        supers = 1 + (bits - int(math.log2(least))) - 2 * int(math.log2(pointers))
        number = 0
        for level in range(2 * int(math.log2(pointers))):
            for _ in range(1 << (level // 2)):
                if number < blocks:
                    yield self._at(data, begin + 8 * number), (least << ((level + 1) // 2)) * entry + 64
                    number += 1
        for i in range(max(0, supers)):
            level = 2 * int(math.log2(pointers)) + i
            yield self._at(data, begin + 8 * (blocks + i)), 64 + (1 << (level // 2)) * (8 + 8)

    def _array_super(self, data: bytes) -> Iterator[Span]:
        header = self._arrays.get(self._at(data, 6), b"")
        if not header:
            return
        entry, bits, least, page_bits = header[6], header[7], header[9], header[11]
        width = -(-bits // 8)
        start = int.from_bytes(data[14 : 14 + width], "little")
        # The level of a super block: where the elements of its blocks begin says which one it is.
        level, begins = 0, 0
        while begins < start and level < 64:
            begins += (1 << (level // 2)) * (least << ((level + 1) // 2))
            level += 1
        count, elements = 1 << (level // 2), least << ((level + 1) // 2)
        page = 1 << page_bits
        bitmap = -(-(elements // page) // 8) * count if elements > page else 0
        at = 14 + width + bitmap
        for i in range(_fitting(count, 8, data, at)):
            yield self._at(data, at + 8 * i), elements * entry + 64 + 4 * (elements // page + 1)

    def _tree2(self, data: bytes) -> Iterator[Span]:
        node, record = int.from_bytes(data[6:10], "little"), int.from_bytes(data[10:12], "little")
        depth, root, records = int.from_bytes(data[12:14], "little"), self._at(data, 16), data[24:26]
        self._trees[root] = _Tree2(node, record, depth, int.from_bytes(records, "little"))
        yield root, node

    def _tree2_node(self, data: bytes) -> Iterator[Span]:
        tree = self._trees.get(self._offset)
        if tree is None or tree.depth < 1:
            return
        most = (tree.node_bytes - 10) // tree.record_bytes
        number_bytes, total_bytes, below = _width(most), 0, most
        for _ in range(min(tree.depth, _MAX_DEPTH) - 1):
            pointer = 8 + number_bytes + total_bytes
            most = (tree.node_bytes - 10 - pointer) // (tree.record_bytes + pointer)
            below = (most + 1) * below + most
            total_bytes = _width(below)
        begin, pointer = 6 + tree.records * tree.record_bytes, 8 + number_bytes + total_bytes
        for i in range(_fitting(tree.records + 1, pointer, data, begin)):
            at = self._at(data, begin + i * pointer)
            count = int.from_bytes(data[begin + i * pointer + 8 : begin + i * pointer + 8 + number_bytes], "little")
            self._trees[at] = _Tree2(tree.node_bytes, tree.record_bytes, tree.depth - 1, count)
            yield at, tree.node_bytes


def _fitting(count: int, nbytes: int, data: bytes, begin: int) -> int:
    """Return how many of `count` entries of a node lie in its bytes: a damaged node may claim any number."""
    return min(count, max(0, len(data) - begin) // max(1, nbytes))


def _width(most: int) -> int:
    """Return how many bytes libhdf5 takes for numbers up to `most`."""
    return (max(1, most).bit_length() - 1) // 8 + 1


_Follow = Callable[[Hints, bytes], Iterator[Span]]
_FOLLOW: dict[bytes, _Follow] = {
    b"GCOL": Hints._heap_collection,
    b"TREE": Hints._tree1,
    b"SNOD": Hints._symbols,
    b"HEAP": Hints._local_heap,
    b"OHDR": Hints._header2,
    b"OCHK": Hints._more_header2,
    b"FAHD": Hints._fixed_array,
    b"EAHD": Hints._extensible_array,
    b"EAIB": Hints._array_index,
    b"EASB": Hints._array_super,
    b"BTHD": Hints._tree2,
    b"BTIN": Hints._tree2_node,
}
