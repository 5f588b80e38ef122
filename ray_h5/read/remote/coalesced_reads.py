"""Jobs of files in stores, run together: their byte ranges are fetched by many requests at once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from ray_h5.read.jobs import Job, ReadStats, TableJob, Unplanned, Worker
from ray_h5.storage.block_cache import BLOCK_BYTES
from ray_h5.storage.byte_source import IN_FLIGHT_BYTES, ByteSource, Span
from ray_h5.storage.request_pool import fetch

_FEW_RANGES = 32
_NEXT_BYTES = 512

_WHOLE_BYTES = IN_FLIGHT_BYTES // 2
"""Most bytes of large ranges that are put together at the same time: their parts are in memory, too."""


@dataclass(slots=True, eq=False)
class _Waiting:
    """A job whose byte ranges are fetched. Those of a table run one by one, as their ranges arrive.

    Attributes
    ----------
    job : TableJob or Unplanned
        The job.
    ranges : sequence of (int, int)
        What it reads.
    missing : int
        How many of its ranges have not arrived.
    arrived : dict of int to memoryview
        Ranges that have arrived, by their offsets.
    parts : dict of (int, int) to (memoryview, int)
        Large ranges that are put together, by their numbers and offsets, and how many of their bytes are missing.
    """

    job: TableJob | Unplanned
    ranges: Sequence[Span]
    missing: int
    arrived: dict[int, memoryview] = field(default_factory=dict)
    parts: dict[tuple[int, int], tuple[memoryview, int]] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class _Member:
    """A byte range that a job needs, or a part of it, and where it is in a request.

    Attributes
    ----------
    of : _Waiting
        The job.
    number, offset : int
        The number of the range among those of the job, and where it begins in the file.
    begin, nbytes : int
        Where its bytes, or those of the part, are in the request, and how many there are.
    place, whole_bytes : int
        Of a part: where it is in the range, and the size of the range.
    """

    of: _Waiting
    number: int
    offset: int
    begin: int
    nbytes: int
    place: int = 0
    whole_bytes: int = 0

    def take(self, data: memoryview) -> memoryview | None:
        """Return the range, given the bytes of the request; None while parts of it are missing."""
        part = data[self.begin : self.begin + self.nbytes]
        if not self.whole_bytes:
            return part
        key, parts = (self.number, self.offset), self.of.parts
        if key not in parts:
            parts[key] = memoryview(bytearray(self.whole_bytes)), self.whole_bytes
        whole, missing = parts.pop(key)
        whole[self.place : self.place + self.nbytes] = part
        if missing == self.nbytes:
            return whole
        parts[key] = whole, missing - self.nbytes
        return None


@dataclass(slots=True, eq=False)
class _Request:
    """A request for a part of a file, and what it is for."""

    byte_source: ByteSource
    offset: int
    nbytes: int
    members: list[_Member]

    def arrive(self, data: memoryview, worker: Worker) -> None:
        """Run the jobs that have all of their bytes now."""
        ready: dict[int, tuple[TableJob, list[int], list[memoryview]]] = {}
        for member in self.members:
            whole = member.take(data)
            if whole is None:
                continue
            of = member.of
            if isinstance(of.job, TableJob):
                _, numbers, ranges = ready.setdefault(id(of), (of.job, [], []))
                numbers.append(member.number)
                ranges.append(whole)
                continue
            # Ranges of several sizes may begin at one place.
            of.arrived[member.offset] = max(whole, of.arrived.get(member.offset, whole), key=len)
            of.missing -= 1
            if not of.missing:
                _run(of.job, of.arrived, worker)
                of.arrived = {}
        for job, numbers, ranges in ready.values():
            TableJob(job.table.in_memory(numbers, ranges))(worker)


def run_fetched(jobs: Sequence[TableJob | Unplanned], worker: Worker) -> None:
    """Run jobs as their byte ranges arrive."""
    waiting = _waiting(jobs)
    requests = _requests(waiting)
    batch: list[_Request] = []

    def then(number: int, data: memoryview) -> None:
        batch[number].arrive(data, worker)

    for of in waiting:
        if not of.ranges:
            _run(of.job, {}, worker)
    for batch in _batches(requests):
        fetch([(request.byte_source, request.offset, request.nbytes) for request in batch], then)  # type: ignore[misc]
    worker.stats.requests += len(requests)
    worker.stats.bytes_read += sum(request.nbytes for request in requests)


def _run(job: Job, arrived: Mapping[int, memoryview], worker: Worker) -> None:
    worker.arrived = arrived
    try:
        job(worker)
    finally:
        worker.arrived = None


def cost_of(jobs: Sequence[TableJob | Unplanned]) -> ReadStats:
    """Return the requests of jobs, and their bytes, without running them."""
    requests = _requests(_waiting(jobs))
    return ReadStats(len(requests), sum(request.nbytes for request in requests))


_Range: TypeAlias = tuple[int, int, _Waiting, int]
"""The offset and the size of bytes that a job needs, and their number among its ranges."""


def _waiting(jobs: Sequence[TableJob | Unplanned]) -> list[_Waiting]:
    ranges = [job.ranges for job in jobs]
    return [_Waiting(job, of, len(of)) for job, of in zip(jobs, ranges, strict=True)]


def _requests(waiting: Sequence[_Waiting]) -> list[_Request]:
    """Join the byte ranges of jobs into requests, and part those that are larger than one."""
    by_source: dict[int, list[_Range]] = {}
    for of in waiting:
        ranges = by_source.setdefault(id(of.job.byte_source), [])
        ranges += [(*span, of, number) for number, span in enumerate(of.ranges)]
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
    return ranges[0][2].job.byte_source


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
            last = _Request(of.job.byte_source, offset, nbytes, [])
            requests.append(last)
        last.nbytes = max(last.nbytes, end - last.offset)
        last.members.append(_Member(of, number, offset, offset - last.offset, nbytes))
    return requests


def _parted(offset: int, nbytes: int, of: _Waiting, number: int, part_bytes: int) -> Iterator[_Request]:
    """Yield requests for the parts of one large range: it is put together as they arrive."""
    for begin in range(0, nbytes, part_bytes):
        size = min(part_bytes, nbytes - begin)
        member = _Member(of, number, offset, 0, size, begin, nbytes)
        yield _Request(of.job.byte_source, offset + begin, size, [member])


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
