"""What is selected of an array: which indices along each axis."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from ray_h5.manifest.partition import Partition

ENDLESS = 1 << 40
"""How many blocks a selection without an end has, until the lengths of axes say it."""


@dataclass(frozen=True, slots=True)
class Along:
    """The indices that a selection has along one axis: blocks at equal distances, or any runs.

    Attributes
    ----------
    first, stride, count, block : int
        Where the first block begins, the distance from one to the next, how many there are, and the size of each.
    runs : tuple of (int, int)
        The first index and the length of each run, ascending and apart, if they are no such blocks; the other fields
        are 0.
    """

    first: int = 0
    stride: int = 1
    count: int = 0
    block: int = 1
    runs: tuple[tuple[int, int], ...] = ()

    @classmethod
    def all_of(cls, length: int) -> Along:
        """Return all indices of an axis."""
        return cls(0, max(1, length), 1, length)

    def __len__(self) -> int:
        return sum(length for _, length in self.runs) if self.runs else self.count * self.block

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

    def _parts(self) -> tuple[np.ndarray, Partition]:
        """Return the first index of each run, and the places in the selection that each has."""
        firsts, lengths = np.array(self.runs, np.int64).T
        return firsts, Partition.of(lengths)

    def at(self, places: np.ndarray) -> np.ndarray:
        """Return the indices at places in the selection."""
        if self.runs:
            firsts, parts = self._parts()
            run, within = parts.local(places)
            return np.asarray(firsts[run] + within, np.int64)
        return np.asarray(self.first + places // self.block * self.stride + places % self.block, np.int64)

    def places(self, indices: np.ndarray) -> np.ndarray:
        """Return the place of each index in the selection; -1 if it is not selected."""
        if not len(self):
            return np.full(len(indices), -1, np.int64)
        if self.runs:
            firsts, parts = self._parts()
            run = np.maximum(np.searchsorted(firsts, indices, side="right") - 1, 0)
            within = indices - firsts[run]
            return np.where((within >= 0) & (within < parts.lengths[run]), parts.firsts[run] + within, -1)
        number, within = np.divmod(indices - self.first, self.stride)
        taken = (number >= 0) & (number < self.count) & (within < self.block)
        return np.where(taken, number * self.block + within, -1)

    @property
    def is_endless(self) -> bool:
        return self.count == ENDLESS

    def is_all_of(self, length: int) -> bool:
        """Return whether it has all indices of an axis."""
        return len(self) == length == self.end


Selection = tuple[Along, ...]


def size_of(selection: Selection) -> int:
    """Return how many values are selected."""
    return math.prod(map(len, selection))
