"""Read the rows of a column by our own chunk reads."""

from __future__ import annotations

import math
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
    LARGE_ROW_BYTES,
    Request,
    RowRange,
    RowRequest,
    Runs,
    extent_spans,
    fetch_spans,
    solid_spans,
    unbroken,
)
from ray_h5.hdf5.reading.h5py_column import Library
from ray_h5.hdf5.reading.jobs import InTurn, Job, Worker
from ray_h5.hdf5.source import ByteSource

_SHARED_CHUNK_BYTES = 32 << 10
"""Chunks of less are decoded by one thread: several would spend their time handing on the interpreter; measured."""

_PIECE_BYTES = 1 << 20
"""About as much is one piece of work, so that threads share a read evenly."""


class DirectColumn:
    """Reads a column by its own chunk reads: no lock, each chunk fetched and decoded once.

    Parameters
    ----------
    path : str
        The file, for messages.
    layout : ColumnLayout
        A column whose `direct` is true.
    source : ByteSource
        The bytes of the file.
    index : ChunkIndex, optional
        The chunks; None for contiguous data.
    """

    def __init__(self, path: str, layout: ColumnLayout, source: ByteSource, index: ChunkIndex | None) -> None:
        self._path = path
        self._layout = layout
        self._source = source
        self._index = index
        self._grid = ChunkGrid.of(layout)
        self._row_bytes = layout.row_bytes
        self._chunk_bytes = math.prod(self._grid.chunk_shape) * layout.stored_dtype.itemsize
        # Each chunk holds whole rows, one behind the other.
        self._by_row = self._grid.chunk_shape[1:] == layout.row_shape
        self._decoder = ChunkDecoder(layout.pipeline, self._chunk_bytes)

    def jobs(self, request: Request, out: np.ndarray, library: Library) -> list[Job]:  # noqa: ARG002  as H5pyColumn has it
        """Return the work that fills ``out[request.places]`` with ``request.rows``.

        `out` may have another dtype than the column: values are cast chunk by chunk.
        """
        if self._row_bytes == 0 or not len(request):
            return []
        if self._is_empty:
            return [lambda _: self._fill_rows(request, out)]
        if isinstance(request, RowRange) and (solid := self._solid_jobs(request, out)):
            return solid
        if self._index is None:
            assert self._layout.offset is not None
            request = request.listed()
            return self._extent_jobs(request, self._layout.offset + request.rows * self._row_bytes, out)
        if isinstance(request, RowRequest) and self._by_row:
            offsets = self._raw_offsets(request.rows)
            if offsets is not None:
                return self._extent_jobs(request, offsets, out)
        return self._chunk_jobs(_Pieces.of(request, self._grid, self._index), out)

    @property
    def _is_empty(self) -> bool:
        """Whether nothing was ever written."""
        return self._layout.offset is None if self._index is None else not len(self._index.numbers)

    def _fill_rows(self, request: Request, out: np.ndarray) -> None:
        rows = slice(request.place, request.place + request.count) if isinstance(request, RowRange) else request.places
        out[rows] = self._layout.fill

    def _raw_offsets(self, rows: np.ndarray) -> np.ndarray | None:
        """Return where rows begin in the file, if all of them lie in chunks that are stored as they are.

        What `_chunk_jobs` comes to for these, in a tenth of its calls: a batch of few rows costs little else.
        """
        chunk_rows = self._grid.chunk_rows
        offsets = self._raw_chunks(rows // chunk_rows)
        return None if offsets is None else offsets + rows % chunk_rows * self._row_bytes

    def _raw_chunks(self, numbers: np.ndarray) -> np.ndarray | None:
        """Return where chunks begin in the file, if all of them are stored as they are."""
        assert self._index is not None
        offsets, sizes, masks = self._index.locate(numbers)
        plain = self._decoder.stores_raw(masks) & (sizes == self._chunk_bytes) & (offsets != UNALLOCATED)
        return offsets if plain.all() else None

    def _solid_jobs(self, rows: RowRange, out: np.ndarray) -> list[Job]:
        """Return the work that copies a range as it is stored; nothing if that takes a decoder, or many small calls."""
        if not self._by_row:
            return []
        if self._index is None:
            assert self._layout.offset is not None
            runs, offsets = Runs.whole(len(rows)), np.array([self._layout.offset + rows.first * self._row_bytes])
            return self._run_jobs(rows, runs, offsets, out)
        chunks, runs = rows.by_chunk(self._grid.chunk_rows)
        found = self._raw_chunks(chunks)
        return [] if found is None else self._run_jobs(rows, runs, found + self._skipped(rows, runs), out)

    def _skipped(self, rows: RowRange, runs: Runs) -> np.ndarray:
        """Return how many bytes of its chunk lie before each run."""
        return (rows.first + runs.start) % self._grid.chunk_rows * self._row_bytes

    def _run_jobs(self, rows: RowRange, runs: Runs, offsets: np.ndarray, out: np.ndarray) -> list[Job]:
        """Return the work that copies runs of a range, each from its offset; nothing if these are many small calls."""
        in_place = self._lands_in_place(out)
        begins, sizes = (runs.start + rows.place) * self._row_bytes, (runs.stop - runs.start) * self._row_bytes
        spans = list(solid_spans(offsets, begins, sizes, 1 if in_place else self._row_bytes))
        if (len(spans) - 1) * LARGE_ROW_BYTES > sizes.sum():
            return []
        read = partial(self._read_solid, as_bytes(out)) if in_place else partial(self._read_cast, out)
        return [partial(read, *span) for span in spans]

    def _chunk_jobs(self, pieces: _Pieces, out: np.ndarray) -> list[Job]:
        missing = pieces.offsets == UNALLOCATED
        by_row = self._decoder.stores_raw(pieces.masks) & ~missing & self._by_row
        jobs: list[Job] = []
        if self._grid.per_row > 1 and 2 * np.count_nonzero(missing) >= len(missing) > 0:
            # One assignment instead of one a chunk. Now, and not in a job: these run side by side, and the written
            # chunks go over it.
            self._fill_rows(pieces.request, out)
        elif missing.any():
            jobs += [partial(self._fill, pieces.select(missing), out)]
        if by_row.any():
            jobs += self._raw_jobs(pieces.select(by_row), out)
        decoded = pieces.select(~(missing | by_row))
        return jobs + self._decode_jobs(decoded, out) if len(decoded) else jobs

    def _lands_in_place(self, out: np.ndarray) -> bool:
        return out.dtype == self._layout.stored_dtype and bool(out.flags.c_contiguous)

    # Rows that are stored as they are --------------------------------------------------------

    def _raw_jobs(self, pieces: _Pieces, out: np.ndarray) -> list[Job]:
        self._check_raw_sizes(pieces)
        rows, runs = pieces.request, pieces.runs
        if isinstance(rows, RowRange):
            solid = self._run_jobs(rows, runs, pieces.offsets + self._skipped(rows, runs), out)
            if solid:
                return solid
        listed = pieces.rows_of()
        first = np.repeat(pieces.offsets, pieces.lengths)
        return self._extent_jobs(listed, first + listed.rows % self._grid.chunk_rows * self._row_bytes, out)

    def _extent_jobs(self, request: RowRequest, offsets: np.ndarray, out: np.ndarray) -> list[Job]:
        if np.any(offsets[1:] < offsets[:-1]):
            order = np.argsort(offsets, kind="stable")
            request, offsets = request.select(order), offsets[order]
        if self._row_bytes >= LARGE_ROW_BYTES and self._lands_in_place(out) and _apart(offsets, self._row_bytes):
            return self._row_jobs(offsets, request.places, as_bytes(out))
        spans = extent_spans(offsets, request.places, self._row_bytes)
        solid = unbroken((np.diff(offsets) == self._row_bytes) & (np.diff(request.places) == 1), spans)
        solid &= self._lands_in_place(out)
        flat = as_bytes(out) if solid.any() else out
        return [
            partial(self._read_solid, flat, offset, place * self._row_bytes, (stop - start) * self._row_bytes)
            if direct
            else partial(self._read_span, out, offsets[start:stop], request.places[start:stop])
            for start, stop, direct, offset, place in zip(
                spans.start.tolist(),
                spans.stop.tolist(),
                solid.tolist(),
                offsets[spans.start].tolist(),
                request.places[spans.start].tolist(),
                strict=True,
            )
        ]

    def _row_jobs(self, offsets: np.ndarray, places: np.ndarray, flat: np.ndarray) -> list[Job]:
        """Return the work that reads large rows, none of which touches another, each by a call of its own."""
        begins = (places * self._row_bytes).tolist()
        starts = offsets.tolist()
        at_once = max(1, _PIECE_BYTES // self._row_bytes)
        return [
            partial(self._read_rows, flat, starts[i : i + at_once], begins[i : i + at_once])
            for i in range(0, len(starts), at_once)
        ]

    def _read_rows(self, flat: np.ndarray, offsets: list[int], begins: list[int], worker: Worker) -> None:
        view, size, read = flat.data, self._row_bytes, self._source.read_into
        for offset, begin in zip(offsets, begins, strict=True):
            read(offset, view[begin : begin + size])
        worker.stats.requests += len(offsets)
        worker.stats.bytes_read += len(offsets) * size

    def _read_solid(self, flat: np.ndarray, offset: int, begin: int, nbytes: int, worker: Worker) -> None:
        self._fetch(offset, flat[begin : begin + nbytes], worker)

    def _read_cast(self, out: np.ndarray, offset: int, begin: int, nbytes: int, worker: Worker) -> None:
        buffer = worker.buffer("span", nbytes)
        self._fetch(offset, buffer, worker)
        place, count = begin // self._row_bytes, nbytes // self._row_bytes
        out[place : place + count] = buffer.view(self._layout.stored_dtype).reshape(-1, *self._layout.row_shape)

    def _read_span(self, out: np.ndarray, offsets: np.ndarray, places: np.ndarray, worker: Worker) -> None:
        low = int(offsets[0])
        buffer = worker.buffer("span", int(offsets[-1]) + self._row_bytes - low)
        self._fetch(low, buffer, worker)
        stored = buffer.view(self._layout.stored_dtype).reshape(-1, *self._layout.row_shape)
        out[places] = stored[(offsets - low) // self._row_bytes]

    def _fetch(self, offset: int, buffer: np.ndarray, worker: Worker) -> None:
        self._source.read_into(offset, buffer.data)
        worker.stats.requests += 1
        worker.stats.bytes_read += len(buffer)

    def _check_raw_sizes(self, pieces: _Pieces) -> None:
        wrong = np.flatnonzero(pieces.sizes != self._chunk_bytes)
        if len(wrong):
            found = int(pieces.sizes[wrong[0]])
            reason = f"expected {self._chunk_bytes} bytes stored without filters, found {found}"
            raise self._corrupt(pieces, int(wrong[0]), reason)

    # Chunks that were never written ----------------------------------------------------------

    def _fill(self, pieces: _Pieces, out: np.ndarray, worker: Worker) -> None:  # noqa: ARG002  a job
        if self._grid.per_row > 1:
            for i, number in enumerate(pieces.numbers.tolist()):
                where: Any = (pieces.run(i).indices(0)[1], *self._grid.slices(number))
                out[where] = self._layout.fill
        elif isinstance(rows := pieces.request, RowRange):
            joined = Runs.split(pieces.runs.stop[:-1] != pieces.runs.start[1:])
            begins, ends = pieces.runs.start[joined.start], pieces.runs.stop[joined.stop - 1]
            for begin, end in zip((begins + rows.place).tolist(), (ends + rows.place).tolist(), strict=True):
                out[begin:end] = self._layout.fill
        else:
            out[pieces.rows_of().places] = self._layout.fill

    # Chunks that are decoded -----------------------------------------------------------------

    def _decode_jobs(self, pieces: _Pieces, out: np.ndarray) -> list[Job]:
        request = pieces.request
        whole = request.in_order(pieces.runs)
        whole &= (pieces.lengths == self._grid.chunk_rows) & self._by_row & self._lands_in_place(out)
        spans = fetch_spans(pieces.offsets, pieces.sizes)
        work = _Decode(pieces, out, as_bytes(out) if whole.any() else out, whole.tolist())
        jobs: list[Job] = [
            partial(self._decode_span, work, start, stop)
            for start, stop in zip(spans.start.tolist(), spans.stop.tolist(), strict=True)
        ]
        return jobs if self._chunk_bytes >= _SHARED_CHUNK_BYTES else [InTurn(jobs)]

    def _decode_span(self, work: _Decode, start: int, stop: int, worker: Worker) -> None:
        low = work.begins[start]
        stored = worker.buffer("stored", work.ends[stop - 1] - low)
        self._fetch(low, stored, worker)
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
                raise self._corrupt(work.pieces, i, str(exc)) from exc
            if not work.whole[i]:
                self._scatter(chunk, work.pieces, i, work.out)
        worker.stats.chunks_decoded += stop - start

    def _scatter(self, chunk: np.ndarray, pieces: _Pieces, i: int, out: np.ndarray) -> None:
        grid, number = self._grid, int(pieces.numbers[i])
        values = chunk.view(self._layout.stored_dtype).reshape(grid.chunk_shape)
        rows, places = pieces.run(i).indices(grid.first_row(number))
        covered = grid.slices(number)
        inside = tuple(slice(0, part.stop - part.start) for part in covered)
        where: Any = (places, *covered)
        what: Any = (rows, *inside)
        out[where] = values[what]

    def _corrupt(self, pieces: _Pieces, i: int, reason: str) -> CorruptChunkError:
        found = int(pieces.numbers[i]), int(pieces.offsets[i]), int(pieces.sizes[i])
        return corrupt_chunk(self._path, self._layout, *found, reason)


def _apart(offsets: np.ndarray, row_bytes: int) -> bool:
    """Tell whether no two rows, given in the order of their offsets, touch each other or are the same."""
    return not (offsets[1:] - offsets[:-1] <= row_bytes).any()


class _Decode:
    """Chunks to decode, as lists: a loop over small chunks is as fast as its look-ups."""

    def __init__(self, pieces: _Pieces, out: np.ndarray, flat: np.ndarray, whole: list[bool]) -> None:
        self.pieces = pieces
        self.out = out
        self.flat = flat
        self.whole = whole
        self.begins: list[int] = pieces.offsets.tolist()
        self.ends: list[int] = (pieces.offsets + pieces.sizes).tolist()
        self.masks: list[int] = pieces.masks.tolist()
        self.places: list[int] = pieces.request.places_of(pieces.runs.start).tolist()


@dataclass(frozen=True, slots=True, eq=False)
class _Pieces:
    """The chunks that a request touches, each with the run of the request that lies in it."""

    request: Request
    numbers: np.ndarray
    runs: Runs
    offsets: np.ndarray
    sizes: np.ndarray
    masks: np.ndarray

    @classmethod
    def of(cls, request: Request, grid: ChunkGrid, index: ChunkIndex) -> _Pieces:
        along, runs = request.by_chunk(grid.chunk_rows)
        numbers = grid.numbers(along)
        spread = Runs(np.repeat(runs.start, grid.per_row), np.repeat(runs.stop, grid.per_row))
        return cls(request, numbers, spread, *index.locate(numbers))

    def __len__(self) -> int:
        return len(self.numbers)

    @property
    def lengths(self) -> np.ndarray:
        return self.runs.stop - self.runs.start

    def select(self, keep: np.ndarray | slice) -> _Pieces:
        runs = Runs(self.runs.start[keep], self.runs.stop[keep])
        return _Pieces(self.request, self.numbers[keep], runs, self.offsets[keep], self.sizes[keep], self.masks[keep])

    def run(self, i: int) -> Request:
        """Return the part of the request that lies in chunk number i of these."""
        return self.request.select(slice(int(self.runs.start[i]), int(self.runs.stop[i])))

    def rows_of(self) -> RowRequest:
        """Return the part of the request that lies in these chunks, none of which comes twice."""
        skipped = self.runs.start - (np.cumsum(self.lengths) - self.lengths)
        return self.request.listed().select(np.arange(self.lengths.sum()) + np.repeat(skipped, self.lengths))
