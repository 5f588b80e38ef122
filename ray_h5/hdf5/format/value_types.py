"""The types of values: what libhdf5 or h5py says -> a kind, and a plain numpy dtype.

Many datasets and files share a type, which is described once in a process.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any, NamedTuple

import h5py
import numpy as np

from ray_h5.errors import CorruptFileError, OptionError, UnsupportedColumnError
from ray_h5.hdf5.format.file_bytes import Widths
from ray_h5.lru import LRU
from ray_h5.manifest.value_type import Kind, ValueType
from ray_h5.messages import near_names

_MEMBER_BYTES = 1 << 10
"""About how much memory the description of a type takes, and of each member of an enum."""

_KINDS: dict[str, Kind] = {
    "b": "bool", "i": "number", "u": "number", "f": "number", "c": "number", "S": "string", "M": "time",
    "m": "time",
}  # fmt: skip

_NAMES = (
    "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16", "float32", "float64",
    "complex64", "complex128",
)  # fmt: skip


class StoredType(NamedTuple):
    """The type of a value in a file.

    Attributes
    ----------
    dtype : numpy.dtype
        The dtype that h5py gives it.
    zero : numpy.ndarray
        A value of zero bytes: a 0-d array, without what h5py adds to its dtype.
    array_shape : tuple of int
        The axes that an array type adds to a row.
    in_file : bytes
        The type in the file, as `ColumnLayout.file_type` has it.
    type : ValueType
        The type of a value as it is read, without the axes of an array type.
    file_dtype : numpy.dtype, optional
        As `ColumnLayout` has it.
    item_bytes : int
        Size of a value in the file.
    odd_type : str
        As `ColumnLayout` has it.
    lost_fields : tuple of str
        As `ColumnLayout` has them.
    """

    dtype: np.dtype
    zero: np.ndarray
    array_shape: tuple[int, ...]
    in_file: bytes
    type: ValueType
    file_dtype: np.dtype | None
    item_bytes: int
    odd_type: str
    lost_fields: tuple[str, ...]


def value_type_of(type_id: h5py.h5t.TypeID, widths: Widths, where: str) -> StoredType:
    """Describe a type of the file.

    Raises
    ------
    UnsupportedColumnError
        If its values cannot be read as rows; `where` names the column.
    """
    encoded = type_id.encode()
    key = encoded, widths.address, widths.length
    if (known := _types.get(key)) is not None:
        return known
    if not _is_known(type_id):
        # libhdf5 (2.0) would end the process, or take any amount of memory.
        raise CorruptFileError(
            f"{where} has a type that is damaged: it is of varying length, and neither text of bytes nor an array. "
            "Restore the file from a copy."
        )
    type_id = in_order(type_id)
    dtype, lost_fields = _dtype(type_id, where)
    element, array_shape = split_array(dtype)
    kind, stored_bytes = kind_of(element, where), item_bytes(type_id, widths.address)
    odd_type = ""
    if lost_fields and not dtype.hasobject:
        # Values of varying length may take more bytes in memory than in the file.
        is_wide = stored_bytes == type_id.get_size()
        odd_type = "" if is_wide and _is_as_in_memory(type_id, dtype) else "compound values that libhdf5 converts"
    elif not dtype.hasobject:
        odd_type = _odd_type_of(type_id, dtype)
    file_dtype = _plain_dtype(element)
    dtype_here = file_dtype.newbyteorder("=")
    stored_type = StoredType(
        dtype,
        np.zeros((), _plain_dtype(dtype)),
        tuple(map(int, array_shape)),
        bytes([widths.length, widths.address]) + bytes(type_id.encode()),
        ValueType(
            kind,
            dtype_here,
            element=np.dtype(h5py.check_vlen_dtype(element)) if kind == "list" else None,
            enum=tuple(_enum(element)),
        ),
        None if file_dtype == dtype_here else file_dtype,
        stored_bytes,
        odd_type,
        lost_fields,
    )
    _types.put(key, stored_type)
    return stored_type


_types: LRU[StoredType] = LRU(1024, 64 << 20, lambda stored: _MEMBER_BYTES * (1 + len(stored.type.enum)))


def without_rows(message: str, *, is_single: bool = False) -> UnsupportedColumnError:
    """Return the error of a dataset that has no rows, but perhaps a single value."""
    error = UnsupportedColumnError(message)
    error.has_rows = None if is_single else False
    return error


# Types of a file -----------------------------------------------------------------------------


def are_references(type_id: h5py.h5t.TypeID) -> bool:
    """Return whether values of a type are references to objects."""
    return type_id.get_class() == h5py.h5t.REFERENCE and bool(type_id.equal(h5py.h5t.STD_REF_OBJ))


def fields_of(type_id: h5py.h5t.TypeID) -> list[tuple[bytes, int, h5py.h5t.TypeID]]:
    """Return name, offset and type of each field of compound values; none for another type."""
    count = type_id.get_nmembers() if type_id.get_class() == h5py.h5t.COMPOUND else 0
    return [
        (type_id.get_member_name(i), int(type_id.get_member_offset(i)), type_id.get_member_type(i))
        for i in range(count)
    ]


def item_bytes(type_id: h5py.h5t.TypeID, address_bytes: int) -> int:
    """Return the size of a value in the file. libhdf5's ``get_size`` is the size in memory."""
    kind = type_id.get_class()
    if kind == h5py.h5t.VLEN or (kind == h5py.h5t.STRING and type_id.is_variable_str()):
        # A value of varying length is stored as its length, and its address and index in the global heap.
        return 4 + int(address_bytes) + 4
    if kind == h5py.h5t.ARRAY:
        return math.prod(type_id.get_array_dims()) * item_bytes(type_id.get_super(), address_bytes)
    return int(type_id.get_size()) + sum(
        item_bytes(field, address_bytes) - field.get_size() for _, _, field in fields_of(type_id)
    )


