"""Values as they are stored: those of datasets, and fields of compound values."""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from ray_h5.buffers import empty
from ray_h5.columns.values import Reading, Taken, Values, reshaped
from ray_h5.errors import UnknownColumnError, UnsupportedColumnError
from ray_h5.hdf5.format.value_types import split_array
from ray_h5.manifest.indices import Along, Indices, composed, lengths_of, picked
from ray_h5.manifest.joined_arrays import JoinedArray
from ray_h5.manifest.layout import ColumnLayout, ValueArray
from ray_h5.manifest.row_requests import Request, request_of
from ray_h5.manifest.takes import Take
from ray_h5.manifest.value_type import Kind
from ray_h5.messages import near_names
from ray_h5.per_process import cached_property
from ray_h5.read.read_parts import ColumnAddress, Part

_ITEM = re.compile(r"(?P<field>.+)\[(?P<at>\d{1,9})\]")
_KINDS: dict[str, Kind] = {"S": "string", "O": "string", "b": "bool", "M": "time", "m": "time", "V": "binary"}


@dataclass(frozen=True, eq=False)
class Stored(Values):
    """Values as they are stored: those of a dataset, of many, of fields of compound values, or parts of them.

    Attributes
    ----------
    layout : ColumnLayout
        The dataset; of many, a layout with the type and shape of a unit.
    address : ColumnAddress
        Where it is.
    name : str
        The column, if its name is not that of the dataset.
    fields : tuple of str
        The fields, which are one more axis, of one dtype.
    is_one : bool
        Whether a value is that of the only field, without this axis.
    taken : tuple of (Along or None)
        The indices along each axis of a unit; None for all.
    """

    layout: ColumnLayout
    address: ColumnAddress
    name: str = ""
    fields: tuple[str, ...] = ()
    is_one: bool = False
    taken: Indices = ()

    @classmethod
    def of(cls, source: ColumnLayout | JoinedArray) -> Stored:
        """Return the values of a dataset, or of one dataset a group."""
        return cls(source.unit, source) if isinstance(source, JoinedArray) else cls(source, source.name)

    @classmethod
    def end_to_end(cls, name: str, joined: JoinedArray) -> Stored:
        """Return the values of datasets, those of one after those of the one before, as one array."""
        units = joined.unit.with_shape((joined.units.num_units, *joined.layouts[0].row_shape), name=name)
        return cls(units, joined, name)

    @property
    def dtype(self) -> np.dtype:
        return self._type[0]

    @property
    def _type(self) -> tuple[np.dtype, tuple[int, ...]]:
        """The type of a value, and the axes that fields add."""
        if not self.fields:
            return self.layout.dtype, ()
        types = [split_array(field_of(self.layout.stored_dtype, name)[0]) for name in self.fields]
        (dtype, shape), *_ = types
        if self.is_one:
            return dtype.newbyteorder("="), shape
        return np.result_type(*(kind.newbyteorder("=") for kind, _ in types)), (len(types), *shape)

    @property
    def array(self) -> ValueArray:
        layout: ValueArray = self.layout
        if self.fields:
            dtype, axes = self._type
            kind = "struct" if dtype.names else _KINDS.get(dtype.kind, "number")
            chunk, of_field = layout.chunk_shape, f"{self.fields[0]}."
            enum = [pair for pair in layout.type.enum if self.is_one and pair[0].startswith(of_field)]
            type_ = replace(
                layout.type,
                kind=kind,
                dtype=dtype,
                row_shape=(*layout.row_shape, *axes),
                enum=tuple((name.removeprefix(of_field), value) for name, value in enum),
            )
            chunk_shape = None if chunk is None else (*chunk, *axes)
            layout = layout.made(type_, name=self.name, chunk_shape=chunk_shape, item_bytes=0)
        if self.taken:
            lengths = lengths_of(self.layout.row_shape, self.taken)
            layout = reshaped(layout, *lengths, *layout.shape[len(self.layout.shape) :])  # fields add axes
        return layout

    def over(self, axes: int) -> Values:
        if axes == 1 or isinstance(self.address, JoinedArray):
            return Values.over(self, axes)
        assert not self.taken
        shape = (math.prod(self.layout.shape[:axes]), *self.layout.shape[axes:])
        rows = self._rows.over(axes, len(self.layout.shape))
        flattened = self.layout.with_shape(shape, chunk_shape=None, offset=None, fill=None)
        return replace(self, layout=flattened, address=rows)

    def take(self, taken: Indices) -> Values:
        rows, is_of_fields = self._rows, len(taken) > len(self.layout.row_shape)
        is_cut = bool(rows.shape) and any(at is not None for axis, at in enumerate(taken) if axis in rows.axes)
        if is_of_fields or is_cut:
            return Taken(self, taken)
        return replace(self, taken=composed(self.taken, taken))

    def boxes(self, axes: tuple[int, ...], shape: tuple[int, ...], taken: Indices) -> Stored:
        """Return boxes of a dataset, of a shape along `axes`; `taken` has indices along other axes.

        Units are the places of their corners along these axes, in C order. Those of many datasets have one index of
        the first axis: each is in one of them.
        """
        assert not isinstance(self.address, Take)
        if wrong := [axis for axis in axes if axis and [None, *self.taken][axis : axis + 1] not in ([], [None])]:
            raise UnsupportedColumnError(
                f"{self.layout.where}: blocks cut axis {wrong[0]} of its array, of which part() takes some. Take "
                "parts of axes that blocks have as a whole, and choose other blocks with rows=Patches(...)."
            )
        address = Take(self.address, axes, shape, composed((None, *self.taken), taken) if self.taken else taken)
        return replace(self, layout=address.layout(self.layout), address=address, taken=())

    def reading(self, units: Request, out: np.ndarray) -> Reading:
        part = self._part
        if part is not None and (not self.fields or self.is_one or part.dtype is None or part.dtype.names is None):
            return Reading([Part(part, units, out)])
        if not (self.fields or self.taken):
            return Reading([Part(self.address, units, out)])
        wanted, names, taken = units.listed(), self.fields, self.taken
        shape, dtype = self.layout.row_shape, self.layout.dtype
        if part is not None and part.dtype is not None:
            # Fields of several types are read side by side. Of groups, the type of a unit is in native byte order, and
            # that of the part as it is stored.
            shape, dtype = tuple(lengths_of(shape, taken)), part.dtype
            names, taken = part.dtype.names or (), ()
        elif isinstance(self.address, JoinedArray) and self.address.unit_shape is None:
            shape = out.shape[1 : out.ndim - len(self._type[1])]
        values = empty((len(wanted), *shape), dtype, self.layout.where)

        def finish() -> None:
            out[wanted.places] = picked(self._fields_of(values, names), taken)

        return Reading([Part(part or self.address, request_of(wanted.rows), values)], [finish])

    @property
    def _rows(self) -> Take:
        """What rows are of a dataset, or of many, if whole values are read."""
        return self.address if isinstance(self.address, Take) else Take(self.address)

    @cached_property
    def _part(self) -> Take | None:
        """The fields and indices alone, where they can be read so; None if whole values are read.

        Fields can where the stored bytes are the values, and indices where this package decodes these; for those of a
        virtual dataset, its sources are asked.
        """
        many = array if isinstance(array := self._rows.array, JoinedArray) else None
        of = (self.layout,) if many is None else many.layouts
        if not (self.fields or self.taken) or (many is not None and many.single):
            return None
        is_alike = len({(layout.stored_dtype, layout.row_shape) for layout in of}) == 1
        is_stored = is_alike and all(layout.storage in {"contiguous", "chunked"} for layout in of)
        if is_stored and all(layout.direct for layout in of):
            # The type of `layout`, of many datasets of other chunks, is not as they are stored.
            rows = self._of_fields(of[0].stored_dtype)
        elif not self.fields and ((is_stored and of[0].is_decoded) or of[0].storage == "virtual"):
            rows = self._rows
        else:
            return None
        return rows.part(self.taken, len(self.layout.row_shape)) if self.taken else rows

    def _of_fields(self, dtype: np.dtype) -> Take:
        """Return the bytes of the fields of whole values, which are stored as `dtype`."""
        members = [field_of(dtype, name) for name in self.fields]
        if not members:
            return self._rows
        is_alike = len({member for member, _ in members}) == 1
        dtype = split_array(members[0][0])[0] if is_alike else np.dtype([("", member) for member, _ in members])
        fields = np.array([(at, member.itemsize) for member, at in members], np.int64)
        return replace(self._rows, of_value=Along.of_runs(fields), dtype=dtype)

    def _fields_of(self, values: np.ndarray, names: Sequence[str]) -> np.ndarray:
        """Return fields of compound values, in their order, as one array; whole values if there are no names."""
        if not names or self.is_one:
            return _field_values(values, names[0]) if names else values
        dtype, axes = self._type
        numbers = np.empty((*values.shape, *axes), dtype)
        for at, name in enumerate(names):
            numbers[(slice(None),) * values.ndim + (at,)] = _field_values(values, name)
        return numbers

    def where(self, name: str, unit: int) -> str:
        """Return where a unit of a column is, for the beginning of a message."""
        path = self.layout.path
        if not isinstance(self.address, JoinedArray):
            return f"{path}: column {name!r}, row {unit}"
        dataset, index = map(int, self.address.units.local(unit))
        return f"{path}: dataset {self.address.paths[dataset]!r}, index {index}"


