"""Items as they lie in a file -> values: text and arrays of varying length, and types that numpy lacks."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial

import h5py
import numpy as np

from ray_h5.codecs.basic_codecs import DecodeError
from ray_h5.errors import CorruptChunkError
from ray_h5.hdf5.files.metadata_replay import HeldBytes
from ray_h5.hdf5.format.heap import DamagedHeapError, Heap
from ray_h5.hdf5.format.value_types import dtype_of, item_bytes, split_array
from ray_h5.manifest.layout import ColumnLayout
from ray_h5.manifest.row_requests import Request
from ray_h5.manifest.value_type import ValueType
from ray_h5.storage.byte_source import ByteSource

_NEVER_WRITTEN = 0xFF
"""All bytes of an item that was never written, if its fill value is of varying length: it is no reference."""

ReadAt = Callable[[int, int], bytes]
"""Returns bytes of a file, given their offset and number."""

Decode = Callable[[np.ndarray, Heap], np.ndarray]
"""Returns the values in an array of uint8 of shape (items, bytes of an item)."""


@dataclass(frozen=True, slots=True, eq=False)
class StoredItems:
    """The items of a column as they are stored, and what makes values of them.

    Attributes
    ----------
    layout : ColumnLayout
        The column with opaque items: their bytes are its values.
    shape : tuple of int
        The axes that an item adds to a row.
    byte_source : ByteSource
        The file, which has the values of varying length in other places than the items.
    held : HeldBytes, optional
        What is in memory of a file in a store.
    """

    layout: ColumnLayout
    shape: tuple[int, ...]
    byte_source: ByteSource
    held: HeldBytes | None
    _key: object  # of the heap
    _refers: bool  # whether items have references to the heap
    _length_bytes: int
    _decode: Decode

    @classmethod
    def of(cls, layout: ColumnLayout, byte_source: ByteSource, held: HeldBytes | None, key: object) -> StoredItems:
        """Return those of a column that has a `file_type`; `key` is that of `Heap`."""
        type_id, dtype, decode, refers = _described(layout.file_type)
        _, shape = split_array(dtype)
        item = np.dtype((np.void, layout.item_bytes))
        fill = np.zeros((), item)
        # Rows that were never written are filled before their values are made, so with bytes of the file.
        if refers and layout.fill is not None:
            fill = np.frombuffer(bytes([_NEVER_WRITTEN]) * layout.item_bytes, item)[0]
        elif layout.fill is not None and layout.fill.tobytes().strip(b"\0"):
            fill = np.frombuffer(_as_stored(layout.fill, type_id), item)[0]
        axes = layout.shape[: len(layout.shape) - len(shape)]
        stored = layout.with_shape(axes).with_type(
            ValueType("binary", item, axes[1:]), fill=np.asarray(fill), file_type=b"", direct=True
        )
        return cls(stored, shape, byte_source, held, key, refers, layout.file_type[0], decode)

    def values(
        self, items: np.ndarray, read_at: ReadAt | None, part: Request, where_of: Callable[[int], str]
    ) -> np.ndarray:
        """Return the values of the items of a part of a read; `where_of` names a row in errors."""
        read = read_at or (lambda offset, count: bytes(self.byte_source.get(offset, count)))
        base = self.layout.user_block
        end = self.byte_source.size - base

        def at_address(address: int, count: int) -> bytes:
            # Memory is taken for all that is asked for.
            return read(base + address, count) if (count := min(count, end - address)) > 0 else b""

        heap = Heap(at_address, end, self._length_bytes, self._key, asks_for_all=self.held is not None)
        # All rows at once; only if that fails, row by row, to name the one that is damaged.
        try:
            return self._values(items.reshape(-1), heap)
        except (DamagedHeapError, DecodeError):
            for row, item in zip(part.listed().rows.tolist(), items, strict=True):
                try:
                    self._values(item.reshape(-1), heap)
                except (DamagedHeapError, DecodeError) as exc:
                    raise CorruptChunkError(
                        f"{where_of(row)}: the value cannot be read: {exc}. Restore the file from a copy."
                    ) from None
            raise

    def _values(self, items: np.ndarray, heap: Heap) -> np.ndarray:
        """Return the values of items, an array of shape (n,); `DamagedHeapError` if one is not in the heap."""
        stored = np.ascontiguousarray(items).view(np.uint8).reshape(len(items), -1)
        if self._refers and (stored == _NEVER_WRITTEN).all(axis=1).any():
            raise DamagedHeapError("it was never written, and its fill value is of varying length, which is not read")
        return self._decode(stored, heap)


@lru_cache(maxsize=256)
def _described(encoded: bytes) -> tuple[h5py.h5t.TypeID, np.dtype, Decode, bool]:
    type_id, dtype = h5py.h5t.decode(encoded[2:]), dtype_of(encoded[2:])
    return type_id, dtype, _decoder(type_id, dtype, encoded[1]), _refers(type_id)


def _refers(type_id: h5py.h5t.TypeID) -> bool:
    kind = type_id.get_class()
    if kind == h5py.h5t.COMPOUND:
        return any(_refers(type_id.get_member_type(i)) for i in range(type_id.get_nmembers()))
    if kind == h5py.h5t.ARRAY:
        return _refers(type_id.get_super())
    return kind == h5py.h5t.VLEN or (kind == h5py.h5t.STRING and bool(type_id.is_variable_str()))


def _decoder(type_id: h5py.h5t.TypeID, dtype: np.dtype, width: int) -> Decode:
    """Return what decodes items of a type; `dtype` is that of h5py for it."""
    kind = type_id.get_class()
    if kind == h5py.h5t.ARRAY:
        element = type_id.get_super()
        shape = tuple(type_id.get_array_dims())
        inner = dtype.subdtype[0] if dtype.subdtype is not None else dtype
        inner = inner if dtype.shape == shape else np.dtype((inner, dtype.shape[len(shape) :]))
        return partial(_array, _decoder(element, inner, width), shape)
    if kind == h5py.h5t.COMPOUND and dtype.names is not None:
        return _compound(type_id, dtype, width)
    if kind == h5py.h5t.STRING and type_id.is_variable_str():
        return _texts
    if kind == h5py.h5t.VLEN:
        # Elements in the heap are as the file stores them, as those of an array of fixed length are.
        element_type = type_id.get_super()
        element = np.dtype(h5py.check_vlen_dtype(dtype))
        return partial(_lists, _decoder(element_type, element, width), int(element_type.get_size()), element)
    # h5py asks libhdf5 for this type when it reads: what needs no conversion has the same bytes.
    to = h5py.h5t.py_create(dtype)
    stored = type_id.get_super() if kind == h5py.h5t.ENUM else type_id
    if type_id.equal(to) or stored.equal(to):
        return partial(_plain, np.dtype(dtype.str))
    return partial(converted, type_id, to, np.dtype(dtype.str))


def _referred(items: np.ndarray, heap: Heap, unit_bytes: int) -> Sequence[bytes]:
    """Return what items refer to, of which a unit of their length has some bytes."""
    reference: np.dtype = np.dtype([("length", "<u4"), ("address", f"<u{items.shape[1] - 8}"), ("number", "<u4")])
    return heap.values(np.ascontiguousarray(items).view(reference).reshape(-1).tolist(), unit_bytes)


def _plain(dtype: np.dtype, items: np.ndarray, heap: Heap) -> np.ndarray:  # noqa: ARG001  as all decoders
    return np.ascontiguousarray(items).view(dtype).reshape(len(items))


def converted(
    type_id: h5py.h5t.TypeID,
    to: h5py.h5t.TypeID,
    dtype: np.dtype,
    items: np.ndarray,
    heap: Heap | None = None,  # noqa: ARG001  as all decoders
) -> np.ndarray:
    """Return values of a type of libhdf5 as values of another one; `items` has the bytes of one in each row."""
    # libhdf5 converts in place, so the buffer has room for the larger of both.
    size = max(items.shape[1], dtype.itemsize)
    buffer = np.zeros(len(items) * size, np.uint8)
    buffer[: items.size] = items.reshape(-1)
    try:
        if len(items):
            h5py.h5t.convert(type_id, to, len(items), buffer)
    except TypeError as exc:
        raise DecodeError(f"libhdf5 does not convert it: {exc}") from exc
    return buffer[: len(items) * dtype.itemsize].view(dtype)


def _array(decode: Decode, shape: tuple[int, ...], items: np.ndarray, heap: Heap) -> np.ndarray:
    count = math.prod(shape)
    decoded = decode(np.ascontiguousarray(items).reshape(len(items) * count, -1), heap)
    return decoded.reshape(len(items), *shape, *decoded.shape[1:])


def _texts(items: np.ndarray, heap: Heap) -> np.ndarray:
    texts = np.empty(len(items), object)
    # h5py takes text up to the first NUL.
    texts[:] = [value.partition(b"\0")[0] if b"\0" in value else value for value in _referred(items, heap, 1)]
    return texts


def _lists(decode: Decode, unit_bytes: int, element: np.dtype, items: np.ndarray, heap: Heap) -> np.ndarray:
    lists = np.empty(len(items), object)
    for at, value in enumerate(_referred(items, heap, unit_bytes)):
        stored = np.frombuffer(value, np.uint8).reshape(-1, unit_bytes)
        lists[at] = np.array(decode(stored, heap), element)
    return lists


def _compound(type_id: h5py.h5t.TypeID, dtype: np.dtype, width: int) -> Decode:
    assert dtype.names is not None
    fields: list[tuple[str, int, int, Decode]] = []
    moved = 0
    # libhdf5 gives offsets in memory, where a reference is a pointer: fields after it move.
    members = [(type_id.get_member_offset(i), i) for i in range(type_id.get_nmembers())]
    for offset, i in sorted(members):
        member, name = type_id.get_member_type(i), type_id.get_member_name(i).decode("utf-8", "surrogateescape")
        nbytes = item_bytes(member, width)
        if name in dtype.names:
            fields.append((name, offset + moved, nbytes, _decoder(member, dtype[name], width)))
        moved += nbytes - int(member.get_size())
    return partial(_fields, fields, dtype)


def _fields(fields: list[tuple[str, int, int, Decode]], dtype: np.dtype, items: np.ndarray, heap: Heap) -> np.ndarray:
    values = np.zeros(len(items), dtype)
    for name, begin, nbytes, decode in fields:
        values[name] = decode(np.ascontiguousarray(items[:, begin : begin + nbytes]), heap)
    return values


def _as_stored(fill: np.ndarray, type_id: h5py.h5t.TypeID) -> bytes:
    """Return the bytes of a fill value in the file; it is of no varying length."""
    source = h5py.h5t.py_create(fill.dtype)
    size = max(fill.dtype.itemsize, int(type_id.get_size()))
    buffer, background = np.zeros(size, np.uint8), np.zeros(size, np.uint8)
    buffer[: fill.dtype.itemsize] = np.frombuffer(fill.tobytes(), np.uint8)
    h5py.h5t.convert(source, type_id, 1, buffer, background)
    return buffer[: int(type_id.get_size())].tobytes()
