"""Values that are several units of others: ragged values, whole datasets, spans of time, rows of sparse matrices."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from ray_h5.columns.derived_columns import RowEntries
from ray_h5.columns.ragged.bounds import Bounds
from ray_h5.columns.ragged.runs import Runs, axes_of_fields, common_shape, layout_of_rows, ragged_layout
from ray_h5.columns.ragged.sparse_rows import Entries, first_outside, index_dtype, rows_of
from ray_h5.columns.schema import TENSOR_KINDS
from ray_h5.columns.values import Reading, Values
from ray_h5.errors import CorruptFileError, UnsupportedColumnError
from ray_h5.manifest.joined_arrays import JoinedArray
from ray_h5.manifest.layout import ColumnLayout
from ray_h5.manifest.row_requests import Request, by_part, request_of

_LISTED_WIDTH = 1 << 24
"""Up to this width, the place of each position is in a list; a file can claim any width."""


def rows_a_chunk(bounds: Bounds, chunk_values: int) -> int:
    """Return how many rows a chunk of values holds in the mean."""
    return max(1, round(chunk_values * len(bounds) / bounds.total)) if bounds.total else 1


@dataclass(frozen=True, slots=True, eq=False)
class Take(Values, ABC):
    """Values of which each is one or several units of others, which may be takes themselves.

    Attributes
    ----------
    name, path : str
        The column, and its file, for messages.
    content : Values
        The values of all units.
    joined : JoinedArray, optional
        The datasets that units are of, if they may differ in shape, or a group may lack its own.
    """

    name: str
    path: str
    content: Values
    joined: JoinedArray | None = field(default=None, kw_only=True)

    @abstractmethod
    def runs_of(self, wanted: Request) -> Runs:
        """Return the units of values, which are listed."""

    def datasets_of(self, rows: np.ndarray) -> np.ndarray:
        """Return which of the joined datasets has each value; by default, each is a whole one."""
        return rows

    def shapes_of(self, joined: JoinedArray, lead: np.ndarray) -> np.ndarray:
        """Return the shape of the values of each dataset, which has the axes `lead` before those of a unit: int64."""
        content, shapes = self.content.array.row_shape, joined.shapes[:, 1:]
        is_one = joined.unit_shape is not None
        last = np.array(content if is_one else axes_of_fields(self.content, joined), np.int64)
        axes = [lead, shapes[:, : 0 if is_one else None], np.broadcast_to(last, (len(joined), len(last)))]
        return np.concatenate(axes, axis=1) * joined.is_there[:, None]

    def reading(self, units: Request, out: np.ndarray) -> Reading:
        wanted, joined, content = units.listed(), self.joined, self.content
        runs, of = self.runs_of(wanted), wanted.rows if joined is None else self.datasets_of(wanted.rows)
        if joined is not None and not (there := joined.is_there[of]).all():
            out[wanted.places[~there]] = None if out.dtype == object else content.blank(out.dtype)
            runs, of = runs.select(there), of[there]
        # Rows that are one unit of text are in an array of objects, too.
        is_apart = out.dtype == object and out.ndim == 1 and (runs.has_axis or content.array.kind in TENSOR_KINDS)
        if not is_apart:
            return runs.stacked(content, out)
        if joined is None or joined.unit_shape is not None:
            return runs.varying(content, out)
        shapes, of_shape = np.unique(joined.shapes[of, 1:], axis=0, return_inverse=True)
        alike = [runs.select(np.flatnonzero(of_shape.reshape(-1) == at)) for at in range(len(shapes))]
        own = ((*shape, *axes_of_fields(content, joined)) for shape in shapes.tolist())
        return Reading.together([some.varying(content, out, shape) for some, shape in zip(alike, own, strict=True)])


@dataclass(frozen=True, slots=True, eq=False)
class Ranges(Take):
    """Values of which each is consecutive units: a range of a longer array, a whole dataset, a span of time.

    Attributes
    ----------
    bounds : Bounds
        The units of each value; if `bounds_of` returns them, those of one that is as long as most.
    entries : RowEntries, optional
        The units of its range that a value has; None for all.
    bounds_of : callable, optional
        Returns the units of rows.
    """

    bounds: Bounds
    entries: RowEntries | None = None
    bounds_of: Callable[[np.ndarray], Bounds] | None = None

    @classmethod
    def whole(cls, name: str, path: str, content: Values, joined: JoinedArray) -> Ranges:
        """Return values of which each is a whole dataset, such as that of a group."""
        return cls(name, path, content, Bounds(joined.starts[:-1], joined.starts[1:]), joined=joined)

    @property
    def array(self) -> ColumnLayout:
        array, joined, lengths = self.content.array, self.joined, self.bounds.stops - self.bounds.starts
        lengths = lengths if self.entries is None else self.entries.counts(lengths)
        if joined is None:
            chunk_rows = 1 if self.bounds_of is not None else rows_a_chunk(self.bounds, array.chunk_rows)
            is_alike = self.entries is not None and bool(len(lengths)) and bool((lengths == lengths[0]).all())
            if is_alike and array.kind in TENSOR_KINDS:
                shape_of_all = (len(lengths), int(lengths[0]), *array.row_shape)
                return layout_of_rows(self.name, array, shape_of_all, chunk_rows, array.path)
            counts = lengths * math.prod(array.row_shape)
            return ragged_layout(self.name, array, counts, (None, *array.row_shape), chunk_rows)
        shapes = self.shapes_of(joined, lengths[:, None])
        shape = joined.layouts[0].row_shape if joined.single else common_shape(shapes[joined.is_there])
        lacks = not joined.is_there.all()
        if lacks and joined.single and array.kind not in {"string", "category", "optional"}:
            raise UnsupportedColumnError(
                f"{self.path}: column {self.name!r}: {int(np.argmin(joined.is_there))} groups have it before one "
                "that lacks it, and a single value of numbers cannot be None. Choose other columns with columns=[...]."
            )
        if joined.single or (None not in shape and array.kind in TENSOR_KINDS and not lacks):
            return layout_of_rows(self.name, array, (len(joined), *(int(n or 0) for n in shape)), 1, self.path)
        if array.kind == "list":
            raise UnsupportedColumnError(
                f"{self.path}: column {self.name!r}: datasets of arrays of varying length, one dataset a group, are "
                "lists of lists. Choose other columns with columns=[...]."
            )
        return ragged_layout(self.name, replace(array, path=self.path), shapes.prod(axis=1, dtype=np.float64), shape)

    def runs_of(self, wanted: Request) -> Runs:
        bounds, at = self.bounds, wanted.rows
        if self.bounds_of is not None:
            bounds, at = self.bounds_of(at), np.arange(len(at))
        begins = bounds.starts[at]
        is_one = self.joined is not None and self.joined.single
        counts = None if is_one else bounds.stops[at] - begins
        return Runs(begins, counts, wanted.places, None, self.entries, wanted.keys)


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

    def reading(self, units: Request, out: np.ndarray) -> Reading:
        wanted = units.listed()
        rows, begins = wanted.rows, self.bounds.starts[wanted.rows]
        runs = Runs(begins, self.bounds.stops[rows] - begins, wanted.places)
        (of_indices, indices, ends), (of_data, data, _) = map(runs.end_to_end, (self.indices, self.data))

        def finish() -> None:
            indptr = np.concatenate([np.zeros(1, np.int64), ends])
            # What scatters a position outside the matrix would write elsewhere without an error.
            if (wrong := first_outside(indices, self.width)) is not None:
                row = int(rows[int(np.searchsorted(indptr, wrong, side="right")) - 1])
                raise CorruptFileError(
                    f"{self.path}: column {self.name!r}, row {row}: {self.indices.array.name!r} has {indices[wrong]}; "
                    f"expected positions from 0 to {self.width - 1}. Restore the file from a copy, or write it again."
                )
            entries = Entries(indices.astype(index_dtype(self.width), copy=False), data)
            if self.at is not None:
                places = self._places(entries.indices, self.at)
                is_taken = places >= 0
                entries = Entries(places[is_taken], data[is_taken])
                indptr = np.concatenate([np.zeros(1, np.int64), np.cumsum(is_taken)])[indptr]
            out[wanted.places] = rows_of(entries, indptr)

        return Reading.together([of_indices, of_data]).then(finish)

    def _places(self, indices: np.ndarray, delivered: np.ndarray) -> np.ndarray:
        """Return the place of each position among those to deliver; -1 if it is not one of them."""
        dtype = index_dtype(len(delivered))
        if self.width <= _LISTED_WIDTH:
            place = np.full(self.width, -1, dtype)
            place[delivered] = np.arange(len(delivered))
            return place[indices]
        order = np.argsort(delivered)
        at = np.searchsorted(delivered, indices, sorter=order)
        place = order[np.minimum(at, len(order) - 1)]
        return np.where(delivered[place] == indices, place, -1).astype(dtype)


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
        Returns the part of each unit, and its number among the units of that part.
    """

    name: str
    parts: tuple[Values, ...]
    part_of: Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]

    @cached_property  # it makes the layout of each part
    def array(self) -> ColumnLayout:
        layouts = [part.array for part in self.parts]
        dtypes = {layout.dtype for layout in layouts}
        sources = dict.fromkeys(source for layout in layouts for source in layout.sources)
        return replace(
            layouts[0],
            name=self.name,
            stored_dtype=np.result_type(*dtypes) if len(dtypes) > 1 else layouts[0].stored_dtype,
            sources=tuple(sources),
            direct=all(layout.direct for layout in layouts),
            fill=None,
            offset=None,
        )

    def reading(self, units: Request, out: np.ndarray) -> Reading:
        wanted, readings = units.listed(), []
        parts, rows = self.part_of(wanted.rows)
        for part, chosen in by_part(parts):
            keys = None if wanted.keys is None else wanted.keys[chosen]
            readings.append(self.parts[part].reading(request_of(rows[chosen], wanted.places[chosen], keys), out))
        return Reading.together(readings)


def chunk_group_starts(bounds: Bounds, chunk_values: int, chunks: int) -> np.ndarray:
    """Return the first row of each run of rows that begin in the same `chunks` chunks of values; ascending.

    Empty rows are with the row before them.
    """
    groups = bounds.starts // (chunk_values * chunks)
    if not len(groups):
        return np.empty(0, np.int64)
    return np.concatenate([[0], np.flatnonzero(groups[1:] > groups[:-1]) + 1])
