"""Bench `loader`: epochs in plain PyTorch on workload `signals`, shuffled, batches of 64.

Loaders are made before the timing, and timed over whole epochs with persistent workers. Ours and the baseline have
the same number of workers, and take turns. The batches of our loaders are compared with h5py's bytes before a case is
timed.

Each case is measured twice. With nothing kept, every epoch reads and decodes all rows again, on both sides: ours has
`kept_bytes=0`, and the baseline has a chunk cache of 1 MiB a dataset. In the cases named `kept`, the timed epochs
follow epochs that have read the files, and both sides hold rows that were decoded: the baseline in chunk caches of
128 MiB a dataset, which hold all of them; ours up to its default of 128 MiB a file and 512 MiB in all.

`loader, 1 thread` is compared with bare loops over the stored chunks, whose places are known: ``os.preadv`` and
``imagecodecs.lzf_decode`` in Python, and our compiled loop, called once a batch. One thread reads at a time in each;
ours has a second one, which plans meanwhile what is read next.

`loader, 2 threads` compares two threads, the default, with one, nothing kept. `bare compiled loop, 2 threads` does so
for that loop: what a second thread can give on this machine.

`combined` is `CombinedHDF5Dataset` in a `DataLoader`. `warm, kept` has all samples in its LRU cache and holds no other
rows. `preload` reads the shard of one rank of `RankMemCachedH5Dataset`; its peak is the growth of
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
from typing import TYPE_CHECKING, Any, TypeAlias

import h5py
import torch
from torch.utils.data import DataLoader

from ray_h5.torch_data import (
    CombinedHDF5Dataset,
    H5LazyDataset,
    RankMemCachedH5Dataset,
    create_optimized_dataloader,
    loader,
)
from tests.bench.baselines.bare_loops import BareLoops
from tests.bench.baselines.torch_loaders import LARGE_CHUNK_CACHE, SMALL_CHUNK_CACHE, lazy_loader, plain_loader
from tests.bench.measure import OURS, Contest, Result, run_turns
from tests.bench.verify import count_rows, verify_rows
from tests.bench.workloads import Workload, make_workload

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.bench import BenchOptions

__all__ = ["bench_loader"]

_COLUMNS = ("fhr_st", "target", "weight")
_BATCH_SIZE = 64

_Loaders: TypeAlias = dict[str, tuple[Iterable[Any], float]]
"""Our loaders by the names of their cases, each with its goal."""


def bench_loader(options: BenchOptions) -> list[Result]:
    """Measure our datasets and loaders against the per-sample ones.

    Raises
    ------
    RuntimeError
        If an epoch does not deliver each row once, with the bytes that h5py reads.
    """
    workload = make_workload("signals", options.folder, options.size)
    results = [result for workers in (0, 2) for result in _against_plain(workload, workers, options.turns, kept=False)]
    results += _against_loops(workload, options.turns)
    results += _threads(workload, options.turns)
    for workers in (0, 2):
        results += _against_plain(workload, workers, options.turns, kept=True)
        results.append(_against_lazy(workload, workers, options.turns))
    return results + _rank_cached(workload, options.turns)


def _against_plain(workload: Workload, workers: int, turns: int, *, kept: bool) -> list[Result]:
    ours = _kept(workload, workers) if kept else _nothing_kept(workload, workers)
    for each, _ in ours.values():
        verify_rows(workload.paths, _COLUMNS, each)
    theirs = plain_loader(
        workload.paths,
        _COLUMNS,
        batch_size=_BATCH_SIZE,
        num_workers=workers,
        shuffle=True,
        chunk_cache_bytes=LARGE_CHUNK_CACHE if kept else SMALL_CHUNK_CACHE,
    )
    contestants: dict[str, Callable[[], object]] = {
        name: partial(count_rows, each, workload.rows) for name, (each, _) in ours.items()
    }
    contestants["plain_loader"] = partial(count_rows, theirs, workload.rows)
    # Each worker of ours has its own cache, and reads other samples in each epoch: the first epochs fill it.
    seconds = run_turns(contestants, turns, warmups=4 if workers and kept else 1)
    return [
        Contest("loader", f"{name}, {workers} workers", {**seconds, OURS: seconds[name]}).against(
            "plain_loader", amount=workload.rows, unit="rows/s", goal=goal
        )
        for name, (_, goal) in ours.items()
    ]


def _against_loops(workload: Workload, turns: int) -> list[Result]:
    """Compare one thread with bare loops over the stored chunks: in Python, and the compiled one, one call a batch."""
    files = list(workload.paths)
    loops = BareLoops(files, _COLUMNS, _BATCH_SIZE)
    ours = loader(files, _BATCH_SIZE, columns=list(_COLUMNS), threads=1, kept_bytes=0)
    contestants: dict[str, Callable[[], object]] = {
        OURS: partial(count_rows, ours, workload.rows),
        "bare loop": loops.in_python,
        "bare compiled loop": loops.compiled,
    }
    contest = Contest("loader", "loader, 1 thread", run_turns(contestants, max(turns, 9)))
    goals = {"bare loop": 1.25, "bare compiled loop": 0.8}
    return [contest.against(name, amount=workload.rows, unit="rows/s", goal=goal) for name, goal in goals.items()]


def _nothing_kept(workload: Workload, workers: int) -> _Loaders:
    files, fields = list(workload.paths), list(_COLUMNS)
    combined = CombinedHDF5Dataset(files, fields, cache_size=0, kept_bytes=0)
    return {
        "loader": (loader(files, _BATCH_SIZE, columns=fields, threads=workers, kept_bytes=0), 8),
        "combined": (DataLoader(combined, **_process(workers)), 5),
    }


def _kept(workload: Workload, workers: int) -> _Loaders:
    files, fields = list(workload.paths), list(_COLUMNS)
    warm = CombinedHDF5Dataset(files, fields, cache_size=workload.rows, kept_bytes=0)
    optimized = create_optimized_dataloader(files, _BATCH_SIZE, workers, 0, 1, load_fields=fields, cache_size=0)
    return {
        "loader, kept": (loader(files, _BATCH_SIZE, columns=fields, threads=workers), 10),
        "combined, kept": (DataLoader(CombinedHDF5Dataset(files, fields), **_process(workers)), 5),
        "combined, warm, kept": (DataLoader(warm, **_process(workers)), 20),
        "create_optimized, kept": (optimized, 10),
    }


def _process(workers: int) -> dict[str, Any]:
    return {"batch_size": _BATCH_SIZE, "shuffle": True, "num_workers": workers, "persistent_workers": workers > 0}


def _threads(workload: Workload, turns: int) -> list[Result]:
    """Compare two threads with one: ours, and those of the bare compiled loop. Epochs are short, so turns are more."""
    files = list(workload.paths)
    one, two = (loader(files, _BATCH_SIZE, columns=list(_COLUMNS), threads=threads, kept_bytes=0) for threads in (1, 2))
    bare = BareLoops(files, _COLUMNS, _BATCH_SIZE)
    contestants: dict[str, Callable[[], object]] = {
        "loader, 2 threads": partial(count_rows, two, workload.rows),
        "1 thread": partial(count_rows, one, workload.rows),
        "bare compiled loop, 2 threads": partial(bare.compiled, 2),
        "bare, 1 thread": bare.compiled,
    }
    seconds = run_turns(contestants, max(turns, 15))
    return [
        Contest("loader", name, {**seconds, OURS: seconds[name]}).against(
            against, amount=workload.rows, unit="rows/s", goal=goal
        )
        for name, against, goal in (
            ("loader, 2 threads", "1 thread", 1.7),
            ("bare compiled loop, 2 threads", "bare, 1 thread", None),
        )
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
    contest = Contest("loader", f"lazy, kept, {workers} workers", run_turns(contestants, turns))
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
    return float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


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
