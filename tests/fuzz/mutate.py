"""Damage to the bytes of a file, the same for the same seed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import h5py
import numpy as np

Ranges = Sequence[tuple[int, int]]


@dataclass(frozen=True)
class Healthy:
    """A whole file: its name in the corpus, its bytes, and where in it there are values and where metadata."""

    name: str
    data: bytes
    values: Ranges
    metadata: Ranges


def healthy(name: str, path: Path) -> Healthy:
    """Take in a file."""
    data = path.read_bytes()
    values: list[tuple[int, int]] = []

    def look(_: str, found: object) -> None:
        if not isinstance(found, h5py.Dataset):
            return
        if found.chunks is not None:
            found.id.chunk_iter(
                lambda each: values.append((each.byte_offset, each.size)) if each.byte_offset is not None else None
            )
        elif (offset := found.id.get_offset()) is not None:
            values.append((offset, found.id.get_storage_size()))

    with h5py.File(path, "r") as file:
        file.visititems(look)
    metadata, end = [], 0
    for offset, size in [*sorted(set(values)), (len(data), 0)]:
        if offset > end:
            metadata.append((end, offset - end))
        end = max(end, offset + size)
    return Healthy(name, data, [each for each in values if each[1]], metadata)


def mutated(file: Healthy, rng: np.random.Generator) -> tuple[bytes, str]:
    """Return a damaged copy, and the words that say how it is damaged."""
    data, words = bytearray(file.data), []
    for _ in range(int(rng.choice([1, 1, 1, 2, 4]))):
        where = "values" if file.values and rng.random() < 0.35 else "metadata"
        ranges = file.values if where == "values" else file.metadata
        begin, size = ranges[rng.integers(len(ranges))] if len(ranges) else (0, len(data))
        at = min(int(begin + rng.integers(max(size, 1))), max(len(data) - 1, 0))
        words.append(f"{_damage(data, at, rng)} in {where}")
    return bytes(data), "; ".join(words)


def _damage(data: bytearray, at: int, rng: np.random.Generator) -> str:
    kind, length = rng.random(), int(rng.choice([1, 2, 4, 8, 16, 64]))
    if kind < 0.4:
        bit = int(rng.integers(8))
        if data:
            data[at] ^= 1 << bit
        return f"bit {bit} at {at} flipped"
    if kind < 0.75:
        byte = int(rng.choice([0, 1, 0x7F, 0x80, 0xFF, rng.integers(256)]))
        data[at : at + length] = bytes([byte]) * len(data[at : at + length])
        return f"{length} bytes at {at} set to {byte:#04x}"
    if kind < 0.8:
        del data[at:]
        return f"cut to {at} bytes"
    if kind < 0.88:
        data[at:at] = rng.bytes(length)
        return f"{length} bytes inserted at {at}"
    if kind < 0.92:
        del data[at : at + length]
        return f"{length} bytes at {at} left out"
    other = int(rng.integers(max(len(data) - length, 1)))
    first, second = data[at : at + length], data[other : other + length]
    if len(first) == len(second) and abs(at - other) >= length:
        data[at : at + length], data[other : other + length] = second, first
    return f"{length} bytes at {at} and {other} swapped"
