"""Ways to draw that not every layout has to pin: weights, classes, lengths, many rows, folds, and augmentation."""

import contextlib
import io
import itertools
import json
from functools import partial

import h5py
import numpy as np

from ray_h5 import (
    GaussianNoise,
    H5Dataset,
    OrderBatchSampler,
    OrderSampler,
    RayH5Error,
    Shuffle,
    SpecAugment,
    WeightedSampler,
    balance,
    loader,
    ragged,
)
from ray_h5.cli import main
from ray_h5.torch_data import EpochShuffleSampler, WorkerSafeAugmentedDataset, kfold, where
from tests.golden.layouts import LAYOUTS
from tests.golden.orders import digest, ids_of, long, short, values_of

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
    "one class": partial(Shuffle, "rows", weights={"*.h5": 1.0}),
    "uneven shares": partial(Shuffle, "rows", weights=balance("label", {0: 0.41, 1: 0.34, 2: 0.15})),
    "two classes": partial(Shuffle, "rows", weights=balance("label", {0: 0.7, 1: 0.3, 2: 0, 3: 0, 4: 0})),
    "weights by chunks, more rows": partial(Shuffle, "chunks", window_rows=20, weights="label", rows_per_epoch=130),
    "lengths of more rows": partial(Shuffle, "rows", window_rows=50, by_length="label", rows_per_epoch=130),
    "lengths of drawn rows": partial(Shuffle, "rows", weights=balance("label"), by_length="label", window_rows=40),
    "chunks, more rows": partial(Shuffle, "chunks", window_rows=20, rows_per_epoch=100),
    "files": partial(Shuffle, "files"),
    "chunks": partial(Shuffle, "chunks"),
}

RESUMED = {
    "rows": partial(Shuffle, "rows"),
    "chunks": partial(Shuffle, "chunks", window_rows=16),
    "files": partial(Shuffle, "files"),
    "classes": partial(Shuffle, "rows", weights=balance("label"), rows_per_epoch=77),
    "lengths": partial(Shuffle, "rows", by_length="label", window_rows=40, run_rows=4),
}

LENGTHS = (10, 1000, 65_535, 65_536, 65_537, 10**8, 2**62)
"""How many rows; from 2 ** 16 on no process has a table of all of them."""

TABLES = [  # rows, bytes of a row, rows of a chunk
    (31, 1 << 20, 4),
    (32, 1 << 20, 4),
    (33, 1 << 20, 4),
    (600, 1 << 16, 10),
    (600, 1 << 16, 30),
    (4_000, 1 << 16, 2),
    (5_000, 1 << 16, 20),
    (5_000, 1 << 16, 100),
    (5_000, 1 << 16, 200),
    (5_000, 1 << 16, 400),
    (2_050, 1 << 16, 1_000),
    (600_000, 8, 1_000),
    (40_000, 1_000, 7),
    (900, 1 << 18, 1),
    (5_000, 83_885, 2),
    (90, 40 << 20, 2),
    (7, 300 << 20, 2),
]
"""Files that are never written: their windows and blocks are those of the default."""

RANGES = [  # rows, entries of a row, entries of a chunk
    (60_000, 256, 4_096),
    (3_000, 4_096, 512),
    (3_000, 4_096, 100_000),
    (400, 1 << 16, 1 << 14),
    (100_000, 9_000, 1 << 20),
    (70_000, 128, 1 << 20),
]

VARYING = [
    ("ragged_rows", "events/x"),
    ("ragged_rows", "hits"),
    ("csr_rows", "X"),
    ("groups", "actions"),
    ("one_file_a_row", "features"),
    ("windows_over_groups", "goal"),
    ("axis_1", "name"),
]
"""Columns whose rows have lengths."""


class Rows:
    """A dataset of which only the length is known."""

    def __init__(self, length):
        self.length = length

    def __len__(self):
        return self.length


def draws_of(folder):
    """Return all that is drawn, by name, as JSON holds it."""
    found = {}
    for name, make in DRAWN.items():
        (folder / name).mkdir()
        found[name] = make(folder / name)
    return json.loads(json.dumps(found))


def _shuffles(folder):
    LAYOUTS["axis_16"].write(folder)
    dataset = H5Dataset(str(folder))
    return {name: _epochs(dataset, make(seed=SEED)) for name, make in SHUFFLES.items()}


def _shuffles_of_some(folder):
    LAYOUTS["axis_16"].write(folder)
    dataset = H5Dataset(str(folder), predicate=where(label=[1, 3, 4]))
    return {name: _epochs(dataset, make(seed=SEED), (1,)) for name, make in SHUFFLES.items()}


