"""Runs the jobs of a read in threads, and counts what they cost."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from ray_h5.fork import PerProcess
from ray_h5.hdf5.buffers import empty
from ray_h5.hdf5.reading.ahead import ReadAhead
from ray_h5.hdf5.reading.turn import Turn, turn_of_this_thread
from ray_h5.storage.byte_source import ByteSource


@dataclass(slots=True)
class ReadStats:
    """What reads have cost so far.

    Attributes
    ----------
    requests, bytes_read : int
        Reads of bytes from the file, and the bytes that they returned.
    chunks_decoded : int
        Chunks that were decoded here.
    h5py_reads : int
        Calls to h5py that read rows.
    """

    requests: int = 0
    bytes_read: int = 0
    chunks_decoded: int = 0
    h5py_reads: int = 0

    def add(self, other: ReadStats) -> None:
        """Add the counts of `other`. Several threads may do so at the same time."""
        with _STATS_LOCK.value:
            self.requests += other.requests
            self.bytes_read += other.bytes_read
            self.chunks_decoded += other.chunks_decoded
            self.h5py_reads += other.h5py_reads


_STATS_LOCK = PerProcess(threading.Lock)
"""One lock for all counts: it is held for a few additions, once a read."""


_TIMED = 4
_TIMED_SPANS = 64
"""One read in this many is timed while reads do not wait: to take the time costs a tenth of a small read. Of reads
without decoding, fewer are timed."""


@dataclass(slots=True)
class Worker:
    """The buffers that one thread reuses while it reads, and its counts."""

    ahead: ReadAhead = field(default_factory=ReadAhead)
    turn: Turn = field(default_factory=turn_of_this_thread)
    stats: ReadStats = field(default_factory=ReadStats)
    _buffers: dict[str, np.ndarray] = field(default_factory=dict)

    def fetch(self, byte_source: ByteSource, offset: int, buffer: np.ndarray) -> None:
        """Fill `buffer` with the bytes at `offset`."""
        stats = self.stats
        if stats.requests % _TIMED == 0 or self.ahead.times.is_in_doubt:
            self.fetch_timed(byte_source, offset, buffer)
            return
        stats.requests += 1
        stats.bytes_read += len(buffer)
        byte_source.read_into(offset, buffer.data)

    def fetch_timed(self, byte_source: ByteSource, offset: int, buffer: np.ndarray) -> None:
        """Fill `buffer` with the bytes at `offset`, and count how long that takes. Give the hints that are due."""
        stats, ahead = self.stats, self.ahead
        stats.requests += 1
        stats.bytes_read += len(buffer)
        if ahead.times.waits_long:
            self.turn.give_up()
        if ahead.is_due(stats.requests):
            ahead.hint()
        ahead.read_into(byte_source, offset, buffer.data)

    def buffer(self, name: str, nbytes: int) -> np.ndarray:
        """Return `nbytes` bytes of the buffer called `name`; they are valid until the next call with this name."""
        if len(held := self._buffers.get(name, np.empty(0, np.uint8))) < nbytes:
            held = self._buffers[name] = empty((nbytes,), np.dtype(np.uint8))
        return held[:nbytes]

    def between(self, slot: int, nbytes: int) -> np.ndarray:
        """Return a buffer for the result of one codec and the input of the next."""
        return self.buffer(f"between{slot}", nbytes)


Job = Callable[[Worker], None]
"""A piece of a read that depends on no other piece."""


class Fetch(partial[None]):
    """A job that fetches one byte range of the file: its first arguments are the offset and the size."""

    is_short = True
    """Whether one thread of the process at a time runs it; see `Turn`. Other kinds of jobs need not say so."""

    @property
    def extents(self) -> list[tuple[int, int]]:
        return [(self.args[0], self.args[1])]


class LongFetch(Fetch):
    """A job that takes long without the interpreter's lock: it copies or decodes many bytes."""

    is_short = False


