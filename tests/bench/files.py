"""Files of rows that the benches read: made from a seed once, and kept on disk.

`signals` (W1) has recordings after feature extraction: rows of about 300 KB, one chunk a row, LZF. `images` (W2) has
one file for each chunk size and filter pipeline, and one of contiguous columns. `wide` (W4) is a table of a million
short rows with a vector each, a thousand rows a chunk.
"""

from __future__ import annotations

import math
import os
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import hdf5plugin
import numpy as np

from examples.files import DTYPES, SHAPES, draw_signals

SIGNALS = ("fhr_st", "target", "weight")
"""The columns of `signals` that most benches read."""

_PIPELINES: Mapping[str, Mapping[str, Any]] = {
    "none": {},
    "shuffle+gzip": {"shuffle": True, "compression": "gzip", "compression_opts": 4},
    "shuffle+lzf": {"shuffle": True, "compression": "lzf"},
    "shuffle+zstd": {"shuffle": True, **hdf5plugin.Zstd(clevel=3)},
    "blosc": hdf5plugin.Blosc(cname="lz4", clevel=5, shuffle=hdf5plugin.Blosc.SHUFFLE),
    "lz4": hdf5plugin.LZ4(),
    "bitshuffle": hdf5plugin.Bitshuffle(cname="lz4"),
}
"""Of `images`, each with 16 and with 128 rows a chunk."""

_OTHERS: Mapping[str, Mapping[str, Any]] = {
    "lzf": {"compression": "lzf"},
    "shuffle+gzip1": {"shuffle": True, "compression": "gzip", "compression_opts": 1},
}

Arrays = dict[str, np.ndarray[Any, Any]]


@dataclass(frozen=True, slots=True)
class Layout:
    """How a file is stored: rows a chunk (None is contiguous), and the filter pipeline."""

    chunk_rows: int | None = None
    pipeline: str = "none"
    libver: str | None = None

    def options(self, shape: tuple[int, ...], dtype: Any, rows: int) -> dict[str, Any]:
        """Return the arguments of ``create_dataset`` for a column."""
        chunks = {} if self.chunk_rows is None else {"chunks": (self.chunk_rows, *shape), "maxshape": (None, *shape)}
        return {"shape": (rows, *shape), "dtype": dtype, **chunks, **{**_PIPELINES, **_OTHERS}[self.pipeline]}


@dataclass(frozen=True, slots=True)
class Recipe:
    """How a workload is made. `draw` gets a generator, the number of the file, some rows, and the rows of a file."""

    layouts: tuple[Layout, ...]
    file_rows: int
    columns: Mapping[str, tuple[tuple[int, ...], Any]]
    draw: Callable[[np.random.Generator, int, range, int], Arrays]
    rows_per_write: int = 50


@dataclass(frozen=True, slots=True)
class Workload:
    """Files on disk, the rows of all together, shape and dtype of a row of each column, and the layout of each file."""

    paths: tuple[str, ...]
    rows: int
    columns: Mapping[str, tuple[tuple[int, ...], Any]]
    layouts: tuple[Layout, ...]

    @property
    def file_rows(self) -> int:
        """Rows of each file."""
        return self.rows // len(self.paths)

    def row_bytes(self, names: tuple[str, ...]) -> int:
        """Return the decoded bytes of one row of some columns."""
        return sum(math.prod(self.columns[name][0]) * np.dtype(self.columns[name][1]).itemsize for name in names)

    def paths_of(self, chunk_rows: int, pipeline: str) -> list[str]:
        """Return the files that have a layout."""
        pairs = zip(self.paths, self.layouts, strict=True)
        return [path for path, each in pairs if (each.chunk_rows, each.pipeline) == (chunk_rows, pipeline)]


def _draw_images(rng: np.random.Generator, _: int, rows: range, __: int) -> Arrays:
    # Like photographs in one respect: neighbouring values are similar, and their last bits are noise.
    coarse = rng.random((len(rows), 3, 8, 8), dtype=np.float32)
    smooth = np.repeat(np.repeat(coarse, 8, axis=2), 8, axis=3)
    grey = (smooth * 224 + rng.integers(0, 32, smooth.shape)).astype(np.uint8)
    return {"image_u1": grey, "image_f4": grey.astype(np.float32) / np.float32(255)}