def _batches_of_values(folder):
    LAYOUTS["axis_16"].write(folder)
    dataset = H5Dataset(str(folder))
    by_values = Shuffle("rows", SEED, by_length="label", window_rows=48, run_rows=8, batch_values=12)
    batches = OrderBatchSampler(dataset, 8, shuffle=by_values, rank=0, world_size=2)
    return [short(dataset.row_ids(batch)) for batch in batches]


def _first_of_many(_):
    return {str(length): _first(Rows(length)) for length in LENGTHS}


def _first_of_many_drawn(_):
    """Weights and lengths of more rows than are summed, or sorted, at once."""
    rows = (1 << 20) + 3
    weights = np.zeros(rows)
    weights[-5:], weights[:3] = 1, 2
    lengths = np.arange(rows) * 7919 % 1009
    shuffles = {
        "weights": Shuffle("rows", SEED, weights=weights),
        "lengths": Shuffle("rows", SEED, by_length=lengths),
        "lengths of fewer": Shuffle("rows", SEED, by_length=lengths, rows_per_epoch=1000),
        "lengths of more": Shuffle("rows", SEED, by_length=lengths[:400], rows_per_epoch=1000),
    }
    found = {}
    for name, shuffle in shuffles.items():
        length = 400 if name == "lengths of more" else rows
        sampler = OrderSampler(Rows(length), shuffle=shuffle, rank=0, world_size=1)
        found[name] = [len(sampler), short(itertools.islice(sampler, 40))]
    batches = list(OrderBatchSampler(Rows(40_001), 100, seed=SEED, rank=0, world_size=1))
    found["batches"] = [len(batches), sorted({*map(len, batches)}), short(batches[-1] + batches[200])]
    return found


def _many_chunks(folder):
    """Return orders of as many chunks as a table is made of, and of more; some are not full."""
    found = {}
    for sizes in [(131_071,), (65_001, 66_075)]:
        path = folder / str(sizes[0])
        path.mkdir()
        for number, rows in enumerate(sizes):
            with h5py.File(path / f"{number}.h5", "w") as file:
                file.create_dataset("x", (rows, 2), "i1", chunks=(2, 2))
        shuffle = Shuffle("chunks", SEED, window_rows=8)
        indices = np.array(list(OrderSampler(H5Dataset(str(path)), shuffle=shuffle, rank=0, world_size=1)))
        ends = np.flatnonzero(np.isin(indices, np.cumsum(sizes) - 1)).tolist()
        found[str(sizes)] = {"first": short(indices[:48]), "last of files": ends, "all": digest([indices.tobytes()])}
    return found


def _one_local_sampler(epoch, _):
    local = EpochShuffleSampler(10, seed=SEED)
    local.set_epoch(epoch)
    return short(local)


def _weighted_sampler(_):
    return short(WeightedSampler(np.arange(9) + 1.0, 20, seed=SEED, rank=0, world_size=1))


def _classes_of_columns(folder):
    """Return draws of more combinations of values than are counted in a table."""
    with h5py.File(folder / "a.h5", "w") as file:
        for number, size in enumerate((280, 279, 277)):
            file[f"c{number}"] = np.arange(280) * (number + 2) % size
        file["half"] = (np.arange(280) % 3 / 2).astype("f2")
    dataset, found = H5Dataset(str(folder)), {}
    for columns in (["c0", "c1", "c2"], ["c0", "half"], ["half"]):
        found[" ".join(columns)] = _epochs(dataset, Shuffle("rows", SEED, weights=balance(columns)), (0,))
    return found


def _resumed_runs(folder):
    LAYOUTS["axis_16"].write(folder)
    dataset = H5Dataset(str(folder))
    return {name: _resumed(dataset, make(seed=SEED)) for name, make in RESUMED.items()}


def _large(folder):
    """Return the order of rows of 2 MiB each, which are never written: windows are those of the default."""
    with h5py.File(folder / "large.hdf5", "w") as file:
        file.create_dataset("x", (600, 512, 1024), "f4", chunks=(4, 512, 1024))
    dataset = H5Dataset(str(folder / "large.hdf5"))
    return {"window_rows": _plan_of(dataset)["window_rows"], "rows": _epochs(dataset, Shuffle(seed=SEED))}


