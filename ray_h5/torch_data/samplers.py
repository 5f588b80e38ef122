"""Samplers that have the order of an epoch, split it over ranks, and can resume inside it."""

from __future__ import annotations

import copy
import itertools
import os
from collections.abc import Callable, Iterator, Sequence, Sized
from dataclasses import replace
from functools import partial
from typing import Any, TypeAlias, TypeVar, cast

import numpy as np
from torch.utils.data import DistributedSampler, Sampler

from ray_h5.errors import OptionError
from ray_h5.loading.cursor import Begun, Counted, Cursor
from ray_h5.loading.rank_shares import INDICES_AT_ONCE, Share
from ray_h5.loading.read_calls import Task
from ray_h5.options import as_integer, names_options
from ray_h5.order.block_layout import Tail
from ray_h5.order.draws.shuffle import Shuffle, as_shuffle
from ray_h5.order.epoch_order import Order, plain_order
from ray_h5.order.fingerprint import fingerprint
from ray_h5.order.position import Position, PositionLike
from ray_h5.plan.row_source import RowSource
from ray_h5.torch_data.batched_dataset import places_indices
from ray_h5.torch_data.ranks import (
    OwnRank,
    has_accelerator,
    resolve_rank,
    split_by_accelerate,
    warn_of_lightning,
)

ShuffleLike = bool | str | Shuffle | None
"""Values of the option `shuffle`."""

State: TypeAlias = dict[str, Any]

_Item = TypeVar("_Item")


def order_of(dataset: Sized, shuffle: Shuffle | None) -> Order:
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
    if isinstance(dataset, (str, os.PathLike)):  # a text has a length, too
        raise OptionError(f"expected a dataset, found the path {str(dataset)!r}; write H5Dataset({str(dataset)!r})")
    if hasattr(dataset, "epoch_order"):  # an H5Dataset
        return cast("Order", dataset.epoch_order(shuffle))
    return plain_order(len(dataset), shuffle)


