"""What every storage has: the identity of a file, and random access to its bytes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import os
    from collections.abc import Sequence

Buffer = memoryview
"""A writable, C-contiguous view of bytes."""


@dataclass(frozen=True, slots=True)
class FileIdentity:
    """What distinguishes one state of a file from another.

    The device number is not part of it: the same file on a network mount has another one on each
    node.
    """

    size: int
    mtime_ns: int
    ctime_ns: int
    inode: int

    @classmethod
    def of(cls, stat: os.stat_result) -> FileIdentity:
        """Return the identity of the file that ``os.stat`` or ``os.fstat`` describes."""
        return cls(stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_ino)


class ByteSource(Protocol):
    """Random access to the bytes of one file, from any thread."""

    def read_into(self, offset: int, buffer: Buffer) -> None:
        """Fill `buffer` with the bytes that begin at `offset`."""

    def read_spans(self, spans: Sequence[tuple[int, int, int]], buffer: Buffer) -> None:
        """Read short byte ranges into places of one buffer. A span is its offset, its place and its size."""

    def will_need(self, offset: int, nbytes: int) -> None:
        """Take the hint that these bytes are read soon. It returns at once and raises nothing; it may do nothing."""

    def identity(self) -> FileIdentity:
        """Return the state that the file has now."""
