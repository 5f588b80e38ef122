"""Numbers for `plot_spread`: how the values of rows spread over batches."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ray_h5.errors import OptionError
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


def padding(lengths: np.ndarray[Any, Any], batch_size: int) -> np.ndarray[Any, Any]:
    """Return the part of each batch that is padding, if rows are padded to its longest: 0 to 1."""
    batches = len(lengths) // batch_size
    by_batch = lengths[: batches * batch_size].reshape(batches, batch_size).astype(np.float64)
    longest = by_batch.max(axis=1)
    # Where all rows of a batch are empty, nothing is padded.
    return np.where(longest > 0, 1 - by_batch.mean(axis=1) / np.maximum(longest, np.finfo(float).tiny), 0.0)


def check_lengths(orders: Mapping[str, np.ndarray[Any, Any]]) -> None:
    """Raise unless all values are lengths.

    Raises
    ------
    OptionError
        If one is no finite number of 0 or more.
    """
    for name, order in orders.items():
        if order.dtype.kind not in "biuf":
            raise OptionError(f"orders: {name!r}: expected lengths, which are numbers, found {order.dtype}")
        wrong = order[~((order >= 0) & np.isfinite(order))]
        if len(wrong):
            raise OptionError(f"orders: {name!r}: expected lengths of 0 or more, found {wrong[0]}")