def _is_known(type_id: h5py.h5t.TypeID) -> bool:
    """Return whether each type of varying length in a type is an array; libhdf5 says what is text."""
    kind = type_id.get_class()
    if kind == h5py.h5t.STRING:
        # libhdf5 takes memory for characters of the size that the type claims.
        return not type_id.is_variable_str() or character_bytes(type_id.encode()[2:]) == 1
    if kind not in {h5py.h5t.VLEN, h5py.h5t.ARRAY}:
        return all(_is_known(field) for _, _, field in fields_of(type_id))
    # Two bytes of a version, then the type as it is in a file: its class, and what kind of varying length it has.
    return (kind == h5py.h5t.ARRAY or type_id.encode()[3] & 0xF == 0) and _is_known(type_id.get_super())


def character_bytes(stored: bytes) -> int:
    """Return the size of the characters of a text of varying length, whose type is stored so."""
    # Class and version, bits and size of the type; the same of the type of a character.
    return int.from_bytes(stored[12:16], "little")


def in_order(type_id: h5py.h5t.TypeID) -> h5py.h5t.TypeID:
    """Return a type whose fields of compound values are listed in the order in which they lie.

    libhdf5 sorts the fields of the type of an open dataset, which all handles share, when it converts its values: how
    h5py lists them depends on who read the dataset before.
    """
    if type_id.get_class() == h5py.h5t.ARRAY:
        element = type_id.get_super()
        ordered = in_order(element)
        return type_id if ordered is element else h5py.h5t.array_create(ordered, type_id.get_array_dims())
    if type_id.get_class() != h5py.h5t.COMPOUND:
        return type_id
    fields = fields_of(type_id)
    ordered_fields = [(name, offset, in_order(field)) for name, offset, field in fields]
    ordered_fields.sort(key=lambda field: field[1])
    if all(one[2] is other[2] for one, other in zip(fields, ordered_fields, strict=True)):
        return type_id
    made = h5py.h5t.create(h5py.h5t.COMPOUND, type_id.get_size())
    for field in ordered_fields:
        made.insert(*field)
    return made