def stored_fields(whole: Stored, names: tuple[str, ...], column: str, *, is_one: bool = False) -> Stored:
    """Return fields of compound values, given the whole ones: several, along an axis of their own, or one without.

    Raises
    ------
    UnknownColumnError, UnsupportedColumnError
        If there are none of these names, or they have no common dtype.
    """
    layout = whole.layout
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
    stored = replace(whole, name=column, fields=names, is_one=is_one)
    for name, (dtype, shape) in [] if is_one else zip(names, members, strict=True):
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
    return stored


def field_of(dtype: np.dtype, path: str) -> tuple[np.dtype, int]:
    """Return the type of a field of compound values, and its place in a value in bytes; ``a/b`` is field b of field a.

    Raises
    ------
    KeyError
        If there is none; with the fields that there are.
    """
    names, item = _field_path(dtype, path)
    at = 0
    for name in names:
        assert dtype.fields is not None
        dtype, further = dtype.fields[name][:2]
        at += further
    if item is None:
        return dtype, at
    base = split_array(dtype)[0]
    return base, at + item * base.itemsize


def _field_path(dtype: np.dtype, path: str) -> tuple[list[str], int | None]:
    """Return the fields that lead to a field, each in the one before; and which value of the last one, an array."""
    parts, names = path.split("/"), dtype.names or ()
    one = None if path in names else _ITEM.fullmatch(path)
    if one is not None and one["field"] in names:
        shape = split_array(dtype[one["field"]])[1]
        if len(shape) == 1 and int(one["at"]) < shape[0]:
            return [one["field"]], int(one["at"])
    for count in range(len(parts), 0, -1):  # a name may have a slash
        if (name := "/".join(parts[:count])) not in names:
            continue
        if count == len(parts):
            return [name], None
        with contextlib.suppress(KeyError):
            below, item = _field_path(dtype[name], "/".join(parts[count:]))
            return [name, *below], item
    raise KeyError(*names)


def _field_values(values: np.ndarray, path: str) -> np.ndarray:
    names, item = _field_path(values.dtype, path)
    for name in names:
        values = values[name]
    return values if item is None else values[..., item]
