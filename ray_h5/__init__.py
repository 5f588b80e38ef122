"""Train from HDF5 files with Ray Data.

Names are imported when they are first used: ``import ray_h5`` imports neither ray, torch nor h5py.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ray_h5.errors import RayH5Error
    from ray_h5.hdf5.reader import RowReader
    from ray_h5.planning.epoch.position import Position
    from ray_h5.planning.epoch.shuffle import Shuffle
    from ray_h5.planning.epoch.weights import balance
    from ray_h5.planning.predicates.criteria import any_equal, between, row_mask
    from ray_h5.planning.rows.column_kinds import csr, ragged
    from ray_h5.planning.rows.kinds import Grid, Groups
    from ray_h5.planning.rows.windows import Windows
    from ray_h5.planning.tables.sidecar import Sidecar
    from ray_h5.ray_data.api import build_index, read_h5
    from ray_h5.ray_data.datasource import H5Datasource
    from ray_h5.ray_data.epochs.set_epoch import set_epoch
    from ray_h5.ray_data.predicates import kfold, where
    from ray_h5.ray_data.preprocessing.decode_image import DecodeImage
    from ray_h5.ray_data.preprocessing.standardize import Standardize
    from ray_h5.ray_data.quiet import quiet
    from ray_h5.ray_data.training.data_config import data_config
    from ray_h5.ray_data.training.train_batches import train_batches
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
    from ray_h5.torch_data.loaders import loader
    from ray_h5.torch_data.mixed import mix
    from ray_h5.torch_data.reading.samples import Sample
    from ray_h5.torch_data.samplers import OrderSampler
    from ray_h5.torch_data.weighted_sampler import WeightedSampler
    from ray_h5.transforms.defaults import augmentation_defaults
    from ray_h5.transforms.noise import GaussianNoise
    from ray_h5.transforms.spec_augment import SpecAugment

__version__ = "0.1.0"

_HOMES = {
    "CombinedHDF5Dataset": "ray_h5.torch_data.compat.combined",
    "DataLoaderPerformanceMonitor": "ray_h5.torch_data.compat.monitor",
    "DecodeImage": "ray_h5.ray_data.preprocessing.decode_image",
    "DistributedError": "ray_h5.torch_data.compat.rank_cached",
    "EpochShuffleSampler": "ray_h5.torch_data.compat.epoch_shuffle",
    "GaussianNoise": "ray_h5.transforms.noise",
    "Grid": "ray_h5.planning.rows.kinds",
    "Groups": "ray_h5.planning.rows.kinds",
    "H5DataLoader": "ray_h5.torch_data.data_loader",
    "H5Dataset": "ray_h5.torch_data.dataset",
    "H5Datasource": "ray_h5.ray_data.datasource",
    "H5LazyDataset": "ray_h5.torch_data.compat.lazy",
    "OptimalDataLoaderFactory": "ray_h5.torch_data.compat.factory",
    "OrderBatchSampler": "ray_h5.torch_data.batch_sampler",
    "OrderSampler": "ray_h5.torch_data.samplers",
    "Position": "ray_h5.planning.epoch.position",
    "RankMemCachedH5Dataset": "ray_h5.torch_data.compat.rank_cached",
    "RayH5Error": "ray_h5.errors",
    "RowReader": "ray_h5.hdf5.reader",
    "Sample": "ray_h5.torch_data.reading.samples",
    "Shuffle": "ray_h5.planning.epoch.shuffle",
    "Sidecar": "ray_h5.planning.tables.sidecar",
    "SpecAugment": "ray_h5.transforms.spec_augment",
    "Standardize": "ray_h5.ray_data.preprocessing.standardize",
    "WeightedSampler": "ray_h5.torch_data.weighted_sampler",
    "Windows": "ray_h5.planning.rows.windows",
    "WorkerSafeAugmentedDataset": "ray_h5.torch_data.compat.wrappers",
    "WorkerSafeStandardizedDataset": "ray_h5.torch_data.compat.wrappers",
    "_balanced_contiguous_shard": "ray_h5.torch_data.compat.shards",
    "_interleaved_indices": "ray_h5.torch_data.compat.shards",
    "any_equal": "ray_h5.planning.predicates.criteria",
    "augmentation_defaults": "ray_h5.transforms.defaults",
    "balance": "ray_h5.planning.epoch.weights",
    "between": "ray_h5.planning.predicates.criteria",
    "build_index": "ray_h5.ray_data.api",
    "create_optimized_dataloader": "ray_h5.torch_data.compat.optimized",
    "csr": "ray_h5.planning.rows.column_kinds",
    "data_config": "ray_h5.ray_data.training.data_config",
    "h5_worker_init_fn": "ray_h5.torch_data.compat.lazy",
    "kfold": "ray_h5.ray_data.predicates",
    "loader": "ray_h5.torch_data.loaders",
    "make_train_val_indices": "ray_h5.torch_data.compat.split",
    "mix": "ray_h5.torch_data.mixed",
    "quiet": "ray_h5.ray_data.quiet",
    "ragged": "ray_h5.planning.rows.column_kinds",
    "read_h5": "ray_h5.ray_data.api",
    "row_mask": "ray_h5.planning.predicates.criteria",
    "set_epoch": "ray_h5.ray_data.epochs.set_epoch",
    "train_batches": "ray_h5.ray_data.training.train_batches",
    "where": "ray_h5.ray_data.predicates",
    "worker_init_fn": "ray_h5.torch_data.compat.wrappers",
}

__all__ = [
    "CombinedHDF5Dataset",
    "DataLoaderPerformanceMonitor",
    "DecodeImage",
    "DistributedError",
    "EpochShuffleSampler",
    "GaussianNoise",
    "Grid",
    "Groups",
    "H5DataLoader",
    "H5Dataset",
    "H5Datasource",
    "H5LazyDataset",
    "OptimalDataLoaderFactory",
    "OrderBatchSampler",
    "OrderSampler",
    "Position",
    "RankMemCachedH5Dataset",
    "RayH5Error",
    "RowReader",
    "Sample",
    "Shuffle",
    "Sidecar",
    "SpecAugment",
    "Standardize",
    "WeightedSampler",
    "Windows",
    "WorkerSafeAugmentedDataset",
    "WorkerSafeStandardizedDataset",
    "_balanced_contiguous_shard",
    "_interleaved_indices",
    "any_equal",
    "augmentation_defaults",
    "balance",
    "between",
    "build_index",
    "create_optimized_dataloader",
    "csr",
    "data_config",
    "h5_worker_init_fn",
    "kfold",
    "loader",
    "make_train_val_indices",
    "mix",
    "quiet",
    "ragged",
    "read_h5",
    "row_mask",
    "set_epoch",
    "train_batches",
    "where",
    "worker_init_fn",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'ray_h5' has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
