"""What every storage has: files that are listed, their identities, and random access to their bytes."""

from __future__ import annotations

import io
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

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


class ByteSource(ABC):
    """Random access to the bytes of one file, from any thread.

    Attributes
    ----------
    is_fetched : bool
        Whether ranges are fetched before the jobs that use them run: each read is a request that takes long.
    path : str
        The file, for messages.
    """

    is_fetched: ClassVar[bool] = False
    path: str

    @property
    def descriptor(self) -> int | None:
        """An open descriptor of its bytes, if it is one file of a file system."""
        return None

    @property
    @abstractmethod
    def size(self) -> int:
        """Bytes of the file now."""

    @abstractmethod
    def identity(self) -> Identity:
        """Return the state that the file has now. A source whose reads notice a change returns the expected one."""

    @abstractmethod
    def read_into(self, offset: int, buffer: Buffer) -> None:
        """Fill `buffer` with the bytes that begin at `offset`."""

    def get(self, offset: int, nbytes: int) -> memoryview:
        """Return the bytes at an offset; of a file in a store by one request, in a thread that may wait."""
        self.read_into(offset, data := memoryview(bytearray(nbytes)))
        return data

    def read_ranges(self, spans: Sequence[Span], then: Then) -> None:
        """Read spans, in any order or several at once, and pass each to `then` in this thread as it arrives."""
        for number, span in enumerate(spans):
            then(number, self.get(*span))

    def on_disk(self, spans: Sequence[Span]) -> list[bool]:
        """Return for byte ranges whether each seems to be on a local disk."""
        return [True for _ in spans]


class FileObject(io.RawIOBase):
    """Bytes at offsets as a file object, for other libraries.

    Parameters
    ----------
    size : int
        How many they are.
    read_into : callable
        Fills a buffer with the bytes that begin at an offset.
    """

    def __init__(self, size: int, read_into: Callable[[int, Buffer], None]) -> None:
        self._size, self._read_into, self._at = size, read_into, 0

    def readable(self) -> bool:
        return True

    seekable = readable

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        return self._at

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer).cast("B")[: max(0, self._size - self._at)]
        if len(view):
            self._read_into(self._at, view)
        self._at += len(view)
        return len(view)
