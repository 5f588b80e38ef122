"""Ways to draw that not every layout has to pin: weights, classes, lengths, many rows, folds, and augmentation."""

import itertools
from functools import partial

import h5py
import numpy as np

from ray_h5.torch_data import (
    EpochShuffleSampler,
    GaussianNoise,
    H5Dataset,
    OrderBatchSampler,
    OrderSampler,
    RayH5Error,
    Shuffle,
    SpecAugment,
    WeightedSampler,
    balance,
    kfold,
    loader,
)
from tests.golden.layouts import LAYOUTS
from tests.golden.orders import digest, ids_of, short, values_of

SEED = 7

SHUFFLES = {
    "balance": partial(Shuffle, "rows", weights=balance("label")),
    "shares of classes": partial(Shuffle, "rows", weights=balance("label", {0: 0.5, 1: 0.25, 2: 0.25})),
    "weights by a column": partial(Shuffle, "rows", weights="label"),
    "weights by chunks": partial(Shuffle, "chunks", window_rows=32, weights="label"),
    "shares of files": partial(Shuffle, "rows", weights={"*run_0.h5": 0.5, "*run_[12].h5": 0.5}),
    "fewer rows": partial(Shuffle, "rows", rows_per_epoch=40),
    "more rows": partial(Shuffle, "rows", rows_per_epoch=120),
    "lengths by chunks": partial(Shuffle, "chunks", window_rows=32, by_length="label", run_rows=4),
    "lengths by default": partial(Shuffle, by_length="label"),
    "chosen by default": partial(Shuffle),
}

RESUMED = {"rows": partial(Shuffle, "rows"), "chunks": partial(Shuffle, "chunks", window_rows=16)}

LENGTHS = (10, 1000, 65_536, 65_537, 10**8, 2**62)
"""How many rows; from 2 ** 16 on no process has a table of all of them."""


class Rows:
    """A dataset of which only the length is known."""

    def __init__(self, length):
        self.length = length

    def __len__(self):
        return self.length


def draws_of(folder):
    """Return what is drawn, by name."""
    LAYOUTS["axis_16"].write(folder)
    dataset = H5Dataset(str(folder))
    found = {"shuffles": {name: _epochs(dataset, make(seed=SEED)) for name, make in SHUFFLES.items()}}
    by_values = Shuffle("rows", SEED, by_length="label", window_rows=48, run_rows=8, batch_values=12)
    batches = OrderBatchSampler(dataset, 8, shuffle=by_values, rank=0, world_size=2)
    found["batches of so many values"] = [short(dataset.row_ids(batch)) for batch in batches]
    found["first of many rows"] = {str(length): _first(Rows(length)) for length in LENGTHS}
    for epoch in range(2):
        local = EpochShuffleSampler(10, seed=SEED)
        local.set_epoch(epoch)
        found[f"EpochShuffleSampler, epoch {epoch}"] = short(local)
    found["WeightedSampler"] = short(WeightedSampler(np.arange(9) + 1.0, 20, seed=SEED, rank=0, world_size=1))
    found["resumed three times"] = {name: _resumed(dataset, make(seed=SEED)) for name, make in RESUMED.items()}
    found |= {"folds": _folds(folder), "augmentation": _augmentation()}
    found["large rows, by default"] = _large(folder / "large.hdf5")
    (folder / "blocks").mkdir()
    return found | {"blocks of five ranks": _blocks(folder / "blocks")}


def _large(path):
    """Return the order of rows of 2 MiB each, which are never written: windows are those of the default."""
    with h5py.File(path, "w") as file:
        file.create_dataset("x", (600, 512, 1024), "f4", chunks=(4, 512, 1024))
    dataset = H5Dataset(str(path))
    state = OrderSampler(dataset, seed=SEED, rank=0, world_size=1).state_dict()
    return {"window_rows": state["plan"]["window_rows"], "rows": _epochs(dataset, Shuffle(seed=SEED))}


def _resumed(dataset, shuffle):
    """Return the rows of each rank of runs that resume one after the other, with other ranks and other ends."""
    state, found = None, []
    for world, drop_last, batches in [(2, True, 3), (5, False, 1), (3, True, 2), (2, False, None)]:
        states, ranks = [], []
        for rank in range(world):
            options = {"rank": rank, "world_size": world, "drop_last": drop_last}
            sampler = OrderBatchSampler(dataset, 4, shuffle=shuffle, **options)
            if state is not None:
                sampler.load_state_dict(state)
            taken = list(itertools.islice(sampler, batches))
            ranks.append(short(dataset.row_ids([index for batch in taken for index in batch])))
            states.append(sampler.state_dict())
        assert all(each == states[0] for each in states)
        state = states[0]
        found.append(ranks)
    return found


def _blocks(folder):
    """Return checksums of what ranks get of blocks that are drawn: those that fill up the last step are other draws."""
    options, found = LAYOUTS["patches_drawn"].write(folder), []
    for rank in range(5):
        batches = loader(str(folder), 4, shuffle=Shuffle("rows", SEED), rank=rank, world_size=5, threads=0, **options)
        found.append({name: digest(values) for name, values in values_of(batches).items()})
    return found


def _epochs(dataset, shuffle):
    try:
        return [short(ids_of(dataset, shuffle, epoch=epoch)[0]) for epoch in (0, 3)]
    except RayH5Error as error:
        return type(error).__name__


def _first(rows):
    found = []
    for seed, epoch in [(0, 0), (2**40, 3)]:
        sampler = OrderSampler(rows, seed=seed, rank=0, world_size=1)
        sampler.set_epoch(epoch)
        found.append(short(itertools.islice(sampler, 8)))
    return found


def _folds(folder):
    """Return the rows that each fold validates on."""
    found = {}
    options = {"by rows": {}, "stratified": {"stratify": "label"}, "by classes": {"group": "label"}}
    for name, given in (options | {"by files": {"group": "path"}}).items():
        folds = kfold(str(folder), 3, seed=SEED, **given)
        sides = [H5Dataset(str(folder), predicate=valid) for _, valid in folds]
        found[name] = [short(side.row_ids(range(len(side)))) for side in sides]
    return found


def _augmentation():
    """Return checksums of rows that are augmented by their keys."""
    image, found = np.ones((4, 30, 40), "f4"), {}
    keys = np.array([0, 1, 2**40, 2**63], np.uint64)
    for step in (SpecAugment("x", time_mask_param=20, freq_mask_param=10, p=0.9), GaussianNoise("x", std=0.5, p=0.9)):
        made = step.apply_batch(image.copy(), keys)
        found[type(step).__name__] = [digest([np.round(each, 4).astype("f4").tobytes()]) for each in made]
    return found
