"""Comparisons of a column with a number, exact for any type of the column.

The type is not known where the expression is made. pyarrow itself casts both sides to a common type: that of int64
and a float may hold neither, and that of uint64 and a signed integer is int64.
"""

from __future__ import annotations

import math
from decimal import Decimal
from functools import reduce
from operator import or_
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

_WHOLE = 2**64  # integers of a column are smaller
_DECIMAL = pa.decimal128(20)  # any integer of 64 bits
_SMALL = 2**24  # up to here all integers are floats of float32


class Fields(Protocol):
    """A way to build expressions; all but these three is operators."""

    def column(self, name: str) -> Any: ...
    def is_in(self, name: str, values: list[Any]) -> Any: ...
    def is_null(self, name: str) -> Any: ...


def equals(name: str, value: Any, fields: Fields) -> Any:
    """Return the expression that a column holds a value; none is NaN."""
    # pyarrow compares no boolean with an integer, but looks it up among integers, and the other way round.
    if isinstance(value, int) and value in (0, 1):
        return one_of(name, [value], fields)
    column, literal = _sides(name, value, fields)
    return _or_equal(column == literal, name, value, fields)


def at_least(name: str, low: Any, fields: Fields) -> Any:
    """Return the expression that a column holds a value or a larger one."""
    column, literal = _sides(name, low, fields)
    return _or_equal(column >= literal, name, low, fields)


def at_most(name: str, high: Any, fields: Fields) -> Any:
    """Return the expression that a column holds a value or a smaller one."""
    column, literal = _sides(name, high, fields)
    return _or_equal(column <= literal, name, high, fields)


def one_of(name: str, values: list[Any], fields: Fields) -> Any:
    """Return the expression that a column holds one of some values; NaN equals none."""
    wholes = [int(value) for value in values if _is_whole(value)]
    others = [value for value in values if not _is_whole(value) and value == value]
    found = []
    if wholes:
        # As decimals they fit any column of numbers. A column of booleans has only the small ones.
        is_small = all(0 <= value <= _SMALL for value in wholes)
        decimals = [pa.scalar(Decimal(value), _DECIMAL) for value in wholes]
        found.append(fields.is_in(name, wholes if is_small else decimals))
    if others:
        found.append(fields.is_in(name, others))
    if 0 in wholes:
        found.append(fields.is_in(name, [-0.0]))  # what is looked up is compared bit by bit, and -0.0 is zero too
    if not found:
        return fields.is_null(name) & ~fields.is_null(name)  # no row; an empty list has no type to look up
    return reduce(or_, found)


def _sides(name: str, value: Any, fields: Fields) -> tuple[Any, Any]:
    """Return the column and the value, such that pyarrow compares them without a loss.

    pyarrow compares integers with a decimal as decimals, and floats with it as floats.
    """
    column = fields.column(name)
    if _is_whole(value):
        return column, Decimal(int(value))
    # Integers become decimals here, which it casts to floats even where they are rounded. No rounding passes a float
    # that is not whole, or is larger than all of them.
    return (column - Decimal(0), value) if isinstance(value, float) else (column, value)


def _or_equal(compared: Any, name: str, value: Any, fields: Fields) -> Any:
    """Let a comparison with a number also hold for what equals it in the dtype of the column.

    pyarrow compares a narrower column as float64, where the 0.1 of float32 is another number than 0.1; but it casts
    what it looks up to the type of the column. No value of that type lies between the two, so that either will do.
    """
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return compared | one_of(name, [value], fields) if is_number and not _is_float32(value) else compared


def _is_whole(value: Any) -> bool:
    if isinstance(value, float):
        return math.isfinite(value) and value.is_integer() and abs(value) <= _WHOLE
    return isinstance(value, int) and not isinstance(value, bool)


def _is_float32(value: float) -> bool:
    with np.errstate(over="ignore"):
        return value != value or float(np.float32(value)) == value
