"""Hints about the next reads: they begin when reads turn out to wait, and end when reads do not."""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from ray_h5.errors import RayH5Error
from ray_h5.storage.byte_source import ByteSource

AHEAD_READS = 96
"""How many reads ahead the hints are. Random chunks of 53 KB from a disk, in a loop that does nothing else: 450 MB/s
without hints; 1300 with 16 ahead, 1525 with 64, 1165 with 256. Between our reads, rows are planned and decoded: an
epoch takes 0.37 s with 64 ahead, 0.33 s with 96, 0.35 s with 128 (measured)."""

_AHEAD_BYTES = 16 << 20
"""The hints stop at this many bytes ahead: of large reads, a few fill the queue of a disk."""

_MEMORY_S, _MEMORY_BYTES_PER_S = 40e-6, 1e9
"""A read that memory answers takes less than this, also on a slow machine (measured: 2 us, and 0.2 ms/MB)."""

_HINT_S, _HINT_BYTES_PER_S = 3e-6, 10e9
"""A hint takes less than this if the page cache has the bytes: 1 to 2 us. Otherwise it takes 5 to 20 us (measured)."""

_LONG_S, _LONG_BYTES_PER_S = 300e-6, 200e6
"""A read that takes longer waits for a slow disk or a server. Shorter waits may be for the interpreter's lock."""

_RISE, _BEGIN, _MOST = 4, 14, 64
"""A level rises by this much, is on above this, and is at most this: it is off after 64 times at the latest."""


class _Level:
    """Whether something happens more often than one time in five: its level rises by 4, or falls by 1.

    Any read may take long because the thread loses its CPU meanwhile, so it begins with the fourth time in a row.
    """

    __slots__ = ("is_on", "level")

    def __init__(self) -> None:
        self.level = 0
        self.is_on = False

    def add(self, happened: bool) -> None:
        """Count one more time. Threads may do so at once: a count that is lost does no harm."""
        if happened:
            self.level = min(self.level + _RISE, _MOST)
            if self.level > _BEGIN:
                self.is_on = True
        elif self.level:
            self.level -= 1
            if not self.level:
                self.is_on = False


class ReadTimes:
    """What the times of reads show about the files that are read.

    Attributes
    ----------
    is_cold : bool
        Whether bytes come from a disk or a server, so that hints help.
    waits_long : bool
        Whether reads wait for so long that other threads should run meanwhile. Hints do not help, then.
    """

    def __init__(self) -> None:
        self._cold = _Level()
        self._long = _Level()

    @property
    def is_cold(self) -> bool:
        return self._cold.is_on

    @property
    def waits_long(self) -> bool:
        return self._long.is_on

    @property
    def is_in_doubt(self) -> bool:
        """Whether each read is to be timed, not only a few."""
        return self._cold.level > 0 or self._long.level > 0

    def add_read(self, seconds: float, nbytes: int, *, hinted: bool = False) -> None:
        """Count a read. One that was hinted may be short because of that: its hint has been counted."""
        if (waited := seconds > _MEMORY_S + nbytes / _MEMORY_BYTES_PER_S) or not hinted:
            self._cold.add(waited)
        self._long.add(seconds > _LONG_S + nbytes / _LONG_BYTES_PER_S)

    def add_hint(self, seconds: float, nbytes: int) -> None:
        """Count a hint: one that takes long has begun to fetch the bytes, even if reads do not wait any more.

        A short one found them in memory: reads took long for another reason.
        """
        self._cold.add(seconds > _HINT_S + nbytes / _HINT_BYTES_PER_S)


class Extents(NamedTuple):
    """The byte ranges that the jobs of one read fetch, as (offset, size), in their order."""

    byte_source: ByteSource
    ranges: Sequence[tuple[int, int]]


Planned = Callable[[], Extents]
"""Plans the jobs of a read, and returns their byte ranges."""


