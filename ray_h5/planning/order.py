"""Where each position of an epoch finds its row."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Protocol

import numpy as np

from ray_h5.planning.recent import Recent
from ray_h5.planning.shuffle import RoundKeys, Shuffle, make_key, mix, permute, unpermute

_WITHIN, _GROUPS, _ROWS, _KEYS = range(4)
"""What a key is for: no two draws share one."""


class Groups(Protocol):
    """Ranks 0 ... n-1 cut into groups of neighbours, which are drawn as a whole."""

    def ranks(self, positions: np.ndarray, key: RoundKeys) -> np.ndarray:
        """Return the rank at each position, where the groups follow each other in the order of `key`."""
        ...

    def described(self) -> bytes:
        """Return what tells these groups from any others."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class ListedGroups:
    """Groups of any sizes.

    Attributes
    ----------
    starts : numpy.ndarray
        int64 of shape (groups + 1,): first rank of each, then the number of ranks.
    """

    starts: np.ndarray
    token: str = field(default_factory=lambda: secrets.token_hex(8))
    """Tells these groups from others, in whichever process they are."""

    def ranks(self, positions: np.ndarray, key: RoundKeys) -> np.ndarray:
        drawn, ends = _DRAWN.update((self.token, key), lambda known: known or self._draw(key))
        at = np.searchsorted(ends, positions, side="right")
        # A group ends where its positions end: count from there.
        return self.starts[drawn[at] + 1] - (ends[at] - positions)

    def described(self) -> bytes:
        return self.starts.tobytes()

    def _draw(self, key: RoundKeys) -> tuple[np.ndarray, np.ndarray]:
        count = len(self.starts) - 1
        drawn = permute(np.arange(count), count, key)
        return drawn, np.cumsum((self.starts[1:] - self.starts[:-1])[drawn])


_DRAWN: Recent[tuple[np.ndarray, ...]] = Recent(2)
"""The groups of the last epochs as they were drawn: a task's process reads many blocks of one epoch."""


@dataclass(frozen=True, slots=True, eq=False)
class EvenGroups:
    """Groups of equal size but for the last of each file: what is kept grows with files, not with groups.

    Attributes
    ----------
    starts : numpy.ndarray
        int64 of shape (files + 1,): first row of each file, then the number of rows.
    size : int
        Rows of a group.
    """

    starts: np.ndarray
    size: int
    token: str = field(default_factory=lambda: secrets.token_hex(8))
    """Tells these groups from others, in whichever process they are."""

    def ranks(self, positions: np.ndarray, key: RoundKeys) -> np.ndarray:
        first_group, ends, lacking = _DRAWN.update((self.token, key), lambda known: known or self._draw(key))
        # Were all groups full, a position would be later by what the short groups before it lack.
        before = np.searchsorted(ends, positions, side="right")
        place, offset = np.divmod(positions + lacking[before], self.size)
        group = permute(place, int(first_group[-1]), key)
        file = np.searchsorted(first_group, group, side="right") - 1
        return self.starts[file] + (group - first_group[file]) * self.size + offset

    def described(self) -> bytes:
        return self.starts.tobytes() + b"%d" % self.size

    def _draw(self, key: RoundKeys) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the first group of each file; where the short groups end as drawn; what those before lack."""
        lengths = np.diff(self.starts)
        first_group = np.concatenate([[0], np.cumsum(-(-lengths // self.size))])
        short = np.flatnonzero(lengths % self.size)
        places = unpermute(first_group[short + 1] - 1, int(first_group[-1]), key)
        by_place = np.argsort(places)
        places, missing = places[by_place], self.size - lengths[short[by_place]] % self.size
        lacking = np.concatenate([[0], np.cumsum(missing)])
        return first_group, (places + 1) * self.size - lacking[1:], lacking


@dataclass(frozen=True, slots=True, eq=False)
class Order:
    """The order of an epoch.

    Attributes
    ----------
    num_rows : int
        Selected rows.
    shuffle : Shuffle, optional
        With its unit decided and, for chunks, its window; None keeps the rows as they are.
    groups : Groups, optional
        What is drawn as a whole: the chunk groups, or the files.
    group_rows : int, optional
        Rows of a chunk group, where chunks are drawn.
    """

    num_rows: int
    shuffle: Shuffle | None = None
    groups: Groups | None = None
    group_rows: int | None = None

    @property
    def window_rows(self) -> int | None:
        """Rows that are mixed with each other, where chunks are drawn."""
        return self.shuffle.window_rows if self.shuffle is not None else None

    def with_drawn_seed(self, seed: int | None) -> Order:
        """Return the order with the seed of the run that is resumed, if its own was drawn; else the order itself."""
        shuffle = self.shuffle
        if seed is None or shuffle is None or not shuffle.is_drawn or shuffle.seed == seed:
            return self
        return replace(self, shuffle=replace(shuffle, seed=seed))

    def ranks(self, positions: np.ndarray, epoch: int) -> np.ndarray:
        """Return which of the selected rows stand at some positions of an epoch.

        Parameters
        ----------
        positions : numpy.ndarray
            int64, each in ``range(num_rows)``.
        epoch : int
            The epoch.

        Returns
        -------
        numpy.ndarray
            int64: ranks among the selected rows, in path order.
        """
        if self.shuffle is None:
            return positions
        if self.groups is None:
            return permute(positions, self.num_rows, self._key(epoch, _ROWS))
        if self.shuffle.window_rows is not None:
            positions = self._within_windows(positions, self.shuffle.window_rows, epoch)
        return self.groups.ranks(positions, self._key(epoch, _GROUPS))

    def _within_windows(self, positions: np.ndarray, size: int, epoch: int) -> np.ndarray:
        found = np.empty_like(positions)
        windows = positions // size
        by_window = np.argsort(windows, kind="stable")  # at once where they ascend, as they mostly do
        cuts = np.flatnonzero(np.diff(windows[by_window])) + 1
        for here in np.split(by_window, cuts) if len(positions) else ():
            window = int(windows[here[0]])
            start = window * size
            length = min(size, self.num_rows - start)
            found[here] = start + permute(positions[here] - start, length, self._key(epoch, _WITHIN, window))
        return found

    def _key(self, epoch: int, *purpose: int) -> RoundKeys:
        assert self.shuffle is not None
        assert self.shuffle.seed is not None
        return make_key(self.shuffle.seed, epoch, *purpose)


@lru_cache(maxsize=8)
def _of_epoch(seed: int, epoch: int) -> RoundKeys:
    """Return what the keys of all rows of an epoch are made from: plain datasets ask for it batch by batch."""
    return make_key(seed, epoch, _KEYS)


def row_keys(row_ids: np.ndarray, seed: int, epoch: int) -> np.ndarray:
    """Return a key for the randomness of each row in an epoch.

    Parameters
    ----------
    row_ids : numpy.ndarray
        Integers.
    seed, epoch : int
        Zero or more.

    Returns
    -------
    numpy.ndarray
        uint64: a hash of (seed, epoch, row id), whichever task or worker asks.
    """
    first, second = _of_epoch(seed, epoch)[:2]
    keys = np.asarray(row_ids).astype(np.uint64)
    keys += np.uint64(first)
    mix(keys)
    keys ^= np.uint64(second)
    return mix(keys)
