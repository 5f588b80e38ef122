"""Entries of a row along its first axis: positions, or drawn ones."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ray_h5.columns.made_columns import Cut
from ray_h5.errors import UnknownColumnError
from ray_h5.hashing import word_at
from ray_h5.manifest.row_requests import units_of
from ray_h5.read.arrays.taken_column import runs_of_positions


@dataclass(frozen=True, slots=True, eq=False)
class RowEntries:
    """Which entries along its first axis a row has, whose length may be another one than that of other rows.

    Attributes
    ----------
    at : numpy.ndarray, Cut or int
        Positions, a slice, or how many are drawn.
    where : str
        File and column, for messages.
    keys : numpy.ndarray, optional
        uint64: for each place of the output of a read, the key of its row, from which entries are drawn.
    """

    at: np.ndarray | Cut | int
    where: str
    keys: np.ndarray | None = None

    def counts(self, lengths: np.ndarray) -> np.ndarray:
        """Return how many entries rows of these lengths have."""
        if isinstance(self.at, int):
            return np.minimum(lengths, self.at)
        known, of = np.unique(lengths, return_inverse=True)
        return np.array([len(self._positions(int(n))) for n in known], np.int64)[of.reshape(-1)]

    def runs(self, lengths: np.ndarray, places: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the entries of rows of these lengths as runs: the row of each, its first entry, and its length.

        `places` are those of the rows in the output of a read.
        """
        if isinstance(self.at, int):
            runs = [np.array(runs_of_positions(each), np.int64) for each in self.drawn(lengths, places)]
            of = np.arange(len(lengths))
        else:
            known, of = np.unique(lengths, return_inverse=True)
            runs = [np.array(runs_of_positions(self._positions(int(n))), np.int64) for n in known]
        many = np.array([len(each) for each in runs], np.int64)
        whole = np.concatenate([*(each.reshape(-1, 2) for each in runs), np.empty((0, 2), np.int64)])
        begins = np.cumsum(many) - many
        counts = many[of.reshape(-1)]
        at = units_of(begins[of.reshape(-1)], counts)
        return np.repeat(np.arange(len(lengths)), counts), whole[at, 0], whole[at, 1]

    def drawn(self, lengths: np.ndarray, places: np.ndarray) -> list[np.ndarray]:
        """Return the entries that are drawn of rows, ascending."""
        assert isinstance(self.at, int)
        assert self.keys is not None
        found = []
        for length, key in zip(lengths.tolist(), self.keys[places], strict=True):
            if length <= self.at:
                found.append(np.arange(length))
                continue
            words = word_at(key, np.arange(length))
            found.append(np.sort(np.argpartition(words, self.at)[: self.at]))
        return found

    def _positions(self, length: int) -> np.ndarray:
        if isinstance(self.at, Cut):
            return self.at.positions(length)
        assert isinstance(self.at, np.ndarray)
        if len(self.at) and int(self.at.max()) >= length:
            raise UnknownColumnError(
                f"{self.where}: part() takes entry {self.at.max()} of each row, and a row has {length} entries"
            )
        return self.at
