"""Bench `peers`: other formats and libraries, from HDF5 files to the end of the first epoch, and after it.

Each contestant is written as its own documentation says, and is a process of its own. Before the turns its rows are
compared with those that h5py reads; one that fails there is left out by name, and so is one that is not installed. In a
turn it converts the files and reads an epoch from nothing, without workers and with two; the faster counts. Then there
are epochs after it.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from typing import Any, NamedTuple

import h5py
import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

from ray_h5.torch_data import loader
from tests.bench import BenchOptions
from tests.bench.baselines.epochs import PlainH5Dataset, count_rows, verify_rows
from tests.bench.files import SIGNALS, make_workload
from tests.bench.measure import OURS, Case, Took

SEED = 7


@dataclass(frozen=True, slots=True)
class Problem:
    """Rows of HDF5 files that every contestant delivers, shuffled, in batches.

    Attributes
    ----------
    paths, file_rows, batch
        The files, the rows of each, and of a batch.
    columns
        The dtype and shape of a row, by column.
    """

    paths: tuple[str, ...]
    file_rows: int
    batch: int
    columns: Mapping[str, tuple[str, tuple[int, ...]]]

    @property
    def rows(self) -> int:
        """Rows of all files."""
        return self.file_rows * len(self.paths)

    def samples(self, parts: Iterable[int]) -> Iterator[dict[str, Any]]:
        """Yield the rows of some files, by number: what a conversion writes."""
        for part in parts:
            with h5py.File(self.paths[part]) as file:
                for index in range(self.file_rows):
                    yield {name: file[name][index] for name in self.columns}

    def every(self) -> Iterator[dict[str, Any]]:
        """Yield all rows."""
        return self.samples(range(len(self.paths)))


@dataclass(frozen=True, slots=True)
class Peer:
    """A library or format: its module, its loader of (problem, folder, workers), and its conversion, if it has one."""

    module: str
    load: Callable[[Problem, str, int], Iterable[Any]]
    convert: Callable[[Problem, str], None] | None = None


def _workers(workers: int) -> dict[str, Any]:
    return {"num_workers": workers, "persistent_workers": workers > 0}


def _shuffled(dataset: Any, problem: Problem, workers: int, **options: Any) -> DataLoader[Any]:
    order = torch.Generator().manual_seed(SEED)
    return DataLoader(dataset, problem.batch, shuffle=True, generator=order, **_workers(workers), **options)


def _ours(problem: Problem, _: str, workers: int) -> Iterable[Any]:
    how: dict[str, Any] = {"kept_bytes": 0, "threads": workers, "seed": SEED, "shuffle": "rows"}
    return loader(list(problem.paths), problem.batch, columns=list(problem.columns), **how)


def _h5py(problem: Problem, _: str, workers: int) -> Iterable[Any]:
    return _shuffled(PlainH5Dataset(problem.paths, list(problem.columns), 8 << 20), problem, workers)


def _litdata_rows(problem: Problem, part: int) -> Iterator[dict[str, Any]]:
    yield from problem.samples([part])


def _to_litdata(problem: Problem, out: str) -> None:
    import litdata

    parts = list(range(len(problem.paths)))
    how = {"chunk_bytes": "64MB", "num_workers": min(2, len(parts)), "verbose": False}
    litdata.optimize(fn=partial(_litdata_rows, problem), inputs=parts, output_dir=out, **how)


def _from_litdata(problem: Problem, out: str, workers: int) -> Iterable[Any]:
    import litdata

    how = {"shuffle": True, "seed": SEED, "drop_last": False}
    dataset = litdata.StreamingDataset(out, **how)
    return litdata.StreamingDataLoader(dataset, batch_size=problem.batch, **_workers(workers))


def _to_mosaicml(problem: Problem, out: str) -> None:
    from streaming import MDSWriter

    columns = {name: f"ndarray:{dtype}:{','.join(map(str, shape))}" for name, (dtype, shape) in problem.columns.items()}
    with MDSWriter(out=out, columns=columns) as writer:
        for sample in problem.every():
            writer.write({name: np.ascontiguousarray(values) for name, values in sample.items()})


def _from_mosaicml(problem: Problem, out: str, workers: int) -> Iterable[Any]:
    from streaming import StreamingDataLoader, StreamingDataset
    from streaming.base.util import clean_stale_shared_memory

    clean_stale_shared_memory()
    dataset = StreamingDataset(local=out, shuffle=True, shuffle_seed=SEED, batch_size=problem.batch)
    return StreamingDataLoader(dataset, batch_size=problem.batch, **_workers(workers))


def _to_webdataset(problem: Problem, out: str) -> None:
    import webdataset

    row_bytes = sum(np.dtype(dtype).itemsize * int(np.prod(shape)) for dtype, shape in problem.columns.values())
    size = min(16e6, problem.rows * row_bytes / 8)  # shards are what it shares among workers, and shuffles first
    with webdataset.ShardWriter(os.path.join(out, "shard-%06d.tar"), maxsize=size, verbose=0) as writer:
        for number, sample in enumerate(problem.every()):
            writer.write({"__key__": f"{number:08d}", **{f"{name}.npy": values for name, values in sample.items()}})


def _from_webdataset(problem: Problem, out: str, workers: int) -> Iterable[Any]:
    import webdataset

    shards = [os.path.join(out, name) for name in sorted(os.listdir(out)) if name.endswith(".tar")]
    dataset = webdataset.WebDataset(shards, shardshuffle=len(shards), detshuffle=True, seed=SEED).shuffle(1000).decode()
    batches = dataset.map(partial(_without_endings, list(problem.columns))).batched(problem.batch)
    return webdataset.WebLoader(batches, batch_size=None, **_workers(workers))


def _without_endings(names: list[str], sample: dict[str, Any]) -> dict[str, Any]:
    return {name: torch.from_numpy(sample[f"{name}.npy"]) for name in names}


def _to_datasets(problem: Problem, out: str) -> None:
    import datasets

    arrays = {2: datasets.Array2D, 3: datasets.Array3D, 4: datasets.Array4D}
    features = {
        name: arrays[len(shape)](shape, dtype)
        if len(shape) > 1
        else datasets.Sequence(datasets.Value(dtype), length=shape[0])
        for name, (dtype, shape) in problem.columns.items()
    }
    how = {"features": datasets.Features(features), "cache_dir": os.path.join(out, "cache")}
    parts = {"parts": list(range(len(problem.paths)))}
    datasets.Dataset.from_generator(problem.samples, gen_kwargs=parts, **how).save_to_disk(os.path.join(out, "saved"))


def _from_datasets(problem: Problem, out: str, workers: int) -> Iterable[Any]:
    import datasets

    dataset = datasets.load_from_disk(os.path.join(out, "saved")).with_format("torch")
    return _shuffled(dataset, problem, workers)


def _to_lance(problem: Problem, out: str) -> None:
    import lance
    import pyarrow as pa

    types = {
        name: pa.list_(pa.from_numpy_dtype(dtype), int(np.prod(shape)))
        for name, (dtype, shape) in problem.columns.items()
    }
    schema = pa.schema(list(types.items()))

    def batches() -> Iterator[Any]:
        for sample in problem.every():
            arrays = [pa.array([sample[name].ravel()], type=each) for name, each in types.items()]
            yield pa.RecordBatch.from_arrays(arrays, schema=schema)

    lance.write_dataset(pa.RecordBatchReader.from_batches(schema, batches()), os.path.join(out, "rows.lance"))


class _LanceRows(Dataset[Any]):
    """Rows of a Lance dataset as tensors, by one call a batch; each process opens it."""

    def __init__(self, uri: str, problem: Problem) -> None:
        self._uri, self._rows, self._columns = uri, problem.rows, problem.columns
        self._opened: Any = None

    def __len__(self) -> int:
        return self._rows

    def __getitems__(self, indices: list[int]) -> dict[str, torch.Tensor]:
        if self._opened is None:
            import lance

            self._opened = lance.dataset(self._uri)
        taken = self._opened.take(indices).combine_chunks()
        return {
            name: torch.from_numpy(taken[name].chunk(0).flatten().to_numpy().reshape(-1, *shape))
            for name, (_, shape) in self._columns.items()
        }


def _from_lance(problem: Problem, out: str, workers: int) -> Iterable[Any]:
    rows = _LanceRows(os.path.join(out, "rows.lance"), problem)
    # Lance runs threads, which a fork would lose.
    how = {"multiprocessing_context": "spawn"} if workers else {}
    return _shuffled(rows, problem, workers, collate_fn=_as_it_is, **how)


def _as_it_is(batch: Any) -> Any:
    return batch


PEERS: Mapping[str, Peer] = {
    OURS: Peer("ray_h5", _ours),
    "h5py": Peer("h5py", _h5py),
    "litdata": Peer("litdata", _from_litdata, _to_litdata),
    "mosaicml": Peer("streaming", _from_mosaicml, _to_mosaicml),
    "webdataset": Peer("webdataset", _from_webdataset, _to_webdataset),
    "datasets": Peer("datasets", _from_datasets, _to_datasets),
    "lance": Peer("lance", _from_lance, _to_lance),
}
"""The contestants by name. Ours shuffles rows exactly; `h5py` is the usual Dataset."""


def bench_peers(options: BenchOptions) -> Generator[Case, Any, None]:
    """Measure seconds to the end of the first epoch, conversion included, and rows a second of later ones."""
    for case in ("signals", "images"):
        problem = _problem(case, options)
        with ExitStack() as stack:
            running: dict[str, Callable[..., Took]] = {}
            for name, peer in PEERS.items():
                if importlib.util.find_spec(peer.module) is None:
                    print(f"{case}: {name} is left out: {peer.module} is not installed", file=sys.stderr)
                    continue
                ask = _started(name, problem, stack)
                try:
                    ask(_verify)
                    running[name] = ask
                except Exception as exc:
                    if name == OURS:
                        raise
                    print(f"{case}: {name} is left out: {type(exc).__name__}: {exc}", file=sys.stderr)
            others = running.keys() - {OURS}
            label = f"{case}, {problem.rows} rows"
            first = {name: partial(ask, _first) for name, ask in running.items()}
            goals: dict[Any, float | None] = dict.fromkeys(others, 5.0)
            yield Case(f"{label}, first epoch", problem.paths, first, problem.rows, "rows/s", goals, warmups=0)
            for workers in (0, 2):
                later = {name: partial(ask, _later, workers) for name, ask in running.items()}
                name = f"{label}, later epochs, {workers} workers"
                yield Case(name, problem.paths, later, problem.rows, "rows/s", dict.fromkeys(others), warmups=0)


def _problem(case: str, options: BenchOptions) -> Problem:
    """Return a case; its files are made unless an earlier call has made them."""
    made = make_workload(case, options.folder, options.size)
    names = ("image_u1",) if case == "images" else SIGNALS
    paths = tuple(made.paths_of(16, "shuffle+zstd")) if case == "images" else made.paths
    columns = {name: (np.dtype(made.columns[name][1]).name, made.columns[name][0]) for name in names}
    return Problem(paths, made.file_rows, 64, columns)


def _started(name: str, problem: Problem, stack: ExitStack) -> Callable[..., Took]:
    """Start the process of a contestant; return a function that lets it do one of the functions below."""
    folder = tempfile.mkdtemp(prefix="peers-", dir=os.path.dirname(os.path.dirname(problem.paths[0])))
    pool = ProcessPoolExecutor(1, get_context("spawn"), initializer=_begin, initargs=(name, problem, folder))

    def stop() -> None:
        for process in pool._processes.values():
            process.kill()  # threads of some libraries do not end
        pool.shutdown()
        shutil.rmtree(folder, ignore_errors=True)

    stack.callback(stop)
    return lambda do, *arguments: Took(pool.submit(do, *arguments).result())


class _Here(NamedTuple):
    """What the process of a contestant knows."""

    peer: Peer
    problem: Problem
    folder: str
    loaders: dict[int, Iterable[Any]]


_here: list[_Here] = []


def _begin(name: str, problem: Problem, folder: str) -> None:
    # Some libraries keep copies of what they read below the home of the user; and print.
    os.environ |= {"HOME": folder, "PYTHONWARNINGS": "ignore"}
    os.dup2(2, 1)
    _here.append(_Here(PEERS[name], problem, folder, {}))


def _verify() -> float:
    """Compare the rows of an epoch with those that h5py reads."""
    taken, problem = _first(), _here[0].problem
    verify_rows(problem.paths, list(problem.columns), _here[0].loaders[2])
    return taken


def _first() -> float:
    """Convert, and read an epoch from nothing with the faster number of workers; return the seconds."""
    peer, problem, folder, loaders = _here[0]
    loaders.clear()
    out = tempfile.mkdtemp(dir=folder)
    start = time.perf_counter()
    if peer.convert is not None:
        peer.convert(problem, out)
    converted = time.perf_counter() - start
    taken = []
    for workers in (0, 2):
        start = time.perf_counter()
        loaders[workers] = peer.load(problem, out, workers)
        count_rows(loaders[workers], problem.rows)
        taken.append(time.perf_counter() - start)
    return converted + min(taken)


def _later(workers: int) -> float:
    """Read another epoch; return the seconds."""
    start = time.perf_counter()
    count_rows(_here[0].loaders[workers], _here[0].problem.rows)
    return time.perf_counter() - start
