"""The bytes of a file as h5py writes it by default: superblock 0 or 1, groups with symbol tables, headers of version 1.

Whatever else a file has, or what is not as it should be, raises `FormatError`: libhdf5 reads it, or says what is wrong
with it.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator

from ray_h5.hdf5.files.file_bytes import ReadBytes
from ray_h5.hdf5.format import (
    UNDEFINED,
    USUAL_ENTRIES,
    USUAL_WIDTHS,
    FormatError,
    Message,
    MessageKind,
    group_entries,
    object_header,
    superblock,
)

__all__ = ["FormatError", "PlainBytes"]

_HEAD_BYTES = 4096
_LAST_KIND = MessageKind.FILE_SPACE
_MOST_BYTES = 1 << 20
_MOST_BYTES_OF_FILE = 1 << 24
"""Read of one file. A damaged file may lead to the same bytes again and again."""


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
    FormatError
        If the superblock is another one, or the file is cut short.
    """

    def __init__(self, read_at: ReadBytes, nbytes: int) -> None:
        self._read_at = read_at
        block = superblock(read_at(0, _HEAD_BYTES))
        if block.version > 1 or block.widths != USUAL_WIDTHS or block.tables[0] > 1 or block.end > nbytes:
            raise FormatError("a superblock of another version, or a file that is cut short")
        *versions, leaf, node, tree, driver = block.rest
        usual = 0, 0, UNDEFINED, UNDEFINED, USUAL_ENTRIES // 2
        if any(versions) or (block.flags, block.base, block.extension, driver, tree) != usual:
            raise FormatError("a superblock that h5py does not write by default")
        self.end, self.root = block.end, block.root
        self._most_symbols, self._most_leaves = 2 * leaf, 2 * node
        self._bytes_left = _MOST_BYTES_OF_FILE

    @classmethod
    def on_disk(cls, descriptor: int, nbytes: int) -> PlainBytes:
        """Return the bytes of an open file; raise `FormatError` also if a writer may have it open."""
        head = os.pread(descriptor, _HEAD_BYTES, 0)

        def read_at(address: int, count: int) -> bytes:
            is_there = address + count <= len(head)
            return head[address : address + count] if is_there else os.pread(descriptor, count, address)

        plain = cls(read_at, nbytes)
        _check_no_writer(descriptor)
        return plain

    def read(self, address: int, count: int) -> bytes:
        """Return bytes, fewer at the end of the file."""
        if address + count > self.end:
            count = self.end - address
        if count <= 0:
            return b""
        self._bytes_left -= count
        if self._bytes_left < 0 or count > _MOST_BYTES:
            raise FormatError(f"{count} bytes at once, or more metadata than a file has")
        try:
            return self._read_at(address, count)
        except OSError as exc:
            raise FormatError(str(exc)) from None

    def messages(self, address: int) -> list[Message]:
        """Return the messages of the object header at an address."""
        claimed, messages = object_header(self.read, address, USUAL_WIDTHS)
        if len(messages) != claimed:
            raise FormatError("a header of another version, or of more messages than it says")
        # A shared message is elsewhere; some that are not known forbid to read on.
        for kind, flags, body, _ in messages:
            if flags > 1 or kind > _LAST_KIND or len(body) & 7:
                raise FormatError("a message that h5py does not write by default")
        return messages

    def entries(self, table: bytes) -> Iterator[tuple[str, int]]:
        """Yield name and address of each object of a group, given its symbol table message, in the order of names."""
        return group_entries(self.read, table, self._most_symbols, self._most_leaves)


def _check_no_writer(descriptor: int) -> None:
    """Raise if libhdf5 would refuse to open the file, as a writer holds its lock."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        fcntl.flock(descriptor, fcntl.LOCK_UN)
    except OSError as exc:
        raise FormatError(str(exc)) from None
