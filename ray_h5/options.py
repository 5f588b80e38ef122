"""What options, and numbers in checkpoints, may be: Python's and numpy's numbers, or an error that names them."""

from __future__ import annotations

from numbers import Integral, Real
from typing import TypeGuard

from ray_h5.errors import OptionError, PositionError

__all__ = ["as_integer", "check_count", "is_integer", "is_number"]


def is_integer(value: object) -> TypeGuard[int]:
    """Tell whether `value` is an integer, which a bool is not."""
    return isinstance(value, Integral) and not isinstance(value, bool)


def is_number(value: object) -> bool:
    """Tell whether `value` is a real number that a float can be, NaN and infinity among them; a bool is not one."""
    if isinstance(value, bool) or not isinstance(value, Real):
        return False
    try:
        float(value)
    except OverflowError:
        return False
    return True


def as_integer(name: str, value: object, least: int | None = None, *, instead: str = "") -> int:
    """Return an option as Python's integer, which JSON and Ray take.

    Raises
    ------
    OptionError
        If it is no integer, or less than `least`; `instead` is what else there is to say.
    """
    if not is_integer(value) or (least is not None and value < least):
        bound = "" if least is None else f" of {least} or more"
        raise OptionError(f"{name}={value!r}: expected an integer{bound}{instead}")
    return int(value)


def check_count(what: str, value: object, least: int) -> None:
    """Raise a PositionError unless what a position holds is an integer of at least `least`."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise PositionError(f"{what}={value!r}: expected an integer of {least} or more")
