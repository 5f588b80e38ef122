"""The units of rows as runs, and what a read of them fills: an array in which rows are stacked, or an array a row."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from ray_h5.buffers import empty
from ray_h5.columns.derived_columns import RowEntries
from ray_h5.columns.values import Reading, Values
from ray_h5.hash_and_permute import word_at
from ray_h5.manifest.joined_arrays import JoinedArray
from ray_h5.manifest.layout import ColumnLayout
from ray_h5.manifest.row_requests import Request, request_of


@dataclass(frozen=True, slots=True, eq=False)
class Runs:
    """The units of rows: those of row i are ``counts[i]`` consecutive ones, or as many that are listed.

    Attributes
    ----------
    begins : numpy.ndarray
        int64: the first unit of each row; or of shape ``(rows, width)``: its units.
    counts : numpy.ndarray, optional
        int64: the number of units of each row; None if each has one, without an axis, or if units are listed.
    places : numpy.ndarray
        int64: where each row goes along the first axis of an output.
    is_blank : numpy.ndarray, optional
        bool, in the shape of `begins`: which units stand for nothing; None for none.
    entries : RowEntries, optional
        The units that a row has of these; None for all.
    keys : numpy.ndarray, optional
        uint64: the key of each row, by which entries are drawn.
    """

    begins: np.ndarray
    counts: np.ndarray | None
    places: np.ndarray
    is_blank: np.ndarray | None = None
    entries: RowEntries | None = None
    keys: np.ndarray | None = None

    def select(self, chosen: np.ndarray) -> Runs:
        """Return the runs of some of the rows."""
        of_rows = {name: getattr(self, name) for name in ("begins", "counts", "places", "is_blank", "keys")}
        return replace(self, **{name: of[chosen] for name, of in of_rows.items() if of is not None})

    @property
    def has_axis(self) -> bool:
        """Whether the units of a row lie along an axis; otherwise it is one unit."""
        return self.counts is not None or self.begins.ndim > 1

    @property
    def lengths(self) -> np.ndarray:
        """int64: the units that each row has."""
        if self.counts is None:
            return np.full(len(self.begins), self.begins.shape[1] if self.has_axis else 1)
        return self.counts if self.entries is None else self.entries.counts(self.counts)

    def request(self, at: np.ndarray) -> Request:
        """Return the request that puts the units of row i to place ``at[i]`` and those after it."""
        if not self.has_axis:
            return request_of(self.begins, at, self.keys)
        if self.counts is None:
            steps = np.arange(self.begins.shape[1])
            keys = None if self.keys is None else word_at(self.keys[:, None], steps).reshape(-1)  # each draws by itself
            return request_of(self.begins.reshape(-1), (at[:, None] + steps).reshape(-1), keys)
        if self.entries is None:
            runs = Request(self.begins, at, self.counts)
            return runs if self.counts.all() else runs.select(self.counts > 0)
        of, firsts, counts = self.entries.runs(self.counts, self.keys)
        before = np.cumsum(counts) - counts
        of_row = before[np.searchsorted(of, of)]  # before the first run of the row
        return Request(self.begins[of] + firsts, at[of] + before - of_row, counts)

    def stacked(self, values: Values, out: np.ndarray) -> Reading:
        """Return the reading of rows of one length, or of one unit, into an array: row i is ``out[places[i]]``."""
        if not self.has_axis:
            return self._filling(values, out, self.places)
        if not out.flags.c_contiguous:
            apart = empty((len(self.places), *out.shape[1:]), out.dtype)

            def finish() -> None:
                out[self.places] = apart

            return replace(self, places=np.arange(len(apart))).stacked(values, apart).then(finish)
        (rows, length), unit_shape = out.shape[:2], out.shape[2:]
        return self._filling(values, out.reshape(rows * length, *unit_shape), self.places * length)

    def varying(self, values: Values, out: np.ndarray, unit_shape: tuple[int, ...] | None = None) -> Reading:
        """Return the reading of rows as arrays of their own, which are parts of one array.

        `unit_shape` is that of the units of these rows, if others have another one.
        """
        reading, flat, stops = self.end_to_end(values, unit_shape)

        def finish() -> None:
            begin = 0
            for place, end in zip(self.places.tolist(), stops.tolist(), strict=True):
                out[place] = flat[begin:end] if self.has_axis else flat[begin]
                begin = end

        return reading.then(finish)

    def end_to_end(
        self, values: Values, unit_shape: tuple[int, ...] | None = None
    ) -> tuple[Reading, np.ndarray, np.ndarray]:
        """Return the reading of the units of all rows into one array, that array, and where each row ends in it."""
        array, stops = values.array, np.cumsum(self.lengths)
        shape = array.row_shape if unit_shape is None else unit_shape
        flat = empty((int(stops[-1]) if len(stops) else 0, *shape), array.dtype, f"column {array.name!r}")
        return self._filling(values, flat, stops - self.lengths, is_one_shape=unit_shape is None), flat, stops

    def _filling(self, values: Values, out: np.ndarray, at: np.ndarray, *, is_one_shape: bool = True) -> Reading:
        """Return the reading that puts the units of row i to place ``at[i]`` of an array and those after it."""
        request = self.request(at)
        is_read = len(request) and out.size
        reading = values.reading(request if is_one_shape else request.listed(), out) if is_read else Reading()
        if self.is_blank is None or not self.is_blank.any():
            return reading
        blank = (at[:, None] + np.arange(self.is_blank.shape[1]))[self.is_blank]

        def finish() -> None:
            nothing = np.empty((), out.dtype)  # numpy would take an array for several values
            nothing[()] = values.blank(out.dtype)
            out[blank] = nothing

        return reading.then(finish)


def axes_of_fields(values: Values, joined: JoinedArray) -> tuple[int, ...]:
    """Return the axes that values have and their datasets lack: those of fields of compound values."""
    return values.array.row_shape[len(joined.unit.row_shape) :]


def common_shape(shapes: np.ndarray) -> tuple[int | None, ...]:
    """Return the shape that rows share; None for an axis along which they differ."""
    if not len(shapes):
        return (None,) * shapes.shape[1]
    same = (shapes == shapes[0]).all(axis=0)
    return tuple(int(n) if alike else None for n, alike in zip(shapes[0], same, strict=True))


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
