"""Which sample comes when: samplers that split an epoch over ranks and can go on in its middle."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from typing import Any, TypeVar

import numpy as np
import torch
from torch.utils.data import Sampler

from ray_h5.errors import OptionError, PositionError
from ray_h5.options import as_integer
from ray_h5.planning.order import Order
from ray_h5.planning.shuffle import Shuffle
from ray_h5.torch_data.order import ShuffleLike, order_of
from ray_h5.torch_data.walk import State, Steps, Walk

_Batch = TypeVar("_Batch")

_WINDOW = 1 << 14
"""Indices that are worked out at a time."""


class EpochShuffleSampler(Sampler[int]):
    """Shuffles a dataset that is a rank's own shard, anew in each epoch.

    Parameters
    ----------
    data_len : int
        Samples of the shard.
    seed : int
        Zero or more. The order is a function of (seed, epoch).
    shuffle : bool
        False yields ``0 ... data_len - 1``.
    """

    def __init__(self, data_len: int, seed: int = 0, shuffle: bool = True) -> None:
        self.data_len = as_integer("data_len", data_len, 0, instead="; pass len(dataset)")
        self.shuffle = bool(shuffle)
        self.seed = as_integer("seed", seed, 0)
        self._order = Order(self.data_len, Shuffle("rows", self.seed) if shuffle else None)
        self._walk = Walk({"data_len": self.data_len, "seed": self.seed, "shuffle": self.shuffle})

    @property
    def epoch(self) -> int:
        """The epoch that the next iteration is of."""
        return self._walk.epoch

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch, before iterating."""
        self._walk.set_epoch(epoch)

    def __len__(self) -> int:
        return self.data_len

    def __iter__(self) -> Iterator[int]:
        return Steps(self._walk, self._indices())

    def _indices(self) -> Iterator[int]:
        epoch = self._walk.epoch
        for start in range(self._walk.begin(), self.data_len, _WINDOW):
            stop = min(start + _WINDOW, self.data_len)
            ranks = self._order.ranks(np.arange(start, stop, dtype=np.int64), epoch).tolist()
            for done, index in enumerate(ranks, start=start + 1):
                self._walk.done = done
                yield index
        self._walk.end()

    def state_dict(self) -> State:
        """Return where the iteration is: what a checkpoint keeps."""
        return self._walk.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Let the next iteration go on where `state` was taken.

        Raises
        ------
        PositionError
            If it was taken of a sampler of another length, seed or kind.
        """
        self._walk.load_state_dict(state)


class OrderSampler(Sampler[int]):
    """The order of an epoch, the same as in Ray, split over the ranks of a training run.

    The order is cut into stretches of ``world_size * stretch`` samples, of which each rank takes
    its `stretch` samples; where the rest does not go round, ranks share it evenly. All ranks yield
    equally many indices.

    Parameters
    ----------
    dataset : H5Dataset, or anything with a length
        What is sampled. The order of an `H5Dataset` knows its chunks; anything else is shuffled by
        sample.
    shuffle : bool, str or Shuffle
        True draws anew in each epoch with `seed`; a unit (``"rows"``, ``"chunks"``, ``"files"``) or
        a `Shuffle` says how; False keeps the order of the files.
    seed : int, optional
        Zero or more; a `Shuffle` has its own. None draws one, if there is one rank; `order` shows it, `state_dict`
        carries it, and a sampler that drew one takes over that of a state.
    rank, world_size : int, optional
        By default those of torch.distributed, or 0 of 1 where it is not initialised.
    drop_last : bool
        What to do if the ranks cannot get equally many samples: True leaves out the last few of
        the epoch's order, False repeats its first few, as ``DistributedSampler`` does.
    stretch : int
        Samples of one rank that follow each other in the order; a batch, for neighbours in a batch
        to lie in the same chunks.

    Raises
    ------
    OptionError
        If an argument makes no sense.

    Examples
    --------
    >>> sampler = OrderSampler(dataset, seed=1)  # doctest: +SKIP
    >>> for epoch in range(3):  # doctest: +SKIP
    ...     sampler.set_epoch(epoch)
    ...     for batch in DataLoader(dataset, batch_size=64, sampler=sampler):
    ...         train(batch)
    """

    def __init__(
        self,
        dataset: Sized,
        *,
        shuffle: ShuffleLike = True,
        seed: int | None = 0,
        rank: int | None = None,
        world_size: int | None = None,
        drop_last: bool = False,
        stretch: int = 1,
    ) -> None:
        self.rank, self.world_size = resolve_rank(rank, world_size)
        self.drop_last = drop_last
        self.stretch = as_integer("stretch", stretch, 1)
        self._order = order_of(dataset, shuffle, seed)
        used = self._order.shuffle
        is_drawn = used is not None and used.is_drawn
        if is_drawn and self.world_size > 1:
            raise OptionError(
                f"seed=None: each of {self.world_size} ranks would draw an order of its own; give all of them one "
                f"seed, such as {used and used.seed}"
            )
        what = {"num_rows": self._order.num_rows, "shuffle": used and [used.unit, used.seed, used.window_rows]}
        self._walk = Walk(what, [self.stretch, self.world_size], is_drawn=is_drawn)

    @property
    def order(self) -> Order:
        """The order of an epoch. Its seed, if it was drawn, is that of the state that was loaded last."""
        return self._order.with_drawn_seed(self._walk.seed)

    @property
    def epoch(self) -> int:
        """The epoch that the next iteration is of."""
        return self._walk.epoch

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch, before iterating."""
        self._walk.set_epoch(epoch)

    def __len__(self) -> int:
        return self._length(self.order.num_rows)

    def __iter__(self) -> Iterator[int]:
        return Steps(self._walk, self._indices())

    def _indices(self) -> Iterator[int]:
        # The walk holds the place of the iteration that was asked last, which may be another: after the first stretch
        # this one counts for itself.
        at = None
        for stretch in self.stretches():
            done, skip = (self._walk.done, self._walk.within) if at is None else (at, 0)
            at = done + len(stretch) * self.world_size
            for within, index in enumerate(stretch[skip:], start=skip + 1):
                self._walk.done, self._walk.within = (done, within) if within < len(stretch) else (at, 0)
                yield index
        self._walk.end()

    def stretches(self, *, whole: bool = False) -> Iterator[list[int]]:
        """Yield this rank's indices, a list a stretch. What was yielded is not counted as done: see `counted`.

        With `whole`, a last stretch that is shorter is left out.
        """
        epoch, order = self._walk.epoch, self.order
        total, least = order.num_rows, self.stretch if whole else 1
        for positions in self._positions(self._walk.begin(), total):
            ranks = order.ranks(positions % max(total, 1), epoch).tolist()
            for i in range(0, len(ranks), self.stretch):
                if len(ranks) - i >= least:
                    yield ranks[i : i + self.stretch]

    def counted(self, batches: Iterable[_Batch], size: Callable[[_Batch], int]) -> Iterator[_Batch]:
        """Yield what was made of this rank's stretches, and count its samples as done when it is asked for."""
        done = None
        for batch in batches:
            # The first batch began the walk. From then on this counts for itself, for another iteration may begin.
            done = (self._walk.done if done is None else done) + size(batch) * self.world_size
            self._walk.done, self._walk.within = done, 0
            yield batch
        self._walk.end()

    def state_dict(self) -> State:
        """Return where the iteration is: epoch, and how many samples all ranks together have done.

        From a state taken inside an epoch, what is left of it is delivered, even if that is nothing; from one taken
        after its end, a whole epoch.

        A `DataLoader` asks its sampler ahead of what it delivers: with workers, and for a last batch that is smaller
        than the others, which it finds by the end of the iteration. torchdata's ``StatefulDataLoader`` takes that into
        account, and an `OrderBatchSampler` has no such batch.
        """
        return self._walk.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Let the next iteration go on where `state` was taken, by as many ranks as there are now.

        A seed that was drawn gives way to that of the state, in later epochs too.

        Raises
        ------
        PositionError
            If it was taken of a dataset of another length, of another shuffle, or inside a stretch of
            another length or number of ranks.
        """
        self._walk.load_state_dict(state)

    def _length(self, rows: int) -> int:
        rounds, rest = divmod(rows, self.stretch * self.world_size)
        return rounds * self.stretch + (rest // self.world_size if self.drop_last else -(-rest // self.world_size))

    def _positions(self, done: int, total: int) -> Iterator[np.ndarray]:
        """Yield the positions of this rank from `done` on, many at a time."""
        around = self.stretch * self.world_size
        left = max(total - done, 0)  # ranks that repeat a few rows have done more than there are
        rounds = left // around
        at_a_time = max(1, _WINDOW // self.stretch)
        first = done + self.rank * self.stretch
        for start in range(0, rounds, at_a_time):
            begins = first + np.arange(start, min(start + at_a_time, rounds), dtype=np.int64) * around
            yield (begins[:, None] + np.arange(self.stretch)).reshape(-1)
        rest = self._length(left) - rounds * self.stretch
        if rest:
            begin = done + rounds * around + self.rank * rest
            yield np.arange(begin, begin + rest, dtype=np.int64)


class OrderBatchSampler(Sampler[list[int]]):
    """Batches of an `OrderSampler`: neighbours in the order come to the same batch.

    Parameters
    ----------
    dataset : H5Dataset, or anything with a length
        What is sampled.
    batch_size : int
        Samples of a batch, of one rank.
    drop_last : bool
        Leave out the last batch if it is smaller than the others, and so the samples of other
        ranks that would go with it.
    **options
        `shuffle`, `seed`, `rank` and `world_size` of `OrderSampler`.
    """

    def __init__(self, dataset: Sized, batch_size: int, *, drop_last: bool = False, **options: Any) -> None:
        self.batch_size = as_integer("batch_size", batch_size, 1)
        self.drop_last = drop_last
        self.sampler = OrderSampler(dataset, drop_last=drop_last, stretch=self.batch_size, **options)

    @property
    def epoch(self) -> int:
        """The epoch that the next iteration is of."""
        return self.sampler.epoch

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch, before iterating."""
        self.sampler.set_epoch(epoch)

    def __len__(self) -> int:
        full, rest = divmod(len(self.sampler), self.batch_size)
        return full + bool(rest and not self.drop_last)

    def __iter__(self) -> Iterator[list[int]]:
        return self.sampler.counted(self.batches(), len)

    def batches(self) -> Iterator[list[int]]:
        """Yield the batches ahead of their time: they are done when `OrderSampler.counted` yields them."""
        return self.sampler.stretches(whole=self.drop_last)

    def state_dict(self) -> State:
        """Return where the iteration is, as `OrderSampler.state_dict`."""
        return self.sampler.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where `state` was taken, as `OrderSampler.load_state_dict`."""
        check_between_batches(state)
        self.sampler.load_state_dict(state)


def check_between_batches(state: Mapping[str, Any]) -> None:
    """Raise a PositionError if a state was taken inside a batch, of which no whole one is left."""
    if state.get("within"):
        raise PositionError("load_state_dict: expected a state taken between batches, found one inside a batch")


def resolve_rank(rank: int | None, world_size: int | None) -> tuple[int, int]:
    """Return rank and world size; what is None comes from torch.distributed, if it is initialised.

    Raises
    ------
    OptionError
        If there is no such rank.
    """
    distributed = torch.distributed.is_available() and torch.distributed.is_initialized()
    if world_size is None:
        world_size = torch.distributed.get_world_size() if distributed else 1
    if rank is None:
        rank = torch.distributed.get_rank() if distributed else 0
    rank, world_size = as_integer("rank", rank), as_integer("world_size", world_size)
    if world_size < 1 or not 0 <= rank < world_size:
        raise OptionError(f"rank={rank}, world_size={world_size}: expected a rank from 0 to world_size - 1")
    return rank, world_size
