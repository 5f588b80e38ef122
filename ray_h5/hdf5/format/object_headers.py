"""The HDF5 file format: bytes -> the values of its structures (HDF5 File Format Specification, version 3.0).

These are superblocks, object headers and their messages, and groups with symbol tables; the trees of chunks are in
`columns.chunk_lists`, the global heap is in `heap`. Each length and address is compared with the bytes that are there
before it is used. What is not as the specification says, or of a version that is not known here, raises `FormatError`.

Functions take bytes, or ``read(address, count)``, which returns the bytes at an address: fewer at the end of the file.
"""

from __future__ import annotations

import operator
import struct
from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple, TypeAlias

from ray_h5.hdf5.format.file_bytes import ReadBytes, Widths

SIGNATURE = b"\x89HDF\r\n\x1a\n"
UNDEFINED = (1 << 64) - 1

COMPACT, CONTIGUOUS, CHUNKED = range(3)
VIRTUAL = b"\4\3"
EXTENSIBLE_ARRAY = 4
"""How values are stored, how the layout of virtual datasets begins, and one kind of index of chunks."""

HEADER_BYTES = 512
"""Bytes of an object header that libhdf5 reads first."""

USUAL_ENTRIES = 64
"""Children of a node of a chunk tree: libhdf5's default, which h5py cannot change."""

_MOST_BLOCKS, _MOST_MESSAGES, _MOST_BLOCK_BYTES = 1 << 12, 1 << 16, 1 << 26
"""Of one header: its blocks may lead to each other without end."""

_MOST_FREE_BLOCKS, _NO_MORE = 1 << 8, 1
"""Blocks of a local heap that are free, and what ends their list."""

_INDEX_BYTES = {3: 1, 4: 5, 5: 6}
"""Bytes of what a layout says of an index of chunks, by its kind."""

_SUPERBLOCKS = {0: (13, 48, 6), 1: (13, 52, 6), 2: (9, 16, 4), 3: (9, 16, 4)}
"""By version: where the width of an address is, the bytes without addresses, and how many addresses there are."""

_NEW_FIELDS, _OLD_FIELDS = struct.Struct("<2xB4Q4x"), "<BBxB3xHHI{}4Q8xQI4x2Q"
_SUPERBLOCK_FIELDS = {0: struct.Struct(_OLD_FIELDS.format("0s")), 1: struct.Struct(_OLD_FIELDS.format("H2x"))}
_SUPERBLOCK_FIELDS |= {2: _NEW_FIELDS, 3: _NEW_FIELDS}
"""By version: the numbers after it, if addresses and lengths have 8 bytes."""

_CODES = {1: "B", 2: "H", 4: "I", 8: "Q"}
_POSSIBLE_WIDTHS = frozenset({2, 4, 8, 16, 32})
_HEADER_1, _NODE = struct.Struct("<2xH4xI"), struct.Struct("<BBH")
_PREFIX_1, _PREFIX_2 = struct.Struct("<HHB"), struct.Struct("<BHB")
_SYMBOL = struct.Struct("<QQI4xQQ")
_LOCAL_HEAP = struct.Struct("<4sB3xQQQ")


class MessageKind:
    """Kinds of messages in object headers."""

    NOTHING, SPACE, LINK_INFO, TYPE, OLD_FILL, FILL, LINK, LAYOUT = 0x00, 0x01, 0x02, 0x03, 0x04, 0x05, 0x06, 0x08
    FILTERS, ATTRIBUTE, COMMENT, OLD_TIME, CONTINUATION = 0x0B, 0x0C, 0x0D, 0x0E, 0x10
    SYMBOL_TABLE, TIME, ATTRIBUTE_INFO, FILE_SPACE = 0x11, 0x12, 0x15, 0x17


_CONTINUATION = MessageKind.CONTINUATION

USUAL_WIDTHS = Widths()


class FormatError(Exception):
    """Bytes are not as the format says, or not of a version that is known here."""


def number(data: bytes, at: int, width: int) -> int:
    """Return an unsigned number."""
    if len(data) < at + width:
        raise FormatError(f"{len(data)} bytes, expected {at + width} or more")
    return int.from_bytes(data[at : at + width], "little")


def numbers(data: bytes, at: int, count: int, width: int) -> tuple[int, ...]:
    """Return unsigned numbers that follow each other."""
    if len(data) < at + count * width:
        raise FormatError(f"{len(data)} bytes, expected {at + count * width} or more")
    if width in _CODES:
        return struct.unpack_from(f"<{count}{_CODES[width]}", data, at)
    return tuple(number(data, at + i * width, width) for i in range(count))


