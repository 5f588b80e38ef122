"""What options are checked for in many places."""

from __future__ import annotations

from numbers import Integral

from ray_h5.errors import OptionError


def as_integer(name: str, value: object, least: int, *, instead: str = "") -> int:
    """Return an option that is to be an integer, also one of numpy, as Python's.

    Raises
    ------
    OptionError
        If it is none, or below `least`; `instead` is what else there is to say.
    """
    if isinstance(value, bool) or not isinstance(value, Integral) or value < least:
        raise OptionError(f"{name}={value!r}: expected an integer of {least} or more{instead}")
    return int(value)
