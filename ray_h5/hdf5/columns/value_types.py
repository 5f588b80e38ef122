"""The types of values. Many datasets and files share one, which is described once in a process."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

import h5py
import numpy as np

from ray_h5.errors import CorruptFileError, UnsupportedColumnError
from ray_h5.hdf5.columns.plain_dtypes import (
    are_as_in_memory,
    in_order,
    kind_of,
    numpy_lacks,
    odd_type_of,
    plain_dtype,
    split_array,
    without_lost,
)
from ray_h5.hdf5.format import FormatError, superblock
from ray_h5.lru import LRU
from ray_h5.manifest.layout import Kind

_MEMBER_BYTES = 1 << 10
"""About how much memory the description of a type takes, and of each member of an enum."""


HEAD_BYTES = 128
"""Of a file, with its superblock."""


@dataclass(frozen=True, slots=True, eq=False)
class ValueType:
    """The type of a value, as `ColumnLayout` has it.

    Attributes
    ----------
    dtype : numpy.dtype
        The dtype that h5py gives it.
    plain : numpy.dtype
        dtype of an element, without what h5py adds.
    array_shape : tuple of int
        The axes that an array type adds to a row.
    zero : numpy.ndarray
        0-d array of the plain dtype: a value of zero bytes.
    in_file : bytes
        The type in the file, as `ColumnLayout.file_type` has it.
    kind, element, enum, odd_type, item_bytes, lost_fields
        As in `ColumnLayout`.
    """

    dtype: np.dtype
    plain: np.dtype
    array_shape: tuple[int, ...]
    zero: np.ndarray
    kind: Kind
    element: np.dtype | None
    enum: tuple[tuple[str, int], ...]
    odd_type: str
    item_bytes: int
    in_file: bytes
    lost_fields: tuple[str, ...] = ()


@dataclass(slots=True)
class Shared:
    """What the datasets of one file share.

    Attributes
    ----------
    user_block : int
        Size of the user block, in bytes.
    address_bytes, length_bytes : int
        Sizes of an address and of a length in the file, in bytes.
    """

    user_block: int
    address_bytes: int
    length_bytes: int

    @classmethod
    def of(cls, file: h5py.h5f.FileID) -> Shared:
        """Return what the datasets of a file share."""
        properties = file.get_create_plist()  # takes ten times as long as to read the superblock
        return cls(int(properties.get_userblock()), *map(int, properties.get_sizes()))

    @classmethod
    def of_head(cls, head: bytes) -> Shared | None:
        """Return the same for the first bytes of a file; None if they do not say it, as those of a user block."""
        try:
            return cls(0, *superblock(head).widths)
        except FormatError:
            return None

    def value_type(self, type_id: h5py.h5t.TypeID, where: str) -> ValueType:
        """Describe a type of the file.

        Raises
        ------
        UnsupportedColumnError
            If its values cannot be read as rows; `where` names the column.
        """
        key = type_id.encode(), self.address_bytes, self.length_bytes
        stored_type = _types.get(key)
        if stored_type is None:
            stored_type = self._described(type_id, where)
            _types.put(key, stored_type)
        return stored_type

    def _described(self, type_id: h5py.h5t.TypeID, where: str) -> ValueType:
        if not _is_known(type_id):
            # libhdf5 (2.0) would end the process, or take any amount of memory.
            raise CorruptFileError(
                f"{where} has a type that is damaged: it is of varying length, and neither text of bytes nor an array. "
                "Restore the file from a copy."
            )
        type_id = in_order(type_id)
        dtype, lost_fields = _dtype(type_id, where)
        element, array_shape = split_array(dtype)
        kind = kind_of(element, where)
        return ValueType(
            dtype,
            plain_dtype(element),
            tuple(int(n) for n in array_shape),
            np.zeros((), plain_dtype(dtype)),
            kind,
            np.dtype(h5py.check_vlen_dtype(element)) if kind == "list" else None,
            tuple(_enum(element)),
            "" if dtype.hasobject else self._odd_type(type_id, dtype, lost_fields),
            item_bytes(type_id, self.address_bytes),
            bytes([self.length_bytes, self.address_bytes]) + bytes(type_id.encode()),
            lost_fields,
        )

    def _odd_type(self, type_id: h5py.h5t.TypeID, dtype: np.dtype, lost_fields: tuple[str, ...]) -> str:
        if not lost_fields:
            return odd_type_of(type_id, dtype)
        # Values of varying length may take more bytes in memory than in the file.
        is_wide = item_bytes(type_id, self.address_bytes) == type_id.get_size()
        return "" if is_wide and are_as_in_memory(type_id, dtype) else "compound values that libhdf5 converts"


_types: LRU[ValueType] = LRU(1024, 64 << 20, lambda stored_type: _MEMBER_BYTES * (1 + len(stored_type.enum)))


@lru_cache(maxsize=256)
def dtype_of(encoded: bytes) -> np.dtype:
    """Return h5py's dtype of a type that libhdf5 encoded, without the fields that no row has."""
    return _dtype(in_order(h5py.h5t.decode(encoded)), "")[0]


def _dtype(type_id: h5py.h5t.TypeID, where: str) -> tuple[np.dtype, tuple[str, ...]]:
    """Return the dtype of a type, and the fields that it leaves out: see `without_lost`."""
    try:
        dtype = type_id.dtype
        kind_of(split_array(dtype)[0], where)
    except (TypeError, ValueError, UnsupportedColumnError) as exc:
        if (known := without_lost(type_id)) is not None:
            return known
        if isinstance(exc, UnsupportedColumnError):
            raise
        raise UnsupportedColumnError(f"{where}{numpy_lacks(type_id, exc)}") from exc
    return dtype, ()


def without_rows(message: str, *, is_single: bool = False) -> UnsupportedColumnError:
    """Return the error of a dataset that has no rows, but perhaps a single value."""
    error = UnsupportedColumnError(message)
    error.has_rows = None if is_single else False
    return error


def item_bytes(type_id: h5py.h5t.TypeID, address_bytes: int) -> int:
    """Return the size of a value in the file. libhdf5's ``get_size`` is the size in memory."""
    kind = type_id.get_class()
    if kind == h5py.h5t.VLEN or (kind == h5py.h5t.STRING and type_id.is_variable_str()):
        # A value of varying length is stored as its length, and its address and index in the global heap.
        return 4 + int(address_bytes) + 4
    if kind == h5py.h5t.ARRAY:
        return math.prod(type_id.get_array_dims()) * item_bytes(type_id.get_super(), address_bytes)
    if kind == h5py.h5t.COMPOUND:
        fields = [type_id.get_member_type(i) for i in range(type_id.get_nmembers())]
        return int(type_id.get_size()) + sum(item_bytes(field, address_bytes) - field.get_size() for field in fields)
    return int(type_id.get_size())


def _enum(dtype: np.dtype, prefix: str = "") -> Iterator[tuple[str, int]]:
    dtype = np.dtype(h5py.check_vlen_dtype(dtype) or split_array(dtype)[0])
    for name, value in (h5py.check_enum_dtype(dtype) or {}).items():
        yield prefix + name, int(value)
    for field_name in dtype.names or ():
        yield from _enum(dtype[field_name], f"{prefix}{field_name}.")


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
