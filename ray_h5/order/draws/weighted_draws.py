"""Draws of rows with weights: position -> selected index, as a function of (seed, epoch, position)."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np

from ray_h5.content_equality import ComparedByContent
from ray_h5.hash_and_permute import below, hashed, make_key, uniform
from ray_h5.order.draws.chunk_groups import ChunkGroups

_INDEPENDENT, _SLOTS, _GROUPS = range(100, 103)
"""The purposes of keys; those of an order without weights are below."""


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Draws(ComparedByContent):
    """Each position is drawn from all rows by their weights, whatever other positions have.

    With chunk groups, each window of positions draws `window_groups` chunk groups by their summed weights, and each
    position one of these, and then a row of it by weight: a row has the same probability at each position as without
    chunk groups.

    Attributes
    ----------
    ends : numpy.ndarray
        float64 of shape (rows,): cumulative weights.
    chunk_groups : ChunkGroups, optional
        Rows that are drawn together.
    window_rows, window_groups : int
        With chunk groups: positions of a window, and the chunk groups that it draws.
    """

    ends: np.ndarray
    chunk_groups: ChunkGroups | None = None
    window_rows: int = 1
    window_groups: int = 1

    def selected_indices(self, positions: np.ndarray, seed: int, epoch: int) -> np.ndarray:
        """Return the selected index at each position of an epoch."""
        numbers = uniform(hashed(make_key(seed, epoch, _INDEPENDENT), positions))
        if self.chunk_groups is None:
            return self._rows(numbers * self.ends[-1], self.ends[-1])
        slots = below(hashed(make_key(seed, epoch, _SLOTS), positions), self.window_groups)
        drawn = hashed(make_key(seed, epoch, _GROUPS), positions // self.window_rows, slots)
        # A row that is drawn by weight is in a chunk group that is drawn by its summed weight.
        first, stop = self.chunk_groups.bounds(self._rows(uniform(drawn) * self.ends[-1], self.ends[-1]))
        low = np.where(first > 0, self.ends[first - 1], 0.0)
        high = self.ends[stop - 1]
        return self._rows(low + numbers * (high - low), high)

    def digest(self) -> bytes:
        """Return a digest that is equal for equal draws only, for the hash of a plan."""
        groups = b"" if self.chunk_groups is None else self.chunk_groups.to_bytes()
        return digest_of(b"independent %d %d" % (self.window_rows, self.window_groups), groups, self.ends)

    def _rows(self, weights: np.ndarray, limit: np.ndarray) -> np.ndarray:
        # A product may be rounded up to the limit, which no row reaches.
        return np.searchsorted(self.ends, np.minimum(weights, np.nextafter(limit, 0)), side="right")


def digest_of(*parts: bytes | np.ndarray) -> bytes:
    """Return a digest that is equal for equal parts only."""
    digest = hashlib.blake2b(digest_size=16)
    for part in parts:  # not copied: they may be large
        digest.update(b"%d " % len(part))
        digest.update(part if isinstance(part, bytes) else np.ascontiguousarray(part).data)
    return digest.digest()
