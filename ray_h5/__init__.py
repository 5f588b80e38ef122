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
    from ray_h5.ray_data.api import read_h5
    from ray_h5.ray_data.datasource import H5Datasource

__version__ = "0.1.0"

__all__ = ["H5Datasource", "RayH5Error", "RowReader", "read_h5"]

_HOMES = {
    "H5Datasource": "ray_h5.ray_data.datasource",
    "RayH5Error": "ray_h5.errors",
    "RowReader": "ray_h5.hdf5.reader",
    "read_h5": "ray_h5.ray_data.api",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'ray_h5' has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
