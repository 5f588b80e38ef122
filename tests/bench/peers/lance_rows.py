"""Rows of a Lance dataset as tensors; importing this imports Lance."""

from __future__ import annotations

from typing import Any

import lance
import torch
from lance.torch.data import SafeLanceDataset

__all__ = ["Rows"]


class Rows(SafeLanceDataset):
    """Lance's own Dataset takes the rows of a batch by one call, and makes lists of Python of them; this makes tensors.

    Parameters
    ----------
    uri
        The Lance dataset.
    shapes
        The shape of a row, by column.
    """

    def __init__(self, uri: str, shapes: dict[str, tuple[int, ...]]) -> None:
        super().__init__(uri)
        self._shapes = shapes
        self._opened: Any = None

    def __getitems__(self, indices: list[int]) -> dict[str, torch.Tensor]:
        if self._opened is None:
            self._opened = lance.dataset(self.uri)  # in each process
        taken = self._opened.take(indices).combine_chunks()
        return {
            name: torch.from_numpy(taken[name].chunk(0).flatten().to_numpy().reshape(-1, *shape))
            for name, shape in self._shapes.items()
        }
