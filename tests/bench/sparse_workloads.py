"""A file of cells (W7): counts of 20,000 genes in 50,000 cells as AnnData writes them, compressed or not."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import h5py
import numpy as np

from tests.bench.workloads import cached_folder

__all__ = ["CellFile", "make_cells"]

_CELLS = 50_000
_GENES = 20_000
_PIECE = 1_000
_MEDIAN_GENES = 600
_FEWEST, _MOST = 69, 3_125
_CLASSES = 14
_VERSION = 1

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class CellFile:
    """The file, and its numbers of cells and genes."""

    path: str
    cells: int
    genes: int


def make_cells(folder: str | None = None, size: float = 1.0, *, gzip: bool, seed: int = 0) -> CellFile:
    """Return the file of `cells`; make it unless an earlier call has made it.

    Parameters
    ----------
    folder
        The folder of the workloads; see `tests.bench.workloads.make_workload`.
    size
        Scales the number of cells.
    gzip
        Whether data and indices are compressed. They are in chunks in any case, at h5py's guess.
    seed
        The same seed gives the same values.
    """
    cells = max(256, round(_CELLS * size))
    key = f"cells-v{_VERSION}-{'gzip' if gzip else 'plain'}-size{size:g}-seed{seed}"

    def write(target: str) -> None:
        path = os.path.join(target, "cells.h5ad")
        with h5py.File(path, "w") as file:
            _write(file, cells, gzip, np.random.default_rng(seed))
        with open(path, "rb") as written:
            os.fsync(written.fileno())

    return CellFile(os.path.join(cached_folder(folder, key, write), "cells.h5ad"), cells, _GENES)


def _write(file: h5py.File, cells: int, gzip: bool, rng: np.random.Generator) -> None:
    file.attrs.update({"encoding-type": "anndata", "encoding-version": "0.1.0"})
    popularity = np.cumsum(1 / (np.arange(_GENES) + 50) ** 0.9)
    genes = rng.permutation(_GENES).astype(np.int32)
    parts = [
        _counts(min(_PIECE, cells - at), popularity / popularity[-1], genes, rng) for at in range(0, cells, _PIECE)
    ]
    data, indices, counts = (np.concatenate(each) for each in zip(*parts, strict=True))
    group = file.create_group("X")
    group.attrs.update({"encoding-type": "csr_matrix", "encoding-version": "0.1.0", "shape": (cells, _GENES)})
    options: dict[str, Any] = {"compression": "gzip"} if gzip else {}
    for name, values in (("data", data), ("indices", indices)):
        group.create_dataset(name, data=values, maxshape=(None,), **options)
    group.create_dataset("indptr", data=np.concatenate([[0], np.cumsum(counts)]).astype(np.int32), maxshape=(None,))
    _write_names(file, "obs", [f"cell{i}" for i in range(cells)], ["cell_type"])
    _write_names(file, "var", [f"gene{i}" for i in range(_GENES)], [])
    types = file.create_group("obs/cell_type")
    _encoded(types, "categorical", ordered=False)
    codes = (np.arange(cells) * _CLASSES // cells).astype(np.int8)  # classes follow each other
    _encoded(types.create_dataset("codes", data=codes), "array")
    _strings(types, "categories", [f"type{i}" for i in range(_CLASSES)])


def _counts(cells: int, shares: Array, genes: Array, rng: np.random.Generator) -> tuple[Array, Array, Array]:
    """Return values and genes of the entries of some cells, and the number of entries of each cell."""
    drawn = np.clip(rng.lognormal(np.log(_MEDIAN_GENES * 1.4), 0.5, cells), _FEWEST, _MOST).astype(np.int64)
    of = np.repeat(np.arange(cells), drawn)
    found = np.searchsorted(shares, rng.random(len(of)))
    entries, counts = np.unique(of * _GENES + genes[found], return_counts=True)
    return (
        counts.astype(np.float32),
        (entries % _GENES).astype(np.int32),
        np.bincount(entries // _GENES, minlength=cells),
    )


def _write_names(file: h5py.File, name: str, names: list[str], columns: list[str]) -> None:
    group = file.create_group(name)
    _encoded(group, "dataframe", _index="_index")
    group.attrs["column-order"] = np.array(columns, h5py.string_dtype())
    _strings(group, "_index", names)


def _strings(group: h5py.Group, name: str, values: list[str]) -> None:
    made = group.create_dataset(name, data=np.array(values, object), dtype=h5py.string_dtype())
    _encoded(made, "string-array")


def _encoded(made: h5py.Group | h5py.Dataset, kind: str, **attributes: object) -> None:
    made.attrs.update({"encoding-type": kind, "encoding-version": "0.2.0", **attributes})
