"""Rows a second of the batches of a trainer and of a `loader`, in the same workers, in turn."""

from __future__ import annotations

import json
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ray.train
import ray.train.collective
import torch
from ray.train import RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer

import ray_h5
from tests.bench.measure import OURS

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

__all__ = ["LOADER", "rates_of_workers"]

LOADER = "loader in the same worker"

Times = dict[str, list[tuple[float, float]]]
"""By contestant, for each epoch: its seconds, and the seconds to its first batch."""


def rates_of_workers(
    paths: Sequence[str], columns: Sequence[str], batch_size: int, reading: str, workers: int, turns: int
) -> Times:
    """Return the times of rank 0; the first turn, which imports and starts processes, comes first."""
    ds = ray_h5.read_h5(list(paths), columns=list(columns), shuffle=ray_h5.Shuffle(seed=0))
    with tempfile.TemporaryDirectory() as folder:
        found = Path(folder, "times.json")
        TorchTrainer(
            partial(_loop, list(paths), list(columns), batch_size, turns, str(found)),
            datasets={"train": ds},
            dataset_config=ray_h5.data_config(reading=reading, threads=1),
            scaling_config=ScalingConfig(num_workers=workers, resources_per_worker={"CPU": 0.5}),
            run_config=RunConfig(storage_path=folder),
        ).fit()
        times: Times = json.loads(found.read_text())
    return times


def _loop(paths: list[str], columns: list[str], batch_size: int, turns: int, path: str) -> None:
    torch.set_num_threads(1)
    context = ray.train.get_context()
    rank, ranks = context.get_world_rank(), context.get_world_size()
    options: dict[str, Any] = {"columns": columns, "shuffle": ray_h5.Shuffle(seed=0), "threads": 1, "kept_bytes": 0}
    loader = ray_h5.loader(paths, batch_size, **options, rank=rank, world_size=ranks)
    found: Times = {OURS: [], LOADER: []}
    for epoch in range(turns + 1):
        for name in (OURS, LOADER) if epoch % 2 else (LOADER, OURS):
            ray.train.collective.barrier()
            found[name].append(
                _timed(ray_h5.train_batches("train", epoch, batch_size=batch_size) if name == OURS else loader)
            )
    if rank == 0:
        Path(path).write_text(json.dumps(found))  # all workers are on this machine


def _timed(batches: Iterable[Any]) -> tuple[float, float]:
    began, first = time.perf_counter(), 0.0
    for _ in batches:
        first = first or time.perf_counter() - began
    return time.perf_counter() - began, first
