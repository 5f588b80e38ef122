"""What every storage has: files that are listed, their identities, and random access to their bytes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol, TypeAlias

if TYPE_CHECKING:
    import os

IN_FLIGHT_BYTES = 256 << 20
"""Most bytes of requests that were sent, and of answers that nobody has taken yet, in one process."""

Buffer = memoryview
"""A writable, C-contiguous view of bytes."""

Span: TypeAlias = tuple[int, int]
"""A byte range: its offset in the file, and its size."""

Then: TypeAlias = Callable[[int, memoryview], None]
"""``then(i, found)`` takes the bytes of span i. They are valid until it returns, unless it keeps the view."""


class MissingBytes(Exception):  # noqa: N818  no error: the pass is made again
    """Bytes of a remote file are not in memory. It is no OSError, which h5py's callers would translate."""


@dataclass(frozen=True, slots=True)
class FileIdentity:
    """What distinguishes one state of a file of a file system from another.

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


@dataclass(frozen=True, slots=True)
class ObjectIdentity:
    """What distinguishes one state of an object in a store from another.

    Attributes
    ----------
    etag : str
        The ETag, as the store returns it. It is empty for a store that has none (``allow_unversioned=True``).
    size : int
        Its size in bytes.
    modified_ns : int
        When it was written last, if there is no ETag; otherwise 0.
    """

    etag: str
    size: int
    modified_ns: int = 0


Identity: TypeAlias = FileIdentity | ObjectIdentity


def only_ctime_differs(expected: Identity | None, found: Identity | None) -> bool:
    """Return whether two states of a local file have the same size, mtime and inode, and another ctime."""
    if not isinstance(expected, FileIdentity) or not isinstance(found, FileIdentity):
        return False
    return expected != found and replace(expected, ctime_ns=found.ctime_ns) == found


@dataclass(frozen=True, slots=True)
class Costs:
    """What reads of a source cost: which ranges are worth joining, and how many reads run at once.

    Attributes
    ----------
    gap_bytes : int
        Bytes between two ranges that are read along, rather than read by a request of their own.
    few_gap_bytes : int
        The same for a read of few ranges: all of them are in flight at once, and bytes count more than requests.
    part_bytes : (int, int)
        The smallest and the largest request. What is wanted is parted so that all requests are in flight at once.
    in_flight : int
        Requests that run at once.
    """

    gap_bytes: int
    few_gap_bytes: int
    part_bytes: tuple[int, int]
    in_flight: int

    def parts_of(self, nbytes: int) -> int:
        """Return the size of a request, for a read of so many bytes."""
        least, most = self.part_bytes
        return max(least, min(most, nbytes // self.in_flight))


class ByteSource(Protocol):
    """Random access to the bytes of one file, from any thread."""

    @property
    def is_fetched(self) -> bool:
        """Whether ranges are fetched before the jobs that use them run: each read is a request that takes long."""

    @property
    def costs(self) -> Costs:
        """What reads cost."""

    @property
    def path(self) -> str:
        """The file, for messages."""

    @property
    def descriptor(self) -> int | None:
        """An open descriptor of its bytes, if it is a file of a file system."""

    def on_disk(self, spans: Sequence[Span]) -> list[bool]:
        """Return for byte ranges of a remote file whether each seems to be on a local disk."""

    @property
    def size(self) -> int:
        """Bytes of the file now."""

    def read_into(self, offset: int, buffer: Buffer) -> None:
        """Fill `buffer` with the bytes that begin at `offset`."""

    def read_ranges(self, spans: Sequence[Span], then: Then) -> None:
        """Read spans, several at once, and pass each to `then` in this thread as it arrives, in any order."""

    def identity(self) -> Identity:
        """Return the state that the file has now. A source whose reads notice a change returns the expected one."""
