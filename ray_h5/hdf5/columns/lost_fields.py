"""Compound types without the fields that no row has."""

from __future__ import annotations

from typing import Any

import h5py
import numpy as np

from ray_h5.errors import UnsupportedColumnError
from ray_h5.hdf5.columns.plain_dtypes import kind_of, odd_type_of, split_array


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
        if (dtype := _dtype_of(member)) is None or name.encode() != type_id.get_member_name(i):
            lost.append(name)
            continue
        formats.append(dtype)
        names.append(name)
        offsets.append(int(type_id.get_member_offset(i)))
    if not names:
        return None
    described: Any = {"names": names, "formats": formats, "offsets": offsets, "itemsize": int(type_id.get_size())}
    return np.dtype(described), tuple(lost)


def _dtype_of(member: h5py.h5t.TypeID) -> np.dtype | None:
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
