"""The device that Ray Train gave to a worker."""

from __future__ import annotations

import ray.train.torch
import torch

from ray_h5 import device as devices
from ray_h5.ray_data.ray_internals import world_rank

_EXPECTED = (
    "'auto', the device that Ray Train gave to this worker, 'cpu', or a device that exists, such as 'cuda'; for GPUs, "
    "ask the trainer (ScalingConfig(use_gpu=True)) on a machine that has them."
)


def as_device(device: str | int | torch.device) -> torch.device:
    """Return a device that exists; for ``"auto"`` that which Ray Train gave to this worker, or the CPU outside of it.

    Raises
    ------
    OptionError
        If it is not a device, or torch does not find it.
    """
    return devices.as_device(device, _own, _EXPECTED)


def _own() -> torch.device:
    return ray.train.torch.get_device() if world_rank() is not None else torch.device("cpu")
