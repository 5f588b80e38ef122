"""Plain PyTorch: Datasets, Samplers and loaders; ray is never imported here.

Names are looked up when they are first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ray_h5.planning.epoch.shuffle import Shuffle
    from ray_h5.planning.epoch.weights import balance
    from ray_h5.planning.predicates.criteria import any_equal, between, row_mask, where
    from ray_h5.planning.rows.kinds import Grid, Groups
    from ray_h5.planning.rows.windows import Windows
    from ray_h5.planning.tables.sidecar import Sidecar
    from ray_h5.torch_data.batch_sampler import OrderBatchSampler
    from ray_h5.torch_data.compat.combined import CombinedHDF5Dataset
    from ray_h5.torch_data.compat.epoch_shuffle import EpochShuffleSampler
    from ray_h5.torch_data.compat.factory import OptimalDataLoaderFactory
    from ray_h5.torch_data.compat.lazy import H5LazyDataset, h5_worker_init_fn
    from ray_h5.torch_data.compat.monitor import DataLoaderPerformanceMonitor
    from ray_h5.torch_data.compat.optimized import create_optimized_dataloader
    from ray_h5.torch_data.compat.rank_cached import DistributedError, RankMemCachedH5Dataset
    from ray_h5.torch_data.compat.shards import _balanced_contiguous_shard, _interleaved_indices
    from ray_h5.torch_data.compat.split import make_train_val_indices
    from ray_h5.torch_data.compat.wrappers import (
        WorkerSafeAugmentedDataset,
        WorkerSafeStandardizedDataset,
        worker_init_fn,
    )
    from ray_h5.torch_data.data_loader import H5DataLoader
    from ray_h5.torch_data.dataset import H5Dataset
    from ray_h5.torch_data.folds import kfold
    from ray_h5.torch_data.loaders import loader
    from ray_h5.torch_data.mixed import mix
    from ray_h5.torch_data.reading.samples import Sample
    from ray_h5.torch_data.samplers import OrderSampler
    from ray_h5.torch_data.weighted_sampler import WeightedSampler
    from ray_h5.transforms.decode_image import DecodeImage

__all__ = [
    "CombinedHDF5Dataset",
    "DataLoaderPerformanceMonitor",
    "DecodeImage",
    "DistributedError",
    "EpochShuffleSampler",
    "Grid",
    "Groups",
    "H5DataLoader",
    "H5Dataset",
    "H5LazyDataset",
    "OptimalDataLoaderFactory",
    "OrderBatchSampler",
    "OrderSampler",
    "RankMemCachedH5Dataset",
    "Sample",
    "Shuffle",
    "Sidecar",
    "WeightedSampler",
    "Windows",
    "WorkerSafeAugmentedDataset",
    "WorkerSafeStandardizedDataset",
    "_balanced_contiguous_shard",
    "_interleaved_indices",
    "any_equal",
    "balance",
    "between",
    "create_optimized_dataloader",
    "h5_worker_init_fn",
    "kfold",
    "loader",
    "make_train_val_indices",
    "mix",
    "row_mask",
    "where",
    "worker_init_fn",
]

_NAMES = {
    "planning.epoch.shuffle": ("Shuffle",),
    "planning.epoch.weights": ("balance",),
    "planning.predicates.criteria": (
        "any_equal",
        "between",
        "row_mask",
        "where",
    ),
    "planning.rows.kinds": (
        "Grid",
        "Groups",
    ),
    "planning.rows.windows": ("Windows",),
    "planning.tables.sidecar": ("Sidecar",),
    "transforms.decode_image": ("DecodeImage",),
    "torch_data.batch_sampler": ("OrderBatchSampler",),
    "torch_data.compat.combined": ("CombinedHDF5Dataset",),
    "torch_data.compat.epoch_shuffle": ("EpochShuffleSampler",),
    "torch_data.compat.factory": ("OptimalDataLoaderFactory",),
    "torch_data.compat.lazy": (
        "H5LazyDataset",
        "h5_worker_init_fn",
    ),
    "torch_data.compat.monitor": ("DataLoaderPerformanceMonitor",),
    "torch_data.compat.optimized": ("create_optimized_dataloader",),
    "torch_data.compat.rank_cached": (
        "DistributedError",
        "RankMemCachedH5Dataset",
    ),
    "torch_data.compat.shards": (
        "_balanced_contiguous_shard",
        "_interleaved_indices",
    ),
    "torch_data.compat.split": ("make_train_val_indices",),
    "torch_data.compat.wrappers": (
        "WorkerSafeAugmentedDataset",
        "WorkerSafeStandardizedDataset",
        "worker_init_fn",
    ),
    "torch_data.data_loader": ("H5DataLoader",),
    "torch_data.dataset": ("H5Dataset",),
    "torch_data.folds": ("kfold",),
    "torch_data.loaders": ("loader",),
    "torch_data.mixed": ("mix",),
    "torch_data.reading.samples": ("Sample",),
    "torch_data.samplers": ("OrderSampler",),
    "torch_data.weighted_sampler": ("WeightedSampler",),
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
