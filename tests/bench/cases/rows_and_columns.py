"""Benches of rows that are groups, windows, blocks of a volume, or rows of a sparse matrix."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Generator, Iterator, Sequence
from functools import partial
from typing import Any

import h5py
import numpy as np
import torch

import ray_h5
from ray_h5.index.file_options import FileOptions
from ray_h5.torch_data import H5DataLoader, H5Dataset
from tests.bench import BenchOptions
from tests.bench.baselines.reads import drawn, extents_of, pread, slice_windows, verify_arrays
from tests.bench.cases.planning import forget
from tests.bench.made_files import make_cells, make_demos, make_traces, make_volume
from tests.bench.measure import OURS, Case, Result

Cases = Generator[Case | Result, Any, None]


def bench_groups(options: BenchOptions) -> Cases:
    """Measure batches of 64 datasets in random order, and what it takes to find 10^5 of them.

    `pread` reads the same bytes by a call for each dataset, and knows where they are. Seconds of an index are those of
    the CPU.
    """
    count, large = (max(128, round(full * options.size)) for full in (100_000, 10_000))
    for name, datasets, shape, goals in (
        ("72 KB", large, (3, 6000), {"pread": 0.8, "h5py by name": 8.0}),
        ("1 KB", count, (256,), {"pread": None, "h5py by name": 30.0}),
    ):
        path = make_traces(options.folder, datasets, shape)
        index = FileOptions.of(path, rows=ray_h5.Groups("data/*")).index(["value"])
        names = index.tables[0].groups.names
        rng = np.random.default_rng(datasets)
        draws = [[rng.choice(datasets, 64, replace=False) for _ in range(32)] for _ in range(options.turns + 1)]
        with index.scope.open(path, table=index.tables[0]) as reader, h5py.File(path) as file:
            contestants = _group_contestants(reader, file, names, path)
            rows = draws[0][0]
            verify_arrays(path, reader.read(["value"], rows), {"value": np.stack([file[names[i]][()] for i in rows])})
            turns = {each: drawn(read, draws) for each, read in contestants.items()}
            yield Case(f"batches of {name}", [path], turns, 32 * 64, "rows/s", dict(goals))
    paths = [make_traces(options.folder, n, (256,)) for n in (2, count)]
    with tempfile.TemporaryDirectory() as folder:
        for how, index_dir, most in (("", None, 20.0), (", from index_dir", folder, 2.0)):
            indexed = [partial(_indexed, path, index_dir) for path in paths]
            for each in indexed:
                each()  # the first time imports, and writes the index
            case = f"index of {count} datasets{how}"
            yield Case(case, paths, {OURS: indexed[1]}, count, "rows/s", {"-": most}, clock=time.process_time)


def _group_contestants(reader: Any, file: h5py.File, names: Sequence[str], path: str) -> dict[str, Any]:
    extents = [extents_of(file[name])[0] for name in names]
    return {
        OURS: lambda batches: [len(reader.read(["value"], rows)) for rows in batches],
        # Each batch is memory of its own, as those of the other contestants are.
        "pread": lambda batches: [len(pread(path, [extents[i] for i in rows.tolist()])) for rows in batches],
        "h5py by name": lambda batches: [len(np.stack([file[names[i]][()] for i in rows])) for rows in batches],
    }


def _indexed(path: str, index_dir: str | None) -> int:
    """Index a file as a new process does."""
    forget()
    return FileOptions.of(path, rows=ray_h5.Groups("data/*"), index_dir=index_dir).index().num_rows


_OFFSETS = {"obs/image": range(-1, 1), "actions": range(16)}


def bench_windows(options: BenchOptions) -> Cases:
    """Measure windows of 2 images and 16 actions of episodes, contiguous and in gzip chunks of one step.

    `random` is a turn of 8 batches of 64 windows of all episodes; `neighbouring` is one block of 1024 windows of five
    episodes, as a shuffle of chunks reads them.
    """
    names = list(_OFFSETS)
    for kind in ("contiguous", "gzip"):
        path = make_demos(options.folder, options.size, gzip=kind == "gzip")
        index = FileOptions.of(path, rows=ray_h5.Groups("data/demo_*"), windows=ray_h5.Windows(_OFFSETS)).index(names)
        table: Any = index.tables[0]
        lengths = np.asarray(table.episode_lengths)
        of_rows = [
            (name, step, n) for name, n in zip(table.groups.names, lengths.tolist(), strict=True) for step in range(n)
        ]
        starts, rng = np.concatenate([[0], np.cumsum(lengths)]), np.random.default_rng(len(lengths))

        def random(rng: Any = rng, count: int = len(of_rows)) -> list[np.ndarray]:
            return [rng.integers(0, count, 64) for _ in range(8)]

        def neighbouring(rng: Any = rng, starts: np.ndarray = starts) -> list[np.ndarray]:
            first = int(rng.integers(0, max(1, len(starts) - 5)))
            return [rng.permutation(np.arange(starts[first], starts[min(first + 5, len(starts) - 1)]))[:1024]]

        with index.scope.open(path, table=table) as reader, h5py.File(path) as file:

            def by_h5py(rows: np.ndarray, file: Any = file, of_rows: Any = of_rows) -> dict[str, np.ndarray]:
                return slice_windows(file, [of_rows[row] for row in rows], _OFFSETS)

            for draw, goal in ((random, 2.5 if kind == "gzip" else 5.0), (neighbouring, 5.0)):
                draws = [draw() for _ in range(options.turns + 1)]
                verify_arrays(path, reader.read(names, draws[0][0]), by_h5py(draws[0][0]))
                contestants = {
                    OURS: drawn(partial(_each_of, partial(reader.read, names)), draws),
                    "h5py slices": drawn(partial(_each_of, by_h5py), draws),
                }
                amount = sum(map(len, draws[0]))
                yield Case(f"{kind} {draw.__name__}", [path], contestants, amount, "windows/s", {"h5py slices": goal})


def _each_of(read: Any, batches: Sequence[Any]) -> None:
    for batch in batches:
        read(batch)


def bench_patches(options: BenchOptions) -> Cases:
    """Measure blocks of a volume and of its labels: drawn, aligned, and on a grid whose blocks overlap."""
    path = make_volume(options.folder, options.size)
    names, shapes, corner = ["raw", "label"], {"raw": (64,) * 3, "label": (64,) * 3}, ray_h5.Patches.corner
    for case, rows, goal in (
        ("drawn", ray_h5.Patches(shapes, per_file=1000), 2.0),
        ("aligned", ray_h5.Patches(shapes, per_file=1000, align=True), 2.0),
        ("grid", ray_h5.Patches(shapes, stride=16), 4.0),
    ):
        index = FileOptions.of(path, rows=rows).index([*names, corner])
        rng = np.random.default_rng(0)
        with index.scope.open(path) as reader, h5py.File(path) as file:
            draws = []
            for _ in range(options.turns + 1):
                start = rng.integers(0, max(1, index.num_rows - 32))
                order = (start + np.arange(32)) % index.num_rows if case == "grid" else None
                draws.append(np.split(rng.integers(0, index.num_rows, 32) if order is None else order, 4))
            corners = [[reader.read([corner], r)[corner].tolist() for r in reads] for reads in draws]
            verify_arrays(path, reader.read(names, draws[0][0]), _cut(file, corners[0][0]))
            contestants = {
                OURS: drawn(partial(_each_of, partial(reader.read, names)), draws),
                "h5py slices": drawn(partial(_each_of, partial(_cut, file)), corners),
            }
            yield Case(case, [path], contestants, 32, "blocks/s", {"h5py slices": goal})


def _cut(file: Any, corners: Sequence[Sequence[int]]) -> dict[str, np.ndarray]:
    cuts = [tuple(slice(low, low + 64) for low in corner) for corner in corners]
    return {name: np.stack([file[name][cut] for cut in cuts]) for name in ("raw", "label")}


def bench_sparse(options: BenchOptions) -> Cases:
    """Measure cells of a sparse matrix of 20,000 genes in batches of 64. Seconds are those of the CPU, of one thread.

    `blocks of 16` reads windows of 16,384 cells drawn in blocks of 16 neighbours, and mixes each window: the published
    settings of scDataset; both read the same cells.
    """
    path, cells = make_cells(options.folder, options.size)
    rng = np.random.default_rng(cells)
    window = min(16_384, cells // 64 * 64)
    draws = []
    for _ in range(options.turns + 1):
        blocks = rng.permutation(cells // 16)[: window // 16]
        draws.append(rng.permutation((blocks[:, None] * 16 + np.arange(16)).reshape(-1)))
    for dense in (True, False):
        yield _sparse_windows(path, draws, dense)


def _sparse_windows(path: str, draws: Sequence[np.ndarray], dense: bool) -> Case:
    dataset = H5Dataset(path, [ray_h5.csr("X", dense=dense)], kept_bytes=0)
    window, rows = len(draws[0]), np.sort(draws[0][:50])
    with h5py.File(path) as file:
        expected = _as_matrix(file, file["X/indptr"][:].astype(np.int64), rows).toarray()
    verify_arrays(path, {"X": torch.as_tensor(dataset[rows]["X"]).to_dense().numpy()}, {"X": expected})
    name = "scDataset's way"

    def ours(rows: np.ndarray) -> None:
        batches = [rows[at : at + 64].tolist() for at in range(0, window, 64)]
        _count(batch["X"] for batch in H5DataLoader(dataset, batch_sampler=batches, prefetch_factor=window // 64))

    contestants = {
        OURS: drawn(ours, draws),
        name: drawn(lambda rows: _count(_fetched(path, rows, dense)), draws),
    }
    goals = {name: 3.0 if dense else 2.5}
    case = f"{'dense' if dense else 'compressed rows'}, blocks of 16"
    return Case(case, [path], contestants, window, "rows/s", goals, clock=time.process_time)


def _count(batches: Any) -> int:
    """Return the number of rows of some batches; each is let go before the next one."""
    return sum(batch.shape[0] for batch in batches)


def _as_matrix(file: h5py.File, indptr: np.ndarray, rows: np.ndarray) -> Any:
    """Return ascending rows as a scipy matrix, as AnnData does: a slice for each run of neighbours."""
    from scipy import sparse

    cuts = np.flatnonzero(np.diff(rows) != 1) + 1
    starts, ends = rows[np.concatenate([[0], cuts])], rows[np.concatenate([cuts - 1, [len(rows) - 1]])] + 1
    parts = [slice(int(indptr[a]), int(indptr[b])) for a, b in zip(starts, ends, strict=True)]
    data, indices = (np.concatenate([file[f"X/{name}"][part] for part in parts]) for name in ("data", "indices"))
    counts = indptr[rows + 1] - indptr[rows]
    shape = (len(rows), int(file["X"].attrs["shape"][1]))
    return sparse.csr_matrix((data, indices, np.concatenate([[0], np.cumsum(counts)])), shape)


def _fetched(path: str, rows: np.ndarray, dense: bool) -> Iterator[Any]:
    """Yield batches of a window as scDataset makes them: it is read sorted, and mixed again."""
    with h5py.File(path) as file:
        order = np.argsort(rows, kind="stable")
        window = _as_matrix(file, file["X/indptr"][:].astype(np.int64), rows[order])
    window = window.toarray() if dense else window
    place = np.argsort(order)
    for start in range(0, len(rows), 64):
        yield window[place[start : start + 64]]
