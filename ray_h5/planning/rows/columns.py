"""Columns of one file as a row kind has them: which values of which datasets a row holds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from ray_h5.errors import UnsupportedColumnError
from ray_h5.hdf5.buffers import empty
from ray_h5.hdf5.layout import ColumnLayout, Kind
from ray_h5.hdf5.parts import Address, Part
from ray_h5.hdf5.reading.coalesce import RowRange, request_of
from ray_h5.hdf5.reading.run_request import RunRequest
from ray_h5.hdf5.segments import Segments

Finish = Callable[[], None]
"""What is left to do once the parts of a read are there."""


@dataclass(frozen=True, slots=True, eq=False)
class Reading:
    """Parts that are read, and what is done with them afterwards."""

    parts: Sequence[Part] = ()
    finish: Finish | None = None


@dataclass(frozen=True, slots=True, eq=False)
class ValuesColumn:
    """A column whose values are in memory: an attribute, a name, an index along an axis.

    Attributes
    ----------
    name : str
        Name.
    kind : {"number", "bool", "string"}
        The kind of a value.
    values_of : callable
        Returns the values of rows.
    dtype : numpy.dtype
        dtype of the values.
    row_shape : tuple of int
        Shape of a value.
    """

    name: str
    kind: Kind
    values_of: Callable[[np.ndarray], np.ndarray]
    dtype: np.dtype
    row_shape: tuple[int, ...] = ()

    def layout(self, num_rows: int, path: str) -> ColumnLayout:
        return ColumnLayout(
            self.name, self.kind, (num_rows, *self.row_shape), self.dtype, "contiguous", direct=True, path=path
        )

    def reading(self, rows: np.ndarray, places: np.ndarray, out: np.ndarray) -> Reading:
        out[places] = self.values_of(rows)
        return Reading()


@dataclass(frozen=True, slots=True, eq=False)
class UnitColumn:
    """A column with one unit of a dataset a row.

    Attributes
    ----------
    name : str
        Name.
    address : Address
        The dataset, or datasets.
    stored : ColumnLayout
        A layout with the type and shape of a unit.
    units_of : callable, optional
        Returns the unit of each row; None if they are equal.
    chunk_rows : int
        Rows that are best read together.
    """

    name: str
    address: Address
    stored: ColumnLayout
    units_of: Callable[[np.ndarray], np.ndarray] | None = None
    chunk_rows: int = 1

    def layout(self, num_rows: int, path: str) -> ColumnLayout:
        return _layout(self.name, self.stored, (num_rows, *self.stored.row_shape), self.chunk_rows, path)

    def reading(self, rows: np.ndarray, places: np.ndarray, out: np.ndarray) -> Reading:
        units = rows if self.units_of is None else self.units_of(rows)
        return Reading([Part(self.address, request_of(units, places), out)])


@dataclass(frozen=True, slots=True, eq=False)
class SegmentColumn:
    """A column with one whole segment a row.

    Attributes
    ----------
    name : str
        Name.
    segments : Segments
        The datasets.
    segment_of : callable, optional
        Returns the segment of each row; None if they are equal.
    """

    name: str
    segments: Segments
    segment_of: Callable[[np.ndarray], np.ndarray] | None = None

    @property
    def shape(self) -> tuple[int | None, ...]:
        return self.segments.common_shape

    def layout(self, num_rows: int, path: str) -> ColumnLayout:
        stored = self.segments.unit
        lacks = not self.segments.is_there.all()
        if lacks and self.segments.single and stored.kind != "string":
            raise UnsupportedColumnError(
                f"{path}: column {self.name!r}: {int(np.argmin(self.segments.is_there))} groups have it before one "
                "that lacks it, and a single value of numbers cannot be None. Choose other columns with columns=[...]."
            )
        is_fixed = None not in self.shape and stored.kind in {"number", "bool"} and not lacks
        if self.segments.single or is_fixed:
            shape = tuple(int(n or 0) for n in self.shape)
            return _layout(self.name, stored, (num_rows, *shape), 1, path)
        if stored.kind == "list":
            raise UnsupportedColumnError(
                f"{path}: column {self.name!r}: datasets of arrays of varying length, one dataset a group, are lists "
                "of lists. Choose other columns with columns=[...]."
            )
        item = stored.stored_dtype.itemsize
        sizes = self.segments.shapes.astype(np.float64).prod(axis=1) * item
        return ColumnLayout(
            self.name,
            "ragged",
            (num_rows,),
            np.dtype(object),
            "contiguous",
            element=stored.dtype,
            ragged_shape=self.shape,
            enum=stored.enum,
            item_bytes=int(sizes.mean()) if len(sizes) else 0,
            direct=stored.direct,
            path=path,
        )

    def reading(self, rows: np.ndarray, places: np.ndarray, out: np.ndarray) -> Reading:
        segments = rows if self.segment_of is None else self.segment_of(rows)
        if self.segments.single:
            there = self.segments.is_there[segments]
            out[places[~there]] = None if out.dtype == object else 0  # numbers are all there
            request = request_of(self.segments.starts[segments[there]], places[there])
            return Reading([Part(self.segments, request, out)] if there.any() else [])
        if out.dtype == object and out.ndim == 1:
            return self._ragged(segments, places, out)
        return self._stacked(segments, places, out)

    def _stacked(self, segments: np.ndarray, places: np.ndarray, out: np.ndarray) -> Reading:
        """Return the reading of segments of one shape."""
        if not out.size:
            return Reading()
        length = out.shape[1]
        if out.flags.c_contiguous:
            request = self._whole(segments, places * length)
            return Reading([Part(self.segments, request, out.reshape(-1, *out.shape[2:]))])
        apart = empty((len(places), *out.shape[1:]), out.dtype)

        def finish() -> None:
            out[places] = apart

        request = self._whole(segments, np.arange(len(segments)) * length)
        return Reading([Part(self.segments, request, apart.reshape(-1, *out.shape[2:]))], finish)

    def _whole(self, segments: np.ndarray, places: np.ndarray) -> RunRequest:
        """Return the request for whole segments, whose first units go to `places`."""
        counts = self.segments.lengths[segments]
        runs = RunRequest(self.segments.starts[segments], places, counts, segments)
        return runs if counts.all() else runs.select(counts > 0)

    def _ragged(self, segments: np.ndarray, places: np.ndarray, out: np.ndarray) -> Reading:
        """Return the reading of segments as arrays of their own: parts of one array, if their units have one shape."""
        unit_shape = self.segments.unit_shape
        if unit_shape is None:
            return self._one_by_one(segments, places, out)
        counts = self.segments.lengths[segments]
        stops = np.cumsum(counts)
        ends = stops.tolist()
        flat = empty((ends[-1] if ends else 0, *unit_shape), self.segments.dtype, f"column {self.name!r}")

        there = self.segments.is_there[segments].tolist()

        def finish() -> None:
            begin = 0
            for place, end, is_there in zip(places.tolist(), ends, there, strict=True):
                out[place] = flat[begin:end] if is_there else None
                begin = end

        return Reading([Part(self.segments, self._whole(segments, stops - counts), flat)], finish)

    def _one_by_one(self, segments: np.ndarray, places: np.ndarray, out: np.ndarray) -> Reading:
        parts = []
        for segment, place in zip(segments.tolist(), places.tolist(), strict=True):
            if not self.segments.is_there[segment]:
                out[place] = None
                continue
            shape = tuple(self.segments.shapes[segment].tolist())
            out[place] = value = empty(shape, self.segments.dtype, f"column {self.name!r}")
            if value.size:
                first, count = int(self.segments.starts[segment]), int(self.segments.lengths[segment])
                parts.append(Part(self.segments, RowRange(first, 0, count), value))
        return Reading(parts)


@dataclass(frozen=True, slots=True, eq=False)
class WindowedColumn:
    """A column with the units at some offsets from a step of an episode.

    Attributes
    ----------
    name : str
        Name.
    address : Address
        The dataset, or datasets.
    stored : ColumnLayout
        A layout with the type and shape of a unit.
    offsets : numpy.ndarray
        int64 steps.
    steps_of : callable
        Returns for rows: the first unit of the episode, the step, and the length of the episode.
    zero : (bool, bool)
        Whether steps before and after the episode are zeros. Otherwise they are its first or last step.
    chunk_rows : int
        Rows that are best read together.
    """

    name: str
    address: Address
    stored: ColumnLayout
    offsets: np.ndarray
    steps_of: Callable[[np.ndarray], tuple[np.ndarray, np.ndarray, np.ndarray]]
    zero: tuple[bool, bool]
    chunk_rows: int = 1

    def layout(self, num_rows: int, path: str) -> ColumnLayout:
        shape = (num_rows, len(self.offsets), *self.stored.row_shape)
        return _layout(self.name, self.stored, shape, self.chunk_rows, path)

    def reading(self, rows: np.ndarray, places: np.ndarray, out: np.ndarray) -> Reading:
        starts, steps, lengths = self.steps_of(rows)
        wanted = steps[:, None] + self.offsets
        last = lengths[:, None] - 1
        units = (starts[:, None] + np.clip(wanted, 0, last)).reshape(-1)
        blank = np.zeros(wanted.shape, bool)
        if self.zero[0]:
            blank |= wanted < 0
        if self.zero[1]:
            blank |= wanted > last
        width = len(self.offsets)
        flat = out.reshape(-1, *out.shape[2:])
        in_place = bool(np.shares_memory(flat, out)) or not out.size
        into = flat if in_place else empty((len(units), *out.shape[2:]), out.dtype)
        there = (places[:, None] * width + np.arange(width)).reshape(-1) if in_place else np.arange(len(units))

        def finish() -> None:
            if blank.any():
                into[there[blank.reshape(-1)]] = 0
            if not in_place:
                out[places] = into.reshape(len(rows), *out.shape[1:])

        return Reading([Part(self.address, request_of(units, there), into)], finish)


def _layout(name: str, stored: ColumnLayout, shape: tuple[int, ...], chunk_rows: int, path: str) -> ColumnLayout:
    return ColumnLayout(
        name,
        stored.kind,
        shape,
        stored.stored_dtype,
        stored.storage,
        chunk_shape=None if chunk_rows == 1 else (chunk_rows, *shape[1:]),
        pipeline=stored.pipeline,
        element=stored.element,
        enum=stored.enum,
        item_bytes=stored.item_bytes,
        sources=stored.sources,
        direct=stored.direct,
        odd_type=stored.odd_type,
        path=path,
    )
