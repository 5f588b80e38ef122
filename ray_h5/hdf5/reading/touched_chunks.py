"""The chunks that a request touches."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ray_h5.hdf5.chunk_index import ChunkGrid, ChunkIndex
from ray_h5.hdf5.reading.coalesce import Request, RowRequest, RowRuns
from ray_h5.hdf5.reading.run_request import RunRequest


@dataclass(frozen=True, slots=True, eq=False)
class TouchedChunks:
    """The chunks that a request touches, each with the run of rows of the request that it holds.

    Of a `RunRequest`, a position is a piece of a run; see `RunRequest.pieces`.
    """

    request: Request | RunRequest
    numbers: np.ndarray
    runs: RowRuns
    offsets: np.ndarray
    sizes: np.ndarray
    masks: np.ndarray

    @classmethod
    def of(cls, request: Request | RunRequest, grid: ChunkGrid, index: ChunkIndex) -> TouchedChunks:
        along, runs = request.by_chunk(grid.chunk_rows)
        numbers = grid.numbers(along)
        spread = RowRuns(np.repeat(runs.start, grid.per_row), np.repeat(runs.stop, grid.per_row))
        return cls(request, numbers, spread, *index.locate(numbers))

    def __len__(self) -> int:
        return len(self.numbers)

    @property
    def lengths(self) -> np.ndarray:
        return self.runs.stop - self.runs.start

    def select(self, keep: np.ndarray | slice) -> TouchedChunks:
        runs = RowRuns(self.runs.start[keep], self.runs.stop[keep])
        return TouchedChunks(
            self.request, self.numbers[keep], runs, self.offsets[keep], self.sizes[keep], self.masks[keep]
        )

    def run(self, i: int) -> Request | RunRequest:
        """Return the rows of the request that chunk i of these holds."""
        return self.request.select(slice(int(self.runs.start[i]), int(self.runs.stop[i])))

    def pieces(self) -> RunRequest:
        """Return the pieces of a `RunRequest` that these chunks hold; each chunk must occur once."""
        assert isinstance(self.request, RunRequest)
        held = np.zeros(len(self.request) + 1, np.int8)
        held[self.runs.start] += 1
        held[self.runs.stop] -= 1
        return self.request.select(np.cumsum(held[:-1]).astype(bool))

    def rows_of(self) -> RowRequest:
        """Return the rows of the request that these chunks hold; each chunk must occur once."""
        skipped = self.runs.start - (np.cumsum(self.lengths) - self.lengths)
        return self.request.listed().select(np.arange(self.lengths.sum()) + np.repeat(skipped, self.lengths))
