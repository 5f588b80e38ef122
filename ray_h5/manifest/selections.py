"""What is selected of an array: which indices along each axis."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

ENDLESS = 1 << 40
"""How many blocks a selection without an end has, until the lengths of axes say it."""


@dataclass(frozen=True, slots=True)
class Along:
    """The indices that a selection has along one axis: blocks at equal distances, or any.

    Attributes
    ----------
    first, stride, count, block : int
        Where the first block begins, the distance from one to the next, how many there are, and the size of each.
    listed : tuple of int
        The indices, ascending, if they are no such blocks; the other fields are 0.
    """

    first: int = 0
    stride: int = 1
    count: int = 0
    block: int = 1
    listed: tuple[int, ...] = ()

    @classmethod
    def all_of(cls, length: int) -> Along:
        """Return all indices of an axis."""
        return cls(0, max(1, length), 1, length)

    def __len__(self) -> int:
        return len(self.listed) or self.count * self.block

    @property
    def begin(self) -> int:
        """The first index."""
        return self.listed[0] if self.listed else self.first

    @property
    def end(self) -> int:
        """The last index plus one."""
        if self.listed:
            return self.listed[-1] + 1
        return self.first + (self.count - 1) * self.stride + self.block if len(self) else 0

    def at(self, places: np.ndarray) -> np.ndarray:
        """Return the indices at places in the selection."""
        if self.listed:
            return np.array(self.listed, np.int64)[places]
        return np.asarray(self.first + places // self.block * self.stride + places % self.block, np.int64)

    def places(self, indices: np.ndarray) -> np.ndarray:
        """Return the place of each index in the selection; -1 if it is not selected."""
        if not len(self):
            return np.full(len(indices), -1, np.int64)
        if self.listed:
            listed = np.array(self.listed, np.int64)
            at = np.minimum(np.searchsorted(listed, indices), len(listed) - 1)
            return np.where(listed[at] == indices, at, -1)
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