def _by_default(folder):
    """Return what the default draws, in which windows and blocks, of rows and chunks of many sizes."""
    found = {}
    for number, (rows, row_bytes, chunk_rows) in enumerate(TABLES):
        path = folder / f"{number}.h5"
        _write_table(path, rows, row_bytes, chunk_rows)
        said = {}
        for name, options in {"": {}, "by chunks": {"unit": "chunks"}, "by length": {"by_length": "n"}}.items():
            said[name or "auto"] = _windows_of(H5Dataset(str(path)), **options)
        for low in (4, 17):
            some = H5Dataset(str(path), predicate=where(n=list(range(low))))
            said[f"of {low} in 100"] = _windows_of(some)
        found[f"{rows} rows of {row_bytes} bytes, {chunk_rows} a chunk"] = said
    _write_table(folder / "largest.h5", 5_000, 1 << 17, 8)
    largest = H5Dataset(str(folder / "largest.h5"), ["x"])
    found["windows as large as blocks"] = [
        _windows_of(largest, unit="chunks", window_rows=rows) for rows in (1_000, 1_024, 1_025)
    ]
    for number, (rows, entries, chunk_entries) in enumerate(RANGES):
        path = folder / f"ranges {number}.h5"
        with h5py.File(path, "w") as file:
            file.create_dataset("values", (rows * entries,), "u1", chunks=(chunk_entries,))
            file["offsets"] = np.arange(rows + 1) * entries
            file["n"] = (np.arange(rows) * 7 % 100).astype("u1")
        said, options = {}, {"columns": [ragged("values", offsets="offsets")]}
        for name, shuffle in {"auto": {}, "by chunks": {"unit": "chunks"}, "by length": {"by_length": "n"}}.items():
            said[name] = _windows_of(H5Dataset(str(path), **options), **shuffle)
        some = H5Dataset(str(path), predicate=where(n=list(range(9))), **options)
        said["of 9 in 100"] = _windows_of(some)
        said["first of 9 in 100"] = short(list(OrderSampler(some, seed=SEED, rank=0, world_size=1))[:12])
        found[f"{rows} rows of {entries} entries, {chunk_entries} a chunk"] = said
    return found


def _weights_of_chunks(folder):
    """Return draws by weights of rows in chunks of one, and of two, rows."""
    found = {}
    for rows in (1, 2):
        path = folder / f"{rows}.h5"
        with h5py.File(path, "w") as file:
            file.create_dataset("x", (11, 1 << 10), "f4", chunks=(rows, 1 << 10))
            file["w"] = np.array([5, 9, 1, 2, 0, 0, 3, 1, 1, 9, 4])
        dataset = H5Dataset(str(path), ["x"])
        found[f"chunks of {rows}"] = _epochs(dataset, Shuffle("chunks", SEED, window_rows=4, weights="w"), range(4))
    return found


def _costs(folder):
    """Return what the command line says of shuffles."""
    found = {}
    (folder / "csr").mkdir()
    LAYOUTS["csr_rows"].write(folder / "csr")
    found["csr_rows"] = {
        name: _cost(folder / "csr", name, "--columns", "X", "depth") for name in ("auto", "rows", "chunks", "files")
    }
    for number in (3, 6, 8, 10, 12, 13, 16):
        rows, row_bytes, chunk_rows = TABLES[number]
        path = folder / f"{number}.h5"
        _write_table(path, rows, row_bytes, chunk_rows)
        shuffles = ("auto", "rows", "chunks", "files", "weights:n", "balance:n", "by_length:n")
        found[f"{rows} rows of {row_bytes} bytes, {chunk_rows} a chunk"] = {
            name: _cost(path, name) for name in shuffles
        }
    return found


def _cost(path, shuffle, *options):
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        main(["inspect", str(path), *options, "--shuffle", shuffle])
    return printed.getvalue().partition("Shuffled:\n")[2].splitlines()[0].strip()


def _write_table(path, rows, row_bytes, chunk_rows):
    with h5py.File(path, "w") as file:
        file.create_dataset("x", (rows, row_bytes), "u1", chunks=(chunk_rows, min(row_bytes, 1 << 18)))
        file["n"] = (np.arange(rows) * 7 % 100).astype("u1")


def _windows_of(dataset, **options):
    sampler = OrderSampler(dataset, shuffle=Shuffle(seed=SEED, **options), rank=0, world_size=1)
    next(iter(sampler), None)
    state = sampler.state_dict()
    window, group = state["plan"]["window_rows"], state["plan"]["chunk_group_rows"]
    return f"{state['plan']['unit']}, window {window}, chunks of {group}, block {state['block_rows']}"


