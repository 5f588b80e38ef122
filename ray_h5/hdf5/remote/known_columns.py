"""What has to be known of a column to read it without libhdf5: its layout and its chunk index, packed."""

from __future__ import annotations

from dataclasses import dataclass, field

import imagecodecs
import numpy as np

from ray_h5.errors import StaleIndexError
from ray_h5.hdf5.chunk_index import MAX_CHUNK_BYTES, ChunkGrid, ChunkIndex
from ray_h5.hdf5.layout import ColumnLayout
from ray_h5.hdf5.metadata.attributes import ColumnNotes
from ray_h5.hdf5.remote.elsewhere import Elsewhere

_BYTES_A_CHUNK = 28
_LEVEL = 3


@dataclass(frozen=True, slots=True)
class PackedIndex:
    """A chunk index as a few bytes: chunks mostly follow each other.

    Attributes
    ----------
    count : int
        Number of chunks.
    data : bytes
        Differences of numbers, offsets and sizes, and masks, compressed by zstd.
    """

    count: int
    data: bytes

    @property
    def nbytes(self) -> int:
        """Bytes of the chunk index."""
        return self.count * _BYTES_A_CHUNK

    @classmethod
    def of(cls, index: ChunkIndex) -> PackedIndex:
        parts = [np.diff(each, prepend=0).astype("<i8") for each in (index.numbers, index.offsets, index.sizes)]
        whole = b"".join([*(each.tobytes() for each in parts), index.masks.astype("<u4").tobytes()])
        return cls(len(index.numbers), imagecodecs.zstd_encode(whole, level=_LEVEL))

    def unpacked(self, layout: ColumnLayout, file_bytes: int) -> ChunkIndex:
        """Return the chunk index; raise a ValueError if it cannot be one of this column."""
        nbytes = self.count * _BYTES_A_CHUNK
        try:
            whole = bytes(imagecodecs.zstd_decode(self.data, out=nbytes)) if nbytes else b""
        except imagecodecs.ZstdError as exc:
            raise ValueError(f"a chunk index that cannot be decompressed ({exc})") from None
        if len(whole) != nbytes:
            raise ValueError(f"a chunk index of {len(whole)} bytes, expected {nbytes}")
        numbers, offsets, sizes = np.cumsum(np.frombuffer(whole, "<i8", 3 * self.count).reshape(3, -1), axis=1)
        grid = ChunkGrid.of(layout)
        most = grid.per_row * (grid.counts[0] if grid.counts else 0)
        if self.count and not (
            (np.diff(numbers) > 0).all()
            and numbers[0] >= 0
            and numbers[-1] < most
            and (offsets >= 0).all()
            and ((sizes > 0) & (sizes < MAX_CHUNK_BYTES)).all()
            and (offsets + sizes <= file_bytes).all()
        ):
            raise ValueError("a chunk index of chunks that are not in the file")
        masks = np.frombuffer(whole, "<u4", offset=24 * self.count)
        numbers, offsets, sizes = (np.ascontiguousarray(each, np.int64) for each in (numbers, offsets, sizes))
        return ChunkIndex(numbers, offsets, sizes, masks)


@dataclass(frozen=True, slots=True)
class KnownColumn:
    """A column that is read without libhdf5.

    Attributes
    ----------
    layout : ColumnLayout
        Its layout; it is direct, unless its values are in other files.
    index : PackedIndex, optional
        Its chunks, if it is chunked and its values are in the file.
    notes : ColumnNotes
        What the file says about its values.
    elsewhere : Elsewhere, optional
        Where its values are, if they are in other files.
    """

    layout: ColumnLayout
    index: PackedIndex | None = None
    notes: ColumnNotes = field(default_factory=ColumnNotes)
    elsewhere: Elsewhere | None = None

    @property
    def indexes(self) -> list[PackedIndex]:
        """All chunk indexes that it has, with those of the datasets that its values are in."""
        there = [] if self.elsewhere is None else [each.known for each in self.elsewhere.columns if each.known]
        return [*([] if self.index is None else [self.index]), *(each for known in there for each in known.indexes)]

    def chunks(self, path: str, file_bytes: int) -> ChunkIndex:
        """Return the chunk index of a chunked column."""
        assert self.index is not None
        try:
            return self.index.unpacked(self.layout, file_bytes)
        except ValueError as exc:
            raise StaleIndexError(
                f"{path}: column {self.layout.name!r}: its entry in index_dir is wrong: {exc}. Delete that folder, and "
                "build the index again."
            ) from None
