"""Tensors over the memory of arrays."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch

from ray_h5.errors import UnsupportedColumnError
from ray_h5.planning.padding import cast_rows
from ray_h5.planning.schema import ColumnSpec


def new_shared(shape: tuple[int, ...], dtype: np.dtype) -> torch.Tensor:
    """Return an uninitialised tensor in shared memory."""
    # torch's collate calls this too: `share_memory_` would fill private memory first and copy it.
    storage = torch.UntypedStorage._new_shared(max(math.prod(shape) * dtype.itemsize, 1))
    return torch.from_numpy(np.empty(0, dtype)).set_(storage, 0, shape)


def owner_of(array: np.ndarray) -> Any:
    """Return the object that owns the memory of an array; None if the array owns it."""
    owner: Any = array
    while isinstance(owner, np.ndarray):
        owner = owner.base
    return owner


def to_torch(array: np.ndarray, name: str, *, as_bytes: bool = False) -> Any:
    """Return the values of a column of a batch: a tensor, or a list of values that tensors cannot hold."""
    if array.dtype.kind in "biufc":
        return tensor_over(array)
    return [as_python(value, name, as_bytes=as_bytes) for value in array]


def tensor_over(array: np.ndarray) -> torch.Tensor:
    """Return a tensor over the memory of an array.

    If a tensor owns the memory, the result is a view of that tensor: torch finds out by the owner when a copy to a
    GPU has ended and pinned memory may be used again.
    """
    tensor, owner = torch.from_numpy(array), owner_of(array)
    if not isinstance(owner, torch.Tensor) or owner.dtype != tensor.dtype:
        return tensor
    if not (tensor.is_contiguous() and tensor.numel()):
        return tensor
    start = (tensor.data_ptr() - owner.data_ptr()) // tensor.element_size()
    return owner.reshape(-1)[start : start + tensor.numel()].reshape(tensor.shape)


def as_python(value: Any, name: str, *, as_bytes: bool = False) -> Any:
    """Return one value that is no number: text as str, or as bytes; others as numpy returns them.

    Raises
    ------
    UnsupportedColumnError
        If text is not UTF-8.
    """
    if isinstance(value, np.ndarray) and value.dtype == object:  # several a row
        return [as_python(each, name, as_bytes=as_bytes) for each in value]
    if as_bytes or not isinstance(value, bytes):
        return value
    try:
        return value.decode()
    except UnicodeDecodeError:
        raise UnsupportedColumnError(
            f"column {name!r} holds {value!r}, which is not UTF-8. H5Dataset(..., dtypes={{{name!r}: bytes}}) gives "
            "its values as bytes."
        ) from None


def ragged_to_torch(rows: np.ndarray, spec: ColumnSpec) -> list[Any]:
    """Return rows of varying shape: a list of tensors, or of lists of text; None where a group lacks the column."""
    if spec.element is None or spec.element.kind not in "biufc":
        return [None if row is None else [as_python(each, spec.name) for each in row] for row in rows]
    found = cast_rows(list(rows), spec)
    return [None if row is None else torch.from_numpy(np.ascontiguousarray(row)) for row in found]
