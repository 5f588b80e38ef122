"""How columns are laid out in a file that is written: codec, chunks, pages."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from ray_h5.errors import OptionError
from ray_h5.options import as_bytes, as_integer, require

GOOD_BYTES = 64 << 10
"""Bytes of a chunk from which one row can be read at small cost; `ray-h5 inspect` advises it, too."""

WORTH_BYTES = 2 * GOOD_BYTES
"""Bytes of a chunk of several rows from which it is worth to write smaller ones."""

TINY_BYTES = 4 << 10
"""For a smaller chunk, finding it and starting its decoding costs more than its bytes."""

TINY_CHUNKS = 64
"""Fewer tiny chunks cost little."""

MOST_CHUNK_BYTES = 1 << 31
_LEAST_PAGE, _MOST_PAGE = 512, 1 << 30


def chunk_faults(rows: int, nbytes: int, chunks: int, is_encoded: bool, is_split: bool) -> tuple[str, ...]:
    """Return what makes shuffled rows of an array slow to read, and other chunks mend: "tiny", "large", "split"."""
    faults = {
        "tiny": nbytes < TINY_BYTES and chunks >= TINY_CHUNKS,
        # Half of it or less is then decoded for a row. Images of 3 KiB, gzip, 64 a chunk: 5.5 times the rows/s.
        "large": is_encoded and rows > 1 and nbytes >= WORTH_BYTES,
        "split": is_split,
    }
    return tuple(name for name, is_there in faults.items() if is_there)


@dataclass(frozen=True, slots=True)
class Layout:
    """How columns are laid out, as a user says it.

    Attributes
    ----------
    chunk_rows : int, optional
        Rows of a chunk.
    chunk_bytes : int or str, optional
        Bytes of a chunk, of values that are not encoded; by default 64 KiB. A row is never divided.
    codec : str
        How chunks are encoded.
    page : int or str, optional
        Bytes of a page of paged file space; None for files without pages.
    """

    chunk_rows: int | None = None
    chunk_bytes: int | str | None = None
    codec: str | None = None
    page: int | str | None = None

    def __post_init__(self) -> None:
        if self.chunk_rows is not None and self.chunk_bytes is not None:
            raise OptionError(
                f"chunk_rows={self.chunk_rows!r} and chunk_bytes={self.chunk_bytes!r}: expected one of them"
            )
        put = partial(object.__setattr__, self)
        if self.chunk_rows is not None:
            put("chunk_rows", as_integer("chunk_rows", self.chunk_rows, 1))
        if self.chunk_bytes is not None:
            put("chunk_bytes", as_bytes("chunk_bytes", self.chunk_bytes))
        if self.page is not None:
            page = as_bytes("page", self.page)
            require(_LEAST_PAGE <= page <= _MOST_PAGE, "page", self.page, "512 bytes to 1 GiB, HDF5's limits")
            put("page", page)

    def rows_of_chunk(self, row_bytes: int) -> int:
        """Return the rows of a chunk of rows of a size."""
        rows = self.chunk_rows
        if rows is None:
            rows = max(1, int(self.chunk_bytes or GOOD_BYTES) // max(row_bytes, 1))
        return max(1, min(rows, MOST_CHUNK_BYTES // max(row_bytes, 1)))
