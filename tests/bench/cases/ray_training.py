"""Benches of epochs through Ray: reading, filters, draws, fits, and the batches of a `TorchTrainer`.

Every contestant makes its dataset or loader before the timing and is timed over whole epochs of torch batches of 64.
"""

from __future__ import annotations

import json
import statistics
import tempfile
import time
from collections.abc import Generator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow.compute as pc
from joblib import cpu_count

import ray_h5
from ray_h5.index.file_options import FileOptions
from ray_h5.plan.read_plan import make_plan
from ray_h5.ray_data.preprocessing.standardize import Standardize
from tests.bench.baselines.epochs import (
    count_rows,
    ray_batches,
    ray_naive,
    ray_session,
    verify_rows,
    write_parquet,
)
from tests.bench.cases.planning import COLUMNS, peak_memory, synthetic_index
from tests.bench.files import SIGNALS, cached_folder, make_workload
from tests.bench.measure import OURS, Case, Result, compared, of_figures

if TYPE_CHECKING:
    from tests.bench import BenchOptions

Cases = Generator[Case | Result, Any, None]

_IN_WORKER = "loader in the same worker"


def bench_ray(options: BenchOptions) -> Cases:
    """Measure epochs of `signals` against plain Ray, and the time to the first batch.

    `loader` has one thread and keeps nothing.
    """
    made = make_workload("signals", options.folder, options.size)
    paths, columns, rows = list(made.paths), list(SIGNALS), made.rows
    folder = Path(paths[0]).parent.name
    read = partial(ray_h5.read_h5, paths, columns=columns)
    with ray_session(4 * rows * made.row_bytes(SIGNALS)):
        import ray.data

        parquet = cached_folder(options.folder, f"{folder}-parquet-v1", partial(write_parquet, paths, columns))
        ours = read()
        verify_rows(paths, columns, ours.iter_torch_batches(batch_size=64))
        datasets = {
            OURS: ours,
            "ray_naive": ray_naive(paths, columns),
            "ray_parquet": ray.data.read_parquet(parquet),
        }
        contestants = {name: partial(ray_batches, dataset, rows) for name, dataset in datasets.items()}
        goals = {"ray_naive": 8.0, "ray_parquet": 15.0}
        yield Case("signals epoch", paths, contestants, rows, "rows/s", goals)
        in_process = ray_h5.loader(paths, 64, columns=columns, threads=1, kept_bytes=0)
        ours = read(shuffle=ray_h5.Shuffle(seed=0))
        contestants = {
            OURS: partial(ray_batches, ours, rows),
            "loader(ds)": partial(count_rows, ray_h5.loader(ours, 64, threads=1), rows),
            "loader": partial(count_rows, in_process, rows),
        }
        shuffled = {("loader(ds)", "loader"): 0.95, "loader": None}
        yield Case("signals shuffled", paths, contestants, rows, "rows/s", shuffled, warmups=3)
        yield Case("signals first batch", paths, {OURS: partial(_first_batch, read)}, 1, "s", {"-": 0.5})


def _first_batch(read: Any) -> object:
    batches = iter(read().iter_torch_batches(batch_size=64))
    # Returned with the batch, so that the rest of the execution ends outside the timed part.
    return next(batches), batches


def bench_filter(options: BenchOptions) -> Cases:
    """Measure epochs of all rows, a tenth and a hundredth, against filtering after the reading.

    The selected rows are neighbours, such as the recordings of some patients; `scattered` ones are in all chunks.
    """
    cases = {"signals": (list(SIGNALS), "guid"), "wide": (["vector", "label"], "subject")}
    with ray_session(2 << 30):
        for name, (columns, key) in cases.items():
            made = make_workload(name, options.folder, options.size)
            values = FileOptions.of(made.paths).index([key]).values([key])[key].unique().to_pylist()
            criteria: dict[str, tuple[str, Any, Any]] = {}  # a column, what is wanted of it, and as pyarrow writes it
            for share in (1.0, 0.1, 0.01):
                some = values[: max(1, round(share * len(values)))]
                criteria[f"{share:.0%}"] = key, some, pc.field(key).isin(some)
            if name == "wide":
                criteria["1% scattered"] = "quality", ray_h5.between(None, 1 / 128), pc.field("quality") <= 1 / 128
            full = 0.0
            for label, (column, wanted, expression) in criteria.items():
                chosen = ray_h5.where(**{column: wanted})
                chosen_rows = ray_h5.read_h5(made.paths, columns=columns).filter(expr=chosen)
                rows = chosen_rows.count()
                every = ray_h5.read_h5(made.paths, columns=[*columns, column])
                keep = partial(_keep, expression, columns)
                post_filter = every.map_batches(keep, batch_format="pyarrow", zero_copy_batch=True)
                contestants = {
                    OURS: partial(ray_batches, chosen_rows, rows),
                    "post_filter": partial(ray_batches, post_filter, rows),
                }
                goals = {"post_filter": None, "-": 0.05 * full + 0.3 if label == "1%" else None}
                seconds = yield Case(f"{name} {label} epoch", made.paths, contestants, rows, "rows/s", goals)
                full = full or statistics.median(seconds[OURS])


