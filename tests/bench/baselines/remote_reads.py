"""Rows of a file in a store as people read them without ray_h5: h5py over s3fs, and ranges through fsspec."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import h5py
import numpy as np

from tests.bench.baselines.h5py_reads import stored_extents

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["cat_ranges_rows", "has_s3fs", "row_extents", "s3fs_h5py_rows"]


_MAX_GAP = 4 << 10
_MAX_RANGE = 2 << 20


def has_s3fs() -> bool:
    """Return whether s3fs is installed."""
    import importlib.util

    return importlib.util.find_spec("s3fs") is not None


def s3fs_h5py_rows(endpoint: str, key: str, column: str, batches: Sequence[np.ndarray]) -> int:
    """Read batches of rows with h5py, over a file object of s3fs; return how many rows that were."""
    filesystem = _filesystem(endpoint)
    # Its default cache reads 5 MiB on at each seek, which takes many times as long for rows that are far apart.
    cache = "none" if len(batches[0]) > 1 and (np.diff(batches[0]) != 1).any() else "readahead"
    rows = 0
    with filesystem.open(key, "rb", cache_type=cache) as opened, h5py.File(opened, "r") as file:
        for batch in batches:
            order = np.sort(batch)
            found = file[column][order] if cache == "none" else file[column][order[0] : order[-1] + 1]
            rows += len(found)
    return rows


def cat_ranges_rows(endpoint: str, key: str, extents: Sequence[tuple[int, int]], batches: Sequence[np.ndarray]) -> int:
    """Read batches of rows by ``cat_ranges`` of fsspec; where the rows are is known. Return how many rows that were."""
    filesystem = _filesystem(endpoint)
    rows = 0
    for batch in batches:
        ranges = _joined([extents[row] for row in batch])
        found = filesystem.cat_ranges([key] * len(ranges), *map(list, zip(*ranges, strict=True)))
        rows += sum(len(each) for each in found) // extents[0][1]
    return rows


def _joined(extents: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the ranges of extents, first and end; those that follow each other closely are one, up to 2 MiB."""
    ranges: list[tuple[int, int]] = []
    for offset, size in extents:
        if ranges and 0 <= offset - ranges[-1][1] <= _MAX_GAP and offset + size - ranges[-1][0] <= _MAX_RANGE:
            ranges[-1] = ranges[-1][0], offset + size
        else:
            ranges.append((offset, offset + size))
    return ranges


def row_extents(path: str, column: str) -> list[tuple[int, int]]:
    """Return where each row of a column with one chunk a row is: offset and size."""
    with h5py.File(path, "r") as file:
        return [(extent.offset, extent.size) for extent in stored_extents(file, (column,))[column]]


def _filesystem(endpoint: str) -> Any:
    import s3fs

    # A new one each time: a file system keeps listings and files.
    return s3fs.S3FileSystem(anon=True, endpoint_url=endpoint, skip_instance_cache=True, use_listings_cache=False)
