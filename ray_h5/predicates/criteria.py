"""Criteria: what users write to choose rows -> an expression of pyarrow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date
from functools import reduce
from operator import and_
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ray_h5.content_equality import ComparedByContent
from ray_h5.errors import PredicateError
from ray_h5.options import names_options
from ray_h5.predicates.virtual_names import AnyEqual, Compared, Derived, Fold, RowMask, columns_read, virtual_name

_MAX_BITS = 1 << 13
"""Integers of more bits cannot be printed: Python refuses it."""


@names_options
def between(low: Any, high: Any) -> Compared:
    """Choose rows whose value is in a range, both ends included.

    Parameters
    ----------
    low, high : number, string or None
        The ends; None leaves a side open.

    Raises
    ------
    PredicateError
        If both sides are open, or the lower end is above the upper one.
    """
    low, high = _plain(low), _plain(high)
    if low is None and high is None:
        raise PredicateError("between(None, None): expected at least one end")
    for end in (low, high):
        _check_scalar(f"between({low!r}, {high!r})", end, "numbers, strings or None")
    try:
        is_empty = low is not None and high is not None and not low <= high
    except TypeError as exc:
        raise PredicateError(f"between({low!r}, {high!r}): expected ends of one type: {exc}") from exc
    if is_empty:
        raise PredicateError(f"between({low!r}, {high!r}): expected low <= high")
    return Compared("between", (low, high))


@names_options
def any_equal(value: float, *, valid: str | None = None) -> AnyEqual:
    """Choose rows in which a value occurs at any time step.

    Parameters
    ----------
    value : int or float
        Of a column of shape (T,) or (T, 1), the value; of a one-hot column of shape (T, C), the class whose
        entry is not zero.
    valid : str, optional
        A column of shape (T,) or (T, 1). Only time steps at which it is greater than zero count.
    """
    given: object = value
    value = _plain(value)
    if isinstance(given, str):
        raise PredicateError(
            f"any_equal({value!r}): expected a number; one text a row is compared without it, as in "
            f"where(column={value!r})"
        )
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise PredicateError(f"any_equal({value!r}): expected a number")
    if value != value or (isinstance(value, int) and not -(2**63) <= value < 2**64):
        raise PredicateError(f"any_equal({value!r}): no value of a column equals it")
    if valid is not None and not isinstance(valid, str):
        raise PredicateError(f"any_equal({value!r}, valid={valid!r}): expected the name of a column")
    return AnyEqual(value, valid)


def row_mask() -> RowMask:
    """Choose rows by a mask in the file: ``where(**{"mask/train": row_mask()})``.

    The HDF5 dataset holds a boolean for each row, or the numbers of the rows to take; or names of groups, with
    ``rows=Groups(...)``. With windows, the rows of a file are its steps, also those without a window.
    """
    return RowMask()


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Criterion(ComparedByContent):
    """What is wanted of one column, and the predicate for it.

    Attributes
    ----------
    column : str
        The column.
    wanted : Derived
        What is wanted of it.
    """

    column: str
    wanted: Derived

    @property
    def expression(self) -> pc.Expression:
        """The predicate: that a virtual column is true."""
        return pc.field(virtual_name(self.column, self.wanted)) == True  # noqa: E712  an expression

    @property
    def columns(self) -> list[str]:
        """The columns of a dataset that are compared. Masks and folds are none: they belong to the files."""
        return [] if isinstance(self.wanted, (RowMask, Fold)) else columns_read(self.column, self.wanted)

    @property
    def named(self) -> str:
        """The column whose values are looked up: this one, or the virtual column that is computed from files."""
        return self.column if isinstance(self.wanted, Compared) else virtual_name(self.column, self.wanted)

    def over(self, columns: Sequence[str]) -> Criterion:
        """Return the same criterion for columns with other names."""
        if list(columns) == self.columns:
            return self
        column, *valid = columns
        wanted = self.wanted
        return Criterion(column, replace(wanted, valid=valid[0]) if isinstance(wanted, AnyEqual) and valid else wanted)


def where(*unnamed: object, **criteria: Any) -> pc.Expression:
    """Return the predicate that all criteria hold.

    Parameters
    ----------
    **criteria
        ``column=value``, ``column=[value, ...]``, ``column=None`` (is null),
        ``column=between(low, high)``, ``column=any_equal(value)`` or ``column=row_mask()``. Text such as
        ``"2024-01-31"`` or ``"2024-01-31T12:00"`` is a time where the column holds times. Write
        ``**{"obs/label": 3}`` for names that are no Python names. ``True`` and ``False`` match 1 and 0 in columns of
        numbers; 1 and 0 match them in boolean columns. An empty list selects no row. With a column of floats, a float
        is compared in the dtype of the column, as in numpy 2: 0.1 equals the 0.1 of float32; one that the dtype cannot
        hold, such as 1e300, equals none. (float16 is compared as float32, so 0.1 does not equal the 0.1 of float16.)
        Columns of integers are compared exactly: no integer equals 1.5 or NaN.

    Returns
    -------
    pyarrow.compute.Expression
        Pass it to `H5Dataset`. Combine it with others by ``&``, ``|`` and ``~``.

    Raises
    ------
    PredicateError
        If there is no criterion, or one has none of the forms above.

    Notes
    -----
    A comparison with null is null, and drops the row: ``~where(x=1)`` and ``~where(x=[1, 2])`` choose no nulls, either.
    ``where(x=None)`` and a list with None choose them. A comparison with NaN is false, so ``~where(x=1)`` keeps NaN.
    """
    return reduce(and_, (criterion.expression for criterion in as_criteria(criteria, unnamed)))


def as_criteria(criteria: Mapping[str, Any], unnamed: Sequence[object] = ()) -> list[Criterion]:
    """Return the criteria that `where` is given, checked.

    Raises
    ------
    PredicateError
        As `where` does.
    """
    if unnamed:
        raise PredicateError(f"where({unnamed[0]!r}): expected names of columns, such as where(label=1)")
    if not criteria:
        raise PredicateError("where(): expected at least one criterion, such as where(label=1)")
    return [Criterion(name, _checked(name, wanted)) for name, wanted in criteria.items()]


def _checked(name: str, wanted: Any) -> Derived:
    """Return what is wanted of a column; raise a PredicateError unless `where` takes it."""
    if isinstance(wanted, Derived):
        return wanted
    if wanted is None:
        return Compared("equal", (None,))
    values = _values(wanted)
    if isinstance(wanted, tuple) and len(wanted) == 2 and any(isinstance(value, float) for value in values or ()):
        raise PredicateError(
            f"where({name}={wanted!r}): a pair of numbers may be a range or two values. Write between{wanted!r} for "
            f"values from one to the other, or the list {[*wanted]!r} for these two alone."
        )
    if values is None:
        value = _plain(wanted)
        expected = "a value, a list of values, between(...), any_equal(...) or row_mask()"
        _check_scalar(f"where({name}={value!r})", value, expected)
        return Compared("equal", (value,))
    try:
        is_plain = not pa.types.is_nested(_array(values).type)
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError, OverflowError) as exc:
        raise PredicateError(f"where({name}={wanted!r}): expected values of one type: {exc}") from exc
    if not is_plain:
        raise PredicateError(f"where({name}={wanted!r}): expected values of one type, found lists of them")
    return Compared("one_of", tuple(values))


def _array(values: list[Any]) -> pa.Array:
    try:
        return pa.array(values)
    except OverflowError:  # pyarrow makes int64 of integers
        return pa.array(values, pa.decimal128(20))


def _values(wanted: Any) -> list[Any] | None:
    """Return the values of a collection, or None if `wanted` is one value."""
    if isinstance(wanted, (set, frozenset)):
        wanted = sorted(wanted, key=repr)
    is_array = isinstance(wanted, np.ndarray) and wanted.ndim == 1
    if isinstance(wanted, (pa.Array, pa.ChunkedArray)):
        wanted = wanted.to_pylist()
    return [_plain(value) for value in wanted] if is_array or isinstance(wanted, (list, tuple, range)) else None


def _check_scalar(where: str, value: Any, expected: str) -> None:
    try:
        kind = _array([value]).type
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError, OverflowError):
        kind = None
    if kind is None and isinstance(value, int):
        raise PredicateError(f"{where}: expected a number of at most 20 digits; no column holds larger integers")
    if kind is None or pa.types.is_nested(kind):
        raise PredicateError(f"{where}: expected {expected}, found {type(value).__name__}")


def _plain(value: Any) -> Any:
    if getattr(value, "nanosecond", 0) or getattr(value, "nanoseconds", 0):
        value = value.to_numpy()  # of pandas: pyarrow would drop the nanoseconds
    plain = value.item() if isinstance(value, np.generic) else value
    if isinstance(plain, int) and plain.bit_length() > _MAX_BITS:
        raise PredicateError("where: expected a number of at most 20 digits, found an integer of thousands of digits")
    plain = np.datetime64(plain, "us").item() if type(plain) is date else plain  # pyarrow cuts times beside dates
    # Python's times have no nanoseconds: `item` gives an integer for these.
    return value if isinstance(value, (np.datetime64, np.timedelta64)) and isinstance(plain, int) else plain
