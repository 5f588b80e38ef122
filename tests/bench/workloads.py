"""The files that the benches and examples read: generated from a seed once, and kept on disk.

`signals` (W1) has recordings of physiological signals after feature extraction: few files, rows of about 300 KB, one
chunk a row, LZF. `images` (W2) has images with many rows a chunk, one file for each chunk size and filter pipeline.
`flat` (W3) has images in contiguous columns. `wide` (W4) is a table of a million short rows with a vector each, a
thousand rows a chunk.
"""

from __future__ import annotations

import os
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import h5py
import numpy as np

from ray_h5.errors import OptionError
from tests.bench.recipes import RECIPES, Column, Layout, Recipe, RowSpan

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Workload", "cached_folder", "make_workload"]


@dataclass(frozen=True, slots=True)
class Workload:
    """Files on disk, and their columns and layouts.

    Parameters
    ----------
    name
        Name in `RECIPES`.
    paths
        The files, in order.
    rows
        Rows of all files together; all files have the same number.
    columns
        The columns of every file.
    layouts
        The layout of each file.
    """

    name: str
    paths: tuple[str, ...]
    rows: int
    columns: tuple[Column, ...]
    layouts: tuple[Layout, ...]

    def row_bytes(self, names: tuple[str, ...]) -> int:
        """Return the decoded bytes of one row of the named columns."""
        return sum(column.row_bytes for column in self.columns if column.name in names)


def make_workload(name: str, folder: str | None = None, size: float = 1.0, seed: int = 0) -> Workload:
    """Return a workload; make its files unless an earlier call has made them.

    In `signals`, class c of `target` raises channel c of `fhr_st` by `CLASS_OFFSET` standard deviations at the same
    time steps, so a model can learn `target` from `fhr_st`. All other values are independent noise. `target` (class
    ids) and `weight` (1 where valid, else 0) stay the same for many time steps. Each patient (`guid`) has 20
    neighbouring rows in one file. `epoch` is 0 .. 59.

    Parameters
    ----------
    name
        A key of `RECIPES`.
    folder
        The folder of the workloads, each in a folder of its own; by default a folder of this user below the system's
        temporary folder.
    size
        Scales the rows of each file.
    seed
        The same seed gives the same values.

    Returns
    -------
    Workload

    Raises
    ------
    OptionError
        If no workload has that name.
    """
    if name not in RECIPES:
        raise OptionError(f"no workload {name!r}: expected one of {', '.join(sorted(RECIPES))}")
    recipe = RECIPES[name]
    file_rows = max(1, round(recipe.file_rows * size))
    file_names = [f"{name}_{number}.h5" for number in range(len(recipe.layouts))]

    def write(target: str) -> None:
        for number, file_name in enumerate(file_names):
            rng = np.random.default_rng([seed, number])
            _write_file(os.path.join(target, file_name), recipe, number, file_rows, rng)

    made = cached_folder(folder, f"{name}-v{recipe.version}-size{size:g}-seed{seed}", write)
    paths = tuple(os.path.join(made, file_name) for file_name in file_names)
    return Workload(name, paths, file_rows * len(paths), recipe.columns, recipe.layouts)


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
        try:
            staged.rename(target)
        except OSError:
            # Another process has made the same folder meanwhile.
            if not target.is_dir():
                raise
    return str(target)


def _write_file(path: str, recipe: Recipe, number: int, rows: int, rng: np.random.Generator) -> None:
    layout = recipe.layouts[number]
    with h5py.File(path, "w", libver=layout.libver) as file:
        datasets = {
            column.name: file.create_dataset(column.name, **layout.dataset_options(column, rows))
            for column in recipe.columns
        }
        for first in range(0, rows, recipe.rows_per_write):
            span = RowSpan(number, first, min(first + recipe.rows_per_write, rows), rows)
            for name, array in recipe.draw(rng, span).items():
                datasets[name][span.first : span.stop] = array
    # Otherwise the kernel writes a gigabyte to the disk while the first turns are timed.
    with open(path, "rb") as written:
        os.fsync(written.fileno())
