"""Plans reads of whole rows that lie one after the other, in contiguous arrays and in chunks of whole rows."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np

from ray_h5.manifest.chunk_index import UNALLOCATED
from ray_h5.manifest.row_requests import Request, runs_between, units_of
from ray_h5.read.arrays.chunk_source import ChunkSource, cut_at, cut_between_chunks
from ray_h5.read.jobs import Job, Worker, in_parts
from ray_h5.read.native.job_table import NO_PIECES, PLAIN, RAW, Field, Piece

_MOST_BYTES = 1 << 20
"""Bytes of a job that copies rows as they are stored, and of values that are cast together."""

_MOST_ROWS = 1 << 16
"""Rows that are planned together: a job takes 72 bytes, which may be more than a row."""


class RowPlanner:
    """Plans whole rows of an array; each chunk is fetched and decoded once.

    Rows that are stored as they are (contiguous, or in chunks that no filter changed) are copied from the file straight
    into the output. Other chunks are decoded: into the output if all their rows are requested in their order, and
    otherwise into scratch memory, from which pieces are copied.

    Parameters
    ----------
    source : ChunkSource
        The array. Its chunks hold whole rows.

    Attributes
    ----------
    dtype : numpy.dtype
        What the values are, as they are stored.
    row_bytes : int
        Bytes of a row.
    """

    wide = None

    def __init__(self, source: ChunkSource) -> None:
        self.source = source
        self.dtype, self.row_bytes = source.layout.stored_dtype, source.layout.row_bytes
        self._chunk_rows = 1 if source.index is None else source.grid.chunk_rows

    def jobs(self, request: Request, out: np.ndarray) -> list[Job]:
        """Return the work that fills ``out[request.places]`` with ``request.rows``, as they are stored."""
        if self.source.is_unwritten:
            return [partial(_fill, request, out, self.source.layout.fill_value)]
        if request.counts is None and len(request) > _MOST_ROWS:
            parts = list(self.parts(request, _MOST_ROWS))
            if len(parts) > 1:  # not all of the rows are in one chunk
                return in_parts(self.source.byte_source, [partial(self.jobs, part, out) for part in parts])
        if self.source.index is None:
            return self._row_jobs(request, out)
        return self._chunk_jobs(request if request.counts is None else request.joined().pieces(self._chunk_rows), out)

    def parts(self, request: Request, at_once: int) -> Iterator[Request]:
        """Yield parts of about `at_once` rows, or a mebibyte of a range; no chunk is in two of them."""
        if request.is_range:
            yield from request.spans(self._chunk_rows, self.row_bytes)
            return
        request = request.listed()
        chunks = None if self.source.index is None else request.rows // self._chunk_rows
        yield from cut_between_chunks(request, at_once, chunks)

    # Rows that are stored as they are --------------------------------------------------------

    def _row_jobs(self, runs: Request, out: np.ndarray) -> list[Job]:
        """Return the work for rows of contiguous arrays."""
        source, jobs = self.source, list[Job]()
        if (parts := source.parts) is None:
            assert source.layout.offset is not None
            offsets = source.layout.offset + runs.firsts * self.row_bytes
            return self._copies_of(runs, offsets, np.full(len(runs), source.file), out)
        runs, at = cut_at(parts.starts, runs)
        if (missing := parts.offsets[at] == UNALLOCATED).any():
            jobs.append(partial(_fill, runs.select(missing), out, source.layout.fill_value))
            runs, at = runs.select(~missing), at[~missing]
        offsets = parts.offsets[at] + (runs.firsts - parts.starts[at]) * self.row_bytes
        files = np.full(len(runs), source.file) if parts.descriptors is None else parts.descriptors[at]
        return jobs + (self._copies_of(runs, offsets, files, out) if len(runs) else [])

    def _copies_of(self, runs: Request, offsets: np.ndarray, files: np.ndarray, out: np.ndarray) -> list[Job]:
        """Return the work that copies runs of rows as they are stored, each from its offset, and its file."""
        if len(runs) > _MOST_ROWS:
            parts = [slice(at, at + _MOST_ROWS) for at in range(0, len(runs), _MOST_ROWS)]
            plans = [partial(self._copies_of, runs.select(part), offsets[part], files[part], out) for part in parts]
            return in_parts(self.source.byte_source, plans)
        table = _copies(files, offsets, runs.places * self.row_bytes, runs.lengths * self.row_bytes, out)
        return [self.source.table(table, NO_PIECES, out, np.full(table.shape[1], -1))]

    # Chunks ----------------------------------------------------------------------------------

    def _chunk_jobs(self, runs: Request, out: np.ndarray) -> list[Job]:
        """Return the work for runs that are each in one chunk along the first axis; their chunks ascend."""
        source = self.source
        along = runs.firsts // self._chunk_rows
        starts, stops = runs_between(along[1:] != along[:-1])
        written, numbers, table = source.stored(along[starts])
        jobs: list[Job] = []
        if not written.all():
            missing = ~written
            at = units_of(starts[missing], (stops - starts)[missing])
            jobs.append(partial(_fill, runs.select(at), out, source.layout.fill_value))
            starts, stops = starts[written], stops[written]
        copied, pieces = table[:, :0], NO_PIECES
        raw = table[Field.PIPELINE] == RAW
        if raw.any():  # their rows are copied from where they are
            counts = (stops - starts)[raw]
            at = units_of(starts[raw], counts)
            offsets = table[Field.OFFSET, raw].repeat(counts) + runs.firsts[at] % self._chunk_rows * self.row_bytes
            files, places = table[Field.FILE, raw].repeat(counts), runs.places[at] * self.row_bytes
            copied = _copies(files, offsets, places, runs.lengths[at] * self.row_bytes, out)
            table, numbers, starts, stops = table.compress(~raw, axis=1), numbers[~raw], starts[~raw], stops[~raw]
        if len(numbers):
            pieces = self._pieces(table, runs, starts, stops, out)
        if copied.size:
            table = np.concatenate([copied, table], axis=1)
            numbers = np.concatenate([np.full(copied.shape[1], -1), numbers])
        if table.size:
            jobs.append(source.table(table, pieces, out, numbers))
        return jobs

    def _pieces(
        self, jobs: np.ndarray, runs: Request, starts: np.ndarray, stops: np.ndarray, out: np.ndarray
    ) -> np.ndarray:
        """Set where chunks are decoded to, and return the pieces that are copied from there."""
        row_bytes, address, lengths = self.row_bytes, out.ctypes.data, runs.lengths
        whole = lengths[starts] == self._chunk_rows
        np.multiply(runs.places[starts] * row_bytes + address, whole, out=jobs[Field.DESTINATION])
        # A chunk that is in its place needs no piece for it; for further places it does.
        counts = stops - starts - whole
        ends = counts.cumsum()
        jobs[Field.BEGIN], jobs[Field.END] = ends - counts, ends
        if not ends[-1]:
            return NO_PIECES
        at = units_of(starts + whole, counts)
        pieces = np.empty((len(Piece), len(at)), np.int64)
        pieces[Piece.SOURCE] = runs.firsts[at] % self._chunk_rows * row_bytes
        pieces[Piece.DESTINATION] = runs.places[at] * row_bytes + address
        pieces[Piece.SIZE], pieces[Piece.BOX] = lengths[at] * row_bytes, PLAIN
        return pieces


def _copies(
    files: np.ndarray, offsets: np.ndarray, begins: np.ndarray, sizes: np.ndarray, out: np.ndarray
) -> np.ndarray:
    """Return jobs that copy bytes of files to where they begin in `out`, ascending in each file."""
    is_same = files[1:] == files[:-1]
    if not ((offsets[1:] >= offsets[:-1]) & is_same).all():
        order = np.lexsort((offsets, files))
        files, offsets, begins, sizes = files[order], offsets[order], begins[order], sizes[order]
        is_same = files[1:] == files[:-1]
    follows = (offsets[1:] == offsets[:-1] + sizes[:-1]) & (begins[1:] == begins[:-1] + sizes[:-1]) & is_same
    if follows.any():
        starts, _ = runs_between(~follows)
        files, offsets, begins = files[starts], offsets[starts], begins[starts]
        sizes = np.add.reduceat(sizes, starts)
    if (sizes > _MOST_BYTES).any():
        parts = -(-sizes // _MOST_BYTES)
        at = units_of(np.zeros(len(parts), np.int64), parts) * _MOST_BYTES
        files, offsets, begins = files.repeat(parts), offsets.repeat(parts) + at, begins.repeat(parts) + at
        sizes = np.minimum(sizes.repeat(parts) - at, _MOST_BYTES)
    jobs = np.zeros((len(Field), len(offsets)), np.int64)
    jobs[Field.FILE], jobs[Field.PIPELINE] = files, RAW
    jobs[Field.OFFSET], jobs[Field.SIZE], jobs[Field.DECODED] = offsets, sizes, sizes
    np.add(begins, out.ctypes.data, out=jobs[Field.DESTINATION])
    return jobs


def _fill(request: Request, out: np.ndarray, value: object, worker: Worker) -> None:
    del worker
    request.fill(out, value)
