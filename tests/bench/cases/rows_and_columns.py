"""Benches of rows that are groups, windows, blocks of a volume, or rows of a sparse matrix."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator, Iterator, Sequence
from functools import partial
from itertools import product
from typing import Any

import h5py
import numpy as np

import ray_h5
from ray_h5.index.file_options import FileOptions
from ray_h5.read.reader import RowReader
from ray_h5.torch_data import H5DataLoader, H5Dataset, loader
from tests.bench import BenchOptions
from tests.bench.baselines.reads import (
    Decoder,
    Extent,
    drawn,
    extents_of,
    pread,
    pread_decode,
    slice_windows,
    verify_arrays,
)
from tests.bench.made_files import TRACE_ATTRIBUTES, make_cells, make_demos, make_traces, make_volume
from tests.bench.measure import OURS, Case, Result, of_figures

Cases = Generator[Case | Result, Any, None]


def bench_groups(options: BenchOptions) -> Cases:
    """Measure batches of 64 datasets in random order, and what it takes to find 10^5 of them.

    `pread` reads the same bytes by a call for each dataset, and knows where they are. An index is made by a process of
    its own, after that of a file of two datasets, so that imports are not counted. Its seconds are those of the CPU.
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
    for what, attributes, most in (("no attributes", (), 20.0), ("10 attributes", TRACE_ATTRIBUTES, 60.0)):
        few, many = (make_traces(options.folder, n, (256,), attributes=bool(attributes)) for n in (2, count))
        with tempfile.TemporaryDirectory() as folder:
            cold = [_indexed(few, many, attributes, None) for _ in range(min(3, options.turns))]
            _indexed(few, many, attributes, folder)
            again = [_indexed(few, many, attributes, folder) for _ in range(min(3, options.turns))]
        for runs, how, goal in ((cold, "", most), (again, ", from index_dir", 2.0)):
            label = f"index of {count} datasets, {what}{how}"
            seconds, peaks = zip(*runs, strict=True)
            yield of_figures("groups", label, "s", seconds, most=goal)
            yield of_figures("groups", f"{label}, peak", "MB", peaks, most=300)


def _group_contestants(reader: Any, file: h5py.File, names: Sequence[str], path: str) -> dict[str, Any]:
    extents = [extents_of(file[name])[0] for name in names]
    return {
        OURS: lambda batches: [len(reader.read(["value"], rows)) for rows in batches],
        # Each batch is memory of its own, as those of the other contestants are.
        "pread": lambda batches: [len(pread(path, [extents[i] for i in rows.tolist()])) for rows in batches],
        "h5py by name": lambda batches: [len(np.stack([file[names[i]][()] for i in rows])) for rows in batches],
    }


_INDEXING = """
import json, sys, time
from ray_h5.index.file_options import FileOptions
from ray_h5.rows.groups_and_grids import Groups
few, many, attributes, index_dir = json.loads(sys.argv[1])
FileOptions.of(few, rows=Groups("data/*", attrs=attributes), index_dir=index_dir).index()
start = time.process_time()
FileOptions.of(many, rows=Groups("data/*", attrs=attributes), index_dir=index_dir).index()
end = time.process_time()
# Not `ru_maxrss`: that of a new process begins with the memory of the process that started it.
(peak,) = (line for line in open("/proc/self/status") if line.startswith("VmHWM"))
print(json.dumps([end - start, int(peak.split()[1]) / 1000]))
"""


def _indexed(few: str, many: str, attributes: Sequence[str], index_dir: str | None) -> tuple[float, float]:
    """Return the CPU seconds of a process for the rows of a file, and the peak of its memory in MB."""
    told = json.dumps([few, many, list(attributes), index_dir])
    done = subprocess.run([sys.executable, "-c", _INDEXING, told], check=True, capture_output=True, text=True)
    seconds, peak = json.loads(done.stdout)
    return seconds, peak


_OFFSETS = {"obs/image": range(-1, 1), "actions": range(16)}


