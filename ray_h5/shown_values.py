"""Values as people look at them: arrays of a row, pictures, short texts; in figures and on the page of `inspect`."""

from __future__ import annotations

import textwrap
from typing import Any

import numpy as np

from ray_h5.errors import OptionError

Array = np.ndarray[Any, Any]

_ROW_AXES, _LEAST_SIDE, _MOST_LETTERS = 3, 4, 40
# For a heading of size 10: digits and most letters are narrower.
_LETTERS_AN_INCH = 10


def as_array(value: Any) -> Array:
    """Return an array; `value` may be a tensor on a GPU, with a gradient, or of bfloat16, which numpy does not have."""
    if hasattr(value, "detach"):
        value = value.detach().cpu()
        value = value.float() if str(value.dtype) == "torch.bfloat16" else value
    try:
        return np.asarray(value)
    except ValueError:
        # Rows of several lengths, which numpy holds as objects.
        return np.fromiter(value, dtype=object)


def as_sample(value: Any, name: str) -> Array:
    """Return the array of one value of a row.

    Raises
    ------
    OptionError
        If it has more axes than a row: it is a batch.
    """
    array = as_array(value)
    if array.ndim > _ROW_AXES:
        raise OptionError(f"{name}: expected one row of up to {_ROW_AXES} axes, found {array.shape}; pass {name}[0]")
    return array


def short_text(value: Any, most: int = _MOST_LETTERS) -> str:
    """Return a scalar as people write it, or dtype and shape of an array; at most so many characters."""
    array = np.asarray(value)
    value = array[()]
    if array.ndim:
        text = f"{array.dtype} {array.shape}"
    elif array.dtype.kind == "f":
        text = str(float(value)) if float(value).is_integer() else f"{float(value):.6g}"
    elif array.dtype.kind == "M" or hasattr(value, "isoformat"):
        text = "NaT" if str(value) == "NaT" else str(value).replace("T", " ").partition(".000")[0]
        text = text.removesuffix(" 00:00:00").removesuffix(" 00:00")
    else:
        text = value.decode(errors="backslashreplace") if isinstance(value, bytes) else str(value)
    return text if len(text) <= most else f"{text[: most - 3]}..."


def wrapped(text: object, width: float) -> str:
    """Break a heading into lines of at most `width` inches; also names without spaces."""
    lines = textwrap.wrap(str(text), max(8, int(width * _LETTERS_AN_INCH)))
    return "\n".join(lines).replace("\xa0", " ")


def is_picture(array: Array) -> bool:
    """Return whether an array is a picture.

    That is (height, width, 3), bytes of (height, width, 4), or (3, height, width) of bytes or of floats in 0 .. 1.
    Three channels of a signal come first too, so an array of that shape is one only if its values are.
    """
    if array.ndim != 3 or array.dtype.kind not in "biuf" or array.size == 0:
        return False
    if _has_colours_last(array):
        return True
    in_range = array.dtype == np.uint8 or bool(array.dtype.kind == "f" and array.min() >= 0 and array.max() <= 1)
    return array.shape[0] == 3 and in_range


def _has_colours_last(array: Array) -> bool:
    return array.shape[-1] in ((3, 4) if array.dtype == np.uint8 else (3,)) and min(array.shape[:2]) >= _LEAST_SIDE


def colours_last(array: Array) -> Array:
    """Return a picture as (height, width, 3)."""
    return array[..., :3] if _has_colours_last(array) else np.moveaxis(array, 0, -1)


def finite_range(*arrays: Array) -> tuple[float, float]:
    """Return the least and the greatest finite value; (0, 1) if there is none."""
    finite = np.concatenate([part[np.isfinite(part)].astype(np.float64) for part in arrays])
    return (float(finite.min()), float(finite.max())) if finite.size else (0.0, 1.0)


def pixels(array: Array, limits: tuple[float, float] | None = None) -> Array:
    """Return a picture as (height, width, 3), bytes or floats in 0 .. 1; values beyond are scaled, and NaN is black."""
    array = colours_last(array)
    if array.dtype == np.uint8:
        return array
    values = array.astype(np.float64)
    low, high = limits or finite_range(values)
    if low < 0 or high > 1:
        values = (values - low) / ((high - low) or 1.0)
    return np.nan_to_num(values, nan=0.0, posinf=1.0, neginf=0.0).clip(0, 1)
