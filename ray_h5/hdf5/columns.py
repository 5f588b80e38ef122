"""The work of a read, cut into jobs; and the jobs of columns that h5py reads for us."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, fields
from functools import partial
from typing import Protocol

import h5py
import numpy as np

from ray_h5.errors import CorruptChunkError, TransientIOError
from ray_h5.hdf5.buffers import empty
from ray_h5.hdf5.gather import (
    PAGE_BYTES,
    Request,
    RowRange,
    RowRequest,
    Runs,
    library_batches,
    library_spans,
    range_pieces,
)
from ray_h5.hdf5.layout import ColumnLayout
from ray_h5.hdf5.opening import is_transient
from ray_h5.messages import few

_DIRECT_BYTES = 64 << 10
"""From as much on, libhdf5 puts values straight into the output; measured."""

_OBJECT_BYTES = 1 << 10
"""A value that lies elsewhere takes as long to look up as it takes to copy this much; measured."""

_GUARDED_BATCHES = 16
"""As many are looked at by the guard at once; the system still holds their bytes when libhdf5 asks for them."""


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
        """Count what `other` cost as well; several threads may do so at once."""
        with _Adding.lock:
            for each in fields(self):
                setattr(self, each.name, getattr(self, each.name) + getattr(other, each.name))


class _Adding:
    """The lock of all counts: it is held for a few additions, once a read."""

    lock = threading.Lock()


# A thread that the child does not have may hold it.
os.register_at_fork(after_in_child=lambda: setattr(_Adding, "lock", threading.Lock()))


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
        """Lend a buffer for what passes between two steps of a pipeline."""
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
        try:
            for stats in pool.map(_work, own, [shared] * threads):
                total.add(stats)
        except BaseException:
            shared.clear()  # an error, or Ctrl-C: the others do no more than what they are at
            raise
    return total


def _work(own: Sequence[Job], shared: deque[Job]) -> ReadStats:
    """Do one's own jobs, and then those that are there for all, as many as one comes to."""
    worker = Worker()
    try:
        for job in own:
            job(worker)
        while (other := _next(shared)) is not None:
            other(worker)
    except BaseException:
        shared.clear()
        raise
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

    def source(self, dataset: h5py.Dataset, file_name: str, name: str) -> h5py.Dataset:
        """Return the open dataset that a mapping of a virtual one leads to."""


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
    guard: Callable[[Request, Worker, Library], None] | None = None

    def jobs(self, request: Request, out: np.ndarray, library: Library) -> list[Job]:
        """Return the work that fills ``out[request.places]`` with ``request.rows``.

        For one thread: libhdf5 has one lock, so a second one would win no time, and it would keep memory of its own
        for chunks (each thread's arena of the C library does).
        """
        dataset = library.dataset(self.layout.name)
        # libhdf5 selects no rows that have no values.
        return [InTurn([partial(self._read, dataset, library, request, out)])] if len(request) and out.size else []

    def _read(self, dataset: h5py.Dataset, library: Library, request: Request, out: np.ndarray, worker: Worker) -> None:
        for part, batches in self._parts(request):
            if self.guard is not None:
                self.guard(part, worker, library)
            for batch, full in batches:
                try:
                    self._read_batch(dataset, batch, out, full=full)
                except CorruptChunkError:
                    self._name_the_damage(dataset, batch.listed(), out)
                    raise
                worker.stats.h5py_reads += 1

    def _parts(self, request: Request) -> Iterator[tuple[Request, Sequence[tuple[Request, bool]]]]:
        """Yield parts that the guard looks at at once, and the batches of each, with whether they are full."""
        row_bytes = self.layout.row_bytes
        if isinstance(request, RowRange):
            for piece in range_pieces(request, self.layout.chunk_rows, row_bytes):
                yield piece, [(piece, True)]
            return
        spans = self._spans(request.rows)
        batches, full = library_batches(request.rows, spans, row_bytes, _OBJECT_BYTES if self._apart else row_bytes)
        starts, stops = batches.start.tolist(), batches.stop.tolist()
        made = [request.select(slice(start, stop)).packed() for start, stop in zip(starts, stops, strict=True)]
        for i in range(0, len(made), _GUARDED_BATCHES):
            some = slice(i, i + _GUARDED_BATCHES)
            part = request.select(slice(starts[i], stops[some][-1]))
            yield part, list(zip(made[some], full[some].tolist(), strict=True))

    def _spans(self, rows: np.ndarray) -> Runs:
        # In other storage than this, what lies between two rows may be in a file that is not asked for.
        gap_bytes = 0 if self._apart or self.layout.storage != "contiguous" else PAGE_BYTES
        return library_spans(rows, self.layout.chunk_rows, self.layout.row_bytes, gap_bytes)

    @property
    def _apart(self) -> bool:
        """Whether values lie elsewhere, and the row holds where."""
        return self.layout.stored_dtype.hasobject

    def _name_the_damage(self, dataset: h5py.Dataset, batch: RowRequest, out: np.ndarray) -> None:
        """Raise for the first span of a batch that cannot be read."""
        spans = self._spans(batch.rows)
        for start, stop in zip(spans.start.tolist(), spans.stop.tolist(), strict=True):
            self._read_batch(dataset, batch.select(slice(start, stop)), out, full=True)

    def _read_batch(self, dataset: h5py.Dataset, batch: Request, out: np.ndarray, *, full: bool) -> None:
        low, high = batch.bounds
        try:
            if isinstance(batch, RowRange):
                self._read_range(dataset, batch, out)
            elif full:
                out[batch.places] = dataset[low:high][batch.rows - low]
            else:
                out[batch.places] = _selected(dataset, batch.rows)
        except OSError as exc:
            where = f"{self.path}: column {self.layout.name!r}, rows {low} to {high - 1}"
            if is_transient(exc):
                raise TransientIOError(f"{where}: {exc}") from exc
            raise CorruptChunkError(f"{where}: h5py cannot read them{self._why(str(exc))}") from exc

    def _why(self, text: str) -> str:
        """Say what libhdf5's words mean for the files that the values are in, and what to do."""
        files = few([path for path, state in self.layout.sources if state is not None] or [self.path])
        if "filter" in text:
            return f", a chunk is damaged: {text}. Restore the file that it is in from a copy: {files}"
        if self.layout.storage == "virtual":
            return (
                f": {text}. Compare the shapes and types of its sources with what the virtual dataset says of them, "
                f"and write it again; if they agree, one is damaged: restore it from a copy. They are in: {files}"
            )
        return f": {text}. Restore the file from a copy: {files}"

    def _read_range(self, dataset: h5py.Dataset, batch: RowRange, out: np.ndarray) -> None:
        (low, high), there = batch.bounds, slice(batch.place, batch.place + len(batch))
        # What h5py makes of the two selections takes as long as to copy this much.
        large = len(batch) * self.layout.row_bytes >= _DIRECT_BYTES
        if large and self._lands_in_place(dataset, out):
            if self.layout.offset is None:
                out[there] = np.zeros((), out.dtype)  # libhdf5 may leave alone what was never written
            # The same memory, as h5py names its type: it tells strings of one encoding from those of another.
            as_h5py = out.view(dataset.dtype) if self.layout.kind == "string" else out
            dataset.read_direct(as_h5py, np.s_[low:high], there)
        elif self.layout.kind == "struct":
            out[batch.listed().places] = dataset[low:high]  # a slice would leave out its padding
        else:
            out[there] = dataset[low:high]

    def _lands_in_place(self, dataset: h5py.Dataset, out: np.ndarray) -> bool:
        """Tell whether libhdf5 can put values where they belong; it also turns the order of their bytes."""
        stored = self.layout.stored_dtype
        return (
            self.layout.kind in {"number", "bool", "string"}
            and not stored.hasobject
            and out.dtype == stored.newbyteorder("=")
            and out.shape[1:] == dataset.shape[1:]
            and bool(out.flags.c_contiguous)
        )


def _selected(dataset: h5py.Dataset, rows: np.ndarray) -> np.ndarray:
    """Return rows, given in ascending order, by one call that selects them."""
    new = rows[1:] != rows[:-1]
    if new.all():
        return dataset[rows]
    at = np.concatenate([[0], np.cumsum(new)])
    return dataset[rows[np.concatenate([[True], new])]][at]
