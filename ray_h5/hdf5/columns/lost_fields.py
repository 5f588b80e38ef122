"""Compound types without the fields that no row has."""

from __future__ import annotations

from typing import Any

import h5py
import numpy as np

from ray_h5.hdf5.columns.dtypes import odd_type_of


def without_lost(type_id: h5py.h5t.TypeID, *, is_wide: bool) -> tuple[np.dtype, tuple[str, ...]] | None:
    """Return a compound type without the fields that no row has.

    These are HDF5's own time, as PyTables writes it, references, as of NWB, and arrays of varying length, as ISMRMRD
    writes them. `is_wide` says whether values of varying length take as many bytes in the file as in memory. None if
    nothing else is left, or it is odd too.
    """
    if type_id.get_class() != h5py.h5t.COMPOUND:
        return None
    formats: list[np.dtype] = []
    names: list[str] = []
    offsets: list[int] = []
    lost: list[str] = []
    for i in range(type_id.get_nmembers()):
        member, name = type_id.get_member_type(i), type_id.get_member_name(i).decode("utf-8", "backslashreplace")
        kind = member.get_class()
        if kind in {h5py.h5t.TIME, h5py.h5t.REFERENCE} or (kind == h5py.h5t.VLEN and is_wide):
            lost.append(name)
            continue
        try:
            formats.append(member.dtype)
        except TypeError:
            return None
        if not _is_as_in_memory(member, formats[-1]):
            return None
        names.append(name)
        offsets.append(int(type_id.get_member_offset(i)))
    if not names:
        return None
    described: Any = {"names": names, "formats": formats, "offsets": offsets, "itemsize": int(type_id.get_size())}
    return np.dtype(described), tuple(lost)


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
