"""Checks values of varying length before libhdf5 reads them: each claims a length that may be false.

A stored value is a *reference*: its length (u32), the address of a collection of the global heap, and the number of
an object in that collection (u32). libhdf5 (2.0) takes memory for the length, and only then compares it with the
object.
"""

from __future__ import annotations

import math
import os
import struct
from dataclasses import dataclass

import h5py
import numpy as np

from ray_h5.errors import CorruptFileError
from ray_h5.hdf5.checks.header import FileWidths, messages
from ray_h5.hdf5.files.file_bytes import ReadBytes, address_of, bytes_of, filename_of, gather, reader_of

HARMLESS_BYTES = 1 << 20
"""libhdf5 itself refuses smaller claims that are false; the memory that it takes until then is no more than this."""

_USUAL_BYTES = 4096
"""Bytes of most collections; libhdf5 reads as much at once."""

_LENGTHS = {2: "H", 4: "I", 8: "Q", 16: "Q8x", 32: "Q24x"}
_DATA_LAYOUT = 8
_COMPACT = 0


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
        """Return the layout of a dataset.

        Raises
        ------
        CorruptFileError
            If its type is one of varying length that HDF5 has not: libhdf5 (2.0) would end the process, or take any
            amount of memory.
        """
        width = FileWidths.of(dataset).address
        if not _is_known(dataset.id.get_type()):
            raise CorruptFileError(
                f"{filename_of(dataset.file)}: the type of {dataset.name!r} is damaged: it is of varying length, and "
                "neither text of bytes nor an array. Restore the file from a copy."
            )
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


def _is_known(type_id: h5py.h5t.TypeID) -> bool:
    """Return whether each type of varying length in a type is an array; libhdf5 says what is text."""
    kind = type_id.get_class()
    if kind == h5py.h5t.STRING:
        # libhdf5 takes memory for characters of the size that the type claims.
        return not type_id.is_variable_str() or character_bytes(type_id.encode()[2:]) == 1
    if kind == h5py.h5t.COMPOUND:
        return all(_is_known(type_id.get_member_type(i)) for i in range(type_id.get_nmembers()))
    if kind not in {h5py.h5t.VLEN, h5py.h5t.ARRAY}:
        return True
    # Two bytes of a version, then the type as it is in a file: its class, and what kind of varying length it has.
    return (kind == h5py.h5t.ARRAY or type_id.encode()[3] & 0xF == 0) and _is_known(type_id.get_super())


def character_bytes(stored: bytes) -> int:
    """Return the size of the characters of a text of varying length, whose type is stored so."""
    # Class and version, bits and size of the type; the same of the type of a character.
    return int.from_bytes(stored[12:16], "little")


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


class _DamagedHeapError(Exception):
    """A collection that libhdf5 must not get."""


