"""Parts of units of columns that consist of many datasets."""

from __future__ import annotations

from dataclasses import dataclass

from ray_h5.manifest.joined_arrays import JoinedArray
from ray_h5.read.arrays.joined_chunks import JoinedChunks
from ray_h5.read.arrays.taken_column import TakenAddress, TakenColumn


@dataclass(frozen=True, slots=True, eq=False)
class TakenJoinedArray:
    """Many datasets, and the parts of their units that are read."""

    joined: JoinedArray
    taken: TakenAddress


class TakenOfJoined(TakenColumn, JoinedChunks):
    """Parts of chunked datasets, which are one column; errors name the dataset."""

    def of(self, address: TakenAddress) -> TakenColumn:
        found = TakenOfJoined(self._path, self._values, self._byte_source, self.index, address)
        found.name_datasets(self._paths, self._first_number, self._lengths)
        return found