# Their dtypes ----------------------------------------------------------------------------------


@lru_cache(maxsize=256)
def dtype_of(encoded: bytes) -> np.dtype:
    """Return h5py's dtype of a type that libhdf5 encoded, without the fields that no row has."""
    return _dtype(in_order(h5py.h5t.decode(encoded)), "")[0]


def _dtype(type_id: h5py.h5t.TypeID, where: str) -> tuple[np.dtype, tuple[str, ...]]:
    """Return the dtype of a type, and the fields that it leaves out: see `_without_lost`."""
    try:
        dtype = _with_room(type_id)
        kind_of(split_array(dtype)[0], where)
    except (TypeError, ValueError, UnsupportedColumnError) as exc:
        if (known := _without_lost(type_id)) is not None:
            return known
        if isinstance(exc, UnsupportedColumnError):
            raise
        raise UnsupportedColumnError(f"{where}{numpy_lacks(type_id, exc)}") from exc
    return dtype, ()


def _without_lost(type_id: h5py.h5t.TypeID) -> tuple[np.dtype, tuple[str, ...]] | None:
    """Return a compound type without the fields that no row has.

    These are HDF5's own time, as PyTables writes it, references, as of NWB, arrays of varying length, as ISMRMRD writes
    them, numbers of sizes that numpy lacks, and fields whose names are not UTF-8. None if nothing else is left, or a
    field has no name.
    """
    if type_id.get_class() != h5py.h5t.COMPOUND:
        return None
    kept: dict[str, tuple[int, h5py.h5t.TypeID]] = {}
    lost: list[str] = []
    for stored_name, offset, field in fields_of(type_id):
        if not (name := stored_name.decode("utf-8", "backslashreplace")):
            return None
        try:
            is_lost = kind_of(split_array(_with_room(field))[0], "") == "list"
        except (TypeError, ValueError, UnsupportedColumnError):
            is_lost = True
        if is_lost or name.encode() != stored_name:  # h5py looks fields up by their names in UTF-8
            lost.append(name)
        else:
            kept[name] = offset, field
    return (_struct(kept, type_id), tuple(lost)) if kept else None


def _with_room(type_id: h5py.h5t.TypeID) -> np.dtype:
    """Return h5py's dtype of a type, with room for each field of compound values.

    h5py gives floats that numpy lacks, such as bfloat16, the dtype of the next larger ones, and leaves fields where
    they are in the file. One would then reach into the next: reading gives other values, or ends the process.
    """
    if not _grows(type_id) or type_id.get_class() == h5py.h5t.FLOAT:
        return type_id.dtype
    if type_id.get_class() == h5py.h5t.ARRAY:
        return np.dtype((_with_room(type_id.get_super()), type_id.get_array_dims()))
    return _struct({name.decode(): (offset, field) for name, offset, field in fields_of(type_id)}, type_id)


def _grows(type_id: h5py.h5t.TypeID) -> bool:
    """Return whether values of a type take more bytes in numpy than in the file."""
    kind = type_id.get_class()
    if kind == h5py.h5t.ARRAY:
        return _grows(type_id.get_super())
    if kind == h5py.h5t.FLOAT:
        return bool(type_id.dtype.itemsize > type_id.get_size())
    return any(_grows(field) for _, _, field in fields_of(type_id))


def _struct(fields: Mapping[str, tuple[int, h5py.h5t.TypeID]], type_id: h5py.h5t.TypeID) -> np.dtype:
    """Return a dtype with some fields of a type: as they lie in the file, or one after the other if one grows."""
    dtypes = {name: _with_room(field) for name, (_, field) in fields.items()}
    if any(_grows(field) for _, field in fields.values()):
        return np.dtype([*dtypes.items()])
    offsets = [offset for offset, _ in fields.values()]
    described: Any = {"names": [*dtypes], "formats": [*dtypes.values()], "offsets": offsets}
    described["itemsize"] = int(type_id.get_size())
    return np.dtype(described)


