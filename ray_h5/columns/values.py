"""Values of a column: what is read of one or several arrays, and how it is decoded. One value a unit.

This module and those of conventions know how values are stored, and nothing of what a row is; see `columns`.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import numpy as np

from ray_h5.buffers import empty
from ray_h5.manifest.layout import ColumnLayout, Kind
from ray_h5.manifest.row_requests import Request, RowRange, RunRequest, request_of
from ray_h5.read.read_parts import FileRead, Part
from ray_h5.read.reader import OBJECT_BYTES, RowReader

if TYPE_CHECKING:
    from typing_extensions import Self

Finish = Callable[[], None]
"""What is left to do once the parts of a read are there."""

Units: TypeAlias = Request | RunRequest
"""Which units are read, and the place of each value."""


@dataclass(frozen=True, slots=True, eq=False)
class Reading:
    """Parts that are read, and what is done with them afterwards."""

    parts: Sequence[Part] = ()
    finish: Finish | None = None

    @classmethod
    def together(cls, readings: Sequence[Reading]) -> Reading:
        """Return several readings as one."""
        finishes = [each.finish for each in readings if each.finish is not None]

        def finish() -> None:
            for each in finishes:
                each()

        return cls([part for each in readings for part in each.parts], finish if finishes else None)

    def then(self, finish: Finish) -> Reading:
        """Return the same reading, with one more thing done at the end."""
        return Reading(self.parts, finish) if self.finish is None else Reading.together([self, Reading((), finish)])


class Values(Protocol):
    """One value for each unit of an array, or of several arrays that are read together."""

    @property
    def array(self) -> ColumnLayout:
        """The values as one array: its first axis is the units."""

    def over(self, axes: int) -> Values:
        """Return the same values with the first `axes` axes of the array together as units, in C order."""

    def reading(self, units: Units, out: np.ndarray) -> Reading:
        """Return the reading that fills ``out[units.places]`` with the values of ``units.rows``."""

    def blank(self, dtype: np.dtype) -> Any:
        """Return what stands for no value, in an array of `dtype`: zero, an empty text, None."""


@dataclass(frozen=True, slots=True, eq=False)
class KeptParts(ABC):
    """Values of which parts are kept after whole units are read: their arrays have no such parts.

    Attributes
    ----------
    values : Values
        The whole units.
    """

    values: Values

    @property
    def array(self) -> ColumnLayout:
        found = self.values.array
        shape = (found.shape[0], *self._kept_shape(found.row_shape))
        return replace(found, shape=shape, chunk_shape=first_axis(found), fill=None, offset=None)

    @abstractmethod
    def _kept_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return the shape of what is kept of a unit."""

    @abstractmethod
    def _keep(self, whole: np.ndarray, places: np.ndarray, out: np.ndarray) -> None:
        """Put what is kept of units into their places."""

    def over(self, axes: int) -> Self:
        assert axes == 1
        return self

    def blank(self, dtype: np.dtype) -> Any:
        return self.values.blank(dtype)

    def reading(self, units: Units, out: np.ndarray) -> Reading:
        wanted, found = units.listed(), self.values.array
        whole = empty((len(wanted), *found.row_shape), out.dtype, found.where)
        reading = self.values.reading(request_of(wanted.rows), whole)
        return reading.then(lambda: self._keep(whole, wanted.places, out))


@dataclass(frozen=True, slots=True, eq=False)
class Taken(KeptParts):
    """Values of which some positions are kept.

    Attributes
    ----------
    taken : tuple of (numpy.ndarray or None)
        The positions along each axis of a unit; None for all.
    """

    taken: tuple[np.ndarray | None, ...]

    def _kept_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        positions = (*self.taken, *[None] * (len(shape) - len(self.taken)))
        return tuple(n if at is None else len(at) for n, at in zip(shape, positions, strict=True))

    def _keep(self, whole: np.ndarray, places: np.ndarray, out: np.ndarray) -> None:
        out[places] = picked(whole, self.taken)

    def take(self, taken: tuple[np.ndarray | None, ...]) -> Taken:
        return replace(self, taken=composed(self.taken, taken))