def address(data: bytes, at: int, width: int = 8) -> int | None:
    """Return an address; None for one that is undefined."""
    value = number(data, at, width)
    return None if value == (1 << 8 * width) - 1 else value


def exactly(read: ReadBytes, at: int, count: int) -> bytes:
    """Return bytes that must be there."""
    data = read(at, count)
    if len(data) != count:
        raise FormatError(f"{len(data)} bytes at {at}, expected {count}")
    return data


# Superblock -------------------------------------------------------------------------------


class Superblock(NamedTuple):
    """What a file says of itself.

    Attributes
    ----------
    version, flags : int
        Of the superblock, and of the file.
    base, end, root : int
        Where addresses begin to count, the end of the file, and the header of the root group.
    extension : int
        Address of the header of what else the superblock says; in versions 0 and 1, of lists of free space.
    tables : tuple of int
        In versions 0 and 1: what is kept of the root group (1 for addresses of its symbol table), and these addresses.
    rest : tuple of int
        In versions 0 and 1: the versions of three structures, half of the most entries of leaves and nodes of groups
        and of nodes of chunk trees, and the address of what a driver says.
    """

    version: int
    flags: int
    base: int
    extension: int
    end: int
    root: int
    tables: tuple[int, ...] = (0, 0, 0)
    rest: tuple[int, ...] = ()


def superblock(head: bytes) -> Superblock:
    """Return the superblock that begins some bytes; one whose addresses and lengths have 8 bytes."""
    version = head[8] if head.startswith(SIGNATURE) and len(head) > 16 else -1
    if version not in _SUPERBLOCKS:
        raise FormatError("no superblock")
    place = _SUPERBLOCKS[version][0]
    if head[place : place + 2] != bytes(USUAL_WIDTHS[:2]):
        raise FormatError("addresses or lengths of another width")
    try:
        fields = _SUPERBLOCK_FIELDS[version].unpack_from(head, 9)
    except struct.error:
        raise FormatError("a superblock that is cut off") from None
    if version >= 2:
        flags, base, extension, end, root = fields
        return Superblock(version, flags, base, extension, end, root)
    *versions, leaf, node, flags, tree, base, free, end, driver, root, kept, one, other = fields
    rest = *versions, leaf, node, tree if version else USUAL_ENTRIES // 2, driver
    return Superblock(version, flags, base, free, end, root, (kept, one, other), rest)


def superblock_end(head: bytes) -> int:
    """Return where the superblock ends in a file that begins so; 0 if that is not known.

    Of one whose version or widths are cut off, it is the least that it may be.
    """
    at = head.find(SIGNATURE)
    version = int.from_bytes(head[at + 8 : at + 9] or b"\2", "little")
    if at < 0 or version not in _SUPERBLOCKS:
        return 0
    place, fixed, addresses = _SUPERBLOCKS[version]
    width = int.from_bytes(head[at + place : at + place + 1] or b"\x08", "little")
    return at + fixed + addresses * width if width in _POSSIBLE_WIDTHS else 0


# Object headers ---------------------------------------------------------------------------


Message: TypeAlias = tuple[int, int, bytes, int]
"""A message of an object header: its kind, its flags, its body, and where the body begins in the file."""


def header_block(head: bytes) -> tuple[int, int, int, int]:
    """Return where the messages of an object header begin, their bytes, the bytes before the body of each, and a count.

    Version 1 says how many messages there are in all blocks; of version 2, the count is -1.
    """
    if head[:1] == b"\1" and len(head) >= 16:
        count, size = _HEADER_1.unpack_from(head)
        return 16, size, 8, count
    if head[:5] == b"OHDR\2":
        flags = number(head, 5, 1)
        begin, width = 6 + 16 * bool(flags & 0x20) + 4 * bool(flags & 0x10), 1 << (flags & 3)
        return begin + width, number(head, begin, width), 4 + 2 * bool(flags & 4), -1
    raise FormatError("no object header")


def object_header(read: ReadBytes, at: int, widths: Widths) -> tuple[int, list[Message]]:
    """Return how many messages the object header at an address claims, as `header_block` does, and its messages."""
    head = read(at, HEADER_BYTES)
    begin, size, prefix, claimed = header_block(head)
    blocks = [(at + begin, size)]
    messages: list[Message] = []
    for where, nbytes in blocks:  # it grows
        if not 0 <= nbytes <= _MOST_BLOCK_BYTES or len(blocks) > _MOST_BLOCKS:
            raise FormatError("a header of too many blocks, or of one that is too large")
        inside = where - at
        is_read = 0 <= inside <= len(head) - nbytes
        block = head[inside : inside + nbytes] if is_read else exactly(read, where, nbytes)
        for body in messages_in(block, where, prefix, messages):
            below, count = number(body, 0, widths.address), number(body, widths.address, widths.length)
            # In version 2 a block has a signature and a checksum around its messages.
            blocks.append((below, count) if prefix == 8 else (below + 4, count - 8))
    return claimed, messages


