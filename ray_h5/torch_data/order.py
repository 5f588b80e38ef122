"""The order of an epoch of any dataset."""

from __future__ import annotations

from collections.abc import Sized
from dataclasses import replace
from typing import cast

from torch.utils.data import Sampler

from ray_h5.errors import OptionError
from ray_h5.planning.order import Order
from ray_h5.planning.shuffle import Shuffle, as_shuffle

ShuffleLike = bool | str | Shuffle | None
"""What a user may say of shuffling."""


def order_of(dataset: Sized, shuffle: ShuffleLike, seed: int | None = 0) -> Order:
    """Return the order in which the samples of a dataset come.

    An `H5Dataset` knows its files and chunks, and has the order that Ray has. Of anything else only
    the length is known; it is shuffled by sample.
    """
    if isinstance(dataset, Sampler):
        raise OptionError(
            f"expected a dataset, found a {type(dataset).__name__}. Samplers of ray_h5 split an epoch over the ranks "
            "themselves. If a framework put it in, switch that off: in lightning by "
            "Trainer(use_distributed_sampler=False)"
        )
    wanted = as_shuffle(shuffle, seed)
    if hasattr(dataset, "epoch_order"):
        return cast("Order", dataset.epoch_order(wanted))
    if wanted is not None and wanted.unit not in ("auto", "rows"):
        raise OptionError(f"shuffle={wanted.unit!r}: only an H5Dataset knows its {wanted.unit}; use 'rows'")
    return Order(len(dataset), wanted and replace(wanted, unit="rows", window_rows=None))
