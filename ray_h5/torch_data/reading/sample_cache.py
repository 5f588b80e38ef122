"""Samples in memory, and how often they were found there."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

import numpy as np

from ray_h5.fork import PerProcess
from ray_h5.lru import LRU
from ray_h5.options import as_integer
from ray_h5.planning.sparse import SparseRow
from ray_h5.torch_data.reading.row_source import RowSource

_Row = dict[str, Any]


class SampleCache:
    """Reads samples from memory where they are there, else from a `RowSource`, and counts both.

    The least recently used sample is dropped for a new one. If the source keeps every row that it reads, the
    samples lie there: no second copy is made, and what is counted are these rows.

    In another process, after a fork or by pickling, the cache starts empty; each loader worker fills its own.

    Parameters
    ----------
    source : RowSource
        Reads the samples.
    max_samples : int
        How many samples are kept; 0 keeps none.
    """

    def __init__(self, source: RowSource, max_samples: int) -> None:
        self._source = source
        self._max_samples = max_samples
        self._rows: LRU[_Row] = LRU(max_samples)
        self._counts = PerProcess(_Counts)

    @classmethod
    def bounded(cls, source: RowSource, cache_size: int, cache_bytes: int | None, sample_bytes: int) -> SampleCache:
        """Return a cache of as many samples as both bounds allow.

        Raises
        ------
        OptionError
            If a bound is not an integer of 0 or more.
        """
        most = as_integer("cache_size", cache_size, 0)
        if cache_bytes is not None:
            most = min(most, as_integer("cache_bytes", cache_bytes, 0) // max(sample_bytes, 1))
        return cls(source, most)

    @property
    def asked(self) -> int:
        """Samples that were asked for since the cache was made or cleared."""
        return self._counts.value.asked

    @property
    def hits(self) -> int:
        """Samples of these that were in memory. Nothing is counted without a cache."""
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
        return self._source.num_rows if self._is_source_cache else self._max_samples

    def __len__(self) -> int:
        if not self._is_source_cache:
            return len(self._rows)
        return int(np.count_nonzero(self._source.is_held(np.arange(self._source.num_rows))))

    def __contains__(self, index: int) -> bool:
        if not self._is_source_cache:
            return index in self._rows
        return bool(self._source.is_held(np.array([index]))[0])

    def read_into(self, out: Mapping[str, np.ndarray], indices: np.ndarray) -> None:
        """Fill `out`, an array a column, with samples; `indices` is int64. Errors as in `RowSource.read_into`."""
        if not self._max_samples or self._source.keeps_all:
            found = self._source.is_held(indices) if self._max_samples else np.empty(0, bool)
            self._source.read_into(out, indices)
            self._count(len(indices), found)
            return
        rows = [self._rows.get(index) for index in indices.tolist()]
        found = np.array([row is not None for row in rows], bool)
        missing = np.flatnonzero(~found)
        if found.any():
            self._source.check_unchanged(indices)
            _fill(out, [(place, row) for place, row in enumerate(rows) if row is not None])
        if len(missing):
            self._source.read_into(out, indices[missing], missing)
            self._add(out, indices, missing)
        self._count(len(indices), found)

    def clear(self) -> None:
        """Drop all samples, and set the counts to 0."""
        self._rows.clear()
        self._counts.renew()

    @property
    def _is_source_cache(self) -> bool:
        return self._max_samples > 0 and self._source.keeps_all

    def _add(self, out: Mapping[str, np.ndarray], indices: np.ndarray, places: np.ndarray) -> None:
        # Of a batch larger than the cache the last samples stay. Each is copied: a view would keep the whole batch.
        for place in places[-self._max_samples :].tolist():
            self._rows.put(int(indices[place]), {name: _copied(array[place]) for name, array in out.items()})

    def _count(self, asked: int, found: np.ndarray) -> None:
        counts = self._counts.value
        with counts.lock:
            hits = int(np.count_nonzero(found))
            counts.asked += asked
            counts.hits += hits
            counts.misses += len(found) - hits

    def __reduce__(self) -> tuple[Any, ...]:
        return SampleCache, (self._source, self._max_samples)


class _Counts:
    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.asked = self.hits = self.misses = 0


def _fill(out: Mapping[str, np.ndarray], rows: list[tuple[int, _Row]]) -> None:
    """Write rows to their places in the arrays of `out`."""
    for name, array in out.items():
        if array.ndim > 1 and len(rows) == len(array):
            np.stack([row[name] for _, row in rows], out=array)  # one call instead of one a row
            continue
        for place, row in rows:
            array[place] = row[name]


def _copied(value: Any) -> Any:
    return value.copy() if isinstance(value, (np.ndarray, SparseRow)) else value
