"""How fast are these files: h5py row by row, `loader` with several threads, and Ray, on a user's own files.

Each way reads shuffled rows for a fixed time, in turn, and nothing stays decoded in memory between the turns. So the
lines compare ways to read, on this machine and with these files.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import h5py
import numpy as np
from joblib import cpu_count

import ray_h5
from ray_h5.errors import OptionError
from ray_h5.messages import counted
from ray_h5.options import require
from ray_h5.read.native.build import loop_line
from ray_h5.torch_data import H5Dataset, loader

_TURNS = 3
_ROWS_OF_H5PY = 20_000
"""h5py reads at most this many different rows: enough for seconds, and a short list to shuffle."""


@dataclass(frozen=True, slots=True)
class Line:
    """One way to read.

    Parameters
    ----------
    name
        The way.
    rates
        Rows per second of each turn.
    cpu
        Seconds of CPU that this process used per second, in the median turn; None where other processes read.
    first_batch
        Seconds until the first batch, the median of the turns.
    """

    name: str
    rates: tuple[float, ...]
    cpu: float | None
    first_batch: float

    @property
    def rate(self) -> float:
        """The median of the rates."""
        return statistics.median(self.rates)


def measure(
    paths: Any, *, batch_size: int = 64, seconds: float = 2.0, with_ray: bool = True, **options: Any
) -> list[Line]:
    """Measure each way to read shuffled rows.

    Parameters
    ----------
    paths
        Files, folders or globs.
    batch_size
        Rows of a batch.
    seconds
        Time of each turn of each way.
    with_ray
        Measure `read_h5` and ``iter_torch_batches`` too, which starts Ray.
    **options
        The source options of `read_h5`.

    Returns
    -------
    list of Line
        h5py first, if the rows are indices of the first axis of files on a disk; then `loader` by threads; then Ray.

    Raises
    ------
    OptionError
        If `seconds` is not positive, or the files have no rows.
    """
    require(seconds > 0, "seconds", seconds, "a number above 0")
    dataset = H5Dataset(paths, **options, kept_bytes=0)
    if not len(dataset):
        raise OptionError(f"{dataset!r} has no rows: there is nothing to measure")
    ways: dict[str, Callable[[], Iterable[int]]] = {}
    if _is_plain(dataset, options):
        ways["h5py, row by row"] = lambda: _h5py_rows(dataset, options.get("group") or "/")
    for threads in sorted({1, 2, min(8, max(2, cpu_count()))}):
        ways[f"loader, {counted(threads, 'thread')}"] = _rows_of(loader(dataset, batch_size, threads=threads))
    if with_ray:
        ray_h5.quiet()
        ds = ray_h5.read_h5(paths, shuffle=True, **options)
        batches = ds.iter_torch_batches(batch_size=batch_size, collate_fn=ray_h5.TorchCollate())
        ways["read_h5, iter_torch_batches"] = _rows_of(batches)
    return _in_turn(ways, seconds)


def to_text(lines: list[Line]) -> str:
    """Return the lines as a table, and what limits the fastest loader."""
    base = lines[0]
    rows = [f"{'shuffled rows':<28} {'rows/s':>10} {'least .. most':>20} {'ratio':>7} {'first batch':>12}"]
    for line in lines:
        spread = f"{min(line.rates):,.0f} .. {max(line.rates):,.0f}"
        ratio = f"{line.rate / base.rate:.2g}x"
        rows.append(f"{line.name:<28} {line.rate:>10,.0f} {spread:>20} {ratio:>7} {line.first_batch:>10.3f} s")
    best = max((line for line in lines if line.name.startswith("loader")), key=lambda line: line.rate)
    cpu = best.cpu or 0.0
    limit = (
        f"{best.name} waits for the disk, the store, or CPUs that others use: it uses {cpu:.0%} of one."
        if cpu < 0.6
        else f"{best.name} is limited by decoding and copying: it uses {cpu:.1f} CPUs. "
        "`ray-h5 inspect` names the arrays that are slow to read."
    )
    return "\n".join([*rows, limit, loop_line()])


def _is_plain(dataset: H5Dataset, options: dict[str, Any]) -> bool:
    """Return whether h5py reads the same rows by ``file[column][row]``."""
    paths = _paths(dataset)
    if any(options.get(name) is not None for name in ("rows", "windows")) or any("://" in path for path in paths):
        return False
    with h5py.File(paths[0], "r") as file:
        parent = file[options.get("group") or "/"]
        return all(isinstance(parent.get(name), h5py.Dataset) for name in dataset.columns)


def _paths(dataset: H5Dataset) -> list[str]:
    files = dataset.index.files
    return [files.path(number) for number in range(len(files))]


def _h5py_rows(dataset: H5Dataset, group: str) -> Iterator[int]:
    """Read random rows as a plain Dataset over h5py does: each column of each row by one call."""
    files = [h5py.File(path, "r") for path in _paths(dataset)]
    try:
        columns = [[file[group][name] for name in dataset.columns] for file in files]
        ends = np.cumsum([len(datasets[0]) for datasets in columns])
        rng = np.random.default_rng(0)
        for row in rng.integers(0, ends[-1], _ROWS_OF_H5PY):
            number = int(np.searchsorted(ends, row, "right"))
            local = int(row - (ends[number - 1] if number else 0))
            for column in columns[number]:
                column[local]
            yield 1
    finally:
        for file in files:
            file.close()


def _rows_of(batches: Iterable[Any]) -> Callable[[], Iterator[int]]:
    """Return what begins an epoch, and yields the number of rows of each batch."""
    return lambda: (len(next(iter(batch.values()))) for batch in batches)


def _in_turn(ways: dict[str, Callable[[], Iterable[int]]], seconds: float) -> list[Line]:
    turns: dict[str, list[tuple[float, float, float]]] = {name: [] for name in ways}
    for turn in range(-1, _TURNS):  # the first turn opens files, starts Ray and is not counted
        names = list(ways)
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            figures = _timed(ways[name], seconds if turn >= 0 else min(seconds, 0.5))
            if turn >= 0:
                turns[name].append(figures)
    return [
        Line(
            name,
            tuple(rate for rate, _, _ in figures),
            None if name.startswith("read_h5") else statistics.median(cpu for _, cpu, _ in figures),
            statistics.median(first for _, _, first in figures),
        )
        for name, figures in turns.items()
    ]


def _timed(way: Callable[[], Iterable[int]], seconds: float) -> tuple[float, float, float]:
    """Read for some seconds; return rows per second, seconds of CPU per second, and seconds to the first batch."""
    rows, first = 0, 0.0
    began, cpu = time.perf_counter(), time.process_time()
    ended = began
    while ended - began < seconds:  # a small dataset has many epochs in that time
        for count in way():
            rows += count
            ended = time.perf_counter()
            first = first or ended - began
            if ended - began >= seconds:
                break
    return rows / (ended - began), (time.process_time() - cpu) / (ended - began), first
