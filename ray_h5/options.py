"""Checks of numbers in options and checkpoints: numbers of Python or numpy, or an error with the name."""

from __future__ import annotations

import re
from numbers import Integral, Real
from typing import TypeGuard

from ray_h5.errors import OptionError, PositionError

__all__ = ["as_bytes", "as_integer", "check_count", "is_integer", "is_number"]


def is_integer(value: object) -> TypeGuard[int]:
    """Return whether `value` is an integer; a bool is none."""
    return isinstance(value, Integral) and not isinstance(value, bool)


def is_number(value: object) -> bool:
    """Return whether `value` is a real number that fits a float, NaN and infinity included; a bool is none."""
    if isinstance(value, bool) or not isinstance(value, Real):
        return False
    try:
        float(value)
    except OverflowError:
        return False
    return True


def as_integer(name: str, value: object, least: int | None = None, *, instead: str = "") -> int:
    """Return an option as an integer of Python, which JSON and Ray accept.

    Raises
    ------
    OptionError
        If it is no integer, or less than `least`. `instead` is appended to the message.
    """
    if not is_integer(value) or (least is not None and value < least):
        bound = "" if least is None else f" of {least} or more"
        raise OptionError(f"{name}={value!r}: expected an integer{bound}{instead}")
    return int(value)


_UNITS = {"": 1, "b": 1} | {
    f"{prefix}{binary}b": (1024 if binary else 1000) ** power
    for power, prefix in enumerate("kmgtp", start=1)
    for binary in ("", "i")
}


def as_bytes(name: str, value: object) -> int:
    """Return an option that is a number of bytes, or a text such as ``"200GB"`` or ``"1.5 TiB"``.

    Raises
    ------
    OptionError
        If it is neither, or less than one byte.
    """
    found = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([a-zA-Z]*)\s*", value) if isinstance(value, str) else None
    if found is not None and found[2].lower() in _UNITS:
        value = int(float(found[1]) * _UNITS[found[2].lower()])
    if not is_integer(value) or value < 1:
        raise OptionError(f"{name}={value!r}: expected a number of bytes, or a text such as '200GB' or '50GiB'")
    return int(value)


def check_count(what: str, value: object, least: int) -> None:
    """Raise a PositionError unless a value in a position is an integer of at least `least`."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise PositionError(f"{what}={value!r}: expected an integer of {least} or more")
