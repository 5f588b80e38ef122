"""The contestant `bare read`: what a reader of these files cannot do without.

Where the chunks are is known before the clock starts. A loop in C reads and decodes each chunk of the epoch once, into
new memory; batches are this memory, or NumPy copies them from it. Rows come in the order of the files: nothing is
shuffled, checked, or remembered.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import h5py
import numpy as np

from ray_h5.buffers import empty
from ray_h5.codecs.pipeline import ChunkDecoder
from ray_h5.manifest.layout import FilterPipeline
from ray_h5.read.kernel.job_table import NO_BOXES, NO_PIECES, RAW, Field, JobTable, Origin, pipeline_number
from ray_h5.read.kernel.run_tables import new_times, run_table
from ray_h5.read.reader import RowReader
from ray_h5.storage.local import LocalFile
from tests.bench.baselines.group_reads import dataset_extents
from tests.bench.baselines.h5py_reads import Extent
from tests.bench.peers.problems import OFFSETS, Problem

__all__ = ["bare_read", "plan"]

Array = np.ndarray[Any, Any]
Batch = dict[str, Array]
Spread = Callable[..., Iterable[Any]]
"""``map``, or that of a pool of threads."""

Epoch = Callable[[Spread], Iterable[Batch]]

_SHARES = 8
"""Parts of a dataset that threads decode."""


@dataclass(frozen=True, slots=True)
class _Chunks:
    """Chunks of a dataset: their shape, and the jobs that read and decode them."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    jobs: Array
    origin: Origin

    @classmethod
    def of(cls, path: str, name: str) -> _Chunks:
        with h5py.File(path) as file, RowReader(path) as reader:
            dataset, dtype = file[name], file[name].dtype
            shape = dataset.chunks or dataset.shape
            nbytes = math.prod(shape) * dtype.itemsize
            extents = dataset_extents(dataset) if dataset.chunks else [Extent(dataset.id.get_offset(), nbytes)]
            pipeline = reader.column(name).pipeline if dataset.chunks else FilterPipeline()
        source, (offsets, sizes, masks) = LocalFile.open(path), np.array(extents, np.int64).T
        assert source.descriptor is not None
        jobs = np.zeros((len(Field), len(extents)), np.int64)
        jobs[Field.FILE], jobs[Field.OFFSET], jobs[Field.SIZE] = source.descriptor, offsets, sizes
        is_raw = masks & pipeline.all_skipped == pipeline.all_skipped
        jobs[Field.PIPELINE], jobs[Field.MASK] = np.where(is_raw, RAW, pipeline_number(pipeline)), masks
        jobs[Field.DECODED] = nbytes
        origin = Origin(0, source, ChunkDecoder(pipeline, nbytes), lambda _, reason: ValueError(f"{path}: {reason}"))
        return cls(dtype, shape, jobs, origin)

    def __len__(self) -> int:
        return self.jobs.shape[1]

    def __getitem__(self, which: slice) -> _Chunks:
        return replace(self, jobs=self.jobs[:, which])

    def empty(self) -> Array:
        return empty((len(self), *self.shape), self.dtype)

    def decode(self, out: Array) -> Array:
        """Fill an array that has an item for each chunk."""
        jobs = self.jobs.copy()
        jobs[Field.DESTINATION] = out.ctypes.data + np.arange(len(self)) * out[:1].nbytes
        run_table(JobTable(jobs, NO_PIECES, NO_BOXES, [replace(self.origin, stop=len(self))], [out]), new_times())
        return out


