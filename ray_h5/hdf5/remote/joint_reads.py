"""Jobs of reads of remote files, run together: what they need is fetched by many requests at once."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import TypeAlias

import numpy as np

from ray_h5.hdf5.reading.jobs import Fetch, FetchSpans, Job, ReadStats, Worker, single_jobs
from ray_h5.storage.byte_source import ByteSource
from ray_h5.storage.disk_cache import BLOCK_BYTES
from ray_h5.storage.fetching import fetch

_FEW_RANGES = 32


@dataclass(slots=True, eq=False)
class RemoteJob:
    """A job of a read of a remote file, and the bytes that it needs.

    Attributes
    ----------
    job : Job
        The work. It gets its bytes from an `_ArrivedWorker`.
    byte_source : ByteSource
        The file.
    extents : sequence of (int, int)
        The byte ranges that it fetches.
    read : int
        The number of the read that it belongs to.
    """

    job: Job
    byte_source: ByteSource
    extents: Sequence[tuple[int, int]]
    read: int = 0
    arrived: dict[int, memoryview] = field(default_factory=dict)
    missing: int = 0


def remote_jobs(jobs: Sequence[Job], byte_source: ByteSource, read: int = 0) -> Iterator[RemoteJob]:
    """Yield jobs with the bytes that they need. A job of many short ranges becomes one for each."""
    for job in single_jobs(jobs):
        if isinstance(job, FetchSpans):
            for span in job.spans:
                yield RemoteJob(FetchSpans(byte_source, [span], job.flat), byte_source, [(span[0], span[2])], read)
        else:
            yield RemoteJob(job, byte_source, job.extents if isinstance(job, Fetch) else (), read)


@dataclass(slots=True)
class _ArrivedWorker(Worker):
    """A worker whose bytes have arrived before it runs a job."""

    arrived: dict[int, memoryview] = field(default_factory=dict)

    def fetch(self, byte_source: ByteSource, offset: int, buffer: np.ndarray) -> None:  # noqa: ARG002
        buffer[:] = np.frombuffer(self.arrived[offset], np.uint8)

    def fetch_timed(self, byte_source: ByteSource, offset: int, buffer: np.ndarray) -> None:
        self.fetch(byte_source, offset, buffer)


@dataclass(slots=True, eq=False)
class _Member:
    """A byte range that a job needs, or a part of it, and where it is in a request."""

    job: RemoteJob
    offset: int
    begin: int
    nbytes: int
    into: memoryview | None = None


@dataclass(slots=True, eq=False)
class _Request:
    """A request for a part of a file, and what it is for."""

    byte_source: ByteSource
    offset: int
    nbytes: int
    members: list[_Member]


class JobFailure(Exception):  # noqa: N818  it carries an error to the read that it belongs to
    """An error of a job of one of several reads."""

    def __init__(self, read: int, error: BaseException) -> None:
        super().__init__(read)
        self.read, self.error = read, error


def run_remote_jobs(jobs: Sequence[RemoteJob], threads: int) -> ReadStats:
    """Run jobs as their bytes arrive, in this thread and up to `threads` - 1 others, and return what they cost.

    Raises
    ------
    JobFailure
        If a job fails. The other jobs may not have run.
    """
    runner = _Runner(threads)
    try:
        for job in jobs:
            if not job.extents:
                runner.run(job)
        requests = _requests([job for job in jobs if job.extents])

        def then(number: int, found: memoryview) -> None:
            for member in requests[number].members:
                _arrive(member, found)
                if not member.job.missing:
                    runner.run(member.job)

        fetch([(each.byte_source, each.offset, each.nbytes) for each in requests], then)  # type: ignore[misc]
        runner.finish()
    finally:
        runner.close()
    total = runner.stats()
    total.requests += len(requests)
    total.bytes_read += sum(each.nbytes for each in requests)
    return total


def cost_of(jobs: Sequence[RemoteJob]) -> ReadStats:
    """Return the requests of jobs, and their bytes, without running them."""
    requests = _requests([job for job in jobs if job.extents])
    return ReadStats(len(requests), sum(each.nbytes for each in requests))


def _arrive(member: _Member, found: memoryview) -> None:
    part = found[member.begin : member.begin + member.nbytes]
    if member.into is not None:
        member.into[:] = part
    else:
        member.job.arrived[member.offset] = part
    member.job.missing -= 1


class _Runner:
    """Runs jobs, in other threads while these have room, each with a worker of its own."""

    def __init__(self, threads: int) -> None:
        self._threads = threads
        self._pool: ThreadPoolExecutor | None = None
        self._workers: SimpleQueue[_ArrivedWorker] = SimpleQueue()
        self._all: list[_ArrivedWorker] = []
        self._running: deque[Future[None]] = deque()

    def run(self, job: RemoteJob) -> None:
        if self._threads == 1:
            self._work(job)
            return
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self._threads, thread_name_prefix="ray_h5")
        if len(self._running) >= 2 * self._threads:
            done, left = wait(self._running, return_when=FIRST_COMPLETED)
            self._running = deque(left)
            for each in done:
                each.result()
        self._running.append(self._pool.submit(self._work, job))

    def finish(self) -> None:
        """Wait for the jobs that run."""
        while self._running:
            self._running.popleft().result()

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)

    def stats(self) -> ReadStats:
        total = ReadStats()
        for each in self._all:
            total.add(each.stats)
        return total

    def _work(self, job: RemoteJob) -> None:
        worker = self._worker()
        worker.arrived, job.arrived = job.arrived, {}
        try:
            job.job(worker)
        except Exception as exc:
            raise JobFailure(job.read, exc) from exc
        finally:
            worker.arrived = {}
            self._workers.put(worker)

    def _worker(self) -> _ArrivedWorker:
        if self._workers.empty():
            worker = _ArrivedWorker()
            self._all.append(worker)
            return worker
        return self._workers.get()


_Range: TypeAlias = tuple[int, int, RemoteJob]
"""The offset and the size of bytes that a job needs."""


def _requests(jobs: Sequence[RemoteJob]) -> list[_Request]:
    """Join the byte ranges of jobs into requests, and part those that are larger than one."""
    by_source: dict[int, list[_Range]] = {}
    for job in jobs:
        by_source.setdefault(id(job.byte_source), []).extend((*extent, job) for extent in job.extents)
        job.missing = len(job.extents)
    apart = [each for ranges in by_source.values() for each in _on_disk(ranges)]
    # With what is on a disk: otherwise a cache made requests of its own, for gaps that are fetched without one.
    count = sum(len(there) + len(missing) for there, missing in apart)
    total = sum(nbytes for _, missing in apart for _, nbytes, _ in missing)
    requests: list[_Request] = []
    for there, missing in apart:
        costs = (there or missing)[0][2].byte_source.costs
        gap = costs.gap_bytes if count >= _FEW_RANGES else costs.few_gap_bytes
        # No block is between two that are as close as this.
        requests += _joined(there, BLOCK_BYTES - 1, *costs.part_bytes)
        requests += _joined(missing, gap, costs.parts_of(total), costs.part_bytes[1])
    return requests


def _on_disk(ranges: list[_Range]) -> Iterator[tuple[list[_Range], list[_Range]]]:
    """Yield the byte ranges of a file that a cache on a disk has, and the others; ascending.

    They are not joined: where one of two neighbours is there, bytes of both would be fetched.
    """
    ranges.sort(key=lambda each: (each[0], each[1]))
    cached = ranges[0][2].byte_source.cached if ranges else None
    if cached is not None:
        is_there = cached.has([(offset, nbytes) for offset, nbytes, _ in ranges])
        there = [each for each, found in zip(ranges, is_there, strict=True) if found]
        yield there, [each for each, found in zip(ranges, is_there, strict=True) if not found]
    elif ranges:
        yield [], ranges


def _joined(ranges: list[_Range], gap: int, part_bytes: int, most: int) -> list[_Request]:
    requests: list[_Request] = []
    last: _Request | None = None
    for offset, nbytes, job in ranges:
        if nbytes > most:
            requests += _parted(offset, nbytes, job, part_bytes)
            last = None
            continue
        end = offset + nbytes
        if last is None or offset - (last.offset + last.nbytes) > gap or end - last.offset > max(part_bytes, nbytes):
            last = _Request(job.byte_source, offset, nbytes, [])
            requests.append(last)
        last.nbytes = max(last.nbytes, end - last.offset)
        last.members.append(_Member(job, offset, offset - last.offset, nbytes))
    return requests


def _parted(offset: int, nbytes: int, job: RemoteJob, part_bytes: int) -> Iterator[_Request]:
    """Yield requests for the parts of one large range: it is put together as they arrive."""
    whole = memoryview(bytearray(nbytes))
    job.arrived[offset] = whole
    job.missing += -(-nbytes // part_bytes) - 1
    for begin in range(0, nbytes, part_bytes):
        size = min(part_bytes, nbytes - begin)
        member = _Member(job, offset, 0, size, whole[begin : begin + size])
        yield _Request(job.byte_source, offset + begin, size, [member])
