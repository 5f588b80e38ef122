"""Where an object that libhdf5 has open is; the bytes of its file, on a disk or, for a store, in memory."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, TypeAlias, TypeVar
from weakref import WeakValueDictionary

import h5py

from ray_h5.storage.byte_source import MissingBytes

Item = TypeVar("Item")
Result = TypeVar("Result")

ReadBytes: TypeAlias = Callable[[int, int], bytes]
"""``read(offset, count)`` returns the bytes at an offset, fewer at the end of the file."""

ObjectId: TypeAlias = tuple[int, int]
"""File number and byte offset of an object: they identify it among the open files, whatever its names are."""


class Widths(NamedTuple):
    """Bytes of an address and of a length in a file, and of the user block, after which addresses begin."""

    address: int = 8
    length: int = 8
    user_block: int = 0


_LONG_BITS = 8 * ctypes.sizeof(ctypes.c_ulong)

HELD: WeakValueDictionary[int, Any] = WeakValueDictionary()
"""The bytes of the files that libhdf5 reads from memory, `HeldBytes`, by the number that it gives to each."""


def address_of(identifier: h5py.h5f.FileID | h5py.h5g.GroupID | h5py.h5d.DatasetID) -> ObjectId:
    """Return the number of an object's file and its byte offset in it; of a file, those of its root group.

    ``h5py.h5o.get_info`` returns the same, but also the size of the object's metadata: for that, libhdf5 walks through
    the whole index of its chunks, and a damaged index may end the process.
    """
    info = h5py.h5g.get_objinfo(identifier)
    (number, number_high), (offset, offset_high) = info.fileno, info.objno
    return number | number_high << _LONG_BITS, offset | offset_high << _LONG_BITS


def gather(action: Callable[[Item], Result], items: Iterable[Item]) -> list[Result]:
    """Return the results of an action for each item. After a miss it goes on, to miss the bytes of the others too."""
    results, missed = [], False
    for item in items:
        try:
            results.append(action(item))
        except MissingBytes:
            missed = True
    if missed:
        raise MissingBytes
    return results


def filename_of(file: h5py.File) -> str:
    """Return the path or URL of an open file; that of h5py has ? for characters of a URL that are not ASCII."""
    held = HELD.get(address_of(file.id)[0])
    return str(file.filename if held is None else held.url)


def widths_of(file: h5py.h5f.FileID) -> Widths:
    """Return the widths of numbers in an open file."""
    properties = file.get_create_plist()
    return Widths(*map(int, (*properties.get_sizes(), properties.get_userblock())))


class FileBytes(NamedTuple):
    """What reads the bytes of an open file by their address, the address where they end, and the widths of numbers."""

    read: ReadBytes
    end: int
    widths: Widths

    @classmethod
    def of(cls, file: h5py.h5f.FileID) -> FileBytes:
        widths, held = widths_of(file), HELD.get(address_of(file)[0])
        descriptor = -1 if held is not None else file.get_vfd_handle()
        end = (os.fstat(descriptor).st_size if held is None else held.size) - widths.user_block

        def read(address: int, count: int) -> bytes:
            # Python takes memory for all that is asked for.
            if (count := min(count, end - address)) <= 0:
                return b""
            offset = widths.user_block + address
            return os.pread(descriptor, count, offset) if held is None else held.read(offset, count)

        return cls(read, end, widths)
