"""Values of a column: what is read of one or several arrays, and how it is decoded. One value a unit.

This module and those of conventions know how values are stored, and nothing of what a row is; see `columns`.
"""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import numpy as np

from ray_h5.buffers import empty
from ray_h5.errors import UnknownColumnError, UnsupportedColumnError
from ray_h5.hdf5.columns.dtypes import split_array
from ray_h5.manifest.joined_arrays import Segments
from ray_h5.manifest.layout import ColumnLayout, Kind
from ray_h5.manifest.row_requests import Request, RowRange, RowRequest, RunRequest, request_of
from ray_h5.messages import near_names
from ray_h5.read.arrays.grid_column import GridAddress
from ray_h5.read.arrays.last_axis import LastAxis
from ray_h5.read.arrays.taken_column import TakenAddress, runs_of_positions
from ray_h5.read.read_parts import Address, FileRead, Part
from ray_h5.read.reader import OBJECT_BYTES, RowReader

if TYPE_CHECKING:
    from ray_h5.read.arrays.block_column import BlockAddress

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
class Stored:
    """Values as they are stored: those of a dataset, of many, of fields of compound values, or parts of them.

    Attributes
    ----------
    layout : ColumnLayout
        The dataset; of many, a layout with the type and shape of a unit.
    address : Address
        Where it is.
    field : str, optional
        The field.
    name : str
        The column, if its name is not that of the dataset.
    fields : tuple of str
        Several fields, which are one more axis, of one dtype.
    taken : tuple of (numpy.ndarray or None)
        The positions along each axis of a unit; None for all.
    """

    layout: ColumnLayout
    address: Address
    field: str | None = None
    name: str = ""
    fields: tuple[str, ...] = ()
    taken: tuple[np.ndarray | None, ...] = ()

    @classmethod
    def of(
        cls, source: ColumnLayout | Segments, field: str | None = None, name: str = "", fields: tuple[str, ...] = ()
    ) -> Stored:
        """Return the values of a dataset, or of one dataset a group."""
        if isinstance(source, Segments):
            return cls(source.unit, source, field, name, fields)
        return cls(source, source.name, field, name, fields)

    @property
    def _members(self) -> list[tuple[np.dtype, int]]:
        """The types of the fields as they are stored, and where they are in a value, in bytes."""
        return self._members_of(self.layout.stored_dtype)

    def _members_of(self, dtype: np.dtype) -> list[tuple[np.dtype, int]]:
        return [field_of(dtype, name) for name in ((self.field,) if self.field is not None else self.fields)]

    @property
    def dtype(self) -> np.dtype:
        return self._type[0]

    @property
    def _type(self) -> tuple[np.dtype, tuple[int, ...]]:
        """The type of a value, and the axes that fields add."""
        if not (members := self._members):
            return self.layout.dtype, ()
        types = [split_array(dtype) for dtype, _ in members]
        dtype = np.result_type(*(each.newbyteorder("=") for each, _ in types)) if self.fields else types[0][0]
        return dtype.newbyteorder("="), ((len(types),) if self.fields else ()) + types[0][1]

    @property
    def array(self) -> ColumnLayout:
        found = self.layout
        if self.field is not None or self.fields:
            dtype, axes = self._type
            shape, chunk = (*found.shape, *axes), found.chunk_shape
            enum = [(name, value) for name, value in found.enum if name.startswith(f"{self.field}.")]
            found = replace(
                found,
                name=self.name,
                kind=_kind_of(dtype),
                shape=shape,
                chunk_shape=None if chunk is None else (*chunk, *axes),
                stored_dtype=dtype,
                enum=tuple((name[len(str(self.field)) + 1 :], value) for name, value in enum),
                item_bytes=0,
                lost_fields=(),
                fill=None,
                offset=None,
            )
        if self.taken:
            shape = (found.shape[0], *self._lengths, *found.shape[len(self.layout.shape) :])
            found = replace(found, shape=shape, chunk_shape=first_axis(found), fill=None, offset=None)
        return found

    def _positions(self, found: ColumnLayout) -> tuple[np.ndarray | None, ...]:
        return (*self.taken, *[None] * (len(found.row_shape) - len(self.taken)))

    @property
    def _lengths(self) -> tuple[int, ...]:
        """The lengths along the axes of a unit, without those that fields add."""
        positions = zip(self.layout.row_shape, self._positions(self.layout), strict=True)
        return tuple(n if at is None else len(at) for n, at in positions)

    def over(self, axes: int) -> Stored:
        if axes == 1:
            return self
        assert isinstance(self.address, (str, LastAxis, TakenAddress))
        assert not self.taken
        is_last = isinstance(self.address, LastAxis)
        name = self.address if isinstance(self.address, str) else self.address.name
        address = LastAxis(name, axes) if is_last else GridAddress(name, axes)
        return replace(self, layout=flattened(self.layout, axes), address=address)

    def take(self, taken: tuple[np.ndarray | None, ...]) -> Values:
        """Return the values at some positions along the axes of a unit."""
        if isinstance(self.address, LastAxis) or len(taken) > len(self.layout.row_shape):
            return Taken(self, taken)
        return replace(self, taken=composed(self.taken, taken))

    def blank(self, dtype: np.dtype) -> Any:
        return blank_of(self.array, dtype)

    def reading(self, units: Units, out: np.ndarray) -> Reading:
        if not self._is_part:
            return Reading([Part(self.address, units, out)])
        address = self._taken_address
        # Of groups, the type of a unit is in native byte order, and that of the address as it is stored.
        if address is not None and not (self.fields and address.dtype is not None and address.dtype.names is not None):
            return Reading([self._part(address, units, out)])
        wanted, part, read = self.read(units, out.shape[1:])

        def finish() -> None:
            out[wanted.places] = read()

        return Reading([part], finish)

    @property
    def _is_part(self) -> bool:
        return self.field is not None or bool(self.fields) or bool(self.taken)

    @property
    def _taken_address(self) -> TakenAddress | BlockAddress | None:
        """The parts alone, where this package decodes the datasets itself; None if whole values are read."""
        many = self.address if isinstance(self.address, Segments) else None
        of = (self.layout,) if many is None else many.layouts
        is_decoded = (many is None or not many.single) and all(
            each.direct and each.storage in {"contiguous", "chunked"} for each in of
        )
        is_alike = len({(each.stored_dtype, each.row_shape) for each in of}) == 1
        if not (self._is_part and is_decoded and is_alike) or isinstance(self.address, LastAxis):
            return None
        dtype = of[0].stored_dtype
        of_value = [(0, dtype.itemsize)]
        if members := self._members_of(dtype):  # that of many datasets of other chunks is not as they are stored
            is_alike = len({each for each, _ in members}) == 1
            of_value = [(at, each.itemsize) for each, at in members]
            dtype = split_array(members[0][0])[0] if is_alike else np.dtype([("", each) for each, _ in members])
        if not isinstance(self.address, (str, GridAddress, Segments)):
            from ray_h5.read.arrays.block_column import BlockAddress

            assert isinstance(self.address, BlockAddress)
            return replace(self.address, of_value=tuple(of_value), dtype=dtype)
        positions = zip(self.layout.row_shape, self._positions(self.layout), strict=True)
        taken = tuple(((0, n),) if at is None else runs_of_positions(at) for n, at in positions)
        axes = self.address.axes if isinstance(self.address, GridAddress) else 1
        return TakenAddress(self.layout.name if many is None else many.name, axes, (*taken, tuple(of_value)), dtype)

    def _part(self, address: TakenAddress | BlockAddress, units: Units, out: np.ndarray) -> Part:
        if not isinstance(self.address, Segments):
            return Part(address, units, out)
        assert isinstance(address, TakenAddress)
        from ray_h5.read.arrays.taken_segments import TakenSegments

        return Part(TakenSegments(self.address, address), units, out)

    def read(
        self, units: Units, shape: tuple[int, ...] | None = None
    ) -> tuple[RowRequest, Part, Callable[[], np.ndarray]]:
        """Return units one by one, their read, and a function that returns their values once they are read.

        `shape` is that of a unit; datasets of many groups may differ in it.
        """
        wanted = units.listed()
        request, where = request_of(wanted.rows), self.layout.where
        if (address := self._taken_address) is not None:
            dtype = address.dtype
            assert dtype is not None
            packed = dtype.names is not None and bool(self.fields)
            shape = self._lengths if packed else self.array.row_shape
            dtype = dtype if packed else dtype.newbyteorder("=")
            values = empty((len(wanted), *shape), dtype, where)
            return wanted, self._part(address, request, values), lambda: self._stacked(values) if packed else values
        row_shape = self.layout.row_shape if shape is None or self.taken else shape[: len(shape) - len(self._type[1])]
        values = empty((len(wanted), *row_shape), self.layout.dtype, where)
        return wanted, Part(self.address, request, values), lambda: self._parts_of(values)

    def _stacked(self, values: np.ndarray) -> np.ndarray:
        """Return fields of compound values of their own types, in their order, as one array."""
        assert values.dtype.names is not None
        dtype, axes = self._type
        found = np.empty((*values.shape, *axes), dtype)
        for at, name in enumerate(values.dtype.names):
            found[(slice(None),) * values.ndim + (at,)] = values[name]
        return found

    def _parts_of(self, values: np.ndarray) -> np.ndarray:
        """Return the fields and positions of whole values."""
        if self.field is not None:
            values = _field_values(values, self.field)
        elif self.fields:
            dtype, axes = self._type
            found = np.empty((*values.shape, *axes), dtype)
            for at, name in enumerate(self.fields):
                found[(slice(None),) * values.ndim + (at,)] = _field_values(values, name)
            values = found
        return picked(values, self.taken)

    def where(self, name: str, unit: int) -> str:
        """Return where a unit of a column is, for the beginning of a message."""
        path = self.layout.path
        if not isinstance(self.address, Segments):
            return f"{path}: column {name!r}, row {unit}"
        segment = int(self.address.segments_of(np.array([unit]))[0])
        return f"{path}: dataset {self.address.paths[segment]!r}, index {unit - int(self.address.starts[segment])}"


