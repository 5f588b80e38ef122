"""Train from HDF5 files with Ray Data.

Names are imported when they are first used: ``import ray_h5`` imports neither ray, torch nor h5py. Besides those of
``__all__``, this package has the classes and functions of `ray_h5.compat`, and all errors.
"""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ray_h5.columns.column_functions import csr, fields, joined, part, ragged
    from ray_h5.compat.combined_dataset import CombinedHDF5Dataset as CombinedHDF5Dataset
    from ray_h5.compat.dataset_wrappers import WorkerSafeAugmentedDataset as WorkerSafeAugmentedDataset
    from ray_h5.compat.dataset_wrappers import WorkerSafeStandardizedDataset as WorkerSafeStandardizedDataset
    from ray_h5.compat.dataset_wrappers import worker_init_fn as worker_init_fn
    from ray_h5.compat.lazy_dataset import H5LazyDataset as H5LazyDataset
    from ray_h5.compat.lazy_dataset import h5_worker_init_fn as h5_worker_init_fn
    from ray_h5.compat.optimal_dataloader import OptimalDataLoaderFactory as OptimalDataLoaderFactory
    from ray_h5.compat.optimal_dataloader import create_optimized_dataloader as create_optimized_dataloader
    from ray_h5.compat.rank_cached import DistributedError as DistributedError
    from ray_h5.compat.rank_cached import RankMemCachedH5Dataset as RankMemCachedH5Dataset
    from ray_h5.compat.rank_cached import _balanced_contiguous_shard as _balanced_contiguous_shard
    from ray_h5.compat.rank_cached import _interleaved_indices as _interleaved_indices
    from ray_h5.compat.rank_cached import balanced_contiguous_shard as balanced_contiguous_shard
    from ray_h5.compat.rank_cached import interleaved_indices as interleaved_indices
    from ray_h5.compat.wait_monitor import DataLoaderPerformanceMonitor as DataLoaderPerformanceMonitor
    from ray_h5.errors import *  # noqa: F403
    from ray_h5.errors import RayH5Error
    from ray_h5.order.draws.shuffle import Shuffle, balance
    from ray_h5.order.position import Position
    from ray_h5.predicates.criteria import any_equal, between, row_mask
    from ray_h5.ray_data import kfold, where
    from ray_h5.ray_data.datasource import H5Datasource, labels_of
    from ray_h5.ray_data.epochs import set_epoch
    from ray_h5.ray_data.preprocessing.image_preprocessor import DecodeImage
    from ray_h5.ray_data.preprocessing.standardize import Standardize
    from ray_h5.ray_data.quiet import quiet
    from ray_h5.ray_data.read_h5 import build_index, read_h5
    from ray_h5.ray_data.training.collate import TorchCollate
    from ray_h5.ray_data.training.data_config import data_config
    from ray_h5.ray_data.training.train_batches import train_batches
    from ray_h5.ray_data.write_h5 import H5Datasink, write_h5
    from ray_h5.rows.patches_option import Patches
    from ray_h5.rows.row_kind_options import Files, Grid, Groups
    from ray_h5.rows.row_reader import RowReader
    from ray_h5.rows.windows_option import Windows
    from ray_h5.tables.sidecar import Sidecar
    from ray_h5.torch_data.batches.tensors import Sample
    from ray_h5.torch_data.dataset import H5Dataset
    from ray_h5.torch_data.derived_samplers import EpochShuffleSampler as EpochShuffleSampler
    from ray_h5.torch_data.derived_samplers import OrderBatchSampler, WeightedSampler
    from ray_h5.torch_data.h5_data_loader import H5DataLoader, loader
    from ray_h5.torch_data.samplers import OrderSampler
    from ray_h5.transforms.augmentation import augmentation_defaults
    from ray_h5.transforms.noise import GaussianNoise
    from ray_h5.transforms.spec_augment import SpecAugment
    from ray_h5.writing.repack.repack import repack

if sys.platform == "win32":
    raise ImportError("ray_h5 needs Linux or macOS. On Windows, run it in WSL (wsl --install), where it is on Linux.")

__version__ = "1.0.0rc1"

