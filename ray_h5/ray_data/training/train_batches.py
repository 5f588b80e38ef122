"""`train_batches`: the batches of one epoch for one worker of a trainer, and their position for a checkpoint."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import ray.train
import torch
from ray.data import DataIterator, Dataset

from ray_h5.columns.ragged.padding import PadLike
from ray_h5.device import to_device
from ray_h5.errors import OptionError, PositionError
from ray_h5.options import as_integer, names_options
from ray_h5.order.position import Position, PositionLike
from ray_h5.ray_data.arguments import as_flag
from ray_h5.ray_data.epochs import RunningEpoch, as_setting, ask_for, running_epoch
from ray_h5.ray_data.ray_internals import own_error, world_rank
from ray_h5.ray_data.training.collate import Dtype, TorchCollate
from ray_h5.ray_data.training.data_config import shard_of_one
from ray_h5.ray_data.training.device import as_device
from ray_h5.ray_data.training.worker_shard import WorkerShard
from ray_h5.read.casting import Casting


class TrainBatches:
    """The batches of one epoch for one worker, as tensors; made by `train_batches`.

    Iterating it begins the epoch; all workers have to iterate theirs.
    """

    def __init__(
        self,
        shard: DataIterator | Dataset,
        name: str,
        epoch: int,
        position: Position | None,
        device: torch.device,
        options: Mapping[str, Any],
    ) -> None:
        self._shard, self._device, self._options = shard, device, options
        self._name, self._epoch, self._start = name, epoch, position
        self.rows = 0
        """Rows of the batches handed out so far."""
        self._has_begun = False
        self._running: RunningEpoch | None = None

    def __iter__(self) -> Iterator[dict[str, Any]]:
        ask_for(self._shard, as_setting(self._epoch, self._start))
        self.rows, self._has_begun, self._running = 0, True, None
        # A shard counts what it hands out: it moves batches itself, as they are moved ahead of the training.
        moves_itself = isinstance(self._shard, WorkerShard)
        device = self._device if moves_itself else torch.device("cpu")
        made: Iterable[dict[str, Any]] = self._shard.iter_torch_batches(**self._options, device=device)
        try:
            for batch in made if moves_itself else to_device(made, self._device):
                if not self.rows:
                    # At the first batch: another iteration of the dataset may begin between two batches.
                    self._running = self._find_running()
                    self._check_start()
                self.rows += len(next(iter(batch.values())))
                yield batch
        except Exception as exc:
            own = own_error(exc)
            if own is None or own is exc:
                raise
            raise own from exc  # an error of the process that executes the dataset, without the text of Ray

    def _find_running(self) -> RunningEpoch | None:
        """Return the state of this epoch; None before it begins, and for a dataset in memory, which reads no epoch."""
        epoch = running_epoch(self._shard) if self._has_begun else None
        return epoch if epoch is not None and epoch.start.epoch == self._epoch else None

    def _check_start(self) -> None:
        if self._start is not None and self._start.has_begun and self._running is None:
            raise PositionError(
                f"dataset {self._name!r} is not read in epoch {self._epoch}, so that its rows that are done come "
                "again: a dataset in memory, as by materialize(), has no position. Give the trainer the dataset of "
                "read_h5, or a map of it; or begin the epoch without a position."
            )

    def position(self) -> Position:
        """Return the position in the epoch once all batches handed out so far are done; for a checkpoint.

        It counts the rows of this worker, and assumes the same number in all workers: call it after a step that they
        take together.

        Raises
        ------
        PositionError
            If the rows that workers received do not show which rows are done: blocks come in no order, or an operator
            after the reading may change the number of rows, or of rows in a block. Or if this epoch has not begun.
        """
        if self._running is None:
            self._running = self._find_running()
        if self._running is None:
            raise PositionError(
                f"dataset {self._name!r} is not in epoch {self._epoch}: call position() after a step, while its "
                "batches are iterated. Before the first step no position is needed."
            )
        return self._running.position(self.rows)


@names_options
def train_batches(
    name: str,
    epoch: int,
    *,
    batch_size: int,
    position: PositionLike | None = None,
    device: str | int | torch.device = "auto",
    dtypes: Dtype | Mapping[str, Dtype] | None = None,
    casting: Casting = "checked",
    drop_last: bool = False,
    prefetch_batches: int = 2,
    pin_memory: bool | None = None,
    pad: PadLike = None,
) -> TrainBatches:
    """Return the batches of an epoch for this worker; to be called in a training loop of Ray Train.

    Parameters
    ----------
    name : str
        The key of the dataset in the trainer's ``datasets``.
    epoch : int
        The epoch.
    batch_size : int
        Rows of a batch, 1 or more.
    position : Position or dict, optional
        Where an earlier run ended in this epoch: rows that are done are not read again. Also the ``state_dict()`` of a
        loader or sampler of plain PyTorch.
    device : str or torch.device
        Where the tensors go; ``"auto"`` is the device that Ray Train gave to this worker. Copies to
        a GPU run ahead of the training, in a thread.
    dtypes : dtype, or mapping of str to dtype, optional
        A dtype for all floating columns, or for the columns named: a dtype of torch or numpy, or its name.
    casting : {"checked", "unsafe"}
        Whether a value that its new dtype cannot hold is an error, as for `read_h5`.
    drop_last : bool
        Leave out a last batch that is not full.
    prefetch_batches : int
        Batches that are made ahead, in threads.
    pin_memory : bool, optional
        Make batches in page-locked memory; by default where the device is a GPU.
    pad : bool, float or mapping of str to float, optional
        Pad rows of varying shape to the longest of a batch, with zeros (True) or this value, and add their lengths as
        ``<column>_length``. Without it such a column is a list of tensors.

    Returns
    -------
    TrainBatches
        An iterable of dicts: a tensor a column; strings stay numpy arrays. Its ``position()`` goes
        into the checkpoint.

    Raises
    ------
    OptionError
        If it is called outside of a training loop, the trainer has no such dataset, the device is not there, or another
        option cannot be used; when it is iterated, if the workers that share the dataset asked for different epochs or
        positions.

    Examples
    --------
    >>> batches = train_batches("train", epoch, batch_size=64)  # doctest: +SKIP
    >>> for batch in batches:  # doctest: +SKIP
    ...     loss = model(batch["signal"])
    """
    options = {
        "batch_size": as_integer("batch_size", batch_size, 1),
        "prefetch_batches": as_integer("prefetch_batches", prefetch_batches, 0),
        "drop_last": as_flag("drop_last", drop_last),
    }
    if not isinstance(name, str) or not name:
        found_type = repr(name) if isinstance(name, str) else f"a {type(name).__name__}"
        raise OptionError(
            "train_batches: expected the key of a dataset of the trainer, such as 'train' in "
            f"TorchTrainer(datasets={{'train': ds}}), found {found_type}"
        )
    epoch = as_integer("epoch", epoch, 0)
    if world_rank() is None:
        raise OptionError(
            "train_batches: expected to be called in the loop of a trainer, TorchTrainer(train_loop_per_worker, ...), "
            "found the driver or another process; there, ds.iter_torch_batches(...) gives the batches of a dataset"
        )
    target = as_device(device)
    pin = target.type == "cuda" if pin_memory is None else pin_memory
    options["collate_fn"] = TorchCollate(dtypes, pin, casting, pad)
    start = None if position is None else Position.from_dict(position)
    try:
        shard = ray.train.get_dataset_shard(name)
    except KeyError:
        raise OptionError(
            f"the trainer has no dataset {name!r}: it is the key in TorchTrainer(datasets={{{name!r}: ds}})"
        ) from None
    if isinstance(shard, Dataset):
        shard = shard_of_one(name, shard)
    return TrainBatches(shard, name, epoch, start, target, options)