@dataclass(frozen=True, slots=True, eq=False)
class Taken:
    """Values of which some positions are kept after they are read: their arrays have no such parts.

    Attributes
    ----------
    values : Values
        The values.
    taken : tuple of (numpy.ndarray or None)
        The positions along each axis of a unit; None for all.
    """

    values: Values
    taken: tuple[np.ndarray | None, ...]

    @property
    def array(self) -> ColumnLayout:
        found = self.values.array
        positions = (*self.taken, *[None] * (len(found.row_shape) - len(self.taken)))
        lengths = [n if at is None else len(at) for n, at in zip(found.row_shape, positions, strict=True)]
        shape = (found.shape[0], *lengths)
        return replace(found, shape=shape, chunk_shape=first_axis(found), fill=None, offset=None)

    def over(self, axes: int) -> Taken:
        assert axes == 1
        return self

    def take(self, taken: tuple[np.ndarray | None, ...]) -> Taken:
        return replace(self, taken=composed(self.taken, taken))

    def blank(self, dtype: np.dtype) -> Any:
        return self.values.blank(dtype)

    def reading(self, units: Units, out: np.ndarray) -> Reading:
        wanted, found = units.listed(), self.values.array
        whole = empty((len(wanted), *found.row_shape), out.dtype, found.where)
        reading = self.values.reading(request_of(wanted.rows), whole)

        def finish() -> None:
            out[wanted.places] = picked(whole, self.taken)

        return reading.then(finish)


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


