"""Set the epoch of a dataset by its name; look up the epoch that runs."""

from __future__ import annotations

import uuid
from dataclasses import replace

from ray.data import DataIterator, Dataset

from ray_h5.errors import OptionError, PositionError
from ray_h5.messages import near_names
from ray_h5.options import as_integer, names_options
from ray_h5.order.position import Position, PositionLike
from ray_h5.ray_data.datasource import H5Datasource
from ray_h5.ray_data.epochs.counter import check_name, store_with
from ray_h5.ray_data.epochs.job_store import EpochSetting, JobStore, RunningEpoch
from ray_h5.ray_data.internals.cluster import process_id, trial_id
from ray_h5.ray_data.internals.logical_plans import datasources
from ray_h5.ray_data.internals.shards import executing_process, of_dataset, trainer_shard, workers_that_share


@names_options
def set_epoch(name: str, epoch: int, *, position: PositionLike | None = None, world_size: int | None = None) -> None:
    """Set the epoch that the next iteration of a dataset reads.

    One call before the epoch begins is enough, by the driver or by any worker of a training run. More calls with the
    same arguments do no harm. Later iterations count on from this epoch.

    Parameters
    ----------
    name : str
        The name of the dataset: ``read_h5(..., name=)``.
    epoch : int
        Zero or more.
    position : Position or dict, optional
        Where an earlier run ended: what ``train_batches(...).position()`` returned, or the ``state_dict()`` of a loader
        or sampler of plain PyTorch. The next iteration, of the dataset or of one made from it, does not read again the
        rows that are done. The position is for that one iteration. ``take`` and ``schema`` do not use it up. ``count``,
        aggregations and writing do not use it either: they read the whole epoch. Where the dataset drew its seed, as
        with ``shuffle=True``, it takes over the seed of the position, for later epochs too.
    world_size : int, optional
        Workers that share the dataset; known inside a training loop.

    Notes
    -----
    A name belongs to the dataset that was read last with it, to its copies, and to datasets made from it. So running a
    cell of a notebook again replaces the dataset; iterating the older one then raises an error. In a process that read
    a dataset with that name itself, such as a trial of a tuning run, the name means that dataset. In a training loop it
    means the trainer's dataset of that name.

    Raises
    ------
    OptionError
        If no dataset has that name, the epoch is not an integer of 0 or more, or the world size is not an integer of 1
        or more.
    PositionError
        If the position is none, or is of another epoch. When the dataset is iterated: if the position is of
        other rows, or the dataset is combined with others or with itself, as by ``union`` and ``zip``.
    """
    check_name(name)
    shard = trainer_shard(name)
    if shard is not None:
        set_for_shard(name, shard, epoch, position, world_size)
        return
    setting = _setting(epoch, position, world_size)
    store, process = store_with(name), process_id()
    # The dataset that this process read by the name, or else the one that any process read last.
    read_here = store.token(name, process)
    token = read_here or store.last_token(name)
    if token is None:
        raise _unknown(name, store)
    store.put_setting((token,), replace(setting, by_name_alone=read_here is None))
    if trial_id() is not None:
        # Trials that share a dataset run at their own pace, so each has a setting for what it executes itself.
        store.put_setting((process, name), setting)
    else:
        store.delete_setting((process, name))


def set_own_epoch(name: str, epoch: int, position: PositionLike | None = None) -> None:
    """Set the epoch of a dataset that this process reads the whole of; arguments and errors as for `set_epoch`.

    Other workers that read the whole of it may be in another epoch or at another position: they do not wait for each
    other.
    """
    _set_in_process(process_id(), name, _setting(epoch, position, 1))


def set_for_shard(
    name: str, shard: DataIterator, epoch: int, position: PositionLike | None = None, world_size: int | None = None
) -> None:
    """Set the epoch of a trainer's dataset, and of no other dataset with that name.

    Raises
    ------
    OptionError
        If the dataset was not read with that name. A dataset in memory, as by ``materialize()``, does not show it.
    """
    check_name(name)
    names = of_dataset(shard, _names)
    if names and name not in names:
        raise OptionError(f"set_epoch: the trainer's dataset {name!r} was read {_shown(names)}.")
    workers = workers_that_share(shard) or 1
    setting = _setting(epoch, position, workers if world_size is None else world_size)
    _set_in_process(executing_process(shard), name, setting)


def running_epoch(name: str, process: str | None = None) -> RunningEpoch:
    """Return the running epoch of a dataset; of the one that `process` executes, if given.

    Raises
    ------
    OptionError
        If the dataset has not been iterated.
    """
    store = store_with(name)
    token = store.token(name, process_id()) or store.last_token(name)
    place = (process, name) if process is not None else (token,) if token is not None else None
    found = None if place is None else store.running(place)
    if found is None:
        raise OptionError(f"dataset {name!r} has not been iterated yet")
    return found


def _names(ds: Dataset) -> list[str | None]:
    """Return the names of what a dataset reads; None for what has no name."""
    return [each.epochs.name if isinstance(each, H5Datasource) else None for each in datasources(ds)]


def _shown(names: list[str | None]) -> str:
    known = sorted({repr(name) for name in names if name is not None})
    return f"with name={' and '.join(known)}" if known else "without a name"


def _set_in_process(process: str, name: str, setting: EpochSetting) -> None:
    check_name(name)
    store = store_with(name)
    if store.last_token(name) is None:
        raise _unknown(name, store)
    store.put_setting((process, name), setting)


def _setting(epoch: int, position: PositionLike | None, world_size: int | None) -> EpochSetting:
    epoch = as_integer("set_epoch: epoch", epoch, 0)
    world_size = _world_size() if world_size is None else as_integer("set_epoch: world_size", world_size, 1)
    found = None if position is None else Position.from_dict(position)
    if found is not None and found.epoch != epoch:
        raise PositionError(f"set_epoch: the position is of epoch {found.epoch}, not of {epoch}")
    return EpochSetting(epoch, found, world_size, uuid.uuid4().hex)


def _unknown(name: str, store: JobStore) -> OptionError:
    names = store.names()
    if not names:
        return OptionError("set_epoch: no dataset of this job has a name; give it one: read_h5(..., name='train')")
    return OptionError(f"set_epoch: no dataset is called {name!r}.{near_names(name, names)}")


def _world_size() -> int:
    """Return the number of training workers, if this is one of them."""
    from ray.train import get_context

    try:
        return int(get_context().get_world_size())
    except (RuntimeError, AttributeError, DeprecationWarning):  # the last one is raised in a trial of Ray Tune
        return 1
