"""Groups below groups: the way down to the one that is being listed, without endless loops."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import h5py

from ray_h5.hdf5.files.file_bytes import Address
from ray_h5.hdf5.files.links import Trail


@dataclass(slots=True)
class Level:
    """A group that is being listed.

    Attributes
    ----------
    group : h5py.Group
        The group.
    links : iterator of (str or bytes, int)
        The names of the links in it that were not followed yet, and the kind of each, as in ``h5py.h5l``.
    prefix : str
        First part of the names of columns below it.
    address : tuple of int
        Identifies the group, whatever its names are.
    trail : Trail
        The links that led to it.
    again : bool
        Whether it was listed before, under another name.
    holds_columns : bool
        Whether there is a column below it.
    loops : set of tuple of int
        Groups above it that links below it lead back to.
    """

    group: h5py.Group
    links: Iterator[tuple[str | bytes, int]]
    prefix: str
    address: Address
    trail: Trail
    again: bool = False
    holds_columns: bool = False
    loops: set[Address] = field(default_factory=set)


class Descent:
    """The groups from the top one down to the one that is being listed; empty when all are listed."""

    def __init__(self, top: Level) -> None:
        self._levels = {top.address: top}
        self._barren: dict[Address, set[Address]] = {}

    def __len__(self) -> int:
        """Return the number of groups."""
        return len(self._levels)

    @property
    def last(self) -> Level:
        return next(reversed(self._levels.values()))

    def enter(self, below: Level) -> bool:
        """Go down into a group, and return True. Return False for a group that is known to lead to no column.

        A group that is its own ancestor is a loop. A group that is reached twice is an alias, and is listed again.
        """
        loops = {below.address} if below.address in self._levels else self._barren.get(below.address)
        # A group without columns is skipped only if the groups that it leads back to are being listed now as well.
        # Otherwise these might lead to a column.
        if loops is not None and loops <= self._levels.keys():
            self.last.loops |= loops
            return False
        self._levels[below.address] = below
        return True

    def leave(self) -> None:
        """Go up from a group that is completely listed."""
        address, level = self._levels.popitem()
        level.loops.discard(address)
        if not level.holds_columns:
            # No other way to this group leads to a column either, if it passes through the groups of these loops.
            self._barren[address] = level.loops
        if self._levels:
            # What is true of a group is true of the groups above it.
            self.last.holds_columns |= level.holds_columns
            self.last.loops |= level.loops
