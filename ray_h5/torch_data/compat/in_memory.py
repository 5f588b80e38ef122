"""How many samples of a `CombinedHDF5Dataset` are in memory, and how often they were found there."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np

from ray_h5.loading.row_source import RowSource


class SamplesInMemory:
    """The samples that a process has in memory, and counts of those that it was asked for.

    Attributes
    ----------
    source : RowSource
        Reads the samples, and keeps them.
    cache_size : int
        How many rows it keeps of columns of which it does not keep all; with 0 nothing is counted but what was asked
        for.
    asked, hits, misses : int
        Samples that were asked for; those of them that were in memory, and that were read from their files. A copy in
        another process counts for itself.
    """

    def __init__(self, source: RowSource, cache_size: int) -> None:
        self.source, self.cache_size = source, cache_size
        self._lock = threading.Lock()
        self.clear()

    def clear(self) -> None:
        """Set the counts to 0."""
        self.asked = self.hits = self.misses = 0

    @property
    def capacity(self) -> int:
        """How many samples memory holds at most."""
        return self.source.num_rows if self.cache_size and self.source.keeps_all else self.cache_size

    def __len__(self) -> int:
        return self.source.num_held() if self.cache_size else 0

    def __contains__(self, index: int) -> bool:
        return bool(self.cache_size and self.source.is_held(np.array([index]))[0])

    @contextlib.contextmanager
    def counting(self, indices: np.ndarray) -> Iterator[None]:
        """Count samples that are read; which of them are in memory is asked before."""
        held = self.source.is_held(indices) if self.cache_size else np.empty(0, bool)
        yield
        hits = int(np.count_nonzero(held))
        with self._lock:
            self.asked += len(indices)
            self.hits += hits
            self.misses += len(held) - hits

    def __reduce__(self) -> tuple[Any, ...]:
        return SamplesInMemory, (self.source, self.cache_size)
