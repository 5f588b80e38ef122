"""Datasets that read a whole batch by one call, also below subclasses that change single samples."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, SupportsIndex, TypeAlias, cast

import numpy as np
import torch
from torch.utils.data import Dataset, default_collate

from ray_h5.errors import OptionError, RowIndexError, UnknownOptionError


def check_indices(indices: Sequence[int] | np.ndarray | torch.Tensor, length: int, where: str) -> np.ndarray:
    """Return indices that may be negative as int64 of ``range(length)``.

    Raises
    ------
    RowIndexError
        If one is not in ``range(-length, length)``.
    OptionError
        If they are no integers along one axis: a mask, or numbers with a fraction, would mean other samples.
    """
    checked = np.asarray(indices)
    if checked.dtype.kind not in "iu" and checked.size:
        raise OptionError(
            f"{where}: expected integers for indices, found {checked.dtype}; for a mask, pass np.flatnonzero(mask)"
        )
    if checked.ndim != 1:
        # A DataLoader with a sampler of rows as its batch_sampler asks for "batches" that are single numbers.
        hint = ".ravel() makes one" if checked.ndim else "a batch_sampler= yields lists, as OrderBatchSampler; pass a "
        hint += "" if checked.ndim else "sampler of rows, as OrderSampler, as sampler="
        raise OptionError(f"{where}: expected one axis of indices, found shape {checked.shape}; {hint}")
    if not checked.size:
        return checked.astype(np.int64)
    # As Python integers: not every uint64 is an int64.
    least, most = int(checked.min()), int(checked.max())
    if least < -length or most >= length:
        wrong = next(index for index in checked.tolist() if not -length <= index < length)
        raise RowIndexError(f"{where}: index {wrong} is not among its {length} samples (0 to {length - 1})")
    checked = np.array(checked, np.int64, order="C")  # a copy: samples have row ids, and torch takes no negative steps
    return np.where(checked < 0, checked + length, checked) if least < 0 else checked


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
            one = operator.index(cast("SupportsIndex", index))
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


def datasets_in(dataset: Any) -> Iterator[Any]:
    """Yield a dataset, and all datasets inside it: those of a ConcatDataset, StackDataset, Subset or wrapper."""
    yield dataset
    several = getattr(dataset, "datasets", ())
    several = several.values() if isinstance(several, Mapping) else several
    inner = [getattr(dataset, name, None) for name in ("dataset", "base_dataset")]
    for member in (*(several if isinstance(several, Iterable) else ()), *inner):
        if isinstance(member, Dataset):
            yield from datasets_in(member)
