"""Runs tables of jobs: by the compiled loop, and by the same steps in Python."""

from __future__ import annotations

import contextlib
import ctypes
import threading
from collections.abc import Iterator

import numpy as np
from numpy.lib.stride_tricks import as_strided

from ray_h5.buffers import empty
from ray_h5.codecs.codec import DecodeError
from ray_h5.fork import PerProcess
from ray_h5.read.kernel.job_table import IN_MEMORY, IN_PYTHON, PLAIN, RAW, Field, JobTable, pipeline_rows
from ray_h5.read.kernel.library import Loop, compiled_loop

DONE, NOT_RUN = 0, 3
"""The status of a job; loop.c has the others."""

REQUESTS, BYTES_READ, CHUNKS_DECODED, HINTS = range(4)
"""What a run counts."""

COLD_ON, HINTS_OFF = 1, 4
"""Of `new_times`: whether bytes come from a disk or a server, so that hints help; whether none are given."""

_SPAN_BYTES, _CHUNK_GAP, _ROW_GAP = 1 << 20, 512, 4096

_SHORT_CHUNK_BYTES = 32 << 10
"""In Python, one thread decodes chunks smaller than this: passing the interpreter's lock to another thread takes longer
than decoding one (measured: epochs of small chunks took 1.2 times as long with two threads)."""

_one_at_a_time = PerProcess(threading.Lock)


def new_times() -> np.ndarray:
    """Return how often reads of some files waited: nothing is known yet. See `count` in loop.c."""
    return np.zeros(5, np.int64)


def run_table(
    table: JobTable,
    times: np.ndarray,
    *,
    first: int = 0,
    stop: int | None = None,
    total: int | None = None,
    given: int = 0,
) -> tuple[np.ndarray, int]:
    """Run jobs of a table in this thread.

    Parameters
    ----------
    table : JobTable
        The jobs.
    times : numpy.ndarray
        How often reads of these files waited, from `new_times`. Threads may share it.
    first, stop : int
        Which jobs.
    total : int, optional
        Jobs from `stop` to here are run later, by another call: hints are given about them, too.
    given : int
        How many jobs hints were given about before.

    Returns
    -------
    counts : numpy.ndarray
        int64: requests, bytes read, chunks decoded, hints.
    hinted : int
        Up to which job hints were given.

    Raises
    ------
    CorruptChunkError, TruncatedFileError, TransientIOError
        As reads of a chunk in Python raise them.
    """
    stop = len(table) if stop is None else stop
    counts, hinted = np.zeros(4, np.int64), np.array([given], np.int64)
    loop = compiled_loop()
    if loop is None:
        run_in_python(table, first, stop, counts)
        return counts, given
    status = _run_compiled(loop, table, times, first, stop, len(table) if total is None else total, counts, hinted)
    if status.any():  # not done: what the loop does not decode, and what is damaged
        for begin, end in _ranges(status != DONE):
            run_in_python(table, first + begin, first + end, counts)
    return counts, int(hinted[0])


def run_compiled(table: JobTable, times: np.ndarray, stop: int, given: int) -> tuple[bool, np.ndarray, int]:
    """Run jobs of a table up to `stop` by the compiled loop alone; otherwise as `run_table`.

    Returns
    -------
    bool
        Whether all were run. The others are damaged, or the loop does not decode them.
    numpy.ndarray, int
        As of `run_table`.
    """
    loop = compiled_loop()
    assert loop is not None
    counts, hinted = np.zeros(4, np.int64), np.array([given], np.int64)
    status = _run_compiled(loop, table, times, 0, stop, len(table), counts, hinted)
    return not status.any(), counts, int(hinted[0])


def _run_compiled(
    loop: Loop,
    table: JobTable,
    times: np.ndarray,
    first: int,
    stop: int,
    total: int,
    counts: np.ndarray,
    hinted: np.ndarray,
) -> np.ndarray:
    jobs, pieces, boxes, pipelines = table.jobs, table.pieces, table.boxes, pipeline_rows()
    status = np.full(stop - first, NOT_RUN, np.int8)
    run, context = loop.library.ray_h5_run, loop.context
    fixed = (
        context,
        jobs.ctypes.data,
        jobs.shape[1],
        pieces.ctypes.data,
        pieces.shape[1],
        pipelines.ctypes.data,
        boxes.ctypes.data,
    )
    state = status.ctypes.data - first, counts.ctypes.data, times.ctypes.data, hinted.ctypes.data
    apart = jobs[Field.PIPELINE, first:stop] == IN_PYTHON
    for begin, end in _ranges(~apart) if apart.any() else [(0, stop - first)]:
        at = begin + first
        while at < end + first:  # the call returns early now and then, so that signals are seen
            at = run(*fixed, at, end + first, total, *state)
    return status


