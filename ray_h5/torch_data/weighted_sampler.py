"""A sampler by weights with the signature of PyTorch's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from ray_h5.errors import OptionError
from ray_h5.options import as_integer, names_options
from ray_h5.order.draws.shuffle import Shuffle
from ray_h5.order.draws.weights_and_class_balance import as_weights
from ray_h5.torch_data.samplers import OrderSampler


@names_options
class WeightedSampler(OrderSampler):
    """Samples drawn by weight: PyTorch's ``WeightedRandomSampler`` for several ranks, which resumes.

    The number of samples has no limit; that of PyTorch ends at 2**24. Each iteration is the next epoch, with other
    draws, unless ``set_epoch`` chose one.

    Parameters
    ----------
    weights : sequence of float, array or tensor
        A weight for each sample of the dataset. They need not sum up to one.
    num_samples : int
        Samples of an epoch, of all ranks together.
    replacement : bool
        Each sample is drawn independently: it is True.
    generator : torch.Generator, optional
        The seed of the draws is the one that it was made with. Its state is neither used nor changed.
    seed : int
        The seed of the draws if there is no generator; the same on all ranks.
    rank, world_size, drop_last, run_length
        As in `OrderSampler`.

    Raises
    ------
    OptionError
        If a weight is negative, infinite or NaN, all are zero, or `replacement` is False.

    Examples
    --------
    >>> sampler = WeightedSampler(1 / counts[labels], len(dataset))  # doctest: +SKIP
    >>> DataLoader(dataset, 64, sampler=sampler)  # doctest: +SKIP
    """

    def __init__(
        self,
        weights: Sequence[float] | np.ndarray | torch.Tensor,
        num_samples: int,
        replacement: bool = True,
        generator: torch.Generator | None = None,
        *,
        seed: int = 0,
        rank: int | None = None,
        world_size: int | None = None,
        drop_last: bool = False,
        run_length: int = 1,
    ) -> None:
        checked = as_weights(weights)
        if not isinstance(checked, np.ndarray) or not len(checked):
            raise OptionError(
                f"WeightedSampler: weights={weights!r}: expected a number for each sample. Classes and columns of an "
                "H5Dataset are drawn by OrderSampler(dataset, shuffle=Shuffle(weights=...))"
            )
        num_samples = as_integer("num_samples", num_samples, 1)
        if replacement is not True:
            raise OptionError(f"replacement={replacement!r}: OrderSampler draws each sample once an epoch")
        if generator is not None:
            own = generator.initial_seed() % (1 << 64)
            if seed not in (0, own):
                raise OptionError(f"seed={seed!r}: generator= has a seed of its own, {own}; leave seed= out")
            seed = own
        shuffle = Shuffle("rows", seed, weights=checked, rows_per_epoch=num_samples)
        ranks: Any = {"rank": rank, "world_size": world_size, "drop_last": drop_last, "run_length": run_length}
        super().__init__(range(len(checked)), shuffle=shuffle, **ranks)
        self.weights, self.replacement, self.generator = weights, replacement, generator
        self.advance_epochs()
