"""Bench `scaling`: rows/s of one `loader` by the number of its threads, and of its worker processes.

Shuffled batches of 64 with nothing kept, warm, up to as many threads and workers as this process has CPUs: `signals`
(one row a chunk, stored as it is), `images` by gzip and by Zstandard (16 rows a chunk), JPEGs that are decoded, and
sparse rows of `cells`. Each is compared with one thread. Workers take time to start, so an epoch is timed from its
first batch on, for threads too.
"""

from __future__ import annotations

import os
import time
from functools import partial
from typing import TYPE_CHECKING

import torch
from joblib import cpu_count

from ray_h5.columns.user_columns import csr
from ray_h5.torch_data import loader
from ray_h5.transforms.decode_image import DecodeImage
from tests.bench.cases.images import jpeg_file
from tests.bench.measure import OURS, Contest, Result, turn_order
from tests.bench.recipes import PACKED
from tests.bench.sparse_workloads import make_cells
from tests.bench.workloads import make_workload

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from ray_h5.torch_data.h5_data_loader import H5DataLoader
    from tests.bench import BenchOptions

__all__ = ["bench_scaling"]

_BATCH_SIZE = 64
_CELLS_SIZE = 0.2
_ONE = "1 thread"
_GOAL_THREADS, _GOAL = 16, 10.0


def bench_scaling(options: BenchOptions) -> list[Result]:
    """Measure loaders with more and more threads, and more and more workers.

    Raises
    ------
    RuntimeError
        If an epoch does not deliver each row once.
    """
    torch.set_num_threads(1)
    counts = [count for count in (1, 2, 4, 8, 16, 32, 64) if count < cpu_count()] + [cpu_count()]
    return [
        result
        for name, make in _loaders(options).items()
        for result in _by_count(name, make, counts, options.turns, None if name in {"JPEG", "cells"} else _GOAL)
    ]


def _loaders(options: BenchOptions) -> dict[str, Callable[..., H5DataLoader]]:
    """Return what makes a loader of each kind of rows, given `threads` or `workers`."""
    of = partial(loader, batch_size=_BATCH_SIZE, kept_bytes=0, shuffle="rows")
    signals, images = (make_workload(name, options.folder, options.size) for name in ("signals", "packed_images"))
    columns = ["fhr_st", "target", "weight"]
    found: dict[str, Callable[..., H5DataLoader]] = {"signals": partial(of, list(signals.paths), columns=columns)}
    for codec, path in zip(PACKED, images.paths, strict=True):
        found[f"images, {codec}"] = partial(of, path, columns=["image_f4"], shuffle="chunks")
    jpegs, decode = jpeg_file(options.folder, options.size), DecodeImage("image", size=(224, 224))
    found["JPEG"] = partial(of, jpegs, columns=["image", "label"], transform=decode)
    cells = make_cells(options.folder, _CELLS_SIZE * options.size, gzip=True)
    found["cells"] = partial(of, cells.path, columns=[csr("X", dense=False)], shuffle="chunks")
    return found


def _by_count(
    name: str, make: Callable[..., H5DataLoader], counts: list[int], turns: int, goal: float | None
) -> list[Result]:
    contestants = {_named(count, "thread"): make(threads=count) for count in counts}
    contestants |= {_named(count, "worker"): make(workers=count) for count in counts}
    seconds: dict[str, list[float]] = {each: [] for each in contestants}
    os.sync()
    for turn in range(-1, turns):
        for each in turn_order(list(contestants), turn):
            taken = _seconds(contestants[each], len(contestants[each].dataset))
            if turn >= 0:
                seconds[each].append(taken)
    amount = len(contestants[_ONE].dataset) - _BATCH_SIZE
    return [
        Contest("scaling", f"{name}, {each}", {OURS: seconds[each], _ONE: seconds[_ONE]}).against(
            _ONE, amount=amount, unit="rows/s", goal=goal if each == _named(_GOAL_THREADS, "thread") else None
        )
        for each in contestants
    ]


def _seconds(batches: Iterable[dict[str, torch.Tensor]], rows: int) -> float:
    """Return how long an epoch takes from its first batch on."""
    found, began = 0, time.perf_counter()
    for batch in batches:
        began = began if found else time.perf_counter()
        found += len(next(iter(batch.values())))
    taken = time.perf_counter() - began
    if found != rows:
        raise RuntimeError(f"an epoch delivered {found} rows, expected {rows}")
    return taken


def _named(count: int, what: str) -> str:
    return f"{count} {what}{'s' if count > 1 else ''}"