def kind_of(dtype: np.dtype, where: str) -> Kind:
    """Return the kind of values of `dtype`.

    Raises
    ------
    UnsupportedColumnError
        If they mean nothing outside of their file, such as references.
    """
    refers = h5py.check_ref_dtype(dtype)
    shown = str(dtype) if refers is None else "reference" if refers is h5py.Reference else "region reference"
    if h5py.check_string_dtype(dtype) is not None:
        return "string"
    if (element := h5py.check_vlen_dtype(dtype)) is not None:
        shown = f"array of {element} of varying length"
        if not np.dtype(element).isnative:
            # h5py (3.16) returns their bytes in the order of the file, with a native dtype.
            raise UnsupportedColumnError(
                f"{where} has {shown}, whose byte order h5py loses: its values would be wrong. Write the "
                "column again in the byte order of this machine."
            )
        if np.dtype(element).kind in "biufc":
            return "list"
    elif dtype.names is not None:
        for name in dtype.names:
            if not name:
                raise UnsupportedColumnError(f"{where} has a field without a name, which h5py cannot read")
            part, of = split_array(dtype[name])[0], f"{where.removesuffix(',')}, field {name!r},"
            refers = h5py.check_ref_dtype(part)
            if refers is not None or kind_of(part, of) == "list":
                arrays = "arrays of varying length" if refers is None else "references"
                held = "region references" if refers is h5py.RegionReference else arrays
                raise UnsupportedColumnError(
                    f"{of} has {held} inside a compound type. Write that field as a column of its own."
                )
        return "struct"
    elif dtype.kind == "V":
        return "binary"
    elif refers is h5py.Reference:
        error = UnsupportedColumnError(
            f"{where} has references to other objects, and no values. read_h5, H5Dataset and loader read what they "
            "refer to, as rows."
        )
        error.is_encoded = True
        raise error
    elif dtype.kind in _KINDS:
        return _KINDS[dtype.kind]
    raise UnsupportedColumnError(
        f"{where} has type {shown}, which cannot be read as rows. Numbers, booleans, enums, strings, times, "
        "opaque and compound values, and arrays of numbers of varying length can be."
    )


def _enum(dtype: np.dtype, prefix: str = "") -> Iterator[tuple[str, int]]:
    dtype = np.dtype(h5py.check_vlen_dtype(dtype) or split_array(dtype)[0])
    for name, value in (h5py.check_enum_dtype(dtype) or {}).items():
        yield prefix + name, int(value)
    for field_name in dtype.names or ():
        yield from _enum(dtype[field_name], f"{prefix}{field_name}.")


def _odd_type_of(type_id: h5py.h5t.TypeID, dtype: np.dtype) -> str:
    """Return a description of the type in the file; "" if it is the numpy type `dtype`."""
    element, shape = split_array(dtype)
    if shape:
        return f"arrays of {element}, of shape {shape}"
    # h5py rounds types up to numpy's: 20-bit integers become int32. Their bytes cannot be read directly.
    if type_id.equal(h5py.h5t.py_create(dtype, logical=True)):
        return ""
    kind, bits = type_id.get_class(), 8 * type_id.get_size()
    if kind == h5py.h5t.BITFIELD:
        return f"bit fields of {bits} bits"
    if kind in {h5py.h5t.INTEGER, h5py.h5t.FLOAT}:
        what = "integers" if kind == h5py.h5t.INTEGER else "floats"
        return f"{what} of {type_id.get_precision()} bits in {bits}, unlike any of numpy's"
    return f"values that libhdf5 converts to {dtype}"


