"""Types of values: h5py's dtype -> a kind, and a plain numpy dtype."""

from __future__ import annotations

from typing import Any

import h5py
import numpy as np

from ray_h5.errors import OptionError, UnsupportedColumnError
from ray_h5.manifest.layout import Kind
from ray_h5.messages import near_names

_KINDS: dict[str, Kind] = {
    "b": "bool", "i": "number", "u": "number", "f": "number", "c": "number", "S": "string", "M": "time",
    "m": "time",
}  # fmt: skip

_NAMES = (
    "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16", "float32", "float64",
    "complex64", "complex128",
)  # fmt: skip


def split_array(dtype: np.dtype) -> tuple[np.dtype, tuple[int, ...]]:
    """Return the element type of an array type, also of arrays of arrays, and the axes that it adds to a row."""
    shape: tuple[int, ...] = ()
    while dtype.subdtype is not None:
        dtype, more = dtype.subdtype
        shape += more
    return dtype, shape


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


def kind_of(dtype: np.dtype, where: str) -> Kind:
    """Return the kind of values of `dtype`.

    Raises
    ------
    UnsupportedColumnError
        If they mean nothing outside of their file, such as references.
    """
    if h5py.check_string_dtype(dtype) is not None:
        return "string"
    if (element := h5py.check_vlen_dtype(dtype)) is not None:
        if not np.dtype(element).isnative:
            # h5py (3.16) returns their bytes in the order of the file, with a native dtype.
            raise UnsupportedColumnError(
                f"{where} has {_shown(dtype)}, whose byte order h5py loses: its values would be wrong. Write the "
                "column again in the byte order of this machine."
            )
        if np.dtype(element).kind in "biufc":
            return "list"
    elif dtype.names is not None:
        for name in dtype.names:
            if not name:
                raise UnsupportedColumnError(f"{where} has a field without a name, which h5py cannot read")
            _check_field(dtype[name], f"{where.removesuffix(',')}, field {name!r},")
        return "struct"
    elif dtype.kind == "V":
        return "binary"
    elif h5py.check_ref_dtype(dtype) is h5py.Reference:
        error = UnsupportedColumnError(
            f"{where} has references to other objects. read_h5, H5Dataset and loader read what they refer to, as rows; "
            "RowReader does not."
        )
        error.is_encoded = True
        raise error
    elif dtype.kind in _KINDS and h5py.check_ref_dtype(dtype) is None:
        return _KINDS[dtype.kind]
    raise UnsupportedColumnError(
        f"{where} has type {_shown(dtype)}, which cannot be read as rows. Numbers, booleans, enums, strings, times, "
        "opaque and compound values, and arrays of numbers of varying length can be."
    )


def are_references(type_id: h5py.h5t.TypeID) -> bool:
    """Return whether values of a type are references to objects."""
    return type_id.get_class() == h5py.h5t.REFERENCE and bool(type_id.equal(h5py.h5t.STD_REF_OBJ))


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
    offsets = [type_id.get_member_offset(i) for i in range(type_id.get_nmembers())]
    fields = [type_id.get_member_type(i) for i in range(len(offsets))]
    ordered_fields = [in_order(field) for field in fields]
    if offsets == sorted(offsets) and all(one is other for one, other in zip(fields, ordered_fields, strict=True)):
        return type_id
    made = h5py.h5t.create(h5py.h5t.COMPOUND, type_id.get_size())
    for i in np.argsort(offsets, kind="stable").tolist():
        made.insert(type_id.get_member_name(i), offsets[i], ordered_fields[i])
    return made


def plain_dtype(dtype: np.dtype) -> np.dtype:
    """Return `dtype` without the metadata that h5py adds: numpy warns when it pickles them."""
    if dtype.names is None:
        element, shape = split_array(dtype)
        if shape:
            return np.dtype((plain_dtype(element), shape))
        return np.dtype(object) if dtype.kind == "O" else np.dtype(dtype.str)
    assert dtype.fields is not None
    return np.dtype(
        {
            "names": list(dtype.names),
            "formats": [plain_dtype(dtype[name]) for name in dtype.names],
            "offsets": [dtype.fields[name][1] for name in dtype.names],
            "itemsize": dtype.itemsize,
        }
    )


def odd_type_of(type_id: h5py.h5t.TypeID, dtype: np.dtype) -> str:
    """Return a description of the type in the file; "" if it is the numpy type `dtype`."""
    element, shape = split_array(dtype)
    if shape:
        return f"arrays of {element}, of shape {shape}"
    # h5py rounds types up to numpy's: 20-bit integers become int32. Their bytes cannot be read directly.
    if type_id.equal(h5py.h5t.py_create(dtype, logical=True)):
        return ""
    bits = 8 * type_id.get_size()
    if type_id.get_class() == h5py.h5t.BITFIELD:
        return f"bit fields of {bits} bits"
    if type_id.get_class() in {h5py.h5t.INTEGER, h5py.h5t.FLOAT}:
        what = "integers" if type_id.get_class() == h5py.h5t.INTEGER else "floats"
        return f"{what} of {type_id.get_precision()} bits in {bits}, unlike any of numpy's"
    return f"values that libhdf5 converts to {dtype}"


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
    if type_id.get_class() != h5py.h5t.COMPOUND:
        return "", type_id
    for i in range(type_id.get_nmembers()):
        field = type_id.get_member_type(i)
        try:
            field.dtype  # noqa: B018  a property that raises
        except (TypeError, ValueError):
            below, odd = _odd_field(field)
            name = type_id.get_member_name(i).decode(errors="replace")
            return f"{name}.{below}" if below else name, odd
    return "", type_id


