"""Encoded images in the batches of Ray, PyTorch and numpy -> the bytes of each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ray_h5.buffers import objects
from ray_h5.errors import UnsupportedColumnError
from ray_h5.messages import few
from ray_h5.options import is_integer
from ray_h5.transforms.decode_image import FORMATS, HeaderError


def is_batch(values: Any) -> bool:
    """Return whether values are those of several rows, not the bytes of one."""
    if isinstance(values, (bytes, bytearray, memoryview, np.void, np.bytes_)):
        return False
    if isinstance(values, np.ndarray):
        return values.ndim > 1 or values.dtype.kind in "OSV"
    if isinstance(values, list):
        return not (values and is_integer(values[0]))
    return getattr(values, "ndim", 0) > 1


def rows_of_several(values: Any) -> list[Any] | None:
    """Return rows that have several numbers of images, such as the samples of spans of time; None for others."""
    array = objects(values) if isinstance(values, list) else np.asarray(values)
    if array.dtype != object or array.ndim > 1:
        return None
    rows = array.tolist()
    lengths = {len(row) if is_batch(row) else None for row in rows}
    return rows if len(lengths) > 1 and None not in lengths else None


def encoded(values: Any, column: str) -> tuple[tuple[int, ...], Sequence[Any] | np.ndarray]:
    """Return the encoded images of a batch one after the other, and how many there are along each axis of it."""
    array = objects(values) if isinstance(values, list) else np.asarray(values)
    if array.dtype == np.uint8 and array.ndim > 1:
        return array.shape[:-1], array.reshape(int(np.prod(array.shape[:-1])), array.shape[-1])
    if array.dtype.kind not in "OSV":
        raise UnsupportedColumnError(
            f"DecodeImage: column {column!r} holds {array.dtype} values of shape {array.shape[1:]}; expected encoded "
            f"images ({FORMATS}), as bytes or uint8"
        )
    rows = array.reshape(-1)
    nested = [encoded(row, column) if is_batch(row) else ((), [row]) for row in rows]  # the steps of windows
    shapes = {shape for shape, _ in nested}
    if shapes <= {()}:
        return array.shape, rows
    if len(shapes) > 1:
        shown = {f"{row.dtype} {row.shape}" if isinstance(row, np.ndarray) else type(row).__name__ for row in rows}
        raise UnsupportedColumnError(
            f"DecodeImage: column {column!r}: expected rows of uint8 with one number of images each, found rows of "
            f"{few(sorted(shown))}"
        )
    return (*array.shape, *shapes.pop()), [image for _, images in nested for image in images]


def as_bytes(value: Any) -> bytes:
    """Return the bytes of one encoded image; raise a `HeaderError` for values of another type."""
    if value is None:
        raise HeaderError("there is none")
    if isinstance(value, (bytes, bytearray, memoryview, list)):
        return bytes(value)
    if isinstance(value, (np.void, np.bytes_)):
        return value.tobytes()
    array = np.asarray(value)
    if array.dtype.kind not in "iu" or array.dtype.itemsize != 1:
        raise HeaderError(f"its values are {array.dtype}, not bytes")
    return array.tobytes()