def messages_in(block: bytes, where: int, prefix: int, messages: list[Message]) -> list[bytes]:
    """Add the messages of a block of an object header that begins at an address; return those that lead to others."""
    at, end, continued = 0, len(block), []
    unpack, last = (_PREFIX_1 if prefix == 8 else _PREFIX_2).unpack_from, end - prefix
    while at <= last:
        kind, size, flags = unpack(block, at)
        body = at + prefix
        at = body + size
        if at > end or len(messages) > _MOST_MESSAGES:
            raise FormatError(f"a message of {size} bytes in a block of {end}, or too many messages")
        messages.append((kind, flags, block[body:at], where + body))
        if kind == _CONTINUATION:
            continued.append(block[body:at])
    if prefix == 8 and at != end:
        raise FormatError("bytes after the last message")
    return continued


class Attribute(NamedTuple):
    """An attribute message: its name, where its type and its value begin, and whether its type is elsewhere."""

    name: bytes
    type_at: int
    value_at: int
    is_shared: bool

    @classmethod
    def of(cls, body: bytes) -> Attribute:
        if len(body) < 9 or body[0] not in {1, 2, 3}:
            raise FormatError("an attribute of another version")
        begin, sizes = 9 if body[0] == 3 else 8, numbers(body, 2, 3, 2)
        name = body[begin : begin + sizes[0]].partition(b"\0")[0]
        if body[0] == 1:  # each part is filled up to a multiple of 8 bytes
            sizes = tuple((size + 7) & ~7 for size in sizes)
        return cls(name, begin + sizes[0], begin + sum(sizes), body[0] > 1 and body[1] > 0)


class Layout(NamedTuple):
    """How the values of a dataset are stored.

    Attributes
    ----------
    version, kind : int
        Of the message, and `COMPACT`, `CONTIGUOUS`, `CHUNKED` or another one.
    address : int, optional
        Where contiguous values or the index of chunks begin; None if nothing was written.
    nbytes : int
        Bytes of contiguous or compact values.
    begin : int
        Where compact values begin in the message.
    chunk_shape : tuple of int
        Shape of a chunk, and the bytes of an element.
    index_kind, flags : int
        From version 4 on, the kind of index, and 1 for chunks that are not filtered where they stick out.
    """

    version: int
    kind: int
    address: int | None = None
    nbytes: int = 0
    begin: int = 0
    chunk_shape: tuple[int, ...] = ()
    index_kind: int = 0
    flags: int = 0


def data_layout(body: bytes, widths: Widths) -> Layout:
    """Return what a layout message says."""
    if len(body) < 4:
        raise FormatError("no layout")
    (version, kind), width = body[:2], widths.address
    if version == 3 and kind == CHUNKED:
        return Layout(3, kind, address(body, 3, width), 0, 0, numbers(body, 3 + width, body[2], 4))
    if version in {1, 2}:
        axes, kind = numbers(body, 1, 2, 1)
        where, at = (None, 8) if kind == COMPACT else (address(body, 8, width), 8 + width)
        shape, end = numbers(body, at, axes, 4), at + 4 * axes
        nbytes = number(body, end, 4) if kind == COMPACT else 0
        return Layout(version, kind, where, nbytes, end + 4, shape)
    if version > 5 or kind > CHUNKED or version == 0:
        return Layout(version, kind)
    if kind == COMPACT:
        return Layout(version, kind, None, number(body, 2, 2), 4)
    if kind == CONTIGUOUS:
        return Layout(version, kind, address(body, 2, width), number(body, 2 + width, widths.length))
    flags, axes, size_bytes = numbers(body, 2, 3, 1)
    shape, at = numbers(body, 5, axes, size_bytes), 5 + axes * size_bytes
    index = number(body, at, 1)
    where = address(body, at + 1 + _INDEX_BYTES[index], width) if index in _INDEX_BYTES else None
    return Layout(version, kind, where, chunk_shape=shape, index_kind=index, flags=flags)


