"""Plain PyTorch: Datasets, Samplers and loaders; ray is never imported here.

Names are looked up when they are first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ray_h5.planning.epoch.shuffle import Shuffle
    from ray_h5.planning.predicates.criteria import any_equal, between, row_mask, where
    from ray_h5.torch_data.combined import CombinedHDF5Dataset
    from ray_h5.torch_data.dataset import H5Dataset
    from ray_h5.torch_data.factory import OptimalDataLoaderFactory
    from ray_h5.torch_data.folds import kfold
    from ray_h5.torch_data.lazy import H5LazyDataset, h5_worker_init_fn
    from ray_h5.torch_data.loaders import create_optimized_dataloader, loader
    from ray_h5.torch_data.monitor import DataLoaderPerformanceMonitor
    from ray_h5.torch_data.rank_cached import DistributedError, RankMemCachedH5Dataset
    from ray_h5.torch_data.samplers import EpochShuffleSampler, OrderBatchSampler, OrderSampler
    from ray_h5.torch_data.samples import Sample
    from ray_h5.torch_data.shards import _balanced_contiguous_shard, _interleaved_indices
    from ray_h5.torch_data.threaded import H5DataLoader
    from ray_h5.torch_data.wrappers import (
        WorkerSafeAugmentedDataset,
        WorkerSafeStandardizedDataset,
        worker_init_fn,
    )

__all__ = [
    "CombinedHDF5Dataset",
    "DataLoaderPerformanceMonitor",
    "DistributedError",
    "EpochShuffleSampler",
    "H5DataLoader",
    "H5Dataset",
    "H5LazyDataset",
    "OptimalDataLoaderFactory",
    "OrderBatchSampler",
    "OrderSampler",
    "RankMemCachedH5Dataset",
    "Sample",
    "Shuffle",
    "WorkerSafeAugmentedDataset",
    "WorkerSafeStandardizedDataset",
    "_balanced_contiguous_shard",
    "_interleaved_indices",
    "any_equal",
    "between",
    "create_optimized_dataloader",
    "h5_worker_init_fn",
    "kfold",
    "loader",
    "row_mask",
    "where",
    "worker_init_fn",
]

_NAMES = {
    "planning.epoch.shuffle": ("Shuffle",),
    "planning.predicates.criteria": (
        "any_equal",
        "between",
        "row_mask",
        "where",
    ),
    "torch_data.combined": ("CombinedHDF5Dataset",),
    "torch_data.dataset": ("H5Dataset",),
    "torch_data.factory": ("OptimalDataLoaderFactory",),
    "torch_data.folds": ("kfold",),
    "torch_data.lazy": (
        "H5LazyDataset",
        "h5_worker_init_fn",
    ),
    "torch_data.loaders": (
        "create_optimized_dataloader",
        "loader",
    ),
    "torch_data.monitor": ("DataLoaderPerformanceMonitor",),
    "torch_data.rank_cached": (
        "DistributedError",
        "RankMemCachedH5Dataset",
    ),
    "torch_data.samplers": (
        "EpochShuffleSampler",
        "OrderBatchSampler",
        "OrderSampler",
    ),
    "torch_data.samples": ("Sample",),
    "torch_data.shards": (
        "_balanced_contiguous_shard",
        "_interleaved_indices",
    ),
    "torch_data.threaded": ("H5DataLoader",),
    "torch_data.wrappers": (
        "WorkerSafeAugmentedDataset",
        "WorkerSafeStandardizedDataset",
        "worker_init_fn",
    ),
}
_HOMES = {name: f"ray_h5.{home}" for home, names in _NAMES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'ray_h5.torch_data' has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
