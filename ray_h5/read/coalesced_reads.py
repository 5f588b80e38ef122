"""Jobs of files in stores, run together: their byte ranges are fetched by many requests at once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
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


def run_fetched(jobs: list[JobTable], worker: Worker) -> None:
    """Run jobs as their byte ranges arrive, and drop them."""
    requests = _requests(jobs)
    cost = ReadStats(len(requests), sum(request.nbytes for request in requests))
    left = {id(job): len(job) for job in jobs}  # jobs of each table that have not run
    # Large ranges that are put together, by table and job, and how many of their bytes are missing.
    parts: dict[tuple[int, int], tuple[memoryview, int]] = {}
    jobs.clear()

    def arrive(request: _Request, data: memoryview) -> None:
        """Run the jobs that have all of their bytes now."""
        ready: dict[int, tuple[JobTable, list[int], list[memoryview]]] = {}
        for offset, nbytes, table, number in request.ranges:
            at, whole, missing = offset - request.offset, data, 0
            if nbytes <= request.nbytes:
                whole = data[at : at + nbytes]
            else:
                known = parts.pop((id(table), number), None)
                whole, missing = (memoryview(bytearray(nbytes)), nbytes) if known is None else known
                whole[-at : len(data) - at] = data
                if missing := missing - len(data):
                    parts[id(table), number] = whole, missing
                    continue
            _, numbers, ranges = ready.setdefault(id(table), (table, [], []))
            numbers.append(number)
            ranges.append(whole)
        request.ranges = []
        for key, (table, numbers, ranges) in ready.items():
            worker.run_table(table.in_memory(numbers, ranges))
            left[key] -= len(numbers)
            for then in () if left[key] else table.then:
                then()

    for batch in _batches(requests):
        spans = [(request.byte_source, request.offset, request.nbytes) for request in batch]
        fetch(spans, lambda number, data: arrive(batch[number], data))  # noqa: B023  done before the next
    worker.stats.add(cost)


def cost_of(jobs: Sequence[JobTable]) -> ReadStats:
    """Return the requests to stores of jobs, and their bytes, without running them."""
    requests = _requests([job for job in jobs if job.byte_source.is_fetched])
    return ReadStats(len(requests), sum(request.nbytes for request in requests))


def _requests(jobs: Sequence[JobTable]) -> list[_Request]:
    """Join the byte ranges of jobs into requests, and part those that are larger than one."""
    by_source: dict[int, tuple[ByteSource, list[_Range]]] = {}
    for job in jobs:
        _, ranges = by_source.setdefault(id(job.byte_source), (job.byte_source, []))
        ranges += [_Range(*span, job, number) for number, span in enumerate(job.ranges)]
    # Those that a cache on a disk has, and the others. They are not joined: bytes of both would be fetched.
    apart: list[tuple[ByteSource, bool, list[_Range]]] = []
    for source, ranges in by_source.values():
        ranges.sort(key=lambda needed: needed[:2])
        stored = source.on_disk([needed[:2] for needed in ranges])
        for is_stored in (True, False):
            some = [needed for needed, on_disk in zip(ranges, stored, strict=True) if on_disk == is_stored]
            apart.append((source, is_stored, some))
    # With what is on a disk: otherwise a cache made requests of its own, for gaps that are fetched without one.
    count = sum(bool(ranges) for _, _, ranges in apart)
    for _, _, ranges in apart:
        count += sum(after.offset - before.offset - before.nbytes > _NEXT_BYTES for before, after in pairwise(ranges))
    total = sum(needed.nbytes for _, is_stored, ranges in apart if not is_stored for needed in ranges)
    gap = GAP_BYTES if count >= _FEW_RANGES else FEW_GAP_BYTES
    part_bytes = max(LEAST_PART_BYTES, min(MOST_PART_BYTES, total // IN_FLIGHT))
    requests: list[_Request] = []
    for source, is_stored, ranges in apart:
        # No block of the cache is between two that are as close as this.
        bounds = (BLOCK_BYTES - 1, LEAST_PART_BYTES) if is_stored else (gap, part_bytes)
        requests += _joined(source, ranges, *bounds)
    return requests


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
