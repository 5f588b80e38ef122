"""Columns that h5py reads, in slices that touch each chunk once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import h5py
import numpy as np

from ray_h5.errors import CorruptChunkError, OutOfMemoryError, TransientIOError
from ray_h5.hdf5.columns.value_types import AsDescribed
from ray_h5.hdf5.files.opening import is_transient
from ray_h5.manifest.layout import ColumnLayout
from ray_h5.manifest.row_requests import Request, RowRange, RowRequest, RowRuns
from ray_h5.messages import few
from ray_h5.read.jobs import InTurn, Job, Worker
from ray_h5.read.through_h5py.library_spans import PAGE_BYTES, library_batches, library_spans

_DIRECT_BYTES = 64 << 10
"""From this size on, libhdf5 reads straight into the output (measured)."""


_OBJECT_BYTES = 1 << 10
"""Looking up a value of varying length takes as long as copying this many bytes (measured)."""


_FAR_CHUNKS, _FAR_ROWS, _NEVER_FAR = 1 << 8, 1 << 20, 1 << 62
"""Rows this far apart are read by calls of their own: libhdf5 walks through all chunks from the first row of a
selection to the last one, and a call takes as long as some hundreds of them (measured). How many there are in the
sources of a virtual dataset is not known here."""

_GUARDED_BATCHES = 16
"""Batches that the guard checks at once. Their bytes are still in the page cache when libhdf5 reads them."""


class Library(Protocol):
    """libhdf5's view of the file, opened when first asked for and closed after the read."""

    def dataset(self, name: str) -> h5py.Dataset:
        """Return the open dataset of column `name`."""

    def source(self, dataset: h5py.Dataset, file_name: str, name: str) -> h5py.Dataset:
        """Return the open source dataset of a mapping of a virtual dataset."""