def _is_as_in_memory(type_id: h5py.h5t.TypeID, dtype: np.dtype) -> bool:
    """Return whether the bytes of a value in the file are those in memory, so that it is read without libhdf5.

    Of compound values, these are the bytes of the fields that `dtype` has.
    """
    if type_id.get_class() == h5py.h5t.ARRAY:
        type_id, dtype = type_id.get_super(), dtype.base
    if dtype.itemsize != type_id.get_size():
        return False
    if dtype.fields is not None:
        members = {(name, offset): field for name, offset, field in fields_of(type_id)}
        pairs = [(members.get((name.encode(), field[1])), field[0]) for name, field in dtype.fields.items()]
        return all(member is not None and _is_as_in_memory(member, part) for member, part in pairs)
    if type_id.get_class() == h5py.h5t.BITFIELD:
        return bool(type_id.equal(h5py.h5t.STD_B8LE) or type_id.equal(h5py.h5t.STD_B8BE))
    return not _odd_type_of(type_id, dtype)


def numpy_lacks(type_id: h5py.h5t.TypeID, error: TypeError | ValueError) -> str:
    """Return the message that names the type, or the field, that numpy has no dtype for, and what to write instead."""
    field, odd = _odd_field(type_id)
    at = f", field {field!r}," if field else ""
    if odd.get_class() == h5py.h5t.TIME:
        return (
            f"{at} has a type that numpy lacks: HDF5's own time (H5T_TIME), which h5py cannot read. Write it as int64, "
            "such as seconds since 1970."
        )
    if odd.get_class() == h5py.h5t.FLOAT:
        return f"{at} has floats of {odd.get_precision()} bits, which numpy lacks. Write them as float64."
    return f"{at} has a type that numpy lacks: {error}. Write it as numbers or strings."


def _odd_field(type_id: h5py.h5t.TypeID) -> tuple[str, h5py.h5t.TypeID]:
    for stored_name, _, field in fields_of(type_id):
        try:
            field.dtype  # noqa: B018  a property that raises
        except (TypeError, ValueError):
            below, odd = _odd_field(field)
            name = stored_name.decode(errors="replace")
            return f"{name}.{below}" if below else name, odd
    return "", type_id


# Dtypes of numpy -------------------------------------------------------------------------------


def split_array(dtype: np.dtype) -> tuple[np.dtype, tuple[int, ...]]:
    """Return the element type of an array type, also of arrays of arrays, and the axes that it adds to a row."""
    shape: tuple[int, ...] = ()
    while dtype.subdtype is not None:
        dtype, more = dtype.subdtype
        shape += more
    return dtype, shape


def _plain_dtype(dtype: np.dtype) -> np.dtype:
    """Return `dtype` without the metadata that h5py adds: numpy warns when it pickles them."""
    if dtype.names is None:
        element, shape = split_array(dtype)
        if shape:
            return np.dtype((_plain_dtype(element), shape))
        return np.dtype(object) if dtype.kind == "O" else np.dtype(dtype.str)
    names: list[str] = list(dtype.names)
    fields: Any = dtype.fields
    formats, offsets = [_plain_dtype(dtype[name]) for name in names], [fields[name][1] for name in names]
    return np.dtype({"names": names, "formats": formats, "offsets": offsets, "itemsize": dtype.itemsize})


def empty_record(dtype: np.dtype) -> Any:
    """Return a compound value of zeros and empty texts."""
    value = np.zeros((), dtype)
    for name in dtype.names or ():
        field = dtype[name].base
        value[name] = b"" if field.kind == "O" else empty_record(field)
    return value


def as_dtype(wanted: Any, what: str) -> np.dtype:
    """Return the numpy dtype that a user asks for; `what` names the thing it is for.

    Raises
    ------
    OptionError
        If numpy has no such dtype. A dtype of torch is refused; the message offers the numpy dtype of that name.
    """
    try:
        return np.dtype(wanted)
    except TypeError as exc:
        name = str(wanted).removeprefix("torch.")
        same = not isinstance(wanted, str) and name in _NAMES
        advice = f" Write {name!r}." if same else near_names(name, _NAMES)
        raise OptionError(f"{wanted!r} for {what} is no dtype of numpy.{advice}") from exc