def bench_windows(options: BenchOptions) -> Cases:
    """Measure windows of 2 images and 16 actions of episodes, contiguous and in gzip chunks of one step.

    `random` is a turn of 8 batches of 64 windows of all episodes; `neighbouring` is one block of 1024 windows of five
    episodes, as a shuffle of chunks reads them. `pread+decode` reads and decodes each chunk that they need once. Chunks
    that one read of a block decodes are counted, too.
    """
    names = list(_OFFSETS)
    for kind in ("contiguous", "gzip"):
        path = make_demos(options.folder, options.size, gzip=kind == "gzip")
        index = FileOptions.of(path, rows=ray_h5.Groups("data/demo_*"), windows=ray_h5.Windows(_OFFSETS)).index(names)
        table: Any = index.tables[0]
        episodes = _Episodes(table.groups.names, np.asarray(table.episode_lengths))
        with index.scope.open(path, table=table) as reader, h5py.File(path) as file:
            for order, goals in {
                "random": {"h5py slices": 2.5 if kind == "gzip" else 5.0, "pread+decode": None},
                "neighbouring": {"h5py slices": 5.0, "pread+decode": 0.8},
            }.items():
                draws = [episodes.draw(order) for _ in range(options.turns + 1)]
                verify_arrays(path, reader.read(names, draws[0][0]), episodes.sliced(file, draws[0][0]))
                contestants = {
                    OURS: drawn(lambda reads, reader=reader: [len(reader.read(names, r)) for r in reads], draws),
                    "h5py slices": drawn(
                        lambda reads, file=file: [len(episodes.sliced(file, r)) for r in reads],  # noqa: B023
                        draws,
                    ),
                }
                if kind == "contiguous":
                    goals.pop("pread+decode")
                else:
                    first = table.groups.columns
                    decoders = {name: Decoder(first[name].layouts[0]) for name in names}
                    needed = [[episodes.chunks(file, rows) for rows in reads] for reads in draws]
                    contestants["pread+decode"] = drawn(partial(_decode_all, path, decoders), needed)
                    yield _decoded_once("windows", f"{kind} {order}", reader, names, draws[0], needed[0])
                yield Case(f"{kind} {order}", [path], contestants, sum(map(len, draws[0])), "windows/s", goals)


def _decode_all(path: str, decoders: dict[str, Decoder], needed: Sequence[dict[str, list[Extent]]]) -> None:
    for extents in needed:
        pread_decode(path, extents, decoders)


def _decoded_once(
    bench: str, case: str, reader: Any, names: list[str], reads: Sequence[Any], needed: Sequence[dict[str, Any]]
) -> Result:
    """Count the chunks that reads decode, for each that they need."""
    before = reader.stats.chunks_decoded
    for rows in reads:
        reader.read(names, rows)
    unique = sum(len(extents) for each in needed for extents in each.values())
    return of_figures(bench, f"{case}, decoded", "/unique", [(reader.stats.chunks_decoded - before) / unique], most=1)


