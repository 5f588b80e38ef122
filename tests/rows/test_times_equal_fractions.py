"""Windows in seconds near Unix and GPS times, at rates that are no power of two, equal to Python's fractions."""

import bisect
import math
import random
import statistics
from fractions import Fraction

import h5py
import numpy as np
import pytest

from ray_h5 import H5Dataset, Windows
from ray_h5.errors import OptionError

RATES = [
    Fraction(30),
    Fraction(100),
    Fraction(30000, 1001),
    Fraction(44100),
    Fraction(7),
    Fraction(1, 3),
    Fraction(500),
]
STARTS = [Fraction(0), Fraction(25, 2), Fraction(1_700_000_000), Fraction(1_187_008_882_430, 1000)]
NANOSECONDS = 10**9
GPS = 1_187_008_882_430_000_123


class Close(Exception):  # noqa: N818
    """Two times differ by less than the floats that stand for them say."""


class Samples:
    """The times of the samples of a column; `doubt` is how well the file says them."""

    def __init__(self, rng, name, kind, base, rate, count):
        self.name, self.kind, self.is_integer = name, kind, kind in {"integers", "datetimes", "integer rate"}
        step, self.doubt = (NANOSECONDS if self.is_integer else 1) / rate, Fraction(0)
        self.times, self.rate, self.step = [base + k * step for k in range(count)], 1 / step, step
        if kind in {"integers", "datetimes"}:
            gaps = [int(step) if rng.random() < 0.7 else rng.randint(1, int(4 * step)) for _ in range(count)]
            self.times = [base + sum(gaps[:k]) for k in range(count)]
            self.step = Fraction(statistics.median(gaps[: count - 1])) if count > 1 else Fraction(0)
        elif kind == "integer rate":
            self.doubt = step / 900_000
        else:
            self.doubt = step / 900_000 + 5 * Fraction(float(np.spacing(float(self.times[-1]))))
            self.step = step if count > 1 or kind != "listed" else Fraction(0)

    def write(self, file):
        """Write the samples; return what at= says of them."""
        file[self.name] = np.arange(len(self.times))
        if "rate" in self.kind:
            first = self.times[0]
            return {self.name: (float(self.rate), int(first) if self.is_integer else float(first))}
        if self.kind == "attributes":
            file[self.name].attrs.update({"rate": float(self.rate), "t0": float(self.times[0])})
            return {}
        file[f"{self.name}_t"] = [int(time) if self.is_integer else float(time) for time in self.times]
        if self.kind == "datetimes":
            file[f"{self.name}_t"].attrs["units"] = "nanoseconds since 1970-01-01"
        return {self.name: f"{self.name}_t"}

    def first(self, asked, doubt):
        """Return the first sample that is not before a time."""
        at = bisect.bisect_left(self.times, asked)
        for near in self.times[max(at - 1, 0) : at + 1]:
            compare(near, asked, doubt)
        return at

    def nearest(self, asked, doubt):
        """Return the nearest sample, and the side of the recording of a time without one."""
        at, last = self.first(asked, doubt), len(self.times) - 1
        before, after = max(at - 1, 0), min(at, last)
        at = before if compare(asked - self.times[before], self.times[after] - asked, doubt) < 0 else after
        away = asked - self.times[at]
        is_far = away and compare(abs(away), self.step, doubt) >= 0
        return at, (-1 if 2 * at + (away > 0) < len(self.times) else 1) if is_far else 0

    def holding(self, asked, doubt):
        """Return the sample that holds at a time, and the side of the recording of a time without one."""
        at, last = self.first(asked, doubt), len(self.times) - 1
        at -= at > last or self.times[at] != asked
        is_over = at == last and self.step and compare(asked, self.times[last] + self.step, doubt) >= 0
        return max(at, 0), -1 if at < 0 else int(bool(is_over))

    def span(self, low, high, doubt):
        """Return the samples of a span, as if they went on at a rate; and whether one lacks on each side."""
        begin, end, last = self.first(low, doubt), self.first(high, doubt), self.times[-1]
        lacks = compare(low, self.times[0] - self.step, doubt) <= 0, compare(high, last + self.step, doubt) > 0
        width = round((high - low) * self.rate)
        # Offsets in whole nanoseconds are no whole samples: they count as these if a millionth lacks.
        is_regular = self.kind in {"rate", "attributes", "integer rate"}
        if is_regular and abs((high - low) * self.rate - width) <= Fraction(1, 10**6):
            begin = math.ceil((low - self.times[0]) * self.rate)
            end = begin + width
        return range(begin, end), lacks


def compare(one, other, doubt):
    if one != other and abs(one - other) <= doubt:
        raise Close
    return (one > other) - (one < other)


def ticks_of(x, fps):
    if fps is None:
        return x.times
    count = (x.times[-1] - x.times[0]) * fps
    compare(count, round(count), Fraction(1, 900_000) + x.doubt * fps)
    return [x.times[0] + k / fps for k in range(math.floor(count) + 1)]


