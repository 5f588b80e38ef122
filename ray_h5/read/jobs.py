"""The work of a read: tables of jobs, and steps in Python around them; and what it costs."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from ray_h5.per_process import PerProcess
from ray_h5.read.native.job_table import BYTES_READ, CHUNKS_DECODED, REQUESTS, JobTable
from ray_h5.read.native.run_tables import new_times, run_table
from ray_h5.storage.byte_source import ByteSource, Span


@dataclass(slots=True)
class ReadStats:
    """What reads have cost so far.

    Attributes
    ----------
    requests, bytes_read : int
        Reads of bytes from the file, and the bytes that they returned.
    chunks_decoded : int
        Chunks that were decoded here.
    """

    requests: int = 0
    bytes_read: int = 0
    chunks_decoded: int = 0

    def since(self, before: ReadStats) -> ReadStats:
        """Return what was counted since there were these counts."""
        return ReadStats(*(getattr(self, name) - getattr(before, name) for name in self.__slots__))

    def add(self, other: ReadStats) -> None:
        """Add the counts of `other`. Several threads may do so at the same time."""
        with _STATS_LOCK.value:
            self.requests += other.requests
            self.bytes_read += other.bytes_read
            self.chunks_decoded += other.chunks_decoded


_STATS_LOCK = PerProcess(threading.Lock)
"""One lock for all counts: it is held for a few additions, once a read."""


@dataclass(slots=True)
class Worker:
    """What runs jobs: what it counts, and what it knows of the files.

    Attributes
    ----------
    times : numpy.ndarray
        How often reads of the files waited; see `ray_h5.read.native.run_tables.new_times`.
    stats : ReadStats
        Its counts.
    arrived : mapping of int to memoryview, optional
        For a file in a store: the bytes that have arrived, by their offsets. Nothing else is read.
    """

    times: np.ndarray = field(default_factory=new_times)
    stats: ReadStats = field(default_factory=ReadStats)
    arrived: Mapping[int, memoryview] | None = None


Job = Callable[[Worker], None]
"""A piece of a read that depends on no other piece."""


@dataclass(frozen=True, slots=True, eq=False)
class TableJob:
    """Jobs of a table."""

    table: JobTable

    @property
    def byte_source(self) -> ByteSource:
        """The file that is read; the first one, if there are several."""
        return self.table.origins[0].byte_source

    @property
    def ranges(self) -> list[Span]:
        """The byte ranges that it reads."""
        return self.table.ranges

    def __call__(self, worker: Worker) -> None:
        for origin in self.table.origins:
            if origin.held is not None:
                origin.held.chunks.run(self, worker)
                return
        self.run_alone(worker)

    def run_alone(self, worker: Worker) -> None:
        """Run the jobs, whatever decoded chunks are held."""
        table = self.table
        if worker.arrived is not None:
            table = table.in_memory(range(len(table)), [worker.arrived[offset] for offset, _ in table.ranges])
        counts = run_table(table, worker.times)
        worker.stats.requests += int(counts[REQUESTS])
        worker.stats.bytes_read += int(counts[BYTES_READ])
        worker.stats.chunks_decoded += int(counts[CHUNKS_DECODED])


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
class Asking:
    """A job that asks a store itself, and waits for the answers."""

    ask: Callable[[], ReadStats]

    def __call__(self, worker: Worker) -> None:
        worker.stats.add(self.ask())


def ranges_of(jobs: Sequence[Job]) -> list[Span]:
    """Return the byte ranges that jobs read."""
    return [byte_range for job in jobs if isinstance(job, (TableJob, Unplanned)) for byte_range in job.ranges]


def run_jobs(jobs: Sequence[Job], worker: Worker) -> None:
    """Run jobs whose ranges are read as they run; tables are one."""
    tables = [job.table for job in jobs if isinstance(job, TableJob)]
    if tables:
        TableJob(JobTable.join(tables))(worker)
    if len(tables) < len(jobs):
        for job in jobs:
            if not isinstance(job, TableJob):
                job(worker)
