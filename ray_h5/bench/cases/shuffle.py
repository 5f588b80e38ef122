"""``ray-h5 bench shuffle``: the cost of a shuffled epoch against one in path order, and against Ray's shuffles."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import ray.data

import ray_h5
from ray_h5.bench.measure import OURS, Contest, Result, run_turns
from ray_h5.bench.session import ray_session
from ray_h5.bench.verify import count_rows
from ray_h5.bench.workloads import make_workload

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ray_h5.bench import BenchOptions

__all__ = ["bench_shuffle"]

_BATCH_SIZE = 64
_BUFFER_ROWS = 1000
_LEAST_RATIO = 1 / 1.1
_IMAGES = {
    "images 16 rows a chunk, none": 0,
    "images 128 rows a chunk, none": 1,
    "images 16 rows a chunk, gzip": 2,
    "images 128 rows a chunk, gzip": 3,
}
"""By case: the number of the file in the workload."""


def bench_shuffle(options: BenchOptions) -> list[Result]:
    """Measure shuffled epochs; a ratio of 1 against ``unshuffled`` means that shuffling costs nothing."""
    signals = make_workload("signals", options.folder, options.size)
    images = make_workload("images", options.folder, options.size)
    cases: dict[str, tuple[Sequence[str], list[str]]] = {"signals": (signals.paths, ["fhr_st", "target", "weight"])}
    cases |= {case: ([images.paths[number]], ["image_f4"]) for case, number in _IMAGES.items()}
    with ray_session(3 << 30):
        return [
            result
            for case, (paths, columns) in cases.items()
            for result in _bench_case(case, paths, columns, options.turns)
        ]


def _bench_case(case: str, paths: Sequence[str], columns: list[str], turns: int) -> list[Result]:
    plain = ray_h5.read_h5(paths, columns=columns)
    shuffled = ray_h5.read_h5(paths, columns=columns, shuffle=ray_h5.Shuffle(seed=0))
    rows = plain.count()
    contestants = {
        OURS: partial(_epoch, shuffled, rows),
        "unshuffled": partial(_epoch, plain, rows),
        "ray_random_shuffle": partial(_epoch, plain.random_shuffle(seed=0), rows),
        "ray_local_shuffle": partial(_epoch, plain, rows, _BUFFER_ROWS),
    }
    goals = {"unshuffled": _LEAST_RATIO, "ray_random_shuffle": None, "ray_local_shuffle": None}
    contest = Contest("shuffle", f"{case} epoch", run_turns(contestants, turns))
    return [contest.against(name, amount=rows, unit="rows/s", goal=goal) for name, goal in goals.items()]


def _epoch(dataset: ray.data.Dataset, rows: int, buffer_rows: int | None = None) -> None:
    count_rows(dataset.iter_torch_batches(batch_size=_BATCH_SIZE, local_shuffle_buffer_size=buffer_rows), rows)
