"""Comparisons of a column with a number, exact for any type of the column.

The type is not known when the expression is made. pyarrow casts both sides to a common type, which loses digits: no
common type holds all values of int64 and float64; for uint64 and a signed integer pyarrow takes int64.
"""

from __future__ import annotations

import math
from decimal import Decimal
from functools import reduce
from operator import or_
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

_WHOLE = 2**64  # integers of a column are smaller
_BOOLEANS = (0, 1)
_NULL = pa.scalar(None, pa.bool_())
_DECIMAL = pa.decimal128(20)  # any integer of 64 bits
_THIRD = float(np.float32(1) / np.float32(3))
_LARGE = [pa.scalar(Decimal(sign * 10**75), pa.decimal256(76)) for sign in (1, -1)]  # infinite in float32


def equals(column: pc.Expression, value: Any) -> pc.Expression:
    """Return the expression that a column holds a value. NaN equals no value."""
    # pyarrow does not compare booleans with numbers. `isin` does.
    if isinstance(value, (int, float)) and value in _BOOLEANS:
        return one_of(column, [value])
    side, literal = _sides(column, value)
    return _or_equal(side == literal, column, value)


def at_least(column: pc.Expression, low: Any) -> pc.Expression:
    """Return the expression that a column holds a value or a larger one."""
    side, literal = _sides(column, low)
    return _or_equal(side >= literal, column, low)


def at_most(column: pc.Expression, high: Any) -> pc.Expression:
    """Return the expression that a column holds a value or a smaller one."""
    side, literal = _sides(column, high)
    return _or_equal(side <= literal, column, high)


def one_of(column: pc.Expression, values: list[Any]) -> pc.Expression:
    """Return the expression that a column holds one of some values; NaN equals none.

    It is null for a null, as comparisons are, unless null is one of the values.
    """
    wholes = {int(value) for value in values if _is_whole(value)}
    fractions = [value for value in values if isinstance(value, float) and not _is_whole(value) and value == value]
    others = [value for value in values if not (value is None or _is_whole(value) or isinstance(value, float))]
    found = []
    if ones := [value for value in _BOOLEANS if value in wholes]:
        found.append(column.isin(pa.array(ones)))  # apart: in a boolean column any number would be True
    if larger := sorted(wholes.difference(_BOOLEANS)):
        # As decimals they fit any column of numbers.
        found.append(column.isin(pa.array([pa.scalar(Decimal(value), _DECIMAL) for value in larger])))
    if 0 in wholes or any(value is False for value in others):  # a timedelta of 0 equals False too
        found.append(column.isin(pa.array([-0.0])))  # what is looked up is compared bit by bit, and -0.0 is zero too
    if fractions:
        found.append(_one_of_fractions(column, fractions))
    if others:
        found.append(column.isin(pa.array(others)))
    # `isin` is false for a null.
    is_null = column.is_null()
    found.append(is_null if any(value is None for value in values) else is_null & _NULL)
    return reduce(or_, found)


def _one_of_fractions(column: pc.Expression, values: list[float]) -> pc.Expression:
    """Return the expression that a column holds one of some floats that no integer equals."""
    # `isin` with floats casts integers to floats and refuses large ones. It casts any decimal.
    doubles = column - Decimal(0) + 0.0
    found = doubles.isin(pa.array(values))
    rounded = [_float32(value) for value in values if not _is_float32(value)]
    return found | (_is_of_float32(column, rounded) & doubles.isin(pa.array(rounded))) if rounded else found


def _is_of_float32(column: pc.Expression, values: list[float]) -> pc.Expression:
    """Return the expression that a column is of float32, where it holds one of some values.

    An expression cannot ask for the type of a column. But arithmetic with integers keeps the type, and a third of 1 is
    another number in float32. Infinite values give NaN in that test. For these, `isin` casts what it looks up to the
    type of the column, and 1e75 is infinite in float32.
    """
    found = (column - column + 1) / 3 - Decimal(0) == _THIRD
    return found | column.isin(pa.array(_LARGE)) if any(map(math.isinf, values)) else found


def _sides(column: pc.Expression, value: Any) -> tuple[pc.Expression, Any]:
    """Return the column and the value in forms that pyarrow compares exactly.

    pyarrow compares integers with a decimal as decimals, and floats with it as floats.
    """
    if _is_whole(value):
        return column, Decimal(int(value))
    # Integers become decimals, and these become floats, rounded. The result is still right: rounding does not move an
    # integer past a float that is not whole, or that is larger than all integers of a column.
    return (column - Decimal(0), value) if isinstance(value, float) else (column, value)


def _or_equal(compared: pc.Expression, column: pc.Expression, value: Any) -> pc.Expression:
    """Return a comparison that also holds for values that equal the number in the dtype of the column.

    pyarrow compares a float32 column as float64, where the 0.1 of float32 differs from 0.1. No float32 value is
    between the two, so ``<=`` and ``>=`` may use either.
    """
    if isinstance(value, bool) or not isinstance(value, (int, float)) or _is_float32(value):
        return compared
    rounded = _float32(value)
    return compared | (_is_of_float32(column, [rounded]) & (column - Decimal(0) == rounded))


def _is_whole(value: Any) -> bool:
    if isinstance(value, float):
        return math.isfinite(value) and value.is_integer() and abs(value) <= _WHOLE
    return isinstance(value, int) and not isinstance(value, bool)


def _is_float32(value: float) -> bool:
    return value != value or _float32(value) == value


def _float32(value: float) -> float:
    with np.errstate(over="ignore"):
        return float(np.float32(value))
