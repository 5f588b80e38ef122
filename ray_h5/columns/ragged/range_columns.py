"""Values that are several units of others: ragged values, whole datasets, spans of time, rows of sparse matrices."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from ray_h5.buffers import empty
from ray_h5.columns.derived_columns import RowEntries
from ray_h5.columns.ragged.bounds import Bounds
from ray_h5.columns.ragged.runs import (
    Runs,
    axes_of_fields,
    by_shape,
    common_shape,
    layout_of_rows,
    ragged_layout,
    repeated,
)
from ray_h5.columns.ragged.sparse_rows import Entries, SparseRow, first_outside, index_dtype, rows_of
from ray_h5.columns.values import Reading, Units, Values, keyed
from ray_h5.errors import CorruptFileError, UnsupportedColumnError
from ray_h5.manifest.joined_arrays import JoinedArray
from ray_h5.manifest.layout import ColumnLayout
from ray_h5.manifest.row_requests import by_part, request_of

_LISTED_WIDTH = 1 << 24
"""Up to this width, the place of each position is in a list; a file can claim any width."""


def rows_a_chunk(bounds: Bounds, chunk_values: int) -> int:
    """Return how many rows a chunk of values holds in the mean."""
    return max(1, round(chunk_values * len(bounds) / bounds.total)) if bounds.total else 1


@dataclass(frozen=True, slots=True, eq=False)
class Ranges(Values):
    """Values of which each is several units: a range of a longer array, a whole dataset, a span of time.

    Attributes
    ----------
    name, path : str
        The column, and its file, for messages.
    content : Values
        The values of all units.
    bounds : Bounds
        The units of each value; if `bounds_of` returns them, those of one that is as long as most.
    entries : RowEntries, optional
        The units of its range that a value has; None for all.
    joined : JoinedArray, optional
        The datasets, if each value is a whole one.
    bounds_of : callable, optional
        Returns the units of rows.
    """

    name: str
    path: str
    content: Values
    bounds: Bounds
    entries: RowEntries | None = None
    joined: JoinedArray | None = None
    bounds_of: Callable[[np.ndarray], Bounds] | None = None

    @classmethod
    def whole(cls, name: str, path: str, content: Values, joined: JoinedArray) -> Ranges:
        """Return values of which each is a whole dataset, such as that of a group."""
        return cls(name, path, content, Bounds(joined.starts[:-1], joined.starts[1:]), joined=joined)

    @property
    def array(self) -> ColumnLayout:
        array, joined, lengths = self.content.array, self.joined, self._lengths
        if joined is None:
            chunk_rows = 1 if self.bounds_of is not None else rows_a_chunk(self.bounds, array.chunk_rows)
            is_alike = self.entries is not None and bool(len(lengths)) and bool((lengths == lengths[0]).all())
            if is_alike and array.kind in {"number", "bool"}:
                shape_of_all = (len(lengths), int(lengths[0]), *array.row_shape)
                return layout_of_rows(self.name, array, shape_of_all, chunk_rows, array.path)
            counts = lengths * math.prod(array.row_shape)
            return ragged_layout(self.name, array, counts, (None, *array.row_shape), chunk_rows)
        shapes = self._shapes_of(joined)
        shape = joined.common_shape if joined.single else common_shape(shapes[joined.is_there])
        lacks = not joined.is_there.all()
        if lacks and joined.single and array.kind not in {"string", "category", "optional"}:
            raise UnsupportedColumnError(
                f"{self.path}: column {self.name!r}: {int(np.argmin(joined.is_there))} groups have it before one "
                "that lacks it, and a single value of numbers cannot be None. Choose other columns with columns=[...]."
            )
        if joined.single or (None not in shape and array.kind in {"number", "bool"} and not lacks):
            return layout_of_rows(self.name, array, (len(joined), *(int(n or 0) for n in shape)), 1, self.path)
        if array.kind == "list":
            raise UnsupportedColumnError(
                f"{self.path}: column {self.name!r}: datasets of arrays of varying length, one dataset a group, are "
                "lists of lists. Choose other columns with columns=[...]."
            )
        return ragged_layout(self.name, replace(array, path=self.path), shapes.prod(axis=1, dtype=np.float64), shape)

    @property
    def _lengths(self) -> np.ndarray:
        """int64: the units that each value has."""
        lengths = self.bounds.stops - self.bounds.starts
        return lengths if self.entries is None else self.entries.counts(lengths)

    def _shapes_of(self, joined: JoinedArray) -> np.ndarray:
        """Return the shape of each value as it is delivered: int64."""
        if joined.single:
            return joined.shapes
        lengths, of_units = self._lengths[:, None], self.content.array.row_shape
        if joined.unit_shape is None:
            fields = repeated(axes_of_fields(self.content, joined), len(lengths))
            return np.concatenate([lengths, joined.shapes[:, 1:], fields], axis=1)
        return np.concatenate([lengths, repeated(of_units, len(lengths))], axis=1)

    def reading(self, units: Units, out: np.ndarray) -> Reading:
        wanted, joined = units.listed(), self.joined
        bounds, at = self.bounds, wanted.rows
        if self.bounds_of is not None:
            bounds, at = self.bounds_of(at), np.arange(len(at))
        begins = bounds.starts[at]
        runs = Runs(begins, bounds.stops[at] - begins, wanted.places, self.entries, wanted.keys)
        if joined is not None and not (there := joined.is_there[at]).all():
            out[wanted.places[~there]] = None if out.dtype == object else 0  # numbers are all there
            runs, at = runs.select(there), at[there]
        if joined is not None and joined.single:
            return self.content.reading(request_of(runs.begins, runs.places), out) if len(at) else Reading()
        if out.dtype != object or out.ndim > 1:
            return runs.stacked(self.content, out)
        if joined is None or joined.unit_shape is not None:
            return runs.varying(self.content, out)
        fields = axes_of_fields(self.content, joined)
        return by_shape(
            joined.shapes[at, 1:],
            lambda chosen, shape: runs.select(chosen).varying(self.content, out, (*shape, *fields)),
        )


@dataclass(frozen=True, slots=True, eq=False)
class SparseRows(Values):
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
            item_bytes=max(1, round(self.bounds.total / max(len(self.bounds), 1) * entry * share)),
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
        rows, places, begins = wanted.rows, wanted.places, self.bounds.starts[wanted.rows]
        counts = self.bounds.stops[rows] - begins
        ends = np.cumsum(counts)
        runs = Runs(begins, counts, places).request(ends - counts)
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


@dataclass(frozen=True, eq=False)
class OfParts(Values):
    """Values of several parts, such as groups, that are decoded in different ways.

    Attributes
    ----------
    name : str
        The column.
    parts : tuple of Values
        The values of each part, of one kind and shape. Those of datasets that attributes decode may differ in dtype.
    part_of : callable
        Returns the part of each unit.
    starts : numpy.ndarray, optional
        int64: the first unit of each part, and the end of the last one, if parts are one after the other; by default
        each has the same units.
    """

    name: str
    parts: tuple[Values, ...]
    part_of: Callable[[np.ndarray], np.ndarray]
    starts: np.ndarray | None = None

    @classmethod
    def end_to_end(cls, name: str, parts: Sequence[Values], starts: np.ndarray) -> OfParts:
        """Return values of which those of a part follow those of the part before."""
        return cls(name, (*parts,), lambda units: np.searchsorted(starts, units, side="right") - 1, starts)

    @cached_property  # it makes the layout of each part
    def array(self) -> ColumnLayout:
        layouts = [part.array for part in self.parts]
        dtypes = {layout.dtype for layout in layouts}
        sources = dict.fromkeys(source for layout in layouts for source in layout.sources)
        return replace(
            layouts[0],
            name=self.name,
            shape=layouts[0].shape if self.starts is None else (int(self.starts[-1]), *layouts[0].row_shape),
            stored_dtype=np.result_type(*dtypes) if len(dtypes) > 1 else layouts[0].stored_dtype,
            sources=tuple(sources),
            direct=all(layout.direct for layout in layouts),
            fill=None,
            offset=None,
        )

    def reading(self, units: Units, out: np.ndarray) -> Reading:
        wanted = units.listed()
        keys = wanted.keys
        readings = []
        for part, chosen in by_part(self.part_of(wanted.rows)):
            own = None if keys is None else keys[chosen]
            first = 0 if self.starts is None else self.starts[part]
            request = keyed(wanted.rows[chosen] - first, wanted.places[chosen], own)
            readings.append(self.parts[part].reading(request, out))
        return Reading.together(readings)


def chunk_group_starts(bounds: Bounds, chunk_values: int, chunks: int) -> np.ndarray:
    """Return the first row of each run of rows that begin in the same `chunks` chunks of values; ascending.

    Empty rows are with the row before them.
    """
    groups = bounds.starts // (chunk_values * chunks)
    if not len(groups):
        return np.empty(0, np.int64)
    return np.concatenate([[0], np.flatnonzero(groups[1:] > groups[:-1]) + 1])
