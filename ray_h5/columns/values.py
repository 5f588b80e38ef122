"""Values of a column: what is read of one or several arrays, and how it is decoded. One value a unit.

This module and those of conventions know how values are stored, and nothing of what a row is; see `columns`.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import TYPE_CHECKING, Any

import numpy as np

from ray_h5.buffers import ROW_BYTES, empty
from ray_h5.columns.derived_columns import RowEntries
from ray_h5.columns.sparse_rows import Entries, SparseRow, index_dtype
from ray_h5.errors import CastError, UnsupportedColumnError
from ray_h5.hash_and_permute import word_at
from ray_h5.hdf5.format.value_types import empty_record
from ray_h5.manifest.indices import Indices, composed, lengths_of, picked
from ray_h5.manifest.layout import ValueArray
from ray_h5.manifest.row_requests import Request, request_of
from ray_h5.manifest.takes import rows_in_order
from ray_h5.manifest.value_type import Kind, ValueType
from ray_h5.read.file_reads import run_reads
from ray_h5.read.read_parts import FileRead, Part
from ray_h5.read.reader import OBJECT_BYTES, FileReader

if TYPE_CHECKING:
    from ray_h5.columns.schema import ColumnSpec


@dataclass(frozen=True, slots=True, eq=False)
class Reading:
    """Parts that are read, and what is left to do once they are there, in this order."""

    parts: Sequence[Part] = ()
    last_steps: Sequence[Callable[[], None]] = ()

    @classmethod
    def together(cls, readings: Sequence[Reading]) -> Reading:
        """Return several readings as one."""
        parts = [part for reading in readings for part in reading.parts]
        return cls(parts, [step for reading in readings for step in reading.last_steps])

    def then(self, step: Callable[[], None]) -> Reading:
        """Return the same reading, with one more thing done at the end."""
        return Reading(self.parts, [*self.last_steps, step])

    def finish(self) -> None:
        """Do what is left."""
        for step in self.last_steps:
            step()


def keys_of(name: str, seed: int, rows: np.ndarray, draws: np.ndarray) -> np.ndarray:
    """Return a key for each row of a file and its draw: uint64. They depend on the name of the file."""
    of_file = zlib.crc32(name.encode("utf-8", "surrogateescape"))
    first, second = word_at(np.array([seed, of_file], np.uint64), np.ones(2))
    return word_at(word_at(first, rows) ^ second, draws)


class Values:
    """One value for each unit of an array, or of several arrays that are read together.

    By default units lie along one axis, and what stands for no value is what it is for their kind.
    """

    __slots__ = ()

    if TYPE_CHECKING:

        @property
        def array(self) -> ValueArray:
            """The values as one array: its first axis is the units."""
            ...

        def reading(self, units: Request, out: np.ndarray) -> Reading:
            """Return the reading that fills ``out[units.places]`` with the values of ``units.rows``."""
            ...

    @property
    def seed(self) -> int | None:
        """The seed by which entries of a value are drawn, in each epoch others; None if they are not.

        Values that are made of others are drawn if these are.
        """
        return None

    def over(self, axes: int) -> Values:
        """Return the same values with the first `axes` axes of the array together as units, in C order."""
        if axes != 1:
            raise UnsupportedColumnError(
                f"{self.array.path}: column {self.array.name!r} has one axis of rows; over Grid, name the row axis "
                f"that it has, such as of={{{self.array.name!r}: (0,)}}."
            )
        return self

    def take(self, taken: Indices) -> Values:
        """Return the same values with some indices along the axes of a unit; None for all of an axis."""
        return Taken(self, taken)

    def blank(self, dtype: np.dtype) -> Any:
        """Return what stands for no value, in an array of `dtype`: zero, an empty text, None."""
        return blank_of(self.array.type, dtype)


def blank_of(value: ValueType, dtype: np.dtype) -> Any:
    """Return what stands for no value of a type, as `Values.blank` does."""
    kind, element = value.kind, value.element
    if kind in {"category", "optional"}:
        no_number = -1 if kind == "category" else 0
        return None if dtype.hasobject else np.nan if dtype.kind == "f" else no_number
    if not dtype.hasobject:
        return (np.array("NaT", dtype) if dtype.kind == "M" else np.zeros((), dtype))[()]
    if dtype.names is not None:
        return empty_record(dtype)
    if kind == "string":
        return b""
    if kind == "sparse":
        indices = np.empty(0, index_dtype(value.ragged_shape[0] or 0))
        return SparseRow(Entries(indices, np.empty(0, element)), 0, 0)
    if kind == "ragged":
        return np.empty((0, *(int(n or 0) for n in value.ragged_shape[1:])), element)
    return None if element is None else np.empty(0, element)


@dataclass(frozen=True, slots=True, eq=False)
class Decoded(Values):
    """Values that are made of others, each of one, by a function of arrays.

    Attributes
    ----------
    values : Values
        What is read: a dataset, or those of groups, whole or in parts.
    decode : callable
        Returns what stored values stand for, given these, their units, the dtype of the result, and `others`.
    layout : callable
        Returns the array of the decoded values, given that of the stored ones.
    of_each_value : bool
        Whether each stored value is decoded by itself, so that parts of a unit can be.
    mask : Values, optional
        Says of each value whether it is missing.
    table_of : callable, optional
        Returns how a table that decodes units is read, and where it is then.
    """

    values: Values
    decode: Callable[[np.ndarray, np.ndarray, np.dtype, Any], np.ndarray]
    layout: Callable[[ValueArray], ValueArray]
    of_each_value: bool = True
    mask: Values | None = None
    table_of: Callable[[np.ndarray], tuple[Sequence[Part], Any]] | None = None

    @property
    def array(self) -> ValueArray:
        return self.layout(self.values.array)

    @property
    def seed(self) -> int | None:
        return self.values.seed

    def over(self, axes: int) -> Values:
        return replace(self, values=self.values.over(axes), mask=self.mask and self.mask.over(axes))

    def take(self, taken: Indices) -> Values:
        if self.of_each_value:
            values, mask = self.values.take(taken), self.mask and self.mask.take(taken)
            if not (isinstance(values, Taken) or isinstance(mask, Taken)):
                return replace(self, values=values, mask=mask)
        return Taken(self, taken)

    def blank(self, dtype: np.dtype) -> Any:
        return None if self.mask is not None and dtype.hasobject else Values.blank(self, dtype)

    def reading(self, units: Request, out: np.ndarray) -> Reading:
        wanted, array = units.listed(), self.values.array
        shape = out.shape[1:] if self.of_each_value else array.row_shape  # groups may differ in the shape of a value
        stored, others = empty((len(wanted), *shape), array.dtype, array.where), None
        readings = [self.values.reading(request_of(wanted.rows, keys=wanted.keys), stored)]
        if self.mask is not None:
            others = empty((len(wanted), *shape), self.mask.array.dtype)
            readings.append(self.mask.reading(request_of(wanted.rows, keys=wanted.keys), others))
        if self.table_of is not None:
            parts, others = self.table_of(wanted.rows)
            readings.append(Reading(parts))

        def finish() -> None:
            out[wanted.places] = self.decode(stored, wanted.rows, out.dtype, others)

        return Reading.together(readings).then(finish)


@dataclass(frozen=True, slots=True, eq=False)
class Taken(Values):
    """Values of which parts are kept after whole units are read: their arrays have no such parts.

    Attributes
    ----------
    values : Values
        The whole units.
    taken : tuple of (Along or None)
        The indices along each axis of a unit; None for all.
    entries : RowEntries, optional
        Then, what is drawn of the first axis.
    """

    values: Values
    taken: Indices = ()
    entries: RowEntries | None = None

    @property
    def array(self) -> ValueArray:
        whole = self.values.array
        shape = lengths_of(whole.row_shape, self.taken)
        if self.entries is not None:
            shape[0] = int(self.entries.counts(np.array(shape[:1]))[0])
        return reshaped(whole, *shape)

    @property
    def seed(self) -> int | None:
        return self.values.seed if self.entries is None else self.entries.seed

    def over(self, axes: int) -> Taken:
        return replace(self, values=self.values.over(axes))

    def take(self, taken: Indices) -> Taken:
        return replace(self, taken=composed(self.taken, taken))

    def blank(self, dtype: np.dtype) -> Any:
        return self.values.blank(dtype)

    def reading(self, units: Request, out: np.ndarray) -> Reading:
        wanted, array = units.listed(), self.values.array
        dtype = read_dtype(array, out.dtype)
        whole = empty((len(wanted), *array.row_shape), dtype, array.where)

        def finish() -> None:
            kept = picked(whole, self.taken)
            if self.entries is not None and len(kept):
                drawn = self.entries.drawn(np.full(len(kept), kept.shape[1]), wanted.keys)
                kept = kept[np.arange(len(kept))[:, None], np.array(drawn)]
            out[wanted.places] = kept

        return self.values.reading(request_of(wanted.rows, keys=wanted.keys), whole).then(finish)


@dataclass(frozen=True, slots=True, eq=False)
class InMemory(Values):
    """Values in memory: an attribute, a name, an index along an axis, a constant.

    Attributes
    ----------
    array : ValueArray
        An array with the type and shape of a value.
    values_of : callable
        Returns the values of units.
    """

    array: ValueArray
    values_of: Callable[[np.ndarray], np.ndarray]

    @classmethod
    def of(
        cls, name: str, values_of: Callable[[np.ndarray], np.ndarray], dtype: Any, row_shape: tuple[int, ...] = ()
    ) -> InMemory:
        """Return texts, booleans or numbers, as their dtype says."""
        kind: Kind = "string" if (of := np.dtype(dtype)).hasobject else "bool" if of.kind == "b" else "number"
        return cls(ValueArray(name, ValueType(kind, of, row_shape), 1, direct=True), values_of)

    @classmethod
    def constant(cls, reader: FileReader, values: Values) -> InMemory:
        """Return a constant: all units of an array, which are read when they are asked for first."""
        array, read = values.array, cache(partial(read_units, reader, values))
        whole = array.with_shape((1, *array.shape), chunk_shape=None).made()
        return cls(whole, lambda units: np.broadcast_to(read(), (len(units), *array.shape)))

    def reading(self, units: Request, out: np.ndarray) -> Reading:
        wanted = units.listed()
        out[wanted.places] = self.values_of(wanted.rows)
        return Reading()


def read_dtype(array: ValueArray, wanted: np.dtype) -> np.dtype:
    """Return the dtype in which values are read that are put into an array of dtype `wanted` later.

    They are cast where they are checked. Codes, and values that may be missing, are decoded in the dtype `wanted`.
    """
    return wanted if wanted.kind == "O" or array.kind in {"category", "optional"} else array.dtype


@dataclass(frozen=True, slots=True, eq=False)
class NoValues(Values):
    """A column that a file lacks and others have: each unit has no value.

    Attributes
    ----------
    array : ValueArray
        An array of the same type.
    """

    array: ValueArray

    @classmethod
    def of(cls, spec: ColumnSpec, rows: int, path: str) -> NoValues:
        """Return the column that a file of some rows lacks; `spec` says what others have."""
        type_ = ValueType(spec.kind, np.dtype(object), element=spec.element, ragged_shape=spec.type.ragged_shape)
        return cls(ValueArray(spec.name, type_, rows, item_bytes=1, direct=True, path=path))

    def reading(self, units: Request, out: np.ndarray) -> Reading:
        if out.dtype.kind not in "Of" and len(units):
            raise CastError(
                f"{self.array.where}: the file lacks this column, which {out.dtype} cannot say; use a float, such as "
                f"dtypes={{{self.array.name!r}: 'float64'}}, where it is NaN"
            )
        out[units.listed().places] = None if out.dtype.hasobject else np.nan
        return Reading()


def reshaped(layout: ValueArray, *row_shape: int) -> ValueArray:
    """Return an array of the same rows, of another shape, of whose chunks the first axis alone is known."""
    chunk = None if layout.chunk_shape is None else (layout.chunk_shape[0], *row_shape)
    return layout.with_shape((layout.num_rows, *row_shape), chunk_shape=chunk).made()


def rows_of_chunks(layout: ValueArray, axes: int) -> int:
    """Return how many rows hold whole chunks, if the first axes of an array are rows, in C order."""
    if layout.chunk_shape is None:
        return 1
    if rows_in_order(layout, axes) is not None:
        return layout.chunk_shape[axes - 1]
    return layout.chunk_shape[0] * math.prod(layout.shape[1:axes])


def read_units(reader: FileReader, values: Values, count: int | None = None, first: int = 0) -> np.ndarray:
    """Return the values of all units, or `count` from `first` on, for planning; errors as `FileReader.read_whole`."""
    array = values.array
    count = array.num_rows if count is None else count
    value_bytes = OBJECT_BYTES if array.dtype.hasobject else array.dtype.itemsize
    shape = (count, *array.row_shape)
    reader.check_claim([array], count * max(math.prod(array.row_shape) * value_bytes, ROW_BYTES))
    out = empty(shape, array.dtype, array.where)
    return read_into(reader, values, Request.range(first, 0, count), out) if count else out


def run_readings(reads: Sequence[Callable[[], FileRead]]) -> None:
    """Run the reads of several files."""
    run_reads(reads)


def read_at(reader: FileReader, values: Values, units: np.ndarray) -> np.ndarray:
    """Return the values of some units, for planning."""
    out = empty((len(units), *values.array.row_shape), values.array.dtype, values.array.where)
    return read_into(reader, values, request_of(units), out) if len(units) else out


def read_into(reader: FileReader, values: Values, units: Request, out: np.ndarray) -> np.ndarray:
    """Read units into an array, and return it."""
    reading = values.reading(units, out)
    reader.run(FileRead(reader, reading.parts, reading.finish))
    return out
