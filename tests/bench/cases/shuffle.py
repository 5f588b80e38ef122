"""Bench `shuffle`: the cost of a shuffled epoch against one in path order, and against Ray's shuffles.

The cases `loader` and `DataLoader` are plain PyTorch: a `loader` with its default threads, and an `H5Dataset` with the
same order in a `DataLoader` without workers. Nothing is kept from epoch to epoch. The cases `2 ranks` to `8 ranks` read
the shares of all ranks of a node, one after the other, against one rank that reads all. Chunks are decoded once, unless
there are fewer windows than ranks, as at small sizes.
"""

from __future__ import annotations

import itertools
from functools import partial
from typing import TYPE_CHECKING, Any

import ray.data
from torch.utils.data import DataLoader

import ray_h5
from ray_h5.torch_data import H5Dataset, OrderSampler, loader
from tests.bench.measure import OURS, Contest, Result, run_turns
from tests.bench.session import ray_session
from tests.bench.verify import count_rows
from tests.bench.workloads import make_workload

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from tests.bench import BenchOptions

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

_GZIP = [case for case in _IMAGES if case.endswith("gzip")]


def bench_shuffle(options: BenchOptions) -> list[Result]:
    """Measure shuffled epochs; a ratio of 1 against ``unshuffled`` means that shuffling costs nothing."""
    signals = make_workload("signals", options.folder, options.size)
    images = make_workload("images", options.folder, options.size)
    cases: dict[str, tuple[Sequence[str], list[str]]] = {"signals": (signals.paths, ["fhr_st", "target", "weight"])}
    cases |= {case: ([images.paths[number]], ["image_f4"]) for case, number in _IMAGES.items()}
    results = [
        result
        for case, (paths, columns) in cases.items()
        for name, make, goal in (("loader", _loader, _LEAST_RATIO), ("DataLoader", _data_loader, None))
        for result in _in_torch(f"{name}, {case}", make, paths, columns, options.turns, goal)
    ]
    results += [
        _of_ranks(case, [images.paths[_IMAGES[case]]], ranks, options.turns) for case in _GZIP for ranks in (2, 4, 8)
    ]
    with ray_session(3 << 30):
        return results + [
            result
            for case, (paths, columns) in cases.items()
            for result in _bench_case(case, paths, columns, options.turns)
        ]


def _in_torch(
    case: str,
    make: Callable[..., Iterable[Any]],
    paths: Sequence[str],
    columns: list[str],
    turns: int,
    goal: float | None,
) -> list[Result]:
    epochs = {OURS: make(paths, columns, "auto"), "unshuffled": make(paths, columns, shuffle=False)}
    rows = sum(len(batch[columns[0]]) for batch in epochs["unshuffled"])
    contest = Contest(
        "shuffle", case, run_turns({name: partial(count_rows, each, rows) for name, each in epochs.items()}, turns)
    )
    return [contest.against("unshuffled", amount=rows, unit="rows/s", goal=goal)]


def _of_ranks(case: str, paths: Sequence[str], ranks: int, turns: int) -> Result:
    def shares(world_size: int) -> list[Iterable[Any]]:
        options: dict[str, Any] = {"columns": ["image_f4"], "shuffle": "chunks", "kept_bytes": 0}
        return [loader(paths, _BATCH_SIZE, **options, rank=rank, world_size=world_size) for rank in range(world_size)]

    of_ranks, whole = shares(ranks), shares(1)
    rows = sum(len(batch["image_f4"]) for each in of_ranks for batch in each)
    contestants = {
        OURS: lambda: count_rows(itertools.chain.from_iterable(of_ranks), rows),
        "one rank": lambda: [count_rows(each, len(each.dataset)) for each in whole],  # type: ignore[attr-defined]
    }
    contest = Contest("shuffle", f"{ranks} ranks, {case}", run_turns(contestants, turns))
    return contest.against("one rank", amount=rows, unit="rows/s", goal=None)


def _loader(paths: Sequence[str], columns: list[str], shuffle: str | bool) -> Iterable[Any]:
    return loader(list(paths), _BATCH_SIZE, columns=columns, shuffle=shuffle, kept_bytes=0)


def _data_loader(paths: Sequence[str], columns: list[str], shuffle: str | bool) -> Iterable[Any]:
    dataset = H5Dataset(list(paths), columns, kept_bytes=0)
    return DataLoader(dataset, _BATCH_SIZE, sampler=OrderSampler(dataset, shuffle=shuffle, run_length=_BATCH_SIZE))


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
