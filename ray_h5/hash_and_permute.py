"""Hashes, random words and permutations as functions of seeds and numbers: without state, the same on all machines.

The hash of a 64-bit word is the finaliser of SplitMix64. Source: Steele, Lea & Flood, "Fast splittable pseudorandom
number generators", OOPSLA 2014, with variant 13 of Stafford's.
"""

from __future__ import annotations

import sys
from functools import lru_cache
from typing import Any, TypeAlias

import numpy as np

Words: TypeAlias = np.ndarray[Any, Any]
"""64-bit words: a uint64 array."""

RoundKeys: TypeAlias = tuple[int, ...]
"""Keys of the rounds of a permutation; see `make_key`."""

GOLDEN = 0x9E3779B97F4A7C15
"""The step of the generator: word i of a state is a hash of ``state + (i + 1) * GOLDEN``."""

_ROUNDS = 8
_TABLE_ROWS = 1 << 16
"""Up to this length a permutation is a table of at most half a megabyte."""

_PIECE = 1 << 14

_MIX_1 = 0xBF58476D1CE4E5B9
_MIX_2 = 0x94D049BB133111EB


def mix(words: Words) -> Words:
    """Return the finaliser of SplitMix64 of each word: a bijection of 64 bits."""
    return mix_in_place(np.array(words, dtype=np.uint64))


def mix_in_place(words: np.ndarray) -> np.ndarray:
    """Replace each uint64 of an array by its `mix`, and return the array."""
    words ^= words >> np.uint64(30)
    words *= np.uint64(_MIX_1)
    words ^= words >> np.uint64(27)
    words *= np.uint64(_MIX_2)
    words ^= words >> np.uint64(31)
    return words


