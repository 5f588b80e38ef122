"""Epochs as bare loops over stored chunks, one row a chunk: chunk tables are known, and each batch is a fresh array."""

from __future__ import annotations

import os
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import h5py
import imagecodecs
import numpy as np

from ray_h5.codecs.pipeline import ChunkDecoder
from ray_h5.read.kernel.job_table import NO_BOXES, NO_PIECES, RAW, Field, JobTable, Origin, pipeline_number
from ray_h5.read.kernel.run_tables import new_times, run_table
from ray_h5.read.reader import RowReader
from ray_h5.storage.local import LocalFile
from tests.bench.baselines.h5py_reads import stored_extents

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["BareLoops"]


class BareLoops:
    """Shuffled epochs of columns that have one row a chunk, stored as they are or by LZF alone.

    Parameters
    ----------
    paths : sequence of str
        The files.
    columns : sequence of str
        The columns.
    batch_size : int
        Rows of a batch.
    """

    def __init__(self, paths: Sequence[str], columns: Sequence[str], batch_size: int) -> None:
        self._batch_size, self._columns = batch_size, list(columns)
        self._sources = [LocalFile.open(path) for path in paths]
        self._layouts = [RowReader(paths[0]).column(name) for name in columns]
        tables, files = [], []
        for number, path in enumerate(paths):
            with h5py.File(path, "r") as file:
                found = stored_extents(file, columns)
            tables.append(np.array([found[name] for name in columns], np.int64))
            files.append(np.full(tables[-1].shape[1], number))
        self._extents = np.concatenate(tables, axis=1)  # (columns, rows, [offset, size, mask])
        self._files = np.concatenate(files)
        self._random = np.random.default_rng(0)

    def _batches(self) -> list[np.ndarray]:
        order = self._random.permutation(len(self._files))
        return [order[at : at + self._batch_size] for at in range(0, len(order), self._batch_size)]

    def _arrays(self, count: int) -> list[np.ndarray]:
        return [np.empty((count, *layout.row_shape), layout.stored_dtype) for layout in self._layouts]

    def in_python(self) -> int:
        """Read an epoch with ``os.preadv`` and ``imagecodecs.lzf_decode``; return the number of its rows."""
        stored = np.empty(self._extents[..., 1].max(), np.uint8)
        descriptors = [source.descriptor for source in self._sources]
        for rows in self._batches():
            files = self._files[rows].tolist()
            for extents, array in zip(self._extents[:, rows].tolist(), self._arrays(len(rows)), strict=True):
                flat = array.reshape(len(rows), -1).view(np.uint8)
                for (offset, size, mask), file, row in zip(extents, files, flat, strict=True):
                    if size == len(row) and mask:
                        os.preadv(descriptors[file], [row.data], offset)
                        continue
                    part = stored[:size]
                    os.preadv(descriptors[file], [part.data], offset)
                    imagecodecs.lzf_decode(part, out=row)
        return len(self._files)

    def compiled(self, threads: int = 1) -> int:
        """Read an epoch by one call of the compiled loop a batch, in threads; return the number of its rows."""
        descriptors = np.array([source.descriptor for source in self._sources])
        times = new_times()

        def read(rows: np.ndarray) -> None:
            run_table(self._table(rows, descriptors), times)

        with ThreadPoolExecutor(threads) as pool:
            deque((pool.map if threads > 1 else map)(read, self._batches()), maxlen=0)
        return len(self._files)

    def _table(self, rows: np.ndarray, descriptors: np.ndarray) -> JobTable:
        count, files = len(rows), descriptors[self._files[rows]]
        jobs = np.zeros((len(Field), count * len(self._columns)), np.int64)
        arrays = self._arrays(count)
        for number, (layout, array) in enumerate(zip(self._layouts, arrays, strict=True)):
            part = jobs[:, number * count : (number + 1) * count]
            offsets, sizes, masks = self._extents[number, rows].T
            part[Field.FILE], part[Field.OFFSET], part[Field.SIZE], part[Field.MASK] = files, offsets, sizes, masks
            raw = masks & layout.pipeline.all_skipped == layout.pipeline.all_skipped
            part[Field.PIPELINE] = np.where(raw, RAW, pipeline_number(layout.pipeline))
            part[Field.DECODED] = layout.row_bytes
            part[Field.DESTINATION] = array.ctypes.data + np.arange(count) * layout.row_bytes
        return JobTable(jobs, NO_PIECES, NO_BOXES, [self._origin(jobs.shape[1])], arrays)

    def _origin(self, stop: int) -> Origin:
        def corrupt(_: int, reason: str) -> Any:
            return ValueError(reason)

        layout = self._layouts[0]
        return Origin(stop, self._sources[0], ChunkDecoder(layout.pipeline, layout.row_bytes), corrupt)
