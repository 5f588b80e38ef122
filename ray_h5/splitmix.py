"""SplitMix64: a hash of 64-bit words, the same in numpy and in torch.

Source: Steele, Lea & Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014. The finaliser is variant 13
of Stafford's. numpy computes in uint64. torch has little arithmetic for uint64, so it computes in int64. Both wrap, so
the bits are the same on every device.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

if TYPE_CHECKING:
    import torch

__all__ = ["GOLDEN", "Words", "constant", "is_tensor", "mix", "mix_in_place", "shift_right"]

Words: TypeAlias = "np.ndarray[Any, Any] | torch.Tensor"
"""64-bit words: a uint64 array, or an int64 tensor with the same bits."""

GOLDEN = 0x9E3779B97F4A7C15
"""The step of the generator: word i of a state is a hash of ``state + (i + 1) * GOLDEN``."""

_MIX_1 = 0xBF58476D1CE4E5B9
_MIX_2 = 0x94D049BB133111EB


def mix(words: Words) -> Words:
    """Return the finaliser of SplitMix64 of each word: a bijection of 64 bits."""
    if not is_tensor(words):
        return mix_in_place(np.array(words, dtype=np.uint64))
    words = (words ^ shift_right(words, 30)) * constant(_MIX_1, words)
    words = (words ^ shift_right(words, 27)) * constant(_MIX_2, words)
    return words ^ shift_right(words, 31)


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


def shift_right(words: Words, bits: int) -> Words:
    """Shift right and fill with zeros. For int64, torch fills with the sign."""
    if is_tensor(words):
        return words >> bits & ((1 << (64 - bits)) - 1)
    return words >> np.uint64(bits)


def constant(value: int, like: Words) -> Any:
    """Return a number of 64 bits in the type that `like` computes with."""
    if is_tensor(like):
        return value - (1 << 64) if value >= 1 << 63 else value
    return np.uint64(value)
