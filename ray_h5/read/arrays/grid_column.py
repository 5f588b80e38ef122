"""Columns whose leading axes together are the rows."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from ray_h5.manifest.layout import ColumnLayout
from ray_h5.manifest.row_requests import Request, request_of
from ray_h5.read.arrays.direct_column import DirectColumn
from ray_h5.read.jobs import Job
from ray_h5.read.through_h5py.h5py_column import H5pyColumn, Library
from ray_h5.read.through_h5py.selected_columns import GridThroughH5py
from ray_h5.storage.byte_source import ByteSource


@dataclass(frozen=True, slots=True)
class GridAddress:
    """A column of which the first `axes` axes are rows, in C order."""

    name: str
    axes: int


def grid_layout(layout: ColumnLayout, axes: int) -> ColumnLayout:
    """Return the layout of a column whose chunks are those of `layout`, and whose rows are its first axes.

    The chunks keep their numbers. A chunk of shape ``(m, k, ...)`` has ``m * k`` rows, which follow each other; so the
    rows of this layout are in another order, and some do not exist in `layout`; see `grid_rows`.
    """
    if layout.chunk_shape is None:
        return replace(layout, shape=(math.prod(layout.shape[:axes]), *layout.shape[axes:]))
    chunk = layout.chunk_shape
    counts = [-(-n // c) for n, c in zip(layout.shape[:axes], chunk[:axes], strict=True)]
    per_chunk = math.prod(chunk[:axes])
    return replace(
        layout,
        shape=(math.prod(counts) * per_chunk, *layout.shape[axes:]),
        chunk_shape=(per_chunk, *chunk[axes:]),
    )


def grid_rows(layout: ColumnLayout, axes: int, rows: np.ndarray) -> np.ndarray:
    """Return the rows of `grid_layout` that hold some rows, numbered in C order over the first `axes` axes."""
    lengths = layout.shape[:axes]
    if layout.chunk_shape is None or is_in_order(layout, axes):
        return rows
    chunk = layout.chunk_shape[:axes]
    counts = tuple(-(-n // c) for n, c in zip(lengths, chunk, strict=True))
    cells = [np.divmod(index, size) for index, size in zip(np.unravel_index(rows, lengths), chunk, strict=True)]
    number = np.ravel_multi_index([cell for cell, _ in cells], counts)
    inside = np.ravel_multi_index([rest for _, rest in cells], chunk)
    return np.asarray(number * math.prod(chunk) + inside, np.int64)


def is_in_order(layout: ColumnLayout, axes: int) -> bool:
    """Return whether the rows of `grid_layout` are in C order: chunks of one index of all axes but the last."""
    chunk = layout.chunk_shape
    return chunk is None or (
        all(size == 1 for size in chunk[: axes - 1]) and layout.shape[axes - 1] % chunk[axes - 1] == 0
    )


class GridColumn:
    """Reads rows along several leading axes.

    Parameters
    ----------
    layout : ColumnLayout
        The dataset, as it is.
    axes : int
        How many of its leading axes are rows.
    column : DirectColumn or H5pyColumn
        Reads `grid_layout` of it; or the dataset itself, through h5py.
    """

    def __init__(self, layout: ColumnLayout, axes: int, column: DirectColumn | H5pyColumn) -> None:
        self._layout = layout
        self._axes = axes
        self._column = column

    takes_runs = False

    @property
    def byte_source(self) -> ByteSource:
        """The bytes that its jobs fetch, if they need no libhdf5."""
        assert isinstance(self._column, DirectColumn)
        return self._column.byte_source

    @property
    def needs_library(self) -> bool:
        """Whether its jobs need libhdf5."""
        return self._column.needs_library

    def jobs(self, request: Request, out: np.ndarray, library: Library) -> list[Job]:
        """Return the work that fills ``out[request.places]`` with ``request.rows``."""
        if not len(request):
            return []
        if isinstance(self._column, H5pyColumn):
            return GridThroughH5py(self._column, self._axes).jobs(request, out, library)
        if is_in_order(self._layout, self._axes):
            return self._column.jobs(request, out, library)
        listed = request.listed()
        return self._column.jobs(
            request_of(grid_rows(self._layout, self._axes, listed.rows), listed.places), out, library
        )
