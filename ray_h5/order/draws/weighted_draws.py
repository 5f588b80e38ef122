"""Draws of rows with weights: position -> selected index, as a function of (seed, epoch, position)."""

from __future__ import annotations

import hashlib
import secrets
from dataclasses import dataclass, field
from typing import ClassVar, Protocol

import numpy as np

from ray_h5.content_equality import ComparedByContent
from ray_h5.lru import LRU
from ray_h5.order.draws.chunk_groups import ChunkGroups
from ray_h5.order.draws.shuffle import RoundKeys, make_key
from ray_h5.splitmix import GOLDEN, mix_in_place

_ROUNDS = 8
_FEW = 64
_HASHES = 1 << 14
"""How many hashes are compared at a time: they stay in the cache of the processor."""

_INDEPENDENT, _SLOTS, _GROUPS, _WINDOWS, _PASSES, _RANKS = range(100, 106)
"""The purposes of keys; those of an order without weights are below."""


class Draws(Protocol):
    """Which of the selected rows the positions of an epoch have."""

    @property
    def may_repeat(self) -> bool:
        """Whether an epoch may have a row more than once."""
        ...

    def selected_indices(self, positions: np.ndarray, seed: int, epoch: int, rows_per_epoch: int) -> np.ndarray:
        """Return the selected index at each position of an epoch."""
        ...

    def default_rows(self, num_rows: int) -> int:
        """Return the rows of an epoch, if no number was given, of so many selected rows."""
        ...

    def digest(self) -> bytes:
        """Return a digest that is equal for equal draws only, for the hash of a plan."""
        ...


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class IndependentDraws(ComparedByContent):
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

    may_repeat: ClassVar[bool] = True

    def selected_indices(self, positions: np.ndarray, seed: int, epoch: int, rows_per_epoch: int) -> np.ndarray:  # noqa: ARG002
        numbers = uniform(hashed(make_key(seed, epoch, _INDEPENDENT), positions))
        if self.chunk_groups is None:
            return self._rows(numbers * self.ends[-1], self.ends[-1])
        slots = hashed(make_key(seed, epoch, _SLOTS), positions)
        slots >>= np.uint64(32)
        slots *= np.uint64(self.window_groups)
        slots >>= np.uint64(32)
        drawn = hashed(make_key(seed, epoch, _GROUPS), positions // self.window_rows, slots)
        # A row that is drawn by weight is in a chunk group that is drawn by its summed weight.
        first, stop = self.chunk_groups.bounds(self._rows(uniform(drawn) * self.ends[-1], self.ends[-1]))
        low = np.where(first > 0, self.ends[first - 1], 0.0)
        high = self.ends[stop - 1]
        return np.clip(self._rows(low + numbers * (high - low), high), first, stop - 1)

    def default_rows(self, num_rows: int) -> int:
        return num_rows

    def digest(self) -> bytes:
        groups = b"" if self.chunk_groups is None else self.chunk_groups.to_bytes()
        return digest_of(b"independent %d %d" % (self.window_rows, self.window_groups), groups, self.ends)

    def _rows(self, weights: np.ndarray, limit: np.ndarray) -> np.ndarray:
        # A product may be rounded up to the limit, which no row reaches.
        return np.searchsorted(self.ends, np.minimum(weights, np.nextafter(limit, 0)), side="right")


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class BalancedDraws(ComparedByContent):
    """Classes in exact shares; the rows of each class in shuffled order, all of them before one comes again.

    The pattern, repeated, says which class comes. Epoch e begins at ``e * rows_per_epoch`` of this sequence, and each
    window of an epoch, of as many positions as there are classes, is shuffled. The n-th draw of a class is the n-th
    value of a chain of permutations of its rows.

    Attributes
    ----------
    members : numpy.ndarray
        Selected indices, class by class.
    starts : numpy.ndarray
        int64 of shape (classes + 1,): the first member of each class.
    pattern, turns : numpy.ndarray
        int64: the class at each position of a period, and how often the period had this class before.
    window : int
        Positions that are shuffled with each other.
    """

    members: np.ndarray
    starts: np.ndarray
    pattern: np.ndarray
    turns: np.ndarray
    window: int

    may_repeat: ClassVar[bool] = True

    def selected_indices(self, positions: np.ndarray, seed: int, epoch: int, rows_per_epoch: int) -> np.ndarray:
        positions = within_windows(positions, self.window, seed, epoch, rows_per_epoch) + epoch * rows_per_epoch
        classes, draws = class_draws(positions, self.pattern, self.turns)
        sizes = np.diff(self.starts)[classes]
        passes, at = np.divmod(draws, sizes)
        at = permute_each(at, sizes, hashed(make_key(seed, _PASSES), classes, passes))
        return self.members[self.starts[classes] + at].astype(np.int64)

    def default_rows(self, num_rows: int) -> int:
        return num_rows

    def digest(self) -> bytes:
        return digest_of(b"balanced", self.members, self.starts, self.pattern)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class RankedDraws(ComparedByContent):
    """Each row once, heavy rows early: a draw without replacement, one row after another.

    Source: Efraimidis & Spirakis 2006, "Weighted random sampling with a reservoir". Rows are sorted by E / weight,
    where E is exponentially distributed. Each process sorts all rows once an epoch.

    Attributes
    ----------
    weights : numpy.ndarray
        Of the selected rows. Rows of weight 0 are never drawn.
    token : str
        The key of a cache. It goes with copies to other processes.
    """

    weights: np.ndarray
    token: str = field(default_factory=lambda: secrets.token_hex(8), compare=False, repr=False)

    may_repeat: ClassVar[bool] = False

    def selected_indices(self, positions: np.ndarray, seed: int, epoch: int, rows_per_epoch: int) -> np.ndarray:
        def rank(known: np.ndarray | None) -> np.ndarray:
            return self._rank(seed, epoch, rows_per_epoch) if known is None else known

        return _RANKED.update((self.token, seed, epoch, rows_per_epoch), rank)[positions]

    def default_rows(self, num_rows: int) -> int:  # noqa: ARG002
        return int(np.count_nonzero(self.weights))

    def digest(self) -> bytes:
        return digest_of(b"ranked", self.weights)

    def _rank(self, seed: int, epoch: int, count: int) -> np.ndarray:
        rows = np.flatnonzero(self.weights)
        numbers = uniform(hashed(make_key(seed, epoch, _RANKS), rows))
        with np.errstate(over="ignore"):
            values = minus_log(1 - numbers) / self.weights[rows]
        if count < len(rows):
            chosen = np.flatnonzero(values <= np.partition(values, count - 1)[count - 1])
            rows, values = rows[chosen], values[chosen]
        # A stable sort: rows with equal values have one order on all machines.
        return rows[np.argsort(values, kind="stable")[:count]]


_RANKED: LRU[np.ndarray] = LRU(2)
"""The rows of the last epochs in drawn order: one process reads many blocks of an epoch."""


def within_windows(positions: np.ndarray, window: int, seed: int, epoch: int, rows_per_epoch: int) -> np.ndarray:
    """Return positions of an epoch, shuffled within each window."""
    windows = positions // window
    first = windows * window
    keys = hashed(make_key(seed, epoch, _WINDOWS), windows)
    return first + permute_each(positions - first, np.minimum(window, rows_per_epoch - first), keys)


def class_draws(positions: np.ndarray, pattern: np.ndarray, turns: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the class at each position of a pattern that is repeated, and how often it came before.

    Any neighbours in the repeated pattern have their shares, wherever an epoch begins.
    """
    periods, at = np.divmod(positions, len(pattern))
    classes = pattern[at]
    return classes, periods * np.bincount(pattern)[classes] + turns[at]


def digest_of(*parts: bytes | np.ndarray) -> bytes:
    """Return a digest that is equal for equal parts only."""
    found = hashlib.blake2b(digest_size=16)
    for part in parts:  # not copied: they may be large
        found.update(b"%d " % len(part))
        found.update(part if isinstance(part, bytes) else np.ascontiguousarray(part).data)
    return found.digest()


def hashed(key: RoundKeys, *words: np.ndarray) -> np.ndarray:
    """Return a uint64 hash of a key and of the integers at each place of some arrays."""
    found = np.full(np.shape(words[0]), key[0], np.uint64)
    for word, salt in zip(words, key[1:], strict=False):
        found += np.asarray(word).astype(np.uint64) * np.uint64(GOLDEN)
        mix_in_place(found)
        found ^= np.uint64(salt)
    return mix_in_place(found)


def uniform(hashes: np.ndarray) -> np.ndarray:
    """Return numbers from 0 to less than 1, of the 53 bits that a float has."""
    return (hashes >> np.uint64(11)) * 2.0**-53


def minus_log(numbers: np.ndarray) -> np.ndarray:
    """Return minus the natural logarithm of numbers above 0, the same bits on every machine.

    That of NumPy differs in the last bit between processors, and two tasks would disagree about an order.
    """
    fraction, exponent = np.frexp(numbers)
    is_low = fraction < 0.7071067811865476
    fraction, exponent = np.where(is_low, 2 * fraction, fraction), exponent - is_low
    ratio = (fraction - 1) / (fraction + 1)
    square = ratio * ratio
    series = np.zeros_like(ratio)
    for odd in range(25, 0, -2):  # log(f) = 2 * (r + r**3 / 3 + ...), with r**2 below 0.03
        series = series * square + 1 / odd
    return -(exponent * 0.6931471805599453 + 2 * ratio * series)


def permute_each(positions: np.ndarray, sizes: np.ndarray, keys: np.ndarray) -> np.ndarray:
    """Return for each place the value of a permutation of its own size and key.

    A call may be for many small permutations, of which no table is made. Up to `_FEW` values, the value is the rank of
    a hash among those of all positions: all permutations are equally likely. Above, the network is that of
    `shuffle.permute`, which is not even enough for few values.

    Parameters
    ----------
    positions, sizes : numpy.ndarray
        int64, each position in ``range(size)``.
    keys : numpy.ndarray
        uint64: hashes.
    """
    found = np.empty(len(positions), np.int64)
    is_small = sizes <= _FEW
    for part, permuted in ((np.flatnonzero(is_small), _ranks), (np.flatnonzero(~is_small), _walk)):
        if len(part):
            found[part] = permuted(positions[part], sizes[part], keys[part])
    return found


def _ranks(positions: np.ndarray, sizes: np.ndarray, keys: np.ndarray) -> np.ndarray:
    found = np.empty(len(positions), np.int64)
    others = np.arange(int(sizes.max()))
    steps = others.astype(np.uint64) * np.uint64(GOLDEN)
    at_a_time = max(1, _HASHES // len(others))
    for start in range(0, len(positions), at_a_time):
        here = slice(start, start + at_a_time)
        hashes = mix_in_place(keys[here, None] + steps)
        own = np.take_along_axis(hashes, positions[here, None], axis=1)
        found[here] = ((hashes < own) & (others < sizes[here, None])).sum(axis=1)
    return found


def _walk(positions: np.ndarray, sizes: np.ndarray, keys: np.ndarray) -> np.ndarray:
    bits = np.frexp((sizes - 1).astype(np.float64))[1] // 2
    upper = -(-sizes >> bits)
    parts = [positions.astype(np.uint64), bits.astype(np.uint64), upper.astype(np.uint64), keys]
    found = _feistel(*parts)
    beyond = np.flatnonzero(found >= sizes.astype(np.uint64))
    while len(beyond):
        again = _feistel(found[beyond], *(part[beyond] for part in parts[1:]))
        found[beyond] = again
        beyond = beyond[again >= sizes[beyond].astype(np.uint64)]
    return found.astype(np.int64)


def _feistel(values: np.ndarray, bits: np.ndarray, upper: np.ndarray, keys: np.ndarray) -> np.ndarray:
    mask = (np.uint64(1) << bits) - np.uint64(1)
    low, high = values & mask, values >> bits
    for turn in range(_ROUNDS):
        key = keys + np.uint64(turn * GOLDEN % 2**64)
        if turn % 2 == 0:
            step = mix_in_place(low + key)
            step >>= np.uint64(32)
            step *= upper
            step >>= np.uint64(32)
            high += step
            high -= np.where(high >= upper, upper, np.uint64(0))
        else:
            low = (low + mix_in_place(high + key)) & mask
    return high << bits | low
