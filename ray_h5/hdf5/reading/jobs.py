"""Runs the jobs of a read in threads, and counts what they cost."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, fields

import numpy as np

from ray_h5.fork import PerProcess
from ray_h5.hdf5.buffers import empty


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
            for each in fields(self):
                setattr(self, each.name, getattr(self, each.name) + getattr(other, each.name))


_STATS_LOCK = PerProcess(threading.Lock)
"""One lock for all counts: it is held for a few additions, once a read."""


@dataclass(slots=True)
class Worker:
    """The buffers that one thread reuses while it reads, and its counts."""

    stats: ReadStats = field(default_factory=ReadStats)
    _buffers: dict[str, np.ndarray] = field(default_factory=dict)

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


@dataclass(frozen=True, slots=True, eq=False)
class InTurn:
    """Jobs for one thread: they hold a lock most of the time, or are short.

    Passing the interpreter's lock to another thread takes longer than decoding a small chunk: two threads
    took up to twice the time of one (measured, chunks of 4 KiB).
    """

    jobs: Sequence[Job]

    def __call__(self, worker: Worker) -> None:
        for job in self.jobs:
            job(worker)


def run_jobs(jobs: Sequence[Job], threads: int) -> ReadStats:
    """Run all jobs in up to `threads` threads, and return what they cost."""
    in_turn = [job for job in jobs if isinstance(job, InTurn)]
    shared = deque(job for job in jobs if not isinstance(job, InTurn))
    threads = min(threads, len(shared) + bool(in_turn)) or 1
    if threads == 1:
        return _work(jobs, deque())
    total = ReadStats()
    own = [in_turn, *[[]] * (threads - 1)]
    with ThreadPoolExecutor(threads, thread_name_prefix="ray_h5") as pool:
        try:
            for stats in pool.map(_work, own, [shared] * threads):
                total.add(stats)
        except BaseException:
            shared.clear()  # an error, or Ctrl-C: the other threads end after their current job
            raise
    return total


def _work(own: Sequence[Job], shared: deque[Job]) -> ReadStats:
    """Run the jobs in `own`, then jobs that all threads share until none is left."""
    worker = Worker()
    try:
        for job in own:
            job(worker)
        while (other := _next(shared)) is not None:
            other(worker)
    except BaseException:
        shared.clear()
        raise
    return worker.stats


def _next(shared: deque[Job]) -> Job | None:
    try:
        return shared.popleft()
    except IndexError:
        return None
