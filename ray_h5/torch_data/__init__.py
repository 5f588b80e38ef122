"""Plain PyTorch: Datasets, Samplers and loaders; ray is never imported here.

All names of `ray_h5` that need no Ray are here, too, and those of `ray_h5.compat`. They are looked up when they are
first used.
"""

from __future__ import annotations

from typing import Any

from ray_h5 import errors as _errors
from ray_h5.public_names import PublicNames as _PublicNames

_NAMES = _PublicNames(__name__)

__all__ = sorted({*_NAMES.listed, *(name for name in vars(_errors) if name.endswith("Error"))})  # noqa: PLE0605


def __getattr__(name: str) -> Any:
    value = globals()[name] = _NAMES.look_up(name)
    return value


def __dir__() -> list[str]:
    return [name for name in __all__ if not name.startswith("_")]
