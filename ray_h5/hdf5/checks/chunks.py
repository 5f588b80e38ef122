"""Checks stored chunks before libhdf5 decodes them."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import h5py
import numpy as np

from ray_h5.hdf5.checks.packed import wrong_nbit, wrong_scaleoffset
from ray_h5.hdf5.chunk_index import ChunkGrid, ChunkIndex, corrupt_chunk, unfiltered_chunks
from ray_h5.hdf5.codecs.codec import ByteShuffle
from ray_h5.hdf5.codecs.filters import DEFLATE, FLETCHER32, NBIT, SCALEOFFSET, SHUFFLE, UNCOMPRESSED
from ray_h5.hdf5.codecs.pipeline import ChunkDecoder, DecodeError, decodes
from ray_h5.hdf5.layout import ColumnLayout
from ray_h5.hdf5.metadata.opening import is_transient
from ray_h5.hdf5.reading.coalesce import Request
from ray_h5.hdf5.reading.h5py_column import Library
from ray_h5.hdf5.reading.jobs import Worker
from ray_h5.storage.byte_source import ByteSource

_PACKED = frozenset({NBIT, SCALEOFFSET})
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

    def __post_init__(self) -> None:
        self._looked_at = np.zeros(len(self.index.numbers) if self.index is not None and self.remembers else 0, bool)

    def check(self, request: Request, worker: Worker, library: Library) -> None:
        """Raise `CorruptChunkError` unless each chunk that holds one of its rows is of its proper size.

        Where this package knows the whole pipeline, that is found out by decoding.
        """
        self.check_in(lambda: library.dataset(self.layout.name), request, worker)

    def check_in(self, opened: Callable[[], h5py.Dataset], request: Request, worker: Worker) -> None:
        """Do what `check` does for a dataset that is opened only if there is something to look at."""
        grid = ChunkGrid.of(self.layout)
        numbers = grid.numbers(request.by_chunk(grid.chunk_rows)[0])
        if self.index is None:
            self._check_each(self._looked_up(numbers, opened()), opened(), worker)
            return
        at = self.index.find(numbers)
        if self.remembers:
            at = at[~self._looked_at[at]]
        if len(at):
            self._check_each(self._listed(at, self.index), opened(), worker)
        if self.remembers:
            self._looked_at[at] = True

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

    def _check_each(self, chunks: Iterable[_Chunk], dataset: h5py.Dataset, worker: Worker) -> None:
        look = self._looks_into(worker)
        for chunk in chunks:
            reason = self._wrong_size(chunk.size, chunk.mask)
            if reason is None and look is not None:
                stored = self._stored(chunk, dataset, worker)
                short = f"libhdf5 lists {chunk.size} stored bytes and finds {len(stored)}"
                reason = look(stored, chunk.mask) if len(stored) == chunk.size else short
            if reason is not None:
                raise corrupt_chunk(self.path, self.layout, chunk.number, chunk.offset, chunk.size, reason)

    def _stored(self, chunk: _Chunk, dataset: h5py.Dataset, worker: Worker) -> np.ndarray:
        if self.source is None or chunk.offset is None:
            found = _direct_chunk(dataset, chunk.corner)
            return np.frombuffer(b"" if found is None else found[1], np.uint8)
        stored = worker.buffer("stored", chunk.size)
        self.source.read_into(chunk.offset, stored.data)
        return stored

    def _looks_into(self, worker: Worker) -> Callable[[np.ndarray, int], str | None] | None:
        """Return a function that says what is wrong with the bytes of a chunk; None if only their number tells."""
        if self._decodes:
            decoder = ChunkDecoder(self.layout.pipeline, self.layout.chunk_bytes)
            return lambda stored, mask: self._wrong_stream(decoder, stored, mask, worker)
        return (lambda stored, mask: self._wrong_length(stored.tobytes(), mask)) if self._inflates else None

    @property
    def _decodes(self) -> bool:
        return bool(self.layout.pipeline.steps) and decodes(self.layout.pipeline)

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
        if compressed and size <= 4 * checksums:
            return f"expected more than {4 * checksums} bytes, found {size}"
        if not compressed and size != chunk_bytes + 4 * checksums:
            return f"expected {chunk_bytes + 4 * checksums} stored bytes, found {size}"
        return None

    def _wrong_stream(self, decoder: ChunkDecoder, stored: np.ndarray, mask: int, worker: Worker) -> str | None:
        try:
            decoder.decode(stored, mask, worker.buffer("chunk", self.layout.chunk_bytes), worker.between)
        except DecodeError as exc:
            return str(exc)
        return None

    def _wrong_length(self, data: bytes, mask: int) -> str | None:
        """Return what is wrong with a chunk that had filters after deflate, so that sizes in between are unknown."""
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


def _direct_chunk(dataset: h5py.Dataset, corner: tuple[int, ...]) -> tuple[int, bytes] | None:
    """Return filter mask and stored bytes of a chunk; None if there is no such chunk."""
    try:
        mask, stored = dataset.id.read_direct_chunk(corner)
    except (OSError, RuntimeError, ValueError, MemoryError) as exc:
        if isinstance(exc, OSError) and is_transient(exc):
            raise
        return None
    return int(mask), stored
