"""Jobs of files in stores, run together: their byte ranges are fetched by many requests at once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ray_h5.read.jobs import ReadStats, Worker
from ray_h5.read.native.job_table import JobTable
from ray_h5.storage.block_cache import BLOCK_BYTES
from ray_h5.storage.byte_source import IN_FLIGHT_BYTES, ByteSource
from ray_h5.storage.request_pool import FEW_GAP_BYTES, GAP_BYTES, IN_FLIGHT, LEAST_PART_BYTES, MOST_PART_BYTES, fetch

_FEW_RANGES = 32
_NEXT_BYTES = 512

_WHOLE_BYTES = IN_FLIGHT_BYTES // 2
"""Most bytes of large ranges that are put together at the same time: their parts are in memory, too."""


class _Range(NamedTuple):
    """Bytes that a job needs: its table, and its number there."""

    offset: int
    nbytes: int
    table: JobTable
    number: int


@dataclass(slots=True, eq=False)
class _Request:
    """A request for bytes of a file, and the ranges that are in it; or the one large range that it is a part of."""

    byte_source: ByteSource
    offset: int
    nbytes: int
    ranges: list[_Range]


class _Arrivals:
    """Runs jobs when their byte ranges have arrived.

    Attributes
    ----------
    left : dict of int to int
        How many jobs of each table have not run.
    parts : dict of (int, int) to (memoryview, int)
        Large ranges that are put together, by table and job, and how many of their bytes are missing.
    """

    def __init__(self, jobs: Sequence[JobTable], worker: Worker) -> None:
        self._worker = worker
        self.left = {id(job): len(job) for job in jobs}
        self.parts: dict[tuple[int, int], tuple[memoryview, int]] = {}

    def arrive(self, request: _Request, data: memoryview) -> None:
        """Run the jobs that have all of their bytes now."""
        ready: dict[int, tuple[JobTable, list[int], list[memoryview]]] = {}
        for needed in request.ranges:
            at = needed.offset - request.offset
            whole = data[at : at + needed.nbytes] if needed.nbytes <= request.nbytes else self._put(needed, -at, data)
            if whole is not None:
                _, numbers, ranges = ready.setdefault(id(needed.table), (needed.table, [], []))
                numbers.append(needed.number)
                ranges.append(whole)
        request.ranges = []
        for key, (job, numbers, ranges) in ready.items():
            self._worker.run_alone(job.in_memory(numbers, ranges))
            self.left[key] -= len(numbers)
            for then in () if self.left[key] else job.then:
                then()

    def _put(self, needed: _Range, place: int, part: memoryview) -> memoryview | None:
        """Put a part of a large range to its place; return the range once no part is missing."""
        key = id(needed.table), needed.number
        if key not in self.parts:
            self.parts[key] = memoryview(bytearray(needed.nbytes)), needed.nbytes
        whole, missing = self.parts.pop(key)
        whole[place : place + len(part)] = part
        if missing == len(part):
            return whole
        self.parts[key] = whole, missing - len(part)
        return None


def run_fetched(jobs: list[JobTable], worker: Worker) -> None:
    """Run jobs as their byte ranges arrive, and drop them."""
    arrivals, requests = _Arrivals(jobs, worker), _requests(jobs)
    cost = _cost(requests)
    jobs.clear()
    for batch in _batches(requests):
        spans = [(request.byte_source, request.offset, request.nbytes) for request in batch]
        fetch(spans, lambda number, data: arrivals.arrive(batch[number], data))  # noqa: B023  done before the next
    worker.stats.add(cost)


def cost_of(jobs: Sequence[JobTable]) -> ReadStats:
    """Return the requests to stores of jobs, and their bytes, without running them."""
    return _cost(_requests([job for job in jobs if job.byte_source.is_fetched]))


def _cost(requests: Sequence[_Request]) -> ReadStats:
    return ReadStats(len(requests), sum(request.nbytes for request in requests))


def _requests(jobs: Sequence[JobTable]) -> list[_Request]:
    """Join the byte ranges of jobs into requests, and part those that are larger than one."""
    by_source: dict[int, tuple[ByteSource, list[_Range]]] = {}
    for job in jobs:
        _, ranges = by_source.setdefault(id(job.byte_source), (job.byte_source, []))
        ranges += [_Range(*span, job, number) for number, span in enumerate(job.ranges)]
    # Those that a cache on a disk has, and the others. They are not joined: bytes of both would be fetched.
    apart: list[tuple[ByteSource, list[_Range], list[_Range]]] = []
    for source, ranges in by_source.values():
        ranges.sort(key=lambda needed: needed[:2])
        split: tuple[list[_Range], list[_Range]] = [], []
        for needed, is_stored in zip(ranges, source.on_disk([needed[:2] for needed in ranges]), strict=True):
            split[not is_stored].append(needed)
        apart.append((source, *split))
    # With what is on a disk: otherwise a cache made requests of its own, for gaps that are fetched without one.
    count = sum(_count_apart(there) + _count_apart(missing) for _, there, missing in apart)
    total = sum(needed.nbytes for *_, missing in apart for needed in missing)
    gap = GAP_BYTES if count >= _FEW_RANGES else FEW_GAP_BYTES
    part_bytes = max(LEAST_PART_BYTES, min(MOST_PART_BYTES, total // IN_FLIGHT))
    requests: list[_Request] = []
    for source, there, missing in apart:
        # No block is between two that are as close as this.
        requests += _joined(source, there, BLOCK_BYTES - 1, LEAST_PART_BYTES)
        requests += _joined(source, missing, gap, part_bytes)
    return requests


def _count_apart(ranges: list[_Range]) -> int:
    """Return how many byte ranges remain if those are joined that follow each other; they ascend."""
    ends = [needed.offset + needed.nbytes for needed in ranges]
    return sum(at == 0 or needed.offset - ends[at - 1] > _NEXT_BYTES for at, needed in enumerate(ranges))


def _joined(source: ByteSource, ranges: list[_Range], gap: int, part_bytes: int) -> list[_Request]:
    requests: list[_Request] = []
    last: _Request | None = None
    for needed in ranges:
        offset, nbytes = needed[:2]
        if nbytes > MOST_PART_BYTES:
            begins = range(0, nbytes, part_bytes)
            requests += [_Request(source, offset + at, min(part_bytes, nbytes - at), [needed]) for at in begins]
            last = None
            continue
        end = offset + nbytes
        if last is None or offset - (last.offset + last.nbytes) > gap or end - last.offset > max(part_bytes, nbytes):
            last = _Request(source, offset, nbytes, [])
            requests.append(last)
        last.nbytes = max(last.nbytes, end - last.offset)
        last.ranges.append(needed)
    return requests


def _batches(requests: Sequence[_Request]) -> Iterator[list[_Request]]:
    """Yield requests that are sent together: ranges that are put together from parts fill a bounded memory at once."""
    batch: list[_Request] = []
    held = 0
    for request in requests:
        first = request.ranges[0]
        if first.nbytes > request.nbytes and first.offset == request.offset:
            if held and held + first.nbytes > _WHOLE_BYTES:
                yield batch
                batch, held = [], 0
            held += first.nbytes
        batch.append(request)
    if batch:
        yield batch
