"""The steps of loop.c in Python: without the compiled loop, for what it does not decode, and for errors."""

from __future__ import annotations

import contextlib
import threading
from bisect import bisect_right

import numpy as np
from numpy.lib.stride_tricks import as_strided

from ray_h5.buffers import as_bytes, empty
from ray_h5.codecs.basic_codecs import DecodeError
from ray_h5.errors import StaleIndexError
from ray_h5.per_process import PerProcess
from ray_h5.read.native.job_table import (
    BYTES_READ,
    CHUNKS_DECODED,
    IN_MEMORY,
    NO_DESCRIPTOR,
    PLAIN,
    RAW,
    REQUESTS,
    Field,
    JobTable,
)
from ray_h5.storage.byte_source import ByteSource

_SPAN_BYTES, _CHUNK_GAP, _ROW_GAP = 1 << 20, 512, 4096

_SHORT_CHUNK_BYTES = 32 << 10
"""In Python, one thread decodes chunks smaller than this: passing the interpreter's lock to another thread takes longer
than decoding one (measured: epochs of small chunks took 1.2 times as long with two threads)."""

_one_at_a_time = PerProcess(threading.Lock)


def run_in_python(table: JobTable, first: int, stop: int, counts: np.ndarray) -> None:
    """Run jobs as loop.c does, with errors that say what is wrong and where."""
    run = _Steps(table, counts)
    sizes = table.jobs[Field.DECODED, first:stop][table.jobs[Field.PIPELINE, first:stop] != RAW]
    short = len(sizes) and sizes.max() < _SHORT_CHUNK_BYTES
    with _one_at_a_time.value if short else contextlib.nullcontext():
        at = first
        while at < stop:
            if at > first and run.again(at):
                at += 1
                continue
            end = run.joined(at, stop)
            run.span(at, end)
            at = end