class Guard(Protocol):
    """Raises for what is wrong with the stored bytes of some rows."""

    def __call__(self, request: Request, worker: Worker, library: Library, *, exactly: bool = False) -> None:
        """Look at them; `exactly` also at what libhdf5 refuses itself, for a message that says more."""


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
        Checks the chunks of some rows before libhdf5 reads them.
    """

    path: str
    layout: ColumnLayout
    guard: Guard | None = None

    @property
    def takes_runs(self) -> bool:
        return False

    @property
    def needs_library(self) -> bool:
        """Whether its jobs need libhdf5."""
        return True

    def jobs(self, request: Request, out: np.ndarray, library: Library) -> list[Job]:
        """Return the work that fills ``out[request.places]`` with ``request.rows``.

        All of it is for one thread: libhdf5 has one lock, so a second thread would gain nothing, and its arena of the
        C library would keep memory for chunks.
        """
        dataset = library.dataset(self.layout.name)
        # libhdf5 cannot select rows without values.
        return [InTurn([partial(self._read, dataset, library, request, out)])] if len(request) and out.size else []

    def _read(self, dataset: h5py.Dataset, library: Library, request: Request, out: np.ndarray, worker: Worker) -> None:
        for part, batches in self._parts(request):
            if self.guard is not None:
                self.guard(part, worker, library)
            for batch, full in batches:
                try:
                    self._read_batch(dataset, batch, out, full=full)
                except CorruptChunkError:
                    if self.guard is not None and self._apart:
                        self.guard(batch, worker, library, exactly=True)
                    self._name_the_damage(dataset, batch.listed(), out)
                    raise
                worker.stats.h5py_reads += 1

    def _parts(self, request: Request) -> Iterator[tuple[Request, Sequence[tuple[Request, bool]]]]:
        """Yield parts that the guard checks at once, with the batches of each part and whether they are full."""
        row_bytes = self.layout.row_bytes
        if isinstance(request, RowRange):
            for piece in request.pieces(self.layout.chunk_rows, row_bytes):
                yield piece, [(piece, True)]
            return
        spans = self._spans(request.rows)
        unasked_bytes = _OBJECT_BYTES if self._apart else row_bytes
        batches, full = library_batches(request.rows, spans, row_bytes, unasked_bytes, self._most_apart)
        starts, stops = batches.start.tolist(), batches.stop.tolist()
        made = [request.select(slice(start, stop)).packed() for start, stop in zip(starts, stops, strict=True)]
        for i in range(0, len(made), _GUARDED_BATCHES):
            some = slice(i, i + _GUARDED_BATCHES)
            part = request.select(slice(starts[i], stops[some][-1]))
            yield part, list(zip(made[some], full[some].tolist(), strict=True))

    @property
    def _most_apart(self) -> int:
        if self.layout.storage == "virtual":
            return _FAR_ROWS
        return _FAR_CHUNKS * self.layout.chunk_rows if self.layout.chunk_shape else _NEVER_FAR

    def _spans(self, rows: np.ndarray) -> RowRuns:
        # In other storage, the rows between two requested ones may be in a file that is not needed.
        gap_bytes = 0 if self._apart or self.layout.storage != "contiguous" else PAGE_BYTES
        return library_spans(rows, self.layout.chunk_rows, self.layout.row_bytes, gap_bytes)

    @property
    def _apart(self) -> bool:
        """Whether the rows hold references, and the values are in the global heap of the file."""
        return self.layout.stored_dtype.hasobject

    def _name_the_damage(self, dataset: h5py.Dataset, batch: RowRequest, out: np.ndarray) -> None:
        """Raise for the first span of a batch that cannot be read."""
        spans = self._spans(batch.rows)
        for start, stop in zip(spans.start.tolist(), spans.stop.tolist(), strict=True):
            self._read_batch(dataset, batch.select(slice(start, stop)), out, full=True)

    def _read_batch(self, dataset: h5py.Dataset, batch: Request, out: np.ndarray, *, full: bool) -> None:
        low, high = batch.bounds
        try:
            values = AsDescribed.of(dataset) if self.layout.stored_dtype.kind in "Vc" else dataset
            if dataset.shape == ():
                out[batch.listed().places] = values[()]
            elif isinstance(batch, RowRange):
                self._read_range(dataset, values, batch, out)
            elif full:
                out[batch.places] = values[low:high][batch.rows - low]
            else:
                out[batch.places] = _selected(values, batch.rows)
        except OSError as exc:
            where = f"{self.path}: column {self.layout.name!r}, rows {low} to {high - 1}"
            if is_transient(exc):
                raise TransientIOError(f"{where}: {exc}") from exc
            raise CorruptChunkError(f"{where}: h5py cannot read them{self._why(str(exc))}") from exc
        except MemoryError as exc:
            raise OutOfMemoryError(
                f"{self.path}: column {self.layout.name!r}, rows {low} to {high - 1}: there is no memory for their "
                "values. Read fewer rows at once."
            ) from exc

    def _why(self, text: str) -> str:
        """Return what an error text of libhdf5 means, which files it concerns, and what to do."""
        files = few([path for path, state in self.layout.sources if state is not None] or [self.path])
        if "filter" in text:
            return f", a chunk is damaged: {text}. Restore the file that it is in from a copy: {files}"
        if self.layout.storage == "virtual":
            return (
                f": {text}. Compare the shapes and types of its sources with what the virtual dataset says of them, "
                f"and write it again; if they agree, one is damaged: restore it from a copy. They are in: {files}"
            )
        return f": {text}. Restore the file from a copy: {files}"

    def _read_range(self, dataset: h5py.Dataset, values: Any, batch: RowRange, out: np.ndarray) -> None:
        (low, high), there = batch.bounds, slice(batch.place, batch.place + len(batch))
        # h5py needs as long for the two selections as for copying this many bytes.
        large = len(batch) * self.layout.row_bytes >= _DIRECT_BYTES
        if large and self._lands_in_place(dataset, out):
            if self.layout.offset is None:
                out[there] = np.zeros((), out.dtype)  # libhdf5 may not touch rows that were never written
            # The same memory with h5py's dtype, which has the encoding of strings.
            as_h5py = out.view(dataset.dtype) if self.layout.kind == "string" else out
            dataset.read_direct(as_h5py, np.s_[low:high], there)
        elif self.layout.kind == "struct":
            out[batch.listed().places] = values[low:high]  # assigning to a slice would not copy the padding
        else:
            out[there] = values[low:high]

    def _lands_in_place(self, dataset: h5py.Dataset, out: np.ndarray) -> bool:
        """Return whether libhdf5 can read into `out`; it also converts the byte order."""
        stored = self.layout.stored_dtype
        return (
            self.layout.kind in {"number", "bool", "string"}
            and not stored.hasobject
            and out.dtype == stored.newbyteorder("=")
            and out.shape[1:] == dataset.shape[1:]
            and bool(out.flags.c_contiguous)
        )


def _selected(values: Any, rows: np.ndarray) -> np.ndarray:
    """Return `rows` (ascending, with repeats), read with one call that selects them."""
    new = rows[1:] != rows[:-1]
    chosen: np.ndarray = values[rows if new.all() else rows[np.concatenate([[True], new])]]
    return chosen if new.all() else chosen[np.concatenate([[0], np.cumsum(new)])]
