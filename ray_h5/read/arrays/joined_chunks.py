"""Chunked datasets that are read as one column."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ray_h5.errors import CorruptChunkError
from ray_h5.manifest.chunk_index import ChunkIndex, corrupt_chunk
from ray_h5.read.arrays.direct_column import DirectColumn


class JoinedChunks(DirectColumn):
    """Chunked datasets as one column; errors name the dataset."""

    def name_datasets(self, paths: list[str], first_number: np.ndarray, lengths: np.ndarray) -> None:
        """Take the datasets: their paths, and where the chunks of each begin."""
        self._paths, self._first_number, self._lengths = paths, first_number, lengths

    def _least_bytes(self, number: int) -> int:
        dataset = int(np.searchsorted(self._first_number, number, side="right")) - 1
        first_row = self.grid.first_row(number - int(self._first_number[dataset]))
        return self._bytes_of_rows(int(self._lengths[dataset]) - first_row)

    def _corrupt(self, number: int, offset: int, size: int, reason: str) -> CorruptChunkError:
        dataset = int(np.searchsorted(self._first_number, number, side="right")) - 1
        shape = (int(self._lengths[dataset]), *self.layout.row_shape)
        layout = replace(self.layout, name=self._paths[dataset], shape=shape)
        local = number - int(self._first_number[dataset])
        return corrupt_chunk(self._path, layout, local, offset, size, reason)


def joined_indexes(indexes: list[ChunkIndex], first_numbers: np.ndarray) -> ChunkIndex:
    """Return the chunks of datasets as those of one; the chunks of dataset i are numbered from ``first_numbers[i]``."""
    if len(indexes) == 1:
        return indexes[0]
    numbers = [index.numbers + first for index, first in zip(indexes, first_numbers.tolist(), strict=True)]
    return ChunkIndex(
        np.concatenate(numbers),
        np.concatenate([index.offsets for index in indexes]),
        np.concatenate([index.sizes for index in indexes]),
        np.concatenate([index.masks for index in indexes]),
    )
