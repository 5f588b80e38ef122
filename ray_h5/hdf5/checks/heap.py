"""Checks values of varying length before libhdf5 reads them: each claims a length that may be false.

A stored value is a *reference*: its length (u32), the address of a collection of the global heap, and the number of
an object in that collection (u32). libhdf5 (2.0) takes memory for the length, and only then compares it with the
object.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import h5py
import numpy as np

from ray_h5.hdf5.checks.header import FileWidths, messages
from ray_h5.hdf5.object_address import address_of
from ray_h5.hdf5.remote.held_bytes import bytes_of

HARMLESS_BYTES = 1 << 20
"""libhdf5 itself refuses smaller claims that are false; the memory that it takes until then is no more than this."""

_COLLECTION_HEAD = 16
_DATA_LAYOUT = 8
_COMPACT = 0

ReadBytes: TypeAlias = Callable[[int, int], bytes]
"""``read(offset, count)`` returns the bytes at an offset, fewer at the end of the file."""


@dataclass(frozen=True, slots=True)
class WrongValue:
    """A value whose length is not the size of its heap object.

    Attributes
    ----------
    position : int
        Number of the reference among those that were checked.
    reason : str
        What is wrong, for messages.
    """

    position: int
    reason: str


@dataclass(frozen=True, slots=True, eq=False)
class ReferenceLayout:
    """Where a stored item of a column holds references to the global heap.

    Attributes
    ----------
    offsets : numpy.ndarray
        int64: where each reference begins in the item, in bytes.
    unit_bytes : numpy.ndarray
        int64: bytes of an element that the length of each counts.
    item_bytes : int
        Size of an item in the file.
    dtype : numpy.dtype
        A reference: "length", "address" and "number".
    """

    offsets: np.ndarray
    unit_bytes: np.ndarray
    item_bytes: int
    dtype: np.dtype

    @classmethod
    def of(cls, dataset: h5py.Dataset) -> ReferenceLayout:
        width = FileWidths.of(dataset).address
        offsets, units, item_bytes = _references(dataset.id.get_type(), width)
        fields = [("length", "<u4"), ("address", f"<u{width}"), ("number", "<u4")]
        return cls(offsets, units, item_bytes, np.dtype(fields))

    @property
    def per_item(self) -> int:
        return len(self.offsets)

    def references(self, items: np.ndarray) -> np.ndarray:
        """Return the references in items, an array of uint8 of shape (n, item_bytes), one after the other."""
        width = self.dtype.itemsize
        if self.item_bytes != self.per_item * width:  # there are fields beside them
            items = items[:, (self.offsets[:, None] + np.arange(width)).reshape(-1)]
        return np.ascontiguousarray(items).reshape(-1).view(self.dtype)


def _references(type_id: h5py.h5t.TypeID, address_bytes: int) -> tuple[np.ndarray, np.ndarray, int]:
    """Return offsets and unit sizes of the references in a stored item, and the size of the item."""
    kind, size = type_id.get_class(), int(type_id.get_size())
    if kind == h5py.h5t.STRING and type_id.is_variable_str():
        return np.zeros(1, np.int64), np.ones(1, np.int64), 8 + address_bytes
    if kind == h5py.h5t.VLEN:
        unit = _references(type_id.get_super(), address_bytes)[2]
        return np.zeros(1, np.int64), np.array([unit], np.int64), 8 + address_bytes
    if kind == h5py.h5t.ARRAY:
        offsets, units, step = _references(type_id.get_super(), address_bytes)
        count = math.prod(type_id.get_array_dims()) if len(offsets) else 0
        item_bytes = math.prod(type_id.get_array_dims()) * step
        return np.add.outer(np.arange(count) * step, offsets).reshape(-1), np.tile(units, count), item_bytes
    found_offsets, found_units = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    if kind == h5py.h5t.COMPOUND:
        # libhdf5 gives offsets and sizes in memory, where a reference is a pointer: fields after it move.
        moved, fields = 0, [(type_id.get_member_offset(i), i) for i in range(type_id.get_nmembers())]
        for offset, i in sorted(fields):
            field = type_id.get_member_type(i)
            offsets, units, stored = _references(field, address_bytes)
            found_offsets.append(offsets + offset + moved)
            found_units.append(units)
            moved += stored - int(field.get_size())
        size += moved
    return np.concatenate(found_offsets), np.concatenate(found_units), size


def claims_much(references: np.ndarray, unit_bytes: np.ndarray) -> bool:
    """Tell whether a value may claim so much that `Heap.wrong_values` has to look at it: few ever do."""
    return bool(len(references)) and int(references["length"].max()) * int(unit_bytes.max()) > HARMLESS_BYTES


class Heap:
    """The global heap of a file.

    Parameters
    ----------
    read : callable
        Reads bytes at an address: an offset after the user block.
    file_bytes : int
        Where the file ends, as an address.
    widths : FileWidths
        The sizes of addresses and lengths in this file.
    """

    def __init__(self, read: ReadBytes, file_bytes: int, widths: FileWidths) -> None:
        self._read = read
        self._file_bytes = file_bytes
        self._length_bytes = widths.length
        self._address = -1
        self._sizes: dict[int, int] = {}

    @classmethod
    def of(cls, dataset: h5py.Dataset) -> Heap:
        read, end = reader_of(dataset)
        return cls(read, end, FileWidths.of(dataset))

    def wrong_values(self, references: np.ndarray, unit_bytes: np.ndarray, *, exactly: bool) -> list[WrongValue]:
        """Return the values that claim more bytes than their collection has; exactly, than their object has.

        Parameters
        ----------
        references : numpy.ndarray
            As `ReferenceLayout.references` returns them.
        unit_bytes : numpy.ndarray
            `ReferenceLayout.unit_bytes`; it repeats along `references`.
        exactly : bool
            Whether to compare small ones too, and with the size of the object.
        """
        lengths = references["length"]
        claims = lengths.astype(np.int64) * np.tile(unit_bytes, len(lengths) // len(unit_bytes))
        # Address 0 is a value of no bytes, for which libhdf5 does not look at the length.
        suspects = np.flatnonzero((claims > (0 if exactly else HARMLESS_BYTES)) & (references["address"] != 0))
        wrong = []
        for at in suspects[np.argsort(references["address"][suspects], kind="stable")].tolist():
            claimed, address, number = int(claims[at]), int(references["address"][at]), int(references["number"][at])
            if exactly or claimed > self._collection_bytes(address):
                found = self._object_bytes(address).get(number)
                if found != claimed:
                    stored = f"{found} bytes" if found is not None else "nothing there"
                    place = f"object {number} of the heap at byte {address}"
                    wrong.append(WrongValue(at, f"it claims {claimed} bytes in {place}, found {stored}"))
        return sorted(wrong, key=lambda value: value.position)

    def _collection_bytes(self, address: int) -> int:
        """Return the size of the collection at an address; 0 if there is none."""
        if address + _COLLECTION_HEAD > self._file_bytes:
            return 0
        head = self._read(address, 8 + self._length_bytes)
        size = int.from_bytes(head[8:], "little")
        whole = head[:4] == b"GCOL" and head[4:5] == b"\1" and address + size <= self._file_bytes
        return size if whole else 0

    def _object_bytes(self, address: int) -> dict[int, int]:
        """Return the sizes of the objects of a collection, by number; those of one collection are kept."""
        if address != self._address:
            self._address, self._sizes = address, {}
            collection = self._read(address, self._collection_bytes(address))
            at, head = _aligned(8 + self._length_bytes), _aligned(8 + self._length_bytes)
            while at + head <= len(collection):
                number = int.from_bytes(collection[at : at + 2], "little")
                size = int.from_bytes(collection[at + 8 : at + 8 + self._length_bytes], "little")
                # Number 0 is the free space, which goes up to the end.
                if number == 0 or at + head + size > len(collection):
                    break
                self._sizes[number] = size
                at += head + _aligned(size)
        return self._sizes


def reader_of(dataset: h5py.Dataset) -> tuple[ReadBytes, int]:
    """Return what reads bytes of the file of a dataset by their address, and the address where it ends."""
    base = int(dataset.file.id.get_create_plist().get_userblock())
    read_at, size = bytes_of(dataset.file)
    end = size - base

    def read(address: int, count: int) -> bytes:
        # Python takes memory for all that is asked for.
        return read_at(base + address, count) if (count := min(count, end - address)) > 0 else b""

    return read, end


def stored_reader(dataset: h5py.Dataset) -> ReadBytes | None:
    """Return what reads the stored bytes of a dataset that is not chunked; None if nothing was ever written."""
    if dataset.external:
        segments = [(os.fsdecode(name), int(offset), int(size)) for name, offset, size in dataset.external]
        return lambda begin, count: _read_segments(segments, begin, count)
    if dataset.id.get_create_plist().get_layout() == h5py.h5d.COMPACT:
        stored = _compact_bytes(dataset)
        return lambda begin, count: stored[begin : begin + count]
    offset = dataset.id.get_offset()
    # libhdf5 adds the user block to an address that is not defined, too.
    if offset is None or not dataset.id.get_storage_size():
        return None
    read_at, _ = bytes_of(dataset.file)
    return lambda begin, count: read_at(int(offset) + begin, count)


def _read_segments(segments: list[tuple[str, int, int]], begin: int, count: int) -> bytes:
    """Return bytes of external storage: its files one after the other."""
    found, before = b"", 0
    for path, offset, size in segments:
        low, high = max(begin, before), min(begin + count, before + size)
        if low < high:
            with open(path, "rb") as file:
                found += os.pread(file.fileno(), high - low, offset + low - before)
        before += size
    return found


def _compact_bytes(dataset: h5py.Dataset) -> bytes:
    """Return the values of a compact dataset, which are in a message of its object header."""
    widths = FileWidths.of(dataset)
    read, _ = reader_of(dataset)
    for kind, body in messages(read, address_of(dataset.id)[1], widths):
        if kind == _DATA_LAYOUT and len(body) > 4:
            if body[0] >= 3 and body[1] == _COMPACT:
                return body[4 : 4 + int.from_bytes(body[2:4], "little")]
            if body[0] < 3 and body[2] == _COMPACT:
                at = 8 + 4 * body[1]
                return body[at + 4 : at + 4 + int.from_bytes(body[at : at + 4], "little")]
    return b""


def _aligned(size: int) -> int:
    return -(-size // 8) * 8
