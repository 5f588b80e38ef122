"""The way through the groups of a file, which may hold each other, and go by any number of names."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import h5py

from ray_h5.hdf5.links import Trail
from ray_h5.hdf5.traces import Address


@dataclass(slots=True)
class Level:
    """A group that is being listed, and what is known of it so far.

    Attributes
    ----------
    group : h5py.Group
        The group.
    names : iterator of (str or bytes)
        The links in it that were not looked at yet.
    prefix : str
        What the names of columns below it begin with.
    address : tuple of int
        What tells it from other groups, whatever its name.
    trail : Trail
        What led to it.
    again : bool
        Whether it was listed before, by another name.
    holds : bool
        Whether there is a column below it.
    loops : set of tuple of int
        Groups above it that links below it lead back to.
    """

    group: h5py.Group
    names: Iterator[str | bytes]
    prefix: str
    address: Address
    trail: Trail
    again: bool = False
    holds: bool = False
    loops: set[Address] = field(default_factory=set)


class Descent:
    """The groups from the top one down to the one that is being listed; none when all are listed."""

    def __init__(self, top: Level) -> None:
        self._levels = {top.address: top}
        self._barren: dict[Address, set[Address]] = {}

    def __len__(self) -> int:
        """Return how many groups that are."""
        return len(self._levels)

    @property
    def last(self) -> Level:
        return next(reversed(self._levels.values()))

    def enter(self, below: Level) -> bool:
        """Go down into a group, unless that is known to lead to no column.

        A group that is its own ancestor is a loop; one that is reached twice is an alias, and listed again.
        """
        loops = {below.address} if below.address in self._levels else self._barren.get(below.address)
        if loops is not None and loops <= self._levels.keys():
            self.last.loops |= loops
            return False
        self._levels[below.address] = below
        return True

    def leave(self) -> None:
        """Go up from a group that is listed to its end."""
        address, level = self._levels.popitem()
        level.loops.discard(address)
        if not level.holds:
            # Nor is there a column on another way to it, as long as that passes the same groups.
            self._barren[address] = level.loops
        if self._levels:
            self.last.holds |= level.holds
            self.last.loops |= level.loops
