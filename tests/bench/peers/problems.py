"""The cases of ``python -m tests.bench peers``: HDF5 files, their rows in plain h5py, and what our loader is asked for.

The names of columns are short, because some formats take no slash in a name.
"""

from __future__ import annotations

import math
import os
import tempfile
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import h5py
import numpy as np
from torch.utils.data import Dataset

from ray_h5.columns.user_columns import csr
from ray_h5.rows.groups_and_grids import Groups
from ray_h5.rows.patches import Patches
from ray_h5.rows.windows import Windows
from tests.bench.baselines.group_reads import slice_windows
from tests.bench.baselines.torch_loaders import PlainH5Dataset
from tests.bench.cases.patches import make_volume
from tests.bench.group_workloads import DEMO_PATTERN, make_demos
from tests.bench.sparse_workloads import make_cells
from tests.bench.workloads import make_workload

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

__all__ = ["OFFSETS", "PROBLEMS", "Problem", "make_problem"]

_PIECE = 64
"""Rows that a conversion reads by one call."""

OFFSETS = {"obs/image": range(-1, 1), "actions": range(16)}
"""The steps of a window, by column."""

_BLOCK, _STEP = 64, 32

Arrays = dict[str, np.ndarray[Any, Any]]


@dataclass(frozen=True, slots=True)
class Problem:
    """Rows of HDF5 files that every contestant delivers, shuffled, in batches.

    Attributes
    ----------
    name, paths
        The case, and its files.
    columns
        The dtype and shape of a row, by short name.
    rows, batch
        Rows of all files, and of a batch.
    parts
        Pieces of the files, for those who convert.
    names
        Our name of each column.
    store
        The folder that a server of S3 has: its first folders are buckets. Empty if files are read from the disk.
    """

    name: str
    paths: tuple[str, ...]
    columns: Mapping[str, tuple[str, tuple[int, ...]]]
    rows: int
    batch: int
    parts: tuple[tuple[Any, ...], ...]
    names: dict[str, str]
    store: str = ""

    def url(self, path: str) -> str:
        """Return where a file or folder is read."""
        return f"s3://{os.path.relpath(path, self.store)}" if self.store else path

    def kept(self, out: str) -> str | None:
        """Return a new folder for what a reader of a store keeps; None if files are read from the disk."""
        return tempfile.mkdtemp(prefix="kept-", dir=out) if self.store else None

    def ours(self) -> dict[str, Any]:
        """Return the options of our loader."""
        return {"columns": list(self.names.values())}

    def samples(self, part: int) -> Iterator[Arrays]:
        """Yield the rows of a part, read by plain h5py in slices: what a conversion writes."""
        path, first, stop = self.parts[part]
        with h5py.File(path) as file:
            for start in range(first, stop, _PIECE):
                read = {short: file[name][start : min(start + _PIECE, stop)] for short, name in self.names.items()}
                for row in range(len(next(iter(read.values())))):
                    yield {short: values[row] for short, values in read.items()}

    def dataset(self) -> Dataset[Any]:
        """Return the usual Dataset: a row a call, by plain h5py."""
        return PlainH5Dataset(self.paths, list(self.names.values()))

    @property
    def row_bytes(self) -> int:
        """Bytes of a row."""
        return sum(np.dtype(dtype).itemsize * math.prod(shape) for dtype, shape in self.columns.values())


