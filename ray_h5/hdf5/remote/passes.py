"""Passes of libhdf5 over one remote file: what a read needs of it, and rows of columns that h5py reads."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from ray_h5.hdf5.chunk_index import UNALLOCATED, ChunkGrid, ChunkIndex
from ray_h5.hdf5.parts import Part, name_of
from ray_h5.hdf5.reading.coalesce import Request
from ray_h5.hdf5.reading.h5py_column import H5pyColumn
from ray_h5.hdf5.reading.jobs import ReadStats, run_jobs
from ray_h5.hdf5.reading.last_axis import LastAxisColumn
from ray_h5.hdf5.reading.run_request import RunRequest
from ray_h5.hdf5.remote.held_bytes import HeldBytes, gather, replay
from ray_h5.hdf5.remote.joint_reads import RemoteJob, remote_jobs
from ray_h5.hdf5.remote.spread import Spread, spread

if TYPE_CHECKING:
    from ray_h5.hdf5.open_files import OpenFile

_PIECE_BYTES = 16 << 20
_PIECE_ROWS = 1 << 14
"""Rows that h5py reads in one pass: a pass that misses bytes is made again from its beginning."""


@dataclass(slots=True)
class PlannedRead:
    """What a read of a remote file consists of.

    Attributes
    ----------
    jobs : list of RemoteJob
        The work that needs no libhdf5.
    through_h5py : list of (OpenFile, Part)
        What h5py reads, and of which file.
    after : list of callable
        What is left to do once all is read, the last one first.
    others : list of OpenFile
        Other files that are read.
    """

    jobs: list[RemoteJob] = field(default_factory=list)
    through_h5py: list[tuple[OpenFile, Part]] = field(default_factory=list)
    after: list[Callable[[], None]] = field(default_factory=list)
    others: list[OpenFile] = field(default_factory=list)

    def finish(self) -> None:
        """Do what is left to do."""
        while self.after:
            self.after.pop()()


def plan_read(file: OpenFile, parts: Sequence[Part], read: int) -> PlannedRead:
    """Return what a read of a remote file consists of. `read` is its number among the reads that run together."""

    def planned() -> PlannedRead:
        found = PlannedRead()
        _plan(file, parts, read, found)
        return found

    return replay(planned)


def _plan(file: OpenFile, parts: Sequence[Part], read: int, planned: PlannedRead) -> None:
    """Plan parts of a read of one file, and those of the other files that have their values."""
    from ray_h5.hdf5.open_files import jobs_of

    there: dict[OpenFile, list[Part]] = {}
    with file.library() as library:

        def found_of(part: Part) -> list[Spread]:
            name = name_of(part.address)
            elsewhere = None if name is None else file.elsewhere(name, library)
            if elsewhere is None or elsewhere.how == "external" or name is None:
                return [(file, part)]
            return spread(file, part, elsewhere, file.column(name, library), planned.after)

        spreads = [each for found in gather(found_of, parts) for each in found]
        given, own = {id(part) for part in parts}, []
        for of, part in spreads:
            if id(part) in given:
                own.append(part)
            else:
                there.setdefault(of, []).append(part)
        readers = gather(lambda part: file.reader(part.address, library), own)
        direct = [pair for pair in zip(readers, own, strict=True) if not pair[0].needs_library]
        jobs = gather(lambda pair: (pair[0], jobs_of(*pair, library)), direct)
    for reader, found in jobs:
        assert not isinstance(reader, (H5pyColumn, LastAxisColumn))
        planned.jobs += remote_jobs(found, reader.byte_source, read)
    planned.through_h5py += [(file, part) for reader, part in zip(readers, own, strict=True) if reader.needs_library]
    planned.others += [of for of in there if of is not file]
    gather(lambda of: _plan(of, there[of], read, planned), there)


def read_through_h5py(file: OpenFile, part: Part) -> ReadStats:
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