class _Hints:
    """The hints of one read, given one after the other; `given` counts them."""

    __slots__ = ("_byte_source", "given", "ranges")

    def __init__(self, planned: Planned) -> None:
        self.given = 0
        self.ranges: Sequence[tuple[int, int]] = ()
        # The read itself raises the error of what cannot be read.
        with contextlib.suppress(RayH5Error, OSError):
            self._byte_source, self.ranges = planned()

    @property
    def left(self) -> int:
        """How many hints are still to give."""
        return len(self.ranges) - self.given

    def give(self, times: ReadTimes) -> None:
        """Give the next hint."""
        offset, nbytes = self.ranges[self.given]
        began = time.perf_counter()
        self._byte_source.will_need(offset, nbytes)
        times.add_hint(time.perf_counter() - began, nbytes)
        self.given += 1


class ReadAhead:
    """Tells the storage which bytes are read next, up to 96 reads ahead, while reads wait.

    Parameters
    ----------
    times : ReadTimes, optional
        Where the times of reads are counted. All that reads the same files shares one.
    coming : iterable of callable
        What plans the reads to come, one for each `begin`. It is called only while reads wait, and no further ahead
        than the hints are.
    given : int
        How many hints about the first of them were given already.
    """

    def __init__(self, times: ReadTimes | None = None, coming: Iterable[Planned] = (), given: int = 0) -> None:
        self.times = ReadTimes() if times is None else times
        self._coming: Iterator[Planned] = iter(coming)
        self._later: deque[_Hints] = deque()
        self._current: _Hints | None = None
        self._planned: Planned | None = None
        self._begun = 0
        self._due = 0
        self._already = given
        self._lock = threading.Lock()

    def begin(self, planned: Planned) -> None:
        """Begin a read; it is planned if its byte ranges are needed."""
        if self._later:
            self._current = self._later.popleft()
        else:
            next(self._coming, None)  # the same read
            self._current = None
        self._planned, self._begun, self._due = planned, 0, 0
        if self._already:
            self._current = self._new(planned)
        if self.times.is_cold:
            self.hint()

    def is_due(self, number: int) -> bool:
        """Return whether hints are due, before read `number` of one thread since `begin`."""
        self._begun = max(self._begun + 1, number)
        return self._begun >= self._due and self.times.is_cold

    def read_into(self, byte_source: ByteSource, offset: int, buffer: memoryview) -> None:
        """Fetch the bytes at `offset`, and count the time."""
        began = time.perf_counter()
        byte_source.read_into(offset, buffer)
        seconds = time.perf_counter() - began
        hinted = self._current is not None and self._current.given >= self._begun
        self.times.add_read(seconds, len(buffer), hinted=hinted)

    def hint(self) -> None:
        """Give the hints that are due."""
        if not self._lock.acquire(blocking=False):
            return  # another thread of this read gives them
        try:
            ahead = self._given_ahead()
            while ahead < AHEAD_READS and self.times.is_cold and (hints := self._next()) is not None:
                if ahead * hints.ranges[hints.given][1] >= _AHEAD_BYTES:
                    break
                hints.give(self.times)
                ahead += 1
            self._due = self._begun + 1 + ahead // 4
        finally:
            self._lock.release()

    @property
    def given_later(self) -> int:
        """How many hints were given for reads that come after the current one."""
        return sum(hints.given for hints in self._later)

    def _new(self, planned: Planned) -> _Hints:
        hints = _Hints(planned)
        hints.given = min(self._already, hints.left)
        self._already -= hints.given
        return hints

    def _given_ahead(self) -> int:
        """Return how many hints were given for reads that have not begun."""
        if self._current is None and self._planned is not None:
            self._current = self._new(self._planned)
        given = self.given_later
        if self._current is not None:
            # Some reads may have begun without a hint.
            self._current.given = min(max(self._current.given, self._begun), len(self._current.ranges))
            given += max(0, self._current.given - self._begun)
        return given

    def _next(self) -> _Hints | None:
        """Return the first read that has hints to give; None after the last one."""
        hints = self._later[-1] if self._later else self._current
        while hints is None or not hints.left:
            planned = next(self._coming, None)
            if planned is None:
                return None
            hints = self._new(planned)
            self._later.append(hints)
        return hints
