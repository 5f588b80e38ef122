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
from ray_h5.read.native.job_table import BYTES_READ, CHUNKS_DECODED, IN_MEMORY, PLAIN, RAW, REQUESTS, Field, JobTable

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
        for job in range(first, stop):
            run.run(job)


class _Steps:
    """The steps of loop.c for one table. Each job reads its own bytes: to put reads together saves little in Python."""

    def __init__(self, table: JobTable, counts: np.ndarray) -> None:
        self._table, self._counts = table, counts
        self._jobs: list[list[int]] = table.jobs.tolist()
        self._pieces: list[list[int]] = table.pieces.tolist()
        self._buffers: dict[str, np.ndarray] = {}
        self._last: tuple[object, np.ndarray] = None, np.empty(0, np.uint8)
        self._arrays = sorted(
            ((array.ctypes.data, as_bytes(array)) for array in table.keeps), key=lambda array: array[0]
        )

    def run(self, job: int) -> None:
        """Read and decode the bytes of a job, and copy its values to their places."""
        file, offset, size, pipeline, mask, decoded, place, begin, end = (column[job] for column in self._jobs)
        origin, number = self._table.origin_of(job)
        is_direct, needed = pipeline == RAW and place, (origin.source_of(file), offset, size)
        if file == IN_MEMORY:
            stored = self._at(offset, size, job)
        elif is_direct and self._last[0] == needed:
            stored = self._last[1]  # a row that is asked for again: its jobs are neighbours
        else:
            stored = self._at(place, size, job) if is_direct else self._buffer("stored", size)
            needed[0].read_into(offset, stored.data)
            self._counts[REQUESTS] += 1
            self._counts[BYTES_READ] += size
            self._last = needed if is_direct else None, stored
        values = stored
        if pipeline != RAW:
            values = self._at(place, decoded, job) if place else self._buffer("chunk", decoded)
            least = decoded if origin.least is None else origin.least(number)
            try:
                origin.decoder.decode_rows(stored, mask, values, least)
            except DecodeError as exc:
                raise origin.corrupt(number, str(exc)) from exc
            self._counts[CHUNKS_DECODED] += 1
        elif place and place != stored.ctypes.data:
            self._at(place, decoded, job)[:] = stored
        for piece in range(begin, end):
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
        path = self._table.origin_of(job)[0].source_of(self._jobs[Field.FILE][job]).path
        return StaleIndexError(
            f"{path}: {nbytes} bytes do not fit where they belong in an array: the file changed "
            "while it was read. If something still writes to it, wait for it, and make the dataset again."
        )
