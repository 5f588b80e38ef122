"""Samplers that have the order of an epoch, split it over ranks, and can resume inside it."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from typing import Any, TypeVar, cast

import numpy as np
from torch.utils.data import DistributedSampler, Sampler

from ray_h5.errors import OptionError
from ray_h5.options import as_integer
from ray_h5.planning.epoch.order import Order, plain_order
from ray_h5.planning.epoch.shuffle import Shuffle, as_shuffle
from ray_h5.torch_data.ranks import Ranks, Share, asked_by_accelerate
from ray_h5.torch_data.sampler_state import ResumableIndices, SamplerState, State

ShuffleLike = bool | str | Shuffle | None
"""Values of the option `shuffle`."""

INDICES_AT_ONCE = 1 << 14
"""How many indices are computed by one call."""

_Batch = TypeVar("_Batch")


def order_of(dataset: Sized, shuffle: ShuffleLike, seed: int | None = 0) -> Order:
    """Return the order in which the samples of a dataset come.

    An `H5Dataset` knows its files and chunks, and has the same order as in Ray. Of any other dataset only the
    length is known; it is shuffled by sample.
    """
    if isinstance(dataset, Sampler):
        raise OptionError(
            f"expected a dataset, found a {type(dataset).__name__}. Samplers of ray_h5 split an epoch over the ranks "
            "themselves. If a framework put it in, switch that off: in lightning by "
            "Trainer(use_distributed_sampler=False)"
        )
    wanted = as_shuffle(shuffle, seed)
    if hasattr(dataset, "epoch_order"):  # an H5Dataset, or a mixture
        return cast("Order", dataset.epoch_order(wanted))
    if wanted is not None and wanted.unit not in ("auto", "rows"):
        raise OptionError(f"shuffle={wanted.unit!r}: only an H5Dataset knows its {wanted.unit}; use 'rows'")
    return plain_order(len(dataset), wanted)


def _described(order: Order) -> list[Any] | None:
    """Return the shuffle of an order for the state of a sampler; with draws and lengths, where there are some."""
    shuffle = order.shuffle
    if shuffle is None:
        return None if order.draws is None else [None, None, None, None, order.draws.digest().hex()]
    found: list[Any] = [shuffle.unit, shuffle.seed, shuffle.window_rows]
    if shuffle.rows_per_epoch is None and order.runs is None:
        return found
    found += [shuffle.rows_per_epoch, None if order.draws is None else order.draws.digest().hex()]
    return found if order.runs is None else [*found, order.runs.digest().hex()]


class RankSampler(DistributedSampler[int]):
    """Base of the samplers of one rank: the epoch, and how much of it is done.

    It is a `DistributedSampler` because frameworks split any other sampler over the ranks, and leave that one alone.
    """

    _state: SamplerState

    @property
    def epoch(self) -> int:
        """The epoch of the next iteration."""
        return self._state.epoch

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch, before iterating."""
        self._state.set_epoch(epoch)

    @property
    def rank(self) -> int:
        """The rank that this sampler is for."""
        return self._share().rank

    @property
    def num_replicas(self) -> int:
        """Among how many ranks the samples are split; the name that `DistributedSampler` has for `world_size`."""
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
        return ResumableIndices(self._state, self._indices())

    def _share(self) -> Share:
        raise NotImplementedError

    def _indices(self) -> Iterator[int]:
        raise NotImplementedError

    def state_dict(self) -> State:
        """Return the position of the iteration, for a checkpoint."""
        return self._state.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Let the next iteration continue where `state` was taken.

        Raises
        ------
        PositionError
            If it was taken of a sampler of another length, seed or kind.
        """
        self._state.load_state_dict(state)


class OrderSampler(RankSampler):
    """The order of an epoch, the same as in Ray, split over the ranks of a training run.

    The order is cut into pieces of ``world_size * run_length`` samples. Each rank takes a run of `run_length`
    neighbours of each piece, and the ranks share what is left evenly. All ranks yield equally many indices.

    Parameters
    ----------
    dataset : H5Dataset, or anything with a length
        What is sampled. The order of an `H5Dataset` knows its chunks; anything else is shuffled by
        sample.
    shuffle : bool, str or Shuffle
        True draws another order in each epoch, with `seed`; a unit (``"rows"``, ``"chunks"``, ``"files"``) or
        a `Shuffle` chooses how; False keeps the order of the files.
    seed : int, optional
        Zero or more; a `Shuffle` has its own. None draws one, if there is one rank. `seed` and `order` show it, and
        `state_dict` contains it; a sampler that drew its seed takes the seed of the state that it loads.
    rank, world_size : int, optional
        By default those of torch.distributed at each iteration, or 0 of 1 while it is not initialised. In a loader
        that accelerate prepared the sampler yields all samples, and accelerate splits them over the ranks.
    drop_last : bool
        If the samples do not divide among the ranks: True leaves out the last few of the epoch's
        order, False repeats its first few, as ``DistributedSampler`` does.
    run_length : int
        Samples of one rank that follow each other in the order. With the batch size, the samples of a batch are
        neighbours, which lie in the same chunks.
    stretch : int, optional
        The former name of `run_length`.

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
        run_length: int = 1,
        stretch: int | None = None,
    ) -> None:
        self._ranks = Ranks(rank, world_size)
        self.dataset = dataset
        self.drop_last = drop_last
        if stretch is None:
            self.run_length = as_integer("run_length", run_length, 1)
        else:
            self.run_length = as_integer("stretch", stretch, 1)
        self._order = order_of(dataset, shuffle, seed)
        used = self._order.shuffle
        self.shuffle = used is not None
        self._is_drawn = used is not None and used.is_drawn
        self._check_seed(self._ranks.now())
        what = {"num_rows": self._order.num_rows, "shuffle": _described(self._order)}
        self._state = SamplerState(what, self.run_length, is_drawn=self._is_drawn)

    @property
    def stretch(self) -> int:
        """The former name of `run_length`."""
        return self.run_length

    @property
    def order(self) -> Order:
        """The order of an epoch. If its seed was drawn, a state that is loaded replaces the seed."""
        return self._order.with_drawn_seed(self._state.seed)

    @property
    def seed(self) -> int:
        """The seed of the order; 0 without a shuffle."""
        used = self.order.shuffle
        return (used and used.seed) or 0

    @property
    def world_size(self) -> int:
        """Among how many ranks the samples are split."""
        return self._share().world_size

    def __len__(self) -> int:
        return self._length(self.order.epoch_rows, self._share())

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
        share, end, epoch = self._share(), None, self.epoch
        # The state is that of the iteration that was asked last, which may be another one. So this iteration takes its
        # beginning from the state, and counts for itself after the first run.
        for run in self._runs(share, 1):
            if end is None:
                epoch, done, skip = self._state.epoch, self._state.done, self._state.within
            else:
                done, skip = end, 0
            end = done + len(run) * share.world_size
            for within, index in enumerate(run[skip:], start=skip + 1):
                self._state.count(epoch, *((done, within) if within < len(run) else (end, 0)))
                yield index
        self._state.end()

    def runs(self, *, whole: bool = False) -> Iterator[list[int]]:
        """Yield this rank's indices, a list for each run. They are not counted as done: see `counted`.

        With `whole`, a last run that is shorter is left out.
        """
        yield from self._runs(self._share(), self.run_length if whole else 1)

    def _runs(self, share: Share, least: int) -> Iterator[list[int]]:
        order = self.order
        total, done = order.epoch_rows, self._state.begin(share.world_size)
        epoch = self._state.epoch
        for positions in self._positions(done, total, share):
            # Without drop_last, positions after the last one stand for the first ones of the epoch.
            indices = order.selected_indices(positions % max(total, 1), epoch).tolist()
            for i in range(0, len(indices), self.run_length):
                if len(indices) - i >= least:
                    yield indices[i : i + self.run_length]

    def counted(self, batches: Iterable[_Batch], size: Callable[[_Batch], int]) -> Iterator[_Batch]:
        """Yield what was made of this rank's runs, and count the samples of each as done when it is asked for."""
        world_size, begun = self._share().world_size, None
        for batch in batches:
            # The first batch took its beginning from the state. From then on this counts for itself: another iteration
            # may begin.
            epoch, done = begun or (self._state.epoch, self._state.done)
            begun = epoch, done + size(batch) * world_size
            self._state.count(*begun)
            yield batch
        self._state.end()

    @property
    def place(self) -> tuple[int, int]:
        """The epoch of the iteration, and how many samples all ranks together have done of it."""
        return self._state.epoch, self._state.done

    def advance_epochs(self) -> None:
        """Let each iteration be of the epoch after the one before it, unless `set_epoch` or a state chose one."""
        self._state.advances = True

    def sharing_state(self, *, drop_last: bool, shuffled: bool) -> OrderSampler:
        """Return a sampler with these options that shares its epoch and position with this one."""
        if self.shuffle and not shuffled:
            return OrderSampler(
                self.dataset, shuffle=False, drop_last=drop_last, run_length=self.run_length, **self._ranks.asked
            )
        other = copy.copy(self)
        other.drop_last = drop_last
        return other

    def state_dict(self) -> State:
        """Return the position of the iteration: the epoch, and how many samples all ranks together have done.

        From a state taken inside an epoch, the remainder of the epoch is delivered, even if it is empty; from one
        taken after its end, a whole epoch.

        A `DataLoader` asks its sampler for more than it has delivered: with workers, and for a last batch that is
        smaller than the others, which it finds by the end of the iteration. torchdata's ``StatefulDataLoader`` takes
        that into account, and an `OrderBatchSampler` has no such batch.
        """
        return self._state.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Let the next iteration continue where `state` was taken, on the ranks that there are now.

        A seed that was drawn is replaced by that of the state, for later epochs too.

        Raises
        ------
        PositionError
            If it was taken of a dataset of another length, of another shuffle, or inside a run of another length or
            number of ranks.
        """
        self._state.load_state_dict(state)

    def _length(self, rows: int, share: Share) -> int:
        rounds, rest = divmod(rows, self.run_length * share.world_size)
        return rounds * self.run_length + (rest // share.world_size if self.drop_last else -(-rest // share.world_size))

    def _positions(self, done: int, total: int, share: Share) -> Iterator[np.ndarray]:
        """Yield the positions of this rank from `done` on, many at a time."""
        around = self.run_length * share.world_size  # samples of all ranks together, in one round
        left = max(total - done, 0)  # ranks that repeat a few rows have done more than there are
        rounds = left // around
        at_a_time = max(1, INDICES_AT_ONCE // self.run_length)
        first = done + share.rank * self.run_length
        for start in range(0, rounds, at_a_time):
            begins = first + np.arange(start, min(start + at_a_time, rounds), dtype=np.int64) * around
            yield (begins[:, None] + np.arange(self.run_length)).reshape(-1)
        rest = self._length(left, share) - rounds * self.run_length
        if rest:
            begin = done + rounds * around + share.rank * rest
            yield np.arange(begin, begin + rest, dtype=np.int64)
