"""Columns that this package reads and decodes itself, without libhdf5."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property, partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np

from ray_h5.codecs.pipeline import ChunkDecoder
from ray_h5.errors import CorruptChunkError
from ray_h5.manifest.chunk_index import UNALLOCATED, ChunkGrid, ChunkIndex, corrupt_chunk
from ray_h5.manifest.layout import ColumnLayout
from ray_h5.manifest.row_requests import Request, RowRange, RowRequest, RowRuns, RunRequest, as_runs, units_of
from ray_h5.read.jobs import Job, Staged, TableJob, Unplanned, Worker
from ray_h5.read.kernel.job_table import (
    BOX_FIELDS,
    NO_BOXES,
    NO_DESCRIPTOR,
    NO_PIECES,
    PLAIN,
    RAW,
    Field,
    JobTable,
    Origin,
    Piece,
    pipeline_number,
)
from ray_h5.storage.byte_source import ByteSource

if TYPE_CHECKING:
    from ray_h5.read.through_h5py.h5py_column import Library


_MOST_BYTES = 1 << 20
"""Bytes of a job that copies rows as they are stored, and of values that are cast together."""

_MOST_ROWS = 1 << 16
"""Rows that are planned together: a job takes 72 bytes, which may be more than a row."""


class DirectColumn:
    """Reads a column without libhdf5 and its lock; each chunk is fetched and decoded once.

    Rows that are stored as they are (contiguous, or in chunks that no filter changed) are copied from the file straight
    into the output. Other chunks are decoded: into the output if all their rows are requested in their order, and
    otherwise into scratch memory, from which pieces are copied.

    Parameters
    ----------
    path : str
        The file, for messages.
    layout : ColumnLayout
        A column whose `direct` is true.
    byte_source : ByteSource
        The bytes of the file.
    index : ChunkIndex, optional
        The chunks; None for contiguous data.
    """

    def __init__(self, path: str, layout: ColumnLayout, byte_source: ByteSource, index: ChunkIndex | None) -> None:
        self._path = path
        self.layout = layout
        self._byte_source = byte_source
        self.index = index
        self.grid = ChunkGrid.of(layout)
        self._row_bytes = layout.row_bytes
        self._chunk_bytes = math.prod(self.grid.chunk_shape) * layout.stored_dtype.itemsize
        # Each chunk holds whole rows, one after the other.
        self.by_row = self.grid.chunk_shape[1:] == layout.row_shape
        self._decoder = ChunkDecoder(layout.pipeline, self._chunk_bytes)
        self.file = NO_DESCRIPTOR if byte_source.descriptor is None else byte_source.descriptor

    needs_library = False
    takes_runs = True
    _byte_sources: Mapping[int, ByteSource] = MappingProxyType({})
    """The files of several columns that are one, by their descriptors."""

    @property
    def byte_source(self) -> ByteSource:
        """The bytes that its jobs fetch."""
        return self._byte_source

    # `library` is for H5pyColumn, which has the same method.
    def jobs(self, request: Request | RunRequest, out: np.ndarray, library: Library) -> list[Job]:
        """Return the work that fills ``out[request.places]`` with ``request.rows``.

        If `out` has another dtype than the column, values are cast about a mebibyte at a time.
        """
        if self._row_bytes == 0 or not len(request):
            return []
        if self.index is None and self.layout.offset is None:
            return [partial(_fill, request, out, self.layout.fill)]
        if not self.lands_in_place(out):
            return self._staged_jobs(request, out)
        if later := self._planned_in_parts(request, out, library):
            return later
        runs = as_runs(request)
        if self.index is None:
            return self._contiguous_jobs(runs, out)
        if not isinstance(request, RowRequest):
            runs = runs.pieces(self.grid.chunk_rows)
        return self._chunk_jobs(runs, out)

    def _planned_in_parts(self, request: Request | RunRequest, out: np.ndarray, library: Library) -> list[Job]:
        """Return the work of a long list of rows, each part planned when it is done; nothing if there is one part."""
        if not isinstance(request, RowRequest) or len(request) <= _MOST_ROWS:
            return []
        parts = list(self._parts(request, _MOST_ROWS))
        if len(parts) < 2:  # all of the rows are in one chunk
            return []
        return [Unplanned(self._byte_source, partial(self.jobs, part, out, library)) for part in parts]

    def _contiguous_jobs(self, runs: RunRequest, out: np.ndarray) -> list[Job]:
        assert self.layout.offset is not None
        return self.copy_runs(runs, self.layout.offset + runs.firsts * self._row_bytes, out)

    def copy_runs(
        self, runs: RunRequest, offsets: np.ndarray, out: np.ndarray, files: np.ndarray | None = None
    ) -> list[Job]:
        """Return the work that copies runs of rows as they are stored, each from its offset, and its file.

        `out` has the dtype of the column and is C-contiguous.
        """
        if len(runs) > _MOST_ROWS:
            jobs: list[Job] = []
            for part in [slice(at, at + _MOST_ROWS) for at in range(0, len(runs), _MOST_ROWS)]:
                of = None if files is None else files[part]
                later = partial(self.copy_runs, runs.select(part), offsets[part], out, of)
                jobs.append(Unplanned(self._byte_source, later))
            return jobs
        table = self._copies(self.file if files is None else files, offsets, runs.places, runs.counts, out)
        return [TableJob(self._table(table, NO_PIECES, out, np.full(table.shape[1], -1)))]

    def copy_rows(self, request: RowRequest, offsets: np.ndarray, out: np.ndarray) -> list[Job]:
        """Return the work that copies rows as they are stored, each from its offset; values may be cast."""
        if self.lands_in_place(out):
            return self.copy_runs(as_runs(request), offsets, out)
        jobs: list[Job] = []
        at_once = max(1, _MOST_BYTES // self._row_bytes)
        for start in range(0, len(request), at_once):
            part = slice(start, start + at_once)
            here = RowRequest(request.rows[part], np.arange(len(request.rows[part]), dtype=np.int64))
            jobs_into = partial(self.copy_rows, here, offsets[part])
            jobs.append(self._staged(jobs_into, len(here), out, request.places[part]))
        return jobs

    def lands_in_place(self, out: np.ndarray) -> bool:
        """Return whether stored values are the bytes of `out`."""
        return out.dtype == self.layout.stored_dtype and bool(out.flags.c_contiguous)

    def _staged_jobs(self, request: Request | RunRequest, out: np.ndarray) -> list[Job]:
        """Return the work that reads about a mebibyte of rows after the other as they are stored, and casts them."""
        if isinstance(request, RunRequest):
            request = request.listed()
        jobs: list[Job] = []
        for part in self._parts(request, max(1, _MOST_BYTES // self._row_bytes)):
            if isinstance(part, RowRange):
                into: Any = slice(part.place, part.place + part.count)
                moved: Request = RowRange(part.first, 0, part.count)
            else:
                into, moved = part.places, RowRequest(part.rows, np.arange(len(part), dtype=np.int64))
            jobs.append(self._staged(partial(self.jobs, moved, library=None), len(part), out, into))  # type: ignore[arg-type]
        return jobs

    def _staged(self, jobs_into: Callable[[np.ndarray], list[Job]], count: int, out: np.ndarray, places: Any) -> Staged:
        put = partial(_assign, out, places)
        return Staged(self._byte_source, jobs_into, (count, *self.layout.row_shape), self.layout.stored_dtype, put)

    def _parts(self, request: Request, at_once: int) -> Iterator[Request]:
        """Yield parts of about `at_once` rows, or a mebibyte of a range; no chunk is in two of them."""
        chunk_rows = self.grid.chunk_rows if self.index is not None else 1
        if isinstance(request, RowRange):
            yield from request.pieces(chunk_rows, self._row_bytes)
            return
        edges = [*range(0, len(request), at_once), len(request)]
        if self.index is not None:
            chunks = request.rows // chunk_rows
            cuts = np.flatnonzero(chunks[1:] != chunks[:-1]) + 1
            wanted = np.searchsorted(cuts, edges[1:-1])
            edges = np.unique([0, *cuts[wanted[wanted < len(cuts)]].tolist(), len(request)]).tolist()
        for start, stop in itertools.pairwise(edges):
            yield request.select(slice(start, stop))

    # Rows that are stored as they are --------------------------------------------------------

    def _copies(
        self, files: int | np.ndarray, offsets: np.ndarray, places: np.ndarray, counts: np.ndarray, out: np.ndarray
    ) -> np.ndarray:
        """Return jobs that copy rows from files to their places, ascending in each file."""
        sizes, begins = counts * self._row_bytes, places * self._row_bytes
        if isinstance(files, np.ndarray):
            order = np.lexsort((offsets, files))
            files, offsets, begins, sizes = files[order], offsets[order], begins[order], sizes[order]
        elif np.any(offsets[1:] < offsets[:-1]):
            order = np.argsort(offsets, kind="stable")
            offsets, begins, sizes = offsets[order], begins[order], sizes[order]
        follows = (offsets[1:] == offsets[:-1] + sizes[:-1]) & (begins[1:] == begins[:-1] + sizes[:-1])
        if isinstance(files, np.ndarray):
            follows &= files[1:] == files[:-1]
        if follows.any():
            runs = RowRuns.split(~follows)
            sizes = np.add.reduceat(sizes, runs.start)
            offsets, begins = offsets[runs.start], begins[runs.start]
            files = files[runs.start] if isinstance(files, np.ndarray) else files
        if (sizes > _MOST_BYTES).any():
            parts = -(-sizes // _MOST_BYTES)
            at = units_of(np.zeros(len(parts), np.int64), parts) * _MOST_BYTES
            left = np.repeat(sizes, parts) - at
            offsets, begins = np.repeat(offsets, parts) + at, np.repeat(begins, parts) + at
            files = np.repeat(files, parts) if isinstance(files, np.ndarray) else files
            sizes = np.minimum(left, _MOST_BYTES)
        jobs = np.zeros((len(Field), len(offsets)), np.int64)
        jobs[Field.FILE], jobs[Field.PIPELINE] = files, RAW
        jobs[Field.OFFSET], jobs[Field.SIZE], jobs[Field.DECODED] = offsets, sizes, sizes
        np.add(begins, out.ctypes.data, out=jobs[Field.DESTINATION])
        return jobs

    # Chunks ----------------------------------------------------------------------------------

    def _chunk_jobs(self, runs: RunRequest, out: np.ndarray) -> list[Job]:
        """Return the work for runs that are each in one chunk along the first axis; their chunks ascend."""
        assert self.index is not None
        grid = self.grid
        along = runs.firsts // grid.chunk_rows
        split = RowRuns.split(along[1:] != along[:-1])
        numbers, starts, stops = along[split.start], split.start, split.stop
        if grid.per_row != 1:
            numbers = grid.numbers(numbers)
            starts, stops = np.repeat(starts, grid.per_row), np.repeat(stops, grid.per_row)
        offsets, sizes, masks = self.index.locate(numbers)
        raw = self._decoder.stores_raw(masks)
        missing = offsets == UNALLOCATED
        jobs: list[Job] = []
        if missing.any():
            jobs += self._fill_jobs(runs, numbers, starts, stops, missing, out)
            keep = ~missing
            numbers, starts, stops, offsets, sizes, masks, raw = (
                each[keep] for each in (numbers, starts, stops, offsets, sizes, masks, raw)
            )
        if self.by_row and (short := np.flatnonzero(raw & (sizes < self._chunk_bytes))).size:
            # Other libraries store no more of the last chunk than its rows, and no more is copied.
            least = np.array([self._least_bytes(number) for number in numbers[short].tolist()])
            sizes[short[sizes[short] >= least]] = self._chunk_bytes
        self._check_raw(numbers, offsets, sizes, raw)
        tables = list[np.ndarray]()
        of = list[np.ndarray]()
        pieces, boxes = NO_PIECES, NO_BOXES
        if self.by_row and raw.any():
            at = units_of(starts[raw], (stops - starts)[raw])
            first = np.repeat(offsets[raw], (stops - starts)[raw])
            within = runs.firsts[at] % grid.chunk_rows * self._row_bytes
            files = self._files_of(numbers[raw])
            if isinstance(files, np.ndarray):
                files = np.repeat(files, (stops - starts)[raw])
            tables.append(self._copies(files, first + within, runs.places[at], runs.counts[at], out))
            of.append(np.full(tables[-1].shape[1], -1))
            keep = ~raw
            numbers, starts, stops, offsets, sizes, masks = (
                each[keep] for each in (numbers, starts, stops, offsets, sizes, masks)
            )
            raw = raw[keep]
        if len(numbers):
            decoded = self._decoded(numbers, offsets, sizes, masks, raw)
            if self.by_row:
                pieces = self._row_pieces(decoded, runs, starts, stops, out)
            else:
                pieces, boxes = self._box_pieces(decoded, runs, numbers, starts, stops, out)
            tables.append(decoded)
            of.append(numbers)
        if tables:
            table = tables[0] if len(tables) == 1 else np.concatenate(tables, axis=1)
            at = of[0] if len(of) == 1 else np.concatenate(of)
            jobs.append(TableJob(self._table(table, pieces, out, at, boxes)))
        return jobs

    def _decoded(
        self, numbers: np.ndarray, offsets: np.ndarray, sizes: np.ndarray, masks: np.ndarray, raw: np.ndarray
    ) -> np.ndarray:
        """Return jobs that decode chunks into scratch memory."""
        jobs = np.zeros((len(Field), len(numbers)), np.int64)
        jobs[Field.FILE] = self._files_of(numbers)
        jobs[Field.OFFSET], jobs[Field.SIZE] = offsets, sizes
        jobs[Field.PIPELINE] = np.where(raw, RAW, pipeline_number(self.layout.pipeline))
        jobs[Field.MASK], jobs[Field.DECODED] = masks, self._chunk_bytes
        return jobs

    def _files_of(self, numbers: np.ndarray) -> int | np.ndarray:  # noqa: ARG002  columns of several files look there
        """Return the descriptor of the file that has some chunks, or one for each."""
        return self.file

    def _row_pieces(
        self,
        jobs: np.ndarray,
        runs: RunRequest,
        starts: np.ndarray,
        stops: np.ndarray,
        out: np.ndarray,
    ) -> np.ndarray:
        """Set where chunks of whole rows are decoded to, and return the pieces that are copied from there."""
        row_bytes, address = self._row_bytes, out.ctypes.data
        whole = runs.counts[starts] == self.grid.chunk_rows
        np.multiply(runs.places[starts] * row_bytes + address, whole, out=jobs[Field.DESTINATION])
        # A chunk that is in its place needs no piece for it; for further places it does.
        counts = stops - starts - whole
        ends = np.cumsum(counts)
        jobs[Field.BEGIN], jobs[Field.END] = ends - counts, ends
        if not ends[-1]:
            return NO_PIECES
        at = units_of(starts + whole, counts)
        pieces = np.empty((len(Piece), len(at)), np.int64)
        pieces[Piece.SOURCE] = runs.firsts[at] % self.grid.chunk_rows * row_bytes
        pieces[Piece.DESTINATION] = runs.places[at] * row_bytes + address
        pieces[Piece.SIZE], pieces[Piece.BOX] = runs.counts[at] * row_bytes, PLAIN
        return pieces

    def _box_pieces(
        self,
        jobs: np.ndarray,
        runs: RunRequest,
        numbers: np.ndarray,
        starts: np.ndarray,
        stops: np.ndarray,
        out: np.ndarray,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the pieces of chunks that hold parts of rows, one a run, and their boxes."""
        places, kinds, boxes = self._cells
        counts = stops - starts
        ends = np.cumsum(counts)
        jobs[Field.BEGIN], jobs[Field.END] = ends - counts, ends
        at, cell = units_of(starts, counts), np.repeat(numbers % self.grid.per_row, counts)
        pieces = np.empty((len(Piece), len(at)), np.int64)
        part_bytes = self._chunk_bytes // self.grid.chunk_rows
        pieces[Piece.SOURCE] = runs.firsts[at] % self.grid.chunk_rows * part_bytes
        pieces[Piece.DESTINATION] = runs.places[at] * self._row_bytes + out.ctypes.data + places[cell]
        pieces[Piece.SIZE], pieces[Piece.BOX] = 0, kinds[cell]
        rows = runs.counts[at]
        if np.any(rows > 1):  # the rows of a run are the first axis of its box
            found, pieces[Piece.BOX] = np.unique(rows * len(boxes) + kinds[cell], return_inverse=True)
            rows, of = np.divmod(found, len(boxes))
            axis = np.stack([rows, np.full_like(rows, part_bytes), np.full_like(rows, self._row_bytes)], axis=1)
            boxes = np.concatenate([boxes[of, :1] + 1, boxes[of, 1:2], axis, boxes[of, 2:-3]], axis=1)
        return pieces, boxes

    @cached_property
    def _cells(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """For each part of a row that chunks cut: its place in the row, in bytes; its box; and the boxes."""
        grid, item = self.grid, self.layout.stored_dtype.itemsize
        shape, chunk = grid.shape[1:], grid.chunk_shape[1:]
        row_strides = strides_of(shape, item)
        chunk_strides = strides_of(chunk, item)
        cells = np.unravel_index(np.arange(grid.per_row), grid.counts[1:])
        places = np.zeros(grid.per_row, np.int64)
        kinds = np.zeros(grid.per_row, np.int64)  # which axes are at their end, where chunks may stick out
        for axis, cell in enumerate(cells):
            places += cell * chunk[axis] * row_strides[axis]
            kinds += (cell == grid.counts[1 + axis] - 1) << axis
        found, of = np.unique(kinds, return_inverse=True)
        boxes = np.zeros((len(found), BOX_FIELDS), np.int64)
        for number, kind in enumerate(found.tolist()):
            extents = [
                n - (count - 1) * c if kind >> axis & 1 else c
                for axis, (n, c, count) in enumerate(zip(shape, chunk, grid.counts[1:], strict=True))
            ]
            axes = zip(extents[:-1], chunk_strides[:-1], row_strides[:-1], strict=True)
            row = [len(shape) - 1, extents[-1] * item, *itertools.chain.from_iterable(axes)]
            boxes[number, : len(row)] = row
        return places, of.astype(np.int64), boxes

    def _table(
        self, jobs: np.ndarray, pieces: np.ndarray, out: np.ndarray, numbers: np.ndarray, boxes: np.ndarray = NO_BOXES
    ) -> JobTable:
        offsets, sizes = jobs[Field.OFFSET], jobs[Field.SIZE]

        def corrupt(job: int, reason: str) -> CorruptChunkError:
            return self._corrupt(int(numbers[job]), int(offsets[job]), int(sizes[job]), reason)

        def least(job: int) -> int:
            return self._least_bytes(int(numbers[job]))

        origin = Origin(jobs.shape[1], self._byte_source, self._decoder, corrupt, self._byte_sources, least=least)
        return JobTable(jobs, pieces, boxes, [origin], [out])

    def _check_raw(self, numbers: np.ndarray, offsets: np.ndarray, sizes: np.ndarray, raw: np.ndarray) -> None:
        wrong = raw & (sizes != self._chunk_bytes)
        if wrong.any():
            at = int(np.argmax(wrong))
            found = int(sizes[at])
            reason = f"expected {self._chunk_bytes} bytes stored without filters, found {found}"
            raise self._corrupt(int(numbers[at]), int(offsets[at]), found, reason)

    def _least_bytes(self, number: int) -> int:
        """Return how many bytes of a chunk hold its rows."""
        return self._bytes_of_rows(self.layout.num_rows - self.grid.first_row(number))

    def _bytes_of_rows(self, rows: int) -> int:
        return min(rows, self.grid.chunk_rows) * (self._chunk_bytes // self.grid.chunk_rows)

    def _corrupt(self, number: int, offset: int, size: int, reason: str) -> CorruptChunkError:
        return corrupt_chunk(self._path, self.layout, number, offset, size, reason)

    # Chunks that were never written ----------------------------------------------------------

    def _fill_jobs(
        self,
        runs: RunRequest,
        numbers: np.ndarray,
        starts: np.ndarray,
        stops: np.ndarray,
        missing: np.ndarray,
        out: np.ndarray,
    ) -> list[Job]:
        """Return the work that fills the places of chunks that were never written."""
        if self.by_row:
            at = units_of(starts[missing], (stops - starts)[missing])
            return [partial(_fill, runs.select(at), out, self.layout.fill)]
        if 2 * np.count_nonzero(missing) >= len(missing):
            # One assignment instead of one a chunk. Now, and not in a job: these run side by side, and the written
            # chunks go over it.
            runs.fill(out, self.layout.fill)
            return []
        there = zip(numbers[missing].tolist(), starts[missing].tolist(), stops[missing].tolist(), strict=True)
        return [partial(self._fill_parts, runs, list(there), out)]

    def _fill_parts(
        self, runs: RunRequest, chunks: list[tuple[int, int, int]], out: np.ndarray, worker: Worker
    ) -> None:
        del worker
        for number, start, stop in chunks:
            places = units_of(runs.places[start:stop], runs.counts[start:stop])
            where: Any = (places, *self.grid.slices(number))
            out[where] = self.layout.fill


def _fill(request: Request | RunRequest, out: np.ndarray, value: object, worker: Worker) -> None:
    del worker
    if isinstance(request, RunRequest):
        request.fill(out, value)
        return
    rows = slice(request.place, request.place + request.count) if isinstance(request, RowRange) else request.places
    out[rows] = value


def _assign(out: np.ndarray, places: Any, values: np.ndarray) -> None:
    out[places] = values


def strides_of(shape: tuple[int, ...], item: int) -> list[int]:
    """Return the strides of a C-contiguous array, in bytes."""
    return [item * math.prod(shape[axis + 1 :]) for axis in range(len(shape))]
