"""What remote files have in common, whatever gets their bytes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from ray_h5.storage.byte_source import Buffer, Costs, ObjectIdentity, Span, Then
from ray_h5.storage.disk_cache import CachedGetter
from ray_h5.storage.fetching import IN_FLIGHT, Getter, read_ranges

STORE_COSTS = Costs(gap_bytes=256 << 10, few_gap_bytes=64 << 10, part_bytes=(1 << 20, 8 << 20), in_flight=IN_FLIGHT)
"""Measured at 60 ms to the first byte and 80 MB/s a stream: 2 MiB parts filled a link that 8 MiB parts left half idle,
and a gap of 256 KiB takes less CPU than the request that it saves."""


class RemoteFile(ABC):
    """One remote file in one state: a `ByteSource`.

    Parameters
    ----------
    expect : ObjectIdentity
        The state.
    """

    is_remote = True
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
    def cached(self) -> CachedGetter | None:
        """What has its bytes on a local disk, if they stay there."""
        return None

    @property
    def lasting(self) -> Getter:
        """What gets bytes that each run needs, such as metadata: a cache keeps them."""
        return self if self.cached is None else self.cached.lasting()

    def read_into(self, offset: int, buffer: Buffer) -> None:
        """Fill `buffer` with the bytes that begin at `offset`."""
        self.read_spans([(offset, 0, len(buffer))], buffer)

    def read_spans(self, spans: Sequence[tuple[int, int, int]], buffer: Buffer) -> None:
        """Read byte ranges into places of one buffer. A span is its offset, its place and its size."""

        def then(number: int, found: memoryview) -> None:
            _, place, nbytes = spans[number]
            buffer[place : place + nbytes] = found

        self.read_ranges([(offset, nbytes) for offset, _, nbytes in spans], then)

    def read_ranges(self, spans: Sequence[Span], then: Then) -> None:
        """Read spans, and pass each to `then` in this thread as it arrives."""
        read_ranges(self, spans, then)

    def will_need(self, offset: int, nbytes: int) -> None:  # noqa: B027  most have nothing to do
        """Do nothing: what is wanted is asked for at once."""
