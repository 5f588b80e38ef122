"""Which boxes of an array hold a value, from the array in parts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np


def any_in_windows(parts: Iterable[np.ndarray], windows: Sequence[tuple[np.ndarray, np.ndarray]]) -> np.ndarray:
    """Return which boxes of a grid hold a true value.

    Parameters
    ----------
    parts : iterable of numpy.ndarray
        An array of bool, in parts along its first axis.
    windows : sequence of (numpy.ndarray, numpy.ndarray)
        Where boxes begin and end along each axis, ascending.
    """
    (low, high), *others = windows
    found = [np.zeros((0, *(len(each) for each, _ in others)), bool)]
    kept, begin, done = found[0], 0, 0  # of the boxes that are not done, from index `begin` on
    for part in parts:
        held = part
        for axis, (lows, highs) in enumerate(others, start=1):
            held = _any_along(held, axis, lows, highs)
        kept = np.concatenate([kept, held])
        ready = int(np.searchsorted(high, begin + len(kept), side="right"))
        found.append(_any_along(kept, 0, low[done:ready] - begin, high[done:ready] - begin))
        passed = len(kept) if ready == len(low) else min(int(low[ready]) - begin, len(kept))
        kept, begin, done = kept[passed:], begin + passed, ready
    return np.concatenate(found)


def _any_along(is_wanted: np.ndarray, axis: int, lows: np.ndarray, highs: np.ndarray) -> np.ndarray:
    """Return whether there is a true value from each low index to each high one along an axis."""
    before = np.zeros([n + (at == axis) for at, n in enumerate(is_wanted.shape)], np.int32)
    np.cumsum(is_wanted, axis=axis, out=before.swapaxes(0, axis)[1:].swapaxes(0, axis))
    found: np.ndarray = before.take(highs, axis) > before.take(lows, axis)
    return found
