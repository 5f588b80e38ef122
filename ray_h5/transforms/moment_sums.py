"""Sums of deviations and of their squares, in one pass over a batch, in float64 and without loss of digits."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import numpy as np

__all__ = ["in_two", "moments_of"]

_BLOCK_VALUES = 262_144
"""Values converted to float64 at a time, so that they stay in the caches; measured."""


def moments_of(
    batch: np.ndarray[Any, Any], axes: tuple[int, ...], *, omit_nan: bool
) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any], np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Return the fields of `Moments`: count, mean, low, m2.

    The deviations are from one of the values (`origin`), so that a large mean costs no digits. The squared deviation of
    that value from the mean is a part of the sum. If it is an outlier, log10(n) digits are lost at worst. A constant
    column has deviations of exactly 0.
    """
    origin = _least(batch, axes) if omit_nan else _first(batch, axes)
    # Integers beyond 2**53 are split in two halves that float64 holds exactly.
    is_long = _is_long(batch)
    shift, rest = _halves(origin) if is_long else (origin.astype(np.float64), 0.0)
    total, squares = np.zeros(shift.shape), np.zeros(shift.shape)
    count = np.full(shift.shape, batch.size // shift.size, np.int64)
    rows = max(1, _BLOCK_VALUES // batch[0].size)
    buffer = np.empty((min(rows, len(batch)), *batch.shape[1:]))
    # The caller finds an overflow or a NaN in the result, and reports where it is.
    with np.errstate(invalid="ignore", over="ignore"):
        for row in range(0, len(batch), rows):
            block, deviations = batch[row : row + rows], buffer[: len(batch) - row]
            if is_long:
                high, low = _halves(block)
                np.subtract(high, shift, out=deviations)
                deviations += low - rest
            else:
                np.copyto(deviations, block)
                deviations -= shift
            if omit_nan:
                missing = np.isnan(block)
                deviations[missing] = 0
                count -= missing.sum(axis=axes, keepdims=True)
            total += _sum(deviations, axes)
            squares += _sum_of_squares(deviations, axes)
        average = total / np.maximum(count, 1)
        # Sum of squares about the mean, from sums about `origin`; rounding may make it slightly negative.
        m2 = np.maximum(squares - total * average, 0)
        mean, low = in_two(shift, rest, average)
    return count[0], mean[0], low[0], m2[0]


def _first(batch: np.ndarray[Any, Any], axes: tuple[int, ...]) -> np.ndarray[Any, Any]:
    return batch[tuple(slice(0, 1) if axis in axes else slice(None) for axis in range(batch.ndim))]


def _least(batch: np.ndarray[Any, Any], axes: tuple[int, ...]) -> np.ndarray[Any, Any]:
    """Return the least values, which unlike the first ones are not NaN; 0 where all values are NaN."""
    least: np.ndarray[Any, Any] = np.fmin.reduce(batch, axis=axes, keepdims=True)
    least[np.isnan(least)] = 0
    return least


def _is_long(values: np.ndarray[Any, Any]) -> bool:
    """Return whether some are integers beyond 2**53, which float64 rounds."""
    if values.dtype.kind not in "iu" or values.dtype.itemsize < 8:
        return False
    return bool(values.max() > 2**53 or values.min() < -(2**53))


def _halves(values: np.ndarray[Any, Any]) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Return two arrays of float64 whose sum is exactly the integers of 64 bits."""
    return (values >> 32) * 2.0**32, (values & 0xFFFFFFFF).astype(np.float64)


def in_two(one: Any, other: Any, third: Any) -> tuple[Any, Any]:
    """Return the sum of three numbers, and its rounding error."""
    total, lost = _two_sum(one, other)
    return _two_sum(total, lost + third)


def _two_sum(one: Any, other: Any) -> tuple[Any, Any]:
    """Return a sum and its rounding error, which together are exact.

    Knuth: The Art of Computer Programming, volume 2, 4.2.2, theorem B.
    """
    total = one + other
    most = total - one
    return total, (one - (total - most)) + (other - most)


def _sum(block: np.ndarray[Any, Any], axes: tuple[int, ...]) -> np.ndarray[Any, Any]:
    """Return ``block.sum(axes, keepdims=True)`` of a contiguous block; most of it is a product with ones.

    Measured: BLAS takes half the time of numpy's sum over the last axis, and a third of it over the first.
    """
    kept, inner = _split(block, axes)
    if inner > 1:
        lines = block.reshape(-1, inner)
        # The ones for a large row would be as large as the row, and stay in memory.
        sums = lines @ _ones(inner) if inner <= _BLOCK_VALUES else lines.sum(axis=1)
        return _sum_rest(block, kept, sums, axes)
    return _over_rows(block, axes)


def _sum_of_squares(block: np.ndarray[Any, Any], axes: tuple[int, ...]) -> np.ndarray[Any, Any]:
    """Return ``np.square(block).sum(axes, keepdims=True)``; may overwrite `block`.

    Measured: a product of each line with itself takes two thirds of the time of squares that are then added.
    """
    kept, inner = _split(block, axes)
    if inner > 1:
        lines = block.reshape(-1, 1, inner)
        return _sum_rest(block, kept, np.matmul(lines, lines.transpose(0, 2, 1)).reshape(-1), axes)
    np.multiply(block, block, out=block)
    return _over_rows(block, axes)


@lru_cache(maxsize=4)
def _ones(count: int) -> np.ndarray[Any, Any]:
    """Return an array of ones, at most `_BLOCK_VALUES`. Making it again would take as long as a pass over the block."""
    return np.ones(count)


def _split(block: np.ndarray[Any, Any], axes: tuple[int, ...]) -> tuple[int, int]:
    """Return the number of axes before the last ones that are reduced, and the number of values of these."""
    kept = block.ndim
    while kept - 1 in axes:
        kept -= 1
    return kept, math.prod(block.shape[kept:])


def _sum_rest(
    block: np.ndarray[Any, Any], kept: int, sums: np.ndarray[Any, Any], axes: tuple[int, ...]
) -> np.ndarray[Any, Any]:
    shaped = sums.reshape(*block.shape[:kept], *[1] * (block.ndim - kept))
    rest: np.ndarray[Any, Any] = shaped.sum(axis=axes, keepdims=True)
    return rest


def _over_rows(block: np.ndarray[Any, Any], axes: tuple[int, ...]) -> np.ndarray[Any, Any]:
    sums = (_ones(len(block)) @ block.reshape(len(block), -1)).reshape(1, *block.shape[1:])
    rest: np.ndarray[Any, Any] = sums.sum(axis=axes, keepdims=True)
    return rest
