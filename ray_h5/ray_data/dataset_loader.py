"""`loader(ds, 64)`: a dataset of `read_h5` is read in threads of this process, without tasks of Ray."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from operator import itemgetter
from typing import Any, TypeAlias

import torch
from ray.data import Dataset

from ray_h5.columns.ragged.padding import PadLike
from ray_h5.device import as_device, can_pin, to_device
from ray_h5.errors import OptionError
from ray_h5.loading.cursor import Begun, Counted
from ray_h5.loading.rank_shares import Share
from ray_h5.options import as_integer
from ray_h5.order.block_layout import Tail
from ray_h5.order.position import Position, PositionLike
from ray_h5.plan.blocks import start_of
from ray_h5.ray_data.epochs import warn_of_lost_rows
from ray_h5.ray_data.training.collate import TorchCollate
from ray_h5.ray_data.training.worker_shard import WorkerShard, read_by_workers

Ranks: TypeAlias = Callable[..., tuple[int, int]]
"""Returns the rank and the number of ranks at this time; ``begins=cursor`` is for an epoch of it that begins."""


@dataclass(eq=False, repr=False)
class DatasetLoader:
    """The batches of a dataset of `read_h5`, read in this process; made by `loader`.

    Each iteration is the next epoch. Batches are those of `train_batches`: dicts of tensors, and of numpy arrays where
    torch has none. If the rows do not divide among the ranks, and the dataset has no ``tail``, a few come again, as
    with a loader of files; with `drop_last` they are left out.
    """

    _shard: WorkerShard
    _ranks: Ranks
    batch_size: int
    _drop_last: bool
    _collate: TorchCollate
    _device: torch.device

    def __len__(self) -> int:
        """Return the batches of an epoch."""
        rank, world_size = self._ranks()
        rows = Share.of(self._shard.plan, self._whole(world_size, 0), rank).num_rows
        return rows // self.batch_size if self._drop_last else -(-rows // self.batch_size)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        batches = Counted(self._shard.cursor, self._begin, itemgetter(0))
        return (batch for _, batch in batches)

    def _begin(self) -> Begun[list[Any]]:
        """Begin an epoch; return where, and its batches with their numbers of rows."""
        rank, world_size = self._ranks(begins=self._shard.cursor)
        start = self._shard.cursor.begin(partial(self._whole, world_size), self.batch_size)
        if not start.has_begun:
            warn_of_lost_rows("loader", Share.of(self._shard.plan, start).layout.num_rows, world_size)
        batches = self._shard.read(start, rank, self.batch_size, self._drop_last, self._collate)
        return start, to_device(batches, self._device)

    def _whole(self, world_size: int, epoch: int) -> Position:
        """Return where a whole epoch begins."""
        start = start_of(self._shard.plan, epoch, world_size, self._shard.cursor.order.seed)
        if start.tail is None and world_size > 1:
            start = replace(start, tail=Tail("drop" if self._drop_last else "pad", world_size))
        return start

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the next iteration."""
        self._shard.cursor.set_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        """Return the position after all batches handed out so far, as a dict for a checkpoint."""
        return self._shard.cursor.position().to_dict()

    def load_state_dict(self, state: PositionLike) -> None:
        """Go on at a position: that of `state_dict`, of a `loader` of files, or of `train_batches`."""
        self._shard.cursor.resume(state)


def loader_of_dataset(
    ds: Dataset,
    batch_size: int,
    ranks: Ranks,
    *,
    threads: int,
    shuffle: Any = True,
    seed: int | None = 0,
    rank: int | None = None,
    world_size: int | None = None,
    workers: int = 0,
    collate_fn: Any = None,
    drop_last: bool = False,
    pin_memory: bool = False,
    device: Any = None,
    pad: PadLike = None,
    transforms_ahead: bool = False,  # noqa: ARG001  functions of this package repeat wherever they run
    **options: Any,
) -> DatasetLoader:
    """Return the loader of a dataset; refuse the options of `loader` that the dataset has itself."""
    if shuffle is not True or seed != 0:
        raise OptionError("loader: a dataset has the order of read_h5(..., shuffle=); leave out shuffle and seed")
    if workers or collate_fn is not None:
        raise OptionError(
            "loader: workers and collate_fn are for files and H5Dataset. A dataset of read_h5 is read in threads; "
            "ds.iter_torch_batches(collate_fn=...) calls a function of yours"
        )
    if options:
        raise OptionError(
            f"{', '.join(sorted(options))}: the dataset is made already; these are options of read_h5(...)"
        )
    if (rank, world_size) != (None, None):
        ranks(rank, world_size)  # raises here for a rank that there is not
    read = read_by_workers(ds)
    if isinstance(read, str):
        raise OptionError(
            f"loader: this dataset cannot be read without tasks of Ray: {read}. Write "
            "ds.iter_torch_batches(batch_size=...); or give loader the dataset before that step, and do it in the "
            "loop."
        )
    source, functions = read
    target = as_device("cpu" if device is None else device)
    collate = TorchCollate(pin_memory=(pin_memory or target.type == "cuda") and can_pin(), padding=pad)
    threads = as_integer("threads", threads, 0)
    shard = WorkerShard("loader", source.plan(), source.names, functions, source.epochs.for_workers(1), 0, 1, threads)
    return DatasetLoader(shard, partial(ranks, rank, world_size), batch_size, drop_last, collate, target)
