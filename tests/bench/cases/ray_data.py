"""Bench `ray`: epochs through Ray Data on workload `signals`.

Every contestant makes its dataset or loader before the timing and is timed over whole epochs of torch batches, as in a
training loop with many epochs. `signals shuffled` is compared with our `loader` in this process, one thread, with
nothing kept on either side. `Ray alone` is plain Ray whose tasks read nothing: each maps a file of Arrow, which is a
block of the same rows. It is the most that Ray gives, whatever the files are.
The bench starts a Ray of its own, see `ray_session`.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ray
import ray.data

import ray_h5
from ray_h5.torch_data import loader
from tests.bench.baselines.ray_reads import ray_arrow, ray_naive, ray_parquet, write_arrow, write_parquet
from tests.bench.baselines.torch_loaders import LARGE_CHUNK_CACHE, plain_loader
from tests.bench.measure import OURS, Contest, Result, run_turns
from tests.bench.session import ray_session
from tests.bench.verify import count_rows, verify_rows
from tests.bench.workloads import Workload, cached_folder, make_workload

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tests.bench import BenchOptions

__all__ = ["bench_ray"]

_COLUMNS = ("fhr_st", "target", "weight")
_BATCH_SIZE = 64
_LOADER_WORKERS = 2
_LEAST_STORE_BYTES = 1 << 30
_GOALS = {"ray_naive": 3.0, "ray_parquet": 5.0, "plain_loader(2)": 2.0, "ray_materialized": 0.6}


def bench_ray(options: BenchOptions) -> list[Result]:
    """Measure epochs against plain Ray and plain PyTorch, and the time to the first batch.

    Raises
    ------
    RuntimeError
        If Ray is already running in this process, or an epoch does not deliver each row once.
    """
    workload = make_workload("signals", options.folder, options.size)
    theirs = plain_loader(
        workload.paths,
        _COLUMNS,
        batch_size=_BATCH_SIZE,
        num_workers=_LOADER_WORKERS,
        chunk_cache_bytes=LARGE_CHUNK_CACHE,
    )
    # This forks its workers, while this process has no threads of Ray.
    count_rows(theirs, workload.rows)
    epoch_bytes = workload.rows * workload.row_bytes(_COLUMNS)
    with ray_session(max(_LEAST_STORE_BYTES, 4 * epoch_bytes)):
        # The name has that of the workload in it, with version and seed.
        parquet = cached_folder(
            options.folder,
            f"{Path(workload.paths[0]).parent.name}-parquet-v1",
            partial(write_parquet, workload.paths, _COLUMNS),
        )
        ours = _read_ours(workload)
        verify_rows(workload.paths, _COLUMNS, _batches(ours))
        datasets = {
            OURS: ours,
            "ray_naive": ray_naive(workload.paths, _COLUMNS),
            "ray_parquet": ray_parquet(parquet),
            "ray_materialized": _read_ours(workload).materialize(),
        }
        contestants = {name: partial(_epoch, dataset, workload.rows) for name, dataset in datasets.items()}
        contestants["plain_loader(2)"] = partial(count_rows, theirs, workload.rows)
        epochs = Contest("ray", "signals epoch", run_turns(contestants, options.turns))
        shuffled = _shuffled(workload, options)
        first = run_turns({OURS: partial(_first_batch, workload)}, options.turns)
    return [
        *(epochs.against(name, amount=workload.rows, unit="rows/s", goal=goal) for name, goal in _GOALS.items()),
        *shuffled,
        Contest("ray", "signals first batch", first).within(0.5),
    ]


def _shuffled(workload: Workload, options: BenchOptions) -> list[Result]:
    paths, columns = list(workload.paths), list(_COLUMNS)
    read = partial(ray_h5.read_h5, paths, columns=columns, shuffle=ray_h5.Shuffle(seed=0))
    ours = read()
    in_process = loader(paths, _BATCH_SIZE, columns=columns, threads=1, kept_bytes=0)
    # Of a dataset of its own: Ray keeps the blocks that `to_arrow_refs` returns.
    name = f"{Path(paths[0]).parent.name}-arrow-v1"
    ready = ray_arrow(cached_folder(options.folder, name, lambda folder: write_arrow(read(), folder)))
    contestants = {
        OURS: partial(_epoch, ours, workload.rows),
        "loader": partial(count_rows, in_process, workload.rows),
        "ray_arrow": partial(_epoch, ready, workload.rows),
    }
    seconds = run_turns(contestants, options.turns, warmups=3)
    contest = Contest("ray", "signals shuffled", seconds)
    alone = Contest("ray", "Ray alone", {OURS: seconds["ray_arrow"], "loader": seconds["loader"]})
    return [
        contest.against("loader", amount=workload.rows, unit="rows/s", goal=0.95),
        contest.against("ray_arrow", amount=workload.rows, unit="rows/s", goal=0.95),
        alone.against("loader", amount=workload.rows, unit="rows/s", goal=None),
    ]


def _read_ours(workload: Workload) -> ray.data.Dataset:
    return ray_h5.read_h5(list(workload.paths), columns=list(_COLUMNS))


def _batches(dataset: ray.data.Dataset) -> Iterable[dict[str, Any]]:
    batches: Iterable[dict[str, Any]] = dataset.iter_torch_batches(batch_size=_BATCH_SIZE)
    return batches


def _epoch(dataset: ray.data.Dataset, rows: int) -> None:
    count_rows(_batches(dataset), rows)


def _first_batch(workload: Workload) -> object:
    """Run from the call of ``read_h5`` to the first batch."""
    batches = iter(_batches(_read_ours(workload)))
    # Returned with the batch, so that the rest of the execution ends outside the timed part.
    return next(batches), batches
