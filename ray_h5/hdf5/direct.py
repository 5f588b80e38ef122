"""Read the rows of a column by our own chunk reads."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from ray_h5.errors import CorruptChunkError
from ray_h5.hdf5.buffers import as_bytes
from ray_h5.hdf5.chunks import UNALLOCATED, ChunkGrid, ChunkIndex
from ray_h5.hdf5.codecs import ChunkDecoder, DecodeError
from ray_h5.hdf5.columns import H5pyColumn, Job, Library, Worker
from ray_h5.hdf5.gather import RowRequest, Runs, extent_spans, fetch_spans, group_by_chunk, unbroken
from ray_h5.hdf5.layout import ColumnLayout
from ray_h5.hdf5.source import ByteSource


@dataclass(frozen=True, slots=True, eq=False)
class DirectColumn:
    """Reads a column by its own chunk reads: no lock, each chunk fetched and decoded once.

    Attributes
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

    path: str
    layout: ColumnLayout
    source: ByteSource
    index: ChunkIndex | None
    decoder: ChunkDecoder = field(init=False)

    def __post_init__(self) -> None:
        decoder = ChunkDecoder(self.layout.pipeline, self._chunk_bytes)
        object.__setattr__(self, "decoder", decoder)

    def jobs(self, request: RowRequest, out: np.ndarray, library: Library) -> list[Job]:
        """Return the work that fills ``out[request.places]`` with ``request.rows``.

        `out` may have another dtype than the column: values are cast chunk by chunk.
        """
        if self.layout.row_bytes == 0 or not len(request.rows):
            return []
        if self.index is None:
            assert self.layout.offset is not None
            return self._extent_jobs(request, self.layout.offset + request.rows * self.layout.row_bytes, out)
        return self._chunk_jobs(request, self.index, out, library)

    @property
    def _chunk_bytes(self) -> int:
        return math.prod(self.layout.chunk_shape or ()) * self.layout.stored_dtype.itemsize

    def _chunk_jobs(
        self, request: RowRequest, index: ChunkIndex, out: np.ndarray, library: Library
    ) -> list[Job]:
        pieces = _Pieces.of(request, self._grid, index)
        raw = self.decoder.stores_raw(pieces.masks)
        missing = pieces.offsets == UNALLOCATED
        by_row = raw & ~missing if self._grid.per_row == 1 else np.zeros_like(missing)
        unclear = ~raw & ~missing & self._may_be_unfiltered(pieces)
        jobs: list[Job] = []
        if missing.any():
            jobs += [partial(self._fill, pieces.select(missing), out)]
        if by_row.any():
            stored = pieces.select(by_row)
            self._check_raw_sizes(stored)
            rows = stored.rows_of()
            first = np.repeat(stored.offsets, stored.lengths)
            jobs += self._extent_jobs(rows, first + rows.rows % self._grid.chunk_rows * self.layout.row_bytes, out)
        if unclear.any():
            through_h5py = H5pyColumn(self.path, self.layout)
            jobs += through_h5py.jobs(pieces.select(unclear).rows_of(), out, library)
        decoded = pieces.select(~(missing | by_row | unclear))
        in_order = (np.diff(request.rows) == 1) & (np.diff(request.places) == 1)
        whole = unbroken(in_order, decoded.runs) & (decoded.lengths == self._grid.chunk_rows)
        whole &= (self._grid.per_row == 1) & self._lands_in_place(out)
        spans = fetch_spans(decoded.offsets, decoded.sizes) if len(decoded) else None
        if spans is not None:
            jobs += [
                partial(self._decode_span, decoded.select(slice(start, stop)), whole[start:stop], out)
                for start, stop in zip(spans.start.tolist(), spans.stop.tolist(), strict=True)
            ]
        return jobs

    @property
    def _grid(self) -> ChunkGrid:
        assert self.layout.chunk_shape is not None
        return ChunkGrid(self.layout.shape, self.layout.chunk_shape)

    def _lands_in_place(self, out: np.ndarray) -> bool:
        return out.dtype == self.layout.stored_dtype and bool(out.flags.c_contiguous)

    def _may_be_unfiltered(self, pieces: _Pieces) -> np.ndarray:
        # A file may ask that partial chunks stay unfiltered; their mask does not say so. A chunk
        # that is partial, of full size and unmasked could be either: libhdf5 knows.
        return (pieces.sizes == self._chunk_bytes) & (pieces.masks == 0) & pieces.partial(self._grid)

    def _extent_jobs(self, request: RowRequest, offsets: np.ndarray, out: np.ndarray) -> list[Job]:
        if np.any(offsets[1:] < offsets[:-1]):
            order = np.argsort(offsets, kind="stable")
            request, offsets = request.select(order), offsets[order]
        spans = extent_spans(offsets, request.places, self.layout.row_bytes)
        solid = unbroken((np.diff(offsets) == self.layout.row_bytes) & (np.diff(request.places) == 1), spans)
        solid &= self._lands_in_place(out)
        return [
            partial(self._read_solid, int(offsets[start]), int(request.places[start]), stop - start, out)
            if direct
            else partial(self._read_span, offsets[start:stop], request.places[start:stop], out)
            for start, stop, direct in zip(spans.start.tolist(), spans.stop.tolist(), solid.tolist(), strict=True)
        ]

    def _read_solid(self, offset: int, place: int, rows: int, out: np.ndarray, worker: Worker) -> None:
        self._fetch(offset, as_bytes(out[place : place + rows]), worker)

    def _read_span(self, offsets: np.ndarray, places: np.ndarray, out: np.ndarray, worker: Worker) -> None:
        row_bytes, low = self.layout.row_bytes, int(offsets[0])
        buffer = worker.buffer("span", int(offsets[-1]) + row_bytes - low)
        self._fetch(low, buffer, worker)
        stored = buffer.view(self.layout.stored_dtype).reshape(-1, *self.layout.row_shape)
        out[places] = stored[(offsets - low) // row_bytes]

    def _fetch(self, offset: int, buffer: np.ndarray, worker: Worker) -> None:
        self.source.read_into(offset, memoryview(buffer))
        worker.stats.requests += 1
        worker.stats.bytes_read += len(buffer)

    def _fill(self, pieces: _Pieces, out: np.ndarray, worker: Worker) -> None:
        if self._grid.per_row == 1:
            out[pieces.rows_of().places] = self.layout.fill
            return
        for number, start, stop in pieces.each():
            out[(pieces.request.places[start:stop], *self._grid.slices(number))] = self.layout.fill

    def _decode_span(self, pieces: _Pieces, whole: np.ndarray, out: np.ndarray, worker: Worker) -> None:
        low = int(pieces.offsets[0])
        stored = worker.buffer("stored", int((pieces.offsets + pieces.sizes).max()) - low)
        self._fetch(low, stored, worker)
        flat = as_bytes(out) if whole.any() else None
        for i, (number, start, stop) in enumerate(pieces.each()):
            begin = int(pieces.offsets[i]) - low
            data = stored[begin : begin + int(pieces.sizes[i])]
            if flat is not None and whole[i]:
                at = int(pieces.request.places[start]) * self.layout.row_bytes
                self._decode(data, pieces, i, flat[at : at + self._chunk_bytes], worker)
            else:
                chunk = worker.buffer("chunk", self._chunk_bytes)
                self._decode(data, pieces, i, chunk, worker)
                self._scatter(chunk, number, pieces.request.select(slice(start, stop)), out)

    def _scatter(self, chunk: np.ndarray, number: int, request: RowRequest, out: np.ndarray) -> None:
        grid = self._grid
        values = chunk.view(self.layout.stored_dtype).reshape(grid.chunk_shape)
        covered = grid.slices(number)
        inside = tuple(slice(0, part.stop - part.start) for part in covered)
        first_row = number // grid.per_row * grid.chunk_rows
        out[(request.places, *covered)] = values[(request.rows - first_row, *inside)]

    def _decode(self, data: np.ndarray, pieces: _Pieces, i: int, out: np.ndarray, worker: Worker) -> None:
        try:
            self.decoder.decode(data, int(pieces.masks[i]), out, worker.between)
        except DecodeError as exc:
            raise self._corrupt(pieces, i, str(exc)) from exc
        worker.stats.chunks_decoded += 1

    def _check_raw_sizes(self, pieces: _Pieces) -> None:
        wrong = np.flatnonzero(pieces.sizes != self._chunk_bytes)
        if len(wrong):
            found = int(pieces.sizes[wrong[0]])
            raise self._corrupt(
                pieces, int(wrong[0]), f"expected {self._chunk_bytes} bytes stored without filters, found {found}"
            )

    def _corrupt(self, pieces: _Pieces, i: int, reason: str) -> CorruptChunkError:
        grid, number = self._grid, int(pieces.numbers[i])
        low = number // grid.per_row * grid.chunk_rows
        begin, size = int(pieces.offsets[i]), int(pieces.sizes[i])
        return CorruptChunkError(
            f"{self.path}: column {self.layout.name!r}, chunk {number} (rows {low} to "
            f"{min(low + grid.chunk_rows, self.layout.num_rows) - 1}, bytes {begin} to {begin + size - 1} of the "
            f"file): {reason}. The file is damaged there: restore it from a copy."
        )


@dataclass(frozen=True, slots=True, eq=False)
class _Pieces:
    """The chunks that a request touches, each with the run of the request that lies in it."""

    request: RowRequest
    numbers: np.ndarray
    runs: Runs
    offsets: np.ndarray
    sizes: np.ndarray
    masks: np.ndarray

    @classmethod
    def of(cls, request: RowRequest, grid: ChunkGrid, index: ChunkIndex) -> _Pieces:
        chunk_rows, runs = group_by_chunk(request.rows, grid.chunk_rows)
        numbers = (chunk_rows[:, None] * grid.per_row + np.arange(grid.per_row)).reshape(-1)
        spread = Runs(np.repeat(runs.start, grid.per_row), np.repeat(runs.stop, grid.per_row))
        return cls(request, numbers, spread, *index.locate(numbers))

    def __len__(self) -> int:
        return len(self.numbers)

    @property
    def lengths(self) -> np.ndarray:
        return self.runs.stop - self.runs.start

    def select(self, keep: np.ndarray | slice) -> _Pieces:
        runs = Runs(self.runs.start[keep], self.runs.stop[keep])
        return _Pieces(
            self.request, self.numbers[keep], runs, self.offsets[keep], self.sizes[keep], self.masks[keep]
        )

    def each(self) -> list[tuple[int, int, int]]:
        columns = (self.numbers.tolist(), self.runs.start.tolist(), self.runs.stop.tolist())
        return list(zip(*columns, strict=True))

    def rows_of(self) -> RowRequest:
        """Return the part of the request that lies in these chunks."""
        edges = np.zeros(len(self.request.rows) + 1, np.int64)
        np.add.at(edges, self.runs.start, 1)
        np.add.at(edges, self.runs.stop, -1)
        return self.request.select(np.cumsum(edges[:-1]) > 0)

    def partial(self, grid: ChunkGrid) -> np.ndarray:
        """Tell which chunks stick out over the end of an axis."""
        sticks_out = np.zeros(len(self), bool)
        cells = np.unravel_index(self.numbers, grid.counts)
        for cell, size, length in zip(cells, grid.chunk_shape, grid.shape, strict=True):
            sticks_out |= (cell + 1) * size > length
        return sticks_out
