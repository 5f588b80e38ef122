"""Bytes of a file -> its groups, and the messages of its object headers, as h5py writes them by default.

Of the format (HDF5 File Format Specification, version 3.0), this is superblock 0 and 1, groups with symbol tables, and
version 1 of object headers. Whatever else a file has, or what is not as it should be, raises `NotPlainError`: libhdf5
reads it, or says what is wrong with it.
"""

from __future__ import annotations

import fcntl
import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass

from ray_h5.hdf5.files.file_bytes import ReadBytes

SYMBOL_TABLE, CONTINUATION = 0x11, 0x10
UNDEFINED = (1 << 64) - 1

_SIGNATURE = b"\x89HDF\r\n\x1a\n"
_SIZES = 0x0808
"""Of addresses and of lengths."""

_USUAL_INDEX = b"\x20\0"
"""Half of the most entries of a node of a chunk index: libhdf5's default."""

_HEAD_BYTES = 4096
_MOST_BYTES = 1 << 20
_MOST_BLOCKS = 1 << 8
_MOST_BYTES_OF_FILE = 1 << 24
"""Read of one file, and in names. A damaged file may lead to the same bytes again and again."""

_NO_MORE = 1
"""Ends the list of free blocks of a heap."""

_LAST_MESSAGE = 0x17

_SUPERBLOCK = {version: struct.Struct(f"<9xBBxBHxHHI{skipped}xQQQQ8xQI20x") for version, skipped in ((0, 0), (1, 4))}
_PREFIX = struct.Struct("<BxHII4x")
_MESSAGE = struct.Struct("<HHB3x")
_PAIR = struct.Struct("<QQ")
_NODE = struct.Struct("<4sBBHQQ")
_LEAF = struct.Struct("<4sBxH")
_ENTRY = struct.Struct("<QQI20x")
_HEAP = struct.Struct("<4sB3xQQQ")


class NotPlainError(Exception):
    """A file is not as this module knows it."""


@dataclass(slots=True)
class Message:
    """A message of an object header."""

    kind: int
    body: bytes


