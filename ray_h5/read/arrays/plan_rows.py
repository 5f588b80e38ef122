"""Plans reads of whole rows that lie one after the other, in contiguous arrays and in chunks of whole rows."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np

from ray_h5.manifest.row_requests import Request, runs_between, units_of
from ray_h5.read.arrays.chunk_source import ChunkSource, cut_between_chunks
from ray_h5.read.jobs import Job, in_parts
from ray_h5.read.native.job_table import NO_PIECES, PLAIN, RAW, Field, Piece

_MOST_BYTES = 1 << 20
"""Bytes of a job that copies rows as they are stored, and of values that are cast together."""

_MOST_ROWS = 1 << 16
"""Rows that are planned together: a job takes 88 bytes, which may be more than a row."""


# The functions plan whole rows of an array, a `ChunkSource`, whose chunks hold whole rows. Each chunk is fetched and
# decoded once. Rows that are stored as they are (contiguous, or in chunks that no filter changed) are copied from the
# file straight into the output. Other chunks are decoded: into the output if all their rows are requested in their
# order, and otherwise into scratch memory, from which pieces are copied. Rows that were never written are filled when
# they are planned: no job writes to their places.


def row_jobs(source: ChunkSource, request: Request, out: np.ndarray) -> list[Job]:
    """Return the work that fills ``out[request.places]`` with ``request.rows``, as they are stored."""
    if source.is_unwritten:
        request.fill(out, source.layout.fill_value)
        return []
    rows, at = source.chunk_rows if source.is_chunked else 0, None
    if not rows:
        request, at = source.table.cut(request)
    if request.firsts.size > _MOST_ROWS and not (rows and request.counts is not None):
        parts = list(cut_between_chunks(request, _MOST_ROWS, request.firsts // rows if rows else None))
        if len(parts) > 1:  # not all of the rows are in one chunk
            return in_parts(source.byte_source, [partial(row_jobs, source, part, out) for part in parts])
    if not rows:
        return _contiguous_jobs(source, request, at, out)
    return _chunk_jobs(source, request if request.counts is None else request.joined().pieces(rows), out)


def row_parts(source: ChunkSource, request: Request, at_once: int) -> Iterator[Request]:
    """Yield parts of about `at_once` rows, or a mebibyte of a range; no chunk is in two of them."""
    rows = source.chunk_rows
    if request.is_range:
        yield from request.spans(rows, source.row_bytes)
        return
    request = request.listed()
    yield from cut_between_chunks(request, at_once, request.rows // rows if source.is_chunked else None)


def _contiguous_jobs(source: ChunkSource, runs: Request, at: np.ndarray | None, out: np.ndarray) -> list[Job]:
    """Return the work for rows of contiguous arrays; each run is in one of them, of several, in array ``at[i]``."""
    if at is not None and not (written := source.table.are_written(at)).all():
        runs.select(~written).fill(out, source.layout.fill_value)
        runs, at = runs.select(written), at[written]
    if not runs.firsts.size:
        return []
    row_bytes, (files, bases) = source.row_bytes, source.begins(at)
    offsets, of_runs = bases + runs.firsts * row_bytes, np.full(runs.firsts.size, files)
    table = _copies(of_runs, offsets, runs.places * row_bytes, runs.lengths * row_bytes, out)
    return [source.job_table(table, NO_PIECES, out, -1)]


def _chunk_jobs(source: ChunkSource, runs: Request, out: np.ndarray) -> list[Job]:
    """Return the work for runs that are each in one chunk along the first axis; their chunks ascend."""
    row_bytes, chunk_rows = source.row_bytes, source.chunk_rows
    along = runs.firsts // chunk_rows
    starts, stops = runs_between(along[1:] != along[:-1])
    written, numbers, table = source.stored(along[starts])
    if not written.all():
        runs.select(units_of(starts[~written], (stops - starts)[~written])).fill(out, source.layout.fill_value)
        starts, stops = starts[written], stops[written]
    lengths, copied, pieces = runs.lengths, table[:, :0], NO_PIECES
    raw = table[Field.PIPELINE] == RAW
    if raw.any():  # their rows are copied from where they are
        counts = (stops - starts)[raw]
        at = units_of(starts[raw], counts)
        offsets = table[Field.OFFSET, raw].repeat(counts) + runs.firsts[at] % chunk_rows * row_bytes
        files, places = table[Field.FILE, raw].repeat(counts), runs.places[at] * row_bytes
        copied = _copies(files, offsets, places, lengths[at] * row_bytes, out)
        table, numbers, starts, stops = table.compress(~raw, axis=1), numbers[~raw], starts[~raw], stops[~raw]
    if len(numbers):
        address = out.ctypes.data
        whole = lengths[starts] == chunk_rows
        np.multiply(runs.places[starts] * row_bytes + address, whole, out=table[Field.DESTINATION])
        # A chunk that is in its place needs no piece for it; for further places it does.
        counts = stops - starts - whole
        ends = counts.cumsum()
        table[Field.BEGIN], table[Field.END] = ends - counts, ends
        if ends[-1]:
            at = units_of(starts + whole, counts)
            pieces = np.empty((len(Piece), at.size), np.int64)
            pieces[Piece.SOURCE] = runs.firsts[at] % chunk_rows * row_bytes
            pieces[Piece.DESTINATION] = runs.places[at] * row_bytes + address
            pieces[Piece.SIZE], pieces[Piece.BOX] = lengths[at] * row_bytes, PLAIN
    if copied.size:
        table = np.concatenate([copied, table], axis=1)
        numbers = np.concatenate([np.full(copied.shape[1], -1), numbers])
    return [source.job_table(table, pieces, out, numbers)] if table.size else []


def _copies(
    files: np.ndarray, offsets: np.ndarray, begins: np.ndarray, sizes: np.ndarray, out: np.ndarray
) -> np.ndarray:
    """Return jobs that copy bytes of files to where they begin in `out`, ascending in each file."""
    if files.size > 1:
        files, offsets, begins, sizes = _neighbours_joined(files, offsets, begins, sizes)
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


def _neighbours_joined(
    files: np.ndarray, offsets: np.ndarray, begins: np.ndarray, sizes: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return copies in the order of the files, those as one that follow each other there and in the output."""
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
    return files, offsets, begins, sizes
