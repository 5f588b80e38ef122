"""What has to be known of a file to read it without libhdf5: layouts, chunk indexes, and what planning asked."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import imagecodecs
import numpy as np

from ray_h5.errors import StaleIndexError
from ray_h5.manifest.chunk_index import MAX_CHUNK_BYTES, ChunkGrid, ChunkIndex
from ray_h5.manifest.indices import Along
from ray_h5.manifest.layout import ColumnLayout, ColumnNotes
from ray_h5.merged_facts import Facts

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
        parts = [np.array(array, "<i8") for array in (index.numbers, index.offsets, index.sizes)]
        for part in parts:
            part[1:] -= part[:-1].copy()
        whole = b"".join([*(part.tobytes() for part in parts), index.masks.astype("<u4").tobytes()])
        return cls(len(index.numbers), imagecodecs.zstd_encode(whole, level=_LEVEL))

    def unpacked(self, most: int, file_bytes: int) -> ChunkIndex:
        """Return the chunk index; raise a ValueError unless its chunks are below number `most`, and in the file."""
        nbytes = self.nbytes
        if not 0 <= self.count <= min(most, file_bytes):
            raise ValueError(f"a chunk index of {self.count} chunks, expected {min(most, file_bytes)} at most")
        try:
            whole = bytes(imagecodecs.zstd_decode(self.data, out=nbytes)) if nbytes else b""
        except (imagecodecs.ZstdError, MemoryError) as exc:
            raise ValueError(f"a chunk index that cannot be decompressed ({exc})") from None
        if len(whole) != nbytes:
            raise ValueError(f"a chunk index of {len(whole)} bytes, expected {nbytes}")
        numbers, offsets, sizes = np.cumsum(np.frombuffer(whole, "<i8", 3 * self.count).reshape(3, -1), axis=1)
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
        numbers, offsets, sizes = (np.ascontiguousarray(array, np.int64) for array in (numbers, offsets, sizes))
        return ChunkIndex(numbers, offsets, sizes, masks)

    def chunks(self, where: str, most: int, file_bytes: int) -> ChunkIndex:
        """Return the chunk index as `unpacked` does; `where` names the column in the error."""
        try:
            return self.unpacked(most, file_bytes)
        except ValueError as exc:
            raise StaleIndexError(
                f"{where}: its entry in index_dir is wrong: {exc}. Delete that folder, and build the index again."
            ) from None


@dataclass(frozen=True, slots=True)
class KnownColumn(Facts):
    """What is known of a dataset.

    Attributes
    ----------
    layout : ColumnLayout
        Its layout.
    index : PackedIndex, optional
        Its chunks, if it is chunked, decoded here, and its values are in the file.
    notes : ColumnNotes, optional
        What the file says about its values.
    redirect : Redirect, optional
        Where its values are, if they are in other files.
    """

    layout: ColumnLayout
    index: PackedIndex | None = None
    notes: ColumnNotes | None = None
    redirect: Redirect | None = None

    @property
    def is_whole(self) -> bool:
        """Whether its values are read without libhdf5, or no more than this is ever known."""
        is_chunked = self.layout.is_decoded and self.layout.storage == "chunked"
        return self.notes is not None and (self.redirect is not None or self.index is not None or not is_chunked)

    def merged(self, later: KnownColumn | None) -> KnownColumn:
        """Return the one that is whole; else what was found since."""
        return self if later is None or (self.is_whole and not later.is_whole) else later

    @property
    def indexes(self) -> list[PackedIndex]:
        """All chunk indexes that it has, with those of the datasets that its values are in."""
        there = [] if self.redirect is None else [column.known for column in self.redirect.columns if column.known]
        return [*([] if self.index is None else [self.index]), *(index for known in there for index in known.indexes)]

    def chunks(self, path: str, file_bytes: int) -> ChunkIndex:
        """Return the chunk index of a chunked column."""
        assert self.index is not None
        return self.index.chunks(f"{path}: column {self.layout.name!r}", num_chunks(self.layout), file_bytes)


def num_chunks(layout: ColumnLayout) -> int:
    """Return how many chunks a column can have."""
    grid = ChunkGrid.of(layout)
    return grid.per_row * (grid.counts[0] if grid.counts else 0)


How = Literal["link", "virtual"]


@dataclass(frozen=True, slots=True)
class OtherColumn:
    """A dataset that values come from.

    Attributes
    ----------
    path, name : str
        Its file, and its path in it.
    known : KnownColumn, optional
        What is known of it, so that libhdf5 need not be asked.
    """

    path: str
    name: str
    known: KnownColumn | None = None


@dataclass(frozen=True, slots=True)
class Redirect:
    """Where the values of a column are, if they are in other datasets.

    Attributes
    ----------
    how : str
        ``"link"``: in the dataset that a link leads to; ``"virtual"``: in those of a virtual dataset.
    columns : tuple of OtherColumn
        The datasets, each once; one for a link.
    mappings : tuple of (int, tuple of Along, tuple of Along or None)
        Of a virtual dataset: the number of a dataset, which indices along each axis are here, and there (None for all).
    fill : numpy.ndarray, optional
        0-d: the value of rows that no mapping has; None for values of varying length.
    """

    how: How
    columns: tuple[OtherColumn, ...] = ()
    mappings: tuple[tuple[int, tuple[Along, ...], tuple[Along, ...] | None], ...] = ()
    fill: np.ndarray | None = None

    def with_known(self, known: list[KnownColumn | None]) -> Redirect:
        """Return the same with what is known of each dataset."""
        return replace(
            self, columns=tuple(replace(column, known=of) for column, of in zip(self.columns, known, strict=True))
        )