class PlainBytes:
    """The bytes of a file whose superblock is known, by their address.

    Parameters
    ----------
    read_at : callable
        Returns the bytes of the file; an OSError of it is left to libhdf5, which meets it too.
    nbytes : int
        The size of the file.

    Raises
    ------
    NotPlainError
        If the superblock is another one, or the file is cut short.
    """

    def __init__(self, read_at: ReadBytes, nbytes: int) -> None:
        self._read_at = read_at
        head = read_at(0, _HEAD_BYTES)
        version = head[8] if head.startswith(_SIGNATURE) and len(head) > 120 else -1
        if version not in _SUPERBLOCK:
            raise NotPlainError
        space, table, shared, sizes, leaf, node, flags, base, free, self.end, driver, self.root, cached = _SUPERBLOCK[
            version
        ].unpack_from(head)
        expected = 0, 0, 0, _SIZES, 0, 0, UNDEFINED, UNDEFINED
        if version == 1 and head[24:26] != _USUAL_INDEX:
            raise NotPlainError
        if (space, table, shared, sizes, flags, base, free, driver) != expected or cached > 1 or self.end > nbytes:
            raise NotPlainError
        self._most_entries, self._most_leaves = 2 * leaf, 2 * node
        self._bytes_left = _MOST_BYTES_OF_FILE

    @classmethod
    def on_disk(cls, descriptor: int, nbytes: int) -> PlainBytes:
        """Return the bytes of an open file; raise `NotPlainError` also if a writer may have it open."""
        head = os.pread(descriptor, _HEAD_BYTES, 0)

        def read_at(address: int, count: int) -> bytes:
            is_there = address + count <= len(head)
            return head[address : address + count] if is_there else os.pread(descriptor, count, address)

        found = cls(read_at, nbytes)
        _check_no_writer(descriptor)
        return found

    def read(self, address: int, count: int) -> bytes:
        """Return bytes that must be there."""
        if address + count > self.end or not 0 < count <= _MOST_BYTES:
            raise NotPlainError
        found = self._upto(address, count)
        if len(found) != count:
            raise NotPlainError
        return found

    def messages(self, address: int) -> list[Message]:
        """Return the messages of the object header at an address."""
        begun = self._upto(address, 16 + 496)
        if len(begun) < 16:
            raise NotPlainError
        version, count, _, size = _PREFIX.unpack_from(begun)
        if version != 1:
            raise NotPlainError
        block = begun[16 : 16 + size] if size <= len(begun) - 16 else self.read(address + 16, size)
        found: list[Message] = []
        blocks = [block]
        for block in blocks:  # it grows
            at, end = 0, len(block)
            while at < end:
                if at + 8 > end or len(found) == count:
                    raise NotPlainError
                kind, size, flags = _MESSAGE.unpack_from(block, at)
                at += 8 + size
                # A shared message is elsewhere; some that are not known forbid to read on.
                if at > end or size % 8 or kind > _LAST_MESSAGE or flags & ~1:
                    raise NotPlainError
                body = block[at - size : at]
                if kind == CONTINUATION:
                    if len(blocks) == _MOST_BLOCKS or size < _PAIR.size:
                        raise NotPlainError
                    blocks.append(self.read(*_PAIR.unpack_from(body)))
                found.append(Message(kind, body))
        if len(found) != count:
            raise NotPlainError
        return found

    def entries(self, table: bytes) -> Iterator[tuple[str, int]]:
        """Yield name and address of each object of a group, given its symbol table message, in the order of names."""
        if len(table) < _PAIR.size:
            raise NotPlainError
        tree, heap = _PAIR.unpack_from(table)
        leaves, names = self._leaves(tree), self._heap(heap)
        for low, leaf, high in leaves:
            found = self.read(leaf, _LEAF.size + self._most_entries * _ENTRY.size)
            signature, version, count = _LEAF.unpack_from(found)
            if signature != b"SNOD" or version != 1 or not 0 < count <= self._most_entries:
                raise NotPlainError
            last, most = _text(names, low), _text(names, high)
            for at, address, cached in _ENTRY.iter_unpack(found[_LEAF.size : _LEAF.size + count * _ENTRY.size]):
                name = _text(names, at)
                # libhdf5 searches the names of a group. Where they are not in order, it does not find each of them.
                if cached > 1 or name <= last:  # 2 is a soft link
                    raise NotPlainError
                last = name
                self._count(len(name))
                yield _decoded(name), address
            if last > most:
                raise NotPlainError

    def _upto(self, address: int, count: int) -> bytes:
        """Return bytes, fewer at the end of the file."""
        count = min(count, self.end - address)
        if count <= 0:
            return b""
        self._count(count)
        try:
            return self._read_at(address, count)
        except OSError:
            raise NotPlainError from None

    def _count(self, nbytes: int) -> None:
        self._bytes_left -= nbytes
        if self._bytes_left < 0:
            raise NotPlainError

    def _heap(self, address: int) -> bytes:
        """Return the names of a group."""
        signature, version, size, free, data = _HEAP.unpack(self.read(address, _HEAP.size))
        if signature != b"HEAP" or version:
            raise NotPlainError
        found = self.read(data, size)
        for _ in range(_MOST_BLOCKS):
            if free == _NO_MORE:
                return found
            if free + _PAIR.size > size:
                break
            at, (free, count) = free, _PAIR.unpack_from(found, free)
            if at + count > size:
                break
        raise NotPlainError

    def _leaves(self, address: int) -> Iterator[tuple[int, int, int]]:
        """Yield the leaves of a group: where the name before the first one is in the heap, its address, the last name.

        A group of many names has more than one level of nodes.
        """
        found = self.read(address, _NODE.size + 16 * self._most_leaves + 8)
        signature, kind, level, count, left, right = _NODE.unpack_from(found)
        if (
            signature != b"TREE"
            or kind
            or level
            or count > self._most_leaves
            or (left, right) != (UNDEFINED, UNDEFINED)
        ):
            raise NotPlainError
        pairs = struct.unpack_from(f"<{2 * count + 1}Q", found, _NODE.size)
        return zip(pairs[:-1:2], pairs[1::2], pairs[2::2], strict=True)


def _text(heap: bytes, at: int) -> bytes:
    end = heap.find(b"\0", at)
    if end < at:
        raise NotPlainError
    return heap[at:end]


def _decoded(name: bytes) -> str:
    if b"/" in name or name == b".":
        raise NotPlainError  # libhdf5 follows it as a path, to another object
    try:
        return name.decode()
    except UnicodeDecodeError:
        raise NotPlainError from None


def _check_no_writer(descriptor: int) -> None:
    """Raise if libhdf5 would refuse to open the file, as a writer holds its lock."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        fcntl.flock(descriptor, fcntl.LOCK_UN)
    except OSError:
        raise NotPlainError from None
