"""How fast are these files: a DataLoader over h5py, `loader` with several threads, and Ray, on a user's own files.

Each way reads shuffled rows for a fixed time, in turn, and nothing stays decoded in memory between the turns. So the
lines compare ways to read, on this machine and with these files.
"""

from __future__ import annotations

import copy
import math
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import h5py
import numpy as np
from joblib import cpu_count

import ray_h5
from ray_h5.errors import OptionError
from ray_h5.lru import LRU
from ray_h5.messages import counted, few
from ray_h5.options import require
from ray_h5.read.file_caches import max_open
from ray_h5.read.native.build import loop_line
from ray_h5.storage.addresses import is_url
from ray_h5.torch_data import H5Dataset, loader
from ray_h5.torch_data.h5_data_loader import plain_batches

_TURNS = 3
_WORKERS = 2
"""Processes of a DataLoader over h5py; it is measured without them, too."""

_MOST_OPEN, _MOST_CACHED_BYTES = 256, 1 << 30
"""Bounds of each process of a DataLoader over h5py: files that are open, and bytes that their chunk caches may hold."""


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
    note
        What makes the way look faster than it is with other files.
    """

    name: str
    rates: tuple[float, ...]
    cpu: float | None
    first_batch: float
    note: str = ""

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
        A DataLoader over h5py first, without workers and with two, if the rows are indices of the first axis of files
        on a disk; then `loader` by threads; then Ray.

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
    note = ""
    has_other_rows = any(options.get(name) is not None for name in ("rows", "windows"))
    group = options.get("group") or "/"
    if not has_other_rows and H5pyRows.can_read(_paths(dataset), dataset.columns, group):
        plain = H5pyRows(_paths(dataset), dataset.columns, group)
        note = " ".join(filter(None, [plain.held_in_cache(), plain.opened_again()]))
        for workers, name in ((0, "h5py, DataLoader"), (_WORKERS, f"h5py, DataLoader, {_WORKERS} workers")):
            ways[name] = _rows_of(plain_batches(copy.copy(plain), batch_size, workers))  # each opens the files itself
    for threads in sorted({1, 2, min(8, max(2, cpu_count()))}):
        ways[f"loader, {counted(threads, 'thread')}"] = _rows_of(loader(dataset, batch_size, threads=threads))
    if with_ray:
        ray_h5.quiet()
        ds = ray_h5.read_h5(paths, shuffle=True, **options)
        batches = ds.iter_torch_batches(batch_size=batch_size, collate_fn=ray_h5.TorchCollate())
        ways["read_h5, iter_torch_batches"] = _rows_of(batches)
    first, *others = _in_turn(ways, seconds)
    return [replace(first, note=note), *others]


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
    return "\n".join([*rows, *filter(None, [base.note]), limit, loop_line()])


def _paths(dataset: H5Dataset) -> list[str]:
    files = dataset.index.files
    return [files.path(number) for number in range(len(files))]


class H5pyRows:
    """A plain Dataset over h5py: each column of each row by one call. The files that were read last stay open.

    Parameters
    ----------
    paths, columns, group
        The files, and which of their datasets.
    """

    def __init__(self, paths: Sequence[str], columns: Sequence[str], group: str) -> None:
        self.paths, self.columns, self.group = paths, columns, group
        lengths = []
        # Closed again: workers are forked, and libhdf5's handles are of one process.
        for path in paths:
            with h5py.File(path, "r") as file:
                lengths.append(len(file[group][columns[0]]))
        self.ends = np.cumsum(lengths)

    @staticmethod
    def can_read(paths: Sequence[str], columns: Sequence[str], group: str) -> bool:
        """Return whether h5py reads the same rows by ``file[column][row]``, as far as the first file says so."""
        if any(is_url(path) for path in paths):
            return False
        with h5py.File(paths[0], "r") as file:
            return all(isinstance(file[group].get(name), h5py.Dataset) for name in columns)

    @cached_property
    def _open(self) -> LRU[dict[str, h5py.Dataset]]:
        """The datasets of the files that were read last, by number. It is made by the process that reads."""
        return LRU(max_open(_MOST_OPEN), _MOST_CACHED_BYTES, _cached_bytes, keeps_last=True)

    def _datasets(self, number: int) -> dict[str, h5py.Dataset]:
        datasets = self._open.get(number)
        if datasets is None:
            group = h5py.File(self.paths[number], "r")[self.group]  # open as long as one of its datasets
            datasets = {name: group[name] for name in self.columns}
            self._open.put(number, datasets)
        return datasets

    def __len__(self) -> int:
        return int(self.ends[-1])

    def __getitem__(self, row: int) -> dict[str, Any]:
        number = int(np.searchsorted(self.ends, row, "right"))
        local = row - (int(self.ends[number - 1]) if number else 0)
        return {name: column[local] for name, column in self._datasets(number).items()}

    def held_in_cache(self) -> str:
        """Return which columns h5py decodes once, as its chunk cache holds all of their chunks; nothing if it has none.

        A cache is of one dataset, so that many small files are held as a large one is not.
        """
        held, size = set(self.columns), 0
        for path in self.paths:
            with h5py.File(path, "r") as file:
                for name in [*held]:
                    dataset = file[self.group][name]
                    size = _cache_size(dataset)
                    if dataset.chunks is None or _decoded_bytes(dataset) > size:
                        held.remove(name)
            if not held:
                return ""
        return (
            f"h5py decodes {few(sorted(held))} once, and not for each row: its chunk cache of {size / 2**20:.0f} MiB "
            "holds all chunks of a file. With larger files of this kind h5py is slower."
        )

    def opened_again(self) -> str:
        """Return that files are opened again and again; nothing if all of them may be open."""
        most, count = max_open(_MOST_OPEN), len(self.paths)
        return f"h5py has {most} of {count} files open at a time, and opens the others again." if count > most else ""


def _cache_size(dataset: h5py.Dataset) -> int:
    """Return the bytes of the chunk cache of a dataset."""
    return int(dataset.id.get_access_plist().get_chunk_cache()[1])


def _cached_bytes(datasets: dict[str, h5py.Dataset]) -> int:
    """Return the bytes that the chunk caches of the datasets of a file may hold."""
    chunked = [dataset for dataset in datasets.values() if dataset.chunks is not None]
    return sum(min(_cache_size(dataset), _decoded_bytes(dataset)) for dataset in chunked)


def _decoded_bytes(dataset: h5py.Dataset) -> int:
    """Return the bytes of all chunks of a dataset, decoded."""
    counts = (-(-length // chunk) for length, chunk in zip(dataset.shape, dataset.chunks, strict=True))
    return math.prod(counts) * math.prod(dataset.chunks) * dataset.dtype.itemsize


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
            None
            if name.startswith("read_h5") or name.endswith("workers")
            else statistics.median(cpu for _, cpu, _ in figures),
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
