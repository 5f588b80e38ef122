"""Checks of numbers in options and checkpoints: numbers of Python or numpy, or an error with the name."""

from __future__ import annotations

from numbers import Integral, Real
from typing import TypeGuard

from ray_h5.errors import OptionError, PositionError

__all__ = ["as_integer", "check_count", "is_integer", "is_number"]


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


def check_count(what: str, value: object, least: int) -> None:
    """Raise a PositionError unless a value in a position is an integer of at least `least`."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise PositionError(f"{what}={value!r}: expected an integer of {least} or more")
