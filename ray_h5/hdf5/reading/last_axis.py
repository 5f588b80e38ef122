"""Columns whose rows lie along the last axis, as MATLAB and loom write them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial

import h5py
import numpy as np

from ray_h5.errors import CorruptChunkError, TransientIOError
from ray_h5.hdf5.metadata.opening import is_transient
from ray_h5.hdf5.reading.coalesce import Request, RowRange, RowRequest
from ray_h5.hdf5.reading.h5py_column import H5pyColumn, Library
from ray_h5.hdf5.reading.jobs import InTurn, Job, Worker

_MOST_BYTES = 16 << 20
"""Bytes that one call of libhdf5 reads."""


@dataclass(frozen=True, slots=True)
class LastAxis:
    """A column whose axes are reversed: row i is ``dataset[..., i].T``."""

    name: str


class LastAxisColumn:
    """Reads rows along the last axis through h5py, in slices that touch each chunk once.

    Parameters
    ----------
    column : H5pyColumn
        The dataset, with its guard.
    """

    def __init__(self, column: H5pyColumn) -> None:
        self._column = column
        self._is_checked = False

    @property
    def needs_library(self) -> bool:
        """Whether its jobs need libhdf5."""
        return True

    def jobs(self, request: Request, out: np.ndarray, library: Library) -> list[Job]:
        """Return the work that fills ``out[request.places]`` with ``request.rows``."""
        dataset = library.dataset(self._column.layout.name)
        wanted = request.listed()
        return [InTurn([partial(self._read, dataset, library, wanted, out)])] if len(wanted) and out.size else []

    def _read(
        self, dataset: h5py.Dataset, library: Library, request: RowRequest, out: np.ndarray, worker: Worker
    ) -> None:
        guard = self._column.guard
        if guard is not None and not self._is_checked:
            guard(RowRange(0, 0, len(dataset)), worker, library)  # each row has values in all of the chunks
            self._is_checked = True
        for start, stop in self._batches(dataset, request.rows):
            rows, places = request.rows[start:stop], request.places[start:stop]
            low, high = int(rows[0]), int(rows[-1]) + 1
            try:
                block = dataset[..., low:high]
            except OSError as exc:
                where = f"{self._column.path}: column {self._column.layout.name!r}, rows {low} to {high - 1}"
                if is_transient(exc):
                    raise TransientIOError(f"{where}: {exc}") from exc
                raise CorruptChunkError(
                    f"{where}: h5py cannot read them: {exc}. Restore the file from a copy."
                ) from exc
            out[places] = block.T[rows - low].reshape(len(rows), *out.shape[1:])
            worker.stats.h5py_reads += 1

    def _batches(self, dataset: h5py.Dataset, rows: np.ndarray) -> list[tuple[int, int]]:
        """Return parts of ascending rows, each of which one slice reads."""
        row_bytes = max(1, math.prod(dataset.shape[:-1]) * dataset.dtype.itemsize)
        chunk = 1 if dataset.chunks is None else dataset.chunks[-1]
        most = max(chunk, _MOST_BYTES // row_bytes)
        found, start = [], 0
        for at in range(1, len(rows) + 1):
            if at == len(rows) or rows[at] - rows[at - 1] > chunk or rows[at] - rows[start] >= most:
                found.append((start, at))
                start = at
        return found
