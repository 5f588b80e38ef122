"""Makes rows of sparse matrices dense: by the compiled loop, and by the same steps in NumPy."""

from __future__ import annotations

import numpy as np

from ray_h5.buffers import empty, zeros
from ray_h5.errors import RowIndexError
from ray_h5.read.native.library import Loop, compiled_loop

_WRITTEN_BYTES = 64 << 20
"""Larger arrays are left to the system to fill with zeros: a file can claim rows of any length."""

_INDICES = frozenset({np.dtype(np.int32), np.dtype(np.int64)})
_ITEMS = frozenset({1, 2, 4, 8})
"""The positions that the loop takes, and the sizes of the values that it copies."""


def dense_rows(
    starts: np.ndarray, stops: np.ndarray, indices: np.ndarray, data: np.ndarray, width: int, where: str = ""
) -> np.ndarray:
    """Return rows as an array of shape ``(rows, width)``; the values of a position that repeats are added.

    Parameters
    ----------
    starts, stops : numpy.ndarray
        Integers: row i has the entries from ``starts[i]`` to ``stops[i]``.
    indices, data : numpy.ndarray
        The position in its row, int32 or int64, and the value, of each entry.
    width : int
        Length of a row.
    where : str
        What the array is for, for messages.

    Raises
    ------
    RowIndexError
        If a position is outside its row.
    OutOfMemoryError
        If there is no memory for the array.
    """
    rows, loop = len(starts), compiled_loop()
    steps = loop if loop is not None and _fits(indices, data) else None
    is_zero = steps is None or rows * width * data.itemsize > _WRITTEN_BYTES
    out = (zeros if is_zero else empty)((rows, width), data.dtype, where)
    row = 0
    while (row := _scattered(steps, row, starts, stops, indices, data, out, is_zero)) < rows:
        part = slice(int(starts[row]), int(stops[row]))
        _add(out[row], indices[part], data[part])
        row += 1
    return out


def _fits(indices: np.ndarray, data: np.ndarray) -> bool:
    arrays = indices, data
    is_known = indices.dtype in _INDICES and data.itemsize in _ITEMS
    return is_known and all(array.flags.c_contiguous and array.dtype.isnative for array in arrays)


def _scattered(
    loop: Loop | None,
    row: int,
    starts: np.ndarray,
    stops: np.ndarray,
    indices: np.ndarray,
    data: np.ndarray,
    out: np.ndarray,
    is_zero: bool,
) -> int:
    """Fill rows from `row` on, as ``ray_h5_dense`` in loop.c; return the first one whose positions do not ascend."""
    rows, width = out.shape
    if loop is None:
        while row < rows and _scatter(out[row], indices[starts[row] : stops[row]], data[starts[row] : stops[row]]):
            row += 1
        return row
    bounds = np.ascontiguousarray(starts, np.int64), np.ascontiguousarray(stops, np.int64)
    return int(
        loop.library.ray_h5_dense(
            row,
            rows,
            *(bound.ctypes.data for bound in bounds),
            min(len(indices), len(data)),
            indices.ctypes.data,
            indices.itemsize == np.dtype(np.int64).itemsize,
            data.ctypes.data,
            data.itemsize,
            width,
            out.ctypes.data,
            is_zero,
        )
    )


def _scatter(out: np.ndarray, indices: np.ndarray, data: np.ndarray) -> bool:
    """Return whether positions ascend inside a row; it then has their values."""
    if len(indices) and not (indices[0] >= 0 and indices[-1] < len(out) and (indices[1:] > indices[:-1]).all()):
        return False
    out[indices] = data
    return True


def _add(out: np.ndarray, indices: np.ndarray, data: np.ndarray) -> None:
    """Fill a row whose positions do not ascend, or repeat."""
    outside = (indices < 0) | (indices >= len(out))
    if outside.any():
        raise RowIndexError(
            f"sparse rows: expected positions from 0 to {len(out) - 1}, found {indices[outside.argmax()]}"
        )
    out[:] = 0
    np.add.at(out, indices, data)