def stored_fields(
    source: ColumnLayout | Segments, names: tuple[str, ...], column: str, *, is_one: bool = False
) -> Stored:
    """Return fields of compound values: several, along an axis of their own, or one without.

    Raises
    ------
    UnknownColumnError, UnsupportedColumnError
        If there are none of these names, or they have no common dtype.
    """
    layout = source.unit if isinstance(source, Segments) else source
    if layout.stored_dtype.names is None:
        raise UnsupportedColumnError(f"{layout.where} has {layout.kind} values; expected compound values, with fields")
    members = []
    for name in names:
        try:
            members.append(split_array(field_of(layout.stored_dtype, name)[0]))
        except KeyError as exc:
            raise UnknownColumnError(
                f"{layout.path}: no field {name!r} in {layout.name!r}.{near_names(name, list(exc.args))}"
            ) from None
    if is_one:
        return Stored.of(source, names[0], column)
    for name, (dtype, shape) in zip(names, members, strict=True):
        if dtype.kind not in "biufc":
            raise UnsupportedColumnError(
                f"{layout.where}: field {name!r} has {dtype}; fields() joins numbers and booleans. Read it as a column "
                f"of its own: {f'{layout.name}/{name}'!r}."
            )
        if shape != members[0][1]:
            raise UnsupportedColumnError(
                f"{layout.where}: field {name!r} has values of shape {shape}, and {names[0]!r} of {members[0][1]}; "
                "fields() joins fields of one shape."
            )
    return Stored.of(source, None, column, names)