def is_tensor(value: object) -> bool:
    """Return whether `value` is a torch tensor, without importing torch."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


# Random words ------------------------------------------------------------------------------------


def word_at(state: Any, numbers: np.ndarray) -> np.ndarray:
    """Return the words with some numbers, of a state or of one for each: uint64. A word does not depend on others."""
    return mix_in_place(numbers.astype(np.uint64) * np.uint64(GOLDEN) + state)


def words_of(states: Words, first: int, stop: int) -> Words:
    """Return words `first` .. `stop` - 1 of each state, shape (n, stop - first)."""
    counters = np.arange(first + 1, stop + 1, dtype=np.uint64) * np.uint64(GOLDEN)
    return mix(states[:, None] + counters)


def below(words: Words, bound: Any) -> np.ndarray:
    """Return integers uniform on 0 .. bound - 1, from the upper half of each word: int64.

    Multiply and shift (Lemire, ACM TOMACS 29, 2019) without rejection: for a bound of n, the probabilities of values
    differ by at most n / 2**32 of themselves. `bound`, below 2**63, broadcasts against `words`; from 2**32 on, all bits
    of a word count, and probabilities differ by n / 2**64.
    """
    bounds, half, low = np.asarray(bound, dtype=np.uint64), np.uint64(32), np.uint64(0xFFFFFFFF)
    product = (words >> half) * bounds
    product >>= half
    if bounds.size and int(bounds.max()) > low:
        # The upper half of a product of 128 bits, of which the halves of both factors have four parts.
        (word, rest), (many, few) = (words >> half, words & low), (bounds >> half, bounds & low)
        inner, outer = word * few, rest * many
        carried = (inner & low) + (outer & low) + (rest * few >> half)
        whole = word * many + (inner >> half) + (outer >> half) + (carried >> half)
        product = np.where(many > 0, whole, product)
    return product.view(np.int64)


def hashed(key: RoundKeys, *words: np.ndarray) -> np.ndarray:
    """Return a uint64 hash of a key and of the integers at each place of some arrays."""
    hashes = np.full(np.shape(words[0]), key[0], np.uint64)
    for word, salt in zip(words, key[1:], strict=False):
        hashes += np.asarray(word).astype(np.uint64) * np.uint64(GOLDEN)
        mix_in_place(hashes)
        hashes ^= np.uint64(salt)
    return mix_in_place(hashes)


def uniform(hashes: np.ndarray) -> np.ndarray:
    """Return numbers from 0 to less than 1, of the 53 bits that a float has."""
    return (hashes >> np.uint64(11)) * 2.0**-53


# Permutations ------------------------------------------------------------------------------------


def make_key(*words: int) -> RoundKeys:
    """Return the round keys of a permutation.

    `numpy.random.SeedSequence` combines the words. A sum would give (seed 42, epoch 1) and (seed 43, epoch 0) the same
    order. It cuts words into 32 bits each, and missing words are zeros. So each word is preceded by its length:
    otherwise (5, 1, 0), (5, 1) and (5 + 2**32,) would have the same key.
    """
    entropy = [part for word in words for part in (-(-max(word.bit_length(), 1) // 32), word)]
    return tuple(np.random.SeedSequence(entropy).generate_state(_ROUNDS, np.uint64).tolist())


def permute(positions: np.ndarray, n: int, key: RoundKeys) -> np.ndarray:
    """Return the values of a permutation of ``range(n)`` at `positions`, without making the whole permutation.

    Up to 65,536 the permutation is a table: the order of keyed hashes. Above, it is a Feistel network of two halves
    of about sqrt(n) values each. Few results are `n` or more; these are permuted again until they are less (Black &
    Rogaway 2002, "Ciphers with arbitrary finite domains"; for halves of different sizes: Hoang & Rogaway 2010, "On
    generalized Feistel networks").

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
    """
    if n <= _TABLE_ROWS:
        return _table(n, key)[positions]
    return _walk(positions, n, key, backwards=False)


def unpermute(values: np.ndarray, n: int, key: RoundKeys) -> np.ndarray:
    """Return the positions that `permute` maps to `values`."""
    if n <= _TABLE_ROWS:
        table = _table(n, key)
        positions = np.empty(n, np.int64)
        positions[table] = np.arange(n)
        return positions[values]
    return _walk(values, n, key, backwards=True)


@lru_cache(maxsize=16)
def _table(n: int, key: RoundKeys) -> np.ndarray:
    hashes = np.arange(n, dtype=np.uint64)
    hashes *= np.uint64(GOLDEN)
    hashes += np.uint64(key[0])
    mix_in_place(hashes)
    hashes ^= np.uint64(key[1])
    return np.argsort(mix_in_place(hashes))  # no two hashes are equal: any sort gives the same


def _walk(values: np.ndarray, n: int, key: RoundKeys, backwards: bool) -> np.ndarray:
    bits = (n - 1).bit_length() // 2
    upper = -(-n >> bits)
    permuted = np.asarray(values).astype(np.uint64).reshape(-1)
    # Piece by piece: the intermediate values stay in the cache of the processor.
    for start in range(0, len(permuted), _PIECE):
        piece = permuted[start : start + _PIECE]
        _feistel(piece, bits, upper, key, backwards)
        beyond = np.flatnonzero(piece >= n)
        while len(beyond):
            again = piece[beyond]
            _feistel(again, bits, upper, key, backwards)
            piece[beyond] = again
            beyond = beyond[again >= n]
    return permuted.astype(np.int64).reshape(np.shape(values))


def _feistel(values: np.ndarray, bits: int, upper: int, key: RoundKeys, backwards: bool) -> None:
    """Permute ``range(upper << bits)`` in place. The low half has `bits` bits, the high half has `upper` values."""
    shift, mask, size = np.uint64(bits), np.uint64((1 << bits) - 1), np.uint64(upper)
    low, high = values & mask, values >> shift
    for turn in reversed(range(_ROUNDS)) if backwards else range(_ROUNDS):
        if turn % 2 == 0:
            step = mix_in_place(high ^ np.uint64(key[turn]))
            low = (low - step if backwards else low + step) & mask
        else:
            step = below(mix_in_place(low ^ np.uint64(key[turn])), size).view(np.uint64)
            # Modulo `size`, without a division. The numbers are unsigned: they must not become negative.
            high += size - step if backwards else step
            high -= np.where(high >= size, size, np.uint64(0))
    np.left_shift(high, shift, out=values)
    values |= low
