"""Groups below groups: the way down to the one that is being listed, without endless loops."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

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
    """

    group: h5py.Group
    links: Iterator[tuple[str | bytes, int]]
    prefix: str
    address: Address
    trail: Trail
    again: bool = False


class Descent:
    """The groups from the top one down to the one that is being listed; empty when all are listed."""

    def __init__(self, top: Level) -> None:
        self._levels = {top.address: top}

    def __len__(self) -> int:
        """Return the number of groups."""
        return len(self._levels)

    @property
    def last(self) -> Level:
        return next(reversed(self._levels.values()))

    def enter(self, below: Level) -> bool:
        """Go down into a group, and return True. Return False for one that is its own ancestor: a loop.

        A group that is reached twice is an alias, and is listed again.
        """
        if below.address in self._levels:
            return False
        self._levels[below.address] = below
        return True

    def leave(self) -> None:
        """Go up from a group that is completely listed."""
        self._levels.popitem()