def _ranges(where: np.ndarray) -> Iterator[tuple[int, int]]:
    """Yield the ranges of consecutive positions that are true."""
    edges = np.flatnonzero(np.diff(where, prepend=False, append=False)).tolist()
    return zip(edges[::2], edges[1::2], strict=True)


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

    def joined(self, first: int, stop: int) -> int:
        """Return the end of the jobs that are read together with job `first`."""
        jobs = self._jobs
        files, offsets, sizes = jobs[Field.FILE], jobs[Field.OFFSET], jobs[Field.SIZE]
        end, at = offsets[first] + sizes[first], first + 1
        if files[first] == IN_MEMORY:
            return at
        while at < stop and files[at] == files[first]:
            raw = self._is_copy(at)
            if not (sizes[at] < _ROW_GAP and self._is_again(at)):
                gap, most, limit = offsets[at] - end, _CHUNK_GAP, _SPAN_BYTES // 4
                if raw:
                    most, limit = _ROW_GAP, _ROW_GAP
                far = offsets[at] - offsets[first] >= _SPAN_BYTES
                if gap < 0 or gap > most or sizes[at] >= limit or far or (raw and sizes[first] >= _ROW_GAP):
                    break
                end = offsets[at] + sizes[at]
            at += 1
        return at

    def again(self, job: int) -> bool:
        """Copy the values of the job before, if this one is of the same bytes."""
        found = self._is_again(job)
        if found:
            places, size = self._jobs[Field.DESTINATION], self._jobs[Field.SIZE][job]
            _at(places[job], size)[:] = _at(places[job - 1], size)
        return found

    def _is_copy(self, job: int) -> bool:
        return self._jobs[Field.PIPELINE][job] == RAW and self._jobs[Field.DESTINATION][job] != 0

    def _is_again(self, job: int) -> bool:
        """Return whether a job copies the same bytes as the one before."""
        same = all(
            self._jobs[each][job] == self._jobs[each][job - 1] for each in (Field.OFFSET, Field.SIZE, Field.FILE)
        )
        return same and self._is_copy(job) and self._is_copy(job - 1)

    def span(self, first: int, stop: int) -> None:
        """Run jobs that are read together."""
        jobs = self._jobs
        low = jobs[Field.OFFSET][first]
        high = max(jobs[Field.OFFSET][job] + jobs[Field.SIZE][job] for job in range(first, stop))
        if jobs[Field.FILE][first] == IN_MEMORY:
            stored = _at(low, high - low)
        else:
            place = jobs[Field.DESTINATION][first]
            direct = stop == first + 1 and jobs[Field.PIPELINE][first] == RAW and place
            stored = _at(place, high - low) if direct else self._buffer("stored", high - low)
            source = self._table.origin_of(first)[0].source_of(jobs[Field.FILE][first])
            source.read_into(low, stored.data)
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
            values = _at(place, size) if place else self._buffer("chunk", size)
            origin, number = self._table.origin_of(job)
            try:
                origin.decoder.decode(stored, jobs[Field.MASK][job], values, self._between)
            except DecodeError as exc:
                raise origin.corrupt(number, str(exc)) from exc
            self._counts[CHUNKS_DECODED] += 1
        elif place and place != stored.ctypes.data:
            _at(place, size)[:] = stored
        for piece in range(jobs[Field.BEGIN][job], jobs[Field.END][job]):
            self._copy(piece, values)

    def _copy(self, piece: int, values: np.ndarray) -> None:
        source, place, size, box = (column[piece] for column in self._pieces)
        if box == PLAIN:
            _at(place, size)[:] = values[source : source + size]
            return
        axes, run, *rest = self._table.boxes[box].tolist()
        shape = [*rest[0 : 3 * axes : 3], run]
        sources, places = [*rest[1 : 3 * axes : 3], 1], [*rest[2 : 3 * axes : 3], 1]
        extent = 1 + sum((n - 1) * stride for n, stride in zip(shape, places, strict=True))
        to = as_strided(_at(place, extent), shape, places)
        to[...] = as_strided(values[source:], shape, sources)

    def _buffer(self, name: str, nbytes: int) -> np.ndarray:
        if len(held := self._buffers.get(name, np.empty(0, np.uint8))) < nbytes:
            held = self._buffers[name] = empty((nbytes,), np.dtype(np.uint8))
        return held[:nbytes]

    def _between(self, slot: int, nbytes: int) -> np.ndarray:
        return self._buffer(f"between{slot}", nbytes)


def _at(address: int, nbytes: int) -> np.ndarray:
    """Return the bytes at an address, as an array. `JobTable.keeps` has the memory."""
    return np.frombuffer(memoryview((ctypes.c_uint8 * nbytes).from_address(address)), np.uint8)