def _check_field(dtype: np.dtype, where: str) -> None:
    element, _ = split_array(dtype)
    is_reference = h5py.check_ref_dtype(element) is not None
    if is_reference or kind_of(element, where) == "list":
        held = f"{_shown(element)}s" if is_reference else "arrays of varying length"
        raise UnsupportedColumnError(
            f"{where} has {held} inside a compound type. Write that field as a column of its own."
        )


def _shown(dtype: np.dtype) -> str:
    if (refers := h5py.check_ref_dtype(dtype)) is not None:
        return "reference" if refers is h5py.Reference else "region reference"
    if (element := h5py.check_vlen_dtype(dtype)) is not None:
        return f"array of {element} of varying length"
    return str(dtype)


# Compound types without the fields that no row has ----------------------------------------


def without_lost(type_id: h5py.h5t.TypeID) -> tuple[np.dtype, tuple[str, ...]] | None:
    """Return a compound type without the fields that no row has.

    These are HDF5's own time, as PyTables writes it, references, as of NWB, arrays of varying length, as ISMRMRD writes
    them, numbers that numpy lacks, and fields whose names are not UTF-8. None if nothing else is left,
    or a field has no name.
    """
    if type_id.get_class() != h5py.h5t.COMPOUND:
        return None
    formats: list[np.dtype] = []
    names: list[str] = []
    offsets: list[int] = []
    lost: list[str] = []
    for i in range(type_id.get_nmembers()):
        member, name = type_id.get_member_type(i), type_id.get_member_name(i).decode("utf-8", "backslashreplace")
        if not name:
            return None
        # h5py looks fields up by their names in UTF-8.
        if (dtype := _dtype_of_field(member)) is None or name.encode() != type_id.get_member_name(i):
            lost.append(name)
            continue
        formats.append(dtype)
        names.append(name)
        offsets.append(int(type_id.get_member_offset(i)))
    if not names:
        return None
    described: Any = {"names": names, "formats": formats, "offsets": offsets, "itemsize": int(type_id.get_size())}
    return np.dtype(described), tuple(lost)


def _dtype_of_field(member: h5py.h5t.TypeID) -> np.dtype | None:
    """Return the dtype of a field; None if no row has it."""
    try:
        dtype: np.dtype = member.dtype
        return None if kind_of(split_array(dtype)[0], "") == "list" else dtype
    except (TypeError, ValueError, UnsupportedColumnError):
        return None


def are_as_in_memory(type_id: h5py.h5t.TypeID, dtype: np.dtype) -> bool:
    """Return whether the fields that `dtype` has are read without libhdf5."""
    members = {type_id.get_member_name(i): type_id.get_member_type(i) for i in range(type_id.get_nmembers())}
    return all(_is_as_in_memory(members[name.encode()], dtype[name]) for name in dtype.names or ())


def _is_as_in_memory(type_id: h5py.h5t.TypeID, dtype: np.dtype) -> bool:
    """Return whether the bytes of a field in the file are those in memory, so that it is read without libhdf5."""
    if type_id.get_class() == h5py.h5t.ARRAY:
        type_id, dtype = type_id.get_super(), dtype.base
    if dtype.hasobject or dtype.itemsize != type_id.get_size():
        return False
    if dtype.fields is not None and dtype.names is not None:
        members = range(type_id.get_nmembers()) if type_id.get_class() == h5py.h5t.COMPOUND else ()
        return len(members) == len(dtype.names) and all(
            type_id.get_member_offset(i) == dtype.fields[name][1]
            and _is_as_in_memory(type_id.get_member_type(i), dtype[name])
            for i, name in zip(members, dtype.names, strict=True)
        )
    if type_id.get_class() == h5py.h5t.STRING:
        return True
    if type_id.get_class() == h5py.h5t.BITFIELD:
        return bool(type_id.equal(h5py.h5t.STD_B8LE) or type_id.equal(h5py.h5t.STD_B8BE))
    return not odd_type_of(type_id, dtype)


def empty_record(dtype: np.dtype) -> Any:
    """Return a compound value of zeros and empty texts."""
    value = np.zeros((), dtype)
    for name in dtype.names or ():
        field = dtype[name].base
        value[name] = b"" if field.kind == "O" else empty_record(field)
    return value
