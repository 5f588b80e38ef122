"""How many samples of a `CombinedHDF5Dataset` are in memory, and how often they were found there."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np

from ray_h5.fork import PerProcess
from ray_h5.loading.row_source import RowSource


class SamplesInMemory:
    """The samples that a process has in memory, and counts of those that it was asked for.

    In another process, after a fork or by pickling, the counts start at 0.

    Parameters
    ----------
    source : RowSource
        Reads the samples, and keeps them.
    cache_size : int
        How many rows it keeps of columns of which it does not keep all; with 0 nothing is counted but what was asked
        for.
    """

    def __init__(self, source: RowSource, cache_size: int) -> None:
        self._source, self._cache_size = source, cache_size
        self._counts = PerProcess(_Counts)

    @property
    def asked(self) -> int:
        """Samples that were asked for since the counts were made or cleared."""
        return self._counts.value.asked

    @property
    def hits(self) -> int:
        """Samples of these that were in memory."""
        return self._counts.value.hits

    @property
    def misses(self) -> int:
        """Samples of these that were read from their files."""
        return self._counts.value.misses

    @property
    def hit_rate(self) -> float:
        """Share of the samples that were in memory; 0 before the first."""
        return self.hits / max(1, self.hits + self.misses)

    @property
    def capacity(self) -> int:
        """How many samples memory holds at most."""
        return self._source.num_rows if self._cache_size and self._source.keeps_all else self._cache_size

    def __len__(self) -> int:
        return self._source.num_held() if self._cache_size else 0

    def __contains__(self, index: int) -> bool:
        return bool(self._cache_size and self._source.is_held(np.array([index]))[0])

    @contextlib.contextmanager
    def counting(self, indices: np.ndarray) -> Iterator[None]:
        """Count samples that are read; which of them are in memory is asked before."""
        found = self._source.is_held(indices) if self._cache_size else np.empty(0, bool)
        yield
        hits, counts = int(np.count_nonzero(found)), self._counts.value
        with counts.lock:
            counts.asked += len(indices)
            counts.hits += hits
            counts.misses += len(found) - hits

    def clear(self) -> None:
        """Set the counts to 0."""
        self._counts.renew()

    def __reduce__(self) -> tuple[Any, ...]:
        return SamplesInMemory, (self._source, self._cache_size)


class _Counts:
    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.asked = self.hits = self.misses = 0
