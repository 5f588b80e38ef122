"""Bench `sparse`: cells of a sparse matrix of 20,000 genes, in batches of 64, in gzip chunks and plain ones.

`blocks of 16` reads windows of 16,384 cells that are drawn in blocks of 16 neighbours, and mixes each window: the
published settings of scDataset. Both contestants read the same cells. Batches are dense, or compressed rows. `AnnData
backed` reads random batches of 64, which is what a user does without a window. `read alone` makes no batches; `pread +
decode` reads and decodes each chunk that the same windows touch once.

`Shuffle("chunks")` is our own order: chunk groups are drawn, and mixed in a window. Beside its speed there are its
window, and the entropy of the classes in a batch, for 14 classes that follow each other in the file: it says how well
rows are mixed. 3.65 bits is what random rows have.

Seconds are those of the CPU, of one thread.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import h5py
import numpy as np

from ray_h5.columns.made_columns import ColumnLike
from ray_h5.columns.user_columns import csr
from ray_h5.order.draws.shuffle import Shuffle
from ray_h5.read.reader import RowReader
from ray_h5.torch_data.dataset import H5Dataset
from ray_h5.torch_data.h5_data_loader import H5DataLoader
from ray_h5.torch_data.make_loader import loader
from tests.bench.baselines.h5py_reads import chunk_decoders, pread_decode, stored_extents
from tests.bench.baselines.sparse_reads import AnnDataRows, Fetches, has_scdataset
from tests.bench.measure import OURS, Contest, Result, of_figures, run_turns
from tests.bench.sparse_workloads import CellFile, make_cells

if TYPE_CHECKING:
    from tests.bench import BenchOptions

__all__ = ["bench_sparse"]

_BATCH = 64
_BLOCK = 16
_WINDOW = 16_384
_RANDOM_BATCHES = 8
_CLASSES = "obs/cell_type"
_SC, _BACKED, _FLOOR = "scDataset", "AnnData backed", "pread + decode"

Rows = np.ndarray[Any, np.dtype[np.int64]]


def bench_sparse(options: BenchOptions) -> list[Result]:
    """Measure windows of cells against scDataset, AnnData and the bare decoding, and our own shuffle.

    Raises
    ------
    RuntimeError
        If our rows differ from those that h5py reads.
    """
    results: list[Result] = []
    for gzip in (True, False):
        made = make_cells(options.folder, options.size, gzip=gzip)
        results += _measure(made, "gzip" if gzip else "plain", options.turns)
    return results


def _measure(made: CellFile, label: str, turns: int) -> list[Result]:
    _verify(made)
    window = min(_WINDOW, made.cells // _BATCH * _BATCH)
    rng = np.random.default_rng(made.cells)
    draws = [[_blocks(made.cells, window, rng)] for _ in range(turns + 1)]
    results: list[Result] = []
    is_gzip = label == "gzip"
    for dense in (True, False):
        least = {_SC if has_scdataset() else f"{_SC}'s way": 3.0 if dense else 2.5}
        goals: dict[str, float | None] = {**least, _BACKED: None if dense else 40.0}
        case = f"{label}, {'dense' if dense else 'compressed rows'}, blocks of {_BLOCK}"
        seconds = _in_turn(made, draws, dense, list(goals), turns, rng)
        contest = Contest("sparse", case, seconds)
        results += [
            contest.against(each, amount=window, unit="rows/s", goal=goal if is_gzip else None)
            for each, goal in goals.items()
        ]
        results += _own_order(made, label, dense, turns)
    return [*results, _read_alone(made, label, draws, turns, 0.85 if is_gzip else None)]


def _read_alone(made: CellFile, label: str, draws: Sequence[list[Rows]], turns: int, goal: float | None) -> Result:
    """Compare the reading of a window, without batches, with the bare decoding of its chunks."""
    dataset = H5Dataset(made.path, [csr("X")], kept_bytes=0)
    first, second = iter(draws), iter(draws)
    contestants: dict[str, Callable[[], object]] = {
        OURS: lambda: [dataset.read(rows) for rows in next(first)],
        _FLOOR: lambda: _decode(made.path, next(second)),
    }
    contest = Contest("sparse", f"{label}, read alone", run_turns(contestants, turns, clock=time.process_time))
    return contest.against(_FLOOR, amount=len(draws[0][0]), unit="rows/s", goal=goal)


def _in_turn(
    made: CellFile, draws: Sequence[list[Rows]], dense: bool, names: Sequence[str], turns: int, rng: np.random.Generator
) -> dict[str, list[float]]:
    """Return the seconds of each contestant for a window of each turn."""
    dataset = H5Dataset(made.path, [csr("X", dense=dense)], kept_bytes=0)
    window = len(draws[0][0])
    backed = AnnDataRows(made.path, dense=dense)
    by_name: dict[str, Callable[[list[Rows]], object]] = {
        OURS: lambda windows: _count(_ours(dataset, windows)),
        _BACKED: lambda _: _count(backed.batches(_random(made.cells, rng))),
    }

    def fetched(windows: list[Rows]) -> object:
        return _count(Fetches(made.path, windows, _BATCH, dense=dense).batches())

    others = {name: by_name.get(name, fetched) for name in [OURS, *names]}
    left = {name: iter(draws) for name in others}
    contestants = {name: partial(_next, others[name], left[name]) for name in others}
    try:
        seconds = run_turns(contestants, turns, clock=time.process_time)
    finally:
        backed.close()
    if _BACKED in seconds:  # it reads fewer rows: the seconds of as many
        share = window / (_RANDOM_BATCHES * _BATCH)
        seconds[_BACKED] = [each * share for each in seconds[_BACKED]]
    return seconds


def _next(read: Callable[[list[Rows]], object], left: Iterator[list[Rows]]) -> object:
    return read(next(left))


def _blocks(cells: int, window: int, rng: np.random.Generator) -> Rows:
    """Return a window of cells: blocks of neighbours, mixed."""
    blocks = rng.permutation(cells // _BLOCK)[: window // _BLOCK]
    rows = (blocks[:, None] * _BLOCK + np.arange(_BLOCK)).reshape(-1)
    return rng.permutation(rows)


def _random(cells: int, rng: np.random.Generator) -> list[Rows]:
    return [np.sort(rng.choice(cells, _BATCH, replace=False)) for _ in range(_RANDOM_BATCHES)]


def _ours(dataset: H5Dataset, windows: list[Rows]) -> Iterator[Any]:
    batches = [rows[at : at + _BATCH].tolist() for rows in windows for at in range(0, len(rows), _BATCH)]
    made = H5DataLoader(dataset, batch_sampler=batches, prefetch_factor=len(windows[0]) // _BATCH)
    return (batch["X"] for batch in made)


def _count(batches: Iterator[Any]) -> int:
    """Return the number of rows of some batches; each is let go before the next one."""
    return sum(len(batch) if isinstance(batch, np.ndarray) else batch.shape[0] for batch in batches)


def _decode(path: str, windows: list[Rows]) -> None:
    """Read and decode the chunks that some rows touch."""
    columns = ["X/data", "X/indices"]
    with h5py.File(path) as file, RowReader(path) as reader:
        indptr = file["X/indptr"][:].astype(np.int64)
        extents = stored_extents(file, columns)
        size = file["X/data"].chunks[0]
        for rows in windows:
            touched = {
                chunk
                for first, last in zip(indptr[rows] // size, (indptr[rows + 1] - 1) // size, strict=True)
                for chunk in range(first, last + 1)
            }
            chosen = {name: [extents[name][chunk] for chunk in sorted(touched)] for name in columns}
            pread_decode(path, chosen, chunk_decoders(reader, columns))


def _own_order(made: CellFile, label: str, dense: bool, turns: int) -> list[Result]:
    """Measure epochs in the order of `Shuffle("chunks")`, and how well it mixes."""
    columns: list[ColumnLike] = [csr("X", dense=dense), _CLASSES]
    batches = loader(
        made.path,
        _BATCH,
        shuffle=Shuffle("chunks"),
        columns=columns,
        kept_bytes=0,
        threads=0,
        dtypes={_CLASSES: "int32"},
    )
    seconds = run_turns({OURS: lambda: _count(batch["X"] for batch in batches)}, turns, clock=time.process_time)[OURS]
    order = batches.sampler.order
    case = f"{label}, {'dense' if dense else 'compressed rows'}, Shuffle('chunks')"
    rates = [made.cells / each for each in seconds]
    results = [of_figures("sparse", case, "rows/s", rates)]
    if not dense:
        results.append(of_figures("sparse", f"{case}, window", "rows", [float(order.window_rows or 0)]))
        classes = (batch[_CLASSES].numpy() for batch in batches)
        results.append(of_figures("sparse", f"{case}, batch entropy", "bits", [_entropy(each) for each in classes]))
    return results


def _entropy(classes: np.ndarray[Any, Any]) -> float:
    shares = np.bincount(classes) / len(classes)
    shares = shares[shares > 0]
    return float(-(shares * np.log2(shares)).sum())


def _verify(made: CellFile) -> None:
    """Compare some rows with h5py."""
    rows = np.arange(0, made.cells, max(1, made.cells // 50))
    found = H5Dataset(made.path, ["X"], kept_bytes=0)[rows]["X"].numpy()
    with h5py.File(made.path) as file:
        indptr = file["X/indptr"][:]
        for row, values in zip(rows.tolist(), found, strict=True):
            part = slice(int(indptr[row]), int(indptr[row + 1]))
            expected = np.zeros(made.genes, np.float32)
            expected[file["X/indices"][part]] = file["X/data"][part]
            if values.tobytes() != expected.tobytes():
                raise RuntimeError(f"{made.path}: row {row} differs from what h5py reads")