class _Steps:
    """The steps of loop.c for one table; the names are the same."""

    def __init__(self, table: JobTable, counts: np.ndarray) -> None:
        self._table, self._counts = table, counts
        self._jobs: list[list[int]] = table.jobs.tolist()
        self._pieces: list[list[int]] = table.pieces.tolist()
        self._buffers: dict[str, np.ndarray] = {}
        self._arrays = sorted(
            ((array.ctypes.data, as_bytes(array)) for array in table.keeps), key=lambda array: array[0]
        )

    def joined(self, first: int, stop: int) -> int:
        """Return the end of the jobs that are read together with job `first`."""
        jobs = self._jobs
        files, offsets, sizes = jobs[Field.FILE], jobs[Field.OFFSET], jobs[Field.SIZE]
        end, at = offsets[first] + sizes[first], first + 1
        if files[first] == IN_MEMORY:
            return at
        while at < stop and self._is_same_file(at, first):
            raw = self._is_copy(at)
            if not (sizes[at] < _ROW_GAP and self._is_again(at)):
                gap, most, limit = offsets[at] - end, *((_ROW_GAP, _ROW_GAP) if raw else (_CHUNK_GAP, _SPAN_BYTES // 4))
                far = offsets[at] - offsets[first] >= _SPAN_BYTES
                if gap < 0 or gap > most or sizes[at] >= limit or far or (raw and sizes[first] >= _ROW_GAP):
                    break
                end = offsets[at] + sizes[at]
            at += 1
        return at

    def again(self, job: int) -> bool:
        """Copy the values of the job before, if this one is of the same bytes."""
        if is_again := self._is_again(job):
            places, size = self._jobs[Field.DESTINATION], self._jobs[Field.SIZE][job]
            self._at(places[job], size, job)[:] = self._at(places[job - 1], size, job)
        return is_again

    def _is_copy(self, job: int) -> bool:
        return self._jobs[Field.PIPELINE][job] == RAW and self._jobs[Field.DESTINATION][job] != 0

    def _is_again(self, job: int) -> bool:
        """Return whether a job copies the same bytes as the one before."""
        same = all(self._jobs[field][job] == self._jobs[field][job - 1] for field in (Field.OFFSET, Field.SIZE))
        return same and self._is_same_file(job, job - 1) and self._is_copy(job) and self._is_copy(job - 1)

    def _is_same_file(self, one: int, other: int) -> bool:
        file, other_file = (self._jobs[Field.FILE][job] for job in (one, other))
        return file == other_file and (file != NO_DESCRIPTOR or self._source_of(one) is self._source_of(other))

    def _source_of(self, job: int) -> ByteSource:
        origin, _ = self._table.origin_of(job)
        return origin.byte_sources.get(self._jobs[Field.FILE][job], origin.byte_source)

    def span(self, first: int, stop: int) -> None:
        """Run jobs that are read together."""
        jobs = self._jobs
        low = jobs[Field.OFFSET][first]
        high = max(jobs[Field.OFFSET][job] + jobs[Field.SIZE][job] for job in range(first, stop))
        if jobs[Field.FILE][first] == IN_MEMORY:
            stored = self._at(low, high - low, first)
        else:
            place = jobs[Field.DESTINATION][first]
            direct = stop == first + 1 and jobs[Field.PIPELINE][first] == RAW and place
            stored = self._at(place, high - low, first) if direct else self._buffer("stored", high - low)
            self._source_of(first).read_into(low, stored.data)
            self._counts[REQUESTS] += 1
            self._counts[BYTES_READ] += high - low
        for job in range(first, stop):
            begin = jobs[Field.OFFSET][job] - low
            self._place(job, stored[begin : begin + jobs[Field.SIZE][job]])

    def _place(self, job: int, stored: np.ndarray) -> None:
        jobs, size = self._jobs, self._jobs[Field.DECODED][job]
        place = jobs[Field.DESTINATION][job]
        values = stored
        if jobs[Field.PIPELINE][job] != RAW:
            values = self._at(place, size, job) if place else self._buffer("chunk", size)
            origin, number = self._table.origin_of(job)
            try:
                origin.decoder.decode_rows(stored, jobs[Field.MASK][job], values, origin.least(number))
            except DecodeError as exc:
                raise origin.corrupt(number, str(exc)) from exc
            self._counts[CHUNKS_DECODED] += 1
        elif place and place != stored.ctypes.data:
            self._at(place, size, job)[:] = stored
        for piece in range(jobs[Field.BEGIN][job], jobs[Field.END][job]):
            self._copy(job, piece, values)

    def _copy(self, job: int, piece: int, values: np.ndarray) -> None:
        source, place, size, box = (column[piece] for column in self._pieces)
        shape, sources, places = [size], [1], [1]
        if box != PLAIN:
            axes, run, *rest = self._table.boxes[box].tolist()
            shape = [*rest[0 : 3 * axes : 3], run]
            sources, places = [*rest[1 : 3 * axes : 3], 1], [*rest[2 : 3 * axes : 3], 1]
        read, written = (
            1 + sum((n - 1) * by for n, by in zip(shape, steps, strict=True)) for steps in (sources, places)
        )
        if min(shape) < 0 or source < 0 or source + read > len(values):
            raise self._outside(job, read)
        to = self._at(place, written, job)
        as_strided(to, shape, places)[...] = as_strided(values[source:], shape, sources)

    def _buffer(self, name: str, nbytes: int) -> np.ndarray:
        if len(held := self._buffers.get(name, np.empty(0, np.uint8))) < nbytes:
            held = self._buffers[name] = empty((nbytes,), np.dtype(np.uint8))
        return held[:nbytes]

    def _at(self, address: int, nbytes: int, job: int) -> np.ndarray:
        """Return the bytes at an address, which lie in one of the arrays of the table; `job` is for the error."""
        last = bisect_right(self._arrays, address, key=lambda entry: entry[0])
        for begin, array in reversed(self._arrays[:last] if nbytes >= 0 else ()):  # one may be a part of another
            if nbytes <= len(array) - (address - begin):
                return array[address - begin :][:nbytes]
        raise self._outside(job, nbytes)

    def _outside(self, job: int, nbytes: int) -> StaleIndexError:
        return StaleIndexError(
            f"{self._source_of(job).path}: {nbytes} bytes do not fit where they belong in an array: the file changed "
            "while it was read. If something still writes to it, wait for it, and make the dataset again."
        )
