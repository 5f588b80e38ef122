"""The share of a dataset that a worker of a trainer reads."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, TypeVar

import ray
from ray.data import DataIterator, Dataset
from ray.data._internal.iterator.stream_split_iterator import StreamSplitDataIterator

from ray_h5.ray_data.internals.cluster import process_id

T = TypeVar("T")


def workers_that_share(shard: DataIterator) -> int | None:
    """Return among how many workers a dataset is split; None where each worker reads the whole of it."""
    return int(shard.world_size()) if isinstance(shard, StreamSplitDataIterator) else None


def executing_process(shard: DataIterator) -> str:
    """Return the id of the process that executes the dataset of a shard."""
    if isinstance(shard, StreamSplitDataIterator):
        return str(shard._coord_actor._actor_id.hex())
    return process_id()


def of_dataset(shard: DataIterator, function: Callable[[Dataset], T]) -> T:
    """Return `function` of the dataset of a shard; it is called in the process that executes the dataset."""
    if not isinstance(shard, StreamSplitDataIterator):
        return _of_base(shard, function)
    found: T = ray.get(shard._coord_actor.__ray_call__.remote(_of_base, function))
    return found


def _of_base(owner: Any, function: Callable[[Dataset], T]) -> T:
    return function(owner._base_dataset)


def trainer_shard(name: str) -> DataIterator | None:
    """Return this worker's shard of a dataset of its trainer; None if there is no such dataset, or no trainer."""
    if "ray.train" not in sys.modules:
        return None  # a training loop has imported it
    try:
        names = trainer_datasets()
    except RuntimeError:  # this process is no worker of a trainer
        return None
    return ray.train.get_dataset_shard(name) if name in names else None


def trainer_datasets() -> list[str]:
    """Return the keys of the datasets of the trainer whose loop this is; empty where Ray does not show them."""
    from ray.train.v2._internal.execution.context import get_train_context

    return sorted(getattr(get_train_context().dataset_shard_provider, "_dataset_names", ()))
