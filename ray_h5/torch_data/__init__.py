"""Plain PyTorch: Datasets, Samplers and loaders; ray is never imported here.

All names of `ray_h5` that need no Ray are here, too. They are looked up when they are first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ray_h5 import _HOMES as _ALL
from ray_h5 import look_up as _look_up

if TYPE_CHECKING:
    from ray_h5.columns.user_columns import csr, fields, joined, part, ragged
    from ray_h5.errors import *  # noqa: F403
    from ray_h5.errors import RayH5Error
    from ray_h5.order.draws.shuffle import Shuffle
    from ray_h5.order.draws.weights import balance
    from ray_h5.order.position import Position
    from ray_h5.predicates.criteria import any_equal, between, row_mask, where
    from ray_h5.rows.groups_and_grids import Files, Grid, Groups
    from ray_h5.rows.patches import Patches
    from ray_h5.rows.row_reader import RowReader
    from ray_h5.rows.windows import Windows
    from ray_h5.tables.sidecar import Sidecar
    from ray_h5.torch_data.batch_sampler import OrderBatchSampler
    from ray_h5.torch_data.batches.tensors import Sample
    from ray_h5.torch_data.compat.combined import CombinedHDF5Dataset
    from ray_h5.torch_data.compat.epoch_shuffle import EpochShuffleSampler
    from ray_h5.torch_data.compat.factory import OptimalDataLoaderFactory
    from ray_h5.torch_data.compat.lazy import H5LazyDataset, h5_worker_init_fn
    from ray_h5.torch_data.compat.monitor import DataLoaderPerformanceMonitor
    from ray_h5.torch_data.compat.optimized import create_optimized_dataloader
    from ray_h5.torch_data.compat.rank_cached import DistributedError, RankMemCachedH5Dataset
    from ray_h5.torch_data.compat.shards import _balanced_contiguous_shard, _interleaved_indices
    from ray_h5.torch_data.compat.wrappers import (
        WorkerSafeAugmentedDataset,
        WorkerSafeStandardizedDataset,
        worker_init_fn,
    )
    from ray_h5.torch_data.dataset import H5Dataset
    from ray_h5.torch_data.folds import kfold
    from ray_h5.torch_data.h5_data_loader import H5DataLoader
    from ray_h5.torch_data.make_loader import loader
    from ray_h5.torch_data.samplers import OrderSampler
    from ray_h5.torch_data.standardize import Standardize
    from ray_h5.torch_data.weighted_sampler import WeightedSampler
    from ray_h5.transforms.decode_image import DecodeImage
    from ray_h5.transforms.defaults import augmentation_defaults
    from ray_h5.transforms.noise import GaussianNoise
    from ray_h5.transforms.spec_augment import SpecAugment
    from ray_h5.writing.repack.repack import repack

__all__ = [
    "CombinedHDF5Dataset",
    "DataLoaderPerformanceMonitor",
    "DecodeImage",
    "DistributedError",
    "EpochShuffleSampler",
    "Files",
    "GaussianNoise",
    "Grid",
    "Groups",
    "H5DataLoader",
    "H5Dataset",
    "H5LazyDataset",
    "OptimalDataLoaderFactory",
    "OrderBatchSampler",
    "OrderSampler",
    "Patches",
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
    "create_optimized_dataloader",
    "csr",
    "fields",
    "h5_worker_init_fn",
    "joined",
    "kfold",
    "loader",
    "part",
    "ragged",
    "repack",
    "row_mask",
    "where",
    "worker_init_fn",
]

_HOMES = {name: home for name, home in _ALL.items() if not home.startswith("ray_h5.ray_data.")} | {
    "DecodeImage": "ray_h5.transforms.decode_image",
    "Standardize": "ray_h5.torch_data.standardize",
    "kfold": "ray_h5.torch_data.folds",
    "where": "ray_h5.predicates.criteria",
}


def __getattr__(name: str) -> Any:
    value = globals()[name] = _look_up(__name__, name, _HOMES)
    return value


def __dir__() -> list[str]:
    return [name for name in __all__ if not name.startswith("_")]
