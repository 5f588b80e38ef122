"""Makes rows of sparse matrices dense: by the compiled loop, and by the same steps in NumPy."""

from __future__ import annotations

import numpy as np

from ray_h5.buffers import empty, zeros
from ray_h5.errors import RowIndexError
from ray_h5.read.native.library import compiled_loop

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
    rows, steps = len(starts), compiled_loop()
    as_in_c = all(array.flags.c_contiguous and array.dtype.isnative for array in (indices, data))
    if not as_in_c or indices.dtype not in _INDICES or data.itemsize not in _ITEMS:
        steps = None
    is_zero = steps is None or rows * width * data.itemsize > _WRITTEN_BYTES
    out = (zeros if is_zero else empty)((rows, width), data.dtype, where)
    starts, stops = np.ascontiguousarray(starts, np.int64), np.ascontiguousarray(stops, np.int64)
    row = 0
    while row < rows:
        if steps is not None:  # up to the first row whose positions do not ascend
            entries = min(len(indices), len(data)), indices.ctypes.data, indices.itemsize == np.dtype(np.int64).itemsize
            values = data.ctypes.data, data.itemsize, width, out.ctypes.data, is_zero
            row = int(steps.library.ray_h5_dense(row, rows, starts.ctypes.data, stops.ctypes.data, *entries, *values))
        if row < rows:
            part = slice(int(starts[row]), int(stops[row]))
            if steps is not None or not _scatter(out[row], indices[part], data[part]):
                _add(out[row], indices[part], data[part])
            row += 1
    return out


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
