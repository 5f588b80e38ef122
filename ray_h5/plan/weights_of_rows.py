"""The weight of each selected row: a column, an array, or shares of classes and of files."""

from __future__ import annotations

import fnmatch
import math
from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import Any

import numpy as np
import pyarrow as pa

from ray_h5.errors import OptionError
from ray_h5.index.row_index import RowIndex
from ray_h5.messages import few
from ray_h5.order.draws.shuffle import Balance, UnusableRowsError, Weights, first_wrong
from ray_h5.order.draws.weighted_draws import Draws, Option, check_length
from ray_h5.predicates.comparisons import encode
from ray_h5.tables.table_columns import one_array

_ROUNDED = 1e-5
"""Shares are written as decimals: 0.33333 three times is one."""

_NUMBERS: dict[Option, tuple[str, str]] = {
    "weights": ("weight", "to draw each class equally often, write weights=balance({!r})"),
    "by_length": ("length", "name a column with the length of each row, or pass lengths as an array"),
}
"""What the numbers of an option are, one of them; and what to write instead of a column without numbers."""


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
        return Draws.of(_by_class(index, selection, weights))
    if isinstance(weights, Mapping):
        return Draws.of(_by_file(index, selection, weights))
    assert weights is not None
    return Draws.of(row_values(index, selection, "weights", weights))


def row_values(index: RowIndex, selection: np.ndarray | None, option: Option, value: str | np.ndarray) -> np.ndarray:
    """Return a number for each selected row.

    Raises
    ------
    OptionError
        If one is missing, negative, infinite or NaN, or the values are no numbers.
    UnknownColumnError
        If there is no such column.
    """
    if isinstance(value, np.ndarray):
        check_length(value, index.num_rows, "the files", option)
        return value if selection is None else value[selection]
    (noun, advice), spec = _NUMBERS[option], index.find([value])[value]
    kind = spec.kept_type if spec.has_one_value else pa.int64()  # for arrays a row, the error follows
    # Before it is read: lists may be large.
    if not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)):
        if pa.types.is_nested(kind) or pa.types.is_fixed_size_binary(kind):  # which are no classes, either
            advice = "pass what you compute from it as an array with a number for each row"
        raise OptionError(
            f"Shuffle: {option}={value!r}: expected a column of numbers, found {kind}; {advice.format(value)}"
        )
    column = _scalars(index, selection, option, [value])[value]
    values = one_array(column).to_numpy(zero_copy_only=False)
    values = values if selection is None else values[selection]
    wrong = first_wrong(values)
    if wrong is not None:
        row = wrong if selection is None else int(selection[wrong])
        raise UnusableRowsError(
            f"{index.files.where(row)}: column {value!r} is {values[wrong]}: expected a {noun}, a finite number of 0 "
            f"or more. Filter these rows, or pass {option} as an array."
        )
    return values


def _scalars(
    index: RowIndex, selection: np.ndarray | None, option: Option, names: Sequence[str]
) -> dict[str, pa.ChunkedArray]:
    """Return columns of one value a row, as the files store them: draws are the same, whatever a dataset casts.

    Raise if one has arrays, or lacks the value of a selected row. NaN is a value here.
    """
    for name, spec in index.find(names).items():
        if not spec.has_one_value:
            held = "rows of varying shape" if spec.kind == "ragged" else f"an array of shape {spec.shown_shape} a row"
            raise OptionError(
                f"Shuffle: {option}: column {name!r} holds {held}; expected one value a row. Pass what you compute "
                "from it as an array with a number for each row."
            )
    columns = index.values(names, stored=True)
    for name, column in columns.items():
        absent = column.is_null().to_numpy() if column.null_count else np.zeros(0, bool)
        rows = np.flatnonzero(absent) if selection is None or not len(absent) else selection[absent[selection]]
        if len(rows):
            raise UnusableRowsError(
                f"{index.files.where(int(rows[0]))}: column {name!r} has no value here, and in {len(rows)} selected "
                "rows in all. Filter these rows."
            )
    return columns


def _by_class(index: RowIndex, selection: np.ndarray | None, weights: Balance) -> np.ndarray:
    """Return the weight of each selected row: the share of its class, divided by the rows of the class."""
    columns = _scalars(index, selection, "weights", weights.columns)
    (codes, values), *others = (_encoded(index, column, selection, name) for name, column in columns.items())
    if others:  # a class for each combination of values that occurs
        codes, values = codes.astype(np.int64), [(value,) for value in values]
    for more, more_values in others:
        size = len(more_values)
        present, codes = np.unique(codes * size + more, return_inverse=True)
        values = [(*values[number // size], more_values[number % size]) for number in present.tolist()]
    shares = _shares(weights, values)
    return (shares / np.bincount(codes, minlength=len(shares)))[codes]


def _encoded(
    index: RowIndex, column: pa.ChunkedArray, selection: np.ndarray | None, name: str
) -> tuple[np.ndarray, list[Any]]:
    """Return the class of each selected row by its number, and the values of the classes."""
    array = one_array(column)
    array = array if selection is None else array.take(pa.array(selection))
    try:
        encoded = encode(array)
    except pa.ArrowNotImplementedError as exc:
        raise OptionError(
            f"balance({name!r}): values of type {array.type} cannot be classes; expected text or integers"
        ) from exc
    codes, values = encoded.indices.to_numpy(), encoded.dictionary.to_pylist()
    if any(value != value for value in values):  # NaN
        place = int(np.argmax(codes == next(i for i, value in enumerate(values) if value != value)))
        row = place if selection is None else int(selection[place])
        raise UnusableRowsError(
            f"{index.files.where(row)}: column {name!r} is NaN, which is no class. Filter these rows."
        )
    return codes, values


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
    files, patterns = index.files, list(shares)
    groups = np.empty(len(files), np.int64)  # the number of the pattern of each file
    for file, path in enumerate(files.all_paths()):
        # A path matches, or its last parts. ``*`` of an absolute pattern matches folders too.
        matching = [one for one in patterns if fnmatch.fnmatchcase(path, one) or PurePath(path).match(one)]
        if len(matching) != 1:
            what = f"matches {few([*map(repr, matching)])}" if matching else "has no share"
            raise OptionError(f"Shuffle: weights: {path} {what}; expected exactly one pattern for each file")
        groups[file] = patterns.index(matching[0])
    rows = np.diff(files.starts if selection is None else np.searchsorted(selection, files.starts))
    counts = np.bincount(groups, rows, minlength=len(shares))
    for number, pattern in enumerate(patterns):
        if not counts[number]:
            why = "no selected row" if (groups == number).any() else "no file"
            raise OptionError(f"Shuffle: weights={dict(shares)!r}: {pattern!r} has {why} of {len(files)} files")
    return np.repeat((np.array([*shares.values()]) / counts)[groups], rows)
