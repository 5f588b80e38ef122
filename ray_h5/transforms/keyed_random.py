"""Random words as a function of the key of a row: without state, and the same in numpy and in torch.

The generator is SplitMix64 (`ray_h5.splitmix`). Word i of a state does not depend on the words before it.
"""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np

from ray_h5.errors import OptionError
from ray_h5.splitmix import GOLDEN, Words, constant, is_tensor, mix, shift_right

__all__ = ["Words", "as_words", "below", "chance", "is_tensor", "mix", "states_of", "stream_id", "words_of"]


def stream_id(kind: str, column: str, salt: int) -> int:
    """Return a word that gives one transform other draws than all others."""
    digest = hashlib.blake2b(f"{kind}\0{column}\0{salt}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little")


def as_words(keys: Any) -> Words:
    """Return keys as words: an array or a tensor of integers of 64 bits.

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
        # Keys that come from torch are int64 with the same bits.
        return array.view(np.uint64)
    raise OptionError(
        f"keys have dtype {array.dtype}: expected uint64 (or the same bits as int64), one for each row; "
        "read_h5(..., include_row_keys=True) adds them as the column row_key"
    )


def _tensor_words(keys: Any) -> Words:
    import torch

    if keys.dtype not in (torch.uint64, torch.int64):
        raise OptionError(f"keys have dtype {keys.dtype}: expected torch.uint64 or torch.int64, one for each row")
    return keys.view(torch.int64)


def states_of(keys: Words, stream: int) -> Words:
    """Return the state of the generator of each row, for the stream of one transform."""
    return mix(keys ^ constant(stream, keys))


def words_of(states: Words, first: int, stop: int) -> Words:
    """Return words `first` .. `stop` - 1 of each state, shape (n, stop - first)."""
    if is_tensor(states):
        import torch

        counters = torch.arange(first + 1, stop + 1, device=states.device) * constant(GOLDEN, states)
    else:
        counters = np.arange(first + 1, stop + 1, dtype=np.uint64) * np.uint64(GOLDEN)
    return mix(states[:, None] + counters)


def below(words: Words, bound: Any) -> Words:
    """Return integers uniform on 0 .. bound - 1, from the upper half of each word.

    Multiply and shift (Lemire, ACM TOMACS 29, 2019) without rejection: for a bound of n, the probabilities of values
    differ by at most n / 2**32 of themselves. `bound`, at most 2**31, broadcasts against `words`.
    """
    if is_tensor(words):
        return shift_right(words, 32) * bound >> 32
    product = shift_right(words, 32) * np.asarray(bound, dtype=np.uint64) >> np.uint64(32)
    return product.astype(np.int64)


def chance(words: Words, probability: float) -> Words:
    """Return True with `probability` for each word, from its upper 53 bits."""
    # 53 bits, the digits of a float: the bound is then exact for every probability.
    return shift_right(words, 11) < constant(round(probability * 2**53), words)
