"""Samplers that are made of an `OrderSampler`: its batches, and draws by weight."""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Sized
from typing import Any

import numpy as np
import torch
from torch.utils.data import BatchSampler, DistributedSampler, Sampler, SequentialSampler

from ray_h5.errors import OptionError
from ray_h5.loading.cursor import Begun
from ray_h5.options import as_integer, names_options
from ray_h5.order.draws.shuffle import Shuffle, as_weights
from ray_h5.order.position import PositionLike
from ray_h5.torch_data.samplers import OrderSampler, State


@names_options
class OrderBatchSampler(BatchSampler, DistributedSampler[list[int]]):
    """Batches of an `OrderSampler`: neighbours in the order are in the same batch.

    Parameters
    ----------
    dataset : H5Dataset, or anything with a length
        What is sampled.
    batch_size : int
        Samples of a batch, of one rank.
    drop_last : bool
        Leave out the last batch if it is smaller than the others, on all ranks.
    sampler : Sampler, optional
        The sampler that a framework passes when it splits a batch sampler over ranks. These batches are split
        already. Only a `SequentialSampler` has an effect: nothing is shuffled.
    **options
        `shuffle`, `seed`, `rank` and `world_size` of `OrderSampler`.
    """

    sampler: OrderSampler

    def __init__(
        self,
        dataset: Sized,
        batch_size: int,
        *,
        drop_last: bool = False,
        sampler: Sampler[int] | None = None,
        **options: Any,
    ) -> None:
        batch_size = as_integer("batch_size", batch_size, 1)
        shuffled = not isinstance(sampler, SequentialSampler)
        if isinstance(dataset, OrderBatchSampler) and sampler is not None:
            ordered = dataset.sampler.sharing_state(drop_last=drop_last, shuffled=shuffled)
        else:
            options |= {} if shuffled else {"shuffle": False}
            ordered = OrderSampler(dataset, drop_last=drop_last, run_length=batch_size, **options)
        super().__init__(ordered, batch_size, bool(drop_last))
        if type(self).__init__ is OrderBatchSampler.__init__:
            # lightning looks for these names on each `BatchSampler`, and sets them itself on those that are made inside
            # its hooks. With these arguments it makes this batch sampler again, and passes a sampler of its own. The
            # new batch sampler shares its state with this one.
            again = {"dataset": self, "batch_size": batch_size, "drop_last": self.drop_last, "sampler": None}
            for name, value in (("args", ()), ("kwargs", again), ("arg_names", ()), ("default_kwargs", {})):
                setattr(self, f"__pl_saved_{name}", value)

    @property
    def epoch(self) -> int:
        """The epoch of the next iteration."""
        return self.sampler.epoch

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch, before iterating."""
        self.sampler.set_epoch(epoch)

    def __len__(self) -> int:
        return self.sampler.num_runs(whole=self.drop_last)

    def __iter__(self) -> Iterator[list[int]]:
        def begin() -> Begun[list[int]]:
            start, tasks = self.sampler.tasks(whole=self.drop_last)
            return start, (list(task.indices) for task in tasks)

        return self.sampler.counted(begin, len)

    def state_dict(self) -> State:
        """Return the position of the iteration; see `OrderSampler.state_dict`."""
        return self.sampler.state_dict()

    def load_state_dict(self, state: PositionLike) -> None:
        """Let the next iteration continue where `state` was taken; see `OrderSampler.load_state_dict`."""
        self.sampler.load_state_dict(state)


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
