"""Where the rows of a column begin and end in a longer array."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from ray_h5.errors import CorruptFileError


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


def bounds_of_offsets(offsets: np.ndarray, where: str) -> Bounds:
    """Return the bounds of rows that follow each other.

    Raises
    ------
    CorruptFileError
        If the offsets are no ascending integers from 0 on.
    """
    found = _as_integers(offsets, where)
    if not len(found):
        raise CorruptFileError(f"{where} is empty; expected the end of the last row, a length more than there are rows")
    wrong = np.flatnonzero(found[1:] < found[:-1])
    if len(wrong):
        at = int(wrong[0]) + 1
        raise CorruptFileError(f"{where}: offset {at} is {found[at]}, below the one before, {found[at - 1]}")
    if int(found[0]) < 0:
        raise CorruptFileError(f"{where}: offset 0 is {found[0]}; expected offsets from 0 on")
    return Bounds(found[:-1], found[1:])


def bounds_of_counts(starts: np.ndarray, counts: np.ndarray, where: str) -> Bounds:
    """Return the bounds of rows that are anywhere.

    Raises
    ------
    CorruptFileError
        If there are other numbers of starts than of counts, or one is negative.
    """
    first, count = _as_integers(starts, where), _as_integers(counts, where)
    if len(first) != len(count):
        raise CorruptFileError(f"{where}: {len(first)} starts and {len(count)} counts; expected one of each for a row")
    for values, what in ((first, "start"), (count, "count")):
        wrong = np.flatnonzero(values < 0)
        if len(wrong):
            raise CorruptFileError(f"{where}: {what} {wrong[0]} is {values[wrong[0]]}; expected 0 or more")
    wrong = np.flatnonzero(first > np.iinfo(np.int64).max - count)
    if len(wrong):
        raise CorruptFileError(f"{where}: row {wrong[0]} starts at {first[wrong[0]]}, past what a file can hold")
    return Bounds(first, first + count)


def check_inside(bounds: Bounds, length: int, where: str, content: str) -> None:
    """Raise `CorruptFileError` if a row ends after the array that it is a part of."""
    wrong = np.flatnonzero(bounds.stops > length)
    if len(wrong):
        row = int(wrong[0])
        raise CorruptFileError(
            f"{where}: row {row} goes from {bounds.starts[row]} to {bounds.stops[row]}, and {content!r} has {length} "
            "values"
        )


def _as_integers(values: np.ndarray, where: str) -> np.ndarray:
    if values.ndim != 1 or values.dtype.kind not in "iu":
        raise CorruptFileError(f"{where} has {values.dtype} of shape {values.shape}; expected integers along one axis")
    if values.dtype == np.uint64 and len(values) and int(values.max()) > np.iinfo(np.int64).max:
        raise CorruptFileError(f"{where}: {values.max()} is past what a file can hold")
    return values.astype(np.int64, copy=False)
