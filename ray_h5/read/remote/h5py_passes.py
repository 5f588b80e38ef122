"""Rows of columns that h5py reads, of a file in a store: passes of libhdf5 over bytes that are in memory."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Protocol

import numpy as np

from ray_h5.hdf5.files.held_bytes import HeldBytes, replay
from ray_h5.manifest.chunk_index import ChunkGrid, ChunkIndex
from ray_h5.manifest.row_requests import Request, RunRequest
from ray_h5.read.jobs import ReadStats, run_jobs
from ray_h5.read.read_parts import Part, jobs_of
from ray_h5.read.through_h5py.h5py_column import H5pyColumn

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from ray_h5.hdf5.files.open_library import OpenLibrary
    from ray_h5.manifest.layout import ColumnLayout
    from ray_h5.read.open_file import ColumnReader
    from ray_h5.read.read_parts import Address
    from ray_h5.storage.byte_source import ByteSource

_PIECE_BYTES = 16 << 20
_PIECE_ROWS = 1 << 14
"""Rows that h5py reads in one pass: a pass that misses bytes is made again from its beginning."""


class ReadsHeldBytes(Protocol):
    """A file that libhdf5 reads from memory."""

    byte_source: ByteSource
    held: HeldBytes

    def library(self, held: HeldBytes | None = None) -> AbstractContextManager[OpenLibrary]:
        """Return libhdf5's view of the file, of bytes in memory: `held`, if a read has bytes of its own."""

    def reader(self, address: Address, library: OpenLibrary) -> ColumnReader:
        """Return the reader of a column."""

    def guarded_index(self, layout: ColumnLayout, library: OpenLibrary) -> ChunkIndex | None:
        """Return the chunk index of a column; None if there is none that is checked."""


def read_through_h5py(file: ReadsHeldBytes, part: Part) -> ReadStats:
    """Read a part of a read that h5py reads: its chunks are fetched first."""
    total = ReadStats()
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


def _read_piece(file: ReadsHeldBytes, part: Part) -> ReadStats:
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
        at = np.unique(index.holding(request, ChunkGrid.of(layout)))
        yield from zip(index.offsets[at].tolist(), index.sizes[at].tolist(), strict=True)
    elif layout.storage == "contiguous" and layout.offset is not None:
        item = layout.item_bytes or layout.stored_dtype.itemsize
        row_bytes = math.prod(layout.row_shape) * item
        low, high = request.bounds
        yield layout.offset + low * row_bytes, (high - low) * row_bytes
