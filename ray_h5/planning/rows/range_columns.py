"""Columns whose rows are ranges of longer arrays: ragged values, rows of sparse matrices."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ray_h5.errors import CorruptFileError
from ray_h5.hdf5.buffers import empty
from ray_h5.hdf5.layout import ColumnLayout
from ray_h5.hdf5.parts import Part
from ray_h5.hdf5.reading.run_request import RunRequest
from ray_h5.planning.rows.bounds import Bounds
from ray_h5.planning.rows.columns import Reading
from ray_h5.planning.sparse import Entries, first_outside, index_dtype, rows_of


def runs_of(bounds: Bounds, rows: np.ndarray) -> tuple[RunRequest, np.ndarray]:
    """Return the request for the values of rows, one row after the other; and where each row ends."""
    starts = bounds.starts[rows]
    counts = bounds.stops[rows] - starts
    ends = np.cumsum(counts)
    runs = RunRequest(starts, ends - counts, counts)
    return runs if counts.all() else runs.select(counts > 0), ends


def mean_count(bounds: Bounds) -> float:
    """Return how many values a row has in the mean."""
    return bounds.total / max(len(bounds), 1)


def rows_a_chunk(bounds: Bounds, chunk_values: int) -> int:
    """Return how many rows a chunk of values holds in the mean."""
    return max(1, round(chunk_values / max(mean_count(bounds), 1e-9))) if len(bounds) and bounds.total else 1


@dataclass(frozen=True, slots=True, eq=False)
class RaggedColumn:
    """A column with a range of a longer array a row.

    Attributes
    ----------
    name : str
        Name.
    content : str
        The dataset with the values.
    stored : ColumnLayout
        Its layout.
    bounds : Bounds
        The range of each row.
    """

    name: str
    content: str
    stored: ColumnLayout
    bounds: Bounds

    def layout(self, num_rows: int, path: str) -> ColumnLayout:  # noqa: ARG002  the bounds are the rows
        stored = self.stored
        chunk = rows_a_chunk(self.bounds, stored.chunk_rows)
        mean = mean_count(self.bounds) * max(stored.row_bytes, 1)
        return ColumnLayout(
            self.name,
            "ragged",
            (len(self.bounds),),
            np.dtype(object),
            "contiguous" if chunk == 1 else "chunked",
            chunk_shape=None if chunk == 1 else (chunk,),
            element=stored.dtype,
            ragged_shape=(None, *stored.row_shape),
            enum=stored.enum,
            item_bytes=max(1, round(mean)),
            sources=stored.sources,
            direct=stored.direct,
            path=path,
        )

    def reading(self, rows: np.ndarray, places: np.ndarray, out: np.ndarray) -> Reading:
        runs, ends = runs_of(self.bounds, rows)
        total = int(ends[-1]) if len(ends) else 0
        flat = empty((total, *self.stored.row_shape), self.stored.dtype, f"column {self.name!r}")

        def finish() -> None:
            begin = 0
            for place, end in zip(places.tolist(), ends.tolist(), strict=True):
                out[place] = flat[begin:end]
                begin = end

        return Reading([Part(self.content, runs, flat)], finish)


@dataclass(frozen=True, slots=True, eq=False)
class CsrColumn:
    """A column with the rows of a sparse matrix.

    Attributes
    ----------
    name : str
        Name.
    indices, data : ColumnLayout
        The layouts of the two datasets.
    bounds : Bounds
        The entries of each row.
    width : int
        Length of a row.
    dense : bool
        Whether batches are dense.
    take : numpy.ndarray, optional
        int64: the positions to deliver.
    path : str
        The file, for messages.
    """

    name: str
    indices: ColumnLayout
    data: ColumnLayout
    bounds: Bounds
    width: int
    dense: bool
    take: np.ndarray | None
    path: str

    @property
    def delivered_width(self) -> int:
        """Length of a row as it is delivered."""
        return self.width if self.take is None else len(self.take)

    def layout(self, num_rows: int, path: str) -> ColumnLayout:  # noqa: ARG002  the bounds are the rows
        chunk = rows_a_chunk(self.bounds, max(self.indices.chunk_rows, self.data.chunk_rows))
        entry = index_dtype(self.delivered_width).itemsize + self.data.stored_dtype.itemsize
        share = self.delivered_width / max(self.width, 1)
        return ColumnLayout(
            self.name,
            "sparse",
            (len(self.bounds),),
            np.dtype(object),
            "contiguous" if chunk == 1 else "chunked",
            chunk_shape=None if chunk == 1 else (chunk,),
            element=self.data.dtype,
            ragged_shape=(self.delivered_width,),
            item_bytes=max(1, round(mean_count(self.bounds) * entry * share)),
            sources=tuple(dict.fromkeys([*self.indices.sources, *self.data.sources])),
            direct=self.indices.direct and self.data.direct,
            dense=self.dense,
            path=path,
        )

    def reading(self, rows: np.ndarray, places: np.ndarray, out: np.ndarray) -> Reading:
        runs, ends = runs_of(self.bounds, rows)
        total = int(ends[-1]) if len(ends) else 0
        where = f"column {self.name!r}"
        indices, data = (empty((total,), each.dtype, where) for each in (self.indices, self.data))

        def finish() -> None:
            indptr = np.concatenate([np.zeros(1, np.int64), ends])
            self._check(indices, indptr, rows)
            found, kept = indices.astype(index_dtype(self.width), copy=False), data
            if self.take is not None:
                found, kept, indptr = self._taken(found, data, indptr)
            out[places] = rows_of(Entries(found, kept), indptr)

        return Reading([Part(self.indices.name, runs, indices), Part(self.data.name, runs, data)], finish)

    def _check(self, indices: np.ndarray, indptr: np.ndarray, rows: np.ndarray) -> None:
        """Raise for a position outside the matrix: what scatters it would write elsewhere without an error."""
        at = first_outside(indices, self.width)
        if at is None:
            return
        row = int(rows[int(np.searchsorted(indptr, at, side="right")) - 1])
        raise CorruptFileError(
            f"{self.path}: column {self.name!r}, row {row}: {self.indices.name!r} has {indices[at]}; expected "
            f"positions from 0 to {self.width - 1}. Restore the file from a copy, or write it again."
        )

    def _taken(
        self, indices: np.ndarray, data: np.ndarray, indptr: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the entries at the positions to deliver, by their place among these."""
        assert self.take is not None
        place = np.full(self.width, -1, index_dtype(len(self.take)))
        place[self.take] = np.arange(len(self.take))
        found = place[indices]
        kept = found >= 0
        counted = np.concatenate([np.zeros(1, np.int64), np.cumsum(kept)])
        return found[kept], data[kept], counted[indptr]


def chunk_group_starts(bounds: Bounds, chunk_values: int, chunks: int) -> np.ndarray:
    """Return the first row of each run of rows that begin in the same `chunks` chunks of values; ascending.

    Empty rows are with the row before them.
    """
    groups = bounds.starts // (chunk_values * chunks)
    if not len(groups):
        return np.empty(0, np.int64)
    return np.concatenate([[0], np.flatnonzero(groups[1:] > groups[:-1]) + 1])
