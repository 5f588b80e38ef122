"""A look at stored chunks before libhdf5 decodes them."""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Callable
from dataclasses import dataclass

import h5py
import numpy as np

from ray_h5.hdf5.chunks import UNALLOCATED, ChunkGrid, ChunkIndex, corrupt_chunk
from ray_h5.hdf5.codecs import ChunkDecoder, DecodeError, decodes
from ray_h5.hdf5.columns import Worker
from ray_h5.hdf5.gather import Request
from ray_h5.hdf5.layout import ColumnLayout
from ray_h5.hdf5.opening import is_transient
from ray_h5.hdf5.packed import wrong_nbit, wrong_scaleoffset
from ray_h5.hdf5.source import ByteSource
from ray_h5.hdf5.steps import Shuffle

_DEFLATE, _SHUFFLE, _FLETCHER32, _NBIT, _SCALEOFFSET = 1, 2, 3, 5, 6
_PACKED = frozenset({_NBIT, _SCALEOFFSET})
_INFLATED = frozenset({_DEFLATE, _SHUFFLE, _FLETCHER32}) | _PACKED


@dataclass(frozen=True, slots=True, eq=False)
class ChunkGuard:
    """Refuses chunks that libhdf5 (2.0) would take for whole although they are not.

    It hands out uninitialised memory for a chunk that is stored or decoded too short, and can
    crash on a checksummed chunk of less than four bytes.

    Attributes
    ----------
    path : str
        The file, for messages.
    layout : ColumnLayout
        A chunked column.
    source : ByteSource, optional
        The bytes of the file; None where the offsets of chunks are not to be relied on.
    index : ChunkIndex
        The chunks.
    """

    path: str
    layout: ColumnLayout
    source: ByteSource | None
    index: ChunkIndex

    def check(self, request: Request, worker: Worker, dataset: h5py.Dataset) -> None:
        """Raise `CorruptChunkError` unless each chunk that holds one of its rows is of its proper size.

        Where this package knows the whole pipeline, that is found out by decoding.
        """
        grid = ChunkGrid.of(self.layout)
        chunk_rows, _ = request.by_chunk(grid.chunk_rows)
        numbers = (chunk_rows[:, None] * grid.per_row + np.arange(grid.per_row)).reshape(-1)
        offsets, sizes, masks = self.index.locate(numbers)
        # A partial chunk may be left unfiltered, and its mask does not say it: libhdf5 knows.
        unclear = (sizes == self.layout.chunk_bytes) & (masks == 0)
        if unclear.any():
            unclear &= grid.sticks_out(numbers)
        there = np.flatnonzero((offsets != UNALLOCATED) & ~(unclear & (not self._decodes)))
        looks = self._looks_into(worker)
        corners = grid.corners(numbers[there]) if looks else itertools.repeat(())
        places = (column[there].tolist() for column in (numbers, offsets, sizes, masks, unclear))
        for number, offset, size, mask, is_unclear, corner in zip(*places, corners, strict=False):
            reason = None if is_unclear else self._wrong_size(size, mask)
            if reason is None and looks:
                stored = self._stored(offset, size, corner, worker, dataset)
                short = f"libhdf5 lists {size} stored bytes and finds {len(stored)}"
                reason = looks(stored, mask) if len(stored) == size else short
                if reason is not None and is_unclear and self._is_as_stored(dataset, corner, stored):
                    continue
            if reason is not None:
                raise corrupt_chunk(self.path, self.layout, number, offset, size, reason)

    def _stored(
        self, offset: int, size: int, corner: tuple[int, ...], worker: Worker, dataset: h5py.Dataset
    ) -> np.ndarray:
        if self.source is None:
            return _through_libhdf5(dataset, corner)
        stored = worker.buffer("stored", size)
        self.source.read_into(offset, stored.data)
        return stored

    def _is_as_stored(self, dataset: h5py.Dataset, corner: tuple[int, ...], stored: np.ndarray) -> bool:
        """Tell whether libhdf5 takes a chunk for one without filters: what it delivers is then what is stored."""
        if self.layout.stored_dtype.hasobject:
            return True  # what is stored are addresses
        grid = ChunkGrid.of(self.layout)
        sides = zip(corner, grid.chunk_shape, grid.shape, strict=True)
        inside = tuple(slice(0, min(length, end - at)) for at, length, end in sides)
        values = np.frombuffer(stored.tobytes(), np.uint8).reshape(*grid.chunk_shape, -1)[inside]
        try:
            found = dataset[tuple(slice(at, at + each.stop) for at, each in zip(corner, inside, strict=True))]
        except OSError as exc:
            if is_transient(exc):
                raise
            return False
        return values.tobytes() == found.tobytes()

    def _looks_into(self, worker: Worker) -> Callable[[np.ndarray, int], str | None] | None:
        """Return what says, of a chunk as it is stored, what is wrong with it; None if its size has to do."""
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
        return bool({_DEFLATE, *_PACKED} & set(ids)) and set(ids) <= _INFLATED and not _PACKED & set(ids[1:])

    def _wrong_size(self, size: int, mask: int) -> str | None:
        """Say what is wrong with the stored size of a chunk, if its pipeline tells which it must be."""
        chunk_bytes, checksums, compressed = self.layout.chunk_bytes, 0, False
        for i, step in enumerate(self.layout.pipeline.steps):
            if mask >> i & 1:
                continue
            checksums += step.id == _FLETCHER32
            if step.id not in {_SHUFFLE, _FLETCHER32}:
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
        """Undo a pipeline that goes on after deflating, whose sizes in between nothing tells."""
        most = 2 * self.layout.chunk_bytes + (64 << 10)
        for i, step in reversed(list(enumerate(self.layout.pipeline.steps))):
            if mask >> i & 1:
                continue
            if step.id == _SCALEOFFSET:
                return wrong_scaleoffset(data, step.client_data, self.layout.chunk_bytes, self.layout.item_bytes)
            if step.id == _NBIT:
                return wrong_nbit(data, step.client_data, self.layout.chunk_bytes)
            if step.id == _FLETCHER32:
                data = data[:-4]  # libhdf5 looks at the sum
            elif step.id == _SHUFFLE:
                if not Shuffle.takes(step.client_data):
                    return f"shuffle with parameters {step.client_data} cannot be undone"
                shuffled = np.frombuffer(data, np.uint8)
                Shuffle(step).decode(shuffled, out := np.empty_like(shuffled))
                data = out.tobytes()
            else:
                try:
                    data = zlib.decompressobj().decompress(data, most)
                except zlib.error as exc:
                    return f"the deflate stream is damaged ({exc})"
        if len(data) != self.layout.chunk_bytes:
            return f"expected {self.layout.chunk_bytes} decoded bytes, found {len(data)}"
        return None


def _through_libhdf5(dataset: h5py.Dataset, corner: tuple[int, ...]) -> np.ndarray:
    """Return the stored bytes of a chunk; none where its look-up finds no chunk."""
    try:
        _, stored = dataset.id.read_direct_chunk(corner)
    except (OSError, RuntimeError, ValueError):
        return np.empty(0, np.uint8)
    return np.frombuffer(stored, np.uint8)