def _keep(expression: Any, columns: list[str], table: Any) -> Any:
    return table.filter(expression).select(columns)


def bench_draws(options: BenchOptions) -> Cases:
    """Measure epochs and plans with weights and lengths; 1 against ``each row once`` means that they cost nothing."""
    # First: the peak of memory of a process never falls.
    index = synthetic_index(round(10**8 * options.size), 1)
    rng = np.random.default_rng(0)
    for name, draws in (
        ("by length", {"by_length": rng.integers(10, 1000, index.num_rows, np.int32)}),
        ("with weights", {"weights": rng.random(index.num_rows, np.float32)}),
    ):
        plan = partial(make_plan, index, list(COLUMNS.values()), shuffle=ray_h5.Shuffle("rows", **draws))
        yield Case(f"10^8 rows {name}, plan", [], {OURS: plan}, index.num_rows, "rows/s", {"-": 10.0})
        yield peak_memory("draws", f"10^8 rows {name}")
    del index, draws, plan
    signals = make_workload("signals", options.folder, options.size)
    # Weights that differ little: the same rows come about as often as without weights.
    some, lengths = 1 + rng.random(signals.rows), rng.integers(10, 1000, signals.rows)
    cases: dict[str, dict[str, Any]] = {
        "weights": {"weights": some},
        "balance": {"weights": ray_h5.balance("epoch")},
        "by length": {"by_length": lengths},
    }
    read = partial(ray_h5.read_h5, list(signals.paths), columns=["fhr_st"])
    with ray_session(3 << 30):
        once = partial(ray_batches, read(shuffle=ray_h5.Shuffle("rows")), signals.rows)
        for name, draws in cases.items():
            ours = partial(ray_batches, read(shuffle=ray_h5.Shuffle("rows", **draws)), signals.rows)
            contestants = {OURS: ours, "each row once": once}
            goals = {"each row once": 1 / 1.05}
            yield Case(f"signals, {name} epoch", signals.paths, contestants, signals.rows, "rows/s", goals)


def bench_train(options: BenchOptions) -> Cases:
    """Measure the batches of `signals` that the workers of a `TorchTrainer` get by `train_batches`; rank 0 is timed.

    Rows a second are those of batches read in tasks of Ray, and in the workers, against a `loader` of one thread in the
    same workers, over the same dataset. `waiting` is the share of an epoch after its first batch, of four workers on
    one node whose steps sleep, as a program does that waits for its GPU; the first epoch is not counted there.
    """
    made = make_workload("signals", options.folder, options.size)
    with ray_session():
        for workers in (1, 2):
            for reading in ("tasks", "workers"):
                for what, prepared in (("", False), (", standardized and masked", True)):
                    times = _rates(made.paths, reading, workers, options.turns, prepared=prepared)
                    case = f"{workers} workers, read in {reading}{what}"
                    yield from _rate_results(case, times, made.rows // workers, reading)
        goals = {0.02: 0.05, 0.005: None}
        waits = signal_waits(made.paths, _sleeping, list(goals), options.turns, 4)
        for (step_s, goal), epochs in zip(goals.items(), waits, strict=True):
            first, shares = zip(*epochs, strict=True)
            case = f"4 workers, steps of {1000 * step_s:g} ms"
            yield of_figures("train", f"{case}: waiting", "share", shares, most=goal)
            yield of_figures("train", f"{case}: first batch", "s", first)


def _rate_results(case: str, times: dict[str, list[list[float]]], rows: int, reading: str) -> list[Result]:
    seconds = {name: [took for took, _ in epochs[1:]] for name, epochs in times.items()}
    goals = (0.95, 0.5, 0.05) if reading == "workers" else (None, None, None)
    first, *later = [first for _, first in times[OURS]]
    baselines = [name for name in times if name != OURS]
    return [
        *(compared("train", case, seconds, name, rows, "rows/s", goals[0]) for name in baselines),
        of_figures("train", f"{case}: first batch of the first epoch", "s", [first], most=goals[1]),
        of_figures("train", f"{case}: first batch of later ones", "s", later, most=goals[2]),
    ]


def _rates(
    paths: Sequence[str], reading: str, workers: int, turns: int, *, prepared: bool
) -> dict[str, list[list[float]]]:
    """Return seconds, and those to the first batch, of each epoch of rank 0; the first one imports."""
    options: dict[str, Any] = {"columns": list(SIGNALS), "shuffle": ray_h5.Shuffle(seed=0)}
    ds = ray_h5.read_h5(list(paths), **options, include_row_keys=prepared)  # masks are drawn by row keys
    scale = Standardize(["fhr_st"], axis=(0, 2)).fit(ds) if prepared else None
    config = ray_h5.data_config(reading=reading, threads=1)
    loop = partial(_rate_loop, list(paths), scale, turns)
    return _trained(loop, ds if scale is None else _prepared(ds, scale), config, workers=workers, cpus=0.5)


def _prepared(ds: Any, scale: Standardize) -> Any:
    masks = ray_h5.SpecAugment("fhr_st", time_mask_param=40, freq_mask_param=8)
    return scale.transform(ds).map_batches(masks)


def _rate_loop(paths: list[str], scale: Standardize | None, turns: int, out: str) -> None:
    import ray.train.collective
    import torch

    torch.set_num_threads(1)
    context = ray.train.get_context()
    rank, ranks = context.get_world_rank(), context.get_world_size()
    options: dict[str, Any] = {"columns": list(SIGNALS), "shuffle": ray_h5.Shuffle(seed=0)}
    plain = ray_h5.loader(paths, 64, **options, threads=1, kept_bytes=0, rank=rank, world_size=ranks)
    epochs: dict[str, Any] = {OURS: lambda epoch: ray_h5.train_batches("train", epoch, batch_size=64)}
    if scale is None:
        epochs[_IN_WORKER] = lambda _: plain
    else:
        ds = _prepared(ray_h5.read_h5(paths, **options, include_row_keys=True), scale)
        prepared = ray_h5.loader(ds, 64, threads=1, rank=rank, world_size=ranks)
        epochs[_IN_WORKER] = lambda _: prepared
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in epochs}
    for epoch in range(turns + 1):
        for name in list(epochs)[:: 1 if epoch % 2 else -1]:
            ray.train.collective.barrier()
            began, first = time.perf_counter(), 0.0
            for _ in epochs[name](epoch):
                first = first or time.perf_counter() - began
            times[name].append((time.perf_counter() - began, first))
    _tell(times, out)


