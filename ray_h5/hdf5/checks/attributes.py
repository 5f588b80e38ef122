"""A look at a text of varying length in an attribute before libhdf5 reads it: as `heap` does for values."""

from __future__ import annotations

import itertools

import h5py

from ray_h5.errors import CorruptFileError
from ray_h5.hdf5.checks.header import FileWidths, messages
from ray_h5.hdf5.columns.value_types import character_bytes
from ray_h5.hdf5.files.file_bytes import address_of, filename_of, reader_of
from ray_h5.hdf5.heap import DamagedHeapError, Heap

_ATTRIBUTE, _VARYING = 0x0C, 9


class TextGuard:
    """Refuses texts of varying length, in attributes of one file, that claim more than the file has.

    Attributes that an object has in other places than its header (libhdf5 moves them there from the ninth on, in files
    of its newer formats) have a checksum, and are not looked at.

    Parameters
    ----------
    file : h5py.File
        The open file.
    """

    def __init__(self, file: h5py.File) -> None:
        self._path = filename_of(file)
        self._read, end = reader_of(file)
        self._widths = FileWidths.of(file)
        self._heap = Heap(self._read, end, self._widths.length, key=object())
        self._stored: dict[bytes, tuple[bytes, bytes]] | None = None

    def look_at(self, opened: h5py.h5g.GroupID | h5py.h5d.DatasetID) -> None:
        """Choose the object whose attributes are checked next."""
        self._opened, self._stored = opened, None

    def check(self, where: str, name: str) -> None:
        """Raise `CorruptFileError` if an attribute of the object claims a length that it cannot have."""
        if self._stored is None:
            found = messages(self._read, address_of(self._opened)[1], self._widths)
            self._stored = dict(_parts(body) for kind, body, _ in found if kind == _ATTRIBUTE)
        stored_type, stored = self._stored.get(name.encode(), (b"", b""))
        if stored_type[:1] and stored_type[0] & 0xF == _VARYING and character_bytes(stored_type) != 1:
            raise CorruptFileError(
                f"{self._path}: the type of attribute {name!r} of {where!r} is damaged: it is of varying length, and "
                "no text of bytes. Restore the file from a copy, or leave the attribute out."
            )
        width = self._widths.address
        length, address, number = (
            int.from_bytes(stored[begin:end], "little")
            for begin, end in ((0, 4), (4, 4 + width), (4 + width, 8 + width))
        )
        if len(stored) < 8 + width:
            return
        try:
            self._heap.values([(length, address, number)], 1)
        except DamagedHeapError as exc:
            raise CorruptFileError(
                f"{self._path}: attribute {name!r} of {where!r} is damaged: {exc}. Restore the file from a copy, or "
                "leave the attribute out."
            ) from None


def _parts(message: bytes) -> tuple[bytes, tuple[bytes, bytes]]:
    """Return the name in an attribute message, its type and values; nothing for a message of another version."""
    if len(message) < 9 or message[0] not in {1, 2, 3}:
        return b"", (b"", b"")
    sizes = [int.from_bytes(message[at : at + 2], "little") for at in (2, 4, 6)]
    begin = 9 if message[0] == 3 else 8
    name = message[begin : begin + sizes[0]].partition(b"\0")[0]
    # Version 1 fills up each part to a multiple of 8 bytes.
    ends = list(itertools.accumulate((-(-size // 8) * 8 if message[0] == 1 else size for size in sizes), initial=begin))
    # Versions 2 and 3 may refer to a type that is stored elsewhere.
    stored_type = b"" if message[0] != 1 and message[1] & 1 else message[ends[1] : ends[2]]
    return name, (stored_type, message[ends[3] :])
