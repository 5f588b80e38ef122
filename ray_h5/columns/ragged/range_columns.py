"""Values that are ranges of longer arrays: ragged values, rows of sparse matrices."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from ray_h5.buffers import empty
from ray_h5.columns.derived_columns import RowEntries
from ray_h5.columns.ragged.bounds import Bounds
from ray_h5.columns.ragged.runs import Runs
from ray_h5.columns.ragged.sparse_rows import Entries, SparseRow, first_outside, index_dtype, rows_of
from ray_h5.columns.values import OneAxis, Reading, Units, Values
from ray_h5.errors import CorruptFileError
from ray_h5.manifest.layout import ColumnLayout
from ray_h5.manifest.row_requests import Request

_LISTED_WIDTH = 1 << 24
"""Up to this width, the place of each position is in a list; a file can claim any width."""


def runs_of(bounds: Bounds, wanted: Request, entries: RowEntries | None = None) -> Runs:
    """Return the values of rows."""
    begins = bounds.starts[wanted.rows]
    return Runs(begins, bounds.stops[wanted.rows] - begins, wanted.places, entries, wanted.keys)


def mean_count(bounds: Bounds) -> float:
    """Return how many values a row has in the mean."""
    return bounds.total / max(len(bounds), 1)


def rows_a_chunk(bounds: Bounds, chunk_values: int) -> int:
    """Return how many rows a chunk of values holds in the mean."""
    return max(1, round(chunk_values / max(mean_count(bounds), 1e-9))) if len(bounds) and bounds.total else 1


@dataclass(frozen=True, slots=True, eq=False)
class RaggedRows(OneAxis):
    """A range of a longer array a unit.

    Attributes
    ----------
    name : str
        Name.
    content : Values
        The values of all units, one after the other.
    bounds : Bounds
        The range of each unit.
    entries : RowEntries, optional
        Which values of its range a unit has; None for all.
    """

    name: str
    content: Values
    bounds: Bounds
    entries: RowEntries | None = None

    @property
    def array(self) -> ColumnLayout:
        content = self.content.array
        chunk = rows_a_chunk(self.bounds, content.chunk_rows)
        counts = None if self.entries is None else self.entries.counts(self.bounds.stops - self.bounds.starts)
        if counts is not None and content.kind in {"number", "bool"} and len(counts) and (counts == counts[0]).all():
            shape = (int(counts[0]), *content.row_shape)
            return replace(
                content,
                name=self.name,
                shape=(len(counts), *shape),
                chunk_shape=None if chunk == 1 else (chunk, *shape),
                fill=None,
                offset=None,
            )
        mean = mean_count(self.bounds) * max(content.row_bytes, 1)
        # Values that Arrow has no tensors of are lists.
        as_list = content.kind not in {"number", "bool", "string"} and not content.row_shape
        return ColumnLayout(
            self.name,
            "list" if as_list else "ragged",
            (len(self.bounds),),
            np.dtype(object),
            "contiguous" if chunk == 1 else "chunked",
            chunk_shape=None if chunk == 1 else (chunk,),
            element=content.dtype if content.element is None else content.element,
            ragged_shape=() if as_list else (None, *content.row_shape),
            nullable=as_list and content.kind in {"category", "optional"},
            enum=content.enum,
            item_bytes=max(1, round(mean)),
            sources=content.sources,
            direct=content.direct,
            path=content.path,
        )

    def reading(self, units: Units, out: np.ndarray) -> Reading:
        return runs_of(self.bounds, units.listed(), self.entries).varying(self.content, out)


@dataclass(frozen=True, slots=True, eq=False)
class SparseRows(OneAxis):
    """The rows of a sparse matrix.

    Attributes
    ----------
    name : str
        Name.
    indices, data : Values
        The positions and values of all entries.
    bounds : Bounds
        The entries of each row.
    width : int
        Length of a row.
    dense : bool
        Whether batches are dense.
    at : numpy.ndarray, optional
        int64: the positions to deliver.
    path : str
        The file, for messages.
    """

    name: str
    indices: Values
    data: Values
    bounds: Bounds
    width: int
    dense: bool
    at: np.ndarray | None
    path: str

    @property
    def delivered_width(self) -> int:
        """Length of a row as it is delivered."""
        return self.width if self.at is None else len(self.at)

    @property
    def array(self) -> ColumnLayout:
        indices, data = self.indices.array, self.data.array
        chunk = rows_a_chunk(self.bounds, max(indices.chunk_rows, data.chunk_rows))
        entry = index_dtype(self.delivered_width).itemsize + data.stored_dtype.itemsize
        share = self.delivered_width / max(self.width, 1)
        return ColumnLayout(
            self.name,
            "sparse",
            (len(self.bounds),),
            np.dtype(object),
            "contiguous" if chunk == 1 else "chunked",
            chunk_shape=None if chunk == 1 else (chunk,),
            element=data.dtype,
            ragged_shape=(self.delivered_width,),
            item_bytes=max(1, round(mean_count(self.bounds) * entry * share)),
            sources=tuple(dict.fromkeys([*indices.sources, *data.sources])),
            direct=indices.direct and data.direct,
            dense=self.dense,
            path=self.path,
        )

    def blank(self, dtype: np.dtype) -> SparseRow:  # noqa: ARG002  as the other values have it
        indices = np.empty(0, index_dtype(self.delivered_width))
        return SparseRow(Entries(indices, np.empty(0, self.data.array.dtype)), 0, 0)

    def reading(self, units: Units, out: np.ndarray) -> Reading:
        wanted = units.listed()
        rows, places, ranges = wanted.rows, wanted.places, runs_of(self.bounds, wanted)
        ends = np.cumsum(ranges.counts)
        runs = ranges.request(ends - ranges.counts)
        total = int(ends[-1]) if len(ends) else 0
        where = f"column {self.name!r}"
        indices, data = (empty((total,), index.array.dtype, where) for index in (self.indices, self.data))
        read = (self.indices.reading(runs, indices), self.data.reading(runs, data)) if len(runs) else ()

        def finish() -> None:
            indptr = np.concatenate([np.zeros(1, np.int64), ends])
            self._check(indices, indptr, rows)
            taken, kept = indices.astype(index_dtype(self.width), copy=False), data
            if self.at is not None:
                taken, kept, indptr = self._taken(taken, data, indptr)
            out[places] = rows_of(Entries(taken, kept), indptr)

        return Reading([part for reading in read for part in reading.parts], finish)

    def _check(self, indices: np.ndarray, indptr: np.ndarray, rows: np.ndarray) -> None:
        """Raise for a position outside the matrix: what scatters it would write elsewhere without an error."""
        wrong = first_outside(indices, self.width)
        if wrong is None:
            return
        row = int(rows[int(np.searchsorted(indptr, wrong, side="right")) - 1])
        raise CorruptFileError(
            f"{self.path}: column {self.name!r}, row {row}: {self.indices.array.name!r} has {indices[wrong]}; expected "
            f"positions from 0 to {self.width - 1}. Restore the file from a copy, or write it again."
        )

    def _taken(
        self, indices: np.ndarray, data: np.ndarray, indptr: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the entries at the positions to deliver, by their place among these."""
        assert self.at is not None
        places = self._places(indices)
        kept = places >= 0
        counted = np.concatenate([np.zeros(1, np.int64), np.cumsum(kept)])
        return places[kept], data[kept], counted[indptr]

    def _places(self, indices: np.ndarray) -> np.ndarray:
        """Return the place of each position among those to deliver; -1 if it is not one of them."""
        assert self.at is not None
        dtype = index_dtype(len(self.at))
        if self.width <= _LISTED_WIDTH:
            place = np.full(self.width, -1, dtype)
            place[self.at] = np.arange(len(self.at))
            return place[indices]
        order = np.argsort(self.at)
        at = np.searchsorted(self.at, indices, sorter=order)
        place = order[np.minimum(at, len(order) - 1)]
        return np.where(self.at[place] == indices, place, -1).astype(dtype)


def joined_rows(windows: np.ndarray, width: int) -> np.ndarray:
    """Return rows of a sparse matrix, several a window, as one row a window: step after step, each `width` long."""
    joined = np.empty(len(windows), object)
    for at, rows in enumerate(windows):
        dtype = index_dtype(width * len(rows))
        indices = np.concatenate([row.indices.astype(dtype) + step * width for step, row in enumerate(rows)])
        data = np.concatenate([row.data for row in rows])
        joined[at] = SparseRow(Entries(indices, data), 0, len(data))
    return joined


def chunk_group_starts(bounds: Bounds, chunk_values: int, chunks: int) -> np.ndarray:
    """Return the first row of each run of rows that begin in the same `chunks` chunks of values; ascending.

    Empty rows are with the row before them.
    """
    groups = bounds.starts // (chunk_values * chunks)
    if not len(groups):
        return np.empty(0, np.int64)
    return np.concatenate([[0], np.flatnonzero(groups[1:] > groups[:-1]) + 1])
