"""``ray-h5 bench gpu``: the time that a GPU waits for data in a loop whose step takes about 5 ms."""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

import ray_h5
from ray_h5.bench.measure import Result
from ray_h5.bench.session import ray_session
from ray_h5.bench.workloads import make_workload
from ray_h5.errors import OptionError
from ray_h5.ray_data.training.collate import TorchCollate, to_device

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from ray_h5.bench import BenchOptions

__all__ = ["bench_gpu"]

_COLUMNS = ("fhr_st", "target", "weight")
_BATCH_SIZE = 64
_STEP_S = 0.005
_MOST_WAITING = 0.02
_PREFETCH = 8


def bench_gpu(options: BenchOptions) -> list[Result]:
    """Measure the share of an epoch that steps wait for their batch.

    Raises
    ------
    OptionError
        If torch finds no CUDA device.
    """
    if not torch.cuda.is_available():
        raise OptionError("bench gpu: torch finds no CUDA device here; this bench measures how long one waits")
    workload = make_workload("signals", options.folder, options.size)
    step = _calibrated_step(torch.device("cuda"))
    shares: dict[str, list[float]] = {"shuffled": [], "shuffled, float16": []}
    with ray_session(max(4 << 30, 4 * workload.rows * workload.row_bytes(_COLUMNS))):
        # Each dataset is made once, as a run with many epochs does.
        epochs = {
            "shuffled": _epochs(workload.paths, None),
            "shuffled, float16": _epochs(workload.paths, {"fhr_st": "float16"}),
        }
        for turn in range(-1, options.turns):
            for case, batches in epochs.items():
                share = _waiting(batches(), step)
                if turn >= 0:
                    shares[case].append(share)
    return [_result(case, sorted(found)) for case, found in shares.items()]


def _epochs(paths: tuple[str, ...], dtypes: dict[str, str] | None) -> Callable[[], Iterator[dict[str, Any]]]:
    ds = ray_h5.read_h5(paths, columns=_COLUMNS, shuffle=ray_h5.Shuffle(seed=0), dtypes=dtypes)
    options: dict[str, Any] = {"batch_size": _BATCH_SIZE, "prefetch_batches": _PREFETCH, "device": "cpu"}
    collate = TorchCollate(pin_memory=True)
    return lambda: to_device(ds.iter_torch_batches(**options, collate_fn=collate), torch.device("cuda"))


def _waiting(batches: Iterable[dict[str, Any]], step: Callable[[torch.Tensor], None]) -> float:
    """Return the share of an epoch that is spent waiting for batches, without the first one.

    The first batch is not counted: a training run makes it during the end of the epoch before, or its validation.
    """
    iterator = iter(batches)
    batch = next(iterator, None)
    began = time.perf_counter()
    waited = 0.0
    while batch is not None:
        step(batch["fhr_st"])
        asked = time.perf_counter()
        batch = next(iterator, None)
        waited += time.perf_counter() - asked
    return waited / (time.perf_counter() - began)


def _calibrated_step(device: torch.device) -> Callable[[torch.Tensor], None]:
    """Return a step of about 5 ms that reads the batch, waits for the GPU as ``loss.item()`` does."""
    weights = torch.randn(4096, 4096, device=device)
    repeats = 1
    while _seconds(partial(_multiply, weights, repeats)) < _STEP_S:
        repeats += 1

    def step(signal: torch.Tensor) -> None:
        _multiply(weights, repeats)
        signal.float().mean().item()

    return step


def _multiply(weights: torch.Tensor, repeats: int) -> None:
    for _ in range(repeats):
        torch.mm(weights, weights)


def _seconds(call: Callable[[], None]) -> float:
    found = []
    for _ in range(5):
        torch.cuda.synchronize()
        began = time.perf_counter()
        call()
        torch.cuda.synchronize()
        found.append(time.perf_counter() - began)
    return sorted(found)[2]


def _result(case: str, shares: list[float]) -> Result:
    middle = shares[len(shares) // 2]
    spread = (shares[0], shares[-1])
    ok = middle <= _MOST_WAITING
    return Result("gpu", f"signals {case}: waiting", "-", "share", middle, None, None, spread, _MOST_WAITING, ok)
