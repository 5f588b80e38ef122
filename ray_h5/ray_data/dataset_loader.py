"""`loader(ds, 64)`: a dataset of `read_h5` is read in threads of this process, without tasks of Ray."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from ray.data import Dataset

from ray_h5.columns.ragged.padding import PadLike
from ray_h5.errors import OptionError
from ray_h5.loading.rank_shares import Share
from ray_h5.options import as_integer
from ray_h5.order.position import Position, PositionLike
from ray_h5.order.remaining_blocks import start_of
from ray_h5.ray_data.epochs import Setting, as_setting
from ray_h5.ray_data.training.collate import TorchCollate
from ray_h5.ray_data.training.device import can_pin
from ray_h5.ray_data.training.worker_shard import WorkerShard, read_by_workers


class DatasetLoader:
    """The batches of a dataset of `read_h5`, read in this process; made by `loader`.

    Each iteration is the next epoch. Batches are those of `train_batches`: dicts of tensors, and of numpy arrays where
    torch has none.
    """

    def __init__(self, shard: WorkerShard, batch_size: int, collate: TorchCollate, drop_last: bool) -> None:
        self._shard, self.batch_size, self._collate, self._drop_last = shard, batch_size, collate, drop_last
        self._is_inside = False
        """Whether an epoch has begun and not ended."""

    def __len__(self) -> int:
        """Return the batches of an epoch."""
        plan, shard = self._shard.plan, self._shard
        rows = Share.of(plan, start_of(plan, world_size=shard.world_size())).num_rows
        return rows // self.batch_size if self._drop_last else -(-rows // self.batch_size)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        self._is_inside = True
        yield from self._shard.iter_torch_batches(
            batch_size=self.batch_size, collate_fn=self._collate, drop_last=self._drop_last, device="cpu"
        )
        self._is_inside = False

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the next iteration."""
        self._set(as_setting(epoch, None))

    def state_dict(self) -> dict[str, Any]:
        """Return the position after all batches handed out so far, as a dict for a checkpoint."""
        shard = self._shard
        return shard.state_dict() if self._is_inside else shard.epochs.next(shard.plan).to_dict()

    def load_state_dict(self, state: PositionLike) -> None:
        """Go on at a position: that of `state_dict`, of a `loader` of files, or of `train_batches`."""
        self._set(Position.from_dict(state))

    def _set(self, setting: Setting) -> None:
        self._is_inside = False
        self._shard.epochs.set(setting)


def loader_of_dataset(
    ds: Dataset,
    batch_size: int,
    ranks: Callable[[int | None, int | None], tuple[int, int]],
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
    own, ranks_in_all = ranks(rank, world_size)
    read = read_by_workers(ds)
    if isinstance(read, str):
        raise OptionError(
            f"loader: this dataset cannot be read without tasks of Ray: {read}. Write "
            "ds.iter_torch_batches(batch_size=...); or give loader the dataset before that step, and do it in the "
            "loop."
        )
    source, functions = read
    collate = TorchCollate(pin_memory=pin_memory and can_pin(), padding=pad)
    epochs, threads = source.epochs.for_workers(ranks_in_all), as_integer("threads", threads, 0)
    shard = WorkerShard("loader", source.plan(), source.names, functions, epochs, own, threads, agrees=False)
    return DatasetLoader(shard, batch_size, collate, drop_last)
