"""A remote file whose bytes stay on a local disk."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from ray_h5.storage.disk_cache.cache import DiskCache
from ray_h5.storage.disk_cache.cached_file import BLOCK_BYTES, BlockFile

__all__ = ["CachedGetter"]


class Getter(Protocol):
    """Fetches one range of a file, and waits for it."""

    def get(self, offset: int, nbytes: int) -> memoryview:
        """Return the bytes at `offset`; raise the error that names what failed."""


class CachedGetter:
    """Gets ranges of a file from the disk, and the rest from where the file is; that stays on the disk.

    Parameters
    ----------
    getter : Getter
        The file.
    cache : DiskCache
        The cache.
    file : BlockFile
        What it has of the file.
    """

    def __init__(self, getter: Getter, cache: DiskCache, file: BlockFile) -> None:
        self._getter = getter
        self._cache = cache
        self._file = file

    def has(self, spans: Sequence[tuple[int, int]]) -> list[bool]:
        """Return for byte ranges, which ascend, whether each seems to be on the disk: it is checked when it is read."""
        offsets, sizes = np.array(spans, np.int64).reshape(-1, 2).T
        found: list[bool] = self._cache.has(self._file, offsets, sizes).tolist()
        return found

    def get(self, offset: int, nbytes: int) -> memoryview:
        """Return the bytes at `offset`: without a request if all are on the disk, otherwise by one."""
        size = self._file.size
        if nbytes <= 0 or offset + nbytes > size:
            return self._getter.get(offset, nbytes)  # it names the error
        first, end = offset // BLOCK_BYTES, -(-(offset + nbytes) // BLOCK_BYTES)
        at = offset - first * BLOCK_BYTES
        read = self._cache.read(self._file, first, end)
        if read is None:
            return self._getter.get(offset, nbytes)
        found, is_right = read
        missing = first + np.flatnonzero(~is_right)
        if not len(missing):
            return found.data[at : at + nbytes]
        start, stop = int(missing[0]) * BLOCK_BYTES, min((int(missing[-1]) + 1) * BLOCK_BYTES, size)
        has_room = self._cache.has_room
        if not has_room:  # the rest of the blocks is of no use
            start, stop = max(start, offset), min(stop, offset + nbytes)
        fetched = self._getter.get(start, stop - start)
        if has_room:
            self._cache.write(self._file, int(missing[0]), fetched)
        if start <= offset and offset + nbytes <= stop:
            return fetched[offset - start : offset - start + nbytes]
        start -= first * BLOCK_BYTES
        found[start : start + len(fetched)] = np.frombuffer(fetched, np.uint8)
        return found.data[at : at + nbytes]
