"""Passes of libhdf5 over one remote file: what a read needs of it, and rows of columns that h5py reads."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from ray_h5.hdf5.chunk_index import UNALLOCATED, ChunkGrid, ChunkIndex
from ray_h5.hdf5.parts import Part
from ray_h5.hdf5.reading.coalesce import Request
from ray_h5.hdf5.reading.h5py_column import H5pyColumn
from ray_h5.hdf5.reading.jobs import ReadStats, run_jobs
from ray_h5.hdf5.reading.run_request import RunRequest
from ray_h5.hdf5.remote.held_bytes import HeldBytes, gather, replay
from ray_h5.hdf5.remote.joint_reads import RemoteJob, remote_jobs

if TYPE_CHECKING:
    from ray_h5.hdf5.open_files import OpenFile

_PIECE_BYTES = 16 << 20
_PIECE_ROWS = 1 << 14
"""Rows that h5py reads in one pass: a pass that misses bytes is made again from its beginning."""


def direct_jobs(file: OpenFile, parts: Sequence[Part], read: int) -> tuple[list[RemoteJob], list[Part]]:
    """Return the jobs of a read that need no libhdf5, and the parts that do."""
    from ray_h5.hdf5.open_files import jobs_of

    def planned() -> tuple[list[RemoteJob], list[Part]]:
        with file.library() as library:
            readers = gather(lambda part: file.reader(part.address, library), parts)
            direct = [pair for pair in zip(readers, parts, strict=True) if not pair[0].needs_library]
            found = gather(lambda pair: jobs_of(*pair, library), direct)
        jobs = [job for jobs in found for job in remote_jobs(jobs, file.byte_source, read)]
        return jobs, [part for reader, part in zip(readers, parts, strict=True) if reader.needs_library]

    return replay(planned)


def read_through_h5py(file: OpenFile, parts: Sequence[Part]) -> ReadStats:
    """Read parts of a read that h5py reads: their chunks are fetched first."""
    total = ReadStats()
    for part in parts:
        for piece in _pieces(part):
            total.add(_read_piece(file, piece))
    return total


def _pieces(part: Part) -> Iterator[Part]:
    request = part.request
    if not isinstance(part.address, str) or isinstance(request, RunRequest):
        yield part
        return
    row_bytes = max(1, part.out[:0].itemsize * math.prod(part.out.shape[1:]))
    step = max(1, min(_PIECE_ROWS, _PIECE_BYTES // row_bytes))
    for first in range(0, len(request), step):
        yield Part(part.address, request.select(slice(first, first + step)), part.out)


def _read_piece(file: OpenFile, part: Part) -> ReadStats:
    from ray_h5.hdf5.open_files import jobs_of

    assert file.held is not None
    data = HeldBytes(file.byte_source, file.held)

    def planned() -> list[tuple[int, int]]:
        with file.library() as library:
            reader = file.reader(part.address, library)
            if not isinstance(reader, H5pyColumn) or isinstance(part.request, RunRequest):
                return []
            index = file.guarded_index(reader.layout, library)
        return list(_extents(reader, part.request, index))

    def read() -> ReadStats:
        with file.library(data) as library:
            return run_jobs(jobs_of(file.reader(part.address, library), part, library), 1)

    extents = replay(planned)
    data.fetch(extents)
    found = replay(read)
    found.requests += data.requests
    found.bytes_read += data.bytes_fetched
    return found


def _extents(reader: H5pyColumn, request: Request, index: ChunkIndex | None) -> Iterator[tuple[int, int]]:
    """Yield the byte ranges that hold rows of a column."""
    layout = reader.layout
    if index is not None:
        grid = ChunkGrid.of(layout)
        offsets, sizes, _ = index.locate(np.unique(grid.numbers(request.by_chunk(grid.chunk_rows)[0])))
        there = offsets != UNALLOCATED
        yield from zip(offsets[there].tolist(), sizes[there].tolist(), strict=True)
    elif layout.storage == "contiguous" and layout.offset is not None:
        item = layout.item_bytes or layout.stored_dtype.itemsize
        row_bytes = math.prod(layout.row_shape) * item
        low, high = request.bounds
        yield layout.offset + low * row_bytes, (high - low) * row_bytes
