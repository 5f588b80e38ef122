"""The global heap of a file, which has the values of varying length: text, and arrays.

A stored value is a *reference*: its length (u32), the address of a collection of the heap, and the number of an object
in that collection (u32). libhdf5 (2.0) takes memory for the length before it compares it with the object, and walks on
for ever from an object of no bytes. Here each size is compared with the file before it is used.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TypeAlias

from ray_h5.hdf5.format.file_bytes import ReadBytes, gather
from ray_h5.hdf5.format.object_headers import FormatError, number
from ray_h5.lru import LRU

_USUAL_BYTES = 4 << 10
"""Bytes of most collections; libhdf5 reads as much at once."""

_WHOLE_BYTES = 64 << 10
"""Larger collections are walked through in parts, and the objects that are wanted are read alone."""

_AT_ONCE = 1 << 10
"""Values whose collections are in memory at the same time."""

_KEPT_BYTES = 32 << 20
_LENGTHS = {2: "H", 4: "I", 8: "Q", 16: "Q8x", 32: "Q24x"}


class DamagedHeapError(FormatError):
    """A value is not in the heap, or not as long as it claims."""


Reference: TypeAlias = tuple[int | None, int, int]
"""The length of a value, None if it is not known; the address of its collection, and its number in that."""


def reference_at(data: bytes, at: int, address_bytes: int) -> Reference:
    """Return the reference that some bytes hold; raise `FormatError` if they are too few."""
    return number(data, at, 4), number(data, at + 4, address_bytes), number(data, at + 4 + address_bytes, 4)


_Collection: TypeAlias = "tuple[bytes, array[int]]"
"""Bytes of a collection, of a large one the first of them; and where each object begins, by its number; 0 for none."""

_collections: LRU[_Collection] = LRU(
    1 << 16, _KEPT_BYTES, lambda collection: len(collection[0]) + collection[1].itemsize * len(collection[1])
)
"""Those that were read last, of all files."""


class Heap:
    """The global heap of a file.

    Parameters
    ----------
    read : callable
        Reads bytes at an address: an offset after the user block.
    end : int
        Where the file ends, as an address.
    length_bytes : int
        Bytes of a length in this file.
    key : object, optional
        What identifies the state of the file: collections stay in memory under it. None if something writes to it.
    asks_for_all : bool
        Whether collections are read by one request each, although most are small: where a request takes long.
    """

    def __init__(
        self, read: ReadBytes, end: int, length_bytes: int, key: object = None, *, asks_for_all: bool = False
    ) -> None:
        self._read, self._end, self._key = read, end, key
        self._first_bytes = _WHOLE_BYTES if asks_for_all else _USUAL_BYTES
        self._object = struct.Struct(f"<H6x{_LENGTHS[length_bytes]}")
        self._head_bytes = -(-(8 + length_bytes) // 8) * 8

    def values(self, references: Sequence[Reference], unit_bytes: int) -> list[bytes]:
        """Return the bytes of values, given a reference to each.

        Raises
        ------
        DamagedHeapError
            If one is not there, or has another size than its length times `unit_bytes`.
        """
        items: list[bytes] = []
        for first in range(0, len(references), _AT_ONCE):
            some = references[first : first + _AT_ONCE]
            addresses = {address for _, address, _ in some if address}
            # Of a remote file, all collections are missed together.
            there = dict(gather(lambda address: (address, self._collection(address)), addresses))
            items += gather(partial(self._value_of, there, unit_bytes), some)
        return items

    def _value_of(self, collections: Mapping[int, _Collection], unit_bytes: int, reference: Reference) -> bytes:
        length, address, number = reference
        if not address:  # a value of no bytes, whatever its length and number say
            return b""
        claimed, (data, begins) = None if length is None else length * unit_bytes, collections[address]
        begin = begins[number] if number < len(begins) else 0
        # The size of an object stands in its head, which is before it.
        nbytes = -1
        if begin:
            head = data if begin <= len(data) else self._read(address + begin - self._head_bytes, self._head_bytes)
            at = begin - self._head_bytes if head is data else 0
            nbytes = self._object.unpack_from(head, at)[1]
            claimed = nbytes if claimed is None else claimed
        if claimed is None or nbytes != claimed:
            stored = f"{nbytes} bytes" if begin else "nothing there"
            raise DamagedHeapError(
                f"it claims {'some' if claimed is None else claimed} bytes in object {number} of the heap at byte "
                f"{address}, found {stored}"
            )
        return data[begin : begin + claimed] if begin + claimed <= len(data) else self._read(address + begin, claimed)

    def _collection(self, address: int) -> _Collection:
        collection = None if self._key is None else _collections.get((self._key, address))
        if collection is None:
            try:
                collection = self._walked(address)
            except DamagedHeapError as exc:
                raise DamagedHeapError(f"the heap at byte {address} is damaged: {exc}") from None
            if self._key is not None:
                _collections.put((self._key, address), collection)
        return collection

    def _walked(self, address: int) -> _Collection:
        """Return a collection, its objects as libhdf5 finds them."""
        data = self._read(address, self._first_bytes)
        head, unpack = self._head_bytes, self._object.unpack_from
        if data[:5] != b"GCOL\1" or len(data) < head:
            raise DamagedHeapError("expected a collection of values there")
        (size,) = unpack(data)[1:]
        if address + size > self._end:
            raise DamagedHeapError(f"its {size} bytes go past the end of the file at {self._end}")
        if len(data) < size <= _WHOLE_BYTES:
            data = self._read(address, size)
        # Of two objects with one number libhdf5 takes the last, so the walk goes to the end.
        begins = array("Q", bytes(8))
        part, first, stop = data, 0, len(data) - head
        at, last = head, size - head
        while at <= last:  # what is too short for the head of an object is free
            if at > first + stop:
                first, part = at, self._read(address + at, min(_USUAL_BYTES, size - at))
                stop = len(part) - head
                if stop < 0:
                    raise DamagedHeapError("the file is cut short")
            number, nbytes = unpack(part, at - first)
            # Number 0 is free space, whose size includes its head.
            end = at + nbytes if number == 0 else at + head + nbytes
            if end > size or end == at:
                raise DamagedHeapError(f"object {number} has {nbytes} bytes at {at} of {size}")
            if number >= len(begins):
                begins.extend([0] * (number + 1 - len(begins)))
            begins[number] = at + head if number else 0
            at = end if number == 0 else (end + 7) & ~7
        return data[:size], begins
