"""What remote files have in common, whatever gets their bytes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from ray_h5.errors import NotHDF5Error
from ray_h5.storage.addresses import Address
from ray_h5.storage.block_cache import CachedGetter
from ray_h5.storage.byte_source import Buffer, Costs, Identity, ObjectIdentity, Span, Then
from ray_h5.storage.request_pool import IN_FLIGHT, Getter, fetch

STORE_COSTS = Costs(gap_bytes=256 << 10, few_gap_bytes=64 << 10, part_bytes=(1 << 20, 8 << 20), in_flight=IN_FLIGHT)
"""Measured at 60 ms to the first byte and 80 MB/s a stream: 2 MiB parts filled a link that 8 MiB parts left half idle,
and a gap of 256 KiB takes less CPU than the request that it saves."""


@dataclass(frozen=True, slots=True)
class Found:
    """A file in a listing: its URL and its state."""

    url: str
    key: str
    identity: ObjectIdentity


class InStore(ABC):
    """How files in stores are used, whatever store they are in. See also `LocalStorage`."""

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

    @property
    @abstractmethod
    def place(self) -> str:
        """What says which store a URL is of, without secrets."""

    @abstractmethod
    def address(self, url: str) -> Address:
        """Return the parts of a URL."""

    @abstractmethod
    def identity(self, path: str) -> ObjectIdentity | None:
        """Return the state that a file has now; None if it does not exist."""

    @abstractmethod
    def check(self, path: str) -> ObjectIdentity:
        """Return the state of a file that exists and is not empty; raise the error that says what it is."""

    @abstractmethod
    def list(self, url: str, *, below: bool) -> tuple[list[Found], list[str]]:
        """Return the files in a folder, whose URL ends in ``/``, and the keys of its folders; or all files below it."""

    @abstractmethod
    def get(self, path: str, expect: ObjectIdentity, offset: int, nbytes: int) -> memoryview:
        """Return bytes of a file in an expected state, by one request, in a thread that may wait."""

    def getter(self, path: str, expect: ObjectIdentity) -> Getter:
        """Return what gets ranges of a file in one state."""
        return Requests(self, path, expect)

    def open(self, path: str, expect: Any) -> RemoteFile:
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

    def on_disk(self, spans: Sequence[Span]) -> list[bool]:
        """Return for byte ranges whether each seems to be in the cache."""
        return self._getter.has(spans) if isinstance(self._getter, CachedGetter) else [False for _ in spans]

    def read_into(self, offset: int, buffer: Buffer) -> None:
        """Fill `buffer` with the bytes that begin at `offset`."""

        def then(number: int, found: memoryview) -> None:  # noqa: ARG001  there is one
            buffer[:] = found

        self.read_ranges([(offset, len(buffer))], then)

    def read_ranges(self, spans: Sequence[Span], then: Then) -> None:
        """Read spans, and pass each to `then` in this thread as it arrives."""
        fetch([(self, offset, nbytes) for offset, nbytes in spans], then)