@dataclass(frozen=True, slots=True, eq=False)
class InMemory:
    """Values in memory: an attribute, a name, an index along an axis, a constant.

    Attributes
    ----------
    array : ColumnLayout
        A layout with the type and shape of a value.
    values_of : callable
        Returns the values of units.
    """

    array: ColumnLayout
    values_of: Callable[[np.ndarray], np.ndarray]

    @classmethod
    def of(
        cls,
        name: str,
        kind: Kind,
        values_of: Callable[[np.ndarray], np.ndarray],
        dtype: np.dtype,
        row_shape: tuple[int, ...] = (),
    ) -> InMemory:
        """Return values of a kind."""
        return cls(ColumnLayout(name, kind, (1, *row_shape), dtype, "contiguous", direct=True), values_of)

    @classmethod
    def constant(cls, reader: RowReader, values: Values) -> InMemory:
        """Return a constant: all units of an array, which are read when they are asked for first."""
        known: list[np.ndarray] = []

        def values_of(units: np.ndarray) -> np.ndarray:
            if not known:
                known.append(read_all(reader, values))
            return np.broadcast_to(known[0], (len(units), *known[0].shape))

        array = values.array
        return cls(replace(array, shape=(1, *array.shape), chunk_shape=None, fill=None, offset=None), values_of)

    def over(self, axes: int) -> InMemory:
        assert axes == 1
        return self

    def blank(self, dtype: np.dtype) -> Any:
        return blank_of(self.array, dtype)

    def reading(self, units: Units, out: np.ndarray) -> Reading:
        wanted = units.listed()
        out[wanted.places] = self.values_of(wanted.rows)
        return Reading()


def composed(
    first: tuple[np.ndarray | None, ...], then: tuple[np.ndarray | None, ...]
) -> tuple[np.ndarray | None, ...]:
    """Return the positions that are left if some are taken, and of these some."""
    return tuple(two if one is None else one if two is None else one[two] for one, two in zip_longest(first, then))


def picked(values: np.ndarray, taken: tuple[np.ndarray | None, ...]) -> np.ndarray:
    """Return values at positions along the axes of a unit."""
    for axis, at in enumerate(taken):
        if at is not None:
            values = values.take(at, axis=1 + axis)
    return values


def first_axis(layout: ColumnLayout) -> tuple[int, ...] | None:
    """Return the shape of a chunk of which the first axis alone is known."""
    return None if layout.chunk_shape is None else (layout.chunk_shape[0], *layout.row_shape)


def flattened(layout: ColumnLayout, axes: int) -> ColumnLayout:
    """Return a layout whose first axis is the first `axes` axes of another."""
    shape = (math.prod(layout.shape[:axes]), *layout.shape[axes:])
    return replace(layout, shape=shape, chunk_shape=None, fill=None, offset=None)


def blank_of(array: ColumnLayout, dtype: np.dtype) -> Any:
    """Return what stands for no value of a kind that is stored as it is delivered."""
    if not dtype.hasobject:
        return (np.array("NaT", dtype) if dtype.kind == "M" else np.zeros((), dtype))[()]
    if array.kind == "string":
        return b""
    return None if array.element is None else np.empty(0, array.element)


def read_all(reader: RowReader, values: Values) -> np.ndarray:
    """Return the values of all units, for planning; errors as `RowReader.read_whole`."""
    return read_units(reader, values, values.array.num_rows)


def read_units(reader: RowReader, values: Values, count: int, first: int = 0) -> np.ndarray:
    """Return the values of `count` units, from `first` on, for planning; errors as `RowReader.read_whole`."""
    array = values.array
    value_bytes = OBJECT_BYTES if array.dtype.hasobject else array.dtype.itemsize
    shape = (count, *array.row_shape)
    reader.check_claim([array], math.prod(shape) * value_bytes)
    out = empty(shape, array.dtype, array.where)
    if count:
        reading = values.reading(RowRange(first, 0, count), out)
        reader.run(FileRead(reader, reading.parts, reading.finish))
    return out
