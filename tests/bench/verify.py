"""Count and compare the rows that a contestant delivers: losing rows must not make one faster."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import h5py
import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

__all__ = ["count_rows", "verify_rows"]


def count_rows(batches: Iterable[Any], rows: int) -> None:
    """Iterate all batches, dicts or tuples of columns; raise unless they hold `rows` rows."""
    counted = sum(len(next(iter(batch.values())) if isinstance(batch, Mapping) else batch[0]) for batch in batches)
    if counted != rows:
        raise RuntimeError(f"an epoch delivered {counted} rows, expected {rows}")


def verify_rows(paths: Sequence[str], columns: Sequence[str], batches: Iterable[Mapping[str, Any]]) -> None:
    """Compare the checksums of all rows, in any order, with the checksums of the rows that h5py reads."""
    found = [
        check for batch in batches for check in _checksums({name: batch[name].numpy() for name in columns}, columns)
    ]
    expected: list[int] = []
    for path in paths:
        with h5py.File(path, "r") as file:
            expected += _checksums({name: file[name][:] for name in columns}, columns)
    if sorted(found) != sorted(expected):
        raise RuntimeError("an epoch of ray_h5 does not deliver each row once with the bytes that h5py reads")


def _checksums(arrays: Mapping[str, np.ndarray[Any, Any]], columns: Sequence[str]) -> list[int]:
    rows = zip(*(np.ascontiguousarray(arrays[name]) for name in columns), strict=True)
    return [zlib.crc32(b"".join(part.tobytes() for part in row)) for row in rows]
