"""Where the rows of a column begin and end in a longer array."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from ray_h5.errors import CorruptFileError, SchemaMismatchError

if TYPE_CHECKING:
    from ray_h5.columns.derived_columns import Ragged


@dataclass(frozen=True, slots=True, eq=False)
class Bounds:
    """Row i is the range from ``starts[i]`` to ``stops[i]``.

    Attributes
    ----------
    starts, stops : numpy.ndarray
        int64.
    """

    starts: np.ndarray
    stops: np.ndarray

    def __len__(self) -> int:
        return len(self.starts)

    @property
    def total(self) -> int:
        """Values of all rows."""
        return int((self.stops - self.starts).sum())


@dataclass(frozen=True, slots=True)
class ChunkedBy:
    """In which steps the rows of a column are best read: as the chunks of the longer array are.

    Attributes
    ----------
    key : str
        The bounds of the column.
    size : int
        Values of a chunk.
    """

    key: str
    size: int = field(default=1)


def rows_key(name: str) -> str:
    """Return the key of the rows that each group has of a column, among the bounds of a file."""
    return f"rows of {name}"


def episodes_key(name: str) -> str:
    """Return the key of episodes whose bounds a dataset has, among the bounds of a file."""
    return f"episodes {name}"


def bounds_of_offsets(offsets: np.ndarray, where: str, base: int = 0) -> Bounds:
    """Return the bounds of rows that follow each other; the first value has the number `base`.

    Raises
    ------
    CorruptFileError
        If the offsets are no ascending integers from `base` on.
    """
    values = _as_integers(offsets, where)
    if not len(values):
        raise CorruptFileError(f"{where} is empty; expected the end of the last row, a length more than there are rows")
    _check_ascending(values, where, "offset", base)
    return Bounds(values[:-1] - base, values[1:] - base)


def bounds_of_ends(ends: np.ndarray, where: str, base: int = 0, *, inclusive: bool = False) -> Bounds:
    """Return the bounds of rows that each begin where the one before ends; errors as `bounds_of_offsets`."""
    values = _as_integers(ends, where)
    _check_ascending(values, where, "end", base - inclusive)
    stops = values - base + inclusive
    return Bounds(np.concatenate([np.zeros(1, np.int64), stops[:-1]])[: len(stops)], stops)


def bounds_of_pairs(
    starts: np.ndarray, ends: np.ndarray, where: str, base: int = 0, *, inclusive: bool = False
) -> Bounds:
    """Return the bounds of rows that are anywhere, given where each begins and ends.

    Raises
    ------
    CorruptFileError
        If there are other numbers of starts than of ends, or a row ends before it begins.
    """
    first, last = _as_integers(starts, where), _as_integers(ends, where)
    if len(first) != len(last):
        raise CorruptFileError(f"{where}: {len(first)} starts and {len(last)} ends; expected one of each for a row")
    if len(wrong := np.flatnonzero((first < base) | (last + inclusive < first))):
        row = int(wrong[0])
        raise CorruptFileError(
            f"{where}: row {row} goes from {first[row]} to {last[row]}; expected a start from {base} on, and an end "
            "that is not before it"
        )
    return Bounds(first - base, last - base + inclusive)


def bounds_of_counts(starts: np.ndarray, counts: np.ndarray, where: str, base: int = 0) -> Bounds:
    """Return the bounds of rows that are anywhere.

    Raises
    ------
    CorruptFileError
        If there are other numbers of starts than of counts, or one is negative.
    """
    first, count = _as_integers(starts, where), _as_integers(counts, where)
    if len(first) != len(count):
        raise CorruptFileError(f"{where}: {len(first)} starts and {len(count)} counts; expected one of each for a row")
    for values, what, least in ((first, "start", base), (count, "count", 0)):
        wrong = np.flatnonzero(values < least)
        if len(wrong):
            raise CorruptFileError(f"{where}: {what} {wrong[0]} is {values[wrong[0]]}; expected {least} or more")
    wrong = np.flatnonzero(first > np.iinfo(np.int64).max - count)
    if len(wrong):
        raise CorruptFileError(f"{where}: row {wrong[0]} starts at {first[wrong[0]]}, past what a file can hold")
    return Bounds(first - base, first - base + count)


def bounds_in(arrays: Mapping[str, np.ndarray], made: Ragged, where: str) -> Bounds:
    """Return the bounds of rows that the values of datasets say, by option of `ragged`."""
    base, inclusive = made.base, made.inclusive
    if "offsets" in arrays:
        return bounds_of_offsets(arrays["offsets"], where, base)
    if "bounds" in arrays:
        starts, ends = pairs_of(arrays["bounds"], where)
        return bounds_of_pairs(starts, ends, where, base, inclusive=inclusive)
    if "counts" in arrays and "starts" not in arrays:
        count = _as_integers(arrays["counts"], where)
        return bounds_of_counts(np.cumsum(np.maximum(count, 0)) - np.maximum(count, 0), count, where)
    if "counts" in arrays:
        return bounds_of_counts(arrays["starts"], arrays["counts"], where, base)
    if "starts" in arrays:
        return bounds_of_pairs(arrays["starts"], arrays["ends"], where, base, inclusive=inclusive)
    return bounds_of_ends(arrays["ends"], where, base, inclusive=inclusive)


def check_bounds(bounds: Bounds, made: Ragged, length: int, path: str) -> None:
    """Raise unless the rows of a ragged column are among the values of its content, and all of them if it has offsets.

    `path` is the file, and the group if there are several; errors as `check_all_values` and `check_inside`.
    """
    if made.offsets is not None or (made.ends is not None and made.starts is None):
        option, name = next(iter(made.given.items()))
        check_all_values(bounds, length, f"{path}: {name!r}", made.content, option, made.base)
    last = int(bounds.stops[-1]) if len(bounds) else 0
    if made.counts is not None and made.starts is None and last < length:
        raise SchemaMismatchError(
            f"{path}: {made.counts!r}: the counts of all rows are {last} values, and {made.content!r} has {length}. If "
            "rows are anywhere in it, pass starts= too."
        )
    check_inside(bounds, length, f"{path}: column {made.name!r}", made.content)


def pairs_of(values: np.ndarray, where: str) -> tuple[np.ndarray, np.ndarray]:
    """Return the two columns of pairs.

    Raises
    ------
    CorruptFileError
        If they are no pairs.
    """
    if values.ndim != 2 or values.shape[1] != 2:
        raise CorruptFileError(
            f"{where} has {values.dtype} of shape {values.shape}; expected start and end of each, of shape (number, 2)"
        )
    return values[:, 0], values[:, 1]


def _check_ascending(values: np.ndarray, where: str, what: str, least: int) -> None:
    wrong = np.flatnonzero(values[1:] < values[:-1])
    if len(wrong):
        at = int(wrong[0]) + 1
        raise CorruptFileError(f"{where}: {what} {at} is {values[at]}, below the one before, {values[at - 1]}")
    if len(values) and int(values[0]) < least:
        raise CorruptFileError(f"{where}: {what} 0 is {values[0]}; expected {what}s from {least} on")


def check_inside(bounds: Bounds, length: int, where: str, content: str) -> None:
    """Raise `CorruptFileError` if a row ends after the array that it is a part of."""
    wrong = np.flatnonzero(bounds.stops > length)
    if len(wrong):
        row = int(wrong[0])
        raise CorruptFileError(
            f"{where}: row {row} goes from {bounds.starts[row]} to {bounds.stops[row]}, and {content!r} has {length} "
            "values"
        )


def check_all_values(bounds: Bounds, length: int, where: str, content: str, option: str, base: int) -> None:
    """Raise `SchemaMismatchError` if offsets or ends leave out values at an end: another option gives other rows.

    Rows after the last value are reported by `check_inside`, if no other option fits.

    Parameters
    ----------
    bounds : Bounds
        The rows that `option` gives.
    length : int
        Number of all values, those of `content`.
    option : {"offsets", "ends"}
        What the user says that the dataset holds.
    base : int
        The number of the first value, as the user says.
    """
    if not len(bounds):
        if length:
            problem = "one offset, and so no row" if option == "offsets" else "no ends"
            raise SchemaMismatchError(f"{where}: {problem}, and {content!r} has {length} values")
        return
    first, last = int(bounds.starts[0]), int(bounds.stops[-1])
    if (first, last) == (0, length):
        return
    is_offsets = option == "offsets"
    advice = _fitting(bounds, length, where.rpartition(": ")[2], base, is_offsets=is_offsets)
    if not advice and last > length:
        return
    shown = f"the last end is {last + base}; expected {length + base}"
    if is_offsets:
        shown = (
            f"the first offset is {first + base} and the last one {last + base}; expected {base} and {length + base}"
        )
    advice = advice or "They are no offsets of all its values, and neither the ends nor the starts of rows"
    raise SchemaMismatchError(
        f"{where}: {shown}, the length of {content!r}. {advice}; or pass starts= and counts=, datasets with the range "
        "of each row."
    )


def _fitting(bounds: Bounds, length: int, name: str, base: int, *, is_offsets: bool) -> str:
    """Return which option fits numbers that are no offsets or ends of all values; empty if none does."""
    count = len(bounds) + is_offsets
    first, last = int(bounds.starts[0] if is_offsets else bounds.stops[0]) + base, int(bounds.stops[-1]) + base
    fits = {
        "offsets={}": (first, last) == (0, length),
        "offsets={}, base=1": (first, last) == (1, length + 1),
        "ends={}": last == length,
        "ends={}, inclusive=True": first > 0 and last == length - 1,
        "ends={}, base=1": not is_offsets and last == length + 1,
    }
    if (form := next((option for option, holds in fits.items() if holds), None)) is not None:
        what = f"the ends of {count} rows, as NWB has them" if form.startswith("ends") else "offsets"
        return f"They look like {what}: pass {form.format(name)}"
    if first == 0 and last < length:
        return f"They look like the starts of {count} rows. Write offsets: these starts, and then {length}"
    return ""


def _as_integers(values: np.ndarray, where: str) -> np.ndarray:
    if values.ndim != 1 or values.dtype.kind not in "iu":
        raise CorruptFileError(f"{where} has {values.dtype} of shape {values.shape}; expected integers along one axis")
    if values.dtype == np.uint64 and len(values) and int(values.max()) > np.iinfo(np.int64).max:
        raise CorruptFileError(f"{where}: {values.max()} is past what a file can hold")
    return values.astype(np.int64, copy=False)