def draw(seed, path, beside=()):
    """Write a random file; return its columns, its windows, and what holds of the rows and their number.

    Datasets of `beside`, as many entries as the first column has, have its times: each is a column `at_<name>`. None is
    returned if floats cannot say which rows there are.
    """
    rng = random.Random(seed)
    is_integer = rng.random() < 0.4
    base = Fraction(GPS) if is_integer else rng.choice(STARTS)
    kinds = [["rate", "attributes", "listed"], [["integers", "integer rate"], ["datetimes"]][rng.random() < 0.4]][
        is_integer
    ]
    x = Samples(rng, "x", rng.choice(kinds), base, rng.choice(RATES), rng.randint(1, 40))
    unit, step = NANOSECONDS if is_integer else 1, x.step or Fraction(1)
    lead = rng.choice([0, rng.randint(-5, 5) * step, Fraction(rng.randint(-3000, 3000), 1000) * step])
    y_rate = rng.choice([x.rate * unit, *RATES])
    y = Samples(rng, "y", rng.choice(kinds), base + (int(lead) if is_integer else lead), y_rate, rng.randint(1, 40))
    steps = [step, y.step or step, Fraction(rng.randint(1, 2000), 1000) * step]
    values = [rng.randint(-6, 6) * rng.choice(steps) for _ in range(5)]
    values = [Fraction(round(value)) for value in values] if is_integer else values
    offsets, span = values[: rng.randint(1, 3)], (values[3], values[3] + (abs(values[4]) or steps[0]))
    span = tuple(Fraction(round(end)) for end in span) if is_integer else span
    pads = rng.choice([("edge", "edge"), ("zero", "edge"), ("drop", "drop"), ("drop", "drop"), ("drop", "zero")])
    stride, fps = rng.randint(1, 3), rng.choice([None, *RATES[:3]]) if not is_integer else None
    holds, in_seconds = ["y"] * (rng.random() < 0.3), NANOSECONDS if "datetimes" in kinds else 1
    with h5py.File(path, "w") as file:
        at = x.write(file) | y.write(file)
        for name, make in dict(beside).items():
            file[name] = make(len(x.times))
            file[name].attrs.update(file["x"].attrs)
            at |= {name: at["x"]} if "x" in at else {}
    low, high = (float(end / in_seconds) for end in span)
    windows = Windows(
        {
            "x": [0.0],
            "near": ("y", [float(offset / in_seconds) for offset in offsets]),
            "span": ("y", slice(low, high)),
            **{f"at_{name}": (name, [0.0]) for name in dict(beside)},
        },
        at=at or {"none": "none"},
        pad=pads,
        stride=stride,
        holds=holds,
        fps=None if fps is None else float(fps),
    )
    if (span[1] - span[0]) * y.rate > 10_000:  # would take gigabytes
        return None
    doubt, expected = x.doubt + y.doubt, []
    doubt += y.step / 900_000 * (x.doubt > 0)  # integers are compared with others
    try:
        for now in ticks_of(x, fps):
            try:
                found_x = x.nearest(now, x.doubt)[1]
                near, sides = zip(
                    *((y.holding if holds else y.nearest)(now + each, doubt) for each in offsets), strict=True
                )
                samples, lacks = y.span(now + span[0], now + span[1], doubt)
            except Close:
                if "drop" in pads:
                    raise
                expected.append((True, now, None))
                continue
            padded = [side in (found_x, *sides) or lack for side, lack in zip((-1, 1), lacks, strict=True)]
            fits = not any(is_padded and pad == "drop" for is_padded, pad in zip(padded, pads, strict=True))
            expected.append((fits, now, (near, sides, samples)))
    except Close:
        return None
    begin = next((i for i, row in enumerate(expected) if row[0]), len(expected))
    expected = [row for row in expected[begin::stride] if row[0]]
    columns = ["near", "span", "time"] + ["near_is_pad"] * (pads != ("drop", "drop"))

    def verify(found):
        assert len(found["time"]) == len(expected), (seed, windows)
        last = len(y.times) - 1
        for i, (_, now, row) in enumerate(expected):
            context = seed, i, windows
            assert abs(Fraction(found["time"][i].item()) * in_seconds - now) <= x.doubt + 256 * (
                in_seconds > 1 or "rate" in x.kind
            )
            if row is None:
                continue
            near, sides, samples = row
            blank = [pads[side > 0] == "zero" and side != 0 for side in sides]
            assert found["near"][i].tolist() == np.where(blank, 0, near).tolist(), context
            assert "near_is_pad" not in found or found["near_is_pad"][i].tolist() == [side != 0 for side in sides], (
                context
            )
            blank = {at: pads[at > last] == "zero" for at in samples if not 0 <= at <= last}
            wanted = [0 if blank.get(at) else min(max(at, 0), last) for at in samples]
            assert np.asarray(found["span"][i]).tolist() == wanted, context

    return columns, windows, verify, len(expected)


def check(seed, path):
    """Compare the windows of a random file; return the number of rows, or None if floats cannot say which there are."""
    drawn = draw(seed, path)
    if drawn is None:
        return None
    columns, windows, verify, count = drawn
    if not count:
        with pytest.raises(OptionError, match="found none"):
            H5Dataset(path, columns, windows=windows, decode_cf=True)
        return 0
    verify(H5Dataset(path, columns, windows=windows, decode_cf=True)[:])
    return count


@pytest.mark.parametrize("part", range(4))
def test_windows_equal_fractions(tmp_path, part):
    rows = [check(seed, tmp_path / "a.h5") for seed in range(25 * part, 25 * part + 25)]
    assert sum(of is not None for of in rows) >= 12
    assert sum(of or 0 for of in rows) > 50
