"""Inside and around a training loop of Ray Train: batches in order, epoch after epoch, and where they are."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Literal

import ray.train
from ray.data import DataIterator, Dataset, ExecutionOptions
from ray.train import DataConfig

from ray_h5.errors import OptionError, PositionError
from ray_h5.hdf5.rows import near_names
from ray_h5.options import as_integer
from ray_h5.planning.position import Position
from ray_h5.ray_data.arguments import as_flag
from ray_h5.ray_data.board import Running
from ray_h5.ray_data.datasource import H5Datasource
from ray_h5.ray_data.epochs import check_name, running, set_for_shard
from ray_h5.ray_data.internals import (
    datasources,
    executing_process,
    row_count_changers,
    trainer_datasets,
    with_datasources,
    with_whole_blocks,
)
from ray_h5.ray_data.room import check_room

if TYPE_CHECKING:
    import torch
    from ray.actor import ActorHandle

    from ray_h5.ray_data.collate import Dtype

logger = logging.getLogger(__name__)


class OrderedDataConfig(DataConfig):
    """A `ray.train.DataConfig` that keeps the order of the blocks; see `data_config`."""

    def __init__(self, datasets_to_split: Literal["all"] | list[str], *args: Any) -> None:
        super().__init__(datasets_to_split, *args)
        self._shared = datasets_to_split

    def configure(
        self,
        datasets: dict[str, Dataset],
        world_size: int,
        worker_handles: list[ActorHandle] | None,
        worker_node_ids: list[str] | None,
        **kwargs: Any,
    ) -> Any:
        """Split the datasets among the workers, and say what that leaves out; raise if it leaves no room to read."""
        datasets = dict(datasets)
        for name, ds in sorted(datasets.items()):
            check_room(name, ds, worker_node_ids or [])
            changers = row_count_changers(ds)
            if changers:
                datasets[name] = _with_rows_changed(ds)
                _say_what_changes_rows(name, changers)
                continue
            if any(isinstance(source, H5Datasource) for source in datasources(ds)):
                datasets[name] = with_whole_blocks(ds)
            if self._shared == "all" or name in self._shared:
                _say_what_is_lost(name, ds, world_size)
        return super().configure(datasets, world_size, worker_handles, worker_node_ids, **kwargs)


def data_config(
    *,
    datasets_to_split: Literal["all"] | list[str] = "all",
    enable_shard_locality: bool = True,
    **execution_options: Any,
) -> DataConfig:
    """Return the ``dataset_config`` for a trainer whose workers get the order that was planned.

    Blocks then go to the workers in turn, in the order of the epoch: it can be repeated, and
    resumed where it was left. (A plain `ray.train.DataConfig` lets blocks overtake each other.) A
    function behind `read_h5` gives one block for each that it gets, however large it becomes.

    A trainer whose workers take all CPUs leaves none to the tasks that read, for which Ray waits without end: that is
    an `OptionError` when the workers ask for the dataset, or a warning where something else may free what is needed.

    Parameters
    ----------
    datasets_to_split : "all" or list of str
        The datasets that workers share; each worker gets the whole of the others.
    enable_shard_locality : bool
        Prefer to give a block to a worker on the node that read it, where the order allows it.
    **execution_options
        Of `ray.data.ExecutionOptions`: ``label_selector``, the nodes that read and transform;
        ``resource_limits``, what they may use at most, beside what the trainer reserves.

    Examples
    --------
    >>> TorchTrainer(loop, datasets={"train": ds}, dataset_config=data_config())  # doctest: +SKIP
    """
    options = ExecutionOptions(preserve_order=True, **execution_options)
    return OrderedDataConfig(datasets_to_split, options, enable_shard_locality)


class TrainBatches:
    """The batches of one epoch for one worker, as tensors; made by `train_batches`.

    Iterating it begins the epoch; all workers have to.
    """

    def __init__(
        self,
        shard: DataIterator,
        name: str,
        epoch: int,
        position: Position | None,
        device: torch.device,
        options: Mapping[str, Any],
    ) -> None:
        self._shard, self._device, self._options = shard, device, options
        self._name, self._epoch, self._start = name, epoch, position
        self._rows = 0
        self._has_begun = False
        self._running: Running | None = None

    def __iter__(self) -> Iterator[dict[str, Any]]:
        from ray_h5.ray_data.collate import to_device

        _set_epoch(self._name, self._shard, self._epoch, self._start)
        self._rows, self._has_begun, self._running = 0, True, None
        batches: Iterable[dict[str, Any]] = self._shard.iter_torch_batches(**self._options)
        for batch in to_device(batches, self._device):
            if not self._rows:
                # Now, for something else that is made of the same dataset may be iterated between two batches. What is
                # in memory already has no epoch that is read: only who asks for a position is told.
                with contextlib.suppress(OptionError):
                    self._running = self._found()
                self._check_start()
            self._rows += len(next(iter(batch.values())))
            yield batch

    def _found(self) -> Running | None:
        """Return what the epoch is like; None until it begins, or once another one has."""
        found = running(self._name, executing_process(self._shard)) if self._has_begun else None
        return found if found is not None and found.start.epoch == self._epoch else None

    def _check_start(self) -> None:
        if self._start is not None and self._start.done and self._running is None:
            raise PositionError(
                f"dataset {self._name!r} is not read in epoch {self._epoch}, so that its rows that are done come "
                "again: a dataset in memory, as by materialize(), has no position. Give the trainer what read_h5 "
                "returns, or what is mapped from it; or begin the epoch without a position."
            )

    @property
    def rows(self) -> int:
        """Rows of the batches handed out so far."""
        return self._rows

    def position(self) -> Position:
        """Return where the epoch is, once all batches handed out so far are done; for a checkpoint.

        All workers have to have done as many rows: call it after a step that they took together.

        Raises
        ------
        PositionError
            If the rows that workers had do not tell what is done: blocks come in no order, or what comes after
            the reading may change the number of rows or of those in a block. Or if this epoch has not begun.
        """
        if self._running is None:
            self._running = self._found()
        if self._running is None:
            raise PositionError(
                f"dataset {self._name!r} is not in epoch {self._epoch}: call position() after a step, while its "
                "batches are iterated. Where nothing is done yet, there is no need for a position."
            )
        return self._running.position(self._rows)


def train_batches(
    name: str,
    epoch: int,
    *,
    batch_size: int,
    position: Position | None = None,
    device: str | int | torch.device = "auto",
    dtypes: Dtype | Mapping[str, Dtype] | None = None,
    drop_last: bool = False,
    prefetch_batches: int = 2,
    pin_memory: bool | None = None,
) -> TrainBatches:
    """Return the batches of an epoch for this worker; to be called in a training loop of Ray Train.

    Parameters
    ----------
    name : str
        The key of the dataset in the trainer's ``datasets``, and its name in
        ``read_h5(..., name=)``.
    epoch : int
        The epoch.
    batch_size : int
        Rows of a batch, 1 or more.
    position : Position, optional
        Where a run that ended was in this epoch: what it had done is not read again.
    device : str or torch.device
        Where the tensors go; ``"auto"`` is the device that Ray Train gave to this worker. Copies to
        a GPU run one batch ahead of the training.
    dtypes : dtype, or mapping of str to dtype, optional
        A dtype for all floating columns, or for those named: torch's, or numpy's and its names.
    drop_last : bool
        Leave out a last batch that is not full.
    prefetch_batches : int
        Batches that are made ahead, in threads.
    pin_memory : bool, optional
        Make batches in page-locked memory; by default where the device is a GPU.

    Returns
    -------
    TrainBatches
        An iterable of dicts: a tensor a column; strings stay numpy arrays. Its ``position()`` goes
        into the checkpoint.

    Raises
    ------
    OptionError
        If it is called outside of a training loop, the trainer has no such dataset, the device is not there, or another
        option cannot be used; when it is iterated, if the dataset was not read by ``read_h5(..., name=)``.

    Examples
    --------
    >>> batches = train_batches("train", epoch, batch_size=64)  # doctest: +SKIP
    >>> for batch in batches:  # doctest: +SKIP
    ...     loss = model(batch["signal"])
    """
    import ray.train.torch

    from ray_h5.ray_data.collate import TorchCollate, as_device

    options = {
        "batch_size": as_integer("batch_size", batch_size, 1),
        "prefetch_batches": as_integer("prefetch_batches", prefetch_batches, 0),
        "drop_last": as_flag("drop_last", drop_last),
        "device": "cpu",  # we move them ourselves, one ahead
    }
    check_name(name)
    epoch = as_integer("epoch", epoch, 0)
    _check_in_loop()
    found = ray.train.torch.get_device() if device == "auto" else as_device(device)
    options["collate_fn"] = TorchCollate(dtypes, found.type == "cuda" if pin_memory is None else pin_memory)
    return TrainBatches(_shard(name), name, epoch, position, found, options)


def _check_in_loop() -> None:
    try:
        ray.train.get_context()
    except (RuntimeError, DeprecationWarning) as exc:  # the latter is raised in a trial of Ray Tune
        raise OptionError(
            "train_batches: expected to be called in the loop of a trainer, TorchTrainer(train_loop_per_worker, ...), "
            "found the driver or another process; there, ds.iter_torch_batches(...) gives the batches of a dataset"
        ) from exc


def _shard(name: str) -> DataIterator:
    try:
        return ray.train.get_dataset_shard(name)
    except KeyError:
        names = trainer_datasets()
        raise OptionError(
            f"the trainer has no dataset {name!r}.{near_names(name, names) if names else ''} "
            f"Expected a key of its datasets: TorchTrainer(datasets={{{name!r}: ds}})"
        ) from None


def _set_epoch(name: str, shard: DataIterator, epoch: int, position: Position | None) -> None:
    """Say which epoch begins; where no dataset of ours has that name, say what to do about it in a training loop."""
    try:
        set_for_shard(name, shard, epoch, position)
    except OptionError as exc:
        raise OptionError(
            f"train_batches: what the trainer has as {name!r} is told its epoch by that name, and has to be read with "
            f"it: TorchTrainer(datasets={{{name!r}: read_h5(..., name={name!r})}}). {exc}"
        ) from exc


def _with_rows_changed(ds: Dataset) -> Dataset:
    """Return a dataset that does not tell what is done by the rows that were read; `ds` itself stays as it is."""
    return with_datasources(
        ds, lambda source: source.with_rows_changed() if isinstance(source, H5Datasource) else source
    )


def _say_what_changes_rows(name: str, changers: list[str]) -> None:
    logger.warning(
        "dataset %r: %s may change the number of rows, or of those in a block, behind the reading: a run that resumes "
        "begins its epoch anew. Say that it does not: map_batches(..., udf_modifying_row_count=False).",
        name,
        ", ".join(changers),
    )


def _say_what_is_lost(name: str, ds: Dataset, world_size: int) -> None:
    rows = _rows_of(ds)
    lost = rows % world_size
    if lost:
        logger.warning(
            "dataset %r: the last %d of %d rows do not divide among %d workers, and are left out of each epoch. Say "
            "what is to become of them: read_h5(..., tail='drop' or 'pad', tail_rows=workers * batch size).",
            name,
            lost,
            rows,
            world_size,
        )


def _rows_of(ds: Dataset) -> int:
    """Return the rows of an epoch; from the plan, where Ray would read and transform all of them to count."""
    sources = [source for source in datasources(ds) if isinstance(source, H5Datasource)]
    return sum(source.plan().num_positions for source in sources) if sources else ds.count()
