"""Epochs in PyTorch and Ray as people write them, and what counts and compares the rows of an epoch."""

from __future__ import annotations

import bisect
import itertools
import logging
import math
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import h5py
import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

LARGE_CHUNK_CACHE = 128 << 20
"""A chunk cache that holds all rows of a dataset of the workloads, decoded, after the first epoch."""

SMALL_CHUNK_CACHE = 1 << 20
"""The default of libhdf5 before 2.0. Its default now, 8 MiB a dataset, keeps most rows of a small workload decoded."""


def count_rows(batches: Iterable[Any], rows: int) -> None:
    """Iterate all batches, dicts or tuples of columns; raise unless they hold `rows` rows."""
    counted = sum(len(next(iter(batch.values())) if isinstance(batch, Mapping) else batch[0]) for batch in batches)
    if counted != rows:
        raise RuntimeError(f"an epoch delivered {counted} rows, expected {rows}")


def verify_rows(paths: Sequence[str], columns: Sequence[str], batches: Iterable[Mapping[str, Any]]) -> None:
    """Compare the checksums of all rows, in any order, with the checksums of the rows that h5py reads."""
    ours = [check for batch in batches for check in _checksums([np.asarray(batch[name]) for name in columns])]
    expected: list[int] = []
    for path in paths:
        with h5py.File(path, "r") as file:
            expected += _checksums([file[name][:] for name in columns])
    if sorted(ours) != sorted(expected):
        raise RuntimeError("an epoch does not deliver each row once with the bytes that h5py reads")


def _checksums(arrays: Sequence[np.ndarray]) -> list[int]:
    rows = zip(*map(np.ascontiguousarray, arrays), strict=True)
    return [zlib.crc32(b"".join(part.tobytes() for part in row)) for row in rows]


class PlainH5Dataset(Dataset[dict[str, torch.Tensor]]):
    """Samples of several HDF5 files, read one at a time, each a dict of tensors.

    Files are opened at the first sample that is read from them, so each loader worker has its own handles.
    """

    def __init__(self, paths: Sequence[str], columns: Sequence[str], chunk_cache_bytes: int) -> None:
        self._paths, self._columns, self._cache = list(paths), list(columns), chunk_cache_bytes
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
            file = h5py.File(self._paths[number], "r", rdcc_nbytes=self._cache, rdcc_nslots=1_000_003)
            self._datasets[number] = {name: file[name] for name in self._columns}
        return {name: torch.as_tensor(np.asarray(d[row])) for name, d in self._datasets[number].items()}


def torch_loader(dataset: Any, workers: int = 0, **options: Any) -> DataLoader[Any]:
    """Return a DataLoader of shuffled batches of 64. Its workers persist: their start is not timed."""
    return DataLoader(dataset, 64, shuffle=True, num_workers=workers, persistent_workers=workers > 0, **options)


@contextmanager
def ray_session(store_bytes: int = 1 << 30) -> Iterator[None]:
    """Start Ray without output, write to all of its object store once, and shut it down at the end.

    The first write to a page of shared memory takes many times as long as later ones.
    """
    import ray.data

    if ray.is_initialized():
        raise RuntimeError("Ray is already running in this process; the bench starts its own: shut it down first")
    quiet: dict[str, Any] = {"include_dashboard": False, "log_to_driver": False, "logging_level": logging.ERROR}
    ray.init(address="local", object_store_memory=max(1 << 30, store_bytes), **quiet)
    try:
        logging.getLogger("ray.data").setLevel(logging.ERROR)
        ray.data.DataContext.get_current().enable_progress_bars = False
        touched = ray.put(np.ones(int(store_bytes * 0.9), np.uint8))
        del touched
        yield
    finally:
        ray.shutdown()


def ray_batches(dataset: Any, rows: int, **options: Any) -> None:
    """Read an epoch of a dataset of Ray in torch batches of 64."""
    count_rows(dataset.iter_torch_batches(batch_size=64, **options), rows)


def ray_naive(paths: Sequence[str], columns: Sequence[str], slices: int = 50) -> Any:
    """Return a minimal dataset of Ray, whose tasks read a slice of a file each with h5py."""
    import ray.data
    from ray.data.block import BlockMetadata
    from ray.data.datasource import Datasource, ReadTask

    parts: list[tuple[Any, int, int]] = []  # a function that yields a block, its rows and bytes
    for path in paths:
        with h5py.File(path, "r") as file:
            rows = len(file[columns[0]])
            row_bytes = sum(file[name].dtype.itemsize * math.prod(file[name].shape[1:]) for name in columns)
        step = -(-rows // slices)
        for start in range(0, rows, step):
            count = min(step, rows - start)
            parts.append((partial(_read_slice, path, columns, start, start + count), count, count * row_bytes))

    class Parts(Datasource):
        def estimate_inmemory_data_size(self) -> int:
            return sum(nbytes for _, _, nbytes in parts)

        def get_read_tasks(
            self, parallelism: int, per_task_row_limit: int | None = None, data_context: Any = None
        ) -> list[Any]:
            del parallelism, data_context
            return [
                ReadTask(
                    read,
                    BlockMetadata(num_rows=rows, size_bytes=nbytes, input_files=None, exec_stats=None),
                    per_task_row_limit=per_task_row_limit,
                )
                for read, rows, nbytes in parts
            ]

    return ray.data.read_datasource(Parts(), override_num_blocks=len(parts))


def _read_slice(path: str, columns: Sequence[str], start: int, stop: int) -> Iterator[Any]:
    from ray.data.block import BlockAccessor

    with h5py.File(path, "r") as file:
        yield BlockAccessor.batch_to_block({name: file[name][start:stop] for name in columns})


def write_parquet(paths: Sequence[str], columns: Sequence[str], folder: str) -> None:
    """Write the rows with ``Dataset.write_parquet``: a Parquet file per HDF5 file, snappy (its default)."""
    # One block for each file: each block becomes a Parquet file, and 200 files of 20 rows would be slower to read.
    ray_naive(paths, columns, slices=1).write_parquet(folder)
