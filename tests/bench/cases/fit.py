"""Bench `fit`: fitting Standardize on a column of workload `signals`, against a plain pass over it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

import ray_h5
from ray_h5.ray_data.preprocessing.standardize import Standardize
from tests.bench.measure import OURS, Contest, Result, run_turns
from tests.bench.session import ray_session
from tests.bench.workloads import Workload, make_workload

if TYPE_CHECKING:
    import ray.data

    from tests.bench import BenchOptions

__all__ = ["bench_fit"]

_COLUMN = "fhr_st"
_LEAST_STORE_BYTES = 1 << 30
_GOAL = 1 / 1.2
_AXES = {"one mean": None, "a mean a channel": (0, 2), "a mean an element": 0}


def bench_fit(options: BenchOptions) -> list[Result]:
    """Measure fits over several axes against reading the same column into batches.

    Raises
    ------
    RuntimeError
        If Ray is already running in this process, or a fit differs from numpy's results.
    """
    workload = make_workload("signals", options.folder, options.size)
    epoch_bytes = workload.rows * workload.row_bytes((_COLUMN,))
    with ray_session(max(_LEAST_STORE_BYTES, 4 * epoch_bytes)):
        dataset = ray_h5.read_h5(list(workload.paths), columns=[_COLUMN])
        _verify(dataset)
        return [_fit(dataset, workload, case, axis, options.turns) for case, axis in _AXES.items()]


def _fit(
    dataset: ray.data.Dataset, workload: Workload, case: str, axis: tuple[int, ...] | int | None, turns: int
) -> Result:
    contestants = {
        OURS: lambda: Standardize([_COLUMN], axis=axis).fit(dataset),
        "plain pass": lambda: _pass_over(dataset),
    }
    seconds = run_turns(contestants, turns)
    return Contest("fit", f"signals {case}", seconds).against(
        "plain pass", amount=workload.rows, unit="rows/s", goal=_GOAL
    )


def _pass_over(dataset: ray.data.Dataset) -> int:
    return sum(len(batch[_COLUMN]) for batch in dataset.iter_batches(batch_size=None))


def _verify(dataset: ray.data.Dataset) -> None:
    rows = np.concatenate([batch[_COLUMN] for batch in dataset.iter_batches(batch_size=None)]).astype(np.float64)
    for axis in _AXES.values():
        scaler = Standardize([_COLUMN], axis=axis).fit(dataset).scalers[_COLUMN]
        expected = rows.mean(axis=axis, keepdims=True)[0], rows.std(axis=axis, keepdims=True)[0]
        if not all(
            np.allclose(ours, theirs, 1e-9)
            for ours, theirs in zip((scaler.mean, scaler.moments.std()), expected, strict=True)
        ):
            raise RuntimeError(f"the fit over axis {axis} differs from numpy's mean and standard deviation")
