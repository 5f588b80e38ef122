"""Indices along the axes of an array: all, blocks at equal distances, or any; and those taken of these again."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import TypeAlias

import numpy as np

from ray_h5.manifest.partition import Partition
from ray_h5.manifest.row_requests import runs_between

ENDLESS = 1 << 40
"""The number of blocks of a selection without an end, until the lengths of axes give it."""


@dataclass(frozen=True, slots=True)
class Along:
    """Indices along one axis, in an order: blocks at equal distances, or any runs.

    Where there is such a form, it takes no memory however many indices there are::

        Along.range(2, 3)     2 3 4           Along(0, 3, 2, 2)          0 1 3 4
        Along(5, -2, 3)       5 3 1           runs ((7, 2), (0, 1))      7 8 0

    Attributes
    ----------
    first, stride, count, block : int
        Where the first block begins, the distance from one to the next, how many there are, and the size of each.
    runs : tuple of (int, int)
        The first index and the length of each of several runs, if these are not such blocks; the other fields are 0.
    """

    first: int = 0
    stride: int = 1
    count: int = 0
    block: int = 1
    runs: tuple[tuple[int, int], ...] = ()

    @classmethod
    def range(cls, first: int, length: int) -> Along:
        """Return indices that follow each other."""
        return cls(first, max(1, length), 1, length)

    @classmethod
    def all_of(cls, length: int) -> Along:
        """Return all indices of an axis."""
        return cls.range(0, length)

    @classmethod
    def of(cls, indices: np.ndarray) -> Along:
        """Return any indices: as blocks where possible."""
        return cls.of_runs(runs_of(indices))

    @classmethod
    def of_runs(cls, runs: np.ndarray) -> Along:
        """Return the indices of runs, none of which follows the one before: int64 of shape (runs, 2)."""
        if len(runs) < 2:
            return cls.range(*runs[0].tolist()) if len(runs) else cls()
        (first, block), apart = runs[0].tolist(), np.diff(runs[:, 0])
        if (runs[:, 1] == block).all() and (apart == apart[0]).all():
            return cls(first, int(apart[0]), len(runs), block)
        return cls(0, 0, 0, 0, tuple(map(tuple, runs.tolist())))

    def __len__(self) -> int:
        return sum(length for _, length in self.runs) if self.runs else self.count * self.block

    @property
    def even(self) -> tuple[int, int] | None:
        """The first index, and the distance to the next, if all are at equal distances."""
        if self.runs:
            return None
        if self.count < 2 or self.stride == self.block:
            return self.first, 1
        return (self.first, self.stride) if self.block == 1 else None

    @property
    def begin(self) -> int:
        """The first index."""
        return self.runs[0][0] if self.runs else self.first

    @property
    def end(self) -> int:
        """The last index plus one."""
        if self.runs:
            return sum(self.runs[-1])
        return self.first + (self.count - 1) * self.stride + self.block if len(self) else 0

    @property
    def is_endless(self) -> bool:
        return self.count == ENDLESS

    def is_all_of(self, length: int) -> bool:
        """Return whether it has all indices of an axis, in order."""
        return len(self) == length and (not length or self.even == (0, 1))

    @property
    def num_pieces(self) -> int:
        """How many `pieces` there are."""
        if not len(self):
            return 0
        even = self.even
        return 1 if even is not None and even[1] == 1 else len(self.runs) or self.count

    @property
    def pieces(self) -> np.ndarray:
        """The first index and the length of each run of indices that follow each other: int64 of shape (runs, 2)."""
        if self.runs or self.num_pieces < 2:
            whole = [(self.first, len(self))] if len(self) else []
            return np.array(self.runs or whole, np.int64).reshape(-1, 2)
        firsts = self.first + self.stride * np.arange(self.count, dtype=np.int64)
        return np.stack([firsts, np.full(self.count, self.block)], axis=1)

    @property
    def indices(self) -> np.ndarray:
        """All indices."""
        return self.at(np.arange(len(self), dtype=np.int64))

    @property
    def key(self) -> slice | np.ndarray:
        """What takes them of a NumPy array: a slice, which copies nothing, if they are at equal distances."""
        if not len(self):
            return slice(0, 0)
        if (even := self.even) is None:
            return self.indices
        first, step = even
        stop = first + step * len(self)
        return slice(first, stop if stop >= 0 else None, step) if step else self.indices

    def at(self, places: np.ndarray) -> np.ndarray:
        """Return the indices at places among them."""
        if self.runs:
            firsts, lengths = np.array(self.runs, np.int64).T
            run, within = Partition.of(lengths).local(places)
            return np.asarray(firsts[run] + within, np.int64)
        return np.asarray(self.first + places // self.block * self.stride + places % self.block, np.int64)

    def places(self, indices: np.ndarray) -> np.ndarray:
        """Return the place of each index among these, which ascend; -1 if it is none of them."""
        if not len(self):
            return np.full(len(indices), -1, np.int64)
        if self.runs:
            firsts, lengths = np.array(self.runs, np.int64).T
            parts = Partition.of(lengths)
            run = np.maximum(np.searchsorted(firsts, indices, side="right") - 1, 0)
            within = indices - firsts[run]
            return np.where((within >= 0) & (within < lengths[run]), parts.firsts[run] + within, -1)
        number, within = np.divmod(indices - self.first, self.stride)
        is_one = (number >= 0) & (number < self.count) & (within < self.block)
        return np.where(is_one, number * self.block + within, -1)

    def shifted(self, by: int) -> Along:
        """Return indices that are larger by a number."""
        if self.runs:
            return replace(self, runs=tuple((first + by, length) for first, length in self.runs))
        return replace(self, first=self.first + by)

    def take(self, then: Along) -> Along:
        """Return the indices at places among these, in the order of the places."""
        if (even := self.even) is not None:
            first, step = even
            if step == 1:
                return then.shifted(first)
            if (places := then.even) is not None:
                count = len(then)
                return Along(first + step * places[0], step * places[1], count) if count != 1 else self.one(places[0])
        return Along.of(self.at(then.indices))

    def one(self, place: int) -> Along:
        """Return the index at one place."""
        return Along.range(int(self.at(np.array([place]))[0]), 1)

    def common(self, other: Along) -> tuple[Along, Along]:
        """Return which of these are among `other`, which ascend: their places among these, and among `other`."""
        even, even_other = self.even, other.even
        if even is not None and even[1] == 1:
            first, end = even[0], even[0] + len(self)
            if not len(other) or (first <= other.begin and other.end <= end):
                return other.shifted(-first), Along.all_of(len(other))
            if even_other is not None and even_other[1] == 1:
                low = max(first, other.begin)
                length = max(0, min(end, other.end) - low)
                return Along.range(low - first, length), Along.range(low - other.begin, length)
        places = other.places(self.indices)
        here = np.flatnonzero(places >= 0)
        return Along.of(here), Along.of(places[here])


Indices: TypeAlias = "tuple[Along | None, ...]"
"""The indices along each axis; None for all."""


def runs_of(indices: np.ndarray) -> np.ndarray:
    """Return the first and the length of each run of indices that follow each other: int64 of shape (runs, 2)."""
    if not len(indices):
        return np.empty((0, 2), np.int64)
    starts, stops = runs_between(indices[1:] != indices[:-1] + 1)
    return np.stack([indices[starts], stops - starts], axis=1)


def composed(first: Indices, then: Indices) -> Indices:
    """Return the indices that two takes select, one after the other."""
    both = zip_longest(first, then)
    return tuple(two if one is None else one if two is None else one.take(two) for one, two in both)


def lengths_of(shape: Sequence[int], taken: Indices) -> list[int]:
    """Return how many indices are taken along each axis of a shape."""
    return [n if at is None else len(at) for n, at in zip_longest(shape, taken)]


def picked(values: np.ndarray, taken: Indices) -> np.ndarray:
    """Return rows with these indices along the axes of a row; None for all."""
    for axis, at in enumerate(taken):
        if at is not None:
            values = values[(slice(None),) * (1 + axis) + (at.key,)]
    return values


def size_of(taken: Sequence[Along]) -> int:
    """Return how many values there are at indices along each axis."""
    return math.prod(map(len, taken))