def _draw_wide(rng: np.random.Generator, file: int, span: range, file_rows: int) -> Arrays:
    row, rows = np.array(span), len(span)
    return {
        "subject": (file * 25 + row * 25 // file_rows).astype(np.int32),  # 25 subjects a file
        "time": row.astype(np.float64) / 250,
        "label": rng.integers(0, 10, rows).astype(np.uint8),
        "quality": rng.random(rows, dtype=np.float32),
        "session": rng.integers(0, 4, rows).astype(np.uint8),
        "site": rng.integers(0, 7, rows).astype(np.uint8),
        "valid": rng.random(rows) < 0.9,
        "score": rng.standard_normal(rows, dtype=np.float32),
        "vector": np.round(rng.standard_normal((rows, 64), dtype=np.float32), 2),
    }


_SIGNAL_COLUMNS = {name: (shape, DTYPES.get(name, "f4")) for name, shape in SHAPES.items()}
_IMAGE_COLUMNS = {"image_u1": ((3, 64, 64), "u1"), "image_f4": ((3, 64, 64), "f4")}
_WIDE_COLUMNS = {
    "subject": ((), "i4"),
    "time": ((), "f8"),
    "label": ((), "u1"),
    "quality": ((), "f4"),
    "session": ((), "u1"),
    "site": ((), "u1"),
    "valid": ((), "?"),
    "score": ((), "f4"),
    "vector": ((64,), "f4"),
}
_IMAGE_LAYOUTS = (Layout(), *(Layout(rows, pipeline) for pipeline in _PIPELINES for rows in (16, 128)))

_RECIPES: Mapping[str, Recipe] = {
    "images": Recipe(_IMAGE_LAYOUTS, 2048, _IMAGE_COLUMNS, _draw_images, rows_per_write=128),
    "signals": Recipe((Layout(1, "lzf", "latest"),) * 4, 1000, _SIGNAL_COLUMNS, draw_signals),
    "wide": Recipe((Layout(1024, "shuffle+gzip1"),) * 16, 62_500, _WIDE_COLUMNS, _draw_wide, 8192),
}
_VERSION = 2
"""Part of the names of folders: raise it with every change of the written values."""


def make_workload(name: str, folder: str | None = None, size: float = 1.0) -> Workload:
    """Return a workload; make its files unless an earlier call has made them.

    Parameters
    ----------
    name
        ``"signals"``, ``"images"`` or ``"wide"``.
    folder
        The folder of all workloads; by default one of this user below the system's temporary folder.
    size
        Scales the rows of each file.
    """
    recipe = _RECIPES[name]
    file_rows = max(1, round(recipe.file_rows * size))
    names = [f"{name}_{number}.h5" for number in range(len(recipe.layouts))]

    def write(target: str) -> None:
        for number, file_name in enumerate(names):
            path = os.path.join(target, file_name)
            _write_file(path, recipe, number, file_rows, np.random.default_rng([0, number]))

    made = cached_folder(folder, f"{name}-v{_VERSION}-size{size:g}", write)
    paths = tuple(os.path.join(made, file_name) for file_name in names)
    return Workload(paths, file_rows * len(paths), recipe.columns, recipe.layouts)


def _write_file(path: str, recipe: Recipe, number: int, rows: int, rng: np.random.Generator) -> None:
    layout = recipe.layouts[number]
    with h5py.File(path, "w", libver=layout.libver) as file:
        for name, (shape, dtype) in recipe.columns.items():
            file.create_dataset(name, **layout.options(shape, dtype, rows))
        for first in range(0, rows, recipe.rows_per_write):
            span = range(first, min(first + recipe.rows_per_write, rows))
            for name, array in recipe.draw(rng, number, span, rows).items():
                file[name][span.start : span.stop] = array
    _to_disk(path)


def cached_folder(folder: str | None, key: str, write: Callable[[str], None]) -> str:
    """Return the folder `key` below `folder`; if it does not exist, let `write` fill it first.

    The returned folder is always complete: it gets its name only after `write` has returned.
    """
    parent = Path(folder or os.path.join(tempfile.gettempdir(), f"ray-h5-bench-{os.getuid()}")).absolute()
    parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    target = parent / key
    if target.is_dir():
        return str(target)
    with tempfile.TemporaryDirectory(prefix=f"{key}.", dir=parent) as temporary:
        staged = Path(temporary) / key
        staged.mkdir()
        write(str(staged))
        if not target.is_dir():  # another process may have made it meanwhile
            staged.rename(target)
    return str(target)


def one_file(folder: str | None, key: str, write: Callable[[h5py.File], None]) -> str:
    """Return the file of a key; `write` fills it unless an earlier call has made it."""

    def fill(target: str) -> None:
        path = os.path.join(target, "data.h5")
        with h5py.File(path, "w") as file:
            write(file)
        _to_disk(path)

    return os.path.join(cached_folder(folder, key, fill), "data.h5")


def _to_disk(path: str) -> None:
    """Write a file to the disk; otherwise the kernel does so while the first turns are timed."""
    with open(path, "rb") as written:
        os.fsync(written.fileno())
