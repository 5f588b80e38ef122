"""The order of an epoch as a function of (seed, epoch, position): nothing of the dataset's size is kept for it."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Literal, TypeAlias, cast

import numpy as np

from ray_h5.errors import OptionError
from ray_h5.options import as_integer

Unit = Literal["auto", "rows", "chunks", "files"]

_UNITS = ("auto", "rows", "chunks", "files")
_ROUNDS = 8
_TABLE_ROWS = 1 << 16
"""Up to here a permutation is a table, drawn exactly; half a megabyte."""

_PIECE = 1 << 14

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_1, _MIX_2 = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)


@dataclass(frozen=True, slots=True)
class Shuffle:
    """How rows are drawn, anew in each epoch.

    Parameters
    ----------
    unit : {"auto", "rows", "chunks", "files"}
        ``rows``: each position of an epoch is drawn from all selected rows. ``chunks``: chunk
        groups, the rows that lie in the same chunks, are drawn from all files, then rows are drawn
        within a window of `window_rows`; each chunk is then decoded about once. ``files``: files
        are drawn, the rows of a file stay in order. ``auto``: ``rows`` where that costs nothing,
        because a chunk holds one row or the data is contiguous; else ``chunks``.
    seed : int, optional
        Zero or more. None draws one: `seed` then holds it, and `repr` shows it. A `Position`, or the state of a
        sampler, carries it: the run that resumes from it takes it over.
    window_rows : int, optional
        For ``chunks``: rows that are mixed with each other. By default as many as a block holds.
    is_drawn : bool
        Whether a run that resumes may replace the seed with that of the run before; set where `seed` is None.

    Notes
    -----
    The same (files, columns, predicate, seed, epoch) give the same order in Ray and in plain
    PyTorch, whatever the number of tasks and workers.
    """

    unit: Unit = "auto"
    seed: int | None = 0
    window_rows: int | None = None
    is_drawn: bool = field(default=False, kw_only=True, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.unit not in _UNITS:
            raise OptionError(f"Shuffle(unit={self.unit!r}): expected one of {', '.join(map(repr, _UNITS))}")
        if self.seed is None:
            object.__setattr__(self, "seed", secrets.randbits(32))
            object.__setattr__(self, "is_drawn", True)
        object.__setattr__(self, "seed", as_integer("Shuffle: seed", self.seed, 0, instead=", or None"))
        rows = self.window_rows
        if rows is not None and self.unit in ("rows", "files"):
            raise OptionError(f"Shuffle(unit={self.unit!r}, window_rows={rows}): only chunks are mixed in windows")
        if rows is not None:
            object.__setattr__(self, "window_rows", as_integer("Shuffle: window_rows", rows, 1, instead=", or None"))


def as_shuffle(shuffle: bool | str | Shuffle | None, seed: int | None = 0) -> Shuffle | None:
    """Return what a user means by an argument `shuffle`: True and the name of a unit go with `seed`.

    Raises
    ------
    OptionError
        If it means nothing.
    """
    if shuffle is None or shuffle is False:
        return None
    if isinstance(shuffle, Shuffle):
        return shuffle
    if shuffle is True:
        return Shuffle(seed=seed)
    if isinstance(shuffle, str):
        return Shuffle(cast("Unit", shuffle), seed)
    raise OptionError(f"shuffle={shuffle!r}: expected True, False, 'rows', 'chunks', 'files' or a Shuffle")


RoundKeys: TypeAlias = tuple[int, ...]
"""What `make_key` returns."""


def make_key(*words: int) -> RoundKeys:
    """Return the round keys of a permutation.

    `numpy.random.SeedSequence` combines the words, so that (seed 42, epoch 1) has nothing to do
    with (seed 43, epoch 0). It cuts them into 32 bits each and takes missing ones for zeros: their
    lengths go with them, or (5, 1, 0), (5, 1) and (5 + 2**32,) would be one key.
    """
    if min(words) < 0:
        raise OptionError(f"a seed or an epoch is negative: {min(words)}; expected zero or more")
    entropy = [part for word in words for part in (-(-max(word.bit_length(), 1) // 32), word)]
    return tuple(np.random.SeedSequence(entropy).generate_state(_ROUNDS, np.uint64).tolist())


def mix(values: np.ndarray) -> np.ndarray:
    """Return a good 64-bit hash of each uint64, in place.

    Variant 13 of Stafford's finalizers, as in SplitMix64 (Steele, Lea & Flood 2014, "Fast
    splittable pseudorandom number generators").
    """
    values ^= values >> np.uint64(30)
    values *= _MIX_1
    values ^= values >> np.uint64(27)
    values *= _MIX_2
    values ^= values >> np.uint64(31)
    return values


def permute(positions: np.ndarray, n: int, key: RoundKeys) -> np.ndarray:
    """Return where a permutation of ``range(n)`` puts `positions`, without making the permutation.

    Up to 65,536 it is a table: the order of keyed hashes. Beyond, a Feistel network of two halves
    of about sqrt(n) values each, so that few results fall beyond `n`, which are walked on until
    they do not (Black & Rogaway 2002, "Ciphers with arbitrary finite domains"; on halves that
    differ: Hoang & Rogaway 2010, "On generalized Feistel networks").

    Parameters
    ----------
    positions : numpy.ndarray
        Integers in ``range(n)``, of any shape.
    n : int
        Length of the permutation, at most 2**62.
    key : RoundKeys
        From `make_key`.

    Returns
    -------
    numpy.ndarray
        int64, of the shape of `positions`.

    Raises
    ------
    OptionError
        If a position is outside.
    """
    positions = _checked(positions, n)
    if n <= _TABLE_ROWS:
        return _table(n, key)[positions]
    return _walk(positions, n, key, backwards=False)


def unpermute(values: np.ndarray, n: int, key: RoundKeys) -> np.ndarray:
    """Return the positions that `permute` maps to `values`."""
    values = _checked(values, n)
    if n <= _TABLE_ROWS:
        table = _table(n, key)
        positions = np.empty(n, np.int64)
        positions[table] = np.arange(n)
        return positions[values]
    return _walk(values, n, key, backwards=True)


def _checked(positions: np.ndarray, n: int) -> np.ndarray:
    positions = np.asarray(positions)
    if positions.size and (positions.min() < 0 or positions.max() >= n):
        raise OptionError(f"permute: expected positions of 0 to {n - 1}, found {positions.min()} to {positions.max()}")
    return positions if positions.size else positions.astype(np.int64)


@lru_cache(maxsize=16)
def _table(n: int, key: RoundKeys) -> np.ndarray:
    hashes = np.arange(n, dtype=np.uint64)
    hashes *= _GOLDEN
    hashes += np.uint64(key[0])
    mix(hashes)
    hashes ^= np.uint64(key[1])
    table = np.argsort(mix(hashes))  # no two hashes are equal: any sort gives the same
    table.setflags(write=False)
    return table


def _walk(values: np.ndarray, n: int, key: RoundKeys, backwards: bool) -> np.ndarray:
    bits = (n - 1).bit_length() // 2
    upper = -(-n >> bits)
    found = np.asarray(values).astype(np.uint64).reshape(-1)
    # Piece by piece, so that what passes between the steps stays in the processor's cache.
    for start in range(0, len(found), _PIECE):
        piece = found[start : start + _PIECE]
        _feistel(piece, bits, upper, key, backwards)
        beyond = np.flatnonzero(piece >= n)
        while len(beyond):
            again = piece[beyond]
            _feistel(again, bits, upper, key, backwards)
            piece[beyond] = again
            beyond = beyond[again >= n]
    return found.astype(np.int64).reshape(np.shape(values))


def _feistel(values: np.ndarray, bits: int, upper: int, key: RoundKeys, backwards: bool) -> None:
    """Permute ``range(upper << bits)`` in place; the low half has `bits` bits, the high one `upper` values."""
    shift, mask, size = np.uint64(bits), np.uint64((1 << bits) - 1), np.uint64(upper)
    low, high = values & mask, values >> shift
    for turn in reversed(range(_ROUNDS)) if backwards else range(_ROUNDS):
        if turn % 2 == 0:
            step = mix(high ^ np.uint64(key[turn]))
            low = (low - step if backwards else low + step) & mask
        else:
            step = _below(mix(low ^ np.uint64(key[turn])), size)
            # Modulo `size`, without a division and without falling below zero.
            high += size - step if backwards else step
            high -= np.where(high >= size, size, np.uint64(0))
    np.left_shift(high, shift, out=values)
    values |= low


def _below(hashes: np.ndarray, size: np.uint64) -> np.ndarray:
    """Map hashes evenly to ``range(size)``, for sizes below 2**32 (Lemire 2019, without rejection)."""
    hashes >>= np.uint64(32)
    hashes *= size
    hashes >>= np.uint64(32)
    return hashes
