"""Columns that this package reads and decodes itself, without libhdf5."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from ray_h5.errors import CorruptChunkError
from ray_h5.hdf5.buffers import as_bytes
from ray_h5.hdf5.chunk_index import UNALLOCATED, ChunkGrid, ChunkIndex, corrupt_chunk
from ray_h5.hdf5.codecs.pipeline import ChunkDecoder, DecodeError
from ray_h5.hdf5.layout import ColumnLayout
from ray_h5.hdf5.reading.coalesce import (
    LARGE_READ_BYTES,
    PAGE_BYTES,
    Request,
    RowRange,
    RowRequest,
    RowRuns,
    contiguous_spans,
    fetch_spans,
    row_spans,
    unbroken,
)
from ray_h5.hdf5.reading.h5py_column import Library
from ray_h5.hdf5.reading.jobs import Fetch, FetchSpans, InTurn, Job, LongFetch, Worker
from ray_h5.hdf5.reading.run_request import RunRequest
from ray_h5.hdf5.reading.touched_chunks import TouchedChunks
from ray_h5.storage.byte_source import ByteSource

_SHARED_CHUNK_BYTES = 32 << 10
"""One thread decodes chunks smaller than this: several threads would wait for the interpreter's lock (measured)."""

_COPIED_BYTES = 1 << 20
"""Small rows are copied together, by way of this much memory."""

_LONG_COPY_BYTES = 256 << 10
"""Copying this many bytes takes longer than handing the interpreter's lock to another thread and back."""

_SHORT_COPIES_BYTES = 4 << 20
"""Short reads of about this many bytes together are one job."""


