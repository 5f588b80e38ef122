"""Which rows of an epoch a rank reads."""

from __future__ import annotations

import numpy as np


def later_draws(indices: np.ndarray, draws: np.ndarray, length: int) -> np.ndarray:
    """Return indices that also say which draw of the values of a sample is meant: negative ones below ``-length``.

    They are of datasets whose samples have other values in each epoch. Draw 0 is that of the index itself.
    """
    return np.where(draws > 0, indices - (draws + 1) * length, indices)


def split_draws(indices: np.ndarray, length: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the indices of ``range(length)``, and the draws, that indices of `later_draws` stand for."""
    draws = np.where(indices < 0, -(indices // max(length, 1)) - 1, 0)
    return np.where(indices < 0, indices % max(length, 1), indices), draws
