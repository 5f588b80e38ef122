"""Bench `draws`: the cost of weights and lengths against an epoch of each row once, and of their planning."""

from __future__ import annotations

import os
from functools import partial
from typing import TYPE_CHECKING

import h5py
import numpy as np

import ray_h5
from ray_h5.index.row_index import build_index
from ray_h5.order.draws.shuffle import Shuffle
from ray_h5.order.draws.weights import balance
from ray_h5.order.read_plan import ReadPlan, make_plan
from tests.bench.cases.plan import COLUMNS, MOST_SECONDS, memory, synthetic_index
from tests.bench.measure import OURS, Contest, Result, run_turns
from tests.bench.session import ray_session
from tests.bench.verify import count_rows
from tests.bench.workloads import cached_folder, make_workload

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.bench import BenchOptions

__all__ = ["bench_draws"]

_BATCH_SIZE = 64
_LEAST_RATIO = 1 / 1.05
_MOST_SECONDS_OF_BALANCE = 2.0


def bench_draws(options: BenchOptions) -> list[Result]:
    """Measure epochs with weights; a ratio of 1 against ``each row once`` means that weights cost nothing."""
    # First: the peak of memory of a process never falls.
    return [*_plan_weights(options), *_plan_balance(options), *_epochs(options)]


def _plan_weights(options: BenchOptions) -> list[Result]:
    index = synthetic_index(round(10**8 * options.size), 1)
    weights = np.random.default_rng(0).random(index.num_rows, np.float32)

    def plan() -> ReadPlan:
        return make_plan(index, list(COLUMNS.values()), shuffle=Shuffle("rows", weights=weights))

    lengths = np.random.default_rng(0).integers(10, 1000, index.num_rows, np.int32)

    def by_length() -> ReadPlan:
        return make_plan(index, list(COLUMNS.values()), shuffle=Shuffle("rows", by_length=lengths))

    found = []
    for case, planned in (("10^8 rows by length", by_length), ("10^8 rows with weights", plan)):  # small memory first
        found.append(Contest("draws", f"{case}, plan", run_turns({OURS: planned}, options.turns)).within(MOST_SECONDS))
        found.append(memory(f"{case}, memory of the process", "draws"))
    return found


def _plan_balance(options: BenchOptions) -> list[Result]:
    rows = round(10**7 * options.size)

    def write(folder: str) -> None:
        with h5py.File(os.path.join(folder, "labels.h5"), "w") as file:
            file["label"] = np.random.default_rng(0).integers(0, 10, rows).astype("u1")

    path = os.path.join(cached_folder(options.folder, f"labels-v1-size{options.size:g}", write), "labels.h5")

    def plan() -> None:
        index = build_index([path])
        make_plan(index, list(index.columns.values()), shuffle=Shuffle(weights=balance("label")))

    contest = Contest("draws", "10^7 rows with balance, index and plan", run_turns({OURS: plan}, options.turns))
    return [contest.within(_MOST_SECONDS_OF_BALANCE)]


def _epochs(options: BenchOptions) -> list[Result]:
    signals = make_workload("signals", options.folder, options.size)
    images = make_workload("images", options.folder, options.size)
    rng = np.random.default_rng(0)
    # Weights that differ little: the same rows come about as often as without weights.
    some = 1 + rng.random(signals.rows)
    found = []
    with ray_session(3 << 30):
        for case, weights in (("weights", some), ("balance", balance("epoch"))):
            weighted, plain = Shuffle("rows", weights=weights), Shuffle("rows")
            found.append(_contest(f"signals, {case}", signals.paths, ["fhr_st"], weighted, plain, options.turns))
        by_length, plain = Shuffle("rows", by_length=rng.integers(10, 1000, signals.rows)), Shuffle("rows")
        found.append(_contest("signals, by length", signals.paths, ["fhr_st"], by_length, plain, options.turns))
        for number, name in ((1, "none"), (3, "gzip")):
            paths = [images.paths[number]]
            weights = 1 + rng.random(images.rows // len(images.paths))
            case = f"images 128 rows a chunk, {name}, unit=chunks"
            weighted, plain = Shuffle("chunks", weights=weights), Shuffle("chunks")
            found.append(_contest(case, paths, ["image_f4"], weighted, plain, options.turns))
    return found


def _contest(
    case: str, paths: Sequence[str], columns: list[str], weighted: Shuffle, plain: Shuffle, turns: int
) -> Result:
    shuffles = {OURS: weighted, "each row once": plain}
    datasets = {name: ray_h5.read_h5(paths, columns=columns, shuffle=each) for name, each in shuffles.items()}
    rows = datasets[OURS].count()

    def epoch(name: str) -> None:
        count_rows(datasets[name].iter_torch_batches(batch_size=_BATCH_SIZE), rows)

    seconds = run_turns({name: partial(epoch, name) for name in datasets}, turns)
    return Contest("draws", f"{case} epoch", seconds).against(
        "each row once", amount=rows, unit="rows/s", goal=_LEAST_RATIO
    )
