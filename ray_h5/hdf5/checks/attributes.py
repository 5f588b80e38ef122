"""A look at the length of a text in an attribute before libhdf5 takes memory for it."""

from __future__ import annotations

import h5py
import numpy as np

from ray_h5.errors import CorruptFileError
from ray_h5.hdf5.checks.header import FileWidths, messages
from ray_h5.hdf5.checks.heap import Heap, reader_of

_ATTRIBUTE = 0x0C
_ONE_BYTE = np.ones(1, np.int64)


class TextGuard:
    """Refuses texts of varying length, in attributes of one file, that claim more than the file has.

    Attributes that an object has in other places than its header (libhdf5 moves them there from the ninth on) have a
    checksum, and are not looked at.

    Parameters
    ----------
    file : h5py.File
        The open file.
    """

    def __init__(self, file: h5py.File) -> None:
        self._path = file.filename
        self._read, end = reader_of(file)
        self._widths = FileWidths.of(file)
        self._heap = Heap(self._read, end, self._widths)
        self._reference = np.dtype([("length", "<u4"), ("address", f"<u{self._widths.address}"), ("number", "<u4")])

    def check(self, opened: h5py.h5g.GroupID | h5py.h5d.DatasetID, where: str, name: str) -> None:
        """Raise `CorruptFileError` if an attribute of an object claims a length that it cannot have."""
        wanted = name.encode()
        for kind, body in messages(self._read, h5py.h5o.get_info(opened).addr, self._widths):
            if kind == _ATTRIBUTE and (stored := _values_of(body, wanted)) is not None:
                found = np.frombuffer(stored, self._reference, len(stored) // self._reference.itemsize)[:1]
                for wrong in self._heap.wrong_values(found, _ONE_BYTE, exactly=False):
                    raise CorruptFileError(
                        f"{self._path}: attribute {name!r} of {where!r} is damaged: {wrong.reason}. Restore the file "
                        "from a copy, or leave the attribute out."
                    )


def _values_of(message: bytes, name: bytes) -> bytes | None:
    """Return the stored values in an attribute message; None if the attribute has another name."""
    if len(message) < 9 or message[0] not in {1, 2, 3}:
        return None
    sizes = [int.from_bytes(message[at : at + 2], "little") for at in (2, 4, 6)]
    begin = 9 if message[0] == 3 else 8
    if message[begin : begin + sizes[0]].partition(b"\0")[0] != name:
        return None
    # Version 1 fills up each part to a multiple of 8 bytes.
    return message[begin + sum(-(-size // 8) * 8 if message[0] == 1 else size for size in sizes) :]
