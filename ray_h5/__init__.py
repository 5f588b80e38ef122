"""Train from HDF5 files with Ray Data.

Names are imported when they are first used: ``import ray_h5`` imports neither ray, torch nor h5py. Besides those of
``__all__``, this package has the classes and functions of `ray_h5.compat`, and all errors.
"""

from __future__ import annotations

import sys
from typing import Any

from ray_h5.public_names import PublicNames as _PublicNames

if sys.platform == "win32":
    raise ImportError("ray_h5 needs Linux or macOS. On Windows, run it in WSL (wsl --install), where it is on Linux.")

__version__ = "1.0.0rc1"

_NAMES = _PublicNames(__name__)

__all__ = [*_NAMES.listed]  # noqa: PLE0604


def __getattr__(name: str) -> Any:
    value = globals()[name] = _NAMES.look_up(name)
    return value


def __dir__() -> list[str]:
    return [*__all__, *_NAMES.modules]
