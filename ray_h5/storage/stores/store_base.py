"""What remote files have in common, whatever gets their bytes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from ray_h5.errors import NotHDF5Error
from ray_h5.storage.block_cache import CachedGetter
from ray_h5.storage.byte_source import Buffer, Costs, Identity, KeptBytes, ObjectIdentity, Span, Then
from ray_h5.storage.request_pool import IN_FLIGHT, Getter, read_ranges

STORE_COSTS = Costs(gap_bytes=256 << 10, few_gap_bytes=64 << 10, part_bytes=(1 << 20, 8 << 20), in_flight=IN_FLIGHT)
"""Measured at 60 ms to the first byte and 80 MB/s a stream: 2 MiB parts filled a link that 8 MiB parts left half idle,
and a gap of 256 KiB takes less CPU than the request that it saves."""


class InStore(ABC):
    """How files in stores are used, whatever store they are in. See `Storage`."""

    __slots__ = ()

    opened_at_once: ClassVar[int] = IN_FLIGHT
    kept_open: ClassVar[int] = 1024
    call_bytes: ClassVar[int] = 64 << 20
    """What counts is how many rows are asked for at once. One batch at a time read 30 MB/s, 16 batches 93 MB/s (60 ms
    to the first byte; shuffled rows of 50 KB)."""

    is_fetched: ClassVar[bool] = True
    has_writers: ClassVar[bool] = False
    reads_notice_changes: ClassVar[bool] = True
    """Whether each read says which state it wants, so that nobody has to look at the file before and after."""

    @abstractmethod
    def check(self, path: str) -> ObjectIdentity:
        """Return the state of a file that exists and is not empty; raise the error that says what it is."""

    @abstractmethod
    def get(self, path: str, expect: ObjectIdentity, offset: int, nbytes: int) -> memoryview:
        """Return bytes of a file in an expected state, by one request, in a thread that may wait."""

    def getter(self, path: str, expect: ObjectIdentity) -> Getter:
        """Return what gets ranges of a file in one state."""
        return Requests(self, path, expect)

    def open(self, path: str, expect: ObjectIdentity) -> RemoteFile:
        """Return the bytes of a file in one state. It costs no request."""
        if expect.size == 0:
            raise NotHDF5Error(f"{path}: expected an HDF5 file, found an empty one (0 bytes)")
        return RemoteFile(self, path, expect)

    def seen(self, path: str, planned: Identity | None) -> Identity | None:  # noqa: ARG002  nothing is asked
        """Return the planned state: each read says which state it wants."""
        return planned

    def real_path(self, path: str) -> str:
        """Return the URL: in a store, a file has one."""
        return path


@dataclass(frozen=True, slots=True)
class Requests:
    """Gets ranges of one file in one state by requests."""

    storage: InStore
    url: str
    expect: ObjectIdentity

    def get(self, offset: int, nbytes: int) -> memoryview:
        """Return bytes by one request."""
        return self.storage.get(self.url, self.expect, offset, nbytes)


class RemoteFile:
    """One remote file in one state: a `ByteSource`.

    Parameters
    ----------
    storage : InStore
        Where it is.
    url : str
        The file.
    expect : ObjectIdentity
        The state.
    """

    is_fetched: ClassVar[bool] = True
    descriptor: ClassVar[None] = None
    path: ClassVar[str] = "a file in a store"
    costs: Costs = STORE_COSTS

    def __init__(self, storage: InStore, url: str, expect: ObjectIdentity) -> None:
        self._storage, self._url, self._expect = storage, url, expect
        self._getter = storage.getter(url, expect)

    @property
    def size(self) -> int:
        return self._expect.size

    def identity(self) -> ObjectIdentity:
        """Return the state that the file has now; the expected one, if reads notice another."""
        return self._expect if self._storage.reads_notice_changes else self._storage.check(self._url)

    def get(self, offset: int, nbytes: int) -> memoryview:
        """Return bytes by one request, or from a disk, in a thread that may wait; see `fetch`."""
        return self._getter.get(offset, nbytes)

    @property
    def cached(self) -> KeptBytes | None:
        """What has its bytes on a local disk, if they stay there."""
        return self._getter if isinstance(self._getter, CachedGetter) else None

    def read_into(self, offset: int, buffer: Buffer) -> None:
        """Fill `buffer` with the bytes that begin at `offset`."""

        def then(number: int, found: memoryview) -> None:  # noqa: ARG001  there is one
            buffer[:] = found

        self.read_ranges([(offset, len(buffer))], then)

    def read_ranges(self, spans: Sequence[Span], then: Then) -> None:
        """Read spans, and pass each to `then` in this thread as it arrives."""
        read_ranges(self, spans, then)