def _sleeping(seconds: float, _: Any) -> Any:
    return lambda _: time.sleep(seconds)


def signal_waits(
    paths: Sequence[str], make_step: Any, steps_s: Sequence[float], turns: int, workers: int, *, gpu: bool = False
) -> list[list[tuple[float, float]]]:
    """Return what `waits_of` returns of each epoch of rank 0, by kind of step; the first epoch is not counted."""
    tail: dict[str, Any] = {"tail": "pad", "tail_rows": workers * 64}
    ds = ray_h5.read_h5(list(paths), columns=list(SIGNALS), shuffle=ray_h5.Shuffle(seed=0), **tail)
    cpus = None if gpu else cpu_count() / 2 / workers  # half of the CPUs are left for reading
    loop = partial(_waiting_loop, make_step, list(steps_s), turns)
    return _trained(loop, ds, ray_h5.data_config(), workers=workers, cpus=cpus, gpu=gpu)


def _waiting_loop(make_step: Any, steps_s: Sequence[float], turns: int, out: str) -> None:
    import ray.train.torch

    device = ray.train.torch.get_device()
    waits: list[list[tuple[float, float]]] = []
    for number, seconds in enumerate(steps_s):
        step = make_step(seconds, device)
        epochs = range(number * (turns + 1), (number + 1) * (turns + 1))
        every = [waits_of(ray_h5.train_batches("train", epoch, batch_size=64), step, device) for epoch in epochs]
        waits.append(every[1:])
    _tell(waits, out)


def waits_of(batches: Any, step: Any, device: Any) -> tuple[float, float]:
    """Take the steps of an epoch; return the seconds to its first batch, and the share of the rest that it waits.

    A batch is there when its copy to the device has ended.
    """
    first = waited = 0.0
    asked = began = time.perf_counter()
    for batch in batches:
        synchronize(device)
        got = time.perf_counter()
        if first:
            waited += got - asked
        else:
            first, began = got - asked, got
        step(batch)
        asked = time.perf_counter()
    ended = time.perf_counter()
    return first, (waited + ended - asked) / ((ended - began) or 1)


def synchronize(device: Any) -> None:
    """Wait for what the current stream of a GPU has to do."""
    if device.type == "cuda":
        import torch

        torch.cuda.current_stream(device).synchronize()


def _trained(loop: Any, ds: Any, config: Any, *, workers: int, cpus: float | None, gpu: bool = False) -> Any:
    """Return what the loop of rank 0 tells of a trainer."""
    from ray.train import RunConfig, ScalingConfig
    from ray.train.torch import TorchTrainer

    resources = None if cpus is None else {"CPU": cpus}
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder, "figures.json")
        TorchTrainer(
            partial(loop, str(out)),
            datasets={"train": ds},
            dataset_config=config,
            scaling_config=ScalingConfig(num_workers=workers, resources_per_worker=resources, use_gpu=gpu),
            run_config=RunConfig(storage_path=folder),
        ).fit()
        return json.loads(out.read_text())


def _tell(figures: Any, out: str) -> None:
    import ray.train

    if ray.train.get_context().get_world_rank() == 0:
        Path(out).write_text(json.dumps(figures))  # all workers are on this machine
