"""Batches on the device that trains: which device, and copies that run ahead of the training."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypeVar

import ray.train.torch
import torch

from ray_h5.errors import OptionError
from ray_h5.loading.prefetch_threads import ahead
from ray_h5.ray_data.ray_internals import world_rank
from ray_h5.storage.request_pool import Stop

_Batch = TypeVar("_Batch", dict[str, Any], list[Any])


def to_device(batches: Iterable[_Batch], device: torch.device) -> Iterator[_Batch]:
    """Move batches to a device; to a GPU ahead of the training, in a thread: see `ahead` for how many batches.

    Copies overlap with computing if the tensors are in pinned memory.
    """
    if device.type == "cpu":
        yield from batches
        return
    if device.type != "cuda":
        # MPS reads the memory of a copy that does not wait later, when the batch may be gone.
        yield from (_moved(batch, device, non_blocking=False) for batch in batches)
        return
    side = torch.cuda.Stream(device)

    def copies() -> Iterator[tuple[_Batch, torch.cuda.Event]]:
        for batch in batches:
            with torch.cuda.stream(side):
                # torch keeps pinned memory until its copy has ended, also if the batch is gone before.
                copy = _moved(batch, device, non_blocking=True), side.record_event()
            yield copy

    for batch, copied in ahead(copies(), Stop()):
        # The stream of the training waits for this copy, not for the next one.
        current = torch.cuda.current_stream(device)
        current.wait_event(copied)
        for tensor in _tensors_in(batch):
            # Without this its memory could be reused while the training stream still computes with it.
            tensor.record_stream(current)
        yield batch


def _moved(value: Any, device: torch.device, *, non_blocking: bool) -> Any:
    if isinstance(value, dict):
        return {name: _moved(item, device, non_blocking=non_blocking) for name, item in value.items()}
    if isinstance(value, list):
        return [_moved(item, device, non_blocking=non_blocking) for item in value]
    return value.to(device, non_blocking=non_blocking) if isinstance(value, torch.Tensor) else value


def _tensors_in(value: Any) -> Iterator[torch.Tensor]:
    """Return the tensors of a batch, and the parts of those of compressed rows, which have no memory of their own."""
    if isinstance(value, torch.Tensor):
        is_csr = value.layout == torch.sparse_csr
        yield from (value.crow_indices(), value.col_indices(), value.values()) if is_csr else (value,)
    elif isinstance(value, (Mapping, list)):
        for item in value.values() if isinstance(value, Mapping) else value:
            yield from _tensors_in(item)


def can_pin() -> bool:
    """Return whether torch finds a device that copies from pinned memory; MPS does not."""
    accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    return accelerator is not None and accelerator.type != "mps"


def as_device(device: str | int | torch.device) -> torch.device:
    """Return a device that exists; for ``"auto"`` that which Ray Train gave to this worker.

    Raises
    ------
    OptionError
        If it is not a device, or torch does not find it.
    """
    if device == "auto":
        return ray.train.torch.get_device() if world_rank() is not None else torch.device("cpu")
    try:
        checked = torch.device(device)
        missing = checked.type == "cuda" and not torch.cuda.is_available()
        reason = "it holds no values" if checked.type == "meta" else "torch finds no CUDA device in this process"
        if checked.type != "meta" and not missing:
            torch.empty(0, device=checked)
            return checked
    # torch raises any of these for a backend that is missing.
    except (RuntimeError, TypeError, AssertionError, ImportError) as exc:
        reason = str(exc).split("\n", 1)[0].split(". ", 1)[0].rstrip(".")  # the rest lists all backends
    raise OptionError(
        f"device={str(device) if isinstance(device, torch.device) else device!r}: {reason}. Expected 'auto', the "
        "device that Ray Train gave to this worker, 'cpu', or a device that exists, such as 'cuda'; for GPUs, ask the "
        "trainer (ScalingConfig(use_gpu=True)) on a machine that has them."
    )
