"""Arrays as tensors, over the same memory; and memory for both."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch

from ray_h5.errors import UnsupportedColumnError


def new_shared(shape: tuple[int, ...], dtype: np.dtype) -> torch.Tensor:
    """Return an uninitialised tensor in shared memory."""
    # What torch's own collate uses: `share_memory_` would fill private memory first and copy it.
    storage = torch.UntypedStorage._new_shared(max(math.prod(shape) * dtype.itemsize, 1))
    return torch.from_numpy(np.empty(0, dtype)).set_(storage, 0, shape)


def owner_of(array: np.ndarray) -> Any:
    """Return what the memory of an array belongs to; None if that is an array."""
    owner: Any = array
    while isinstance(owner, np.ndarray):
        owner = owner.base
    return owner


def to_torch(array: np.ndarray, name: str, *, as_bytes: bool = False) -> Any:
    """Return the values of a column as they go into a batch: a tensor, or a list of what tensors cannot hold."""
    if array.dtype.kind in "biufc":
        return tensor_over(array)
    return [as_python(value, name, as_bytes=as_bytes) for value in array]


def tensor_over(array: np.ndarray) -> torch.Tensor:
    """Return a tensor over the memory of an array.

    If that is a tensor's, it is a view of that tensor. torch finds out when a copy to a GPU has ended, and
    the pinned memory may be used again, by the tensor that the memory was allocated for.
    """
    made, owner = torch.from_numpy(array), owner_of(array)
    if not isinstance(owner, torch.Tensor) or owner.dtype != made.dtype or not (made.is_contiguous() and made.numel()):
        return made
    start = (made.data_ptr() - owner.data_ptr()) // made.element_size()
    return owner.reshape(-1)[start : start + made.numel()].reshape(made.shape)


def as_python(value: Any, name: str, *, as_bytes: bool = False) -> Any:
    """Return one value that is no number: text as str or as its bytes, or what numpy makes of it.

    Raises
    ------
    UnsupportedColumnError
        If text is not UTF-8.
    """
    if as_bytes or not isinstance(value, bytes):
        return value
    try:
        return value.decode()
    except UnicodeDecodeError:
        raise UnsupportedColumnError(
            f"column {name!r} holds {value!r}, which is not UTF-8. H5Dataset(..., dtypes={{{name!r}: bytes}}) gives "
            "its values as bytes."
        ) from None
