"""Plain PyTorch: Datasets, Samplers and loaders; ray is never imported here.

All names of `ray_h5` that need no Ray are here, too, and those of `ray_h5.compat`. They are looked up when they are
first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ray_h5 import _HOMES as _ALL
from ray_h5 import errors as _errors
from ray_h5 import look_up as _look_up

if TYPE_CHECKING:
    from ray_h5 import *  # noqa: F403
    from ray_h5 import CombinedHDF5Dataset as CombinedHDF5Dataset
    from ray_h5 import DataLoaderPerformanceMonitor as DataLoaderPerformanceMonitor
    from ray_h5 import DistributedError as DistributedError
    from ray_h5 import H5LazyDataset as H5LazyDataset
    from ray_h5 import OptimalDataLoaderFactory as OptimalDataLoaderFactory
    from ray_h5 import RankMemCachedH5Dataset as RankMemCachedH5Dataset
    from ray_h5 import WorkerSafeAugmentedDataset as WorkerSafeAugmentedDataset
    from ray_h5 import WorkerSafeStandardizedDataset as WorkerSafeStandardizedDataset
    from ray_h5 import _balanced_contiguous_shard as _balanced_contiguous_shard
    from ray_h5 import _interleaved_indices as _interleaved_indices
    from ray_h5 import balanced_contiguous_shard as balanced_contiguous_shard
    from ray_h5 import create_optimized_dataloader as create_optimized_dataloader
    from ray_h5 import h5_worker_init_fn as h5_worker_init_fn
    from ray_h5 import interleaved_indices as interleaved_indices
    from ray_h5 import worker_init_fn as worker_init_fn
    from ray_h5.errors import *  # noqa: F403
    from ray_h5.index.folds import kfold as kfold
    from ray_h5.predicates.criteria import where as where
    from ray_h5.rows.row_reader import RowReader as RowReader
    from ray_h5.torch_data.derived_samplers import EpochShuffleSampler as EpochShuffleSampler
    from ray_h5.torch_data.derived_samplers import WeightedSampler as WeightedSampler
    from ray_h5.torch_data.h5_data_loader import loader as loader
    from ray_h5.torch_data.standardize import Standardize as Standardize  # type: ignore[assignment]
    from ray_h5.transforms.augmentation import augmentation_defaults as augmentation_defaults
    from ray_h5.transforms.image_transform import DecodeImage as DecodeImage  # type: ignore[assignment]

_HOMES = {name: home for name, home in _ALL.items() if not home.startswith("ray_h5.ray_data")} | {
    "DecodeImage": "ray_h5.transforms.image_transform",
    "Standardize": "ray_h5.torch_data.standardize",
    "kfold": "ray_h5.index.folds",
    "where": "ray_h5.predicates.criteria",
}

_ERRORS = [name for name in vars(_errors) if name.endswith("Error")]

__all__ = sorted(  # noqa: PLE0605
    [*(name for name, home in _HOMES.items() if not home.startswith("ray_h5.compat")), *_ERRORS]
)


def __getattr__(name: str) -> Any:
    value = globals()[name] = _look_up(__name__, name, _HOMES)
    return value


def __dir__() -> list[str]:
    return [name for name in __all__ if not name.startswith("_")]
