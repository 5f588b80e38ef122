"""The files of ``python -m tests.bench remote``: a bucket on disk, with one file for each layout."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import h5py
import numpy as np

from tests.bench.workloads import cached_folder

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["BUCKET", "RemoteFiles", "make_remote_files"]

BUCKET = "bench"
ROW_VALUES = 12_500
"""float32 values of a row of `rows.h5`: 50 KB."""

_ROWS = 8_000
_SMALL_ROWS = 20_000
_SMALL_VALUES = 1_024
_RUNS = 1_000
_RUN_ROWS = 32
_PAGE_BYTES = 4 << 20
"""Holds the metadata of a file: each page is a request of its own."""

_AT_ONCE = 256

LAYOUTS: Mapping[str, Mapping[str, Any]] = {
    "contiguous": {},
    "paged": {"fs_strategy": "page", "fs_page_size": _PAGE_BYTES},
    "default": {},
}
"""The files whose planning is counted, and how they are made: 3 columns of 4 KiB a row, and a label."""


@dataclass(frozen=True, slots=True)
class RemoteFiles:
    """A folder with a bucket.

    Attributes
    ----------
    root : str
        The folder, as `FaultServer` takes it.
    rows : int
        Rows of ``rows.h5``: one chunk of 50 KB each.
    runs : int
        Files in ``runs/``.
    """

    root: str
    rows: int
    runs: int

    def local(self, name: str) -> str:
        """Return the path of a file on this disk."""
        return os.path.join(self.root, BUCKET, name)

    @property
    def rows_bytes(self) -> int:
        """Bytes of the rows of ``rows.h5``."""
        return self.rows * ROW_VALUES * 4


def make_remote_files(folder: str | None, size: float) -> RemoteFiles:
    """Return the files; make them unless an earlier call has made them."""
    rows, small, runs = (max(8, round(full * size)) for full in (_ROWS, _SMALL_ROWS, _RUNS))
    root = cached_folder(folder, f"remote-v2-size{size:g}", partial(_write, rows=rows, small=small, runs=runs))
    return RemoteFiles(root, rows, runs)


def _write(target: str, rows: int, small: int, runs: int) -> None:
    bucket = Path(target) / BUCKET
    (bucket / "runs").mkdir(parents=True)
    random = np.random.default_rng(0)
    _write_rows(bucket / "rows.h5", rows, random)
    for name, options in LAYOUTS.items():
        _write_small(bucket / f"{name}.h5", small, None if name == "contiguous" else 1, options, random)
    for number in range(runs):
        _write_small(bucket / "runs" / f"run_{number:04}.h5", _RUN_ROWS, 4, {}, random)


def _write_rows(path: Path, rows: int, random: np.random.Generator) -> None:
    with h5py.File(path, "w") as file:
        signal = file.create_dataset("signal", (rows, ROW_VALUES), "f4", chunks=(1, ROW_VALUES))
        file["label"] = random.integers(0, 10, rows)
        for first in range(0, rows, _AT_ONCE):
            count = min(_AT_ONCE, rows - first)
            signal[first : first + count] = random.random((count, ROW_VALUES), np.float32)


def _write_small(
    path: Path, rows: int, chunk_rows: int | None, options: Mapping[str, Any], random: np.random.Generator
) -> None:
    chunks = None if chunk_rows is None else (chunk_rows, _SMALL_VALUES)
    with h5py.File(path, "w", **options) as file:
        columns = [file.create_dataset(name, (rows, _SMALL_VALUES), "f4", chunks=chunks) for name in "abc"]
        file["label"] = random.integers(0, 10, rows)
        for first in range(0, rows, _AT_ONCE):
            count = min(_AT_ONCE, rows - first)
            for column in columns:  # their chunks alternate, as when rows are appended to all columns
                column[first : first + count] = random.random((count, _SMALL_VALUES), np.float32)
