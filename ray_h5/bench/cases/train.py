"""``ray-h5 bench train``: how long the workers of a `TorchTrainer` wait for batches, four of them on one node.

A step sleeps, as a program does that waits for its GPU. Each worker reads batches of 64 of `signals`, shuffled, with
nothing kept, by `train_batches`; figures are those of rank 0. `waiting` is the share of an epoch after its first batch;
the first batch, which starts an execution of Ray, is a line of its own. The first epoch starts processes, and is not
counted.
"""

from __future__ import annotations

import json
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import ray.train
from joblib import cpu_count
from ray.train import RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer

import ray_h5
from ray_h5.bench.measure import Result
from ray_h5.bench.session import ray_session
from ray_h5.bench.workloads import make_workload

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ray_h5.bench import BenchOptions

__all__ = ["bench_train"]

_BATCH_SIZE = 64
_WORKERS = 4
_STEPS_S = {0.02: 0.05, 0.005: None}
"""Seconds of a step, and the greatest share of an epoch that may be waiting."""


def bench_train(options: BenchOptions) -> list[Result]:
    """Measure the share of an epoch that workers wait, and the time to its first batch.

    Raises
    ------
    RuntimeError
        If Ray is already running in this process.
    """
    workload = make_workload("signals", options.folder, options.size)
    results = []
    with ray_session(1 << 30), tempfile.TemporaryDirectory() as folder:
        for step_s, goal in _STEPS_S.items():
            found = _epochs(workload.paths, step_s, options.turns, folder)
            case = f"{_WORKERS} workers, steps of {1000 * step_s:g} ms"
            results.append(_result(f"{case}: waiting", "share", found["waiting"], goal))
            results.append(_result(f"{case}: first batch", "s", found["first"], None))
    return results


def _epochs(paths: Sequence[str], step_s: float, turns: int, folder: str) -> dict[str, list[float]]:
    """Return the share of waiting, and the seconds to the first batch, of each epoch."""
    ds = ray_h5.read_h5(
        list(paths),
        columns=["fhr_st", "target", "weight"],
        shuffle=ray_h5.Shuffle(seed=0),
        name="train",
        tail="pad",
        tail_rows=_WORKERS * _BATCH_SIZE,
    )
    # Half of the CPUs are left for reading, on a machine of any size.
    share = cpu_count() / 2 / _WORKERS
    found = Path(folder, f"{step_s}.json")
    trainer = TorchTrainer(
        partial(_loop, step_s, turns, str(found)),
        datasets={"train": ds},
        dataset_config=ray_h5.data_config(),
        scaling_config=ScalingConfig(num_workers=_WORKERS, resources_per_worker={"CPU": share}),
        run_config=RunConfig(storage_path=folder),
    )
    trainer.fit()
    return dict(json.loads(found.read_text()))


def _loop(step_s: float, turns: int, path: str) -> None:
    found: dict[str, list[float]] = {"waiting": [], "first": []}
    for epoch in range(turns + 1):
        asked = time.perf_counter()
        first, waited, began = 0.0, 0.0, asked
        for _ in ray_h5.train_batches("train", epoch, batch_size=_BATCH_SIZE):
            got = time.perf_counter()
            if first:
                waited += got - asked
            else:
                first, began = got - asked, got
            time.sleep(step_s)
            asked = time.perf_counter()
        if epoch:
            found["waiting"].append(waited / (time.perf_counter() - began))
            found["first"].append(first)
    if ray.train.get_context().get_world_rank() == 0:
        Path(path).write_text(json.dumps(found))  # all workers are on this machine


def _result(case: str, unit: str, values: list[float], goal: float | None) -> Result:
    middle = sorted(values)[len(values) // 2]
    ok = None if goal is None else middle <= goal
    return Result("train", case, "-", unit, middle, None, None, (min(values), max(values)), goal, ok)