def field_of(dtype: np.dtype, path: str) -> tuple[np.dtype, int]:
    """Return the type of a field of compound values, and its place in a value in bytes; ``a/b`` is field b of field a.

    Raises
    ------
    KeyError
        If there is none; with the fields that there are.
    """
    parts = path.split("/")
    for count in range(len(parts), 0, -1):
        fields: Mapping[str, Any] = dtype.fields or {}
        if count == len(parts) and (one := _ITEM.fullmatch(path)) is not None and path not in fields:
            # One value of a field that is an array.
            base, shape = split_array(fields[one["field"]][0]) if one["field"] in fields else (dtype, ())
            if len(shape) == 1 and int(one["at"]) < shape[0]:
                return base, fields[one["field"]][1] + int(one["at"]) * base.itemsize
        if (name := "/".join(parts[:count])) not in fields:
            continue
        found, at = fields[name][:2]
        if count == len(parts):
            return found, at
        with contextlib.suppress(KeyError):
            below, further = field_of(found, "/".join(parts[count:]))
            return below, at + further
    raise KeyError(*(dtype.names or ()))


_ITEM = re.compile(r"(?P<field>.+)\[(?P<at>\d{1,9})\]")


def _field_values(values: np.ndarray, path: str) -> np.ndarray:
    if path not in (values.dtype.names or ()) and (one := _ITEM.fullmatch(path)) is not None:
        return values[one["field"]][..., int(one["at"])]
    parts = path.split("/")
    for count in range(len(parts), 0, -1):
        if (name := "/".join(parts[:count])) in (values.dtype.names or ()):
            found = values[name]
            return found if count == len(parts) else _field_values(found, "/".join(parts[count:]))
    raise KeyError(path)


def _kind_of(dtype: np.dtype) -> Kind:
    kinds: dict[str, Kind] = {"S": "string", "O": "string", "b": "bool", "M": "time", "m": "time"}
    return kinds.get(dtype.kind, "struct" if dtype.names else "binary" if dtype.kind == "V" else "number")


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
        return np.datetime64("NaT") if dtype.kind == "M" else np.zeros((), dtype)[()]
    if array.kind == "string":
        return b""
    return None if array.element is None else np.empty(0, array.element)


def read_all(reader: RowReader, values: Values) -> np.ndarray:
    """Return the values of all units, for planning; errors as `RowReader.read_whole`."""
    return read_units(reader, values, values.array.num_rows)


def read_units(reader: RowReader, values: Values, count: int) -> np.ndarray:
    """Return the values of the first `count` units, for planning; errors as `RowReader.read_whole`."""
    array = values.array
    value_bytes = OBJECT_BYTES if array.dtype.hasobject else array.dtype.itemsize
    shape = (count, *array.row_shape)
    reader.check_claim([array], math.prod(shape) * value_bytes)
    out = empty(shape, array.dtype, array.where)
    if count:
        reading = values.reading(RowRange(0, 0, count), out)
        reader.run(FileRead(reader, reading.parts, reading.finish))
    return out