class _Episodes:
    """Episodes of a file, by name, and their lengths; a window begins at each step."""

    def __init__(self, names: Sequence[str], lengths: np.ndarray) -> None:
        self._names, self._lengths = names, lengths
        self._starts = np.concatenate([[0], np.cumsum(lengths)])
        self._rng = np.random.default_rng(len(lengths))
        self._extents: dict[str, list[Extent]] = {}

    def draw(self, order: str) -> list[np.ndarray]:
        """Return the rows of the reads of one turn."""
        if order == "random":
            return [self._rng.integers(0, self._starts[-1], 64) for _ in range(8)]
        first = int(self._rng.integers(0, max(1, len(self._lengths) - 4)))
        last = min(first + 5, len(self._lengths))
        return [self._rng.permutation(np.arange(self._starts[first], self._starts[last]))[:1024]]

    def _places(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        episodes = np.searchsorted(self._starts, rows, side="right") - 1
        return episodes, rows - self._starts[episodes]

    def sliced(self, file: h5py.File, rows: np.ndarray) -> dict[str, np.ndarray]:
        """Read windows by h5py."""
        pairs = zip(*(each.tolist() for each in self._places(rows)), strict=True)
        return slice_windows(file, [(self._names[e], step, int(self._lengths[e])) for e, step in pairs], _OFFSETS)

    def chunks(self, file: h5py.File, rows: np.ndarray) -> dict[str, list[Extent]]:
        """Return the chunks that windows need, in the order of the file."""
        episodes, at = self._places(rows)
        needed: dict[str, list[Extent]] = {}
        for name, around in _OFFSETS.items():
            steps = np.clip(at[:, None] + np.array(around), 0, self._lengths[episodes][:, None] - 1)
            pairs = np.unique(np.stack([np.repeat(episodes, len(around)), steps.reshape(-1)]), axis=1)
            needed[name] = [self._chunks_of(file, f"{self._names[e]}/{name}")[s] for e, s in pairs.T.tolist()]
        return needed

    def _chunks_of(self, file: h5py.File, name: str) -> list[Extent]:
        if name not in self._extents:
            self._extents[name] = extents_of(file[name])
        return self._extents[name]


def bench_patches(options: BenchOptions) -> Cases:
    """Measure blocks of a volume and of its labels: drawn, aligned, and on a grid whose blocks overlap.

    `whole volume` is torchio's way: a batch loads the arrays, and cuts its blocks out of memory. `pread+decode` reads
    and decodes each chunk that a batch touches once. Chunks are counted, too.
    """
    path = make_volume(options.folder, options.size)
    names, shapes = ["raw", "label"], {"raw": (64,) * 3, "label": (64,) * 3}
    drawn_goals = {"h5py slices": 2.0, "whole volume": 5.0, "pread+decode": 0.85}
    for case, rows, goals in (
        ("drawn", ray_h5.Patches(shapes, per_file=1000), drawn_goals),
        ("aligned", ray_h5.Patches(shapes, per_file=1000, align=True), drawn_goals),
        ("grid", ray_h5.Patches(shapes, stride=16), {"h5py slices": 4.0, "pread+decode": None}),
    ):
        index = FileOptions.of(path, rows=rows).index([*names, ray_h5.Patches.corner])
        rng = np.random.default_rng(0)
        with index.scope.open(path) as reader, h5py.File(path) as file:
            draws = []
            for _ in range(options.turns + 1):
                start = rng.integers(0, max(1, index.num_rows - 32))
                order = (start + np.arange(32)) % index.num_rows if case == "grid" else None
                draws.append(np.split(rng.integers(0, index.num_rows, 32) if order is None else order, 4))
            corners = [
                [reader.read([ray_h5.Patches.corner], r)[ray_h5.Patches.corner].tolist() for r in reads]
                for reads in draws
            ]
            extents = {name: extents_of(file[name]) for name in names}
            needed = [[_touched(extents, file["raw"].shape, batch) for batch in turn] for turn in corners]
            verify_arrays(path, reader.read(names, draws[0][0]), _cut(file, corners[0][0]))
            read, decoders = reader.read, Decoder.of(reader.base, names)
            by_name: dict[str, Any] = {
                OURS: drawn(lambda reads, read=read: [len(read(names, r)) for r in reads], draws),
                "h5py slices": drawn(lambda of, file=file: [len(_cut(file, batch)) for batch in of], corners),
                "whole volume": drawn(
                    lambda of, file=file: [len(_cut({n: file[n][()] for n in names}, batch)) for batch in of],
                    corners,
                ),
                "pread+decode": drawn(partial(_decode_all, path, decoders), needed),
            }
            contestants = {name: by_name[name] for name in (OURS, *goals)}
            yield Case(case, [path], contestants, 32, "blocks/s", dict(goals))
            yield _decoded_once("patches", case, reader, names, draws[0], needed[0])


def _cut(file: Any, corners: Sequence[Sequence[int]]) -> dict[str, np.ndarray]:
    cuts = [tuple(slice(low, low + 64) for low in corner) for corner in corners]
    return {name: np.stack([file[name][cut] for cut in cuts]) for name in ("raw", "label")}


def _touched(extents: dict[str, list[Extent]], shape: Sequence[int], corners: Any) -> dict[str, list[Extent]]:
    """Return the chunks of 32 voxels a side that blocks touch, in the order of the file."""
    counts = [-(-n // 32) for n in shape]
    cells = {
        int(np.ravel_multi_index(cell, counts))
        for corner in corners
        for cell in product(*(range(low // 32, (low + 63) // 32 + 1) for low in corner))
    }
    return {name: sorted(chunks[number] for number in cells) for name, chunks in extents.items()}


def bench_sparse(options: BenchOptions) -> Cases:
    """Measure cells of a sparse matrix of 20,000 genes in batches of 64. Seconds are those of the CPU, of one thread.

    `blocks of 16` reads windows of 16,384 cells drawn in blocks of 16 neighbours, and mixes each window: the published
    settings of scDataset; both read the same cells. `AnnData's way` reads random batches. The entropy of the classes
    in a batch says how well our own ``Shuffle("chunks")`` mixes; random rows have 3.65 bits.
    """
    for kind in ("gzip", "plain"):
        path, cells = make_cells(options.folder, options.size, gzip=kind == "gzip")
        rng = np.random.default_rng(cells)
        window = min(16_384, cells // 64 * 64)
        draws = []
        for _ in range(options.turns + 1):
            blocks = rng.permutation(cells // 16)[: window // 16]
            draws.append(rng.permutation((blocks[:, None] * 16 + np.arange(16)).reshape(-1)))
        yield _sparse_alone(path, kind, draws)
        for dense in (True, False):
            yield _sparse_windows(path, cells, kind, draws, dense)
            yield from _sparse_order(path, cells, f"{kind}, {'dense' if dense else 'compressed rows'}", dense)


def _sparse_alone(path: str, kind: str, draws: Sequence[np.ndarray]) -> Case:
    """Compare the reading of a window, without batches, with the bare decoding of its chunks."""
    dataset, columns = H5Dataset(path, [ray_h5.csr("X")], kept_bytes=0), ["X/data", "X/indices"]
    with h5py.File(path) as file, RowReader(path) as reader:
        indptr = file["X/indptr"][:].astype(np.int64)
        extents = {name: extents_of(file[name]) for name in columns}
        size, decoders = file["X/data"].chunks[0], Decoder.of(reader, columns)
        rows = np.sort(draws[0][:50])
        expected = _as_matrix(file, indptr, rows).toarray()
        verify_arrays(path, {"X": dataset[rows]["X"].numpy()}, {"X": expected})

    def decode(rows: np.ndarray) -> None:
        bounds = zip(indptr[rows] // size, (indptr[rows + 1] - 1) // size, strict=True)
        touched = sorted({chunk for first, last in bounds for chunk in range(first, last + 1)})
        pread_decode(path, {name: [extents[name][chunk] for chunk in touched] for name in columns}, decoders)

    contestants = {OURS: drawn(dataset.read, draws), "pread+decode": drawn(decode, draws)}
    goals = {"pread+decode": 0.85 if kind == "gzip" else None}
    return Case(f"{kind}, read alone", [path], contestants, len(draws[0]), "rows/s", goals, clock=time.process_time)


def _sparse_windows(path: str, cells: int, kind: str, draws: Sequence[np.ndarray], dense: bool) -> Case:
    dataset = H5Dataset(path, [ray_h5.csr("X", dense=dense)], kept_bytes=0)
    window, rng = len(draws[0]), np.random.default_rng(0)
    name = "scDataset's way"

    def ours(rows: np.ndarray) -> None:
        batches = [rows[at : at + 64].tolist() for at in range(0, window, 64)]
        _count(batch["X"] for batch in H5DataLoader(dataset, batch_sampler=batches, prefetch_factor=window // 64))

    def backed() -> None:
        with h5py.File(path) as file:
            indptr = file["X/indptr"][:].astype(np.int64)
            for _ in range(8):
                matrix = _as_matrix(file, indptr, np.sort(rng.choice(cells, 64, replace=False)))
                _count([matrix.toarray() if dense else matrix])

    contestants = {
        OURS: drawn(ours, draws),
        name: drawn(lambda rows: _count(_fetched(path, rows, dense)), draws),
        "AnnData's way": backed,
    }
    is_gzip = kind == "gzip"
    goals = {
        name: (3.0 if dense else 2.5) if is_gzip else None,
        "AnnData's way": 40.0 if is_gzip and not dense else None,
    }
    case = f"{kind}, {'dense' if dense else 'compressed rows'}, blocks of 16"
    shares = {"AnnData's way": 8 * 64 / window}
    return Case(case, [path], contestants, window, "rows/s", goals, shares, clock=time.process_time)


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


def _sparse_order(path: str, cells: int, label: str, dense: bool) -> Generator[Case | Result, Any, None]:
    """Measure epochs in the order of ``Shuffle("chunks")``, and how well it mixes."""
    label = f"{label}, Shuffle('chunks')"
    columns: list[Any] = [ray_h5.csr("X", dense=dense), "obs/cell_type"]
    options: dict[str, Any] = {"kept_bytes": 0, "threads": 0, "dtypes": {"obs/cell_type": "int32"}}
    batches = loader(path, 64, shuffle=ray_h5.Shuffle("chunks"), columns=columns, **options)
    contestants = {OURS: lambda: _count(batch["X"] for batch in batches)}
    yield Case(label, [path], contestants, cells, "rows/s", {"-": None}, clock=time.process_time)
    if not dense:
        classes = [np.bincount(batch["obs/cell_type"].numpy()) / len(batch["obs/cell_type"]) for batch in batches]
        bits = [float(-(shares[shares > 0] * np.log2(shares[shares > 0])).sum()) for shares in classes]
        yield of_figures("sparse", f"{label}, batch entropy", "bits", bits)
