"""The units of rows as runs, and what a read of them fills: an array in which rows are stacked, or an array a row."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from ray_h5.buffers import empty
from ray_h5.columns.derived_columns import RowEntries
from ray_h5.columns.values import Reading, Values, read_apart
from ray_h5.manifest.joined_arrays import JoinedArray
from ray_h5.manifest.layout import ColumnLayout
from ray_h5.manifest.row_requests import Request


@dataclass(frozen=True, slots=True, eq=False)
class Runs:
    """The units of rows: those of row i are ``counts[i]`` consecutive ones, from ``begins[i]`` on.

    Attributes
    ----------
    begins, counts : numpy.ndarray
        int64: the first unit, and the number of units.
    places : numpy.ndarray
        int64: where each row goes along the first axis of an output.
    entries : RowEntries, optional
        The units that a row has of these; None for all.
    keys : numpy.ndarray, optional
        uint64: the key of each row, by which entries are drawn.
    """

    begins: np.ndarray
    counts: np.ndarray
    places: np.ndarray
    entries: RowEntries | None = None
    keys: np.ndarray | None = None

    def select(self, chosen: np.ndarray) -> Runs:
        """Return the runs of some of the rows."""
        keys = None if self.keys is None else self.keys[chosen]
        begins, counts, places = self.begins[chosen], self.counts[chosen], self.places[chosen]
        return replace(self, begins=begins, counts=counts, places=places, keys=keys)

    @property
    def lengths(self) -> np.ndarray:
        """int64: the units that each row has."""
        return self.counts if self.entries is None else self.entries.counts(self.counts)

    def request(self, at: np.ndarray) -> Request:
        """Return the request that puts the units of row i to place ``at[i]`` and those after it."""
        if self.entries is None:
            runs = Request(self.begins, at, self.counts)
            return runs if self.counts.all() else runs.select(self.counts > 0)
        of, firsts, counts = self.entries.runs(self.counts, self.keys)
        before = np.cumsum(counts) - counts
        of_row = before[np.searchsorted(of, of)]  # before the first run of the row
        return Request(self.begins[of] + firsts, at[of] + before - of_row, counts)

    def stacked(self, values: Values, out: np.ndarray) -> Reading:
        """Return the reading of rows of one length into an array: row i is ``out[places[i]]``."""
        if not out.size:
            return Reading()
        length = out.shape[1]
        if out.flags.c_contiguous:
            return values.reading(self.request(self.places * length), out.reshape(-1, *out.shape[2:]))
        request = self.request(np.arange(len(self.places)) * length)
        return read_apart(
            lambda apart: values.reading(request, apart.reshape(-1, *out.shape[2:])), out.shape[1:], self.places, out
        )

    def varying(self, values: Values, out: np.ndarray, unit_shape: tuple[int, ...] | None = None) -> Reading:
        """Return the reading of rows as arrays of their own, which are parts of one array.

        `unit_shape` is that of the units of these rows, if others have another one.
        """
        array, stops = values.array, np.cumsum(self.lengths)
        shape = array.row_shape if unit_shape is None else unit_shape
        flat = empty((int(stops[-1]) if len(stops) else 0, *shape), array.dtype, f"column {array.name!r}")
        request = self.request(stops - self.lengths)
        is_read = len(request) and (unit_shape is None or flat.size)
        reading = values.reading(request if unit_shape is None else request.listed(), flat) if is_read else Reading()

        def finish() -> None:
            begin = 0
            for place, end in zip(self.places.tolist(), stops.tolist(), strict=True):
                out[place] = flat[begin:end]
                begin = end

        return reading.then(finish)


def by_shape(shapes: np.ndarray, read: Callable[[np.ndarray, tuple[int, ...]], Reading]) -> Reading:
    """Return the readings of rows whose units have these shapes, those of one shape together.

    `read` returns the reading of some of the rows, given which and the shape of their units.
    """
    distinct, shape_of = np.unique(shapes, axis=0, return_inverse=True)
    of = shape_of.reshape(-1)
    return Reading.together(
        [read(np.flatnonzero(of == at), tuple(shape)) for at, shape in enumerate(distinct.tolist())]
    )


def axes_of_fields(values: Values, joined: JoinedArray) -> tuple[int, ...]:
    """Return the axes that values have and their datasets lack: those of fields of compound values."""
    return values.array.row_shape[len(joined.unit.row_shape) :]


def common_shape(shapes: np.ndarray) -> tuple[int | None, ...]:
    """Return the shape that rows share; None for an axis along which they differ."""
    if not len(shapes):
        return (None,) * shapes.shape[1]
    same = (shapes == shapes[0]).all(axis=0)
    return tuple(int(n) if alike else None for n, alike in zip(shapes[0], same, strict=True))


def repeated(shape: tuple[int, ...], count: int) -> np.ndarray:
    """Return a shape once for each of some rows."""
    return np.broadcast_to(np.array(shape, np.int64), (count, len(shape)))


def layout_of_rows(name: str, array: ColumnLayout, shape: tuple[int, ...], chunk_rows: int, path: str) -> ColumnLayout:
    """Return the layout of rows of one shape, which lie where `array` does, but are no dataset themselves."""
    chunks = None if chunk_rows == 1 else (chunk_rows, *shape[1:])
    rows = replace(array, name=name, shape=shape, chunk_shape=chunks, path=path)
    return replace(rows, offset=None, fill=None, user_block=0, lost_fields=())


def ragged_layout(
    name: str, array: ColumnLayout, counts: np.ndarray, shape: tuple[int | None, ...], chunk_rows: int = 0
) -> ColumnLayout:
    """Return the layout of rows that are arrays of several values, given how many each has.

    `chunk_rows` is how many rows a chunk of values holds; 0 for rows that are whole datasets, or steps of them.
    """
    mean = float(counts.mean()) if len(counts) else 0.0
    # Values that Arrow has no tensors of are lists: times, compound values, numbers that may be missing.
    is_category = array.kind == "category" and not chunk_rows
    is_text = array.kind == "string" or (is_category and array.element == np.dtype(object))
    as_list = array.kind not in {"number", "bool"} and not is_text and len(shape) == 1
    return ColumnLayout(
        name,
        "list" if as_list else "ragged",
        (len(counts),),
        np.dtype(object),
        "contiguous" if chunk_rows <= 1 else "chunked",
        chunk_shape=None if chunk_rows <= 1 else (chunk_rows,),
        element=array.dtype if array.element is None else array.element,
        ragged_shape=() if as_list else shape,
        nullable=as_list and array.kind in {"category", "optional"},
        enum=() if is_category else array.enum,
        item_bytes=max(1, round(mean * array.stored_dtype.itemsize)),
        sources=array.sources,
        direct=array.direct,
        path=array.path,
    )
