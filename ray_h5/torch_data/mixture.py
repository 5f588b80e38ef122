"""Mixtures: one order over several datasets, each of which has its share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
from torch.utils.data import ConcatDataset, Dataset

from ray_h5.errors import OptionError
from ray_h5.messages import few
from ray_h5.options import is_number, names_options
from ray_h5.order.draws.mixture import mixed_order
from ray_h5.order.draws.shuffle import Shuffle
from ray_h5.order.draws.weights import shown
from ray_h5.order.epoch_order import Order
from ray_h5.torch_data.concatenated import JoinedDataset, flat_parts
from ray_h5.torch_data.samplers import order_of

_MOST_PARTS = 10**6
"""A share is at least one of that many."""


class MixedDataset(JoinedDataset):
    """The samples of several datasets, one after the other, whose order mixes them by shares; see `mix`.

    Attributes
    ----------
    datasets : dict of str to Dataset
        The datasets, by name.
    weights : dict of str to float
        The share of each.
    """

    def __init__(self, datasets: Mapping[str, Dataset[Any]], weights: Mapping[str, float] | None = None) -> None:
        self.datasets = _checked(datasets)
        shares = _shares(list(self.datasets), weights)
        self._shares = list(shares.values())
        self.weights = {name: float(share) for name, share in shares.items()}
        super().__init__(ConcatDataset(list(self.datasets.values())))
        if not (self.is_transformed or self.has_own_samples):
            self.check_alike()

    is_mixture = True

    def epoch_order(self, shuffle: Shuffle | None) -> Order:
        """Return the order in which samples come; samplers ask for it."""
        for option in ("weights", "by_length"):
            value = None if shuffle is None else getattr(shuffle, option)
            if isinstance(value, np.ndarray):
                raise OptionError(
                    f"mix: Shuffle({option}={shown(value)}): an array has a number for each row of one dataset; name a "
                    "column that all datasets have"
                )
        part = shuffle and replace(shuffle, rows_per_epoch=None)
        orders = [order_of(dataset, part) for dataset in self.datasets.values()]
        return mixed_order(orders, self._shares, shuffle)

    def _part_names(self) -> list[str]:
        return [repr(name) for name, dataset in self.datasets.items() for _ in flat_parts(dataset)]

    def __repr__(self) -> str:
        parts = (f"{self.weights[name]:.3g} {name!r} {dataset!r}" for name, dataset in self.datasets.items())
        return f"mix({len(self)} samples: {', '.join(parts)})"


@names_options
def mix(datasets: Mapping[str, Dataset[Any]], weights: Mapping[str, float] | None = None) -> MixedDataset:
    """Return several datasets as one, in whose order each has its share.

    The shares are exact. With equal ones, each window of as many positions as there are datasets has each dataset once;
    else a window has the share of each rounded up or down, by less than two samples. The samples of a dataset come in
    its own order, which knows its chunks, and all of them before one comes again. This goes on over the epochs.

    Samplers and loaders take the result as any dataset: the order is one function of (seed, epoch, position), for any
    number of ranks, and resumes at any step. An epoch has as many samples as all datasets together, or
    ``Shuffle(rows_per_epoch=...)``. Without a shuffle, each dataset comes in path order, in the same shares.

    Parameters
    ----------
    datasets : mapping of str to H5Dataset
        The datasets by name; also a ConcatDataset or Subset of them. Their samples have the same columns.
    weights : mapping of str to float, optional
        How often each comes, as numbers above 0; only their ratios matter. By default all come equally often.

    Raises
    ------
    OptionError
        If there is no dataset, one has no samples, or the weights are not a number above 0 for each.
    SchemaMismatchError
        If the columns, dtypes or shapes of two datasets differ.

    Examples
    --------
    >>> lab, field = H5Dataset("lab/*.h5"), H5Dataset("field/*.h5")  # doctest: +SKIP
    >>> both = mix({"lab": lab, "field": field}, {"lab": 1, "field": 3})  # doctest: +SKIP
    >>> for batch in loader(both, 64, shuffle=Shuffle(seed=7, rows_per_epoch=100_000)):  # doctest: +SKIP
    ...     train(batch)
    """
    return MixedDataset(datasets, weights)


def _checked(datasets: Any) -> dict[str, Dataset[Any]]:
    if not isinstance(datasets, Mapping) or not datasets or not all(isinstance(name, str) for name in datasets):
        found = dict(datasets) if isinstance(datasets, Mapping) else f"a {type(datasets).__name__}"
        raise OptionError(
            f"mix: expected datasets by name, such as {{'lab': H5Dataset(...), 'field': H5Dataset(...)}}, found {found}"
        )
    for name, dataset in datasets.items():
        if not isinstance(dataset, Dataset):
            raise OptionError(f"mix: {name!r}: expected an H5Dataset, found a {type(dataset).__name__}")
        if not len(dataset):
            raise OptionError(f"mix: {name!r} has no samples, so that it cannot have a share; leave it out")
    return dict(datasets)


def _shares(names: list[str], weights: Any) -> dict[str, Fraction]:
    weights = dict.fromkeys(names, 1) if weights is None else weights
    if not isinstance(weights, Mapping) or set(weights) != set(names):
        found = few([repr(name) for name in weights]) if isinstance(weights, Mapping) else repr(weights)
        wanted = few([repr(name) for name in names])
        raise OptionError(f"mix: weights: expected a number for each of {wanted}, found {found}")
    for name, weight in weights.items():
        if not is_number(weight) or not 0 < weight < float("inf"):
            raise OptionError(
                f"mix: weights: {name!r}: {weight!r}: expected a number above 0; or leave the dataset out"
            )
    total = sum(Fraction(float(weight)) for weight in weights.values())
    shares = {name: (Fraction(float(weights[name])) / total).limit_denominator(_MOST_PARTS) for name in names}
    for name, share in shares.items():
        if not share:
            raise OptionError(f"mix: weights: {name!r} has less than one of {_MOST_PARTS} parts; leave the dataset out")
    rounded = sum(shares.values(), Fraction())
    return {name: share / rounded for name, share in shares.items()}
