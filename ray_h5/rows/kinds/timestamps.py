"""When the samples of columns are that have times of their own: listed by a dataset, or at a rate."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np

from ray_h5.columns.column_resolver import Columns
from ray_h5.columns.row_table import RowTable
from ray_h5.columns.values import read_units
from ray_h5.errors import CorruptFileError, OptionError, UnsupportedColumnError
from ray_h5.manifest.partition import Partition
from ray_h5.rows.kinds.samples_around import Times, TimesOfColumns, like_a_number
from ray_h5.rows.windows_option import WindowColumn, Windows

_RATES = ("rate", "sampling_rate", "sample_rate", "fs", "frequency")
_STEPS = ("Xspacing", "dt", "delta")
_STARTS = ("starting_time", "Xstart", "start_time", "t0", "start")
"""Attributes that say the rate of a column, the seconds between its samples, and when it begins."""

_LONGEST = float(1 << 62)

_PER_SECOND = {"s": 1, "ms": 1000, "us": 10**6, "ns": 10**9}

_NWB_START = "starting_time"
"""A dataset of NWB beside a column: its value is the first time, and its attribute the rate."""


class TimesOf:
    """Finds the times of columns.

    Parameters
    ----------
    columns : Columns
        The columns of the recordings.
    windows : Windows
        Windows with `at`.
    known : dict of str to Times
        The times that were found before, to which others are added.
    """

    def __init__(self, columns: Columns, windows: Windows, known: dict[str, Times]) -> None:
        self._columns = columns
        self._where = columns.where
        self._windows = windows
        self.known = known

    def __call__(self, column: str) -> Times:
        """Return the times of the samples of a column."""
        if column not in self.known:
            self.known[column] = self._find(column)
        return self.known[column]

    @property
    def datasets(self) -> set[str]:
        """The datasets of times that `at` names for single columns: they are none themselves."""
        named = self._windows.at if isinstance(self._windows.at, tuple) else ()
        return {name for column, times in named if isinstance(times, str) for name in self._names(column, times)}

    def _names(self, column: str, times: str) -> tuple[str, str]:
        """Return the names that the dataset of times of a column may have: beside the column, or in the file."""
        own, above = times.strip("/"), self._columns.dataset_below_field(column).rpartition("/")[0]
        return f"{above}/{own}".strip("/"), own

    def _find(self, column: str) -> Times:
        samples, said = self._columns.parts(column), self._windows.times_of(column)
        if samples.is_single:
            raise UnsupportedColumnError(
                f"{self._columns.path}: Windows: column {column!r} has a single value, and no axis of time. Leave it "
                "out of the offsets: each row then has the value of its recording."
            )
        counts = samples.lengths
        if isinstance(said, tuple):
            return regular(counts, np.full(len(counts), said[0]), _starts([said[1]] * len(counts)))
        for name in dict.fromkeys(self._names(column, said)) if said.strip("/") else ():
            is_own = name == said.strip("/")
            if self._columns.has(name) and (times := self._listed(column, name, counts, is_own=is_own)):
                return times
        rates, starts = self._said_rates(column)
        rates = np.where(np.isnan(rates) & (counts == 0), 1.0, rates)  # of no samples
        if (lacking := np.flatnonzero(np.isnan(rates))).size:
            looked = f"a dataset {said!r} beside it" if said else "at= names none for it"
            raise UnsupportedColumnError(
                f"{self._where(int(lacking[0]))}: Windows: column {column!r} has no times: {looked}, and no attribute "
                f"says its rate ({', '.join([*_RATES, *_STEPS])}). Name them: at={{{column!r}: 'dataset'}}, or "
                f"at={{{column!r}: (rate, first time)}}."
            )
        if (wrong := np.flatnonzero(~((rates > 0) & (rates < math.inf)))).size:
            raise CorruptFileError(
                f"{self._where(int(wrong[0]))}: column {column!r}: its rate is {rates[wrong[0]]}; expected one above 0"
            )
        return regular(counts, rates, starts)

    def _listed(self, column: str, name: str, counts: np.ndarray, *, is_own: bool) -> Times | None:
        """Return the times that a dataset lists; None if they are of another column."""
        samples = self._columns.parts(name)
        array = samples.values.array
        if array.row_shape or array.kind not in {"number", "time"} or samples.is_single:
            held = "a single value" if samples.is_single else f"{array.kind} values of shape {array.shape}"
            raise UnsupportedColumnError(
                f"{array.where} has {held}; expected times along one axis, one for each sample of {column!r}. Name "
                f"other ones: at={{{column!r}: 'dataset'}}, or at={{{column!r}: (rate, first time)}}."
            )
        if (differ := np.flatnonzero(samples.lengths != counts)).size:
            if is_own and name != column and isinstance(self._windows.at, str):
                return None
            at = int(differ[0])
            raise UnsupportedColumnError(
                f"{self._where(at)}: {name!r} has {samples.lengths[at]} times, and {column!r} has {counts[at]} "
                "samples; expected equally many"
            )

        times = read_units(self._columns.reader, samples.values, int(counts.sum()))
        recordings, values, per_second = Partition.of(counts), *_numbers(times)
        is_wrong = np.isnat(times) if times.dtype.kind in "mM" else ~np.isfinite(times)
        descends = np.zeros(len(values), bool)
        descends[1:] = values[1:] < values[:-1]
        descends[recordings.firsts[counts > 0]] = False
        is_wrong |= (values.dtype.kind == "i") & (times.dtype.kind == "u") & (values < 0)  # beyond int64
        if (wrong := np.flatnonzero(is_wrong if is_wrong.any() else descends)).size:
            at = int(wrong[0])
            recording, sample = map(int, recordings.local(at))
            after = "" if is_wrong.any() else f", after {times[at - 1]}"
            raise CorruptFileError(
                f"{self._where(recording)}: {name!r}: time {sample} is {times[at]}"
                f"{after}; expected finite times that ascend, one for each sample of {column!r}. Write the times "
                f"again, or pass at={{{column!r}: (rate, first time)}}."
            )
        gaps = [np.diff(values[end - n : end]) for n, end in zip(counts, recordings.starts[1:], strict=True)]
        steps = [np.median(of) if len(of) else 0.0 for of in gaps]
        closest = [of[of > 0].min() if of.any() else math.inf for of in gaps]
        starts, resolution = np.zeros(len(counts), values.dtype), np.zeros(len(counts))
        starts[counts > 0] = values[recordings.firsts[counts > 0]]
        at_ends = recordings.firsts, recordings.starts[1:] - 1  # the first and the last sample of each
        first, last = (times[at[counts > 0]] for at in at_ends)
        if values.dtype.kind == "f":
            resolution[counts > 0] = np.spacing(np.maximum(np.abs(first), np.abs(last)))
        lasted = values[at_ends[1][counts > 0]].astype(np.float64) - starts[counts > 0]
        if (lasted > _LONGEST).any():
            at = int(np.flatnonzero(counts)[lasted.argmax()])
            raise CorruptFileError(
                f"{self._where(at)}: {name!r}: times go from {first[lasted.argmax()]} to {last[lasted.argmax()]}; "
                "expected a recording that lasts less than that. Write the times again."
            )
        return Times(
            counts,
            starts,
            np.array(steps, np.float64),
            listed=values,
            closest=np.array(closest, np.float64),
            resolution=resolution,
            per_second=per_second,
        )

    def _said_rates(self, column: str) -> tuple[np.ndarray, np.ndarray]:
        """Return the rates and the first times that attributes say, or NWB's ``starting_time`` beside the column.

        A rate is NaN where none is said.
        """
        said = self._columns.attributes_of(column, [*_STARTS, *_RATES, *_STEPS])
        starts = [_number(names, _STARTS) for names in said]
        rates, steps = (np.array([_number(names, of) for names in said], np.float64) for of in (_RATES, _STEPS))
        with np.errstate(divide="ignore"):
            rates = np.where(np.isnan(rates) & (steps != 0), 1 / steps, rates)
        name = self._names(column, _NWB_START)[0]
        if (lacks := np.isnan(rates)).any() and self._columns.has(name):
            first, of = self._columns.parts(name), self._columns.attributes_of(name, ["rate"])
            if first.is_single:
                rates = np.where(lacks, [_number(attributes, ["rate"]) for attributes in of], rates)
                lacks &= first.lengths > 0
                read, per_second = _numbers(read_units(self._columns.reader, first.values, int(first.lengths.sum())))
                read = read if per_second == 1 else read / per_second
                for at, start in zip(np.flatnonzero(lacks), read[lacks[first.lengths > 0]].tolist(), strict=True):
                    starts[at] = start
        if (wrong := np.flatnonzero(np.isinf(np.array(starts, np.float64)))).size:
            raise CorruptFileError(
                f"{self._where(int(wrong[0]))}: column {column!r}: its first time is {starts[wrong[0]]}; expected a "
                f"finite one. Pass at={{{column!r}: (rate, first time)}}."
            )
        return rates, _starts([0 if math.isnan(start) else start for start in starts])


def _numbers(times: np.ndarray) -> tuple[np.ndarray, int]:
    """Return times as int64 or float64, and how many of their units are a second; 1 for numbers."""
    if times.dtype.kind not in "mM":
        return times.astype(np.int64 if times.dtype.kind in "iu" else np.float64, copy=False), 1
    unit = np.datetime_data(times.dtype)[0]
    unit = unit if unit in _PER_SECOND else "s"
    return times.astype(f"{times.dtype.kind}8[{unit}]", copy=False).view(np.int64), _PER_SECOND[unit]


def _number(said: Mapping[str, Any], names: Sequence[str]) -> float:
    """Return the first of some attributes that is one number, an integer as one; NaN if there is none."""
    numbers = [np.ravel(said[name]) for name in names if name in said]
    return next((number[0].item() for number in numbers if len(number) == 1 and number.dtype.kind in "iuf"), math.nan)


def _starts(said: Sequence[float]) -> np.ndarray:
    """Return first times as int64 if all of them are integers that it holds, else as float64."""
    are_integers = all(isinstance(start, int) and abs(start) < 1 << 63 for start in said)
    return np.array(said, np.int64 if are_integers else np.float64)


def regular(counts: np.ndarray, rates: np.ndarray, starts: np.ndarray, per_second: int = 1) -> Times:
    """Return the times of samples at rates, which are samples a second."""
    rates = rates / per_second
    with np.errstate(over="ignore"):
        return Times(counts, starts, 1 / rates, rates, per_second=per_second)


def width_of(window: WindowColumn, times_of: Callable[[str], Times]) -> int | None:
    """Return how many samples each row has of a column; None if they are not equally many."""
    if window.span is None:
        return len(window.offsets)
    times = times_of(window.source)
    if not times.is_regular or not len(times.rates):
        return None
    low, high = window.span
    with np.errstate(over="ignore"):
        samples = (high - low) * times.rates
    if samples[0] > _LONGEST:
        raise OptionError(
            f"Windows: column {window.name!r}: slice({low}, {high}) has {samples[0]:.4g} samples in each row"
        )
    count = round(samples[0])
    return count if (np.rint(samples) == count).all() and like_a_number(samples).all() else None


def check_widths(
    paths: Sequence[str], tables: Sequence[RowTable | None], windows: Windows, columns: Collection[str] | None
) -> None:
    """Raise if a slice has one number of samples in some files, whose rows are padded, and not in others.

    Parameters
    ----------
    paths, tables : sequence
        The files, and what is known of their rows.
    windows : Windows
        The windows, with `at`.
    columns : collection of str, optional
        The columns that are read; None for all.
    """
    for window in windows.columns if windows.marks_padding else ():
        if window.span is None or (columns is not None and window.name not in columns):
            continue
        pairs = zip(paths, tables, strict=True)
        known = {path: table.found(TimesOfColumns).of for path, table in pairs if table is not None}
        widths = {path: width_of(window, times.__getitem__) for path, times in known.items() if times}
        padded = next((path for path, width in widths.items() if width is not None), None)
        varying = next((path for path, width in widths.items() if width is None), None)
        if padded is not None and varying is not None:
            raise OptionError(
                f"Windows: column {window.name!r}: slice({window.span[0]}, {window.span[1]}) has {widths[padded]} "
                f"samples in each row of {padded}, which are padded, and as many as there are in {varying}. Pass "
                "pad='drop', or a list of offsets in seconds instead of the slice, or read these files apart."
            )
