"""The work of a read, cut into jobs; and the jobs of columns that h5py reads for us."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, fields
from functools import partial
from typing import Protocol

import h5py
import numpy as np

from ray_h5.errors import CorruptChunkError, TransientIOError
from ray_h5.hdf5.buffers import empty
from ray_h5.hdf5.gather import RowRequest, library_spans
from ray_h5.hdf5.layout import ColumnLayout
from ray_h5.hdf5.opening import is_transient


@dataclass(slots=True)
class ReadStats:
    """What reads have cost so far.

    Attributes
    ----------
    requests, bytes_read : int
        Calls to the source, and the bytes they returned.
    chunks_decoded : int
        Chunks that went through the decoder.
    h5py_reads : int
        Reads that went through h5py.
    """

    requests: int = 0
    bytes_read: int = 0
    chunks_decoded: int = 0
    h5py_reads: int = 0

    def add(self, other: ReadStats) -> None:
        for each in fields(self):
            setattr(self, each.name, getattr(self, each.name) + getattr(other, each.name))


@dataclass(slots=True)
class Worker:
    """What one thread needs while it reads: a few buffers that it uses again, and its counts."""

    stats: ReadStats = field(default_factory=ReadStats)
    _buffers: dict[str, np.ndarray] = field(default_factory=dict)

    def buffer(self, name: str, nbytes: int) -> np.ndarray:
        """Lend the buffer called `name`, of exactly `nbytes` bytes."""
        if len(held := self._buffers.get(name, np.empty(0, np.uint8))) < nbytes:
            held = self._buffers[name] = empty((nbytes,), np.dtype(np.uint8))
        return held[:nbytes]

    def between(self, slot: int, nbytes: int) -> np.ndarray:
        return self.buffer(f"between{slot}", nbytes)


Job = Callable[[Worker], None]
"""A piece of a read that depends on no other piece."""


@dataclass(frozen=True, slots=True, eq=False)
class InTurn:
    """Jobs that are best done by one thread: most of their time they hold a lock, or they are short.

    To hand the interpreter from thread to thread takes longer than to decode a small chunk: two threads
    took up to twice the time of one (measured, chunks of 4 KiB).
    """

    jobs: Sequence[Job]

    def __call__(self, worker: Worker) -> None:
        for job in self.jobs:
            job(worker)


def run_jobs(jobs: Sequence[Job], threads: int) -> ReadStats:
    """Do all jobs, in up to `threads` threads, and return what they cost."""
    in_turn = [job for job in jobs if isinstance(job, InTurn)]
    shared = deque(job for job in jobs if not isinstance(job, InTurn))
    threads = min(threads, len(shared) + bool(in_turn)) or 1
    if threads == 1:
        return _work(jobs, deque())
    total = ReadStats()
    own = [in_turn, *[[]] * (threads - 1)]
    with ThreadPoolExecutor(threads, thread_name_prefix="ray_h5") as pool:
        for stats in pool.map(_work, own, [shared] * threads):
            total.add(stats)
    return total


def _work(own: Sequence[Job], shared: deque[Job]) -> ReadStats:
    """Do one's own jobs, and then those that are there for all, as many as one comes to."""
    worker = Worker()
    for job in own:
        job(worker)
    while (other := _next(shared)) is not None:
        other(worker)
    return worker.stats


def _next(shared: deque[Job]) -> Job | None:
    try:
        return shared.popleft()
    except IndexError:
        return None


class Library(Protocol):
    """libhdf5's view of the file, opened when first asked for and closed after the read."""

    def dataset(self, name: str) -> h5py.Dataset:
        """Return the open dataset of column `name`."""


@dataclass(frozen=True, slots=True, eq=False)
class H5pyColumn:
    """Reads a column through h5py, in slices that touch each chunk once.

    Attributes
    ----------
    path : str
        The file, for messages.
    layout : ColumnLayout
        The column.
    guard : callable, optional
        Looks at the chunks of some rows before libhdf5 does.
    """

    path: str
    layout: ColumnLayout
    guard: Callable[[np.ndarray, Worker, h5py.Dataset], None] | None = None

    def jobs(self, request: RowRequest, out: np.ndarray, library: Library) -> list[Job]:
        """Return the work that fills ``out[request.places]`` with ``request.rows``.

        For one thread: libhdf5 has one lock, so a second one would win no time, and it would keep memory of its own
        for chunks (each thread's arena of the C library does).
        """
        dataset = library.dataset(self.layout.name)
        return [InTurn([partial(self._read, dataset, request, out)])] if len(request.rows) else []

    def _read(self, dataset: h5py.Dataset, request: RowRequest, out: np.ndarray, worker: Worker) -> None:
        chunk_rows = self.layout.chunk_shape[0] if self.layout.chunk_shape else 1
        spans = library_spans(request.rows, chunk_rows, self.layout.row_bytes)
        for start, stop in zip(spans.start.tolist(), spans.stop.tolist(), strict=True):
            self._read_span(dataset, request.select(slice(start, stop)), out, worker)

    def _read_span(self, dataset: h5py.Dataset, request: RowRequest, out: np.ndarray, worker: Worker) -> None:
        if self.guard is not None:
            self.guard(request.rows, worker, dataset)
        low, high = int(request.rows[0]), int(request.rows[-1]) + 1
        place = int(request.places[0])
        in_order = np.all(np.diff(request.rows) == 1) and np.all(np.diff(request.places) == 1)
        alike = out.dtype == self.layout.stored_dtype and out.shape[1:] == dataset.shape[1:] and out.flags.c_contiguous
        try:
            if in_order and alike and self.layout.kind == "number":
                out[place : place + high - low] = 0  # libhdf5 may leave alone what was never written
                dataset.read_direct(out, np.s_[low:high], np.s_[place : place + high - low])
            else:
                out[request.places] = dataset[low:high][request.rows - low]
        except OSError as exc:
            where = f"{self.path}: column {self.layout.name!r}, rows {low} to {high - 1}"
            if is_transient(exc):
                raise TransientIOError(f"{where}: {exc}") from exc
            raise CorruptChunkError(f"{where}: h5py cannot read them, a chunk is damaged: {exc}") from exc
        worker.stats.h5py_reads += 1