@dataclass(frozen=True, slots=True, eq=False)
class FetchSpans:
    """A job that copies short byte ranges of the file into one array.

    Fast path: a `Fetch` for each takes 1.6 times as long for ranges of 1 KiB (CPU seconds).

    Attributes
    ----------
    byte_source : ByteSource
        The file.
    spans : sequence of (int, int, int)
        Offset in the file, place in the array and size of each.
    flat : numpy.ndarray
        The array, as bytes.
    """

    byte_source: ByteSource
    spans: Sequence[tuple[int, int, int]]
    flat: np.ndarray

    @property
    def is_short(self) -> bool:
        """As of `Fetch`."""
        return True

    @property
    def extents(self) -> list[tuple[int, int]]:
        return [(offset, nbytes) for offset, _, nbytes in self.spans]

    def __call__(self, worker: Worker) -> None:
        stats, times, view = worker.stats, worker.ahead.times, self.flat.data
        for first in range(0, len(self.spans), _TIMED_SPANS):
            (offset, begin, nbytes), *rest = self.spans[first : first + _TIMED_SPANS]
            worker.fetch_timed(self.byte_source, offset, self.flat[begin : begin + nbytes])
            if times.is_in_doubt:
                for offset, begin, nbytes in rest:
                    worker.fetch(self.byte_source, offset, self.flat[begin : begin + nbytes])
                continue
            self.byte_source.read_spans(rest, view)
            stats.requests += len(rest)
            stats.bytes_read += sum([nbytes for _, _, nbytes in rest])


@dataclass(frozen=True, slots=True, eq=False)
class InTurn:
    """Jobs for one thread: they hold a lock most of the time, or are short.

    Passing the interpreter's lock to another thread takes longer than decoding a small chunk: two threads
    took up to twice the time of one (measured, chunks of 4 KiB).
    """

    jobs: Sequence[Job]

    @property
    def is_short(self) -> bool:
        """Whether its jobs are short; they are of one kind."""
        return getattr(self.jobs[0], "is_short", False)

    def __call__(self, worker: Worker) -> None:
        for job in self.jobs:
            job(worker)


def ranges_of(jobs: Sequence[Job]) -> list[tuple[int, int]]:
    """Return the byte ranges that jobs fetch, as (offset, size), in the order of the jobs."""
    return [each for job in single_jobs(jobs) if isinstance(job, (Fetch, FetchSpans)) for each in job.extents]


def single_jobs(jobs: Sequence[Job]) -> Iterator[Job]:
    """Yield jobs one by one, also those that one thread would run in turn."""
    for job in jobs:
        if isinstance(job, InTurn):
            yield from job.jobs
        else:
            yield job


def run_jobs(jobs: Sequence[Job], threads: int, ahead: ReadAhead | None = None) -> ReadStats:
    """Run all jobs in up to `threads` threads, and return what they cost.

    `ahead` has begun the read that they belong to.
    """
    ahead = ReadAhead() if ahead is None else ahead
    if threads == 1:
        return _alone(jobs, Worker(ahead))
    in_turn = [job for job in jobs if isinstance(job, InTurn)]
    shared = deque(job for job in jobs if not isinstance(job, InTurn))
    # A thread without a job would only cost its start.
    threads = min(threads, len(shared) + bool(in_turn)) or 1
    if threads == 1:
        return _alone(jobs, Worker(ahead))
    total = ReadStats()
    own = [in_turn, *[[]] * (threads - 1)]  # the first thread alone runs the jobs for one thread
    workers = [Worker(ahead) for _ in own]
    with ThreadPoolExecutor(threads, thread_name_prefix="ray_h5") as pool:
        try:
            for stats in pool.map(_work, own, [shared] * threads, workers):
                total.add(stats)
        except BaseException:
            shared.clear()  # an error, or Ctrl-C: the other threads end after their current job
            raise
    return total


def _alone(jobs: Sequence[Job], worker: Worker) -> ReadStats:
    """Run jobs in this thread, the short ones in turn with other threads of the process that read."""
    turn, times = worker.turn, worker.ahead.times
    was_held = turn.is_held
    try:
        for job in jobs:
            if not getattr(job, "is_short", False):
                turn.give_up()
            elif not turn.is_held and not times.waits_long:
                turn.take()
            job(worker)
    finally:
        if not was_held:
            turn.give_up()
    return worker.stats


def _work(own: Sequence[Job], shared: deque[Job], worker: Worker) -> ReadStats:
    """Run the jobs in `own`, then jobs that all threads share until none is left."""
    try:
        for job in own:
            job(worker)
        while (other := _next(shared)) is not None:
            other(worker)
    except BaseException:
        shared.clear()  # the read has failed: no thread starts another job
        raise
    return worker.stats


def _next(shared: deque[Job]) -> Job | None:
    try:
        return shared.popleft()
    except IndexError:
        return None