def _plan_of(dataset):
    return OrderSampler(dataset, seed=SEED, rank=0, world_size=1).state_dict()["plan"]


def _lengths_of_columns(folder):
    found = {}
    for name, column in VARYING:
        (folder / f"{name} {column.replace('/', ' ')}").mkdir()
        options = dict(LAYOUTS[name].write(folder / f"{name} {column.replace('/', ' ')}"))
        paths = options.pop("paths", str(folder / f"{name} {column.replace('/', ' ')}"))
        for unit in ("rows", "chunks"):
            shuffle = Shuffle(unit, SEED, by_length=column, window_rows=16, run_rows=2)
            found[f"{name}, {column}, {unit}"] = _epochs(H5Dataset(paths, **options), shuffle, (0,))
    return found


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


def _blocks_again(folder):
    """Return checksums of epochs in which rows come several times: each time with other values."""
    options, found = LAYOUTS["patches_drawn"].write(folder), {}
    for shuffle in (None, Shuffle("rows", SEED, rows_per_epoch=70), Shuffle("rows", SEED, weights=np.arange(33.0))):
        batches = loader(str(folder), 4, shuffle=shuffle or False, rank=0, world_size=1, threads=0, **options)
        found[str(shuffle)] = [{name: digest(values) for name, values in values_of(batches).items()} for _ in range(3)]
    return found


def _epochs(dataset, shuffle, epochs=(0, 3)):
    try:
        return [short(ids_of(dataset, shuffle, epoch=epoch)[0]) for epoch in epochs]
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
    LAYOUTS["axis_16"].write(folder)
    found = {}
    options = {
        "by rows": {},
        "stratified": {"stratify": "label"},
        "by classes": {"group": "label"},
        "by files": {"group": "path"},
        "by files, stratified": {"group": "path", "stratify": "label"},
    }
    for name, given in options.items():
        folds = kfold(str(folder), 3, seed=SEED, **given)
        sides = [H5Dataset(str(folder), predicate=valid) for _, valid in folds]
        found[name] = [short(side.row_ids(range(len(side)))) for side in sides]
        for (train, _), valid in zip(folds, found[name], strict=True):
            others = H5Dataset(str(folder), predicate=train)
            assert len(others.row_ids(range(len(others)))) == 96 - len(long(valid))
    return found


def _augmentation(_):
    """Return checksums of rows that are augmented by their keys."""
    image, found = np.ones((4, 30, 40), "f4"), {}
    keys = np.array([0, 1, 2**40, 2**63], np.uint64)
    for step in (SpecAugment("x", time_mask_param=20, freq_mask_param=10, p=0.9), GaussianNoise("x", std=0.5, p=0.9)):
        made = step.apply_batch(image.copy(), keys)
        found[type(step).__name__] = [digest([np.round(each, 4).astype("f4").tobytes()]) for each in made]
    return found


def _augmented_epochs(_):
    """Return checksums of two epochs of samples: noise depends on the seed, the epoch and the row alone."""
    samples = [(np.ones((3, 20), "f4"), number) for number in range(5)]
    augmented, found = WorkerSafeAugmentedDataset(samples, {"noise_std": 0.5}, seed=SEED), []
    for epoch in (0, 3):
        augmented.set_epoch(epoch)
        found.append([digest([np.round(np.asarray(augmented[i][0]), 3).tobytes()]) for i in range(5)])
    return found


DRAWN = {
    "shuffles": _shuffles,
    "shuffles of some rows": _shuffles_of_some,
    "batches of so many values": _batches_of_values,
    "first of many rows": _first_of_many,
    "first of many rows that are drawn": _first_of_many_drawn,
    "many chunks": _many_chunks,
    "EpochShuffleSampler, epoch 0": partial(_one_local_sampler, 0),
    "EpochShuffleSampler, epoch 1": partial(_one_local_sampler, 1),
    "WeightedSampler": _weighted_sampler,
    "classes of columns": _classes_of_columns,
    "resumed three times": _resumed_runs,
    "folds": _folds,
    "augmentation": _augmentation,
    "augmented epochs": _augmented_epochs,
    "large rows, by default": _large,
    "windows by default": _by_default,
    "costs of shuffles": _costs,
    "weights of chunks": _weights_of_chunks,
    "lengths of columns": _lengths_of_columns,
    "blocks of five ranks": _blocks,
    "blocks that come again": _blocks_again,
}
"""What is pinned in one file, by name: functions of a folder of their own."""
