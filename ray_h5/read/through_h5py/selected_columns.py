"""Rows that are selections of an array, read through h5py: along its last axis, and blocks."""

from __future__ import annotations

import itertools
import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import partial
from types import EllipsisType

import h5py
import numpy as np

from ray_h5.errors import CorruptChunkError, TransientIOError
from ray_h5.hdf5.columns.value_types import AsDescribed
from ray_h5.hdf5.files.opening import is_transient
from ray_h5.manifest.row_requests import Request, RowRange, RowRequest, RowRuns
from ray_h5.read.arrays.selection import Runs, Selection
from ray_h5.read.jobs import InTurn, Job, Worker
from ray_h5.read.through_h5py.h5py_column import H5pyColumn, Library

_MOST_BYTES = 16 << 20
"""Bytes that one call of libhdf5 reads."""


class SelectedThroughH5py(ABC):
    """Reads rows that are selections of an array, of which each may touch any chunk.

    Parameters
    ----------
    column : H5pyColumn
        The array, with its guard.
    """

    takes_runs = False

    def __init__(self, column: H5pyColumn) -> None:
        self._column = column
        self._is_checked = False

    def jobs(self, request: Request, out: np.ndarray, library: Library) -> list[Job]:
        """Return the work that fills ``out[request.places]`` with ``request.rows``."""
        dataset = library.dataset(self._column.layout.name)
        wanted = request.listed()
        return [InTurn([partial(self._read, dataset, library, wanted, out)])] if len(wanted) and out.size else []

    def _read(
        self, dataset: h5py.Dataset, library: Library, request: RowRequest, out: np.ndarray, worker: Worker
    ) -> None:
        guard = self._column.guard
        if not self._is_checked:
            guard(RowRange(0, 0, len(dataset)), worker, library)  # a row may have values in all of the chunks
            self._is_checked = True
        self._fill(dataset, request, out, worker)

    @abstractmethod
    def _fill(self, dataset: h5py.Dataset, request: RowRequest, out: np.ndarray, worker: Worker) -> None: ...

    def _selected(
        self, dataset: h5py.Dataset, selection: tuple[int | slice | EllipsisType, ...], what: str, worker: Worker
    ) -> np.ndarray:
        """Return what h5py reads by one selection; `what` names the rows in the error."""
        try:
            found: np.ndarray = AsDescribed.of(dataset)[selection]
        except OSError as exc:
            where = f"{self._column.path}: column {self._column.layout.name!r}, {what}"
            if is_transient(exc):
                raise TransientIOError(f"{where}: {exc}") from exc
            raise CorruptChunkError(f"{where}: h5py cannot read this: {exc}. Restore the file from a copy.") from exc
        worker.stats.h5py_reads += 1
        return found


class LastAxisThroughH5py(SelectedThroughH5py):
    """Reads rows along the last axis, in slices that touch each chunk once.

    Parameters
    ----------
    column
        As in `SelectedThroughH5py`.
    axes : int
        How many of its last axes are rows.
    """

    def __init__(self, column: H5pyColumn, axes: int = 1) -> None:
        super().__init__(column)
        self._axes = axes

    def _fill(self, dataset: h5py.Dataset, request: RowRequest, out: np.ndarray, worker: Worker) -> None:
        within = math.prod(dataset.shape[-self._axes : -1])
        last, inside = np.divmod(request.rows, within)
        for start, stop in _batches(dataset, last):
            rows, places = last[start:stop], request.places[start:stop]
            low, high = int(rows[0]), int(rows[-1]) + 1
            block = self._selected(dataset, np.s_[..., low:high], f"rows {low} to {high - 1}", worker)
            found = block.T.reshape((high - low) * within, *out.shape[1:]) if within > 1 else block.T
            out[places] = found[(rows - low) * within + inside[start:stop]].reshape(len(rows), *out.shape[1:])


