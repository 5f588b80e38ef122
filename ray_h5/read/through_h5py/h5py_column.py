"""Columns that h5py reads, in slices that touch each chunk once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, TypeAlias

import h5py
import numpy as np

from ray_h5.errors import CorruptChunkError, OutOfMemoryError, TransientIOError
from ray_h5.hdf5.columns.value_types import AsDescribed
from ray_h5.hdf5.files.opening import is_transient
from ray_h5.manifest.layout import ColumnLayout
from ray_h5.manifest.row_requests import SPAN_BYTES, Request, RowRange, RowRuns
from ray_h5.messages import few
from ray_h5.read.jobs import InTurn, Job, Worker

_FAR_ROWS = 1 << 20
"""Rows this far apart are read by calls of their own: libhdf5 walks through all sources from the first row of a
selection to the last one. How many chunks these have is not known here."""

_MOST_ROWS = 1 << 10
"""Rows that one call selects."""


class Library(Protocol):
    """libhdf5's view of the file, opened when first asked for and closed after the read."""

    def dataset(self, name: str) -> h5py.Dataset:
        """Return the open dataset of column `name`."""

    def source(self, dataset: h5py.Dataset, file_name: str, name: str) -> h5py.Dataset:
        """Return the open source dataset of a mapping of a virtual dataset."""


Guard: TypeAlias = Callable[[Request, Worker, Library], None]
"""Raises for what is wrong with the stored bytes of some rows."""


@dataclass(frozen=True, slots=True, eq=False)
class H5pyColumn:
    """Reads a column through h5py, in slices: its values are in other datasets.

    Attributes
    ----------
    path : str
        The file, for messages.
    layout : ColumnLayout
        The column.
    guard : callable
        Checks some rows before libhdf5 reads them.
    """

    path: str
    layout: ColumnLayout
    guard: Guard

    takes_runs = False

    def jobs(self, request: Request, out: np.ndarray, library: Library) -> list[Job]:
        """Return the work that fills ``out[request.places]`` with ``request.rows``.

        All of it is for one thread: libhdf5 has one lock, so a second thread would gain nothing, and its arena of the
        C library would keep memory for chunks.
        """
        dataset = library.dataset(self.layout.name)
        # libhdf5 cannot select rows without values.
        return [InTurn([partial(self._read, dataset, library, request, out)])] if len(request) and out.size else []

    def _read(self, dataset: h5py.Dataset, library: Library, request: Request, out: np.ndarray, worker: Worker) -> None:
        for batch in self._batches(request):
            self.guard(batch, worker, library)
            self._read_batch(dataset, batch, out)
            worker.stats.h5py_reads += 1

    def _batches(self, request: Request) -> Iterator[Request]:
        """Yield parts of about a mebibyte."""
        row_bytes = max(1, self.layout.row_bytes)
        if isinstance(request, RowRange):
            yield from request.pieces(1, row_bytes)
            return
        at_once = max(1, min(_MOST_ROWS, SPAN_BYTES // row_bytes))
        far = RowRuns.split(np.diff(request.rows) > _FAR_ROWS)
        for start, stop in zip(far.start.tolist(), far.stop.tolist(), strict=True):
            for first in range(start, stop, at_once):
                yield request.select(slice(first, min(stop, first + at_once))).packed()

    def _read_batch(self, dataset: h5py.Dataset, batch: Request, out: np.ndarray) -> None:
        low, high = batch.bounds
        try:
            values = AsDescribed.of(dataset) if self.layout.stored_dtype.kind in "Vc" else dataset
            if dataset.shape == ():
                found = values[()]
            else:
                found = values[low:high] if isinstance(batch, RowRange) else _selected(values, batch.rows)
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
        out[batch.listed().places] = found

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


def _selected(values: Any, rows: np.ndarray) -> np.ndarray:
    """Return `rows` (ascending, with repeats), read with one call that selects them."""
    new = rows[1:] != rows[:-1]
    chosen: np.ndarray = values[rows if new.all() else rows[np.concatenate([[True], new])]]
    return chosen if new.all() else chosen[np.concatenate([[0], np.cumsum(new)])]
