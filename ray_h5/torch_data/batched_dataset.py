"""Datasets that read a whole batch by one call, also below subclasses that change single samples."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, SupportsIndex, TypeAlias, cast

import numpy as np
import torch
from torch.utils.data import Dataset, Subset, default_collate

from ray_h5.errors import UnknownOptionError
from ray_h5.loading.rank_shares import Placed, PlacedIndices
from ray_h5.plan.row_source import check_indices

Many: TypeAlias = Sequence[int] | np.ndarray | torch.Tensor
"""Indices of several samples."""


class BatchedDataset(Dataset[Any]):
    """A map-style dataset whose ``__getitems__`` a `DataLoader` calls with all indices of a batch.

    A subclass may override ``__getitem__`` alone, as with any other dataset. Batches are then made of the samples
    that it returns.
    """

    def __len__(self) -> int:
        raise NotImplementedError

    def __getitem__(self, index: SupportsIndex | slice | Many) -> Any:
        """Return a sample; for a list, an array or a slice of indices, the batch that ``default_collate`` makes."""
        if isinstance(index, slice):
            return _batch(self.__getitems__(range(*index.indices(len(self)))))
        if isinstance(index, (list, range)) or (isinstance(index, (np.ndarray, torch.Tensor)) and index.ndim):
            return _batch(self.__getitems__(index))
        try:
            # A Placed says where it is in an epoch, which operator.index forgets.
            one = index if isinstance(index, Placed) else operator.index(cast("SupportsIndex", index))
        except TypeError:
            hint = f". Write dataset[0][{index!r}] for one sample, dataset[:][{index!r}] for all"
            raise UnknownOptionError(
                f"{type(self).__name__}: index {index!r}: expected the number of a sample, an integer, or a slice"
                f"{hint if isinstance(index, str) else ''}"
            ) from None
        if self._overrides("__getitems__") and not self._overrides("__getitem__"):
            return self.__getitems__([one])[0]
        return self._one(one)

    def __getitems__(self, indices: Many) -> Sequence[Any]:
        """Return the samples of a batch."""
        if self._overrides("__getitem__") and not self._overrides("__getitems__"):
            return [self[i] for i in indices]
        return self._several(indices)

    @property
    def has_own_samples(self) -> bool:
        """Whether a subclass makes samples or batches itself."""
        return self._overrides("__getitem__") or self._overrides("__getitems__")

    def _overrides(self, name: str) -> bool:
        return getattr(type(self), name) is not getattr(BatchedDataset, name)

    def row_ids(self, indices: Many) -> np.ndarray:
        """Return the row ids of samples, which do not depend on a selection; their indices if no row id is known."""
        return check_indices(indices, len(self), "row_ids")

    def _one(self, index: int) -> Any:
        """Return a sample."""
        return self._several([index])[0]

    def _several(self, indices: Many) -> Sequence[Any]:
        """Return some samples."""
        raise NotImplementedError


def _batch(samples: Sequence[Any]) -> Any:
    # torch's collate takes the type of a batch from its first sample, and an empty batch has none.
    return default_collate(samples) if len(samples) else getattr(samples, "whole", samples)


def datasets_in(dataset: Any) -> list[Any]:
    """Return a dataset, and all datasets inside it: those of a ConcatDataset, StackDataset, Subset or wrapper."""
    found, todo = {id(dataset): dataset}, [dataset]
    while todo:
        outer = todo.pop()
        several = getattr(outer, "datasets", ())
        several = several.values() if isinstance(several, Mapping) else several
        for member in (*(several if isinstance(several, Iterable) else ()), *getattr(outer, "__dict__", {}).values()):
            if isinstance(member, Dataset) and id(member) not in found:
                found[id(member)] = member
                todo.append(member)
    return [*found.values()]


def places_indices(dataset: Any) -> bool:
    """Return whether samplers have to say where in an epoch a sample is; a `Subset` around such samples passes it on.

    A dataset whose values alone are drawn gets the draw as a part of the index, but not from inside another one.
    """
    if hasattr(dataset, "_needs_places"):
        return bool(dataset._needs_places)
    inner = datasets_in(dataset)
    if not any(getattr(each, name, False) for each in inner for name in ("_needs_places", "is_drawn")):
        return False
    for each in inner:
        if isinstance(each, Subset) and not isinstance(each.indices, PlacedIndices):
            each.indices = PlacedIndices(each.indices)
    return True
