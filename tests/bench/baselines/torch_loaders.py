"""The plain PyTorch way: a map-style Dataset of HDF5 samples in a DataLoader."""

from __future__ import annotations

import bisect
import itertools
from typing import TYPE_CHECKING, Any

import h5py
import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["LARGE_CHUNK_CACHE", "LazyH5Dataset", "PlainH5Dataset", "lazy_loader", "plain_loader"]

LARGE_CHUNK_CACHE = 128 << 20
"""A chunk cache that holds all rows of a dataset of the workloads, decoded, after the first epoch."""

SMALL_CHUNK_CACHE = 1 << 20
"""The default of libhdf5 before 2.0. Its default now, 8 MiB a dataset, keeps most rows of a small workload decoded."""


class PlainH5Dataset(Dataset[dict[str, torch.Tensor]]):
    """Samples of several HDF5 files, read one at a time, each a dict of tensors.

    Files are opened at the first sample that is read from them, so each loader worker has its own handles.

    Parameters
    ----------
    paths
        The files, whose rows follow each other.
    columns
        Columns of a sample.
    chunk_cache_bytes
        The chunk cache of each dataset (``rdcc_nbytes``); by default that of h5py, which is 1 MiB or a little more.
    """

    def __init__(self, paths: Sequence[str], columns: Sequence[str], chunk_cache_bytes: int | None = None) -> None:
        self._options = {} if chunk_cache_bytes is None else {"rdcc_nbytes": chunk_cache_bytes}
        self._paths = list(paths)
        self._columns = list(columns)
        self._datasets: dict[int, dict[str, Any]] = {}
        counts = []
        for path in paths:
            with h5py.File(path, "r") as file:
                counts.append(len(file[columns[0]]))
        self._ends = list(itertools.accumulate(counts))

    def __len__(self) -> int:
        return self._ends[-1]

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        number = bisect.bisect_right(self._ends, index)
        row = index - (self._ends[number - 1] if number else 0)
        if number not in self._datasets:
            file = h5py.File(self._paths[number], "r", **self._options)
            self._datasets[number] = {name: file[name] for name in self._columns}
        return {name: torch.as_tensor(np.asarray(d[row])) for name, d in self._datasets[number].items()}


def plain_loader(
    paths: Sequence[str],
    columns: Sequence[str],
    *,
    batch_size: int,
    num_workers: int,
    shuffle: bool = False,
    chunk_cache_bytes: int | None = None,
) -> DataLoader[dict[str, torch.Tensor]]:
    """Return a DataLoader over `PlainH5Dataset` with the default collate.

    Its workers are persistent: their start is not timed.
    """
    return DataLoader(
        PlainH5Dataset(paths, columns, chunk_cache_bytes),
        batch_size=batch_size,
        shuffle=shuffle,
        num_workers=num_workers,
        persistent_workers=num_workers > 0,
    )


class LazyH5Dataset(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """(x, y) pairs of one HDF5 file, opened at the first sample and read one at a time.

    Parameters
    ----------
    path
        The file.
    x_key, y_key
        Its datasets of inputs and targets.
    """

    def __init__(self, path: str, x_key: str, y_key: str) -> None:
        self._path, self._keys = path, (x_key, y_key)
        self._datasets: tuple[Any, Any] | None = None
        with h5py.File(path, "r") as file:
            self._length = len(file[x_key])

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        if self._datasets is None:
            file = h5py.File(self._path, "r", rdcc_nbytes=256 << 20, rdcc_nslots=1_000_003)
            self._datasets = (file[self._keys[0]], file[self._keys[1]])
        x, y = self._datasets
        return torch.from_numpy(x[index]), torch.from_numpy(np.asarray(y[index]))


def lazy_loader(
    path: str, x_key: str, y_key: str, *, batch_size: int, num_workers: int, shuffle: bool = False
) -> DataLoader[tuple[torch.Tensor, torch.Tensor]]:
    """Return a DataLoader over `LazyH5Dataset`, as `plain_loader` does over `PlainH5Dataset`."""
    return DataLoader(
        LazyH5Dataset(path, x_key, y_key),
        batch_size=batch_size,
        shuffle=shuffle,
        num_workers=num_workers,
        persistent_workers=num_workers > 0,
    )
