"""Batches of neighbours in the order of an epoch."""

from __future__ import annotations

from collections.abc import Iterator, Sized
from typing import Any

from torch.utils.data import BatchSampler, DistributedSampler, Sampler, SequentialSampler

from ray_h5.options import as_integer, names_options
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
            self._register_with_lightning()

    def _register_with_lightning(self) -> None:
        """Record the arguments with which lightning makes this batch sampler again.

        lightning looks for these names on each `BatchSampler`, and sets them itself on those that are made inside
        its hooks. Then it passes a sampler of its own. The new batch sampler shares its state with this one.
        """
        again = {"dataset": self, "batch_size": self.batch_size, "drop_last": self.drop_last, "sampler": None}
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
        return self.sampler.counted(self.batches(), len)

    def batches(self) -> Iterator[list[int]]:
        """Yield the batches without counting them as done; `OrderSampler.counted` does that."""
        return self.sampler.runs(whole=self.drop_last)

    def state_dict(self) -> State:
        """Return the position of the iteration; see `OrderSampler.state_dict`."""
        return self.sampler.state_dict()

    def load_state_dict(self, state: PositionLike) -> None:
        """Let the next iteration continue where `state` was taken; see `OrderSampler.load_state_dict`."""
        self.sampler.load_state_dict(state)
