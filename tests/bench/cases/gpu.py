"""Bench `gpu`: how long a GPU waits for batches.

Batches of 64 are shuffled, with nothing kept. `waiting` is the share of an epoch of `signals`, after its first batch,
that a loop waits whose steps multiply matrices and end as ``loss.item()`` does.
"""

from __future__ import annotations

import time
from collections.abc import Generator
from typing import Any

import torch
from joblib import cpu_count

from ray_h5.device import to_device
from ray_h5.errors import OptionError
from ray_h5.torch_data import H5Dataset, loader
from tests.bench import BenchOptions
from tests.bench.baselines.epochs import ray_session, torch_loader
from tests.bench.cases.ray_training import signal_waits, waits_of
from tests.bench.files import SIGNALS, make_workload
from tests.bench.measure import Result, of_figures, turn_order

_STEPS_S = {0.002: None, 0.005: 0.01, 0.02: None}
"""Seconds of a step, and the greatest share of an epoch that may be waiting."""


def bench_gpu(options: BenchOptions) -> Generator[Result, Any, None]:
    """Measure waiting."""
    if not torch.cuda.is_available():
        raise OptionError("bench gpu: torch finds no CUDA device here; this bench measures how long one waits")
    device = torch.device("cuda")
    signals = make_workload("signals", options.folder, options.size)
    paths, columns = list(signals.paths), list(SIGNALS)
    workers = min(4, cpu_count())
    batches = loader(paths, 64, columns=columns, kept_bytes=0, pin_memory=True)
    plain = torch_loader(H5Dataset(paths, columns, kept_bytes=0), workers)
    loops = {
        "loader": lambda: (batch.to(device, non_blocking=True) for batch in batches),
        "loader, one ahead": lambda: to_device(batches, device),
        f"DataLoader, {workers} workers": lambda: (batch.to(device, non_blocking=True) for batch in plain),
    }
    for step_s in _STEPS_S:
        step = Multiply(step_s, device)
        shares: dict[str, list[float]] = {name: [] for name in loops}
        for turn in range(-1, options.turns):
            for name in turn_order(list(loops), turn):
                shares[name].append(waits_of(loops[name](), step, device)[1])
        for name, values in shares.items():
            yield _waiting(name, step_s, values[1:])
    with ray_session(4 * signals.rows * signals.row_bytes(SIGNALS)):
        waits = signal_waits(paths, Multiply, list(_STEPS_S), options.turns, 1, gpu=True)
    for step_s, epochs in zip(_STEPS_S, waits, strict=True):
        yield _waiting("train_batches", step_s, [share for _, share in epochs])


def _waiting(loop: str, step_s: float, shares: list[float]) -> Result:
    case = f"{loop}, steps of {1000 * step_s:g} ms: waiting"
    return of_figures("gpu", case, "share", shares, most=_STEPS_S[step_s])


class Multiply:
    """A step that multiplies matrices for about so many seconds, and ends when a value is known, as ``loss.item()``."""

    def __init__(self, seconds: float, device: torch.device) -> None:
        self._weights = torch.randn(2048, 2048, device=device)
        self._repeats = 1
        for _ in range(5):  # the first ones also wake up the device
            took = min(self._timed() for _ in range(3))
            self._repeats = max(1, round(self._repeats * min(100, seconds / took)))

    def __call__(self, _: Any) -> None:
        self._multiply()

    def _timed(self) -> float:
        began = time.perf_counter()
        self._multiply()
        return time.perf_counter() - began

    def _multiply(self) -> float:
        for _ in range(self._repeats):
            product = torch.mm(self._weights, self._weights)
        return product[0, 0].item()
