"""Calls of `H5LazyDataset` that give `aux_keys` by position, after `y_key`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any, TypeVar

import numpy as np

from ray_h5.errors import OptionError

_AUX = 3
"""The place of `aux_keys` among the arguments: path, x_key, y_key, aux_keys, x_dtype, y_dtype, transform ..."""

_Init = TypeVar("_Init", bound=Callable[..., None])


def aux_keys_by_position(init: _Init) -> _Init:
    """Let a constructor also take the order of arguments that has `aux_keys` before the dtypes."""

    @wraps(init)
    def either_order(self: Any, *args: Any, **options: Any) -> None:
        if "aux_keys" not in options and _are_with_aux_keys(args):
            options["aux_keys"] = args[_AUX]
            args = args[:_AUX] + args[_AUX + 1 :]
        init(self, *args, **options)

    return either_order  # type: ignore[return-value]


def as_keys(aux_keys: str | Sequence[str] | None) -> tuple[str, ...]:
    """Return the names of auxiliary datasets."""
    keys = (aux_keys,) if isinstance(aux_keys, str) else tuple(aux_keys or ())
    if not all(isinstance(key, str) for key in keys):
        raise OptionError(f"aux_keys={aux_keys!r}: expected names of datasets, such as aux_keys=('mask', 'weight')")
    return keys


def _are_with_aux_keys(args: tuple[Any, ...]) -> bool:
    if len(args) <= _AUX:
        return False
    given, rest = args[_AUX], args[_AUX + 1 :]
    if isinstance(given, (list, tuple)):
        return bool(given) and all(isinstance(key, str) for key in given)
    if isinstance(given, str):
        return not _is_dtype(given)
    if given is not None:
        return False
    # None is no auxiliary dataset, or no dtype of inputs. What follows decides: y_dtype where else a transform is,
    # target_transform where else bytes of the chunk cache are.
    has_dtype = len(rest) > 1 and _is_dtype(rest[1])
    return has_dtype or (len(rest) > 3 and (rest[3] is None or callable(rest[3])))


def _is_dtype(value: Any) -> bool:
    if not isinstance(value, (str, np.dtype)) and not (isinstance(value, type) and issubclass(value, np.generic)):
        return False
    try:
        np.dtype(value)
    except TypeError:
        return False
    return True
