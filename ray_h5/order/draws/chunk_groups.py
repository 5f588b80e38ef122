"""Neighbouring rows that share chunks, and are drawn together."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from ray_h5.content_equality import ComparedByContent
from ray_h5.hash_and_permute import RoundKeys, permute, unpermute
from ray_h5.lru import LRU
from ray_h5.manifest.partition import Partition


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class ChunkGroups(ComparedByContent):
    """Selected indices 0 ... n-1, cut into chunk groups. Each is drawn as a whole.

    Attributes
    ----------
    starts : numpy.ndarray
        int64: the first selected index of each chunk group, then the number of selected rows. With a `size`, the first
        one of each file instead: memory then grows with the number of files only.
    size : int, optional
        Rows of a chunk group, except the last of each file.
    token : str
        The key of a cache. It goes with copies to other processes.
    """

    starts: np.ndarray
    size: int | None = None
    token: str = field(default_factory=partial(secrets.token_hex, 8), compare=False, repr=False)

    def selected_indices(self, positions: np.ndarray, key: RoundKeys) -> np.ndarray:
        """Return the selected index at each position, with the chunk groups in the order that `key` draws."""
        known = _DRAWN.update((self.token, key), lambda known: known or self._draw(key))
        if self.size is None:
            drawn, ends = known
            at = np.searchsorted(ends, positions, side="right")
            # A chunk group ends where its positions end: count back from there.
            return self.starts[drawn[at] + 1] - (ends[at] - positions)
        first_groups, ends, shortfall = known
        groups = Partition(first_groups)
        # With full groups only, a division would give the place of the group. The short groups before a position
        # move it forward, by what they lack in sum.
        before = np.searchsorted(ends, positions, side="right")
        place, offset = np.divmod(positions + shortfall[before], self.size)
        file, number = groups.local(permute(place, groups.num_units, key))
        return np.asarray(self.starts[file] + number * self.size + offset)

    def bounds(self, indices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the first selected index of the chunk group of each selected index, and the first after it."""
        part = np.searchsorted(self.starts, indices, side="right")
        first, stop = self.starts[part - 1], self.starts[part]
        if self.size is None:
            return first, stop
        first = indices - (indices - first) % self.size
        return first, np.minimum(first + self.size, stop)

    def to_bytes(self) -> bytes:
        """Return bytes that are equal for equal chunk groups only, for the hash of a plan."""
        return self.starts.tobytes() + (b"" if self.size is None else b"%d" % self.size)

    def _draw(self, key: RoundKeys) -> tuple[np.ndarray, ...]:
        """Return the groups in drawn order, and where they end.

        With a size: the first group of each file; ends of the short groups in drawn order; their cumulative shortfall.
        """
        lengths = np.diff(self.starts)
        if self.size is None:
            drawn = permute(np.arange(len(lengths)), len(lengths), key)
            return drawn, np.cumsum(lengths[drawn])
        groups, short = Partition.of(-(-lengths // self.size)), np.flatnonzero(lengths % self.size)
        places = unpermute(groups.starts[short + 1] - 1, groups.num_units, key)
        by_place = np.argsort(places)
        places, missing = places[by_place], self.size - lengths[short[by_place]] % self.size
        shortfall = Partition.of(missing).starts
        return groups.starts, (places + 1) * self.size - shortfall[1:], shortfall


_DRAWN: LRU[tuple[np.ndarray, ...]] = LRU(2)
"""The chunk groups of the last epochs in drawn order: one process reads many blocks of an epoch."""
