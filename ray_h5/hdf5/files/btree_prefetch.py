"""What libhdf5 will read after a node of an index: the addresses in it. A wrong hint costs bytes, nothing else.

Without hints, each level of each index is a round of requests of its own, and each of its nodes one request after the
other. libhdf5 parses all of it: nothing here decides what a file holds.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator

from ray_h5.hdf5.format.object_headers import (
    CHUNKED,
    HEADER_BYTES,
    SIGNATURE,
    USUAL_ENTRIES,
    USUAL_WIDTHS,
    FormatError,
    Message,
    MessageKind,
    data_layout,
    header_block,
    local_heap,
    messages_in,
    number,
    numbers,
    superblock,
    symbols,
    tree_node,
)
from ray_h5.storage.byte_source import Span

_GUESS_BYTES = 4 << 10
_MAX_BYTES = 8 << 20
_MAX_DEPTH = 64
"""Of a B-tree: one that is deeper has more records than a file can hold."""

_PAGED = 1
"""The strategy of file space that puts metadata and values into pages of their own."""

_INDEXES = frozenset({b"TREE", b"BTHD", b"BTIN", b"FAHD", b"EAHD", b"EAIB", b"EASB"})
"""Signatures of nodes of groups and chunk indexes."""

_OF_PAIRS = {MessageKind.SYMBOL_TABLE: 0, MessageKind.LINK_INFO: 8, MessageKind.ATTRIBUTE_INFO: 2}
"""Messages with two addresses, and the bytes of the largest number before them, if it is there."""

_CHUNK_TREE, _CHUNK_TREES_2 = b"\1", (b"\12", b"\13")
"""What B-trees of versions 1 and 2 are of."""


class Hints:
    """What follows the nodes of one file.

    Parameters
    ----------
    size : int
        Bytes of the file.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._base = 0
        self._known: dict[tuple[int, int], list[Span]] = {}
        # By address, as all below: object headers, and their other blocks of version 1, which have no signature.
        self._headers: set[int] = set()
        self._blocks: set[int] = set()
        # Of the nodes of B-trees of version 2, what they do not say themselves: bytes of a node and of a record, levels
        # below, and records.
        self._trees: dict[int, tuple[int, int, int, int]] = {}
        self._arrays: dict[int, bytes] = {}

    def after(self, offset: int, data: memoryview) -> list[Span]:
        """Return the ranges that follow what was read at an offset."""
        key = offset, len(data)
        if key not in self._known:
            spans: list[Span] = []
            # What raises is no node, one that is cut off here, or one that libhdf5 will refuse.
            with contextlib.suppress(FormatError, IndexError, ValueError, OverflowError, ZeroDivisionError):
                spans.extend(self._follow(offset - self._base, bytes(data)))
            # An address that leads nowhere is past the end of every file.
            places = ((self._base + address, min(count, _MAX_BYTES)) for address, count in spans)
            self._known[key] = [(at, count) for at, count in places if 0 < at < self._size]
        return self._known[key]

    def leads_on(self, offset: int, beginning: bytes) -> bool:
        """Return whether what follows some bytes will be needed soon, though libhdf5 has not read them yet.

        That is so for object headers, of many objects at once; and for nodes of chunk indexes, which are read whole.
        """
        if beginning[:4] == b"TREE":
            return beginning[4:5] == _CHUNK_TREE
        if beginning[:4] == b"BTIN":
            return beginning[5:6] in _CHUNK_TREES_2
        return offset - self._base in self._headers

    def _follow(self, at: int, data: bytes) -> Iterator[Span]:
        """Yield address and bytes of what follows a structure.

        It begins with its signature; an old object header has none. Entries that are cut off raise `FormatError`.
        """
        signature = data[:4]
        if signature == SIGNATURE[:4]:
            block = superblock(data)
            self._base = block.base
            yield self._header(block.root)
            if block.version >= 2:
                yield self._header(block.extension)
            yield from ((table, _GUESS_BYTES) for table in block.tables[1:] if block.tables[0] == 1)
        elif signature in _INDEXES:
            yield from self._node(signature, at, data)
        elif signature == b"OCHK":
            yield from self._messages(data[4:], 4)
        elif signature == b"SNOD":
            for _, header, kept, *tables in symbols(data):
                yield self._header(header)
                yield from ((table, _GUESS_BYTES) for table in tables if kept == 1)
        elif signature == b"HEAP":
            size, _, values = local_heap(data)
            yield values, size
        elif signature == b"GCOL":
            yield at, number(data, 8, 8)
        elif signature == b"OHDR" or at in self._headers:
            begin, _, prefix, _ = header_block(data)
            yield from self._messages(data[begin:], prefix)
        elif at in self._blocks:
            yield from self._messages(data, 8)

    def _header(self, address: int) -> Span:
        self._headers.add(address)
        return address, HEADER_BYTES

    def _node(self, signature: bytes, at: int, data: bytes) -> Iterator[Span]:
        if signature == b"TREE":
            kind, level, count = tree_node(data)
            key, child = 8, HEADER_BYTES if level == 0 else len(data)
            if kind:  # of chunks
                key, child = (len(data) - 24 - 8 * USUAL_ENTRIES) // (USUAL_ENTRIES + 1), len(data)
            for i in range(count if level or not kind else 0):
                yield number(data, 24 + key + i * (key + 8), 8), child
        elif signature == b"BTHD":
            root = number(data, 16, 8)
            self._trees[root] = number(data, 6, 4), number(data, 10, 2), number(data, 12, 2), number(data, 24, 2)
            yield root, number(data, 6, 4)
        elif signature == b"BTIN":
            yield from self._tree2_node(at, data)
        elif signature == b"FAHD":
            entry, page_bits, count = data[6], data[7], number(data, 8, 8)
            yield number(data, 16, 8), count * entry + 5 * (count // (1 << page_bits) + 1) + 64
        elif signature == b"EAHD":
            self._arrays[at] = data
            yield number(data, 60, 8), _GUESS_BYTES
        elif (header := self._arrays.get(number(data, 6, 8))) is not None:
            yield from _array_index(header, data) if signature == b"EAIB" else _array_super(header, data)

    def _messages(self, data: bytes, prefix: int) -> Iterator[Span]:
        messages: list[Message] = []
        with contextlib.suppress(FormatError):  # the last one may be cut off here
            messages_in(data, 0, prefix, messages)
        for kind, _, body, _ in messages:
            if kind == MessageKind.LAYOUT:
                layout = data_layout(body, USUAL_WIDTHS)
                key = 8 + 8 * len(layout.chunk_shape)
                tree_bytes = 24 + 8 * USUAL_ENTRIES + (USUAL_ENTRIES + 1) * key
                if layout.kind == CHUNKED and layout.address is not None:  # else no index, or one of no known kind
                    yield layout.address, tree_bytes if layout.version == 3 else HEADER_BYTES
            elif kind == MessageKind.CONTINUATION:
                at = number(body, 0, 8)
                if prefix == 8:
                    self._blocks.add(at)
                yield at, number(body, 8, 8)
            elif kind == MessageKind.LINK and len(body) > 12:
                yield self._header(number(body, len(body) - 8, 8))  # a hard link ends in the address
            elif kind == MessageKind.FILE_SPACE and len(body) >= 19 and body[1] == _PAGED:
                # The first page holds the metadata, if they fit.
                yield 1, number(body, 11, 8) - 1
            elif kind in _OF_PAIRS and len(body) >= 16:
                # Two addresses: of a group, or of many links or attributes.
                begin = 0 if kind == MessageKind.SYMBOL_TABLE else 2 + _OF_PAIRS[kind] * (body[1] & 1)
                yield from ((address, _GUESS_BYTES) for address in numbers(body, begin, 2, 8))

    def _tree2_node(self, at: int, data: bytes) -> Iterator[Span]:
        node, record, depth, records = self._trees.get(at, (0, 0, 0, 0))
        if depth < 1:
            return
        most = (node - 10) // record
        number_bytes, total_bytes, below = _width(most), 0, most
        for _ in range(min(depth, _MAX_DEPTH) - 1):
            pointer = 8 + number_bytes + total_bytes
            most = (node - 10 - pointer) // (record + pointer)
            below = (most + 1) * below + most
            total_bytes = _width(below)
        begin, pointer = 6 + records * record, 8 + number_bytes + total_bytes
        for place in range(begin, begin + (records + 1) * pointer, pointer):
            child, count = number(data, place, 8), number(data, place + 8, number_bytes)
            self._trees[child] = node, record, depth - 1, count
            yield child, node


def _array_index(header: bytes, data: bytes) -> Iterator[Span]:
    """Yield what follows the index of an extensible array.

    Addresses of blocks come first. Then those of super blocks, one for each further level.
    """
    entry, bits, first, least, pointers = header[6:11]
    # The index has the addresses of blocks of so many levels itself.
    levels, sizes = 2 * int(math.log2(pointers)), list[int]()
    for level in range(1 + bits - int(math.log2(least))):
        count, elements = _blocks_of(level, least)
        sizes += [elements * entry + 64] * count if level < levels else [64 + count * 16]
    yield from ((number(data, 14 + first * entry + 8 * i, 8), size) for i, size in enumerate(sizes))


def _array_super(header: bytes, data: bytes) -> Iterator[Span]:
    """Yield what follows a super block of an extensible array."""
    entry, bits, least, page_bits = header[6], header[7], header[9], header[11]
    width = -(-bits // 8)
    start = number(data, 14, width)
    # The level of a super block: where the elements of its blocks begin says which one it is.
    level, begins = 0, 0
    while begins < start and level < 64:
        begins += math.prod(_blocks_of(level, least))
        level += 1
    count, elements = _blocks_of(level, least)
    page = 1 << page_bits
    bitmap = -(-(elements // page) // 8) * count if elements > page else 0
    for i in range(count):
        yield number(data, 14 + width + bitmap + 8 * i, 8), elements * entry + 64 + 4 * (elements // page + 1)


def _blocks_of(level: int, least: int) -> tuple[int, int]:
    """Return how many blocks of an extensible array are of a level, and the elements of one."""
    return 1 << (level // 2), least << ((level + 1) // 2)


def _width(most: int) -> int:
    """Return how many bytes libhdf5 takes for numbers up to `most`."""
    return (max(1, most).bit_length() - 1) // 8 + 1
