"""The option `weights` of a `Shuffle`: how often rows are drawn."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import pyarrow.compute as pc

from ray_h5.errors import OptionError
from ray_h5.options import is_number, names_options

_SUM_TOLERANCE = 1e-6
"""Shares are written as decimals: 0.333333 three times is one."""

_EXPECTED = (
    "expected the name of a numeric column, an array with a number for each row, balance(column), or a dict of shares "
    "by file"
)


@dataclass(frozen=True, slots=True)
class Balance:
    """Classes that are drawn by shares; see `balance`.

    Attributes
    ----------
    columns : tuple of str
        The columns whose values make the classes.
    shares : tuple of (class, share), optional
        The shares that were given. Other classes share the rest equally.
    """

    columns: tuple[str, ...]
    shares: tuple[tuple[Any, float], ...] = ()

    def __repr__(self) -> str:
        columns = self.columns[0] if len(self.columns) == 1 else list(self.columns)
        return f"balance({columns!r}{f', {dict(self.shares)!r}' if self.shares else ''})"


RowValues: TypeAlias = "str | np.ndarray"
"""A number for each row: a column, or a number for each row id."""

Weights: TypeAlias = "RowValues | Balance | Mapping[str, float] | None"
"""Checked weights: a column, a number for each row id, classes, or shares by file."""


@names_options
def balance(columns: str | Sequence[str], shares: Mapping[Any, float] | None = None) -> Balance:
    """Return weights that draw each class equally often, or by shares.

    Each position is drawn independently: a class by its share, and a row of this class. So a row may come several times
    in an epoch, and small batches have their shares about.

    Parameters
    ----------
    columns : str, or sequence of str
        The scalar column with the class of each row. Of several columns, each combination of values that occurs is
        a class.
    shares : mapping, optional
        Class to share: ``{"rare": 0.5}``. The other classes share the rest equally. Of several columns a class is a
        tuple of values.

    Raises
    ------
    OptionError
        If a share is no number from 0 to 1, or their sum is above 1.

    Examples
    --------
    >>> Shuffle(weights=balance("label"))  # doctest: +SKIP
    >>> Shuffle(weights=balance("label", {"rare": 0.5}), rows_per_epoch=10_000)  # doctest: +SKIP
    """
    names = (columns,) if isinstance(columns, str) else tuple(columns) if isinstance(columns, Sequence) else ()
    if not names or not all(isinstance(name, str) for name in names):
        raise OptionError(f"balance({columns!r}): expected the name of a column, or a list of names")
    if len(set(names)) < len(names):
        raise OptionError(f"balance({columns!r}): a column is named twice")
    if shares is None:
        return Balance(names)
    if not isinstance(shares, Mapping) or not shares:
        raise OptionError(f"balance({columns!r}, {shares!r}): expected shares as a dict, such as {{'rare': 0.5}}")
    pairs = tuple((_as_class(value), _as_share(f"balance: {value!r}", share)) for value, share in shares.items())
    total = math.fsum(share for _, share in pairs)
    if total > 1 + _SUM_TOLERANCE:
        raise OptionError(f"balance({columns!r}, {dict(shares)!r}): expected shares with a sum of at most 1")
    return Balance(names, pairs)


def as_weights(weights: Any) -> Weights:
    """Return the checked value of the option `weights`.

    Raises
    ------
    OptionError
        If it cannot be used; it names the first weight that is negative, infinite or NaN.
    """
    if weights is None or isinstance(weights, Balance):
        return weights
    if not isinstance(weights, Mapping):
        return as_row_values("weights", weights, _EXPECTED)
    if not weights or not all(isinstance(pattern, str) for pattern in weights):
        raise OptionError(f"Shuffle: weights={weights!r}: expected patterns of paths, such as {{'a/*.h5': 0.3}}")
    shares = {pattern: _as_share(f"Shuffle: weights: {pattern!r}", share) for pattern, share in weights.items()}
    total = math.fsum(shares.values())
    if abs(total - 1) > _SUM_TOLERANCE:
        raise OptionError(f"Shuffle: weights={dict(weights)!r}: expected shares with the sum 1, found {total:g}")
    return shares


def as_row_values(option: str, values: Any, expected: str) -> RowValues:
    """Return the checked value of an option that gives each row a number.

    Raises
    ------
    OptionError
        If it cannot be used; it names the first number that is negative, infinite or NaN.
    """
    if isinstance(values, str):
        return values
    if isinstance(values, pc.Expression) or hasattr(values, "to_pyarrow"):
        raise OptionError(f"Shuffle: {option}={values}: {expected}. Compute an expression, and pass it as an array.")
    try:
        array = np.asarray(values)
    except (TypeError, ValueError, RuntimeError) as exc:  # RuntimeError: of a tensor on a GPU, or with a gradient
        raise OptionError(f"Shuffle: {option}={type(values).__name__}: {expected}: {exc}") from exc
    if array.ndim != 1 or array.dtype.kind not in "fiub":
        shown = f"a {type(values).__name__} of dtype {array.dtype} and shape {array.shape}"
        raise OptionError(f"Shuffle: {option}: {expected}, found {shown}")
    wrong = first_wrong(array)
    if wrong is not None:
        raise OptionError(f"Shuffle: {option}[{wrong}]={array[wrong]}: expected a finite number of 0 or more")
    return array


def first_wrong(weights: np.ndarray) -> int | None:
    """Return the place of the first weight that is negative, infinite or NaN; None if there is none."""
    if weights.dtype.kind in "ub" or not len(weights):
        return None
    is_good = weights >= 0  # false for NaN
    if weights.dtype.kind == "f":
        is_good &= weights < math.inf
    return None if is_good.all() else int(np.argmin(is_good))


def named_columns(weights: Weights) -> tuple[str, ...]:
    """Return the columns that weights, or lengths, are made from."""
    return weights.columns if isinstance(weights, Balance) else (weights,) if isinstance(weights, str) else ()


def shown(weights: Weights) -> str:
    """Return weights, or lengths, as a user writes them; an array by its length."""
    return f"<{len(weights)} numbers>" if isinstance(weights, np.ndarray) else repr(weights)


def _as_share(what: str, share: Any) -> float:
    if not is_number(share) or not 0 <= share <= 1:
        raise OptionError(f"{what}: share {share!r}: expected a number from 0 to 1")
    return float(share)


def _as_class(value: Any) -> Any:
    """Return a class as a value of Python: NumPy's scalars compare alike, but show otherwise."""
    if isinstance(value, tuple):
        return tuple(map(_as_class, value))
    return value.item() if isinstance(value, np.generic) else value
