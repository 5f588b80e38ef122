"""The work of a read: tables of jobs, and steps in Python around them; and what it costs."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np

from ray_h5.manifest.partition import Partition
from ray_h5.manifest.row_requests import Request
from ray_h5.per_process import PerProcess
from ray_h5.read.native.job_table import CHUNKS_DECODED, DONE, JobTable, new_times
from ray_h5.read.native.steps_in_python import run_in_python
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
    """

    requests: int = 0
    bytes_read: int = 0
    chunks_decoded: int = 0

    def since(self, before: ReadStats) -> ReadStats:
        """Return what was counted since there were these counts."""
        return ReadStats(
            self.requests - before.requests,
            self.bytes_read - before.bytes_read,
            self.chunks_decoded - before.chunks_decoded,
        )

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
        How often reads of the files waited; see `ray_h5.read.native.job_table.new_times`.
    stats : ReadStats
        Its counts.
    held : HeldChunks, optional
        The decoded chunks that stay in memory.
    """

    times: np.ndarray = field(default_factory=new_times)
    stats: ReadStats = field(default_factory=ReadStats)
    held: Any = None  # its module imports this one

    def run(self, job: Job) -> None:
        """Run a job, or those of a table."""
        if not isinstance(job, JobTable):
            job(self)
            return
        if self.held is not None and self.held.max_bytes:
            self.held.run(job, self)
        else:
            self.run_table(job)
        for then in job.then:
            then()

    def run_table(self, table: JobTable) -> np.ndarray:
        """Run the jobs of a table, whatever decoded chunks are held, and return what was counted.

        Raises
        ------
        CorruptChunkError, TruncatedFileError, TransientIOError
            As reads of a chunk in Python raise them.
        StaleIndexError
            If a job would read or write outside of the arrays of the table.
        """
        status, counts = table.run_compiled(self.times)
        if status.any():  # not done: what is outside of its array, what the loop does not decode, and what is damaged
            edges = np.flatnonzero(np.diff(status != DONE, prepend=False, append=False)).tolist()
            for begin, end in zip(edges[::2], edges[1::2], strict=True):
                run_in_python(table, begin, end, counts)
        self.stats.add(ReadStats(*counts[: CHUNKS_DECODED + 1].tolist()))
        return counts


Job = JobTable | Callable[[Worker], None]
"""A piece of a read that depends on no other piece."""


def planned_later(jobs_of: Callable[[], Sequence[Job]]) -> Job:
    """Return jobs that are planned when they run, in order: of many narrow rows, tables are larger than values."""

    def run(worker: Worker) -> None:
        for job in jobs_of():
            worker.run(job)

    return run


def in_parts(byte_source: ByteSource, plans: Sequence[Callable[[], Sequence[Job]]]) -> list[Job]:
    """Return the work of several plans: of a file on a disk, each is made when it is run."""
    if byte_source.is_fetched:  # all ranges have to be known
        return [job for plan in plans for job in plan()]
    return [planned_later(plan) for plan in plans]


def staged(
    byte_source: ByteSource,
    reads: Callable[[Request, np.ndarray], Sequence[Job]],
    parts: Iterable[Request],
    like: np.ndarray,
    put: Callable[[Request, np.ndarray], None],
) -> list[Job]:
    """Return the work that reads parts of a request one after the other as they are stored, and puts them there.

    Parameters
    ----------
    byte_source : ByteSource
        The file that is read.
    reads : callable
        Returns the work that fills places of an array with rows as they are stored.
    parts : iterable of Request
        The parts.
    like : numpy.ndarray
        An array of no rows, of the shape and dtype of what is read.
    put : callable
        Puts the values of a part to its places: cast, or in another order.
    """

    def planned(part: Request) -> Sequence[Job]:
        values = np.empty((part.num_rows, *like.shape[1:]), like.dtype)
        jobs = reads(at_front(part), values)
        tables = [job for job in jobs if isinstance(job, JobTable) and len(job)]
        if not (byte_source.is_fetched and tables):
            return [*jobs, lambda _: put(part, values)]
        whole = JobTable.join(tables)
        others = [job for job in jobs if not isinstance(job, JobTable)]
        return [*others, replace(whole, then=(*whole.then, partial(put, part, values)))]

    return in_parts(byte_source, [partial(planned, part) for part in parts])


def at_front(request: Request) -> Request:
    """Return the same rows, with the first places of an array."""
    return replace(request, places=Partition.of(request.lengths).firsts)


def index_of(request: Request) -> slice | np.ndarray:
    """Return what selects the places of a range, or of a list, in an array."""
    places, first = request.places, int(request.places[0])
    return slice(first, first + request.num_rows) if request.is_range else places


class Asking(partial[None]):
    """A job that asks a store itself, and waits for the answers: several are run at once."""
