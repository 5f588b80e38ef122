"""Draws of rows with weights, as a function of (seed, epoch, position); and the columns and files that weights name."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np

from ray_h5.content_equality import ComparedByContent
from ray_h5.errors import OptionError
from ray_h5.hash_and_permute import below, hashed, make_key, uniform
from ray_h5.order.draws.chunk_groups import ChunkGroups
from ray_h5.order.draws.shuffle import shown

_INDEPENDENT, _SLOTS, _GROUPS = range(100, 103)
"""The purposes of keys; those of an order without weights are below."""

_PIECE = 1 << 20

Option: TypeAlias = Literal["weights", "by_length"]
"""An option of a `Shuffle` that gives each row a number."""


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

    @classmethod
    def of(cls, weights: np.ndarray) -> Draws:
        """Return the draws of rows by their weights.

        Raises
        ------
        OptionError
            If all weights are zero, or their sum is infinite.
        """
        # Sums from left to right have the same bits on all machines.
        ends = np.empty(len(weights), np.float64)
        total = 0.0
        with np.errstate(over="ignore"):
            for start in range(0, len(ends), _PIECE):  # piece by piece: numpy would convert all weights first
                piece = weights[start : start + _PIECE].astype(np.float64)
                piece[0] += total
                np.cumsum(piece, out=ends[start : start + _PIECE])
                total = float(ends[start + len(piece) - 1])
        if not 0 < total < np.inf:
            what = "infinite" if total else "0"
            raise OptionError(f"Shuffle: weights: the sum of the weights of {len(weights)} selected rows is {what}")
        return cls(ends)

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

    def _rows(self, weights: np.ndarray, limit: np.ndarray) -> np.ndarray:
        # A product may be rounded up to the limit, which no row reaches.
        return np.searchsorted(self.ends, np.minimum(weights, np.nextafter(limit, 0)), side="right")

    def digest(self) -> bytes:
        """Return a digest that is equal for equal draws only, for the hash of a plan."""
        digest = hashlib.blake2b(digest_size=16)
        groups = b"" if self.chunk_groups is None else self.chunk_groups.to_bytes()
        for part in (b"independent %d %d" % (self.window_rows, self.window_groups), groups, self.ends):
            digest.update(b"%d " % len(part))
            digest.update(np.ascontiguousarray(part).data if isinstance(part, np.ndarray) else part)
        return digest.digest()


def check_length(values: np.ndarray, rows: int, where: str, option: Option) -> None:
    """Raise unless there is a number for each row."""
    if len(values) != rows:
        raise OptionError(
            f"Shuffle: {option}={shown(values)}: expected {rows}, one for each row of {where}, selected or not"
        )
