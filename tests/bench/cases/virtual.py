"""Bench `virtual`: shuffled rows of a virtual dataset over 100 files, and of columns behind external links."""

from __future__ import annotations

import itertools
import os
import zlib
from functools import partial
from typing import TYPE_CHECKING, Any

import h5py
import numpy as np

from ray_h5.read.reader import RowReader
from tests.bench.measure import OURS, Contest, Result, run_turns
from tests.bench.workloads import cached_folder

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.bench import BenchOptions

__all__ = ["bench_virtual"]

_FILES, _ROWS, _WIDTH = 100, 3000, 256
_LINKS = 16
_BATCH_ROWS = 2048
_CHUNK_ROWS = 16
_KINDS: dict[str, dict[str, Any]] = {
    "contiguous": {},
    "gzip": {"chunks": (_CHUNK_ROWS, _WIDTH), "compression": "gzip"},
}
_SORTED, _ONE_BY_ONE, _BARE = "h5py, sorted", "h5py, row by row", "bare loop"
_GOALS = {
    "contiguous": {_SORTED: 3, _ONE_BY_ONE: 5, _BARE: 0.6},
    "gzip": {_SORTED: 2, _ONE_BY_ONE: 2, _BARE: 1.3},
}
"""The bare loop has all planned before it is timed, and calls pread and zlib once a row or chunk: what is far above it
cannot be reached unless decoded values are kept."""


def bench_virtual(options: BenchOptions) -> list[Result]:
    """Measure shuffled batches of rows, other ones in each turn. No contestant keeps decoded chunks.

    Raises
    ------
    RuntimeError
        If a batch is not what h5py reads.
    """
    found: list[Result] = []
    rows = max(_BATCH_ROWS // _LINKS, round(_ROWS * options.size))
    rng = np.random.default_rng(0)
    order = rng.permutation(_FILES * rows)
    batches = [order[first : first + _BATCH_ROWS] for first in range(0, len(order), _BATCH_ROWS)]
    linked = [rng.choice(rows, _BATCH_ROWS // _LINKS, replace=False) for _ in batches]
    for kind, stored in _KINDS.items():
        folder = cached_folder(options.folder, f"virtual-linked-{kind}-{rows}", partial(_write, rows, stored))
        bare = _Bare(folder, rows)
        with (
            RowReader(os.path.join(folder, "all.h5"), allow_external=[folder]) as reader,
            h5py.File(reader.path, rdcc_nbytes=0) as file,
        ):
            stack, links = file["x"], [file[name] for name in _names()]
            cases: dict[str, tuple[list[np.ndarray], dict[str, Callable[[np.ndarray], np.ndarray]]]] = {
                f"{kind}, {_BATCH_ROWS} rows": (
                    batches,
                    {
                        OURS: lambda order: reader.read(["x"], order)["x"],
                        _SORTED: partial(_sorted, [stack]),
                        _ONE_BY_ONE: partial(_one_by_one, [stack]),
                        _BARE: bare.stack,
                    },
                ),
                f"{kind}, {_LINKS} links": (
                    linked,
                    {
                        OURS: lambda order: np.concatenate([*reader.read(_names(), order).values()]),
                        _SORTED: partial(_sorted, links),
                        _ONE_BY_ONE: partial(_one_by_one, links),
                        _BARE: bare.links,
                    },
                ),
            }
            for case, (orders, reads) in cases.items():
                expected = reads[_SORTED](orders[0])
                if not all(np.array_equal(read(orders[0]), expected) for read in reads.values()):
                    raise RuntimeError(f"{reader.path}: rows differ from those of h5py")
                contestants = {name: partial(_next, each, itertools.cycle(orders)) for name, each in reads.items()}
                contest = Contest("virtual", case, run_turns(contestants, options.turns))
                found += [
                    contest.against(name, amount=expected.nbytes / 1e6, unit="MB/s", goal=goal)
                    for name, goal in _GOALS[kind].items()
                ]
    return found


def _names() -> list[str]:
    return [f"link{number}" for number in range(_LINKS)]


def _next(read: Callable[[np.ndarray], np.ndarray], orders: Iterator[np.ndarray]) -> np.ndarray:
    return read(next(orders))


class _Bare:
    """The same rows by a plain loop. Where each row or chunk is was looked up before."""

    def __init__(self, folder: str, rows: int) -> None:
        self._rows = rows
        paths = [os.path.join(folder, f"{number}.h5") for number in range(_FILES)]
        self._files = [os.open(path, os.O_RDONLY) for path in paths]
        self._places = [_places(path) for path in paths]

    def __del__(self) -> None:
        for each in self._files:
            os.close(each)

    def stack(self, order: np.ndarray) -> np.ndarray:
        return self._read(*np.divmod(order, self._rows))

    def links(self, order: np.ndarray) -> np.ndarray:
        return self._read(np.repeat(np.arange(_LINKS), len(order)), np.tile(order, _LINKS))

    def _read(self, files: np.ndarray, rows: np.ndarray) -> np.ndarray:
        out = np.empty((len(rows), _WIDTH), "f4")
        bytes_of, row_bytes = out.data.cast("B"), out.strides[0]
        places = np.lexsort((rows, files))
        held, chunk = (-1, -1), out
        for place, file, row in zip(places.tolist(), files[places].tolist(), rows[places].tolist(), strict=True):
            if isinstance(self._places[file], int):
                into = bytes_of[place * row_bytes : (place + 1) * row_bytes]
                os.preadv(self._files[file], [into], self._places[file] + row * row_bytes)
                continue
            number, within = divmod(row, _CHUNK_ROWS)
            if held != (file, number):
                held = file, number
                stored = os.pread(self._files[file], *self._places[file][number])
                chunk = np.frombuffer(zlib.decompress(stored), "f4").reshape(-1, _WIDTH)
            out[place] = chunk[within]
        return out


def _places(path: str) -> Any:
    """Return where the values of a file begin, or the size and the offset of each chunk."""
    with h5py.File(path) as file:
        dataset = file["x"].id
        if dataset.get_offset() is not None:
            return dataset.get_offset()
        found = [dataset.get_chunk_info(number) for number in range(dataset.get_num_chunks())]
        return [(each.size, each.byte_offset) for each in sorted(found, key=lambda each: each.chunk_offset)]


def _write(rows: int, stored: dict[str, Any], folder: str) -> None:
    """Write the files, a virtual dataset of all of them, and links to some."""
    rng = np.random.default_rng(0)
    layout = h5py.VirtualLayout((_FILES * rows, _WIDTH), "f4")
    for number in range(_FILES):
        name = f"{number}.h5"
        with h5py.File(os.path.join(folder, name), "w") as file:
            file.create_dataset("x", data=rng.integers(0, 99, (rows, _WIDTH)).astype("f4"), **stored)
        layout[number * rows : (number + 1) * rows] = h5py.VirtualSource(name, "x", (rows, _WIDTH))
    with h5py.File(os.path.join(folder, "all.h5"), "w") as file:
        file.create_virtual_dataset("x", layout)
        for number, name in enumerate(_names()):
            file[name] = h5py.ExternalLink(f"{number}.h5", "/x")


def _sorted(datasets: list[h5py.Dataset], order: np.ndarray) -> np.ndarray:
    ascending, places = np.unique(order, return_inverse=True)
    return np.concatenate([each[ascending][places] for each in datasets])


def _one_by_one(datasets: list[h5py.Dataset], order: np.ndarray) -> np.ndarray:
    return np.stack([each[row] for each in datasets for row in order.tolist()])
