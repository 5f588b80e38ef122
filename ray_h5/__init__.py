"""Train from HDF5 files with Ray Data.

Names are looked up when they are first used: importing this package imports neither ray, torch
nor h5py.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ray_h5.errors import RayH5Error
    from ray_h5.hdf5.reader import RowReader
    from ray_h5.planning.criteria import any_equal, between, row_mask
    from ray_h5.planning.position import Position
    from ray_h5.planning.shuffle import Shuffle
    from ray_h5.ray_data.api import build_index, read_h5
    from ray_h5.ray_data.datasource import H5Datasource
    from ray_h5.ray_data.epochs import set_epoch
    from ray_h5.ray_data.predicates import kfold, where
    from ray_h5.ray_data.preprocessors import Standardize
    from ray_h5.ray_data.train import data_config, train_batches
    from ray_h5.transforms.defaults import augmentation_defaults
    from ray_h5.transforms.noise import GaussianNoise
    from ray_h5.transforms.spec_augment import SpecAugment

__version__ = "0.1.0"

_HOMES = {
    "GaussianNoise": "ray_h5.transforms.noise",
    "H5Datasource": "ray_h5.ray_data.datasource",
    "Position": "ray_h5.planning.position",
    "RayH5Error": "ray_h5.errors",
    "RowReader": "ray_h5.hdf5.reader",
    "Shuffle": "ray_h5.planning.shuffle",
    "SpecAugment": "ray_h5.transforms.spec_augment",
    "Standardize": "ray_h5.ray_data.preprocessors",
    "any_equal": "ray_h5.planning.criteria",
    "augmentation_defaults": "ray_h5.transforms.defaults",
    "between": "ray_h5.planning.criteria",
    "build_index": "ray_h5.ray_data.api",
    "data_config": "ray_h5.ray_data.train",
    "kfold": "ray_h5.ray_data.predicates",
    "read_h5": "ray_h5.ray_data.api",
    "row_mask": "ray_h5.planning.criteria",
    "set_epoch": "ray_h5.ray_data.epochs",
    "train_batches": "ray_h5.ray_data.train",
    "where": "ray_h5.ray_data.predicates",
}

__all__ = [
    "GaussianNoise",
    "H5Datasource",
    "Position",
    "RayH5Error",
    "RowReader",
    "Shuffle",
    "SpecAugment",
    "Standardize",
    "any_equal",
    "augmentation_defaults",
    "between",
    "build_index",
    "data_config",
    "kfold",
    "read_h5",
    "row_mask",
    "set_epoch",
    "train_batches",
    "where",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'ray_h5' has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
