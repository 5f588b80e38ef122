"""Random words as a function of the key of a row: no state, and the same in numpy and in torch.

The generator is SplitMix64 (Steele, Lea, Flood: Fast Splittable Pseudorandom Number Generators, OOPSLA
2014): word i of a state is a mix of ``state + (i + 1) * GOLDEN``, so any word can be had without those
before it. numpy computes in uint64, torch, which has little arithmetic for that, in int64; both wrap, so
the bits are the same on every device.
"""

from __future__ import annotations

import hashlib
import sys
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from ray_h5.errors import OptionError

if TYPE_CHECKING:
    import torch

__all__ = ["Words", "as_words", "below", "chance", "is_tensor", "mix", "states_of", "stream_id", "words_of"]

Words: TypeAlias = "np.ndarray[Any, Any] | torch.Tensor"
"""64-bit words: a uint64 array, or an int64 tensor with the same bits."""

GOLDEN = 0x9E3779B97F4A7C15
MIX_1 = 0xBF58476D1CE4E5B9
MIX_2 = 0x94D049BB133111EB
"""The constants of SplitMix64; the mix is Stafford's variant 13 of MurmurHash3's."""


def stream_id(kind: str, column: str, salt: int) -> int:
    """Return a word that keeps the draws of one transform apart from those of all others."""
    digest = hashlib.blake2b(f"{kind}\0{column}\0{salt}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little")


def is_tensor(value: object) -> bool:
    """Tell whether `value` is a torch tensor, without importing torch."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def as_words(keys: Any) -> Words:
    """Return keys as words: integers of 64 bits, an array or a tensor of them.

    Raises
    ------
    OptionError
        If `keys` are not integers of 64 bits.
    """
    if is_tensor(keys):
        return _tensor_words(keys)
    array = np.asarray(keys)
    if array.dtype.itemsize == 8 and array.dtype.kind in "iu":
        array = array.astype(array.dtype.newbyteorder("="), copy=False)
    if array.dtype == np.uint64:
        return array
    if array.dtype == np.int64 and (array.ndim or int(array) >= 0):
        # What torch hands on: the same bits under a sign.
        return array.view(np.uint64)
    raise OptionError(
        f"keys have dtype {array.dtype}: expected uint64 (or the same bits as int64), one a row; "
        "read_h5(..., include_row_keys=True) adds them as the column row_key"
    )


def _tensor_words(keys: Any) -> Words:
    import torch

    if keys.dtype not in (torch.uint64, torch.int64):
        raise OptionError(f"keys have dtype {keys.dtype}: expected torch.uint64 or torch.int64, one a row")
    return keys.view(torch.int64)


def states_of(keys: Words, stream: int) -> Words:
    """Return the states of the generators of rows, one a key, for the stream of one transform."""
    return mix(keys ^ _constant(stream, keys))


def words_of(states: Words, first: int, stop: int) -> Words:
    """Return words `first` to `stop` of each state, shape (n, stop - first)."""
    if is_tensor(states):
        import torch

        counters = torch.arange(first + 1, stop + 1, device=states.device) * _constant(GOLDEN, states)
    else:
        counters = np.arange(first + 1, stop + 1, dtype=np.uint64) * np.uint64(GOLDEN)
    return mix(states[:, None] + counters)


def mix(words: Words) -> Words:
    """Return the finaliser of SplitMix64 of each word: a bijection of 64 bits."""
    words = (words ^ _right(words, 30)) * _constant(MIX_1, words)
    words = (words ^ _right(words, 27)) * _constant(MIX_2, words)
    return words ^ _right(words, 31)


def below(words: Words, bound: Any) -> Words:
    """Return integers uniform on 0 .. bound - 1, from the upper half of each word.

    Multiply and shift (Lemire, ACM TOMACS 29, 2019) without his rejection: for a bound of n, some values
    are more probable than others by at most n / 2**32. `bound`, at most 2**31, broadcasts against `words`.
    """
    if is_tensor(words):
        return _right(words, 32) * bound >> 32
    product = _right(words, 32) * np.asarray(bound, dtype=np.uint64) >> np.uint64(32)
    return product.astype(np.int64)


def chance(words: Words, probability: float) -> Words:
    """Return True with `probability` for each word, from its upper 53 bits."""
    return _right(words, 11) < _constant(round(probability * 2**53), words)


def _right(words: Words, bits: int) -> Words:
    """Shift right and fill with zeros, which torch does not for int64."""
    if is_tensor(words):
        return words >> bits & ((1 << (64 - bits)) - 1)
    return words >> np.uint64(bits)


def _constant(value: int, like: Words) -> Any:
    if is_tensor(like):
        return value - (1 << 64) if value >= 1 << 63 else value
    return np.uint64(value)