_NAMES: dict[str, tuple[str, ...]] = {
    "columns.column_functions": ("csr", "fields", "joined", "part", "ragged"),
    "order.draws.shuffle": ("Shuffle", "balance"),
    "order.position": ("Position",),
    "predicates.criteria": ("any_equal", "between", "row_mask"),
    "ray_data": ("kfold", "where"),
    "ray_data.datasource": ("H5Datasource", "labels_of"),
    "ray_data.epochs": ("set_epoch",),
    "ray_data.preprocessing.image_preprocessor": ("DecodeImage",),
    "ray_data.preprocessing.standardize": ("Standardize",),
    "ray_data.quiet": ("quiet",),
    "ray_data.read_h5": ("build_index", "read_h5"),
    "ray_data.training.collate": ("TorchCollate",),
    "ray_data.training.data_config": ("data_config",),
    "ray_data.training.train_batches": ("train_batches",),
    "ray_data.write_h5": ("H5Datasink", "write_h5"),
    "rows.patches_option": ("Patches",),
    "rows.row_kind_options": ("Files", "Grid", "Groups"),
    "rows.row_reader": ("RowReader",),
    "rows.windows_option": ("Windows",),
    "tables.sidecar": ("Sidecar",),
    "torch_data.batches.samples": ("Sample",),
    "compat.combined_dataset": ("CombinedHDF5Dataset",),
    "compat.dataset_wrappers": (
        "WorkerSafeAugmentedDataset",
        "WorkerSafeStandardizedDataset",
        "worker_init_fn",
    ),
    "compat.lazy_dataset": ("H5LazyDataset", "h5_worker_init_fn"),
    "compat.optimal_dataloader": ("OptimalDataLoaderFactory", "create_optimized_dataloader"),
    "compat.rank_cached": (
        "DistributedError",
        "RankMemCachedH5Dataset",
        "_balanced_contiguous_shard",
        "_interleaved_indices",
        "balanced_contiguous_shard",
        "interleaved_indices",
    ),
    "compat.wait_monitor": ("DataLoaderPerformanceMonitor",),
    "torch_data.dataset": ("H5Dataset",),
    "torch_data.derived_samplers": ("EpochShuffleSampler", "OrderBatchSampler", "WeightedSampler"),
    "torch_data.h5_data_loader": ("H5DataLoader", "loader"),
    "torch_data.samplers": ("OrderSampler",),
    "transforms.augmentation": ("augmentation_defaults",),
    "transforms.noise": ("GaussianNoise",),
    "transforms.spec_augment": ("SpecAugment",),
    "writing.repack.repack": ("repack",),
}
"""The public names of each module; errors apart."""

_HOMES = {name: f"{__name__}.{module}" for module, names in _NAMES.items() for name in names}

__all__ = [
    "DecodeImage",
    "Files",
    "GaussianNoise",
    "Grid",
    "Groups",
    "H5DataLoader",
    "H5Dataset",
    "H5Datasink",
    "H5Datasource",
    "OrderBatchSampler",
    "OrderSampler",
    "Patches",
    "Position",
    "RayH5Error",
    "RowReader",
    "Sample",
    "Shuffle",
    "Sidecar",
    "SpecAugment",
    "Standardize",
    "TorchCollate",
    "WeightedSampler",
    "Windows",
    "any_equal",
    "augmentation_defaults",
    "balance",
    "between",
    "build_index",
    "csr",
    "data_config",
    "fields",
    "joined",
    "kfold",
    "labels_of",
    "loader",
    "part",
    "quiet",
    "ragged",
    "read_h5",
    "repack",
    "row_mask",
    "set_epoch",
    "train_batches",
    "where",
    "write_h5",
]


_MODULES = ("plots", "torch_data")


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"{__name__}.{name}")
    value = globals()[name] = look_up(__name__, name, _HOMES)
    return value


def __dir__() -> list[str]:
    return [*__all__, *_MODULES]


def look_up(package: str, name: str, homes: dict[str, str]) -> Any:
    """Return the value of a public name of a package; `homes` has the modules of all names except errors."""
    home = homes.get(name, "ray_h5.errors" if name.endswith("Error") else "")
    value = getattr(importlib.import_module(home), name, None) if home else None
    if value is None:
        elsewhere = f"; it needs Ray: import it from {__name__}" if name in __all__ and package != __name__ else ""
        message = f"module {package!r} has no attribute {name!r}{elsewhere}"
        raise AttributeError(message, name=name, obj=sys.modules.get(package))
    return value
