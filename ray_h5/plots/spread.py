"""Numbers for `plot_spread`: how the values of rows spread over batches."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ray_h5.plots.texts import value_text

MOST_GROUPS = 64
"""The most files or labels with a line of their own in an image of a spread; more are combined into groups."""


def comparable(orders: Mapping[str, np.ndarray[Any, Any]]) -> dict[str, np.ndarray[Any, Any]]:
    """Return orders whose values can be sorted together: as strings, unless all of them are numbers."""
    if all(order.dtype.kind in "biuf" for order in orders.values()):
        return dict(orders)
    return {name: np.array([value_text(value) for value in order]) for name, order in orders.items()}


def counts(values: np.ndarray[Any, Any], kinds: int, batch_size: int) -> np.ndarray[Any, Any]:
    """Count rows by batch and value, shape (batches, kinds)."""
    batches = len(values) // batch_size
    places = np.repeat(np.arange(batches), batch_size) * kinds + values[: batches * batch_size]
    return np.bincount(places, minlength=batches * kinds).reshape(batches, kinds)


def grouped(counts: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return the counts as an image, (groups, batches)."""
    return np.add.reduceat(counts, group_starts(counts.shape[1]), axis=1).T


def group_starts(kinds: int) -> np.ndarray[Any, Any]:
    """Return the first kind of each group."""
    return np.unique(np.linspace(0, kinds, MOST_GROUPS, endpoint=False).astype(int))


def distances(counts: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return the total variation between the shares of each batch and of the whole: 0 to 1."""
    shares = counts / counts.sum(axis=1, keepdims=True)
    whole = counts.sum(axis=0) / counts.sum()
    return np.abs(shares - whole).sum(axis=1) / 2
