"""In which order classes come whose shares are not equal."""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from fractions import Fraction

import numpy as np

_LONGEST = 1 << 16
"""Positions of a period; shares that need a longer one are rounded."""


def make_pattern(shares: Sequence[Fraction]) -> np.ndarray:
    """Return the class at each position of a period.

    After each position of it, each class has come as often as its share says, with a difference of less than one.

    Parameters
    ----------
    shares : sequence of Fraction
        Above 0, with the sum 1.

    Returns
    -------
    numpy.ndarray
        int64
    """
    counts = _counts(shares)
    if len(set(counts)) == 1:
        return np.arange(len(counts))
    return _spread(counts)


def turns_of(pattern: np.ndarray) -> np.ndarray:
    """Return for each position of a pattern how often its class came before."""
    by_class = np.argsort(pattern, kind="stable")
    counts = np.bincount(pattern)
    found = np.empty(len(pattern), np.int64)
    found[by_class] = np.arange(len(pattern)) - np.repeat(np.cumsum(counts) - counts, counts)
    return found


def _counts(shares: Sequence[Fraction]) -> list[int]:
    """Return how often each class comes in a period."""
    length = math.lcm(*(share.denominator for share in shares))
    if length <= max(_LONGEST, 2 * len(shares)):
        return [int(share * length) for share in shares]
    length = max(_LONGEST, 4 * len(shares))
    counts = [max(1, math.floor(share * length)) for share in shares]
    # Largest remainders: these classes lose least by one position more.
    by_remainder = sorted(range(len(shares)), key=lambda number: counts[number] - shares[number] * length)
    missing = length - sum(counts)
    for number in by_remainder[: max(missing, 0)]:
        counts[number] += 1
    return counts


def _spread(counts: Sequence[int]) -> np.ndarray:
    """Return a sequence with each class so often, evenly spread.

    Source: Tijdeman 1980, "The chairman assignment problem". The n-th turn of a class has a first position and a
    deadline; of the classes whose turn may come, that with the earliest deadline does.
    """
    length, step = sum(counts), 2 * len(counts) - 2

    def release(number: int, turn: int) -> int:
        return -(-length * (turn * step + 1) // (counts[number] * step))

    waiting = [(release(number, 0), number, 0) for number in range(len(counts))]
    heapq.heapify(waiting)
    ready: list[tuple[Fraction, int, int]] = []
    found = np.empty(length, np.int64)
    for position in range(1, length + 1):
        while waiting and (waiting[0][0] <= position or not ready):
            _, number, turn = heapq.heappop(waiting)
            deadline = Fraction(length * ((turn + 1) * step - 1), counts[number])
            heapq.heappush(ready, (deadline, number, turn))
        _, number, turn = heapq.heappop(ready)
        found[position - 1] = number
        if turn + 1 < counts[number]:
            heapq.heappush(waiting, (release(number, turn + 1), number, turn + 1))
    return found
