"""Runs the jobs of a read in threads, and counts what they cost."""

from __future__ import annotations

import itertools
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import numpy as np

from ray_h5.buffers import empty
from ray_h5.fork import PerProcess
from ray_h5.read.kernel.job_table import BYTES_READ, CHUNKS_DECODED, REQUESTS, Field, JobTable
from ray_h5.read.kernel.run_tables import new_times, run_table
from ray_h5.storage.byte_source import ByteSource, Span

_PARTS_A_THREAD = 4
_PART_BYTES = 256 << 10
"""A table of jobs is cut into so many parts a thread, of at least so many bytes: threads end at about the same time."""


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

    def since(self, before: ReadStats) -> ReadStats:
        """Return what was counted since there were these counts."""
        return ReadStats(*(getattr(self, name) - getattr(before, name) for name in self.__slots__))

    def add(self, other: ReadStats) -> None:
        """Add the counts of `other`. Several threads may do so at the same time."""
        with _STATS_LOCK.value:
            self.requests += other.requests
            self.bytes_read += other.bytes_read
            self.chunks_decoded += other.chunks_decoded
            self.h5py_reads += other.h5py_reads


_STATS_LOCK = PerProcess(threading.Lock)
"""One lock for all counts: it is held for a few additions, once a read."""


@dataclass(slots=True)
class Worker:
    """A thread that runs jobs: what it counts, and what it knows of the files.

    Attributes
    ----------
    times : numpy.ndarray
        How often reads of the files waited; see `ray_h5.read.kernel.run_tables.new_times`.
    stats : ReadStats
        Its counts.
    arrived : mapping of int to memoryview, optional
        For a file in a store: the bytes that have arrived, by their offsets. Nothing else is read.
    """

    times: np.ndarray = field(default_factory=new_times)
    stats: ReadStats = field(default_factory=ReadStats)
    arrived: Mapping[int, memoryview] | None = None
    _buffers: dict[str, np.ndarray] = field(default_factory=dict)

    def fetch(self, byte_source: ByteSource, offset: int, buffer: np.ndarray) -> None:
        """Fill `buffer` with the bytes at `offset`."""
        self.stats.requests += 1
        self.stats.bytes_read += len(buffer)
        byte_source.read_into(offset, buffer.data)

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
class TableJob:
    """Jobs of a table, from `first` to `stop`."""

    table: JobTable
    first: int = 0
    stop: int | None = None

    @property
    def byte_source(self) -> ByteSource:
        """The file that is read; the first one, if there are several."""
        return self.table.origins[0].byte_source

    @property
    def ranges(self) -> list[Span]:
        """The byte ranges that it reads."""
        return self.table.ranges

    def __call__(self, worker: Worker) -> None:
        held = next((each.held for each in self.table.origins if each.held is not None), None)
        if held is None:
            self.run_alone(worker)
        else:
            held.chunks.run(self, worker)

    def run_alone(self, worker: Worker) -> None:
        """Run the jobs, whatever decoded chunks are held."""
        table = self.table
        if worker.arrived is not None:
            table = table.in_memory(range(len(table)), [worker.arrived[offset] for offset, _ in table.ranges])
        counts = run_table(table, worker.times, first=self.first, stop=self.stop)
        worker.stats.requests += int(counts[REQUESTS])
        worker.stats.bytes_read += int(counts[BYTES_READ])
        worker.stats.chunks_decoded += int(counts[CHUNKS_DECODED])

    def parts(self, threads: int) -> list[TableJob]:
        """Return the same jobs in parts of about as many bytes, for several threads."""
        jobs = self.table.jobs[:, self.first : self.stop]
        ends = np.cumsum(jobs[Field.SIZE] + jobs[Field.DECODED])
        count = int(min(threads * _PARTS_A_THREAD, max(1, ends[-1] // _PART_BYTES), len(ends)))
        cuts = np.unique(np.searchsorted(ends, ends[-1] * np.arange(1, count) // count) + 1).tolist()
        edges = [self.first + each for each in [0, *(cut for cut in cuts if cut < len(ends)), len(ends)]]
        return [TableJob(self.table, low, high) for low, high in itertools.pairwise(edges)]


@dataclass(frozen=True, slots=True, eq=False)
class Unplanned:
    """Jobs that are planned when they run, and run in order: of many narrow rows, tables are larger than values."""

    byte_source: ByteSource
    jobs_of: Callable[[], Sequence[Job]]

    @property
    def ranges(self) -> list[Span]:
        """The byte ranges that it reads."""
        return ranges_of(self.jobs_of())

    def __call__(self, worker: Worker) -> None:
        for job in self.jobs_of():
            job(worker)


def staged(
    byte_source: ByteSource,
    jobs_into: Callable[[np.ndarray], Sequence[Job]],
    shape: tuple[int, ...],
    dtype: np.dtype,
    put: Callable[[np.ndarray], None],
) -> Unplanned:
    """Return work that reads values as they are stored, and puts them into the output: cast, or in another order.

    Parameters
    ----------
    byte_source : ByteSource
        The file that is read.
    jobs_into : callable
        Returns the jobs that fill an array of `shape` and `dtype`, the stored one.
    shape, dtype
        Of the values.
    put : callable
        Puts them there.
    """

    def jobs() -> list[Job]:
        values = np.empty(shape, dtype)
        return [*jobs_into(values), lambda _: put(values)]

    return Unplanned(byte_source, jobs)


@dataclass(frozen=True, slots=True, eq=False)
class InTurn:
    """Jobs for one thread: they hold a lock most of the time."""

    jobs: Sequence[Job]

    def __call__(self, worker: Worker) -> None:
        for job in self.jobs:
            job(worker)


@dataclass(frozen=True, slots=True, eq=False)
class Asking:
    """A job that asks a store itself, and waits for the answers."""

    ask: Callable[[], ReadStats]

    def __call__(self, worker: Worker) -> None:
        worker.stats.add(self.ask())


def ranges_of(jobs: Sequence[Job]) -> list[Span]:
    """Return the byte ranges that jobs read."""
    return [each for job in jobs if isinstance(job, (TableJob, Unplanned)) for each in job.ranges]


def run_jobs(jobs: Sequence[Job], threads: int, times: np.ndarray | None = None) -> ReadStats:
    """Run jobs in up to `threads` threads; their ranges are read as they run.

    Parameters
    ----------
    jobs : sequence of callable
        The jobs.
    threads : int
        Threads that run them.
    times : numpy.ndarray, optional
        How often reads of these files waited.

    Returns
    -------
    ReadStats
        What the jobs have cost.
    """
    times = new_times() if times is None else times
    tables = [job.table for job in jobs if isinstance(job, TableJob)]
    others = [job for job in jobs if not isinstance(job, TableJob)]
    joined = [TableJob(JobTable.join(tables))] if tables else []
    if joined and threads > 1:
        joined = joined[0].parts(threads)
    in_turn = [job for job in others if isinstance(job, InTurn)]
    shared: deque[Job] = deque([*joined, *(job for job in others if not isinstance(job, InTurn))])
    # A thread without a job would only cost its start.
    threads = min(threads, len(shared) + bool(in_turn))
    if threads <= 1:
        worker = Worker(times)
        _work(in_turn, shared, worker)
        return worker.stats
    total = ReadStats()
    own: list[Sequence[Job]] = [in_turn, *[[]] * (threads - 1)]  # the first thread alone runs the jobs for one thread
    workers = [Worker(times) for _ in own]
    with ThreadPoolExecutor(threads, thread_name_prefix="ray_h5") as pool:
        try:
            for stats in pool.map(_work, own, [shared] * threads, workers):
                total.add(stats)
        except BaseException:
            shared.clear()  # an error, or Ctrl-C: the other threads end after their current job
            raise
    return total


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
