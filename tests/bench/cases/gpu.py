"""Bench `gpu`: how long a GPU waits for batches, and how fast they get there.

Shuffled batches of 64 with nothing kept. `waiting` is the share of an epoch of `signals`, after its first batch, that a
loop waits whose steps multiply matrices for 2, 5 and 20 ms and end as ``loss.item()`` does: with `loader` and
``batch.to(device)``, with `loader` whose batches are sent one ahead, with a `DataLoader` of an `H5Dataset` in four
worker processes, and with `train_batches`. `copies` are those of batches that wait in pinned memory, against one copy
of the same bytes, which is what the link does. `cells` go as compressed rows that the GPU makes dense, against dense
ones; `images` go as uint8 and are cast there, against float32.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from joblib import cpu_count
from ray.train import ScalingConfig
from torch.utils.data import DataLoader

from ray_h5.columns.user_columns import csr
from ray_h5.errors import OptionError
from ray_h5.ray_data.training.device import to_device
from ray_h5.torch_data import H5Dataset, loader
from tests.bench.measure import Result, of_figures, turn_order
from tests.bench.session import ray_session
from tests.bench.sparse_workloads import make_cells
from tests.bench.training.sending import Sent, against_link, against_used
from tests.bench.training.steps import Multiply, waits_of
from tests.bench.training.workers import waits_of_workers
from tests.bench.workloads import Workload, make_workload

if TYPE_CHECKING:
    from tests.bench import BenchOptions

__all__ = ["bench_gpu"]

_COLUMNS = ("fhr_st", "target", "weight")
_BATCH_SIZE = 64
_LARGE_BATCH = 1024
_WORKERS = 4
_STEPS_S = {0.002: None, 0.005: 0.01, 0.02: None}
"""Seconds of a step, and the greatest share of an epoch that may be waiting."""

_OF_LINK = 0.9
_FEWER_BYTES = 10.0
_CELLS_SIZE = 0.2

Epoch: TypeAlias = "Callable[[], Iterable[Any]]"


def bench_gpu(options: BenchOptions, device: torch.device | None = None) -> list[Result]:
    """Measure waiting and sending.

    Parameters
    ----------
    options
        Options of the bench.
    device
        By default the CUDA device of this process. A CPU shows that the bench runs, and nothing else.

    Raises
    ------
    OptionError
        If torch finds no CUDA device.
    RuntimeError
        If Ray is already running in this process.
    """
    if device is None:
        if not torch.cuda.is_available():
            raise OptionError("bench gpu: torch finds no CUDA device here; this bench measures how long one waits")
        device = torch.device("cuda")
    signals = make_workload("signals", options.folder, options.size)
    return [
        *_copies(signals, device, options.turns),
        *_cells(options, device),
        *_images(options, device),
        *_waiting(_loops(signals, device), device, options.turns),
        *_waiting_workers(signals, device, options.turns),
    ]


def _loader_of(source: Any, device: torch.device, batch_size: int = _BATCH_SIZE, **options: Any) -> Any:
    return loader(source, batch_size, kept_bytes=0, pin_memory=device.type == "cuda", **options)


def _copies(signals: Workload, device: torch.device, turns: int) -> list[Result]:
    return [
        result
        for size in (_BATCH_SIZE, _LARGE_BATCH)
        for result in against_link(
            f"signals, batches of {size}, copies",
            _loader_of(list(signals.paths), device, size, columns=list(_COLUMNS)),
            device,
            turns,
            _OF_LINK,
        )
    ]


def _cells(options: BenchOptions, device: torch.device) -> list[Result]:
    path = make_cells(options.folder, _CELLS_SIZE * options.size, gzip=False).path
    of = partial(_loader_of, path, device, shuffle="chunks")
    stored = Sent("compressed rows", of(columns=[csr("X", dense=False)]), "X", torch.Tensor.to_dense)
    used = Sent("dense", of(columns=[csr("X")]), "X", _unchanged)
    return against_used("cells", stored, used, device, options.turns, _FEWER_BYTES)


def _images(options: BenchOptions, device: torch.device) -> list[Result]:
    path = make_workload("flat", options.folder, options.size).paths[0]
    of = partial(_loader_of, path, device, columns=["image_u1"])
    stored = Sent("uint8", of(), "image_u1", torch.Tensor.float)
    used = Sent("float32", of(dtypes={"image_u1": "float32"}), "image_u1", _unchanged)
    return against_used("images", stored, used, device, options.turns)


def _unchanged(sent: torch.Tensor) -> torch.Tensor:
    return sent


def _loops(signals: Workload, device: torch.device) -> dict[str, Epoch]:
    """Return what begins an epoch whose batches are on the device, by name."""
    batches = _loader_of(list(signals.paths), device, columns=list(_COLUMNS))
    workers = min(_WORKERS, cpu_count())
    plain: DataLoader[Any] = DataLoader(
        H5Dataset(list(signals.paths), list(_COLUMNS), kept_bytes=0),
        _BATCH_SIZE,
        shuffle=True,
        num_workers=workers,
        pin_memory=device.type == "cuda",
        persistent_workers=True,
    )
    return {
        "loader": lambda: (batch.to(device, non_blocking=True) for batch in batches),
        "loader, one ahead": lambda: to_device(batches, device),
        f"DataLoader, {workers} workers": lambda: (batch.to(device, non_blocking=True) for batch in plain),
    }


def _waiting(loops: dict[str, Epoch], device: torch.device, turns: int) -> list[Result]:
    results = []
    for step_s in _STEPS_S:
        step = Multiply(step_s, device)
        shares: dict[str, list[float]] = {name: [] for name in loops}
        for turn in range(-1, turns):
            for name in turn_order(list(loops), turn):
                _, share = waits_of(loops[name](), step, device)
                if turn >= 0:
                    shares[name].append(share)
        results += [_result(name, step_s, found) for name, found in shares.items()]
    return results


def _waiting_workers(signals: Workload, device: torch.device, turns: int) -> list[Result]:
    scaling = ScalingConfig(num_workers=1, use_gpu=device.type == "cuda")
    store_bytes = max(4 << 30, 4 * signals.rows * signals.row_bytes(_COLUMNS))
    with ray_session(store_bytes):
        found = waits_of_workers(signals.paths, _COLUMNS, _BATCH_SIZE, Multiply, list(_STEPS_S), turns, scaling)
    return [_result("train_batches", step_s, [share for _, share in waits]) for step_s, waits in found.items()]


def _result(loop: str, step_s: float, shares: list[float]) -> Result:
    case = f"{loop}, steps of {1000 * step_s:g} ms: waiting"
    return of_figures("gpu", case, "share", shares, most=_STEPS_S[step_s])
