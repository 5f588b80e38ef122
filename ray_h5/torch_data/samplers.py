"""Which sample comes when: samplers that split an epoch over ranks and can go on in its middle."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from dataclasses import replace
from typing import Any, TypeVar, cast

import numpy as np
from torch.utils.data import BatchSampler, DistributedSampler, Sampler, SequentialSampler

from ray_h5.errors import OptionError, PositionError
from ray_h5.options import as_integer
from ray_h5.planning.epoch.order import Order
from ray_h5.planning.epoch.shuffle import Shuffle, as_shuffle
from ray_h5.torch_data.ranks import Ranks, Share, asked_by_accelerate
from ray_h5.torch_data.sampler_state import ResumableIndices, SamplerState, State

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


_Batch = TypeVar("_Batch")


_WINDOW = 1 << 14
"""Indices that are worked out at a time."""


class RankSampler(DistributedSampler[int]):
    """What samplers of one rank share: an epoch, and how far it is done.

    It is a `DistributedSampler` for frameworks: they split any other sampler over the ranks, and leave one alone that
    is split.
    """

    _walk: SamplerState

    @property
    def epoch(self) -> int:
        """The epoch that the next iteration is of."""
        return self._walk.epoch

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch, before iterating."""
        self._walk.set_epoch(epoch)

    @property
    def rank(self) -> int:
        """Which of the ranks this sampler is for."""
        return self._share().rank

    @property
    def num_replicas(self) -> int:
        """Among how many ranks the samples are split; `world_size`, as a `DistributedSampler` calls it."""
        return self._share().world_size

    @property
    def num_samples(self) -> int:
        """Samples of this rank."""
        return len(self)

    @property
    def total_size(self) -> int:
        """Samples of all ranks together."""
        return self.num_samples * self.num_replicas

    def __iter__(self) -> Iterator[int]:
        return ResumableIndices(self._walk, self._indices())

    def _share(self) -> Share:
        raise NotImplementedError

    def _indices(self) -> Iterator[int]:
        raise NotImplementedError

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


