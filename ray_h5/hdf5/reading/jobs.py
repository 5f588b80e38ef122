"""The work of a read, cut into jobs; and the jobs of columns that h5py reads for us."""

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
        Calls to the source, and the bytes they returned.
    chunks_decoded : int
        Chunks that went through the decoder.
    h5py_reads : int
        Reads that went through h5py.
    """

    requests: int = 0
    bytes_read: int = 0
    chunks_decoded: int = 0
    h5py_reads: int = 0

    def add(self, other: ReadStats) -> None:
        """Count what `other` cost as well; several threads may do so at once."""
        with _STATS_LOCK.value:
            for each in fields(self):
                setattr(self, each.name, getattr(self, each.name) + getattr(other, each.name))


_STATS_LOCK = PerProcess(threading.Lock)
"""One lock for all counts: it is held for a few additions, once a read."""


@dataclass(slots=True)
class Worker:
    """What one thread needs while it reads: a few buffers that it uses again, and its counts."""

    stats: ReadStats = field(default_factory=ReadStats)
    _buffers: dict[str, np.ndarray] = field(default_factory=dict)

    def buffer(self, name: str, nbytes: int) -> np.ndarray:
        """Lend the buffer called `name`, of exactly `nbytes` bytes."""
        if len(held := self._buffers.get(name, np.empty(0, np.uint8))) < nbytes:
            held = self._buffers[name] = empty((nbytes,), np.dtype(np.uint8))
        return held[:nbytes]

    def between(self, slot: int, nbytes: int) -> np.ndarray:
        """Lend a buffer for what passes between two steps of a pipeline."""
        return self.buffer(f"between{slot}", nbytes)


Job = Callable[[Worker], None]
"""A piece of a read that depends on no other piece."""


@dataclass(frozen=True, slots=True, eq=False)
class InTurn:
    """Jobs that are best done by one thread: most of their time they hold a lock, or they are short.

    To hand the interpreter from thread to thread takes longer than to decode a small chunk: two threads
    took up to twice the time of one (measured, chunks of 4 KiB).
    """

    jobs: Sequence[Job]

    def __call__(self, worker: Worker) -> None:
        for job in self.jobs:
            job(worker)


def run_jobs(jobs: Sequence[Job], threads: int) -> ReadStats:
    """Do all jobs, in up to `threads` threads, and return what they cost."""
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
            shared.clear()  # an error, or Ctrl-C: the others do no more than what they are at
            raise
    return total


def _work(own: Sequence[Job], shared: deque[Job]) -> ReadStats:
    """Do one's own jobs, and then those that are there for all, as many as one comes to."""
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
