"""Memory for the arrays that reads return."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, TypeAlias

import numpy as np

from ray_h5.errors import OutOfMemoryError

_POOLED_BYTES = 1 << 16
_ENDLESS = 1 << 63
_TOO_LARGE = (MemoryError, ValueError)
"""pyarrow's error is a MemoryError too; numpy calls some shapes too big."""

ROW_BYTES = 16
"""What planning takes at least for a row that it lists: two numbers."""

_ALWAYS_BYTES = 64 << 20
"""Planning may take this much for what it lists, of files of any size."""

_TIMES_OF_FILES = 64
"""And this many times the bytes of the files: columns that planning reads often compress well."""


Spec: TypeAlias = "tuple[tuple[int, ...], np.dtype]"
"""Shape and dtype of an array."""


def empty(shape: tuple[int, ...], dtype: np.dtype, where: str = "") -> np.ndarray:
    """Return an uninitialised C-contiguous array; `where` says what it is for, for messages.

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
    except _TOO_LARGE as exc:
        raise _out_of_memory(shape, dtype, where) from exc


def zeros(shape: tuple[int, ...], dtype: np.dtype, where: str = "") -> np.ndarray:
    """Return an array of zeros, with `where` as above. Only pages that are written to take memory."""
    try:
        return np.zeros(shape, dtype)
    except _TOO_LARGE as exc:
        raise _out_of_memory(shape, dtype, where) from exc


def _out_of_memory(shape: tuple[int, ...], dtype: np.dtype, where: str) -> OutOfMemoryError:
    begin, nbytes = f"{where}: " if where else "", math.prod(shape) * dtype.itemsize
    return OutOfMemoryError(
        f"{begin}cannot have the memory for values of {dtype} of shape {shape}: {nbytes} bytes. Read fewer rows at "
        "once; where one row takes that much, its column may be damaged: leave it out with columns=[...]."
    )


def check_claim(what: str, nbytes: int, stored: int) -> None:
    """Raise `OutOfMemoryError` if planning would take far more memory than the files have bytes.

    A file of a few KB can claim any number of rows: those that were never written take nothing. So this is called
    before memory is taken for each row, or for each value, that a file claims.

    Parameters
    ----------
    what : str
        What planning needs, and of which file, for the message.
    nbytes : int
        The memory that it takes, about.
    stored : int
        The bytes of the files that hold the values.
    """
    if nbytes > (most := max(_ALWAYS_BYTES, _TIMES_OF_FILES * stored)):
        raise OutOfMemoryError(
            f"{what}, which take about {nbytes} bytes of memory; expected at most {most}, as there are {stored} bytes "
            "of files. If values were never written, leave their columns or files out; otherwise choose rows after "
            "they are read."
        )


def objects(values: Iterable[object]) -> np.ndarray:
    """Return values as an array of objects with one axis: NumPy alone would also look into them."""
    return np.array([*values, None], object)[:-1]


def as_bytes(array: np.ndarray) -> np.ndarray:
    """Return a flat uint8 view of a C-contiguous array."""
    return array.reshape(-1).view(np.uint8)


def owner_of(array: np.ndarray) -> Any:
    """Return the object that owns the memory of an array; None if the array owns it."""
    owner: Any = array
    while isinstance(owner, np.ndarray):
        owner = owner.base
    return owner
