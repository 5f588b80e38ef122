"""Weights of a `Shuffle` -> draws: looks up the columns and files that the weights name."""

from __future__ import annotations

import fnmatch
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ray_h5.errors import OptionError
from ray_h5.index.row_index import RowIndex
from ray_h5.messages import few
from ray_h5.order.draws.shuffle import UnusableRowsError
from ray_h5.order.draws.values_of_rows import (
    Option,
    check_present,
    row_values,
    scalars,
)
from ray_h5.order.draws.weighted_draws import Draws
from ray_h5.order.draws.weights_and_class_balance import Balance, Weights
from ray_h5.predicates.evaluate import comparable_type
from ray_h5.tables.table_columns import one_array

_PIECE = 1 << 20

_ROUNDED = 1e-5
"""Shares are written as decimals: 0.33333 three times is one."""

WEIGHTS = Option("weights", "weight", "to draw each class equally often, write weights=balance({!r})")


def make_draws(index: RowIndex, selection: np.ndarray | None, weights: Weights) -> Draws:
    """Return the draws of a shuffle with weights.

    Raises
    ------
    OptionError
        If a weight is missing, negative, infinite or NaN, all are zero, or a class or share has no row.
    UnknownColumnError
        If there is no such column.
    """
    if isinstance(weights, Balance):
        return weighted_draws(_by_class(index, selection, weights))
    if isinstance(weights, Mapping):
        return weighted_draws(_by_file(index, selection, weights))
    assert weights is not None
    return weighted_draws(row_values(index, selection, weights, WEIGHTS))


def weighted_draws(weights: np.ndarray) -> Draws:
    """Return the draws of rows by their weights.

    Raises
    ------
    OptionError
        If all weights are zero, or their sum is infinite.
    """
    ends = _cumulative(weights)
    total = float(ends[-1])
    if not 0 < total < np.inf:
        what = "infinite" if total else "0"
        raise OptionError(f"Shuffle: weights: the sum of the weights of {len(weights)} selected rows is {what}")
    return Draws(ends)


def _cumulative(weights: np.ndarray) -> np.ndarray:
    """Return sums from left to right, which have the same bits on all machines."""
    ends = np.empty(len(weights), np.float64)
    total = 0.0
    with np.errstate(over="ignore"):
        for start in range(0, len(ends), _PIECE):  # piece by piece: numpy would convert all weights first
            piece = weights[start : start + _PIECE].astype(np.float64)
            piece[0] += total
            np.cumsum(piece, out=ends[start : start + _PIECE])
            total = ends[start + len(piece) - 1]
    return ends


@dataclass(frozen=True, slots=True)
class _Classes:
    """The class of each selected row, and the values of the classes."""

    codes: np.ndarray
    values: list[Any]


def _by_class(index: RowIndex, selection: np.ndarray | None, weights: Balance) -> np.ndarray:
    """Return the weight of each selected row: the share of its class, divided by the rows of the class."""
    columns = scalars(index, weights.columns, WEIGHTS)
    for name, column in columns.items():
        check_present(index, column, selection, f"column {name!r}")
    encoded = [_encoded(index, column, selection, name) for name, column in columns.items()]
    classes = encoded[0] if len(encoded) == 1 else _combined(encoded)
    shares = _shares(weights, classes.values)
    return (shares / np.bincount(classes.codes, minlength=len(shares)))[classes.codes]


def _encoded(index: RowIndex, column: pa.ChunkedArray, selection: np.ndarray | None, name: str) -> _Classes:
    kind = comparable_type(column.type)
    array = one_array(column).cast(kind)
    array = array if selection is None else array.take(pa.array(selection))
    if pa.types.is_floating(kind):
        array = pc.add(array, pa.scalar(0, kind))  # -0.0 becomes 0.0
    try:
        encoded = array.dictionary_encode()
    except pa.ArrowNotImplementedError as exc:
        raise OptionError(f"balance({name!r}): values of type {array.type} cannot be classes") from exc
    codes, values = encoded.indices.to_numpy(), encoded.dictionary.to_pylist()
    if any(value != value for value in values):  # NaN
        place = int(np.argmax(codes == next(i for i, value in enumerate(values) if value != value)))
        row = place if selection is None else int(selection[place])
        raise UnusableRowsError(
            f"{index.files.where(row)}: column {name!r} is NaN, which is no class. Filter these rows."
        )
    return _Classes(codes, values)


def _combined(parts: Sequence[_Classes]) -> _Classes:
    """Return a class for each combination of values that occurs."""
    codes, values = parts[0].codes.astype(np.int64), [(value,) for value in parts[0].values]
    for part in parts[1:]:
        size = len(part.values)
        present, codes = np.unique(codes * size + part.codes, return_inverse=True)
        values = [(*values[number // size], part.values[number % size]) for number in present.tolist()]
    return _Classes(codes, values)


def _shares(weights: Balance, values: list[Any]) -> np.ndarray:
    """Return the share of each class; those that are not named share the rest equally."""
    numbers = {value: number for number, value in enumerate(values)}
    shares = np.full(len(values), np.nan)
    for value, share in weights.shares:
        if value not in numbers:
            raise OptionError(
                f"{weights!r}: no selected row is of class {value!r}; there are {len(values)} classes: "
                f"{few([repr(value) for value in values])}"
            )
        shares[numbers[value]] = share
    others = np.isnan(shares)
    rest = 1 - math.fsum(shares[~others].tolist())
    if not others.any() and abs(rest) > _ROUNDED:
        raise OptionError(f"{weights!r}: all {len(values)} classes have a share; expected the sum 1")
    shares[others] = max(rest, 0.0) / max(int(others.sum()), 1)
    return shares


def _by_file(index: RowIndex, selection: np.ndarray | None, shares: Mapping[str, float]) -> np.ndarray:
    """Return the weight of each selected row: the share of its files, divided by their selected rows."""
    files = index.files
    groups = _file_groups(files.all_paths(), list(shares))
    rows = np.diff(files.starts if selection is None else np.searchsorted(selection, files.starts))
    counts = np.bincount(groups, rows, minlength=len(shares))
    for number, pattern in enumerate(shares):
        if not counts[number]:
            why = "no selected row" if (groups == number).any() else "no file"
            raise OptionError(f"Shuffle: weights={dict(shares)!r}: {pattern!r} has {why} of {len(files)} files")
    return np.repeat((np.array([*shares.values()]) / counts)[groups], rows)


def _file_groups(paths: Sequence[str], patterns: Sequence[str]) -> np.ndarray:
    """Return the number of the pattern of each file."""
    numbers = np.empty(len(paths), np.int64)
    for file, path in enumerate(paths):
        matching = [number for number, pattern in enumerate(patterns) if _matches(path, pattern)]
        if len(matching) != 1:
            what = f"matches {few([repr(patterns[number]) for number in matching])}" if matching else "has no share"
            raise OptionError(f"Shuffle: weights: {path} {what}; expected exactly one pattern for each file")
        numbers[file] = matching[0]
    return numbers


def _matches(path: str, pattern: str) -> bool:
    """Return whether a path, or its last parts, match a pattern. ``*`` of an absolute pattern matches folders too."""
    return fnmatch.fnmatchcase(path, pattern) or PurePath(path).match(pattern)