class BlocksThroughH5py(SelectedThroughH5py):
    """Reads blocks, one selection a block.

    Parameters
    ----------
    column
        As in `SelectedThroughH5py`.
    selection : Selection
        Which blocks.
    """

    def __init__(self, column: H5pyColumn, selection: Selection) -> None:
        super().__init__(column)
        self._selection = selection

    def _fill(self, dataset: h5py.Dataset, request: RowRequest, out: np.ndarray, worker: Worker) -> None:
        layout, selection = self._column.layout, self._selection
        corners = selection.corners(request.rows, layout)
        shape = np.array(selection.box_shape(layout.shape))
        lengths = np.minimum(shape, np.array(layout.shape) - corners)
        out[request.places[(lengths < shape).any(axis=1)]] = np.zeros((), out.dtype)
        taken = [*selection.taken, *[None] * (len(layout.shape) - len(selection.taken))]
        for place, corner, count in zip(request.places.tolist(), corners.tolist(), lengths.tolist(), strict=True):
            runs = [((low, n),) if each is None else each for low, n, each in zip(corner, count, taken, strict=True)]
            for box in itertools.product(*map(_placed, runs)):
                there = tuple(slice(low, low + n) for low, n, _ in box)[: dataset.ndim]
                here = tuple(slice(begin, begin + n) for _, n, begin in box)
                out[(place, *here)] = self._selected(dataset, there, f"block at {tuple(corner)}", worker)


def _placed(runs: Runs) -> list[tuple[int, int, int]]:
    """Return the first position, the length and the place of each run."""
    begins = itertools.accumulate((count for _, count in runs), initial=0)
    return [(first, count, begin) for (first, count), begin in zip(runs, begins, strict=False)]


def selected_through_h5py(column: H5pyColumn, selection: Selection) -> SelectedThroughH5py:
    """Return what reads a selection through h5py."""
    if selection.is_reversed:
        return LastAxisThroughH5py(column, len(selection.axes))
    if selection.shape:
        return BlocksThroughH5py(column, selection)
    return GridThroughH5py(column, len(selection.axes))


class GridThroughH5py(SelectedThroughH5py):
    """Reads rows along several leading axes, in slices along one of these.

    The first axes have one index each, as many as it takes for a slice of the next one to be small.

    Parameters
    ----------
    column
        As in `SelectedThroughH5py`.
    axes : int
        How many of its leading axes are rows.
    """

    def __init__(self, column: H5pyColumn, axes: int) -> None:
        super().__init__(column)
        self._axes = axes

    def _read(
        self, dataset: h5py.Dataset, library: Library, request: RowRequest, out: np.ndarray, worker: Worker
    ) -> None:
        shape, guard = self._column.layout.shape, self._column.guard
        slabs = request.rows // math.prod(shape[1 : self._axes])
        runs = RowRuns.split(slabs[1:] != slabs[:-1])
        for start, stop in zip(runs.start.tolist(), runs.stop.tolist(), strict=True):
            guard(RowRange(int(slabs[start]), 0, 1), worker, library)
            self._fill(dataset, request.select(slice(start, stop)), out, worker)

    def _fill(self, dataset: h5py.Dataset, request: RowRequest, out: np.ndarray, worker: Worker) -> None:
        layout, axes = self._column.layout, self._axes
        sizes = [math.prod(layout.shape[axis:]) * layout.dtype.itemsize for axis in range(axes)]
        fixed = next((axis for axis in range(1, axes) if sizes[axis] <= _MOST_BYTES), axes - 1)
        within = math.prod(layout.shape[fixed + 1 : axes])
        lines, inside = np.divmod(request.rows, within)
        indices, along = np.divmod(lines, layout.shape[fixed])
        most = max(1, _MOST_BYTES // max(1, sizes[fixed] // layout.shape[fixed]))
        gap = layout.chunk_shape[fixed] if layout.chunk_shape else 1
        ends = (np.diff(indices) != 0) | (np.diff(along) > gap) | (np.diff(along // most) != 0)
        runs = RowRuns.split(ends)
        for start, stop in zip(runs.start.tolist(), runs.stop.tolist(), strict=True):
            low, high = int(along[start]), int(along[stop - 1]) + 1
            index = [int(each) for each in np.unravel_index(indices[start], layout.shape[:fixed])]
            found = self._selected(dataset, (*index, slice(low, high)), f"rows {low} to {high - 1} of {index}", worker)
            rows = found.reshape((high - low) * within, *layout.shape[axes:])
            out[request.places[start:stop]] = rows[(along[start:stop] - low) * within + inside[start:stop]]


def _batches(dataset: h5py.Dataset, rows: np.ndarray) -> Sequence[tuple[int, int]]:
    """Return parts of ascending rows, each of which one slice along the last axis reads."""
    row_bytes = max(1, math.prod(dataset.shape[:-1]) * dataset.id.get_type().get_size())
    chunk = 1 if dataset.chunks is None else dataset.chunks[-1]
    most = max(chunk, _MOST_BYTES // row_bytes)
    found, start = [], 0
    for at in range(1, len(rows) + 1):
        if at == len(rows) or rows[at] - rows[at - 1] > chunk or rows[at] - rows[start] >= most:
            found.append((start, at))
            start = at
    return found
