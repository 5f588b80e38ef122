"""The samples of a column around the ticks of a clock: all arithmetic of times, and their one tolerance."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from ray_h5.manifest.partition import Partition
from ray_h5.manifest.row_requests import by_part
from ray_h5.merged_facts import Facts

LIKE_A_NUMBER = 1e-6
"""Parts of a sample, or of a unit of times that are integers: offsets and rates in floats are not exact."""

_EPS = 4 * float(np.finfo(np.float64).eps)
"""Relative error of a float after a few operations."""

_MOST = float(1 << 61)
"""Integers below it can be added a few times without an overflow."""


def like_a_number(values: np.ndarray) -> np.ndarray:
    """Return which values are whole numbers, up to the rounding of floats."""
    return np.abs(values - np.rint(values)) <= LIKE_A_NUMBER + _EPS * np.abs(values)


@dataclass(frozen=True, slots=True, eq=False)
class Times:
    """The times of the samples of a column in each recording, ascending: at a rate, or listed.

    Times that are integers stay integers.

    Attributes
    ----------
    counts : numpy.ndarray
        int64: the samples of each recording.
    starts : numpy.ndarray
        int64 or float64: the time of the first sample.
    steps : numpy.ndarray
        float64: the time of a sample; where times are listed, in the median.
    rates : numpy.ndarray
        float64: samples in a unit of time; empty where times are listed.
    listed : numpy.ndarray
        int64 or float64: the times of all samples, one recording after the other; empty for a rate.
    closest : numpy.ndarray
        float64: the least time between two listed samples that differ; infinite if there are none.
    resolution : numpy.ndarray
        float64: how far neighbouring floats are apart, of those that the file has near its times; 0 for integers.
    per_second : int
        The unit of times: datetimes are integers of so many a second. 1 for numbers, which offsets are added to.
    """

    counts: np.ndarray
    starts: np.ndarray
    steps: np.ndarray
    rates: np.ndarray = field(default_factory=lambda: np.empty(0))
    listed: np.ndarray = field(default_factory=lambda: np.empty(0))
    closest: np.ndarray = field(default_factory=lambda: np.empty(0))
    resolution: np.ndarray = field(default_factory=lambda: np.empty(0))
    per_second: int = 1

    @property
    def is_regular(self) -> bool:
        """Whether samples are at a rate."""
        return len(self.rates) == len(self.counts)


@dataclass(frozen=True, slots=True, eq=False)
class TimesOfColumns(Facts):
    """The times of the samples of each column of a file that windows name, as far as they are known."""

    of: Mapping[str, Times] = field(default_factory=dict)


class SamplesAround:
    """Which samples a column has around the ticks of a clock.

    Times are counted from the first sample of the column in each recording, in units of the column: Unix seconds are
    too large for floats to hold parts of samples. Where both are listed as integers, everything stays an integer and
    is compared exactly. Otherwise times count as equal that are no more than `near` apart::

                  lead          elapsed(tick)
              |--------->|-------------------------->|   offset
        sample 0      tick 0                       tick  ------> time that is asked for

    Parameters
    ----------
    ticks : Times
        The times of ticks.
    times : Times
        The times of the samples of the column.
    """

    def __init__(self, ticks: Times, times: Times) -> None:
        self._ticks, self.times = ticks, times
        self._firsts, self._tick_firsts = (Partition.of(each.counts).firsts for each in (times, ticks))
        self._lead, factor = _lead(ticks, times), times.per_second / ticks.per_second
        are_listed = all(not each.is_regular and each.starts.dtype.kind == "i" for each in (ticks, times))
        longest = max((float(np.abs(each.starts).max(initial=0)) for each in (ticks, times)), default=0.0)
        longest = max(longest * factor, float(np.abs(self._lead).max(initial=0)), _span(ticks) * factor, _span(times))
        self._is_exact = are_listed and factor == int(factor) and longest < _MOST * 2
        self._factor: float | int = factor
        if self._is_exact:
            self._factor = int(factor)
            self._lead = ticks.starts * self._factor - times.starts
        rounded = (~((self._lead == 0) & times.is_regular & ticks.is_regular)).astype(np.float64)
        resolution = 2 * rounded * (_resolution(ticks) * factor + _resolution(times))
        closest = times.steps if times.is_regular else times.closest
        self._near = LIKE_A_NUMBER * np.where(np.isfinite(closest), closest, 0) + resolution
        self._most = closest / 4

    def asked(self, recordings: np.ndarray, ticks: np.ndarray, offsets: tuple[float, ...]) -> np.ndarray:
        """Return the times at offsets from ticks, of shape ``(ticks, offsets)``, counted from the first sample."""
        since = _elapsed(self._ticks, self._tick_firsts, recordings, ticks) * self._factor + self._lead[recordings]
        units = np.array([offset * self.times.per_second for offset in offsets])
        if self._is_exact:
            units = np.where(like_a_number(units), np.rint(units), units)
            if (units == np.rint(units)).all() and (np.abs(units) < _MOST).all():
                units = units.astype(np.int64)
        return since[:, None] + units

    def first(self, recordings: np.ndarray, asked: np.ndarray) -> np.ndarray:
        """Return the first sample that is not before each time, as if samples went on before and after the recording.

        It is below 0, or above the number of samples, if more than one sample is missing there.
        """
        times, before = self.times, asked - self.near(recordings, asked)
        if times.is_regular:
            with np.errstate(over="ignore"):
                return _whole(np.ceil(before * times.rates[recordings]))
        if times.starts.dtype.kind == "i" and before.dtype.kind == "f":
            before = _whole(np.ceil(before))
        flat, of = np.ravel(before), np.ravel(recordings)
        samples = np.empty(len(flat), np.int64)
        for recording, places in by_part(of):
            begin, count = self._firsts[recording], times.counts[recording]
            own, start = times.listed[begin : begin + count], times.starts[recording]
            last = own[-1] - start if count else 0
            samples[places] = np.searchsorted(own, start + np.clip(flat[places], -1, last + 1))
        samples, counts = samples.reshape(before.shape), times.counts[recordings]
        step = np.maximum(times.steps[recordings], np.finfo(np.float64).tiny)  # of one sample it is 0
        after_last = before - self.at(recordings, np.maximum(counts - 1, 0))
        with np.errstate(over="ignore"):
            low, high = _whole(np.ceil(before / step)), _whole(np.ceil(after_last / step))
        beyond = np.where(samples == counts, np.maximum(high - 1, 0), 0)
        return np.where(counts == 0, 0, np.where(samples == 0, np.minimum(low, 0), samples + beyond))

    def near(self, recordings: np.ndarray, asked: np.ndarray) -> np.ndarray:
        """Return how far times may be apart that are the same: 0 for integers."""
        if self._is_exact:
            return np.zeros((), np.int64)
        return np.minimum(self._near[recordings] + _EPS * np.abs(asked), self._most[recordings])

    def at(self, recordings: np.ndarray, samples: np.ndarray) -> np.ndarray:
        """Return the times of samples, counted from the first one."""
        return _elapsed(self.times, self._firsts, recordings, samples)

    def holding(self, recordings: np.ndarray, asked: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the samples that hold at some times, and on which side of a recording these are."""
        near, steps = self.near(recordings, asked), self.times.steps[recordings]
        last = self.times.counts[recordings] - 1
        after = np.clip(self.first(recordings, asked), 0, last + 1)
        begins = np.minimum(after, last)
        is_now = (after <= last) & (self.at(recordings, begins) <= asked + near)
        samples = np.where(is_now, begins, after - 1)
        ends = self.at(recordings, np.clip(samples, 0, last)) + steps
        is_over = (samples == last) & (asked >= ends - near) & (steps > 0)
        return np.clip(samples, 0, last), np.where(samples < 0, -1, is_over.astype(np.int8))

    def nearest(self, recordings: np.ndarray, asked: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the samples that are nearest to some times, and the side of a recording of those that are far away."""
        near, counts = self.near(recordings, asked), self.times.counts[recordings]
        after = np.clip(self.first(recordings, asked), 0, counts)
        before, after = np.clip(after - 1, 0, counts - 1), np.minimum(after, counts - 1)
        is_before = asked - self.at(recordings, before) < self.at(recordings, after) - asked - near
        nearest = np.where(is_before, before, after)
        away = asked - self.at(recordings, nearest)
        # A step away is where another sample would be; of a single sample, steps are 0.
        is_far = (np.abs(away) > near) & (np.abs(away) + near >= self.times.steps[recordings])
        return nearest, is_far * np.where(2 * nearest + (away > 0) < counts, -1, 1)

    def has_gaps(self, recordings: np.ndarray) -> np.ndarray:
        """Return which recordings may have times within them that are far away from all samples."""
        if self.times.is_regular:
            return np.zeros(len(recordings), bool)
        gaps = np.zeros(len(recordings))
        for at, recording in enumerate(recordings.tolist()):
            begin = self._firsts[recording]
            own = self.times.listed[begin : begin + self.times.counts[recording]]
            gaps[at] = np.diff(own).max(initial=0)
        return gaps > 1.9 * self.times.steps[recordings]


def _elapsed(times: Times, firsts: np.ndarray, recordings: np.ndarray, samples: np.ndarray) -> np.ndarray:
    """Return the times of samples, counted from the first one of their recording."""
    if times.is_regular:
        return samples / times.rates[recordings]
    if not len(times.listed):
        return np.zeros(np.broadcast_shapes(recordings.shape, samples.shape), times.starts.dtype)
    units = np.minimum(firsts[recordings] + samples, len(times.listed) - 1)  # of an empty recording: anything
    return times.listed[units] - times.starts[recordings]


def _lead(ticks: Times, times: Times) -> np.ndarray:
    """Return how long after the first sample of a column the first tick is, in units of the column: float64."""
    (tick, part), (first, of_first) = _whole_seconds(ticks), _whole_seconds(times)
    return ((tick - first) + (part - of_first)) * times.per_second


def _whole_seconds(times: Times) -> tuple[np.ndarray, np.ndarray]:
    """Return the starts of times as whole seconds, and parts of one."""
    if times.starts.dtype.kind == "i":
        whole, units = np.divmod(np.clip(times.starts, -(1 << 62), 1 << 62), times.per_second)
        return whole, units / times.per_second
    whole = _whole(np.floor(times.starts))
    return whole, times.starts - whole


def _whole(values: np.ndarray) -> np.ndarray:
    """Return whole numbers in floats as int64."""
    return np.clip(values, -_MOST, _MOST).astype(np.int64)


def _span(times: Times) -> float:
    """Return how long the longest recording lasts."""
    if times.is_regular or not len(times.listed):
        return 0.0
    some = np.flatnonzero(times.counts)
    lasts = Partition.of(times.counts).starts[some + 1] - 1
    return float((times.listed[lasts].astype(np.float64) - times.starts[some]).max(initial=0))


def _resolution(times: Times) -> np.ndarray:
    """Return how far the floats of times are apart in each recording; 0 for integers."""
    if not times.is_regular:
        return times.resolution
    return np.zeros(len(times.starts)) if times.starts.dtype.kind == "i" else np.spacing(np.abs(times.starts))
