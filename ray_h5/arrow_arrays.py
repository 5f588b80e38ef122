"""numpy arrays -> Arrow arrays, for columns with one value a row. Nothing is copied where the layouts agree."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pyarrow as pa


def real_dtype(dtype: np.dtype) -> np.dtype:
    """Return the dtype of one part of a complex number, and any other dtype as it is."""
    return np.dtype(f"f{dtype.itemsize // 2}") if dtype.kind == "c" else dtype


def as_real(array: np.ndarray) -> np.ndarray:
    """Return `array` with complex numbers as a last axis of (real, imaginary), without a copy."""
    return array.view(real_dtype(array.dtype)).reshape(*array.shape, 2) if array.dtype.kind == "c" else array


def arrow_type(dtype: np.dtype) -> pa.DataType:
    """Return the Arrow type of a numpy type. Objects are strings; an axis is a list of fixed size."""
    if dtype.subdtype is not None:
        element, shape = dtype.subdtype
        type_ = arrow_type(element)
        for length in reversed(shape):
            type_ = pa.list_(type_, length)
        return type_
    if dtype.names is not None:
        return pa.struct([(name, arrow_type(dtype[name])) for name in dtype.names])
    if dtype.kind in "OS":
        return pa.string()
    if dtype.kind == "V":
        return pa.binary(dtype.itemsize)
    if dtype.kind == "c":
        return pa.list_(pa.from_numpy_dtype(real_dtype(dtype)), 2)
    return pa.from_numpy_dtype(dtype)


def large_type(type_: pa.DataType) -> pa.DataType:
    """Return the type of the same values with 64-bit offsets, for columns with more than 2 GiB of strings."""
    if pa.types.is_struct(type_):
        return pa.struct([field.with_type(large_type(field.type)) for field in type_])
    if pa.types.is_fixed_size_list(type_):
        return pa.list_(large_type(type_.value_type), type_.list_size)
    return {pa.string(): pa.large_string(), pa.binary(): pa.large_binary()}.get(type_, type_)


def to_arrow(array: np.ndarray, type_: pa.DataType) -> pa.Array:
    """Return `array`, whose first axis is the rows, as an Arrow array of type `type_`.

    Raises
    ------
    pyarrow.ArrowInvalid
        If a string is not UTF-8.
    """
    if pa.types.is_struct(type_):
        parts = [to_arrow(array[field.name], field.type) for field in type_]
        return pa.StructArray.from_arrays(parts, fields=list(type_))
    if pa.types.is_fixed_size_list(type_):
        whole = as_real(np.ascontiguousarray(array))
        values = to_arrow(whole.reshape(math.prod(whole.shape[:2]), *whole.shape[2:]), type_.value_type)
        # Not `from_arrays`: it divides by the length of a list, and ends the process where that is 0.
        return pa.Array.from_buffers(type_, len(whole), [None], children=[values])
    if pa.types.is_large_list(type_):
        return _lists(array, type_)
    if pa.types.is_fixed_size_binary(type_):
        return pa.Array.from_buffers(type_, len(array), [None, pa.py_buffer(np.ascontiguousarray(array).tobytes())])
    if array.dtype.kind == "V":
        return to_arrow(array, pa.binary(array.dtype.itemsize)).cast(type_)
    if pa.types.is_string(type_) or pa.types.is_large_string(type_):
        if array.dtype.kind == "S":
            return _fixed_texts(array).cast(type_)
        return pa.array(array, pa.binary() if pa.types.is_string(type_) else pa.large_binary()).cast(type_)
    return pa.array(np.ascontiguousarray(array), type_)


def _fixed_texts(array: np.ndarray) -> pa.LargeBinaryArray:
    """Return texts of a fixed length without the NULs at their ends. Arrow would end them at the first NUL."""
    lengths = np.char.str_len(array)
    size, ends = array.dtype.itemsize, np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
    letters = np.ascontiguousarray(array).view(np.uint8).reshape(len(array), size)
    data = letters[np.arange(size) < lengths[:, None]]
    buffers = [None, pa.py_buffer(ends), pa.py_buffer(data)]
    return pa.Array.from_buffers(pa.large_binary(), len(array), buffers)


def _lists(array: np.ndarray, type_: pa.DataType) -> pa.Array:
    missing = np.array([value is None for value in array], bool)  # where a group lacks the column
    there = [value for value in array if value is not None]
    # Offsets of 64 bits: a block may hold more than 2**31 values.
    offsets = np.concatenate([[0], np.cumsum([0 if value is None else len(value) for value in array], dtype=np.int64)])
    flat = np.concatenate(there) if there else np.empty(0, object)
    if not len(flat) and not pa.types.is_large_list(type_.value_type):  # an array of no values has any type
        flat = np.empty((0, *_axes(type_.value_type)), _numpy_type(type_.value_type))
    elif flat.dtype != object:
        flat = flat.astype(flat.dtype.newbyteorder("="), copy=False)
    values = to_arrow(flat, type_.value_type)
    mask = pa.array(missing) if missing.any() else None
    return pa.LargeListArray.from_arrays(pa.array(offsets), values, mask=mask)


def _axes(type_: pa.DataType) -> tuple[int, ...]:
    return (type_.list_size, *_axes(type_.value_type)) if pa.types.is_fixed_size_list(type_) else ()


def _numpy_type(type_: pa.DataType) -> np.dtype:
    if pa.types.is_fixed_size_list(type_):
        return _numpy_type(type_.value_type)
    if pa.types.is_struct(type_):
        return np.dtype([(field.name, _numpy_type(field.type), _axes(field.type)) for field in type_])
    return np.dtype(type_.to_pandas_dtype())


def binary_array(values: Sequence[bytes | None]) -> pa.LargeBinaryArray:
    """Return what ``pa.array(values, pa.large_binary())`` does, which imports pandas first: a quarter of a second."""
    ends = np.cumsum([0, *(len(value or b"") for value in values)], dtype=np.int64)
    is_there = np.array([value is not None for value in values], bool)
    valid = None if is_there.all() else pa.py_buffer(np.packbits(is_there, bitorder="little"))
    buffers = [valid, pa.py_buffer(ends), pa.py_buffer(b"".join(value or b"" for value in values))]
    return pa.Array.from_buffers(pa.large_binary(), len(values), buffers)


def numbers_of(array: pa.Array) -> np.ndarray:
    """Return what ``array.to_numpy()`` does for integers and floats, which imports pandas first: a quarter of a second.

    Raises
    ------
    ValueError
        If some are missing, or they are something else.
    """
    if array.null_count or not (pa.types.is_integer(array.type) or pa.types.is_floating(array.type)):
        raise ValueError(
            f"expected numbers, found {len(array)} values of {array.type}, {array.null_count} of them missing"
        )
    dtype = np.dtype(array.type.to_pandas_dtype())
    values = array.buffers()[1]
    if not len(array) or values is None:
        return np.empty(0, dtype)
    return np.frombuffer(values, dtype, len(array), array.offset * dtype.itemsize)
