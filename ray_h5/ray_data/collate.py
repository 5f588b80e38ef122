"""Batches of numpy arrays -> torch tensors on the device that trains."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from ray.data.collate_fn import NumpyBatchCollateFn

from ray_h5.errors import OptionError, UnknownColumnError, UnsupportedColumnError
from ray_h5.hdf5.rows import near_names

TorchBatch = dict[str, Any]
"""A tensor a column; columns that are no numbers stay numpy arrays."""


class TorchCollate(NumpyBatchCollateFn):
    """Turns a batch into tensors: views of it, unless a dtype or pinning asks for a copy.

    Columns of strings and other values that torch lacks stay numpy arrays.

    Parameters
    ----------
    dtypes : torch.dtype, or mapping of str to torch.dtype, optional
        A dtype for all floating columns, or for those named; ``torch.bfloat16`` and
        ``torch.float16`` for mixed precision. By default dtypes are kept.
    pin_memory : bool
        Put tensors into page-locked memory, from which a GPU copies while it computes.
    """

    def __init__(self, dtypes: torch.dtype | Mapping[str, torch.dtype] | None = None, pin_memory: bool = False) -> None:
        self._dtypes = dtypes
        self._pin = pin_memory

    def __call__(self, batch: Mapping[str, np.ndarray]) -> TorchBatch:
        if isinstance(self._dtypes, Mapping):
            for name in self._dtypes.keys() - batch.keys():
                raise UnknownColumnError(f"dtypes: no column {name!r}.{near_names(name, batch)}")
        return {name: self._convert(name, values) for name, values in batch.items()}

    def _convert(self, name: str, values: np.ndarray) -> Any:
        if values.dtype.kind not in "biufc":
            if isinstance(self._dtypes, Mapping) and name in self._dtypes:
                raise UnsupportedColumnError(
                    f"dtypes: column {name!r} has dtype {values.dtype}, expected numbers for {self._dtypes[name]}; "
                    "leave it out, it stays a numpy array"
                )
            return values
        with warnings.catch_warnings():
            # The array may be a view of Ray's object store, which is not to be written to.
            warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
            tensor = torch.as_tensor(values)
        dtype = self._dtypes.get(name) if isinstance(self._dtypes, Mapping) else self._dtypes
        if dtype is not None and (isinstance(self._dtypes, Mapping) or tensor.is_floating_point()):
            tensor = tensor.to(dtype)
        return tensor.pin_memory() if self._pin else tensor


def to_device(batches: Iterable[TorchBatch], device: torch.device) -> Iterator[TorchBatch]:
    """Move batches to a device; to a GPU one ahead, while the one before is computed on.

    Parameters
    ----------
    batches : iterable of dict
        With tensors in pinned memory, for the copies to overlap.
    device : torch.device
        The device.
    """
    if device.type == "cpu":
        yield from batches
    elif device.type != "cuda":
        for batch in batches:
            yield _moved(batch, device)
    else:
        yield from _ahead(batches, device)


def _ahead(batches: Iterable[TorchBatch], device: torch.device) -> Iterator[TorchBatch]:
    side = torch.cuda.Stream(device)
    ready: TorchBatch | None = None
    for batch in batches:
        with torch.cuda.stream(side):
            moved = _moved(batch, device)
        if ready is not None:
            yield _handed_over(ready, side, device)
        ready = moved
    if ready is not None:
        yield _handed_over(ready, side, device)


def _handed_over(batch: TorchBatch, side: torch.cuda.Stream, device: torch.device) -> TorchBatch:
    current = torch.cuda.current_stream(device)
    current.wait_stream(side)
    for value in batch.values():
        if isinstance(value, torch.Tensor):
            # Its memory is not to be reused while the training stream still computes with it.
            value.record_stream(current)
    return batch


def _moved(batch: TorchBatch, device: torch.device) -> TorchBatch:
    return {
        name: value.to(device, non_blocking=True) if isinstance(value, torch.Tensor) else value
        for name, value in batch.items()
    }


def as_device(device: str | torch.device) -> torch.device:
    """Return a device that is there.

    Raises
    ------
    OptionError
        If it is a CUDA device, and torch finds none.
    """
    found = torch.device(device)
    if found.type == "cuda" and not torch.cuda.is_available():
        raise OptionError(
            f"device={str(device)!r}: torch finds no CUDA device in this process. Ask the trainer for GPUs "
            "(ScalingConfig(use_gpu=True)) on a machine that has them, or leave the device to 'auto'."
        )
    return found
