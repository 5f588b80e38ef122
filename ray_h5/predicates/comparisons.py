"""Comparisons of the values of a column, exact for each type.

pyarrow casts both sides to a common type, which loses digits.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from decimal import Decimal
from functools import reduce
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ray_h5.columns.schema import is_number, is_text
from ray_h5.errors import PredicateError
from ray_h5.messages import few
from ray_h5.predicates.virtual_names import Compared, criterion_in_words

_MAX_SHOWN = 3
_MONTH = re.compile(r"\d{4}-\d\d")
_DATED = re.compile(r"\d{4}-\d\d(-\d\d([T ]\d\d(:\d\d(:\d\d(\.\d{1,9})?)?)?Z?)?)?")
"""Text that numpy reads as a time. A year alone is more often a name."""


def compared(column: str, wanted: Compared, values: Any) -> pa.ChunkedArray:
    """Return for each value of a column whether it passes: text is compared as times, if they are times.

    Raises
    ------
    PredicateError
        If the types cannot be compared, or text is a month, in a column of times.
    """
    stored = pa.table({column: values})[0]
    kind, others = stored.type, wanted.values
    held = stored.cast(comparable_type(kind))
    if pa.types.is_timestamp(kind) or pa.types.is_date(kind):
        times = [_time(text) for text in others]
        if len(times) > times.count(None) == others.count(None):
            for text in filter(_MONTH.fullmatch, filter(None, others)):
                raise _month(column, text, kind)
            others = tuple(times)
    try:
        if wanted.how != "between":
            return _one_of(held, others)
        ends = [(end, is_low) for end, is_low in zip(others, (True, False), strict=True) if end is not None]
        return reduce(pc.and_kleene, (_beyond(held, end, is_low=is_low) for end, is_low in ends))
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, TypeError) as exc:  # one of Arrow is a TypeError, too
        why, words = _why_not(column, held.type, wanted.values, exc), criterion_in_words(column, wanted)
        raise PredicateError(f"predicate: ({words}) cannot be evaluated on {column}: {kind}: {why}") from exc


def comparable_type(kind: pa.DataType) -> pa.DataType:
    """Return the type in which values are compared exactly.

    pyarrow does not compare float16. `isin` casts what it looks up to the type of the column; dictionaries, and
    decimals of few digits, refuse that.
    """
    if pa.types.is_dictionary(kind):
        return comparable_type(kind.value_type)
    if pa.types.is_decimal(kind):
        # With the digits of any integer of 64 bits; sums have one more.
        return pa.decimal256(min(max(kind.precision, 20 + kind.scale), 75), kind.scale)
    return pa.float32() if pa.types.is_float16(kind) else kind


def encode(values: pa.Array) -> pa.DictionaryArray:
    """Return values by the numbers of those that differ to a predicate; a `pyarrow.ArrowException` if none compares."""
    kind = comparable_type(values.type)
    values = values.cast(kind)
    # -0.0 becomes 0.0.
    return (pc.add(values, pa.scalar(0, kind)) if pa.types.is_floating(kind) else values).dictionary_encode()


def _time(text: Any) -> Any:
    """Return the time that text stands for, as a value that pyarrow compares; None for other values."""
    try:
        time = np.datetime64(text.removesuffix("Z")) if isinstance(text, str) and _DATED.fullmatch(text) else None
    except ValueError:  # such as the 31st of February
        time = None
    plain = None if time is None else time.item()
    return time if isinstance(plain, int) else plain  # Python's times have no nanoseconds


def _month(column: str, text: str, kind: pa.DataType) -> PredicateError:
    """Return the error for a month: pandas and xarray take all of it, and numpy its first moment."""
    unit: Any = kind.unit if pa.types.is_timestamp(kind) else "D"
    first = np.datetime64(text, "D")
    last = (np.datetime64(text, "M") + np.timedelta64(1, "M")).astype(f"M8[{unit}]") - np.timedelta64(1, unit)
    return PredicateError(
        f"predicate: {text!r} is a month, and column {column!r} holds times; expected a day, such as '{first}', or a "
        f"moment of it. For all of the month, write between('{first}', '{last}')."
    )


def _one_of(values: pa.ChunkedArray, wanted: Sequence[Any]) -> pa.ChunkedArray:
    """Return for each value whether it is one of others; null for a null, unless None is one of them.

    Raises a `pyarrow.ArrowException` or TypeError if the types cannot be compared.
    """
    kind, others = values.type, [value for value in wanted if value is not None]
    if is_number(kind) or pa.types.is_boolean(kind):
        held = [number for number in map(_number, others) if number == number]  # NaN equals nothing
        if pa.types.is_integer(kind):
            # No value of the column equals a number that its type does not hold.
            limits = np.iinfo(kind.to_pandas_dtype())
            held = [int(number) for number in held if limits.min <= number <= limits.max and number == int(number)]
        elif pa.types.is_floating(kind):
            # What is looked up is compared bit by bit: -0.0 becomes 0.0.
            held = [_float(number, kind) + 0 for number in held if not _is_beyond(number, kind)]
            values = pc.add(values, pa.scalar(0, kind))
        elif not all(number in (0, 1) for number in held):
            raise TypeError("a boolean is True or False")
        held = list(map(bool, held)) if pa.types.is_boolean(kind) else held
        is_equal = pc.is_in(values, value_set=pa.array(held, kind))
    elif pa.types.is_temporal(kind) or pa.types.is_decimal(kind):
        held, apart = _in_type([_exact(other) for other in others], kind)
        each_equal = (pc.equal(values, other) for other in apart)
        is_equal = reduce(pc.or_kleene, each_equal, pc.is_in(values, value_set=held))
    else:
        is_equal = pc.is_in(values, value_set=pa.array(others) if others else pa.array([], kind))
    of_null = pa.scalar(True if len(others) < len(wanted) else None, pa.bool_())
    return pc.if_else(pc.is_valid(values), is_equal, of_null)


def _in_type(others: Sequence[Any], kind: pa.DataType) -> tuple[pa.Array, list[pa.Scalar]]:
    """Return those of some times or numbers that a column of times or decimals can hold, as it holds them.

    The second result are fractions in floats, which a decimal equals as a float. Errors as `_one_of`.
    """
    by_type: dict[pa.DataType, list[pa.Scalar]] = {}
    for other in others:
        scalar = other if isinstance(other, pa.Scalar) else pa.scalar(other)
        by_type.setdefault(scalar.type, []).append(scalar)
    held, apart = [pa.array([], kind)], list[pa.Scalar]()
    for of_others, scalars in by_type.items():
        written = pa.array(scalars, of_others)
        if pa.types.is_timestamp(kind) and pa.types.is_timestamp(of_others) and kind.tz and of_others.tz:
            written = written.cast(pa.timestamp(of_others.unit, kind.tz))  # Arrow compares no two zones
        pc.equal(pa.scalar(None, kind), pa.scalar(None, written.type))  # raises if the types cannot be compared
        if not pa.types.is_decimal(kind):
            # Not checked by Arrow: it would refuse all of them for one that is finer, or beyond what the type holds.
            cast = written.cast(kind, safe=False)
            held.append(cast.filter(pc.equal(cast.cast(written.type, safe=False), written)))
        elif pa.types.is_decimal(of_others):
            held += [pa.array([scalar.cast(kind)]) for scalar in scalars if _fits(scalar, kind)]
        else:
            apart += scalars
    return pa.concat_arrays(held), apart


def _fits(scalar: pa.Scalar, kind: pa.DataType) -> bool:
    try:
        return bool(scalar.cast(kind).is_valid)
    except pa.ArrowInvalid:
        return False


def _beyond(values: pa.ChunkedArray, end: Any, *, is_low: bool) -> pa.ChunkedArray:
    """Return for each value whether it is on the right side of an end of a range; errors as `_one_of`."""
    kind = values.type
    if pa.types.is_integer(kind):
        # An end outside of the type is below, or above, all values; a fraction is moved to the next integer inside.
        limits, number = np.iinfo(kind.to_pandas_dtype()), _number(end)
        if number != number or (number > limits.max if is_low else number < limits.min):
            return _always(values, passes=False)
        if number <= limits.min if is_low else number >= limits.max:
            return _always(values, passes=True)
        end = pa.scalar(math.ceil(number) if is_low else math.floor(number), kind)
    elif pa.types.is_floating(kind):
        number = _number(end)
        if _is_beyond(number, kind) and is_low == (number < 0):  # all values are inside, except the infinite one
            number = math.copysign(float(np.finfo(kind.to_pandas_dtype()).max), number)
        end = pa.scalar(_float(number, kind), kind)
    elif pa.types.is_boolean(kind) and not isinstance(end, bool):
        raise TypeError("a boolean is True or False")
    return (pc.greater_equal if is_low else pc.less_equal)(values, _exact(end))


def _always(values: pa.ChunkedArray, *, passes: bool) -> pa.ChunkedArray:
    return pc.if_else(pc.is_valid(values), pa.scalar(passes), pa.scalar(None, pa.bool_()))


def _number(value: Any) -> Any:
    value = value.as_py() if isinstance(value, pa.Scalar) else value
    if not isinstance(value, (int, float, Decimal)):
        raise TypeError(f"{value!r} is no number")
    return value


def _float(number: Any, kind: pa.DataType) -> Any:
    """Return a number as a column of floats has it, as numpy compares it."""
    with np.errstate(over="ignore"):
        return kind.to_pandas_dtype()(number)


def _is_beyond(number: Any, kind: pa.DataType) -> bool:
    """Return whether a number is finite, and larger than all that a column of floats holds."""
    return math.isfinite(number) and bool(np.isinf(_float(number, kind)))


def _exact(value: Any) -> Any:
    """Return a number as pyarrow compares it with decimals."""
    is_whole = isinstance(value, int) or (isinstance(value, float) and value.is_integer())
    return Decimal(int(value)) if is_whole and not isinstance(value, bool) else value


def _why_not(name: str, kind: pa.DataType, values: Sequence[Any], error: Exception) -> str:
    """Return why a column of some type is not compared with values; `error` is what pyarrow says."""
    if pa.types.is_nested(kind):
        return (
            f"column {name!r} holds {'a structure' if pa.types.is_struct(kind) else 'a list'} a row, and a predicate "
            "compares one value a row; choose rows by another column, or filter after reading, with ds.filter(fn=...)"
        )
    if is_number(kind) and all(value is None or isinstance(value, (int, float, Decimal)) for value in values):
        return str(error).splitlines()[0]
    held, others = next((held, others) for is_kind, held, others in _HELD if is_kind(kind))
    shown = few([repr(value) for value in values], _MAX_SHOWN)
    return f"column {name!r} holds {held} compared with {others}; found {shown}"


_HELD: tuple[tuple[Callable[[pa.DataType], bool], str, str], ...] = (
    (is_text, "text, which is", "text only, such as '3'"),
    (pa.types.is_boolean, "booleans, which are", "True and False only"),
    (pa.types.is_duration, "time spans, which are", "datetime.timedelta or numpy.timedelta64 only"),
    (pa.types.is_temporal, "times, which are", "times: a datetime, or text such as '2024-01-31' or '2024-01-31T12:00'"),
    (is_number, "numbers, which are", "numbers only, such as 3"),
    (lambda _: True, "bytes, which are", "bytes only"),
)
"""What columns of a type hold, and what it is compared with."""
