"""Parts that follow each other, and where a unit is in them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ray_h5.manifest.row_requests import Request, units_of


@dataclass(frozen=True, slots=True, eq=False)
class Partition:
    """Parts that follow each other: files of a dataset, groups of a file, sources of a stack, rows of a longer array.

    Units are numbered through all parts. A part may be empty::

        part         0       1   2    3
        unit     | 0 1 2 3 | 4 5 | | 6 7 8 |      lengths 4 2 0 3
        local    | 0 1 2 3 | 0 1 | | 0 1 2 |      starts  0 4 6 6 9
        a run        [ 2 . . . . . 7 ]            of 6 units from 2 on
        cut          [ 2 3][4 5]   [6 7]          is in the parts 0, 1 and 3

    It is one array, so that ten million parts cost 80 MB and no object each.

    Attributes
    ----------
    starts : numpy.ndarray
        int64: the first unit of each part, then the number of units.
    """

    starts: np.ndarray

    @classmethod
    def of(cls, lengths: np.ndarray) -> Partition:
        """Return parts of these lengths."""
        starts = np.zeros(len(lengths) + 1, np.int64)
        np.cumsum(lengths, out=starts[1:])
        return cls(starts)

    def __len__(self) -> int:
        return len(self.starts) - 1

    @property
    def num_units(self) -> int:
        """Units of all parts."""
        return int(self.starts[-1])

    @property
    def firsts(self) -> np.ndarray:
        """int64: the first unit of each part."""
        return self.starts[:-1]

    @property
    def lengths(self) -> np.ndarray:
        """int64: the number of units of each part."""
        return np.diff(self.starts)

    def lengths_of(self, parts: np.ndarray) -> np.ndarray:
        """Return the number of units of some parts."""
        return self.starts[parts + 1] - self.starts[parts]

    def part_of(self, units: Any) -> Any:
        """Return the part of each unit; -1 of one before all parts, and their number of one after them."""
        return np.searchsorted(self.starts, units, side="right") - 1

    def units(self, parts: np.ndarray) -> np.ndarray:
        """Return the units of some parts, one part after the other."""
        return units_of(self.starts[parts], self.lengths_of(parts))

    def cut(self, runs: Request) -> tuple[Request, np.ndarray]:
        """Return the same units as runs that are each in one part, and its number; their parts ascend."""
        first = self.part_of(runs.firsts)
        if runs.counts is None:  # one unit each, which ascend
            return runs, first
        cut = runs.cut(first, self.part_of(runs.firsts + runs.counts - 1), self.starts.take)
        if cut is not runs:
            cut = cut if cut.lengths.all() else cut.select(cut.lengths > 0)  # some parts have no units
            first = self.part_of(cut.firsts)
        return cut, first

    def local(self, units: Any) -> tuple[Any, Any]:
        """Return the part of each unit, and its number in that part."""
        parts = self.part_of(units)
        return parts, units - self.starts[parts]

    def times(self, count: int) -> Partition:
        """Return the same parts of units that are smaller: each unit is `count` of them."""
        return self if count == 1 else Partition(self.starts * count)

    def spread(self, of_parts: np.ndarray) -> np.ndarray:
        """Return for each unit what an array says of its part."""
        return np.repeat(of_parts, self.lengths)