@lru_cache(maxsize=1 << 10)  # most files of a dataset have the same shapes
def dataspace(body: bytes) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the shape that a dataspace message says, and the axes that can grow; an empty one has none of both."""
    version, rank, flags, kind = body[:4] if len(body) >= 4 else (0, 0, 0, 0)
    begin = {1: 8, 2: 4}.get(version, 0)
    if not begin or flags & ~1 or rank > 32 or (version == 2 and kind == 2):
        raise FormatError("a dataspace of another version")
    shape = numbers(body, begin, rank, 8)
    if not flags:
        return shape, ()
    most = numbers(body, begin + 8 * rank, rank, 8)
    if any(map(operator.gt, shape, most)):
        raise FormatError("a dataset that is larger than it may be")
    return shape, tuple(axis for axis, limit in enumerate(most) if limit == UNDEFINED)


# Groups with symbol tables; addresses of 8 bytes -------------------------------------------


def tree_node(data: bytes) -> tuple[int, int, int]:
    """Return of what a node of a B-tree of version 1 is, its level, and how many children it has."""
    if data[:4] != b"TREE" or len(data) < 8:
        raise FormatError("no node of a B-tree")
    kind, level, count = _NODE.unpack_from(data, 4)
    return kind, level, count


def symbols(node: bytes) -> Iterator[tuple[int, int, int, int, int]]:
    """Return the links in a leaf of a group.

    They are where a name is in the heap, the header that it leads to, and what is kept of that object: 1 if it is the
    addresses of a tree and a heap, which follow.
    """
    if node[:5] != b"SNOD\1" or len(node) < 8:
        raise FormatError("no leaf of a group")
    count = number(node, 6, 2)
    if not 0 < count <= (len(node) - 8) // _SYMBOL.size:
        raise FormatError("a leaf of a group with no links, or too many")
    return _SYMBOL.iter_unpack(node[8 : 8 + count * _SYMBOL.size])


def local_heap(head: bytes) -> tuple[int, int, int]:
    """Return the bytes of a local heap, the first free block, and the address of its data, given its header."""
    if head[:5] != b"HEAP\0" or len(head) < _LOCAL_HEAP.size:
        raise FormatError("no local heap")
    size, free, data = _LOCAL_HEAP.unpack_from(head)[2:]
    return size, free, data


def group_entries(read: ReadBytes, table: bytes, most_symbols: int, most_leaves: int) -> Iterator[tuple[str, int]]:
    """Yield name and header address of each object of a group, given its symbol table message, in the order of names.

    Links of other kinds, and names that libhdf5 takes for paths, raise `FormatError`; so do names that it does not
    find: it searches for them, and these are out of order.
    """
    tree, heap = numbers(table, 0, 2, 8)
    names = _names_of_group(read, heap)
    left = len(names)
    node = exactly(read, tree, 24 + 16 * most_leaves + 8)
    kind, level, count = tree_node(node)
    # A group of many names has more than one level of nodes, and addresses of nodes beside this one.
    if kind or level or count > most_leaves or node[8:24] != b"\xff" * 16:
        raise FormatError("a group of several nodes")
    # Before each leaf and after the last one, the node has where a name is in the heap: the last one so far.
    pairs = struct.unpack_from(f"<{2 * count + 1}Q", node, 24)
    for low, leaf, high in zip(pairs[:-1:2], pairs[1::2], pairs[2::2], strict=True):
        last, most = _text(names, low), _text(names, high)
        for at, header, kept, _, _ in symbols(exactly(read, leaf, 8 + most_symbols * _SYMBOL.size)):
            name = _text(names, at)
            if kept > 1 or name <= last or b"/" in name or name == b".":  # 2 is a soft link
                raise FormatError("a link that libhdf5 follows, or does not find")
            last, left = name, left - len(name)
            if left < 0:
                raise FormatError("names that lie in each other")
            try:
                yield name.decode(), header
            except UnicodeDecodeError:
                raise FormatError("a name that is not UTF-8") from None
        if last > most:
            raise FormatError("names that are out of order")


def _names_of_group(read: ReadBytes, at: int) -> bytes:
    size, free, data = local_heap(exactly(read, at, _LOCAL_HEAP.size))
    names = exactly(read, data, size)
    for _ in range(_MOST_FREE_BLOCKS):
        if free == _NO_MORE:
            return names
        begin, (free, count) = free, numbers(names, free, 2, 8)
        if begin + count > size:
            break
    raise FormatError("a local heap whose free blocks are not in it")


def _text(heap: bytes, at: int) -> bytes:
    end = heap.find(b"\0", at)
    if end < at:
        raise FormatError("a name without an end")
    return heap[at:end]
