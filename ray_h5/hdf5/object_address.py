"""Where an open object is: what identifies it, whatever its names are."""

from __future__ import annotations

import ctypes
from typing import TypeAlias

import h5py

__all__ = ["Address", "address_of"]

Address: TypeAlias = tuple[int, int]
"""File number and byte offset of an object: they identify it among the open files, whatever its names are."""

_LONG_BITS = 8 * ctypes.sizeof(ctypes.c_ulong)


def address_of(found: h5py.h5f.FileID | h5py.h5g.GroupID | h5py.h5d.DatasetID) -> Address:
    """Return the number of an object's file and its byte offset in it; of a file, those of its root group.

    ``h5py.h5o.get_info`` returns the same, but also the size of the object's metadata: for that, libhdf5 walks through
    the whole index of its chunks, and a damaged index may end the process.
    """
    info = h5py.h5g.get_objinfo(found)
    number, offset = (low | high << _LONG_BITS for low, high in (info.fileno, info.objno))
    return number, offset
