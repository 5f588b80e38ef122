"""Draws with weights in plain PyTorch: the same as in Ray, split over ranks, and resumed at every step."""

import numpy as np
import pytest
import torch
from scipy.special import chdtrc
from torch.utils.data import ConcatDataset, WeightedRandomSampler

from ray_h5 import H5Dataset, OrderSampler, Shuffle, WeightedSampler, balance
from ray_h5.errors import OptionError

FALSE_ALARMS = 1e-4
"""How often a statistical test would fail for another seed."""


def test_datasets_of_which_only_the_length_is_known(files):
    dataset = H5Dataset(files, ["fhr_st"])
    weights = np.arange(120) % 2
    for other in (range(120), ConcatDataset([dataset, dataset])):
        found = list(OrderSampler(other, shuffle=Shuffle(weights=weights, rows_per_epoch=500)))
        assert len(found) == 500
        assert set(found) <= set(range(1, 120, 2))
        for named in ("epoch", balance("cs_label"), {"f0.h5": 1.0}):
            with pytest.raises(OptionError, match="only an H5Dataset knows its columns and files"):
                OrderSampler(other, shuffle=Shuffle("rows", weights=named))
        with pytest.raises(OptionError, match="expected 120, one for each row of the dataset"):
            OrderSampler(other, shuffle=Shuffle("rows", weights=np.ones(60)))


# WeightedSampler --------------------------------------------------------------------------------

WEIGHTS = [0.1, 0.9, 0.4, 0.7, 3.0, 0.0]


def test_it_takes_the_arguments_of_pytorch():
    for kind in (WeightedRandomSampler, WeightedSampler):
        sampler = kind(WEIGHTS, 20_000, True, torch.Generator().manual_seed(5))
        assert len(sampler) == 20_000
        counts = np.bincount(list(sampler), minlength=6)
        assert counts[5] == 0
        expected = np.array(WEIGHTS[:5]) / sum(WEIGHTS) * 20_000
        assert chdtrc(4, ((counts[:5] - expected) ** 2 / expected).sum()) > FALSE_ALARMS
        assert list(sampler) != list(sampler)  # the next epoch


def test_it_has_no_limit_of_rows():
    weights = torch.ones(2**24 + 5)
    with pytest.raises(RuntimeError, match="2\\^24"):
        list(WeightedRandomSampler(weights, 10))
    found = list(WeightedSampler(weights, 10))
    assert len(set(found)) == 10
    assert max(found) < 2**24 + 5


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (([1, -1], 3), r"weights\[1\]=-1"),
        (([0, 0], 3), "sum of the weights of 2 selected rows is 0"),
        (([1, 1], 0), "num_samples=0: expected an integer of 1 or more"),
        (([1, 0], 2, False), "replacement=False: OrderSampler draws each sample once"),
        (([], 3), "expected a number for each sample"),
        (("label", 3), "expected a number for each sample. Classes and columns"),
        ((balance("label"), 3), "expected a number for each sample. Classes and columns"),
    ],
)
def test_arguments_that_cannot_be_used(arguments, said):
    with pytest.raises(OptionError, match=said):
        WeightedSampler(*arguments)