class DirectColumn:
    """Reads a column without libhdf5 and its lock; each chunk is fetched and decoded once.

    There are two kinds of jobs. Rows that are stored as they are (contiguous, or in chunks that no filter changed) are
    copied from the file: spans of them, straight into the output where they fit. Other chunks are decoded.

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
        self._layout = layout
        self._byte_source = byte_source
        self._index = index
        self._grid = ChunkGrid.of(layout)
        self._row_bytes = layout.row_bytes
        self._chunk_bytes = math.prod(self._grid.chunk_shape) * layout.stored_dtype.itemsize
        # Each chunk holds whole rows, one after the other.
        self._by_row = self._grid.chunk_shape[1:] == layout.row_shape
        self._decoder = ChunkDecoder(layout.pipeline, self._chunk_bytes)

    needs_library = False

    @property
    def byte_source(self) -> ByteSource:
        """The bytes that its jobs fetch."""
        return self._byte_source

    # `library` is for H5pyColumn, which has the same method.
    def jobs(self, request: Request | RunRequest, out: np.ndarray, library: Library) -> list[Job]:  # noqa: ARG002
        """Return the work that fills ``out[request.places]`` with ``request.rows``.

        If `out` has another dtype than the column, values are cast chunk by chunk.
        """
        if self._row_bytes == 0 or not len(request):
            return []
        if self._is_empty:
            return [lambda _: self._fill_rows(request, out)]
        if isinstance(request, RunRequest):
            if self._by_row or self._index is None:
                return self._run_jobs(request.joined(), out)
            request = request.listed()
        # From the fastest way to the most general one; each returns the same values.
        if isinstance(request, RowRange) and (solid := self._range_jobs(request, out)):
            return solid
        if self._index is None:
            assert self._layout.offset is not None
            request = request.listed()
            return self.copy_rows(request, self._layout.offset + request.rows * self._row_bytes, out)
        if isinstance(request, RowRequest) and self._by_row:
            offsets = self._unfiltered_row_offsets(request.rows)
            if offsets is not None:
                return self.copy_rows(request, offsets, out)
        return self._chunk_jobs(TouchedChunks.of(request, self._grid, self._index), out)

    def places(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Return byte ranges of the file that have rows, which ascend.

        Returns
        -------
        starts, stops, offsets, sizes : numpy.ndarray
            int64: which of the rows, as a range of positions among them; and the bytes.
        """
        if self._is_empty or self._row_bytes == 0 or not len(rows):
            nothing = np.empty(0, np.int64)
            return nothing, nothing, nothing, nothing
        if self._index is None:
            assert self._layout.offset is not None
            at = np.arange(len(rows), dtype=np.int64)
            return at, at + 1, self._layout.offset + rows * self._row_bytes, np.full(len(rows), self._row_bytes)
        chunks = TouchedChunks.of(RowRequest(rows, rows), self._grid, self._index)
        chunks = chunks.select(chunks.offsets != UNALLOCATED)
        if not self._by_row or not self._decoder.stores_raw(chunks.masks).all():
            return chunks.runs.start, chunks.runs.stop, chunks.offsets, chunks.sizes
        at = np.repeat(chunks.runs.start - (np.cumsum(chunks.lengths) - chunks.lengths), chunks.lengths)
        at += np.arange(len(at))
        offsets = np.repeat(chunks.offsets, chunks.lengths) + rows[at] % self._grid.chunk_rows * self._row_bytes
        return at, at + 1, offsets, np.full(len(at), self._row_bytes)

    @property
    def _is_empty(self) -> bool:
        """Whether the column was never written."""
        return self._layout.offset is None if self._index is None else not len(self._index.numbers)

    def _fill_rows(self, request: Request | RunRequest, out: np.ndarray) -> None:
        if isinstance(request, RunRequest):
            request.fill(out, self._layout.fill)
            return
        rows = slice(request.place, request.place + request.count) if isinstance(request, RowRange) else request.places
        out[rows] = self._layout.fill

    def _run_jobs(self, runs: RunRequest, out: np.ndarray) -> list[Job]:
        """Return the work for runs of rows, ascending. Rows of a chunk are one after the other."""
        if self._index is None:
            assert self._layout.offset is not None
            return self._copy_pieces(runs, self._layout.offset + runs.firsts * self._row_bytes, out)
        return self._chunk_jobs(TouchedChunks.of(runs.pieces(self._grid.chunk_rows), self._grid, self._index), out)

    def _copy_pieces(self, runs: RunRequest, offsets: np.ndarray, out: np.ndarray) -> list[Job]:
        """Return the work that copies runs as they are stored, each from its offset; values may be cast."""
        if self._lands_in_place(out):
            return self.copy_runs(runs, offsets, out)
        begins, sizes = runs.places * self._row_bytes, runs.counts * self._row_bytes
        spans = contiguous_spans(offsets, begins, sizes, self._row_bytes)
        return [_copy(self._read_cast, offset, nbytes, out, begin) for offset, begin, nbytes in spans]

    def _unfiltered_row_offsets(self, rows: np.ndarray) -> np.ndarray | None:
        """Return where rows begin in the file if all of them are in chunks that no filter changed; otherwise None.

        Fast path: the same result as `_chunk_jobs`. Without it, 64 random rows take 1.2 to 1.3 times as long
        (CPU seconds; rows of 64 bytes to 16 KiB).
        """
        chunk_rows = self._grid.chunk_rows
        offsets = self._unfiltered_chunk_offsets(rows // chunk_rows)
        return None if offsets is None else offsets + rows % chunk_rows * self._row_bytes

    def _unfiltered_chunk_offsets(self, numbers: np.ndarray) -> np.ndarray | None:
        """Return where chunks begin in the file if no filter changed any of them; otherwise None."""
        assert self._index is not None
        offsets, sizes, masks = self._index.locate(numbers)
        plain = self._decoder.stores_raw(masks) & (sizes == self._chunk_bytes) & (offsets != UNALLOCATED)
        return offsets if plain.all() else None

    def _range_jobs(self, rows: RowRange, out: np.ndarray) -> list[Job]:
        """Return the work that copies a range as it is stored; nothing if it has to be decoded, or is in small parts.

        Fast path: 64 consecutive rows as a list of rows take 1.3 to 1.9 times as long (CPU seconds).
        """
        if not self._by_row:
            return []
        if self._index is None:
            assert self._layout.offset is not None
            runs, offsets = RowRuns.whole(len(rows)), np.array([self._layout.offset + rows.first * self._row_bytes])
            return self._copy_runs(rows, runs, offsets, out)
        chunks, runs = rows.by_chunk(self._grid.chunk_rows)
        found = self._unfiltered_chunk_offsets(chunks)
        return [] if found is None else self._copy_runs(rows, runs, found + self._bytes_before(rows, runs), out)

    def _bytes_before(self, rows: RowRange, runs: RowRuns) -> np.ndarray:
        """Return how many bytes of its chunk are before each run."""
        return (rows.first + runs.start) % self._grid.chunk_rows * self._row_bytes

    def _copy_runs(self, rows: RowRange, runs: RowRuns, offsets: np.ndarray, out: np.ndarray) -> list[Job]:
        """Return the work that copies runs of a range, each from its offset; nothing if that takes many small reads."""
        in_place = self._lands_in_place(out)
        begins, sizes = (runs.start + rows.place) * self._row_bytes, (runs.stop - runs.start) * self._row_bytes
        spans = contiguous_spans(offsets, begins, sizes, 1 if in_place else self._row_bytes)
        # Many small reads: `_copy_rows` joins spans with gaps between them.
        if (len(spans) - 1) * LARGE_READ_BYTES > sizes.sum():
            return []
        read, array = (self._read_in_place, as_bytes(out)) if in_place else (self._read_cast, out)
        return [_copy(read, offset, nbytes, array, begin) for offset, begin, nbytes in spans]

    def _chunk_jobs(self, chunks: TouchedChunks, out: np.ndarray) -> list[Job]:
        # A chunk was never written, or has whole rows without filters, or is decoded.
        missing = chunks.offsets == UNALLOCATED
        by_row = self._decoder.stores_raw(chunks.masks) & ~missing & self._by_row
        jobs: list[Job] = []
        if self._grid.per_row > 1 and 2 * np.count_nonzero(missing) >= len(missing) > 0:
            # One assignment instead of one a chunk. Now, and not in a job: these run side by side, and the written
            # chunks go over it.
            self._fill_rows(chunks.request, out)
        elif missing.any():
            jobs += [partial(self._fill, chunks.select(missing), out)]
        if by_row.any():
            jobs += self._copy_chunk_rows(chunks.select(by_row), out)
        decoded = chunks.select(~(missing | by_row))
        return jobs + self._decode_jobs(decoded, out) if len(decoded) else jobs

    def _lands_in_place(self, out: np.ndarray) -> bool:
        return out.dtype == self._layout.stored_dtype and bool(out.flags.c_contiguous)

    # Rows that are stored as they are --------------------------------------------------------

    def _copy_chunk_rows(self, chunks: TouchedChunks, out: np.ndarray) -> list[Job]:
        self._check_unfiltered_sizes(chunks)
        rows, runs = chunks.request, chunks.runs
        if isinstance(rows, RunRequest):
            pieces = chunks.pieces()
            first = np.repeat(chunks.offsets, chunks.lengths)
            return self._copy_pieces(pieces, first + pieces.firsts % self._grid.chunk_rows * self._row_bytes, out)
        if isinstance(rows, RowRange):
            solid = self._copy_runs(rows, runs, chunks.offsets + self._bytes_before(rows, runs), out)
            if solid:
                return solid
        listed = chunks.rows_of()
        first = np.repeat(chunks.offsets, chunks.lengths)
        return self.copy_rows(listed, first + listed.rows % self._grid.chunk_rows * self._row_bytes, out)

    def copy_rows(self, request: RowRequest, offsets: np.ndarray, out: np.ndarray) -> list[Job]:
        # Chunks may be in any order in the file. Spans need ascending offsets.
        if np.any(offsets[1:] < offsets[:-1]):
            order = np.argsort(offsets, kind="stable")
            request, offsets = request.select(order), offsets[order]
        spans = row_spans(offsets, request.places, self._row_bytes)
        solid = unbroken((np.diff(offsets) == self._row_bytes) & (np.diff(request.places) == 1), spans)
        solid &= self._lands_in_place(out)
        flat = as_bytes(out) if solid.any() else out
        low, sizes = offsets[spans.start], offsets[spans.stop - 1] + self._row_bytes - offsets[spans.start]
        return [
            _copy(self._read_in_place, offset, nbytes, flat, place * self._row_bytes)
            if direct
            else _copy(self._read_and_scatter, offset, nbytes, out, offsets[start:stop], request.places[start:stop])
            for start, stop, direct, offset, nbytes, place in zip(
                spans.start.tolist(),
                spans.stop.tolist(),
                solid.tolist(),
                low.tolist(),
                sizes.tolist(),
                request.places[spans.start].tolist(),
                strict=True,
            )
        ]

    def copy_runs(self, request: RunRequest, offsets: np.ndarray, out: np.ndarray) -> list[Job]:
        """Return the work that copies runs of rows as they are stored, each from its offset.

        `out` has the dtype of the column and is C-contiguous.
        """
        order = np.argsort(offsets, kind="stable")
        begins, sizes = request.places[order] * self._row_bytes, request.counts[order] * self._row_bytes
        flat, spans = as_bytes(out), contiguous_spans(offsets[order], begins, sizes)
        if sizes.sum() < _SHORT_COPIES_BYTES and sizes.max() < _LONG_COPY_BYTES:
            return [FetchSpans(self._byte_source, spans, flat)]
        jobs, short, total = list[Job](), list[tuple[int, int, int]](), 0
        for span in spans:
            offset, begin, nbytes = span
            if nbytes >= _LONG_COPY_BYTES:
                jobs.append(LongFetch(self._read_in_place, offset, nbytes, flat, begin))
                continue
            short.append(span)
            total += nbytes
            if total >= _SHORT_COPIES_BYTES:
                jobs.append(FetchSpans(self._byte_source, short, flat))
                short, total = [], 0
        return [*jobs, FetchSpans(self._byte_source, short, flat)] if short else jobs

    def _read_in_place(self, offset: int, nbytes: int, flat: np.ndarray, begin: int, worker: Worker) -> None:
        worker.fetch(self._byte_source, offset, flat[begin : begin + nbytes])

    def _read_cast(self, offset: int, nbytes: int, out: np.ndarray, begin: int, worker: Worker) -> None:
        buffer = worker.buffer("span", nbytes)
        worker.fetch(self._byte_source, offset, buffer)
        place, count = begin // self._row_bytes, nbytes // self._row_bytes
        out[place : place + count] = buffer.view(self._layout.stored_dtype).reshape(-1, *self._layout.row_shape)

    def _read_and_scatter(
        self, low: int, nbytes: int, out: np.ndarray, offsets: np.ndarray, places: np.ndarray, worker: Worker
    ) -> None:
        buffer = worker.buffer("span", nbytes)
        worker.fetch(self._byte_source, low, buffer)
        stored = buffer.view(self._layout.stored_dtype).reshape(-1, *self._layout.row_shape)
        out[places] = stored[(offsets - low) // self._row_bytes]

    def _check_unfiltered_sizes(self, chunks: TouchedChunks) -> None:
        wrong = np.flatnonzero(chunks.sizes != self._chunk_bytes)
        if len(wrong):
            found = int(chunks.sizes[wrong[0]])
            reason = f"expected {self._chunk_bytes} bytes stored without filters, found {found}"
            raise self._corrupt(chunks, int(wrong[0]), reason)

    # Chunks that were never written ----------------------------------------------------------

    def _fill(self, chunks: TouchedChunks, out: np.ndarray, worker: Worker) -> None:  # noqa: ARG002  a job
        if isinstance(chunks.request, RunRequest):
            chunks.pieces().fill(out, self._layout.fill)
        elif self._grid.per_row > 1:
            for i, number in enumerate(chunks.numbers.tolist()):
                run = chunks.run(i)
                assert not isinstance(run, RunRequest)
                where: Any = (run.indices(0)[1], *self._grid.slices(number))
                out[where] = self._layout.fill
        elif isinstance(rows := chunks.request, RowRange):
            joined = RowRuns.split(chunks.runs.stop[:-1] != chunks.runs.start[1:])
            begins, ends = chunks.runs.start[joined.start], chunks.runs.stop[joined.stop - 1]
            for begin, end in zip((begins + rows.place).tolist(), (ends + rows.place).tolist(), strict=True):
                out[begin:end] = self._layout.fill
        else:
            out[chunks.rows_of().places] = self._layout.fill

    # Chunks that are decoded -----------------------------------------------------------------

    def _decode_jobs(self, chunks: TouchedChunks, out: np.ndarray) -> list[Job]:
        # A chunk whose rows are all requested, in order, is decoded straight into the output.
        whole = chunks.request.whole_chunks(chunks.runs, self._grid.chunk_rows)
        whole &= self._by_row & self._lands_in_place(out)
        repeats = None
        if self._grid.chunk_rows == 1 and self._by_row and self._lands_in_place(out):
            # A row that is requested several times is decoded into its first place, and copied to the others. Fast
            # path: as values of a chunk, 16 windows of each step take 2.1 times as long (CPU seconds; rows of 56 B).
            whole[:] = True
            repeats = _Repeats.of(chunks)
        spans = fetch_spans(chunks.offsets, chunks.sizes)
        work = _DecodeWork(chunks, out, as_bytes(out) if whole.any() else out, whole.tolist(), repeats)
        if isinstance(chunks.request, RunRequest):
            work.pieces = _Pieces(chunks, self._grid.chunk_shape)
        is_long = self._chunk_bytes >= _SHARED_CHUNK_BYTES
        begins, ends, job = work.begins, work.ends, LongFetch if is_long else Fetch
        jobs: list[Job] = [
            job(self._decode_span, begins[start], ends[stop - 1] - begins[start], work, start, stop)
            for start, stop in zip(spans.start.tolist(), spans.stop.tolist(), strict=True)
        ]
        return jobs if is_long else [InTurn(jobs)]

    def _decode_span(self, low: int, nbytes: int, work: _DecodeWork, start: int, stop: int, worker: Worker) -> None:
        stored = worker.buffer("stored", nbytes)
        worker.fetch(self._byte_source, low, stored)
        decode, row_bytes, chunk_bytes = self._decoder.decode, self._row_bytes, self._chunk_bytes
        for i in range(start, stop):
            if work.whole[i]:
                at = work.places[i] * row_bytes
                chunk = work.flat[at : at + chunk_bytes]
            else:
                chunk = worker.buffer("chunk", chunk_bytes)
            try:
                decode(stored[work.begins[i] - low : work.ends[i] - low], work.masks[i], chunk, worker.between)
            except DecodeError as exc:
                raise self._corrupt(work.chunks, i, str(exc)) from exc
            if work.pieces is not None and not work.whole[i]:
                work.pieces.copy(chunk.view(self._layout.stored_dtype), i, work.out)
            elif not work.whole[i]:
                self._scatter(chunk, work.chunks, i, work.out)
        if work.repeats is not None:
            work.repeats.copy(start, stop, work.flat.reshape(-1, row_bytes))
        worker.stats.chunks_decoded += stop - start

    def _scatter(self, chunk: np.ndarray, chunks: TouchedChunks, i: int, out: np.ndarray) -> None:
        grid, number = self._grid, int(chunks.numbers[i])
        values = chunk.view(self._layout.stored_dtype).reshape(grid.chunk_shape)
        run = chunks.run(i)
        assert not isinstance(run, RunRequest)
        rows, places = run.indices(grid.first_row(number))
        if self._by_row:
            out[places] = values[rows]
            return
        covered = grid.slices(number)
        # Chunks at the end of an axis are stored at full size.
        inside = tuple(slice(0, part.stop - part.start) for part in covered)
        where: Any = (places, *covered)
        what: Any = (rows, *inside)
        out[where] = values[what]

    def _corrupt(self, chunks: TouchedChunks, i: int, reason: str) -> CorruptChunkError:
        found = int(chunks.numbers[i]), int(chunks.offsets[i]), int(chunks.sizes[i])
        return corrupt_chunk(self._path, self._layout, *found, reason)


def _copy(read: Callable[..., None], offset: int, nbytes: int, *arguments: Any) -> Job:
    return (LongFetch if nbytes >= _LONG_COPY_BYTES else Fetch)(read, offset, nbytes, *arguments)


class _DecodeWork:
    """Chunks to decode, as Python lists: a loop over small chunks reads these faster than numpy arrays."""

    def __init__(
        self,
        chunks: TouchedChunks,
        out: np.ndarray,
        flat: np.ndarray,
        whole: list[bool],
        repeats: _Repeats | None,
    ) -> None:
        self.chunks = chunks
        self.repeats = repeats
        self.out = out
        self.flat = flat
        self.whole = whole
        self.begins: list[int] = chunks.offsets.tolist()
        self.ends: list[int] = (chunks.offsets + chunks.sizes).tolist()
        self.masks: list[int] = chunks.masks.tolist()
        self.pieces: _Pieces | None = None
        self.places: list[int] = chunks.request.places_of(chunks.runs.start).tolist()


class _Pieces:
    """The pieces of runs that chunks hold, as Python lists."""

    def __init__(self, chunks: TouchedChunks, chunk_shape: tuple[int, ...]) -> None:
        pieces = chunks.pieces()
        self._shape = chunk_shape if len(chunk_shape) > 1 else None
        self._begins: list[int] = (pieces.firsts % chunk_shape[0]).tolist()
        self._counts: list[int] = pieces.counts.tolist()
        self._places: list[int] = pieces.places.tolist()
        self._starts: list[int] = np.concatenate([[0], np.cumsum(chunks.lengths)]).tolist()

    def copy(self, values: np.ndarray, i: int, out: np.ndarray) -> None:
        """Copy the pieces of chunk i, whose values these are, to their places."""
        values = values if self._shape is None else values.reshape(self._shape)
        for at in range(self._starts[i], self._starts[i + 1]):
            begin, place, count = self._begins[at], self._places[at], self._counts[at]
            out[place : place + count] = values[begin : begin + count]


@dataclass(frozen=True, slots=True, eq=False)
class _Repeats:
    """The places of rows that were requested before, where each chunk is one row.

    Attributes
    ----------
    sources, targets : numpy.ndarray
        int64: the first place of such a row, and another one.
    ends : numpy.ndarray
        int64: how many of them the chunks before each chunk have.
    """

    sources: np.ndarray
    targets: np.ndarray
    ends: np.ndarray

    @classmethod
    def of(cls, chunks: TouchedChunks) -> _Repeats | None:
        """Return the repeats in a request; None if there are none."""
        lengths = chunks.lengths
        if not np.any(lengths > 1):
            return None
        places = chunks.rows_of().places
        ends = np.cumsum(lengths)
        again = np.ones(len(places), bool)
        again[ends - lengths] = False
        first = np.repeat(places[ends - lengths], lengths - 1)
        return cls(first, places[again], np.concatenate([[0], ends - np.arange(1, len(ends) + 1)]))

    def copy(self, start: int, stop: int, rows: np.ndarray) -> None:
        """Copy the rows of chunks from `start` to `stop`, which are in their first places."""
        begin, end = int(self.ends[start]), int(self.ends[stop])
        at_once = 1 if rows.shape[1] >= PAGE_BYTES else _COPIED_BYTES // rows.shape[1]
        for at in range(begin, end, at_once):
            part = slice(at, min(at + at_once, end))
            rows[self.targets[part]] = rows[self.sources[part]]
