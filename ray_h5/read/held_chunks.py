"""Decoded chunks that stay in memory from one read to the next: blocks that overlap, or are drawn, share them."""

from __future__ import annotations

import sys
from collections.abc import Hashable, Sequence

import numpy as np

from ray_h5.buffers import empty
from ray_h5.lru import LRU


class HeldChunks:
    """The decoded chunks that were used last. Threads may share it; after a fork it is empty.

    Parameters
    ----------
    max_bytes : int
        Bytes of all chunks. It may be changed.
    """

    def __init__(self, max_bytes: int = 0) -> None:
        self._chunks: LRU[np.ndarray] = LRU(sys.maxsize, max_bytes, lambda chunk: chunk.nbytes)

    @property
    def max_bytes(self) -> int:
        return self._chunks.max_bytes or 0

    @property
    def total_bytes(self) -> int:
        return self._chunks.total_bytes

    def resize(self, max_bytes: int) -> None:
        """Change the bound, and drop chunks if they are more."""
        self._chunks.max_bytes = max_bytes
        self._chunks.trim()

    def find(self, column: Hashable, numbers: np.ndarray) -> list[np.ndarray | None]:
        """Return the chunks of a column that have these numbers, None for those that are not there."""
        if not len(self._chunks):
            return [None] * len(numbers)
        return [self._chunks.get((column, number)) for number in numbers.tolist()]

    def new(self, count: int, nbytes: int) -> list[np.ndarray]:
        """Return memory for so many chunks, or for as many as may be held."""
        return [empty((nbytes,), np.dtype(np.uint8)) for _ in range(min(count, self.max_bytes // max(nbytes, 1)))]

    def add(self, column: Hashable, numbers: np.ndarray, chunks: Sequence[np.ndarray]) -> None:
        """Hold chunks, which nobody changes from now on."""
        for number, chunk in zip(numbers.tolist(), chunks, strict=True):
            self._chunks.put((column, number), chunk)

    def clear(self) -> None:
        """Drop all chunks."""
        self._chunks.clear()
