"""Encoded images in the batches of Ray, PyTorch and numpy -> the bytes of each."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from ray_h5.codecs.decode_image import FORMATS, HeaderError
from ray_h5.errors import UnsupportedColumnError
from ray_h5.messages import few
from ray_h5.options import is_integer


def is_batch(values: Any) -> bool:
    """Return whether values are those of several rows, not the bytes of one."""
    if isinstance(values, (bytes, bytearray, memoryview, np.void, np.bytes_)):
        return False
    if isinstance(values, np.ndarray):
        return values.ndim > 1 or values.dtype.kind in "OSV"
    if isinstance(values, list):
        return not (values and is_integer(values[0]))
    return getattr(values, "ndim", 0) > 1


def as_rows(values: Any, column: str) -> np.ndarray:
    """Return encoded images as an array of objects, or of uint8 with a last axis of bytes."""
    if isinstance(values, list):
        rows = np.empty(len(values), object)
        for i, value in enumerate(values):
            rows[i] = value
        return _filled_up(rows, column)
    array = np.asarray(values)
    if array.dtype == object:
        return _filled_up(array, column)
    if array.dtype == np.uint8 and array.ndim > 1:
        return array
    if array.dtype.kind in "SV":
        return array
    raise UnsupportedColumnError(
        f"DecodeImage: column {column!r} holds {array.dtype} values of shape {array.shape[1:]}; expected encoded "
        f"images ({FORMATS}), as bytes or uint8"
    )


def _filled_up(rows: np.ndarray, column: str) -> np.ndarray:
    """Return rows of several images each as one array of uint8, filled up with zeros; other rows as they are."""
    several = [np.asarray(row) for row in rows.reshape(-1) if getattr(row, "ndim", 0) > 1]
    if not several:
        return rows
    shapes = {row.shape[:-1] for row in several}
    if len(shapes) > 1 or len(several) < rows.size or any(row.dtype != np.uint8 for row in several):
        raise UnsupportedColumnError(
            f"DecodeImage: column {column!r}: expected rows of uint8 with one number of images each, found rows of "
            f"{few(sorted({f'{np.asarray(row).dtype} {np.shape(row)}' for row in rows.reshape(-1)}))}"
        )
    filled = np.zeros((len(rows), *shapes.pop(), max(row.shape[-1] for row in several)), np.uint8)
    for i, row in enumerate(several):
        filled[i, ..., : row.shape[-1]] = row
    return filled


def numbered(encoded: np.ndarray) -> Iterator[tuple[int, Any]]:
    """Yield the encoded images, and the row of each."""
    flat = encoded.reshape(-1, encoded.shape[-1]) if encoded.dtype == np.uint8 else encoded.reshape(-1)
    a_row = max(1, len(flat) // max(1, len(encoded)))
    for i in range(len(flat)):
        yield i // a_row, flat[i]


def as_bytes(value: Any) -> bytes:
    """Return the bytes of one encoded image.

    Raises
    ------
    HeaderError
        If there are none, or values of another type.
    """
    if value is None:
        raise HeaderError("there is none")
    if isinstance(value, bytes):
        return value
    if isinstance(value, (bytearray, memoryview, list)):
        return bytes(value)
    if isinstance(value, (np.void, np.bytes_)):
        return value.tobytes()
    array = np.asarray(value)
    if array.dtype.kind not in "iu" or array.dtype.itemsize != 1:
        raise HeaderError(f"its values are {array.dtype}, not bytes")
    return array.tobytes()
