"""Bench `train`: how long the workers of a `TorchTrainer` wait for batches, four of them on one node.

A step sleeps, as a program does that waits for its GPU. Each worker reads batches of 64 of `signals`, shuffled, with
nothing kept, by `train_batches`; figures are those of rank 0. `waiting` is the share of an epoch after its first batch;
the first batch, which starts an execution of Ray, is a line of its own. The first epoch starts processes, and is not
counted.

Then the rows a second of `train_batches`, read in tasks of Ray and in the workers, against a `loader` of one thread in
the same workers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from joblib import cpu_count
from ray.train import ScalingConfig

from tests.bench.measure import OURS, Contest, Result, of_figures
from tests.bench.session import ray_session
from tests.bench.training.rates import LOADER, rates_of_workers
from tests.bench.training.steps import Sleep
from tests.bench.training.workers import waits_of_workers
from tests.bench.workloads import make_workload

if TYPE_CHECKING:
    from tests.bench import BenchOptions

__all__ = ["bench_train"]

_COLUMNS = ("fhr_st", "target", "weight")
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
    # Half of the CPUs are left for reading, on a machine of any size.
    scaling = ScalingConfig(num_workers=_WORKERS, resources_per_worker={"CPU": cpu_count() / 2 / _WORKERS})
    with ray_session(1 << 30):
        found = waits_of_workers(workload.paths, _COLUMNS, _BATCH_SIZE, Sleep, list(_STEPS_S), options.turns, scaling)
        rates = {
            (reading, workers): rates_of_workers(workload.paths, _COLUMNS, _BATCH_SIZE, reading, workers, options.turns)
            for workers in (1, 2)
            for reading in ("tasks", "workers")
        }
    results = []
    for step_s, waits in found.items():
        case = f"{_WORKERS} workers, steps of {1000 * step_s:g} ms"
        first, shares = zip(*waits, strict=True)
        results.append(of_figures("train", f"{case}: waiting", "share", shares, most=_STEPS_S[step_s]))
        results.append(of_figures("train", f"{case}: first batch", "s", first))
    for (reading, workers), times in rates.items():
        case, goal = f"{workers} workers, read in {reading}", 0.95 if reading == "workers" else None
        seconds = {name: [took for took, _ in each[1:]] for name, each in times.items()}
        amount = workload.rows // workers
        results.append(Contest("train", case, seconds).against(LOADER, amount=amount, unit="rows/s", goal=goal))
        first, *later = [first for _, first in times[OURS]]
        limits = (0.5, 0.05) if reading == "workers" else (None, None)
        results.append(of_figures("train", f"{case}: first batch of the first epoch", "s", [first], most=limits[0]))
        results.append(of_figures("train", f"{case}: first batch of later ones", "s", later, most=limits[1]))
    return results
