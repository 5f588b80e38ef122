"""One order over several datasets, each of which has its share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import ClassVar

import numpy as np

from ray_h5.content_equality import ComparedByContent
from ray_h5.order.draws.class_turns import make_pattern, turns_of
from ray_h5.order.draws.length_runs import runs_of, sorted_window
from ray_h5.order.draws.shuffle import Shuffle, make_key
from ray_h5.order.draws.weighted_draws import class_draws, digest_of, within_windows
from ray_h5.order.epoch_order import Order

_PARTS = 300
"""The purpose of the keys of parts; those of orders, draws and lengths are below."""


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class MixedDraws(ComparedByContent):
    """Rows of several datasets in exact shares; each dataset in its own order, all of its rows before one comes again.

    The pattern, repeated, says which dataset comes. Each window of an epoch, of as many positions as there are
    datasets, is shuffled if the datasets are. The n-th draw of a dataset is at position n of its epochs, one after the
    other.

    Attributes
    ----------
    orders : tuple of Order
        The order of each dataset.
    pattern, turns : numpy.ndarray
        int64: the dataset at each position of a period, and how often the period had it before.
    """

    orders: tuple[Order, ...]
    pattern: np.ndarray
    turns: np.ndarray

    may_repeat: ClassVar[bool] = True

    def selected_indices(self, positions: np.ndarray, seed: int, epoch: int, rows_per_epoch: int) -> np.ndarray:
        """Return which row of the concatenated datasets each position has."""
        if self.orders[0].shuffle is not None:
            positions = within_windows(positions, len(self.orders), seed, epoch, rows_per_epoch)
        parts, draws = class_draws(positions + epoch * rows_per_epoch, self.pattern, self.turns)
        found, first = np.empty(len(positions), np.int64), 0
        for number, order in enumerate(self.orders):
            here = np.flatnonzero(parts == number)
            found[here] = first + _continued(_with_seed(order, seed, number), draws[here])
            first += order.num_rows
        return found

    def default_rows(self, num_rows: int) -> int:
        return num_rows

    def digest(self) -> bytes:
        return digest_of(b"mixed", self.pattern, *(part for order in self.orders for part in _described(order)))


def mixed_order(orders: Sequence[Order], shares: Sequence[Fraction], shuffle: Shuffle | None) -> Order:
    """Return one order over several datasets, which stand one after the other in it.

    Parameters
    ----------
    orders : sequence of Order
        The order of each dataset, with the lengths of its rows if `shuffle` is by length.
    shares : sequence of Fraction
        Above 0, with the sum 1.
    shuffle : Shuffle, optional
        The shuffle of the mixture.
    """
    pattern, num_rows = make_pattern(shares), sum(order.num_rows for order in orders)
    draws = MixedDraws(tuple(replace(order, runs=None) for order in orders), pattern, turns_of(pattern))
    if shuffle is None:
        return Order(num_rows, draws=draws)
    rows = shuffle.rows_per_epoch or num_rows
    units = {order.shuffle.unit for order in orders if order.shuffle is not None}
    mixed = replace(shuffle.once(units.pop() if len(units) == 1 else "auto"), window_rows=None, rows_per_epoch=rows)
    if shuffle.by_length is None:
        return Order(num_rows, mixed, draws=draws)
    runs = [order.runs for order in orders if order.runs is not None]
    lengths = np.concatenate([each.lengths for each in runs])
    window = shuffle.window_rows or sorted_window(min(rows, num_rows), sum(each.window_rows for each in runs))
    return Order(num_rows, mixed, draws=draws, runs=runs_of(lengths, shuffle.run_rows, rows, window))


def _with_seed(order: Order, seed: int, number: int) -> Order:
    """Return the order of a dataset with a seed of its own: two datasets of one length have different orders."""
    if order.shuffle is None:
        return order
    return replace(order, shuffle=replace(order.shuffle, seed=make_key(seed, _PARTS, number)[0]))


def _continued(order: Order, draws: np.ndarray) -> np.ndarray:
    """Return the rows at positions of an order whose epochs come one after the other."""
    if order.num_rows == 1:
        return np.zeros(len(draws), np.int64)  # which would be as many epochs as draws
    passes, positions = np.divmod(draws, order.epoch_rows)
    found = np.empty(len(draws), np.int64)
    for each in np.unique(passes).tolist():
        here = passes == each
        found[here] = order.selected_indices(positions[here], each)
    return found


def _described(order: Order) -> tuple[bytes, ...]:
    """Return what decides the order of a dataset, without its seed."""
    shuffle = order.shuffle and replace(order.shuffle, seed=0)
    groups = b"" if order.chunk_groups is None else order.chunk_groups.to_bytes()
    draws = b"" if order.draws is None else order.draws.digest()
    return b"%d" % order.num_rows, repr(shuffle).encode(), groups, draws
