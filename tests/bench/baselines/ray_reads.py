"""Plain Ray: a minimal Datasource over h5py, and the same rows as Parquet and as mapped files of Arrow."""

from __future__ import annotations

import math
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import h5py
import pyarrow as pa
import ray
import ray.data
from ray.data.block import BlockAccessor, BlockMetadata
from ray.data.datasource import Datasource, ReadTask

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

__all__ = ["ArrowFiles", "NaiveH5Datasource", "ray_arrow", "ray_naive", "ray_parquet", "write_arrow", "write_parquet"]


class NaiveH5Datasource(Datasource):
    """One task for each slice of a file, in the number that Ray asks for; a task reads its slice with h5py.

    Parameters
    ----------
    paths
        The files.
    columns
        The columns to read.
    """

    def __init__(self, paths: Sequence[str], columns: Sequence[str]) -> None:
        super().__init__()
        self._paths = list(paths)
        self._columns = list(columns)
        self._rows: list[int] = []
        self._row_bytes = 0
        for path in paths:
            with h5py.File(path, "r") as file:
                datasets = [file[name] for name in columns]
                self._rows.append(len(datasets[0]))
                self._row_bytes = sum(d.dtype.itemsize * math.prod(d.shape[1:]) for d in datasets)

    def estimate_inmemory_data_size(self) -> int:
        """Return the decoded bytes of all rows."""
        return sum(self._rows) * self._row_bytes

    def get_read_tasks(
        self, parallelism: int, per_task_row_limit: int | None = None, data_context: Any = None
    ) -> list[ReadTask]:
        """Cut every file into equal slices, about `parallelism` in all."""
        del data_context
        step = max(1, math.ceil(sum(self._rows) / parallelism))
        return [
            self._read_task(path, start, min(start + step, rows), per_task_row_limit)
            for path, rows in zip(self._paths, self._rows, strict=True)
            for start in range(0, rows, step)
        ]

    def _read_task(self, path: str, start: int, stop: int, row_limit: int | None) -> ReadTask:
        columns = self._columns

        def read() -> Iterator[Any]:
            with h5py.File(path, "r") as file:
                yield BlockAccessor.batch_to_block({name: file[name][start:stop] for name in columns})

        rows = stop - start
        metadata = BlockMetadata(num_rows=rows, size_bytes=rows * self._row_bytes, input_files=[path], exec_stats=None)
        return ReadTask(read, metadata, per_task_row_limit=row_limit)


class ArrowFiles(Datasource):
    """Ray alone: each task maps a file of Arrow, not compressed, whose only record batch is a block.

    What an epoch costs without reading or decoding: Ray's executor, the copy of each block into its object store, and
    the batches made of the blocks.

    Parameters
    ----------
    paths
        The files of `write_arrow`.
    """

    def __init__(self, paths: Sequence[str]) -> None:
        super().__init__()
        self._paths = list(paths)

    def estimate_inmemory_data_size(self) -> int:
        """Return the bytes of all files."""
        return sum(Path(path).stat().st_size for path in self._paths)

    def get_read_tasks(
        self, parallelism: int, per_task_row_limit: int | None = None, data_context: Any = None
    ) -> list[ReadTask]:
        """Return a task for each file."""
        del parallelism, data_context
        return [self._read_task(path, per_task_row_limit) for path in self._paths]

    def _read_task(self, path: str, row_limit: int | None) -> ReadTask:
        rows, size = sum(block.num_rows for block in _mapped(path)), Path(path).stat().st_size
        metadata = BlockMetadata(num_rows=rows, size_bytes=size, input_files=[path], exec_stats=None)
        return ReadTask(partial(_mapped, path), metadata, per_task_row_limit=row_limit)


def _mapped(path: str) -> Iterator[pa.Table]:
    yield pa.ipc.open_file(pa.memory_map(path)).read_all()


def write_arrow(dataset: ray.data.Dataset, folder: str) -> None:
    """Write each block of a dataset to a file of Arrow, not compressed."""
    for i, reference in enumerate(dataset.to_arrow_refs()):
        block = ray.get(reference).combine_chunks()
        with pa.ipc.new_file(str(Path(folder, f"{i:05d}.arrow")), block.schema) as file:
            file.write_table(block)


def ray_arrow(folder: str) -> ray.data.Dataset:
    """Return the dataset of `ArrowFiles`: a block a file, where Ray would cut them into 200."""
    paths = sorted(str(path) for path in Path(folder).glob("*.arrow"))
    return ray.data.read_datasource(ArrowFiles(paths), override_num_blocks=len(paths))


def ray_naive(paths: Sequence[str], columns: Sequence[str]) -> ray.data.Dataset:
    """Return the dataset of `NaiveH5Datasource` with Ray's default number of blocks."""
    return ray.data.read_datasource(NaiveH5Datasource(paths, columns))


def write_parquet(paths: Sequence[str], columns: Sequence[str], folder: str) -> None:
    """Write the rows with ``Dataset.write_parquet``: a Parquet file per HDF5 file, snappy (its default).

    Columns of arrays become Ray's tensor columns.
    """
    # One block for each file: each block becomes a Parquet file, and 200 files of 20 rows would be slower to read.
    dataset = ray.data.read_datasource(NaiveH5Datasource(paths, columns), override_num_blocks=len(paths))
    dataset.write_parquet(folder)


def ray_parquet(folder: str) -> ray.data.Dataset:
    """Return ``read_parquet`` of the files of `write_parquet`, with Ray's defaults."""
    return ray.data.read_parquet(folder)
