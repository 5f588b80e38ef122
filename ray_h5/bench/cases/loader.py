"""``ray-h5 bench loader``: epochs in plain PyTorch on workload `signals`, shuffled, batches of 64.

Loaders are made before the timing, and timed over whole epochs with persistent workers. Ours and the baseline have
the same number of workers, and take turns. The batches of our loaders are compared with h5py's bytes before a case is
timed.

The timed epochs follow epochs that have read the files. The chunk caches of the baseline (128 MiB a file) then hold
every row decoded; ours holds rows too, up to its default of 128 MiB a file and 512 MiB in all. In `kept nothing` ours
reads and decodes in each epoch, and the baseline does not.

`combined` is `CombinedHDF5Dataset` with its defaults in a `DataLoader`. `warm` has all samples in its LRU cache and
holds no other rows. `preload` reads the shard of one rank of `RankMemCachedH5Dataset`; its peak is the growth of
resident memory while it reads, divided by the bytes of the shard.
"""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Callable, Iterable
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import h5py
import torch
from torch.utils.data import DataLoader

from ray_h5.bench.baselines.torch_loaders import lazy_loader, plain_loader
from ray_h5.bench.measure import OURS, Contest, Result, run_turns
from ray_h5.bench.verify import count_rows, verify_rows
from ray_h5.bench.workloads import Workload, make_workload
from ray_h5.torch_data import (
    CombinedHDF5Dataset,
    H5LazyDataset,
    RankMemCachedH5Dataset,
    create_optimized_dataloader,
    loader,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ray_h5.bench import BenchOptions

__all__ = ["bench_loader"]

_COLUMNS = ("fhr_st", "target", "weight")
_BATCH_SIZE = 64


def bench_loader(options: BenchOptions) -> list[Result]:
    """Measure our datasets and loaders against the per-sample ones.

    Raises
    ------
    RuntimeError
        If an epoch does not deliver each row once, with the bytes that h5py reads.
    """
    workload = make_workload("signals", options.folder, options.size)
    results: list[Result] = []
    for workers in (0, 2):
        results += _against_plain(workload, workers, options.turns)
        results.append(_against_lazy(workload, workers, options.turns))
    return results + _rank_cached(workload, options.turns)


def _against_plain(workload: Workload, workers: int, turns: int) -> list[Result]:
    files, fields = list(workload.paths), list(_COLUMNS)
    process = {"batch_size": _BATCH_SIZE, "shuffle": True, "num_workers": workers, "persistent_workers": workers > 0}
    ours: dict[str, tuple[Iterable[Any], float | None]] = {
        "combined": (DataLoader(CombinedHDF5Dataset(files, fields), **process), 5),
        "combined, warm": (
            DataLoader(CombinedHDF5Dataset(files, fields, cache_size=workload.rows, kept_bytes=0), **process),
            20,
        ),
        "combined, kept nothing": (
            DataLoader(CombinedHDF5Dataset(files, fields, cache_size=0, kept_bytes=0), **process),
            None,
        ),
        "loader, kept nothing": (
            loader(files, _BATCH_SIZE, columns=fields, threads=workers, kept_bytes=0),
            None,
        ),
        "create_optimized": (
            create_optimized_dataloader(files, _BATCH_SIZE, workers, 0, 1, load_fields=fields, cache_size=0),
            10,
        ),
        "loader": (loader(files, _BATCH_SIZE, columns=fields, threads=workers), 10),
    }
    for each, _ in ours.values():
        verify_rows(workload.paths, _COLUMNS, each)
    theirs = plain_loader(workload.paths, _COLUMNS, batch_size=_BATCH_SIZE, num_workers=workers, shuffle=True)
    contestants: dict[str, Callable[[], object]] = {
        name: partial(count_rows, each, workload.rows) for name, (each, _) in ours.items()
    }
    contestants["plain_loader"] = partial(count_rows, theirs, workload.rows)
    # Each worker of ours has its own cache, and reads other samples in each epoch: the first epochs fill it.
    seconds = run_turns(contestants, turns, warmups=4 if workers else 1)
    return [
        Contest("loader", f"{name}, {workers} workers", {**seconds, OURS: seconds[name]}).against(
            "plain_loader", amount=workload.rows, unit="rows/s", goal=goal
        )
        for name, (_, goal) in ours.items()
    ]


def _against_lazy(workload: Workload, workers: int, turns: int) -> Result:
    path, rows = workload.paths[0], workload.rows // len(workload.paths)
    ours = DataLoader(
        H5LazyDataset(path, "fhr_st", "target"),
        batch_size=_BATCH_SIZE,
        shuffle=True,
        num_workers=workers,
        persistent_workers=workers > 0,
    )
    theirs = lazy_loader(path, "fhr_st", "target", batch_size=_BATCH_SIZE, num_workers=workers, shuffle=True)
    contestants = {OURS: partial(count_rows, ours, rows), "lazy_loader": partial(count_rows, theirs, rows)}
    contest = Contest("loader", f"lazy, {workers} workers", run_turns(contestants, turns))
    return contest.against("lazy_loader", amount=rows, unit="rows/s", goal=1.3)


def _rank_cached(workload: Workload, turns: int) -> list[Result]:
    path, rows = workload.paths[0], workload.rows // len(workload.paths)
    with _one_process():
        make = partial(RankMemCachedH5Dataset, path, "fhr_st", "target", pin_host_memory=False, log_fn=_silent)
        preload = run_turns({OURS: make, "h5py_slice": partial(_slices, path, rows)}, turns)
        dataset = make()
        batched = DataLoader(dataset, batch_size=_BATCH_SIZE, shuffle=True)
        one_by_one = DataLoader(_PerItem(dataset), batch_size=_BATCH_SIZE, shuffle=True)
        contestants = {OURS: partial(count_rows, batched, rows), "per item": partial(count_rows, one_by_one, rows)}
        epoch = run_turns(contestants, turns)
    peaks = {OURS: [_peak_ratio(path) for _ in range(3)]}
    return [
        Contest("loader", "rank cached, preload", preload).against("h5py_slice", amount=rows, unit="rows/s", goal=1.5),
        Contest("loader", "rank cached, epoch", epoch).against("per item", amount=rows, unit="rows/s", goal=3),
        _as_share(Contest("loader", "rank cached, peak memory / shard", peaks).within(1.1)),
    ]


class _PerItem(torch.utils.data.Dataset[Any]):
    """A dataset without its ``__getitems__``."""

    def __init__(self, dataset: RankMemCachedH5Dataset) -> None:
        self._dataset = dataset

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitem__(self, index: int) -> Any:
        return tuple(self._dataset[index])


def _slices(path: str, rows: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Preload the usual way: a slice of each HDF5 dataset, as a tensor."""
    with h5py.File(path, "r") as file:
        return torch.from_numpy(file["fhr_st"][0:rows]), torch.from_numpy(file["target"][0:rows])


_PEAK = """
import resource, sys
import torch
from ray_h5.torch_data import RankMemCachedH5Dataset
def peak():
    return int(next(l for l in open("/proc/self/status") if l.startswith("VmHWM")).split()[1]) * 1024
def make(path, log=lambda said: None):
    return RankMemCachedH5Dataset(path, "fhr_st", "target", pin_host_memory=False, log_fn=log)
torch.distributed.init_process_group("gloo", init_method=sys.argv[1], rank=0, world_size=1)
make(sys.argv[3])
before = peak()
dataset = make(sys.argv[2])
print((peak() - before) / sum(each.nbytes for each in (dataset.x, dataset.y)))
torch.distributed.destroy_process_group()
"""


def _peak_ratio(path: str) -> float:
    """Return the peak of resident memory while a process of its own preloads, over the bytes preloaded."""
    small = make_workload("signals", size=0.01).paths[0]  # read before: the memory of libraries is not counted
    command = [sys.executable, "-c", _PEAK, f"tcp://127.0.0.1:{_free_port()}", path, small]
    return float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)  # noqa: S603


def _as_share(result: Result) -> Result:
    return replace(result, unit="1")


@contextmanager
def _one_process() -> Iterator[None]:
    torch.distributed.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{_free_port()}", rank=0, world_size=1)
    try:
        yield
    finally:
        torch.distributed.destroy_process_group()


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def _silent(said: str) -> None:
    """Say nothing."""