def _table(name: str, workload: str, size: float, folder: str | None, files: slice, names: tuple[str, ...]) -> Problem:
    made = make_workload(workload, folder, size)
    paths, rows = made.paths[files], made.rows // len(made.paths)
    found = {each.name: each for each in made.columns}
    columns = {each: (np.dtype(found[each].dtype).name, found[each].shape) for each in names}
    half = -(-rows // 2)
    parts = tuple((path, first, min(first + half, rows)) for path in paths for first in range(0, rows, half))
    return Problem(name, paths, columns, rows * len(paths), 64, parts, {each: each for each in names})


def _signals(folder: str | None, size: float) -> Problem:
    return _table("signals", "signals", size, folder, slice(None), ("fhr_st", "target", "weight"))


def _store(folder: str | None, size: float) -> Problem:
    made = _signals(folder, 0.1 * size)
    return replace(made, name="store", store=os.path.dirname(os.path.dirname(made.paths[0])))


def _images(folder: str | None, size: float) -> Problem:
    made = make_workload("images", folder, size)
    (at,) = [
        number for number, each in enumerate(made.layouts) if (each.chunk_rows, each.pipeline) == (16, "shuffle+zstd")
    ]
    return _table("images", "images", size, folder, slice(at, at + 1), ("image_u1",))


class _Windows(Problem):
    """A window is a row: 2 images and 16 actions, repeated at the ends of an episode."""

    __slots__ = ()

    def ours(self) -> dict[str, Any]:
        return {"columns": list(OFFSETS), "rows": Groups(DEMO_PATTERN), "windows": Windows(OFFSETS)}

    def samples(self, part: int) -> Iterator[Arrays]:
        path, group, length = self.parts[part]
        with h5py.File(path) as file:
            read = {f"{group}/{name}": file[f"{group}/{name}"][:] for name in OFFSETS}
        for step in range(length):
            yield self.short(slice_windows(read, [(group, step, length)], OFFSETS))

    def short(self, found: Arrays) -> Arrays:
        return {short: found[name][0] for short, name in self.names.items()}

    def dataset(self) -> Dataset[Any]:
        ends = np.cumsum([length for _, _, length in self.parts])
        starts = ends - [length for _, _, length in self.parts]

        def row(file: h5py.File, index: int) -> Arrays:
            number = int(np.searchsorted(ends, index, side="right"))
            _, group, length = self.parts[number]
            return self.short(slice_windows(file, [(group, index - int(starts[number]), length)], OFFSETS))

        return _Opened(self.paths[0], self.rows, row)


def _windows(folder: str | None, size: float) -> Problem:
    path = make_demos(folder, max(0.0002, 0.005 * size), gzip=False).path
    with h5py.File(path) as file:
        # In the order of the names, as ours are.
        groups = sorted(file["data"], key=lambda name: int(name.rpartition("_")[2]))
        parts = tuple((path, f"data/{name}", len(file[f"data/{name}/actions"])) for name in groups)
        first = {name: file[f"{parts[0][1]}/{name}"] for name in OFFSETS}
        columns = {
            name.rpartition("/")[2]: (each.dtype.name, (len(OFFSETS[name]), *each.shape[1:]))
            for name, each in first.items()
        }
    names = {name.rpartition("/")[2]: name for name in OFFSETS}
    return _Windows("windows", (path,), columns, sum(length for _, _, length in parts), 64, parts, names)


class _Cells(Problem):
    """A cell is a row: the counts of all genes, dense."""

    __slots__ = ()

    def ours(self) -> dict[str, Any]:
        return {"columns": [csr("X")]}

    def samples(self, part: int) -> Iterator[Arrays]:
        path, first, stop = self.parts[part]
        with h5py.File(path) as file:
            for index in range(first, stop):
                yield self.row(file, index)

    def row(self, file: h5py.File, index: int) -> Arrays:
        start, stop = file["X/indptr"][index : index + 2].tolist()
        counts = np.zeros(self.columns["X"][1], np.float32)
        counts[file["X/indices"][start:stop]] = file["X/data"][start:stop]
        return {"X": counts}

    def dataset(self) -> Dataset[Any]:
        return _Opened(self.paths[0], self.rows, self.row)


def _cells(folder: str | None, size: float) -> Problem:
    made = make_cells(folder, max(0.0004, 0.01 * size), gzip=True)
    columns = {"X": ("float32", (made.genes,))}
    return _Cells("cells", (made.path,), columns, made.cells, 64, ((made.path, 0, made.cells),), {"X": "X"})


class _Patches(Problem):
    """A block of a volume and of its labels is a row; blocks overlap by half."""

    __slots__ = ()

    def ours(self) -> dict[str, Any]:
        return {
            "columns": list(self.names),
            "rows": Patches({name: shape for name, (_, shape) in self.columns.items()}, stride=_STEP),
        }

    def samples(self, part: int) -> Iterator[Arrays]:
        with h5py.File(self.paths[0]) as file:
            for index in range(*self.parts[part]):
                yield self.row(file, index)

    def row(self, file: h5py.File, index: int) -> Arrays:
        steps = round(self.rows ** (1 / 3))
        corner = [int(each) * _STEP for each in np.unravel_index(index, (steps,) * 3)]
        cut = tuple(slice(low, low + _BLOCK) for low in corner)
        return {name: file[name][cut] for name in self.names}

    def dataset(self) -> Dataset[Any]:
        return _Opened(self.paths[0], self.rows, self.row)


def _patches(folder: str | None, size: float) -> Problem:
    steps = max(2, 1 + round(4 * size ** (1 / 3)))
    side = _BLOCK + (steps - 1) * _STEP
    path = make_volume(folder, (side / 320) ** 3)
    block = (_BLOCK,) * 3
    columns = {"raw": ("uint16", block), "label": ("uint8", block)}
    rows = steps**3
    return _Patches("patches", (path,), columns, rows, 8, ((0, rows),), {"raw": "raw", "label": "label"})


class _Opened(Dataset[Any]):
    """Rows of one file, which each process opens for itself at its first row."""

    def __init__(self, path: str, rows: int, read: Callable[[h5py.File, int], Arrays]) -> None:
        self._path, self._rows, self._read = path, rows, read
        self._file: h5py.File | None = None

    def __len__(self) -> int:
        return self._rows

    def __getitem__(self, index: int) -> Arrays:
        if self._file is None:
            self._file = h5py.File(self._path)
        return self._read(self._file, index)


PROBLEMS: dict[str, Callable[[str | None, float], Problem]] = {
    "signals": _signals,
    "images": _images,
    "windows": _windows,
    "cells": _cells,
    "patches": _patches,
    "store": _store,
}
"""The cases by name."""


def make_problem(name: str, folder: str | None, size: float) -> Problem:
    """Return a case; its files are made unless an earlier call has made them."""
    return PROBLEMS[name](folder, size)
