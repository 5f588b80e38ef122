"""GaussianNoise: noise drawn from the keys of rows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from statistics import NormalDist
from typing import Any, ClassVar

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from ray_h5.buffers import empty
from ray_h5.errors import OptionError, UnsupportedColumnError
from ray_h5.hash_and_permute import Words, below, words_of
from ray_h5.options import as_integer, is_number, names_options, require
from ray_h5.transforms.augmentation import Augmentation, chance, kind_of, on_device_of

_POOL_BITS = 18
_POOL = 1 << _POOL_BITS
"""Values in a pool; two pools of float32 fit in the cache of a core."""

_MAX_WINDOW = 1024
"""Greatest length of a window."""

_ZERO_WINDOW = _POOL + _MAX_WINDOW
"""Start of a pool's last window, which adds nothing."""

_BLOCK_VALUES = 131_072
"""Values processed at a time, so that they stay in the cache of a core; measured."""


@names_options
@dataclass(frozen=True)  # without slots: Ray derives from a class that it is given, and sets an attribute
class GaussianNoise(Augmentation):
    """Add normal noise of mean 0.

    The noise of each 1024 values of a row is the sum of two windows, one of each of two fixed pools. The windows start
    at places drawn from the key of the row. A pool holds the quantiles of a normal distribution in pseudorandom order,
    so each value is normal, and independent of the other values of its window and of those at its position in other
    rows and epochs. Two rows, or two parts of a row of many thousands of values, may share one of their two windows,
    shifted, and are then correlated at that shift; averages over a batch do not show it. Drawing each value separately
    would cost five times as much. No logarithm or cosine is computed, whose last digit depends on the machine, so the
    noise is the same, bit for bit, in numpy and in torch on every device.

    Parameters
    ----------
    column : str
        The column, of a floating dtype.
    std : float
        Standard deviation of the noise.
    p : float
        The probability that a row gets noise at all.
    clip : (float or None, float or None), optional
        Limits that rows with noise are clipped to; None on a side means no limit.
    salt : int
        Another salt gives a second GaussianNoise of the same column other draws.

    Raises
    ------
    OptionError
        If an option cannot be used.
    UnsupportedColumnError
        When it is applied, if the column is not of a floating dtype.
    """

    kind: ClassVar[str] = "GaussianNoise"

    column: str
    std: float = 0.02
    p: float = 0.8
    clip: tuple[float | None, float | None] | None = None
    salt: int = 0

    def __post_init__(self) -> None:
        self._check_options()
        require(is_number(self.std) and 0 <= self.std < float("inf"), "std", self.std, "0 or more, and finite")
        # A deviation in float32 would make other noise.
        object.__setattr__(self, "std", float(self.std))
        object.__setattr__(self, "salt", as_integer("salt", self.salt))
        object.__setattr__(self, "clip", _limits(self.clip))

    def _changes(self, array: Any) -> bool:
        if kind_of(array) != "f":
            raise UnsupportedColumnError(
                f"GaussianNoise({self.column!r}): the column has dtype {array.dtype}, expected a floating one; cast it "
                "first, such as with read_h5(..., dtypes={...: 'float32'})"
            )
        return self.p > 0 and self.std > 0

    def _draw(self, states: Words, shape: Sequence[int]) -> tuple[Any, Any, Any]:
        """Return the starts of windows in the two pools, (n, windows) each, and which rows get noise."""
        # The first word of a row decides whether it gets noise, the others where its windows start.
        windows = _windows_of(math.prod(shape[1:]))
        words = words_of(states, 0, 1 + 2 * windows)
        chosen = chance(words[:, 0], self.p)
        drawn = below(words[:, 1:], _POOL)
        places = drawn * chosen[:, None] + ~chosen[:, None] * _ZERO_WINDOW
        return places[:, :windows], places[:, windows:], chosen

    def _of_array(self, array: np.ndarray[Any, Any], drawn: tuple[Any, Any, Any]) -> np.ndarray[Any, Any]:
        *places, chosen = drawn
        size = math.prod(array.shape[1:])
        rows = array.reshape(len(array), size)
        out = empty(rows.shape, array.dtype)
        pools = _scaled_pools(self.std, "float64" if array.dtype.itemsize > 4 else "float32")
        left, right = (sliding_window_view(pool, _width(size)) for pool in pools)
        step = max(1, _BLOCK_VALUES // max(1, size))
        for first in range(0, len(rows), step):
            block = slice(first, first + step)
            noise = left[places[0][block]]
            noise += right[places[1][block]]
            np.add(rows[block], noise.reshape(len(noise), -1)[:, :size], out=out[block], casting="same_kind")
            if self.clip is not None:
                np.clip(out[block], *self.clip, out=out[block], where=chosen[block, None])
        return out.reshape(array.shape)

    def _of_tensor(self, array: Any, drawn: tuple[Any, Any, Any]) -> Any:
        import torch

        *places, chosen = on_device_of(array, *drawn)
        work = "float64" if array.dtype == torch.float64 else "float32"
        size = math.prod(array.shape[1:])
        pools = on_device_of(array, *_scaled_pools(self.std, work))
        left, right = (pool.unfold(0, _width(size), 1)[place] for pool, place in zip(pools, places, strict=True))
        noise = (left + right).flatten(1)[:, :size].reshape(array.shape)
        noisy = (array.to(noise.dtype) + noise).to(array.dtype)
        if self.clip is not None:
            noisy = torch.where(chosen.reshape(-1, *[1] * (array.ndim - 1)), noisy.clamp(*self.clip), noisy)
        return noisy


def _limits(clip: Any) -> tuple[float | None, float | None] | None:
    """Return limits as a tuple, which can be hashed; None where there is no limit on either side."""
    if clip is None:
        return None
    # each == each is False for NaN, which cannot be a limit.
    ends = [*clip] if isinstance(clip, (tuple, list)) else []
    are_limits = all(limit is None or (is_number(limit) and limit == limit) for limit in ends)
    if not are_limits or len(ends) != 2 or (None not in ends and ends[0] > ends[1]):
        raise OptionError(f"clip={clip!r}: expected (low, high) with low <= high, None for no limit on that side")
    low, high = (None if limit is None else float(limit) for limit in clip)
    return None if low is None and high is None else (low, high)


def _windows_of(size: int) -> int:
    """Return the number of windows in a row."""
    return -(-size // _MAX_WINDOW)


def _width(size: int) -> int:
    """Return the length of the windows of a row: all are equal, and at most `_MAX_WINDOW`."""
    return -(-size // max(1, _windows_of(size)))


@lru_cache(maxsize=4)
def _scaled_pools(std: float, dtype: str) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Return two pools of normal quantiles in pseudorandom order.

    Each has its first window again at its end, and then a window that adds nothing. That one holds -0.0: adding it
    changes no bit of any value, not even of 0.0 and -0.0.
    """
    quantiles, zeros = np.tile(_quantiles(), _POOL // 65536), np.full(_MAX_WINDOW, -0.0)
    words = words_of(np.arange(2, dtype=np.uint64), 0, _POOL)
    pools = [quantiles[np.argsort(of_pool, kind="stable")] for of_pool in words]
    longer = [np.concatenate([pool, pool[:_MAX_WINDOW], zeros]) for pool in pools]
    left, right = ((pool * (std / math.sqrt(2))).astype(dtype) for pool in longer)
    return left, right


@lru_cache(maxsize=1)
def _quantiles() -> np.ndarray[Any, Any]:
    """Return the quantiles of 65536 equal parts of a normal distribution, scaled to a deviation of exactly 1."""
    # NormalDist.inv_cdf is Wichura's algorithm AS 241, with about 16 correct digits.
    normal = NormalDist()
    upper = np.array([normal.inv_cdf((32768 + part + 0.5) / 65536) for part in range(32768)])
    both = np.concatenate([-upper[::-1], upper])
    return both / both.std()
