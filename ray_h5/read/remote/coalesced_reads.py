"""Jobs of files in stores, run together: their byte ranges are fetched by many requests at once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from ray_h5.read.jobs import ReadStats, Worker
from ray_h5.read.native.job_table import JobTable
from ray_h5.storage.block_cache import BLOCK_BYTES
from ray_h5.storage.byte_source import IN_FLIGHT_BYTES, ByteSource
from ray_h5.storage.request_pool import fetch

_FEW_RANGES = 32
_NEXT_BYTES = 512

_WHOLE_BYTES = IN_FLIGHT_BYTES // 2
"""Most bytes of large ranges that are put together at the same time: their parts are in memory, too."""


@dataclass(slots=True, eq=False)
class _Member:
    """A byte range that a job needs, or a part of it, and where it is in a request.

    Attributes
    ----------
    of : JobTable
        The table of the job.
    number : int
        The number of the job there.
    begin, nbytes : int
        Where its bytes, or those of the part, are in the request, and how many there are.
    place, whole_bytes : int
        Of a part: where it is in the range, and the size of the range.
    """

    of: JobTable
    number: int
    begin: int
    nbytes: int
    place: int = 0
    whole_bytes: int = 0


@dataclass(slots=True, eq=False)
class _Request:
    """A request for a part of a file, and what it is for."""

    byte_source: ByteSource
    offset: int
    nbytes: int
    members: list[_Member]


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
        for member in request.members:
            if (whole := self._whole(member, data[member.begin : member.begin + member.nbytes])) is not None:
                _, numbers, ranges = ready.setdefault(id(member.of), (member.of, [], []))
                numbers.append(member.number)
                ranges.append(whole)
        request.members = []
        for key, (job, numbers, ranges) in ready.items():
            self._worker.run_alone(job.in_memory(numbers, ranges))
            self.left[key] -= len(numbers)
            for then in () if self.left[key] else job.then:
                then()

    def _whole(self, member: _Member, part: memoryview) -> memoryview | None:
        """Return the range of a member, given its bytes; None while parts of it are missing."""
        if not member.whole_bytes:
            return part
        key = id(member.of), member.number
        if key not in self.parts:
            self.parts[key] = memoryview(bytearray(member.whole_bytes)), member.whole_bytes
        whole, missing = self.parts.pop(key)
        whole[member.place : member.place + member.nbytes] = part
        if missing == member.nbytes:
            return whole
        self.parts[key] = whole, missing - member.nbytes
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
    """Return the requests of jobs, and their bytes, without running them."""
    return _cost(_requests(jobs))


def _cost(requests: Sequence[_Request]) -> ReadStats:
    return ReadStats(len(requests), sum(request.nbytes for request in requests))


_Range: TypeAlias = tuple[int, int, JobTable, int]
"""The offset and the size of bytes that a job needs, its table, and its number there."""


def _requests(jobs: Sequence[JobTable]) -> list[_Request]:
    """Join the byte ranges of jobs into requests, and part those that are larger than one."""
    by_source: dict[int, list[_Range]] = {}
    for job in jobs:
        ranges = by_source.setdefault(id(job.byte_source), [])
        ranges += [(*span, job, number) for number, span in enumerate(job.ranges)]
    apart = [parts_of_source for ranges in by_source.values() for parts_of_source in _on_disk(ranges)]
    # With what is on a disk: otherwise a cache made requests of its own, for gaps that are fetched without one.
    count = sum(_count_apart(there) + _count_apart(missing) for there, missing in apart)
    total = sum(nbytes for _, missing in apart for _, nbytes, *_ in missing)
    requests: list[_Request] = []
    for there, missing in apart:
        costs = _source_of(there or missing).costs
        gap = costs.gap_bytes if count >= _FEW_RANGES else costs.few_gap_bytes
        # No block is between two that are as close as this.
        requests += _joined(there, BLOCK_BYTES - 1, *costs.part_bytes)
        requests += _joined(missing, gap, costs.parts_of(total), costs.part_bytes[1])
    return requests


def _source_of(ranges: list[_Range]) -> ByteSource:
    return ranges[0][2].byte_source


def _count_apart(ranges: list[_Range]) -> int:
    """Return how many byte ranges remain if those are joined that follow each other; they ascend."""
    ends = [offset + nbytes for offset, nbytes, *_ in ranges]
    return sum(at == 0 or offset - ends[at - 1] > _NEXT_BYTES for at, (offset, *_) in enumerate(ranges))


def _on_disk(ranges: list[_Range]) -> Iterator[tuple[list[_Range], list[_Range]]]:
    """Yield the byte ranges of a file that a cache on a disk has, and the others; ascending.

    They are not joined: where one of two neighbours is there, bytes of both would be fetched.
    """
    ranges.sort(key=lambda byte_range: (byte_range[0], byte_range[1]))
    is_there = _source_of(ranges).on_disk([(offset, nbytes) for offset, nbytes, *_ in ranges]) if ranges else []
    there = [byte_range for byte_range, is_stored in zip(ranges, is_there, strict=True) if is_stored]
    if ranges:
        yield there, [byte_range for byte_range, is_stored in zip(ranges, is_there, strict=True) if not is_stored]


def _joined(ranges: list[_Range], gap: int, part_bytes: int, most: int) -> list[_Request]:
    requests: list[_Request] = []
    last: _Request | None = None
    for offset, nbytes, of, number in ranges:
        if nbytes > most:
            requests += _parted(offset, nbytes, of, number, part_bytes)
            last = None
            continue
        end = offset + nbytes
        if last is None or offset - (last.offset + last.nbytes) > gap or end - last.offset > max(part_bytes, nbytes):
            last = _Request(of.byte_source, offset, nbytes, [])
            requests.append(last)
        last.nbytes = max(last.nbytes, end - last.offset)
        last.members.append(_Member(of, number, offset - last.offset, nbytes))
    return requests


def _parted(offset: int, nbytes: int, of: JobTable, number: int, part_bytes: int) -> Iterator[_Request]:
    """Yield requests for the parts of one large range: it is put together as they arrive."""
    for begin in range(0, nbytes, part_bytes):
        size = min(part_bytes, nbytes - begin)
        member = _Member(of, number, 0, size, begin, nbytes)
        yield _Request(of.byte_source, offset + begin, size, [member])


def _batches(requests: Sequence[_Request]) -> Iterator[list[_Request]]:
    """Yield requests that are sent together: ranges that are put together from parts fill a bounded memory at once."""
    batch: list[_Request] = []
    held = 0
    for request in requests:
        first = request.members[0]
        if first.whole_bytes and first.place == 0:
            if held and held + first.whole_bytes > _WHOLE_BYTES:
                yield batch
                batch, held = [], 0
            held += first.whole_bytes
        batch.append(request)
    if batch:
        yield batch