class Heap:
    """The global heap of a file: collections of objects, one after the other.

    libhdf5 (2.0) believes the sizes in a collection: it walks on for ever from an object of no bytes. So each
    collection is walked through before libhdf5 gets to it.

    Parameters
    ----------
    read : callable
        Reads bytes at an address: an offset after the user block.
    file_bytes : int
        Where the file ends, as an address.
    widths : FileWidths
        The sizes of addresses and lengths in this file.
    whole : set of int, optional
        The addresses of collections that were walked through; new ones are added.
    """

    def __init__(self, read: ReadBytes, file_bytes: int, widths: FileWidths, whole: set[int] | None = None) -> None:
        self._read = read
        self._file_bytes = file_bytes
        self._object = struct.Struct(f"<H6x{_LENGTHS[widths.length]}")
        self._head_bytes, self._object_bytes = _aligned(8 + widths.length), _aligned(8 + widths.length)
        self._whole = set[int]() if whole is None else whole

    @classmethod
    def of(cls, dataset: h5py.Dataset, whole: set[int] | None = None) -> Heap:
        read, end = reader_of(dataset)
        return cls(read, end, FileWidths.of(dataset), whole)

    def is_harmless(self, length: int, address: int) -> bool:
        """Return whether a text of that length is none of the `wrong_values`, as far as can be said without a look.

        Its collection was walked through before, and is whole. Most texts of many objects are in a few collections.
        """
        return address == 0 or (length <= HARMLESS_BYTES and address in self._whole)

    def wrong_values(self, references: np.ndarray, unit_bytes: np.ndarray, *, exactly: bool) -> list[WrongValue]:
        """Return the values whose collection is damaged, or that claim much and more than their object has.

        Parameters
        ----------
        references : numpy.ndarray
            As `ReferenceLayout.references` returns them.
        unit_bytes : numpy.ndarray
            `ReferenceLayout.unit_bytes`; it repeats along `references`.
        exactly : bool
            Whether to compare small ones with the size of the object too.
        """
        if not len(references):
            return []
        lengths, addresses = references["length"], references["address"]
        claims = lengths.astype(np.int64) * np.tile(unit_bytes, len(lengths) // len(unit_bytes))
        # Address 0 is a value of no bytes: libhdf5 looks at neither its length nor a collection.
        there = addresses != 0
        new = [address for address in np.unique(addresses[there]).tolist() if address not in self._whole]
        # Of a remote file, all collections are missed together.
        damaged = {address: reason for address, reason in zip(new, gather(self._damage, new), strict=True) if reason}
        self._whole.update(address for address in new if address not in damaged)
        suspects = there & (claims > (0 if exactly else HARMLESS_BYTES))
        if damaged:
            suspects |= there & np.isin(addresses, np.array([*damaged], addresses.dtype))
        wrong = []
        sizes, walked = dict[int, int](), -1
        at_all = np.flatnonzero(suspects)
        for at in at_all[np.argsort(addresses[at_all], kind="stable")].tolist():
            claimed, address, number = int(claims[at]), int(addresses[at]), int(references["number"][at])
            if address in damaged:
                wrong.append(WrongValue(at, damaged[address]))
                continue
            if address != walked:
                sizes, walked = self._sizes(address), address
            found = sizes.get(number)
            if found != claimed:
                stored = f"{found} bytes" if found is not None else "nothing there"
                place = f"object {number} of the heap at byte {address}"
                wrong.append(WrongValue(at, f"it claims {claimed} bytes in {place}, found {stored}"))
        return sorted(wrong, key=lambda value: value.position)

    def _damage(self, address: int) -> str:
        """Return what is wrong with the collection at an address; nothing if libhdf5 can walk through it."""
        try:
            self._sizes(address)
        except _DamagedHeapError as exc:
            return f"the heap at byte {address} is damaged: {exc}"
        return ""

    def _sizes(self, address: int) -> dict[int, int]:
        """Return the sizes of the objects of a collection, by number, as libhdf5 finds them."""
        part = self._read(address, _USUAL_BYTES)
        if part[:5] != b"GCOL\1" or len(part) < self._head_bytes:
            raise _DamagedHeapError("expected a collection of values there")
        unpack, head = self._object.unpack_from, self._object_bytes
        (size,) = unpack(part.ljust(head, b"\0"))[1:]
        if address + size > self._file_bytes:
            raise _DamagedHeapError(f"its {size} bytes go past the end of the file at {self._file_bytes}")
        found: dict[int, int] = {}
        begin, stop, at, last = 0, len(part) - head, self._head_bytes, size - head
        while at <= last:  # what is too short for the head of an object is free
            if at > begin + stop:
                begin, part = at, self._read(address + at, min(_USUAL_BYTES, size - at))
                stop = len(part) - head
                if stop < 0:
                    raise _DamagedHeapError("the file is cut short")
            number, nbytes = unpack(part, at - begin)
            found[number] = nbytes
            # Number 0 is free space, whose size includes its head.
            end = at + nbytes if number == 0 else at + head + nbytes
            if end > size or end == at:
                raise _DamagedHeapError(f"object {number} has {nbytes} bytes at {at} of {size}")
            at = end if number == 0 else (end + 7) & ~7
        return found


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
