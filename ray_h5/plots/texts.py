"""Values and headings as short texts."""

from __future__ import annotations

import datetime as dt
import textwrap
from typing import Any

import numpy as np

_LETTERS_AN_INCH = 10
"""For a heading of size 10: digits and most letters are narrower."""

_MOST_LETTERS = 40


def wrapped(text: object, width: float) -> str:
    """Break a heading into lines of at most `width` inches; also names without spaces."""
    lines = textwrap.wrap(str(text), max(8, int(width * _LETTERS_AN_INCH)))
    return "\n".join(lines).replace("\xa0", " ")


def short_text(array: np.ndarray[Any, Any]) -> str:
    """Return the value of a scalar, or dtype and shape of an array; at most 40 characters."""
    text = value_text(array[()]) if array.ndim == 0 else f"{array.dtype} {array.shape}"
    return text if len(text) <= _MOST_LETTERS else f"{text[: _MOST_LETTERS - 3]}..."


def value_text(value: Any) -> str:
    """Return a value as people write it: dates without a time of zero, and floats with six digits."""
    if isinstance(value, (np.datetime64, dt.datetime)):
        return _date_text(value)
    if isinstance(value, (float, np.floating)):
        exact = float(value)
        return str(exact if exact.is_integer() else float(f"{exact:.6g}"))
    if isinstance(value, bytes):
        return value.decode(errors="backslashreplace")
    return str(value)


def _date_text(value: np.datetime64 | dt.datetime) -> str:
    text = str(value).replace(" ", "T")
    if "." in text:
        text = text.rstrip("0").rstrip(".")  # nanoseconds that are not there
    return text.removesuffix("T00:00:00").removesuffix("T00:00").replace("T", " ") if text != "NaT" else text
