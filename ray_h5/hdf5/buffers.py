"""Memory for the arrays that reads return."""

from __future__ import annotations

import math

import numpy as np

from ray_h5.errors import OutOfMemoryError

_POOLED_BYTES = 1 << 16
_ENDLESS = 1 << 63


def empty(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """Return an uninitialised C-contiguous array.

    Large arrays come from Arrow's memory pool, which reuses freed memory. numpy maps new pages for each
    array, and the first access to these costs as much as reading a file from the page cache (measured:
    2.5 instead of 5.0 GB/s).
    """
    nbytes = math.prod(shape) * dtype.itemsize
    try:
        if dtype.hasobject or not _POOLED_BYTES <= nbytes < _ENDLESS:
            return np.empty(shape, dtype)
        import pyarrow as pa  # imported here: transforms of a few values do not need it

        return np.frombuffer(pa.allocate_buffer(nbytes), dtype).reshape(shape)
    except (MemoryError, ValueError) as exc:  # pyarrow's error is a MemoryError too; numpy calls some shapes too big
        raise OutOfMemoryError(
            f"no memory for values of {dtype} of shape {shape}: {nbytes} bytes. Read fewer rows at once; "
            "where one row takes that much, its column may be damaged: leave it out with columns=[...]."
        ) from exc


def as_bytes(array: np.ndarray) -> np.ndarray:
    """Return a flat uint8 view of a C-contiguous array."""
    return array.reshape(-1).view(np.uint8)
