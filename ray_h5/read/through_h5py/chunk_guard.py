"""Checks stored chunks before libhdf5 decodes them."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import h5py
import numpy as np

from ray_h5.codecs.codec import ByteShuffle
from ray_h5.codecs.filters import DEFLATE, FLETCHER32, NBIT, SCALEOFFSET, SHUFFLE, SZIP, UNCOMPRESSED
from ray_h5.codecs.pipeline import ChunkDecoder, DecodeError, decodes
from ray_h5.hdf5.checks.heap import ReferenceLayout
from ray_h5.hdf5.columns.chunk_lists import unfiltered_chunks
from ray_h5.hdf5.files.opening import is_transient
from ray_h5.manifest.chunk_index import ChunkGrid, ChunkIndex, corrupt_chunk
from ray_h5.manifest.layout import ColumnLayout, FilterPipeline
from ray_h5.manifest.row_requests import Request, RowRange
from ray_h5.read.jobs import Worker
from ray_h5.read.through_h5py.value_guard import WrongRow, first_asked_for, wrong_rows
from ray_h5.storage.byte_source import ByteSource

if TYPE_CHECKING:
    from ray_h5.read.through_h5py.h5py_column import Library


_PACKED = frozenset({NBIT, SCALEOFFSET})
_LOOKED_UP = 1 << 16
"""Chunks that are looked up at once: a row may have any number of chunks that were never written."""

_INFLATED = UNCOMPRESSED | {DEFLATE} | _PACKED


class _Chunk(NamedTuple):
    """A chunk as it is stored."""

    corner: tuple[int, ...]
    number: int
    offset: int | None
    size: int
    mask: int


@dataclass(slots=True, eq=False)
class ChunkGuard:
    """Refuses chunks that libhdf5 (2.0) would accept although they are incomplete.

    libhdf5 returns uninitialised memory for a chunk that is stored or decoded too short, and can
    crash on a checksummed chunk of less than four bytes.

    Attributes
    ----------
    path : str
        The file, for messages.
    layout : ColumnLayout
        A chunked column.
    source : ByteSource, optional
        The bytes of the file; None if the offsets of chunks are not reliable (user block, other file).
    index : ChunkIndex, optional
        The chunks; None if libhdf5 lists them under the coordinates of other chunks.
    remembers : bool
        Whether a chunk is checked once only. False while a writer has the file open.
    """

    path: str
    layout: ColumnLayout
    source: ByteSource | None
    index: ChunkIndex | None
    remembers: bool = False
    _looked_at: np.ndarray = field(init=False)
    _references: ReferenceLayout | None = None
    _heaps: set[int] = field(default_factory=set)
    _decoders: dict[int, ChunkDecoder | None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._looked_at = np.zeros(len(self.index.numbers) if self.index is not None and self.remembers else 0, bool)

    def check(self, request: Request, worker: Worker, library: Library, *, exactly: bool = False) -> None:
        """Raise `CorruptChunkError` unless each chunk that holds one of its rows is of its proper size.

        Where this package knows the whole pipeline, that is found out by decoding. Values of varying length must not
        claim more than the file has; with `exactly`, small ones neither, which libhdf5 finds out itself.
        """
        self.check_in(lambda: library.dataset(self.layout.name), request, worker, exactly=exactly)

    def check_in(
        self, opened: Callable[[], h5py.Dataset], request: Request, worker: Worker, *, exactly: bool = False
    ) -> None:
        """Do what `check` does for a dataset that is opened only if there is something to look at."""
        if self._references is None and self.layout.stored_dtype.hasobject:
            self._references = ReferenceLayout.of(opened())
        grid = ChunkGrid.of(self.layout)
        asked = _Asked(request, exactly)
        if self.index is None:
            along, at_once = request.by_chunk(grid.chunk_rows)[0], max(1, _LOOKED_UP // max(1, grid.per_row))
            for begin in range(0, len(along), at_once):
                numbers = grid.numbers(along[begin : begin + at_once])
                self._check_each(self._looked_up(numbers, opened()), opened(), worker, asked)
            return
        at = self.index.holding(request, grid)
        if self.remembers and not exactly:
            at = at[~self._looked_at[at]]
        if len(at):
            whole = self._check_each(self._listed(at, self.index), opened(), worker, asked)
            if self.remembers:
                self._looked_at[at] = whole

    def _listed(self, at: np.ndarray, index: ChunkIndex) -> Iterator[_Chunk]:
        columns = (each[at] for each in (index.numbers, index.offsets, index.sizes, index.masks))
        corners = ChunkGrid.of(self.layout).corners(index.numbers[at])
        return map(_Chunk, corners, *(column.tolist() for column in columns))

    def _looked_up(self, numbers: np.ndarray, dataset: h5py.Dataset) -> list[_Chunk]:
        chunks = []
        for number, corner in zip(numbers.tolist(), ChunkGrid.of(self.layout).corners(numbers), strict=True):
            if (found := _direct_chunk(dataset, corner)) is not None:
                chunks.append(_Chunk(corner, number, None, len(found[1]), found[0]))
        columns = np.array([(chunk.number, chunk.size, chunk.mask) for chunk in chunks], np.int64).reshape(-1, 3)
        unfiltered = unfiltered_chunks(dataset, self.layout, *columns.T)
        skipped = self.layout.pipeline.all_skipped
        return [
            chunk._replace(mask=skipped) if is_unfiltered else chunk
            for chunk, is_unfiltered in zip(chunks, unfiltered.tolist(), strict=True)
        ]

    def _check_each(self, chunks: Iterable[_Chunk], dataset: h5py.Dataset, worker: Worker, asked: _Asked) -> list[bool]:
        """Raise for the first chunk that is damaged in the rows asked for; return which ones are not in any."""
        references = self._references
        whole = []
        for chunk in chunks:
            reason = self._wrong_size(chunk.size, chunk.mask)
            wrong: list[WrongRow] = []
            if reason is None and (references is not None or self._has_streams(chunk.mask)):
                stored = self._stored(chunk, dataset, worker)
                short = f"libhdf5 lists {chunk.size} stored bytes and finds {len(stored)}"
                reason = self._wrong_stream(stored, chunk, worker) if len(stored) == chunk.size else short
                if reason is None and references is not None:
                    wrong, reason = self._wrong_values(chunk, stored, references, dataset, worker, asked)
            if reason is not None:
                raise corrupt_chunk(self.path, self.layout, chunk.number, chunk.offset, chunk.size, reason)
            whole.append(not wrong)
        return whole

    def _wrong_values(
        self,
        chunk: _Chunk,
        stored: np.ndarray,
        references: ReferenceLayout,
        dataset: h5py.Dataset,
        worker: Worker,
        asked: _Asked,
    ) -> tuple[list[WrongRow], str | None]:
        """Return the rows of a chunk that have a value of a wrong length, and what is wrong with those asked for."""
        grid = ChunkGrid.of(self.layout)
        try:
            decoded = self._decoded(chunk, stored, dataset, worker)
        except DecodeError as exc:
            return [], str(exc)
        items = decoded.reshape(*grid.chunk_shape, references.item_bytes)
        first = grid.first_row(chunk.number)
        # What is stored past the end of an axis is no value.
        rows = min(grid.chunk_rows, self.layout.num_rows - first)
        ends = (rows, *(part.stop - part.start for part in grid.slices(chunk.number)))
        items = items[tuple(map(slice, ends))].reshape(rows, -1, references.item_bytes)
        heaps = self._heaps if self.remembers else set[int]()
        wrong = wrong_rows(dataset, references, items, first, heaps, exactly=asked.exactly)
        # All rows from the first one to the last one may be read at once.
        found = first_asked_for(wrong, asked.within(first, first + rows)) if wrong else None
        damage = None if found is None else f"a value of varying length in row {found.row} is damaged: {found.reason}"
        return wrong, damage

    def _decoded(self, chunk: _Chunk, stored: np.ndarray, dataset: h5py.Dataset, worker: Worker) -> np.ndarray:
        """Return the bytes of a chunk whose stream is whole."""
        if self._decoder(chunk.mask) is not None:
            return worker.buffer("chunk", self.layout.chunk_bytes)  # `_wrong_stream` left them there
        return _decoded_by_libhdf5(dataset, self.layout, stored, chunk.mask)

    def _stored(self, chunk: _Chunk, dataset: h5py.Dataset, worker: Worker) -> np.ndarray:
        if self.source is None or chunk.offset is None:
            found = _direct_chunk(dataset, chunk.corner)
            return np.frombuffer(b"" if found is None else found[1], np.uint8)
        stored = worker.buffer("stored", chunk.size)
        self.source.read_into(chunk.offset, stored.data)
        return stored

    def _decoder(self, mask: int) -> ChunkDecoder | None:
        """Return what decodes chunks of a filter mask; None if only libhdf5 does."""
        if mask not in self._decoders:
            # A step that was skipped may be one that is not decoded here, as shuffle is of values of varying length.
            steps = tuple(step for i, step in enumerate(self.layout.pipeline.steps) if not mask >> i & 1)
            pipeline = FilterPipeline(steps)
            self._decoders[mask] = ChunkDecoder(pipeline, self.layout.chunk_bytes) if decodes(pipeline) else None
        return self._decoders[mask]

    def _has_streams(self, mask: int) -> bool:
        """Tell whether chunks of a filter mask can be damaged in a way that their size does not show, but a look."""
        is_raw = mask & self.layout.pipeline.all_skipped == self.layout.pipeline.all_skipped
        return not is_raw and (self._decoder(mask) is not None or self._inflates)

    @property
    def _inflates(self) -> bool:
        ids = [step.id for step in self.layout.pipeline.steps]
        return bool({DEFLATE, *_PACKED} & set(ids)) and set(ids) <= _INFLATED and not _PACKED & set(ids[1:])

    def _wrong_size(self, size: int, mask: int) -> str | None:
        """Return what is wrong with the stored size of a chunk, as far as its pipeline determines it; or None."""
        chunk_bytes, checksums, compressed = self.layout.chunk_bytes, 0, False
        for i, step in enumerate(self.layout.pipeline.steps):
            if mask >> i & 1:
                continue
            checksums += step.id == FLETCHER32
            if step.id not in UNCOMPRESSED:
                compressed, checksums = True, 0
            if step.id == SZIP and self._decoder(mask) is None:
                # libhdf5 passes on what libaec left of its memory.
                return f"szip with parameters {step.client_data} is not decoded: HDF5 does not write them"
        if compressed and size <= 4 * checksums:
            return f"expected more than {4 * checksums} bytes, found {size}"
        if not compressed and size != chunk_bytes + 4 * checksums:
            return f"expected {chunk_bytes + 4 * checksums} stored bytes, found {size}"
        return None

    def _wrong_stream(self, stored: np.ndarray, chunk: _Chunk, worker: Worker) -> str | None:
        """Say what is wrong with the stored bytes of a chunk, as far as this package knows its pipeline."""
        decoder, grid, nbytes = self._decoder(chunk.mask), ChunkGrid.of(self.layout), self.layout.chunk_bytes
        if decoder is None:
            return self._wrong_length(stored.tobytes(), chunk.mask) if self._inflates else None
        rows = min(grid.chunk_rows, self.layout.num_rows - grid.first_row(chunk.number))
        least = rows * (nbytes // grid.chunk_rows)
        try:
            decoder.decode_rows(stored, 0, worker.buffer("chunk", nbytes), worker.between, least)
        except DecodeError as exc:
            return str(exc)
        return None

    def _wrong_length(self, data: bytes, mask: int) -> str | None:
        """Return what is wrong with a chunk that had filters after deflate, so that sizes in between are unknown."""
        from ray_h5.hdf5.checks.packed import wrong_nbit, wrong_scaleoffset

        most = 2 * self.layout.chunk_bytes + (64 << 10)
        for i, step in reversed(list(enumerate(self.layout.pipeline.steps))):
            if mask >> i & 1:
                continue
            if step.id == SCALEOFFSET:
                return wrong_scaleoffset(data, step.client_data, self.layout.chunk_bytes, self.layout.item_bytes)
            if step.id == NBIT:
                return wrong_nbit(data, step.client_data, self.layout.chunk_bytes)
            if step.id == FLETCHER32:
                data = data[:-4]  # libhdf5 checks the sum
            elif step.id == SHUFFLE:
                if not ByteShuffle.takes(step.client_data):
                    return f"shuffle with parameters {step.client_data} cannot be undone"
                shuffled = np.frombuffer(data, np.uint8)
                ByteShuffle(step).decode(shuffled, out := np.empty_like(shuffled))
                data = out.tobytes()
            else:
                try:
                    data = zlib.decompressobj().decompress(data, most)
                except zlib.error as exc:
                    return f"the deflate stream is damaged ({exc})"
        if len(data) != self.layout.chunk_bytes:
            return f"expected {self.layout.chunk_bytes} decoded bytes, found {len(data)}"
        return None


@dataclass(frozen=True, slots=True)
class _Asked:
    """Rows that are asked for, and whether their values are compared exactly."""

    request: Request
    exactly: bool

    def within(self, first: int, stop: int) -> RowRange:
        """Return the range from the first row to the last one that lie between two."""
        if isinstance(self.request, RowRange):
            low, high = self.request.bounds
            low, high = max(first, low), min(stop, high)
        else:
            at = slice(*np.searchsorted(self.request.rows, [first, stop]).tolist())
            rows = self.request.rows[at]
            low, high = (int(rows[0]), int(rows[-1]) + 1) if len(rows) else (first, first)
        return RowRange(low, 0, max(0, high - low))


def _decoded_by_libhdf5(dataset: h5py.Dataset, layout: ColumnLayout, stored: np.ndarray, mask: int) -> np.ndarray:
    """Return the bytes of a chunk as libhdf5 decodes them, in a dataset in memory that does not know their type."""
    made, shape, dtype = dataset.id.get_create_plist(), dataset.chunks, np.dtype(f"V{layout.item_bytes}")
    made.set_fill_value(np.zeros((), dtype))  # its own is of another type
    out = np.empty(shape, dtype)
    try:
        with h5py.File.in_memory(libver="latest") as file:
            space = h5py.h5s.create_simple(shape)
            alike = h5py.h5d.create(file.id, b"x", h5py.h5t.py_create(dtype), space, dcpl=made)
            alike.write_direct_chunk((0,) * len(shape), stored.tobytes(), mask)
            del alike  # until it is opened again, libhdf5 (2.0) takes the mask for 0
            alike = h5py.h5d.open(file.id, b"x")
            alike.read(h5py.h5s.ALL, h5py.h5s.ALL, out)
    except (OSError, RuntimeError, ValueError) as exc:
        raise DecodeError(f"libhdf5 cannot decode it ({exc})") from exc
    return out.reshape(-1).view(np.uint8)


def _direct_chunk(dataset: h5py.Dataset, corner: tuple[int, ...]) -> tuple[int, bytes] | None:
    """Return filter mask and stored bytes of a chunk; None if there is no such chunk."""
    try:
        mask, stored = dataset.id.read_direct_chunk(corner)
    except (OSError, RuntimeError, ValueError, MemoryError) as exc:
        if isinstance(exc, OSError) and is_transient(exc):
            raise
        return None
    return int(mask), stored
