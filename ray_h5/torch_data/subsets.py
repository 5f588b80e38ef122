"""Datasets that loaders read in threads: an `H5Dataset`, or what a `Subset` chose of one."""

from __future__ import annotations

import os
from typing import Any

from torch.utils.data import ConcatDataset, DataLoader, Dataset, IterableDataset, Subset

from ray_h5.errors import OptionError
from ray_h5.torch_data.dataset import H5Dataset


def as_h5(dataset: Dataset[Any]) -> H5Dataset:
    """Return the samples of a dataset, in the same order, as an `H5Dataset`.

    Raises
    ------
    OptionError
        If it is none, nor a `Subset` of one.
    """
    if isinstance(dataset, H5Dataset):
        return dataset
    own = ("__getitem__", "__getitems__", "__len__")  # a subclass may make samples itself
    if isinstance(dataset, Subset) and all(getattr(type(dataset), name) is getattr(Subset, name) for name in own):
        return as_h5(dataset.dataset)._chosen(dataset.indices)
    if isinstance(dataset, (str, os.PathLike)):
        raise OptionError(f"expected a dataset, found the path {str(dataset)!r}; write H5Dataset({str(dataset)!r})")
    if isinstance(dataset, DataLoader):
        raise OptionError("loader: expected a dataset or paths, found a DataLoader; pass its dataset")
    if isinstance(dataset, (ConcatDataset, list, tuple)):
        raise OptionError(
            f"loader: expected one dataset or paths, found {type(dataset).__name__} of several datasets. Pass all "
            "paths to one H5Dataset, whose predicate chooses rows; Shuffle(weights={'lab/*.h5': 0.3}) mixes files by "
            "shares. For datasets with different transforms write DataLoader(ConcatDataset(datasets), batch_size)"
        )
    # A DataLoader takes no sampler for a dataset that has its own order.
    sampler = "" if isinstance(dataset, IterableDataset) else ", sampler=OrderSampler(dataset)"
    raise OptionError(
        f"expected an H5Dataset, or a Subset of one, found {type(dataset).__name__}. For any other dataset write "
        f"DataLoader(dataset, batch_size{sampler})"
    )