class EpochShuffleSampler(RankSampler):
    """Shuffles a dataset that is a rank's own shard, anew in each epoch.

    It is not split over ranks: for a dataset that all ranks read there is `OrderSampler`.

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
        self.drop_last = False
        self._order = Order(self.data_len, Shuffle("rows", self.seed) if shuffle else None)
        self._walk = SamplerState({"data_len": self.data_len, "seed": self.seed, "shuffle": self.shuffle})

    def __len__(self) -> int:
        self._check_not_split()
        return self.data_len

    def _share(self) -> Share:
        return Share(0, 1)

    def _indices(self) -> Iterator[int]:
        self._check_not_split()
        epoch = self._walk.epoch
        for start in range(self._walk.begin(), self.data_len, _WINDOW):
            stop = min(start + _WINDOW, self.data_len)
            ranks = self._order.selected_indices(np.arange(start, stop, dtype=np.int64), epoch).tolist()
            for done, index in enumerate(ranks, start=start + 1):
                self._walk.done = done
                yield index
        self._walk.end()

    def _check_not_split(self) -> None:
        if asked_by_accelerate():
            raise OptionError(
                "EpochShuffleSampler is for a rank's own shard, and accelerate hands out the batches of a prepared "
                "loader to the ranks: rows would be lost. Leave this loader out of accelerator.prepare(). For a "
                "dataset that all ranks read, write OrderSampler(dataset, seed=...)."
            )


class OrderSampler(RankSampler):
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
        By default those of torch.distributed at each iteration, or 0 of 1 while it is not initialised; and
        everything in a loader that accelerate prepared, which splits it over the ranks itself.
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
        self._ranks = Ranks(rank, world_size)
        self.dataset = dataset
        self.drop_last = drop_last
        self.stretch = as_integer("stretch", stretch, 1)
        self._order = order_of(dataset, shuffle, seed)
        used = self._order.shuffle
        self.shuffle = used is not None
        self._is_drawn = used is not None and used.is_drawn
        self._check_seed(self._ranks.now())
        what = {"num_rows": self._order.num_rows, "shuffle": used and [used.unit, used.seed, used.window_rows]}
        self._walk = SamplerState(what, self.stretch, is_drawn=self._is_drawn)

    @property
    def order(self) -> Order:
        """The order of an epoch. Its seed, if it was drawn, is that of the state that was loaded last."""
        return self._order.with_drawn_seed(self._walk.seed)

    @property
    def seed(self) -> int:
        """The seed of the order; 0 where there is none."""
        used = self.order.shuffle
        return (used and used.seed) or 0

    @property
    def world_size(self) -> int:
        """Among how many ranks the samples are split."""
        return self._share().world_size

    def __len__(self) -> int:
        return self._length(self.order.num_rows, self._share())

    def _share(self) -> Share:
        share = self._ranks.share(self)
        self._check_seed(share)
        return share

    def _check_seed(self, share: Share) -> None:
        if self._is_drawn and (share.world_size > 1 or asked_by_accelerate()):
            used = self._order.shuffle
            raise OptionError(
                "seed=None: each of several ranks would draw an order of its own; give all of them one seed, such as "
                f"{used and used.seed}"
            )

    def _indices(self) -> Iterator[int]:
        share, at = self._share(), None
        # The walk holds the place of the iteration that was asked last, which may be another: after the first stretch
        # this one counts for itself.
        for stretch in self._stretches(share, 1):
            done, skip = (self._walk.done, self._walk.within) if at is None else (at, 0)
            at = done + len(stretch) * share.world_size
            for within, index in enumerate(stretch[skip:], start=skip + 1):
                self._walk.done, self._walk.within = (done, within) if within < len(stretch) else (at, 0)
                yield index
        self._walk.end()

    def stretches(self, *, whole: bool = False) -> Iterator[list[int]]:
        """Yield this rank's indices, a list a stretch. What was yielded is not counted as done: see `counted`.

        With `whole`, a last stretch that is shorter is left out.
        """
        yield from self._stretches(self._share(), self.stretch if whole else 1)

    def _stretches(self, share: Share, least: int) -> Iterator[list[int]]:
        epoch, order = self._walk.epoch, self.order
        total = order.num_rows
        for positions in self._positions(self._walk.begin(share.world_size), total, share):
            ranks = order.selected_indices(positions % max(total, 1), epoch).tolist()
            for i in range(0, len(ranks), self.stretch):
                if len(ranks) - i >= least:
                    yield ranks[i : i + self.stretch]

    def counted(self, batches: Iterable[_Batch], size: Callable[[_Batch], int]) -> Iterator[_Batch]:
        """Yield what was made of this rank's stretches, and count its samples as done when it is asked for."""
        world_size, done = self._share().world_size, None
        for batch in batches:
            # The first batch began the walk. From then on this counts for itself, for another iteration may begin.
            done = (self._walk.done if done is None else done) + size(batch) * world_size
            self._walk.done, self._walk.within = done, 0
            yield batch
        self._walk.end()

    def again(self, *, drop_last: bool, shuffled: bool) -> OrderSampler:
        """Return a sampler that goes on with this one: their epoch, state and place are one."""
        if self.shuffle and not shuffled:
            return OrderSampler(
                self.dataset, shuffle=False, drop_last=drop_last, stretch=self.stretch, **self._ranks.asked
            )
        other = copy.copy(self)
        other.drop_last = drop_last
        return other

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

    def _length(self, rows: int, share: Share) -> int:
        rounds, rest = divmod(rows, self.stretch * share.world_size)
        return rounds * self.stretch + (rest // share.world_size if self.drop_last else -(-rest // share.world_size))

    def _positions(self, done: int, total: int, share: Share) -> Iterator[np.ndarray]:
        """Yield the positions of this rank from `done` on, many at a time."""
        around = self.stretch * share.world_size
        left = max(total - done, 0)  # ranks that repeat a few rows have done more than there are
        rounds = left // around
        at_a_time = max(1, _WINDOW // self.stretch)
        first = done + share.rank * self.stretch
        for start in range(0, rounds, at_a_time):
            begins = first + np.arange(start, min(start + at_a_time, rounds), dtype=np.int64) * around
            yield (begins[:, None] + np.arange(self.stretch)).reshape(-1)
        rest = self._length(left, share) - rounds * self.stretch
        if rest:
            begin = done + rounds * around + share.rank * rest
            yield np.arange(begin, begin + rest, dtype=np.int64)


class OrderBatchSampler(BatchSampler, DistributedSampler[list[int]]):
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
    sampler : Sampler, optional
        What a framework puts in where it splits samplers over ranks. These batches are split already,
        and only a `SequentialSampler` has an effect: nothing is shuffled.
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
            ordered = dataset.sampler.again(drop_last=drop_last, shuffled=shuffled)
        else:
            options |= {} if shuffled else {"shuffle": False}
            ordered = OrderSampler(dataset, drop_last=drop_last, stretch=batch_size, **options)
        super().__init__(ordered, batch_size, bool(drop_last))
        if type(self).__init__ is OrderBatchSampler.__init__:
            self._tell_lightning()

    def _tell_lightning(self) -> None:
        """Say how to make these batches again.

        lightning asks it of each `BatchSampler` under these names, and notes them itself for those that are made
        inside its hooks. Then it puts in a sampler of its own. What is made again shares state with this one.
        """
        again = {"dataset": self, "batch_size": self.batch_size, "drop_last": self.drop_last, "sampler": None}
        for name, value in (("args", ()), ("kwargs", again), ("arg_names", ()), ("default_kwargs", {})):
            setattr(self, f"__pl_saved_{name}", value)

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
