"""Arrays that are pictures, and arrays that are batches of rows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ray_h5.errors import OptionError

Array = np.ndarray[Any, Any]

_LEAST_SIDE = 4
"""Pictures are at least this high and wide."""

_ROW_AXES = 3
"""The most axes of a row that is drawn."""


def is_picture(array: Array) -> bool:
    """Return whether an array is a picture: (height, width, 3), or (3, height, width) of bytes or of floats in 0 .. 1.

    Three channels of a signal come first too, so an array of that shape is one only if its values are.
    """
    if array.ndim != 3 or array.dtype.kind not in "biuf" or array.size == 0:
        return False
    if array.shape[-1] == 3 and min(array.shape[:2]) >= _LEAST_SIDE:
        return True
    return 3 in (array.shape[0], array.shape[-1]) and _has_colours(array)


def picture(array: Array, limits: tuple[float, float] | None = None) -> Array:
    """Return a picture as (height, width, 3): bytes as they are, other values as floats of 0 .. 1.

    Values beyond 0 .. 1 are scaled from `limits`, or from their own range, and NaN is black.
    """
    array = array if array.shape[-1] == 3 else np.moveaxis(array, 0, -1)
    if array.dtype == np.uint8:
        return array
    values = array.astype(np.float64)
    low, high = limits or finite_range([values])
    if low < 0 or high > 1:
        values = (values - low) / ((high - low) or 1.0)
    return np.nan_to_num(values, nan=0.0, posinf=1.0, neginf=0.0).clip(0, 1)


def finite_range(arrays: list[Array]) -> tuple[float, float]:
    """Return the least and the greatest finite value; (0, 1) if there is none."""
    finite = np.concatenate([part[np.isfinite(part)].astype(np.float64) for part in arrays])
    return (float(finite.min()), float(finite.max())) if finite.size else (0.0, 1.0)


def _has_colours(array: Array) -> bool:
    return array.dtype == np.uint8 or bool(array.dtype.kind == "f" and array.min() >= 0 and array.max() <= 1)


def check_one_row(arrays: Mapping[str, Array]) -> None:
    """Raise unless columns can be those of one row.

    Raises
    ------
    OptionError
        If they are a batch: all have the same first axis, and one has what a row does not have: an axis too many, an
        axis of strings or dates, or a single number a row beside arrays of three axes.
    """
    sizes = {len(array) if array.ndim else None for array in arrays.values()}
    ndims = {array.ndim for array in arrays.values()}
    texts = any(array.ndim == 1 and array.dtype.kind in "SUMmO" for array in arrays.values())
    deep = max(ndims) > _ROW_AXES or (max(ndims) == _ROW_AXES and 1 in ndims)
    if len(sizes) == 1 and None not in sizes and (deep or (texts and len(arrays) > 1)):
        (rows,) = sizes
        raise OptionError(
            f"expected one row, found a batch of {rows}: each of its columns has a first axis of {rows}. Pass one row "
            "of it, such as {name: values[0] for name, values in batch.items()}"
        )


def check_one_sample(array: Array, name: str) -> None:
    """Raise unless an array can be one sample; errors as in `check_one_row`."""
    if array.ndim > _ROW_AXES:
        raise OptionError(
            f"{name}: expected one sample, of up to {_ROW_AXES} axes, found shape {array.shape}, a batch of "
            f"{len(array)}. Pass one sample of it, such as {name}[0]"
        )