@names_options
class OrderSampler(DistributedSampler[int]):
    """The order of an epoch, the same as in Ray, split over the ranks of a training run.

    The order is cut into blocks, as in Ray, and the ranks take the blocks in turn; they share what is left evenly. A
    block of an `H5Dataset` is one or several windows of a shuffle by chunks, so that the ranks of a node decode each
    chunk once together. All ranks yield equally many indices.

    Parameters
    ----------
    dataset : H5Dataset, or anything with a length
        What is sampled. The order of an `H5Dataset` knows its chunks; anything else is shuffled by
        sample.
    shuffle : bool, str or Shuffle
        True draws another order in each epoch, with `seed`; a unit (``"rows"``, ``"chunks"``, ``"files"``) or
        a `Shuffle` chooses how; False keeps the order of the files.
    seed : int, optional
        Zero or more. A `Shuffle` has its own; another one beside it is refused. None draws one, if there is one rank.
        `seed` and `order` show it, and `state_dict` contains it; a sampler that drew its seed takes the seed of the
        state that it loads.
    rank, world_size : int, optional
        By default those of torch.distributed at each iteration, or 0 of 1 while it is not initialised. In a loader
        that accelerate prepared the sampler yields all samples, and accelerate splits them over the ranks.
    drop_last : bool
        If the samples do not divide among the ranks: True leaves out the last few of the epoch's
        order, False repeats its first few, as ``DistributedSampler`` does.
    run_length : int
        Samples of a batch. It is the size of a block where samples come by length, or are not of an `H5Dataset`.
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
        self._ranks: dict[str, Any] = {"rank": rank, "world_size": world_size}
        own = resolve_rank(**self._ranks)
        self.dataset, self.drop_last = dataset, drop_last
        name, length = ("run_length", run_length) if stretch is None else ("stretch", stretch)
        self.run_length = as_integer(name, length, 1)
        wanted = as_shuffle(shuffle, seed)
        order = order_of(dataset, wanted)
        self.shuffle = order.shuffle is not None
        # Of other datasets only the length is known.
        known = hasattr(dataset, "fingerprint")
        plan = cast("Any", dataset).fingerprint(order) if known else fingerprint(None, None, order)
        self._cursor = Cursor(order, plan)
        if getattr(dataset, "is_drawn", False):
            cast("Any", dataset)._is_sampled = True
        self._is_placed = places_indices(dataset)
        """Whether indices say where in an epoch they are: columns that are added, and draws, depend on it."""
        self.batch_values = None if wanted is None else wanted.batch_values
        """The most that the lengths of the rows of a batch sum up to."""
        self._cuts: tuple[Position | None, np.ndarray] = (None, np.empty(0, np.int64))
        """Where the epoch began that was counted last, and where its runs are cut: its iteration needs them again."""
        self._is_split: bool | None = None
        """Whether accelerate split the batches of the last iteration; None before the first one."""
        self._check_ranks(own)

    @property
    def epoch(self) -> int:
        """The epoch of the next iteration."""
        return self._cursor.epoch

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch, before iterating."""
        self._cursor.set_epoch(epoch)

    @property
    def order(self) -> Order:
        """The order of an epoch. If its seed was drawn, a state that is loaded replaces the seed."""
        return self._cursor.order

    @property
    def seed(self) -> int:
        """The seed of the order; 0 without a shuffle."""
        return self.order.seed

    @property
    def stretch(self) -> int:
        """The former name of `run_length`."""
        return self.run_length

    @property
    def rank(self) -> int:
        """The rank that this sampler is for."""
        return self._own_rank().rank

    @property
    def world_size(self) -> int:
        """Among how many ranks the samples are split."""
        return self._own_rank().world_size

    num_replicas = world_size
    """The name that `DistributedSampler` has for it."""

    @property
    def num_samples(self) -> int:
        """Samples of this rank."""
        return len(self)

    @property
    def total_size(self) -> int:
        """Samples of all ranks together."""
        return self.num_samples * self.num_replicas

    def __len__(self) -> int:
        return self._rows_of(self._own_rank())

    def _rows_of(self, own: OwnRank) -> int:
        rows, ranks = self.order.epoch_rows, own.world_size
        return rows // ranks if self.drop_last else -(-rows // ranks)

    def _own_rank(self, begins: Cursor | None = None) -> OwnRank:
        """Return rank and world size at this time: of all samples if accelerate splits them.

        Frameworks make loaders before and after they initialise torch.distributed. Before the first iteration it is
        not known whether accelerate prepared the loader; a process that has an `Accelerator` prepares most of them.
        """
        own, is_asked = resolve_rank(**self._ranks, begins=begins), set(self._ranks.values()) != {None}
        self._check_ranks(own)
        is_split = has_accelerator() and not is_asked if self._is_split is None else self._is_split
        if is_split:
            self._check_split(own, is_asked)
            return OwnRank(0, 1)
        return own

    def _check_split(self, own: OwnRank, is_asked: bool) -> None:
        """Raise if what accelerate splits is a share already."""
        if is_asked and own.world_size > 1:
            raise OptionError(
                f"{type(self).__name__} has rank and world_size, and accelerate splits the batches of a prepared "
                "loader over the ranks again: rows would be lost. Leave out rank and world_size."
            )

    def _check_ranks(self, own: OwnRank) -> None:
        """Check the seed of several ranks; tell the dataset among how many of a node `kept_bytes` is divided."""
        source, used = getattr(self.dataset, "source", None), self.order.shuffle
        if isinstance(source, RowSource):
            source.ranks = min(own.world_size, int(os.environ.get("LOCAL_WORLD_SIZE") or own.world_size))
        if used is not None and used.is_drawn and own.world_size > 1:
            raise OptionError(
                "seed=None: each of several ranks would draw an order of its own; give all of them one seed, such as "
                f"{used.seed}"
            )

    def _whole(self, own: OwnRank, epoch: int) -> Position:
        """Return where a whole epoch begins."""
        order, block_rows = self.order, self.run_length
        tail = Tail("drop" if self.drop_last else "pad", own.world_size)
        # Rows that come by length: ranks take runs, so that their batches of one step have rows of similar length.
        if order.runs is None and hasattr(self.dataset, "block_rows"):
            block_rows = self.dataset.block_rows(order, tail.apply(order.epoch_rows))
        return Position(order.seed, epoch, 0, own.world_size, block_rows, self._cursor.plan, None, tail)

    def _share(self, start: Position, rank: int) -> Share:
        """Return what a rank reads from a position on."""
        return Share(self.order, start, rank, getattr(self.dataset, "is_drawn", False))

    def _begin(self, run_length: int | None = None) -> Share:
        """Begin an iteration, of runs of `run_length` rows if that is known; return what this rank reads in it."""
        self._is_split, epoch = split_by_accelerate()
        own = self._own_rank(begins=self._cursor)
        if epoch is not None:
            self._cursor.set_epoch(epoch)
        return self._share(self._cursor.begin(partial(self._whole, own), run_length), own.rank)

    def __iter__(self) -> Iterator[int]:
        if self.batch_values is not None:
            raise OptionError(
                f"Shuffle: batch_values={self.batch_values}: cuts batches, and an OrderSampler has single rows: pass "
                "batch_sampler=OrderBatchSampler(...) to the DataLoader, or use loader(...)"
            )
        return self.counted(self._indices, lambda _: 1)

    def _indices(self) -> Begun[int]:
        share = self._begin()
        self._cursor.is_ahead = True
        return share.start, itertools.chain.from_iterable(itertools.starmap(self._listed(share), share.pieces()))

    def _listed(self, share: Share) -> Callable[[np.ndarray, np.ndarray], Sequence[int]]:
        """Return what makes a sequence of positions and indices."""
        return share.placed if self._is_placed else lambda _, indices: cast("list[int]", indices.tolist())

    def tasks(self, *, whole: bool = False) -> Begun[Task]:
        """Begin an iteration; return where, and this rank's runs as batches to make.

        They count as done where `counted` says so.

        With `whole`, a last run that is shorter is left out. Random numbers depend on the seed, the epoch and the rows
        of a batch: not on which thread or process makes it, nor on where a run was resumed.
        """
        share = self._begin(self.run_length if self.batch_values is None else None)
        drawn_by, runs = (share.order.seed, share.start.epoch), self._runs(share, whole=whole)
        listed = self._listed(share)
        return share.start, (Task(listed(positions, indices), drawn_by, positions) for positions, indices in runs)

    def num_runs(self, *, whole: bool = False) -> int:
        """Return how many batches `tasks` yields for a whole epoch, the next one."""
        return self._num_runs(self._own_rank(), whole=whole)

    def _num_runs_unprepared(self, *, whole: bool) -> int:
        """Return what `num_runs` does for a loader that accelerate did not prepare."""
        return self._num_runs(resolve_rank(**self._ranks), whole=whole)

    def _num_runs(self, own: OwnRank, *, whole: bool) -> int:
        if self.batch_values is not None and self.order.runs is None:
            return 0  # there are no rows
        if self.batch_values is None:
            full, rest = divmod(self._rows_of(own), self.run_length)
            return full + bool(rest and not whole)
        share = self._share(self._whole(own, self.epoch), own.rank)
        if self._cuts[0] != share.start:
            pieces = self._pieces(share, 0)
            self._cuts = (
                share.start,
                np.concatenate([np.empty(0, np.int64), *(self._ends(share, *piece) for piece in pieces)]),
            )
        return int(np.searchsorted(self._cuts[1], self._last_end(share, whole=whole), side="right"))

    def _runs(self, share: Share, *, whole: bool) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yield positions and indices of runs; or of their parts, whose lengths sum up to at most `batch_values`."""
        if self.batch_values is None:
            yield from share.batches(self.run_length, whole=whole)
            return
        start, last_end = share.start, self._last_end(share, whole=whole)
        known = self._cuts[1] if self._cuts[0] == replace(start, rows=0) else None
        for first, last in self._pieces(share, start.rows):
            if known is None:
                ends = self._ends(share, first, last)
            else:
                ends = known[slice(*np.searchsorted(known, [first, last], side="right"))]
            positions = share.positions(first, last)
            indices = share.indices(positions)
            for begin, end in itertools.pairwise([first, *ends.tolist()]):
                if start.rows < end <= last_end:
                    part = slice(max(begin, start.rows) - first, end - first)
                    yield positions[part], indices[part]

    def _last_end(self, share: Share, *, whole: bool) -> int:
        """Return how many rows of a rank are in batches; with `whole`, not those of a last run that is shorter."""
        return share.num_rows // self.run_length * self.run_length if whole else share.num_rows

    def _pieces(self, share: Share, rows: int) -> Iterator[tuple[int, int]]:
        """Yield the first and the last row of pieces of whole runs of a rank, from the run on that has row `rows`."""
        length = self.run_length
        at_once = max(1, INDICES_AT_ONCE // (length * share.start.world_size)) * length
        for first in range(rows // length * length, share.num_rows, at_once):
            yield first, min(first + at_once, share.num_rows)

    def _ends(self, share: Share, first: int, last: int) -> np.ndarray:
        """Return before which rows batches of `batch_values` end, from row `first` on, where a run begins, to `last`.

        The bound holds on each rank: all of them cut a run at the same rows.
        """
        from ray_h5.order.draws.length_runs import cuts_of

        assert self.order.runs is not None
        assert self.batch_values is not None
        lengths, length = self.order.runs.lengths, self.run_length
        positions = share.positions_of_all(first, last)
        values = lengths[share.indices(positions.ravel()) % len(lengths)].reshape(positions.shape)
        full = (last - first) // length * length
        runs = values[:, :full].reshape(len(values), -1, length).swapaxes(0, 1)
        of_short = cuts_of(values[None, :, full:], self.batch_values)
        return first + np.concatenate([cuts_of(runs, self.batch_values), full + of_short])

    def counted(self, begin: Callable[[], Begun[_Item]], size: Callable[[_Item], int]) -> Counted[_Item]:
        """Return what `begin` makes of `tasks`; the samples of each item count as done when it is asked for."""
        return Counted(self._cursor, begin, size)

    def advance_epochs(self) -> None:
        """Let each iteration be of the epoch after the one before it, unless `set_epoch` or a state chose one."""
        self._cursor.advances = True

    def sharing_state(self, *, drop_last: bool, shuffled: bool) -> OrderSampler:
        """Return a sampler with these options that shares its epoch and position with this one."""
        if self.shuffle and not shuffled:
            return OrderSampler(
                self.dataset, shuffle=False, drop_last=drop_last, run_length=self.run_length, **self._ranks
            )
        other = copy.copy(self)
        other.drop_last = drop_last
        return other

    def state_dict(self) -> State:
        """Return the position of the iteration as a dict: `Position.from_dict` takes it, and so does Ray.

        From a state taken inside an epoch, the remainder of the epoch is delivered, even if it is empty; from one
        taken after its end, a whole epoch.

        A `DataLoader` asks its sampler for more than it has delivered, which a run that resumes would leave out: for
        several batches if it has workers, for a batch whose transform or `collate_fn` raises an error, and for a last
        batch that is smaller than the others. torchdata's ``StatefulDataLoader`` takes workers and the last batch into
        account, and an `OrderBatchSampler` has no such batch. `loader` counts only what it has delivered.
        """
        if self._cursor.is_ahead and self._cursor.run is not None:
            warn_of_lightning()
        return self._cursor.position().to_dict()

    def load_state_dict(self, state: PositionLike) -> None:
        """Let the next iteration continue where `state` was taken, on the ranks that there are now.

        A seed that was drawn is replaced by that of the state, for later epochs too.

        Parameters
        ----------
        state : dict or Position
            What `state_dict` of a sampler or loader returned, or ``position()`` of `train_batches` in Ray.

        Raises
        ------
        PositionError
            If it was taken of a dataset of other files, rows or chunks, or of another shuffle. Of anything but an
            `H5Dataset` only the length is known.
        """
        self._cursor.resume(state)