def _decode_all(spread: Spread, datasets: Iterable[_Chunks]) -> list[Array]:
    """Decode datasets, of which batches are made when all are there."""
    whole, parts = [], []
    for chunks in datasets:
        whole.append(out := chunks.empty())
        step = -(-len(chunks) // _SHARES)
        parts += [(chunks[at : at + step], out[at : at + step]) for at in range(0, len(chunks), step)]
    list(spread(lambda part: part[0].decode(part[1]), parts))
    return whole


def _table(problem: Problem) -> Epoch:
    """Decode chunks into their batch: a row of a dataset is a row."""
    batches = []
    for path in problem.paths:
        found = {short: _Chunks.of(path, name) for short, name in problem.names.items()}
        rows = problem.rows // len(problem.paths)
        for first in range(0, rows, problem.batch):
            stop = min(first + problem.batch, rows)
            some = {
                short: chunks[first // chunks.shape[0] : -(-stop // chunks.shape[0])] for short, chunks in found.items()
            }
            batches.append((stop - first, some))

    def read(batch: tuple[int, dict[str, _Chunks]]) -> Batch:
        rows, columns = batch
        return {
            short: chunks.decode(chunks.empty()).reshape(-1, *chunks.shape[1:])[:rows]
            for short, chunks in columns.items()
        }

    return lambda spread: spread(read, batches)


def _windows(problem: Problem) -> Epoch:
    """Copy the steps of episodes, once for each window that they are in."""
    keys = [(number, short) for number in range(len(problem.parts)) for short in problem.names]
    found = [
        _Chunks.of(problem.parts[number][0], f"{problem.parts[number][1]}/{problem.names[short]}")
        for number, short in keys
    ]
    offsets = {short: np.array(OFFSETS[name]) for short, name in problem.names.items()}
    batches = [
        (number, np.arange(first, min(first + problem.batch, length)))
        for number, (_, _, length) in enumerate(problem.parts)
        for first in range(0, length, problem.batch)
    ]

    def epoch(spread: Spread) -> Iterable[Batch]:
        values = dict(zip(keys, (each[0] for each in _decode_all(spread, found)), strict=True))

        def cut(batch: tuple[int, Array]) -> Batch:
            number, steps = batch
            return {short: _taken(values[number, short], steps[:, None] + offsets[short]) for short in problem.names}

        return spread(cut, batches)

    return epoch


def _taken(values: Array, steps: Array) -> Array:
    out = empty((*steps.shape, *values.shape[1:]), values.dtype)
    return values.take(steps, axis=0, out=out, mode="clip")  # the first and last step are repeated


def _cells(problem: Problem) -> Epoch:
    """Scatter the values of a sparse matrix into zeros."""
    (path,), (genes,) = problem.paths, problem.columns["X"][1]
    with h5py.File(path) as file:
        indptr = file["X/indptr"][:]
    found = [_Chunks.of(path, "X/data"), _Chunks.of(path, "X/indices")]
    batches = []
    for first in range(0, problem.rows, problem.batch):
        bounds = indptr[first : first + problem.batch + 1]
        begins = np.repeat(np.arange(len(bounds) - 1, dtype=np.int32) * genes, np.diff(bounds))
        batches.append((len(bounds) - 1, slice(bounds[0], bounds[-1]), begins))

    def epoch(spread: Spread) -> Iterable[Batch]:
        data, indices = (each.reshape(-1) for each in _decode_all(spread, found))

        def cut(batch: tuple[int, slice, Array]) -> Batch:
            rows, which, begins = batch
            out = empty((rows, genes), data.dtype)
            out[:] = 0
            out.reshape(-1)[indices[which] + begins] = data[which]
            return {"X": out}

        return spread(cut, batches)

    return epoch


def _patches(problem: Problem) -> Epoch:
    """Copy chunks, once for each patch that they are in: patches begin where chunks begin."""
    names = list(problem.names)
    found = [_Chunks.of(problem.paths[0], problem.names[short]) for short in names]
    side, chunk = problem.columns[names[0]][1][0], found[0].shape[0]
    counts = (round(len(found[0]) ** (1 / 3)),) * 3
    each = side // chunk
    steps = (round(problem.rows ** (1 / 3)),) * 3
    corners = np.stack(np.unravel_index(np.arange(problem.rows), steps), axis=1) * (
        (counts[0] - each) // (steps[0] - 1)
    )
    inside = np.stack(np.unravel_index(np.arange(each**3), (each,) * 3), axis=1)
    numbers = np.ravel_multi_index(tuple((corners[:, None] + inside).T), counts).T  # of the chunks of each patch
    batches = [numbers[at : at + problem.batch] for at in range(0, problem.rows, problem.batch)]

    def epoch(spread: Spread) -> Iterable[Batch]:
        values = dict(zip(names, _decode_all(spread, found), strict=True))

        def cut(batch: Array) -> Batch:
            return {name: _joined(values[name], batch, inside * chunk, side) for name in names}

        return spread(cut, batches)

    return epoch


def _joined(chunks: Array, numbers: Array, corners: Array, side: int) -> Array:
    out, edge = empty((len(numbers), side, side, side), chunks.dtype), chunks.shape[1]
    for patch, those in zip(out, numbers.tolist(), strict=True):
        for number, (z, y, x) in zip(those, corners.tolist(), strict=True):
            patch[z : z + edge, y : y + edge, x : x + edge] = chunks[number]
    return out


_PLANS = {"signals": _table, "images": _table, "windows": _windows, "cells": _cells, "patches": _patches}
_planned: dict[tuple[str, ...], Epoch] = {}


def plan(problem: Problem) -> Epoch:
    """Find out where the chunks of a case are, unless an earlier call has done so."""
    if problem.paths not in _planned:
        _planned[problem.paths] = _PLANS[problem.name](problem)
    return _planned[problem.paths]


class _Batches:
    def __init__(self, epoch: Epoch, threads: int) -> None:
        self._epoch, self._threads = epoch, threads

    def __iter__(self) -> Iterator[Batch]:
        if not self._threads:
            yield from self._epoch(map)
            return
        with ThreadPoolExecutor(self._threads) as pool:
            yield from self._epoch(pool.map)


def bare_read(problem: Problem, _: str, workers: int) -> Iterable[Batch]:
    """Return batches of all rows in the order of the files, read by as many threads as ours has."""
    return _Batches(plan(problem), workers)
