"""What remote files have in common, whatever gets their bytes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from ray_h5.storage.byte_source import Buffer, Costs, Identity, KeptBytes, ObjectIdentity, Span, Then
from ray_h5.storage.fetching import IN_FLIGHT, read_ranges

STORE_COSTS = Costs(gap_bytes=256 << 10, few_gap_bytes=64 << 10, part_bytes=(1 << 20, 8 << 20), in_flight=IN_FLIGHT)
"""Measured at 60 ms to the first byte and 80 MB/s a stream: 2 MiB parts filled a link that 8 MiB parts left half idle,
and a gap of 256 KiB takes less CPU than the request that it saves."""


class InStore:
    """How files in stores are used, whatever store they are in. See `Storage`."""

    __slots__ = ()

    opened_at_once = IN_FLIGHT
    kept_open = 1024
    call_bytes = 64 << 20
    """What counts is how many rows are asked for at once. One batch at a time read 30 MB/s, 16 batches 93 MB/s (60 ms
    to the first byte; shuffled rows of 50 KB)."""

    is_fetched = True
    has_writers = False

    def seen(self, path: str, planned: Identity | None) -> Identity | None:  # noqa: ARG002  nothing is asked
        """Return the planned state: each read says which state it wants."""
        return planned

    def real_path(self, path: str) -> str:
        """Return the URL: in a store, a file has one."""
        return path


class RemoteFile(ABC):
    """One remote file in one state: a `ByteSource`.

    Parameters
    ----------
    expect : ObjectIdentity
        The state.
    """

    is_fetched = True
    descriptor = None
    path = "a file in a store"
    costs = STORE_COSTS

    def __init__(self, expect: ObjectIdentity) -> None:
        self._expect = expect

    @property
    def size(self) -> int:
        return self._expect.size

    @abstractmethod
    def identity(self) -> ObjectIdentity:
        """Return the state that the file has now; the expected one, if reads notice another."""

    @abstractmethod
    def get(self, offset: int, nbytes: int) -> memoryview:
        """Return bytes, in a thread that may wait; see `fetch`."""

    @property
    def cached(self) -> KeptBytes | None:
        """What has its bytes on a local disk, if they stay there."""
        return None

    def read_into(self, offset: int, buffer: Buffer) -> None:
        """Fill `buffer` with the bytes that begin at `offset`."""

        def then(number: int, found: memoryview) -> None:  # noqa: ARG001  there is one
            buffer[:] = found

        self.read_ranges([(offset, len(buffer))], then)

    def read_ranges(self, spans: Sequence[Span], then: Then) -> None:
        """Read spans, and pass each to `then` in this thread as it arrives."""
        read_ranges(self, spans, then)
