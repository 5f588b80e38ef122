"""Where the rows of a column begin and end in a longer array."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ray_h5.errors import CorruptFileError, SchemaMismatchError

if TYPE_CHECKING:
    from ray_h5.columns.derived_columns import BoundsLike, Ragged
    from ray_h5.manifest.partition import Partition


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

    @classmethod
    def of(cls, rows: Partition) -> Bounds:
        """Return the bounds of rows that follow each other."""
        return cls(rows.firsts, rows.starts[1:])

    @classmethod
    def end_to_end(cls, parts: Sequence[Bounds], firsts: np.ndarray) -> Bounds:
        """Return the rows of all parts, given for each row the first unit of its part."""
        nothing = np.empty(0, np.int64)
        starts = np.concatenate([nothing, *(part.starts for part in parts)])
        return cls(starts + firsts, np.concatenate([nothing, *(part.stops for part in parts)]) + firsts)

    def __len__(self) -> int:
        return len(self.starts)

    @property
    def total(self) -> int:
        """Values of all rows."""
        return int((self.stops - self.starts).sum())


@contextlib.contextmanager
def as_said(advice: str) -> Iterator[None]:
    """Raise what is wrong of bounds that the user names as an error of the option: nothing says that the file is.

    Without advice, the file says that these are bounds, and is corrupt.
    """
    try:
        yield
    except CorruptFileError as exc:
        if not advice:
            raise
        raise SchemaMismatchError(f"{str(exc).removesuffix('.')}. {advice}") from None


def bounds_in(
    arrays: Mapping[str, np.ndarray], where: str, base: int = 0, *, inclusive: bool = False, num_values: int = 0
) -> Bounds:
    """Return the bounds of rows that the values of datasets say, by option of `ragged`.

    An empty row may begin anywhere: programs write 0 or -1 for the start of nothing. It is put where the row before it
    ends. With starts alone, rows end where the next one begins, and the last one after `num_values`.

    Raises
    ------
    CorruptFileError, SchemaMismatchError
        If they are no integers of the right number, or a row begins before `base` or ends before it begins.
    """
    last = int(inclusive)  # ends are the last values of rows then
    if (pairs := arrays.get("bounds")) is not None:
        if pairs.ndim != 2 or pairs.shape[1] != 2:
            of_wider = ". ragged() takes two columns of a wider array as bounds=part(..., {0: [0, 1]})"
            raise SchemaMismatchError(
                f"{where} has {pairs.dtype} of shape {pairs.shape}; expected start and end of each, of shape (number, "
                f"2){of_wider if pairs.ndim == 2 else ''}"
            )
        arrays = {"starts": pairs[:, 0], "ends": pairs[:, 1]}
    known, says_both = {option: integers_in(values, where) for option, values in arrays.items()}, len(arrays) > 1
    if {*known} == {"starts"}:
        known = {"offsets": np.append(known["starts"], base + num_values)}
    if (offsets := known.get("offsets")) is not None:
        if not len(offsets):
            raise CorruptFileError(
                f"{where} is empty; expected the end of the last row, a length more than there are rows"
            )
        known = {"starts": offsets[:-1], "ends": offsets[1:]}
    other = "ends" if "ends" in known else "counts"
    if (starts := known.get("starts")) is None:
        before = known[other] if other == "ends" else base + np.cumsum(known[other])
        starts = np.concatenate([np.array([base], np.int64), before[:-1] + last])[: len(before)]
    if len(starts) != len(known[other]):
        raise CorruptFileError(
            f"{where}: {len(starts)} starts and {len(known[other])} {other}; expected one of each for a row"
        )
    ends = known[other] if other == "ends" else starts + known[other]
    stops = ends + last  # one past int64 is below its start
    if says_both and (is_empty := stops == starts).any():
        before = np.maximum.accumulate(np.where(is_empty, 0, np.arange(1, len(starts) + 1)))  # 0 for none
        starts = np.where(is_empty, np.append(base, stops)[before], starts)
        stops = np.where(is_empty, starts, stops)
    if (wrong := np.flatnonzero((starts < base) | (stops < starts))).size:
        row = int(wrong[0])
        raise CorruptFileError(
            f"{where}: row {row} goes from {starts[row]} to {ends[row]}; expected a start from {base} on, and an end "
            "that is not before it"
        )
    return Bounds(starts - base, stops - base)


def check_bounds(bounds: Bounds, made: Ragged, length: int, path: str) -> None:
    """Raise unless rows are among the values of their content, and all of them if they follow each other.

    `path` is the file, and the group if there are several.

    Raises
    ------
    SchemaMismatchError, CorruptFileError
        If rows leave out values at an end, so that another option gives other rows; or end after all values.
    """
    first, last = (int(bounds.starts[0]), int(bounds.stops[-1])) if len(bounds) else (0, 0)
    given, base, to = made.given, made.base, made.base - made.inclusive
    option, name = next(iter(given.items()))
    is_all = {*given} == {"starts"} or (made.starts is None and option != "bounds")
    if is_all and (first, last) != (0, length):
        advice = _fitting(bounds, option, length, name, base)
        if advice or last <= length:
            raise SchemaMismatchError(
                f"{path}: {name!r}: rows go from {first + base} to {last + to}; expected {base} to {length + to}, all "
                f"values of {made.content!r}. {advice}If rows are anywhere in it, pass starts= and counts=."
            )
    check_inside(bounds, length, f"{path}: column {made.name!r}", f"{made.content}", (base, to))


def check_inside(bounds: Bounds, length: int, where: str, content: str, to: tuple[int, int] = (0, 0)) -> None:
    """Raise `CorruptFileError` if a row ends after the array that it is a part of, in numbers as they are stored."""
    wrong = np.flatnonzero(bounds.stops > length)
    if len(wrong):
        row = int(wrong[0])
        first, last = bounds.starts[row] + to[0], bounds.stops[row] + to[1]
        raise CorruptFileError(f"{where}: row {row} goes from {first} to {last}, and {content!r} has {length} values")


def _fitting(bounds: Bounds, option: str, length: int, name: BoundsLike, base: int) -> str:
    """Return which option fits numbers that are no offsets or ends of all values; empty if none does."""
    if option == "counts" or not len(bounds):
        return ""
    if option == "starts":
        return f"The numbers fit starts={name!r}, base=1. " if base == 0 and bounds.starts[0] == 1 else ""
    first = int((bounds.starts if option == "offsets" else bounds.stops)[0]) + base
    last = int(bounds.stops[-1]) + base
    fits = {
        "offsets={}": (first, last) == (0, length),
        "offsets={}, base=1": (first, last) == (1, length + 1),
        "ends={}": last == length,
        "ends={}, inclusive=True": first > 0 and last == length - 1,
        "ends={}, base=1": option == "ends" and last == length + 1,
    }
    if (form := next((option for option, holds in fits.items() if holds), None)) is not None:
        return f"The numbers fit {form.format(repr(name))}. "
    if first == 0 and last < length:
        return f"The numbers fit starts={name!r}, with rows that end where the next one begins. "
    return ""


def integers_in(values: np.ndarray, where: str) -> np.ndarray:
    """Return integers along one axis as int64; raise `SchemaMismatchError` or `CorruptFileError` for other values."""
    if values.ndim > 1 and values.dtype.kind in "iu":
        raise SchemaMismatchError(
            f"{where} has {values.dtype} of shape {values.shape}; expected integers along one axis. If they are a "
            "column of a wider array, pass it as part(..., {0: [0]})"
        )
    if values.ndim != 1 or values.dtype.kind not in "iu":
        raise CorruptFileError(f"{where} has {values.dtype} of shape {values.shape}; expected integers along one axis")
    if values.dtype == np.uint64 and len(values) and int(values.max()) > np.iinfo(np.int64).max:
        raise CorruptFileError(f"{where}: {values.max()} is past what a file can hold")
    return values.astype(np.int64, copy=False)
