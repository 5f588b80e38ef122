"""How long the workers of a `TorchTrainer` wait for the batches of `train_batches`."""

from __future__ import annotations

import json
import tempfile
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import ray.train
import ray.train.torch
from ray.train import RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer

import ray_h5
from tests.bench.training.steps import waits_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.bench.training.steps import MakeStep

__all__ = ["waits_of_workers"]

Waits = list[tuple[float, float]]


def waits_of_workers(
    paths: Sequence[str],
    columns: Sequence[str],
    batch_size: int,
    make_step: MakeStep,
    steps_s: Sequence[float],
    turns: int,
    scaling: ScalingConfig,
) -> dict[float, Waits]:
    """Return what `waits_of` returns of each epoch of rank 0, by the seconds of a step.

    The first epoch of each kind of step is not counted: it starts processes.
    """
    ds = ray_h5.read_h5(
        list(paths),
        columns=list(columns),
        shuffle=ray_h5.Shuffle(seed=0),
        tail="pad",
        tail_rows=scaling.num_workers * batch_size,
    )
    with tempfile.TemporaryDirectory() as folder:
        found = Path(folder, "waits.json")
        TorchTrainer(
            partial(_loop, batch_size, make_step, steps_s, turns, str(found)),
            datasets={"train": ds},
            dataset_config=ray_h5.data_config(),
            scaling_config=scaling,
            run_config=RunConfig(storage_path=folder),
        ).fit()
        return dict(zip(steps_s, json.loads(found.read_text()), strict=True))


def _loop(batch_size: int, make_step: MakeStep, steps_s: Sequence[float], turns: int, path: str) -> None:
    device = ray.train.torch.get_device()
    found: list[Waits] = []
    for seconds in steps_s:
        step, waits = make_step(seconds, device), []
        for turn in range(turns + 1):
            epoch = len(found) * (turns + 1) + turn
            waits.append(waits_of(ray_h5.train_batches("train", epoch, batch_size=batch_size), step, device))
        found.append(waits[1:])
    if ray.train.get_context().get_world_rank() == 0:
        Path(path).write_text(json.dumps(found))  # all workers are on this machine
