"""Datasets that are drawn at random, and epochs of them that are left anywhere: h5py, NumPy and fractions say what is
right, and each way to read an epoch what the others deliver."""

import gc
import json
import math
import os
import random
import threading
import time
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from ray_h5 import Groups, Patches, Shuffle, Windows, loader, part, ragged, read_h5
from ray_h5.torch_data import H5Dataset, OrderSampler
from tests.rows import test_times_equal_fractions as times

BOUNDS = ["bounds", "offsets", "ends", "counts", "starts"]


class Drawn:
    """A random dataset: `options` of `H5Dataset`, how many rows it has, and what they hold.

    `drawn` has the columns with another value in each epoch. `outcomes` is the base-2 logarithm of how many draws an
    epoch may have.
    """

    def __init__(self, seed, folder):
        self.rng, self.seed, self.folder = random.Random(seed), seed, folder
        self.numpy = np.random.default_rng(seed)
        self.source, self.drawn, self.outcomes, self.expected = str(folder / "*.h5"), [], 0.0, []
        self.varies = False
        kind = self.rng.choice([self.times, self.patches, self.groups, self.groups, self.arrays])
        self.kind = kind.__name__
        self.options, self.count = kind()

    def drawing(self, column, counts):
        """Draw a number of entries of each row of a column; return its part, and note how many draws there are."""
        number = self.rng.randint(1, 4)
        self.outcomes += sum(math.log2(math.comb(n, min(n, number))) for n in counts)
        return part(column, random=number, seed=self.rng.randint(0, 3)), number

    def times(self):
        """Windows by times of a recording: fractions say which rows there are, and what they hold."""
        wide = self.rng.randint(1, 6)
        beside = {"z": lambda steps: 1000 * np.arange(steps)[:, None] + np.arange(wide)}
        made = None
        while made is None or not 0 < made[3] < 200:  # ticks of slow samples are thousands
            made = times.draw(self.rng.randint(0, 2**40), self.folder / "a.h5", beside)
        columns, windows, self.verify, count = made
        column, number = self.drawing("z", [])
        self.drawn, self.outcomes = ["at_z"], count * math.log2(math.comb(wide, min(wide, number))) / 40
        self.varies = True

        def check(row):
            step, found = int(row["x"][0]), np.asarray(row["at_z"])[0]
            assert len(found) == min(number, wide)
            assert (not found.any()) or (np.all(found // 1000 == step) and np.all(np.diff(found) > 0)), (step, found)

        self.check = lambda _, row: check(row)
        return {"columns": [*columns, "x", "at_z", column], "windows": windows, "decode_cf": True}, count

    def patches(self):
        """Blocks at drawn places of volumes."""
        axes = self.rng.randint(1, 3)
        block = tuple(self.rng.randint(1, 3) for _ in range(axes))
        number, volumes = self.rng.randint(1, 6), []
        in_groups = self.rng.random() < 0.3
        for name in "abc"[: self.rng.randint(1, 3)]:
            with h5py.File(self.folder / f"{name}.h5", "w") as file:
                for group in ["g0/", "g1/"][: self.rng.randint(1, 2)] if in_groups else [""]:
                    shape = tuple(size + self.rng.randint(0, 6) for size in block)
                    values = self.numpy.random(shape)
                    chunks = tuple(self.rng.randint(1, size) for size in shape)
                    file.create_dataset(f"{group}v", data=values, chunks=self.rng.choice([None, chunks]))
                    file[f"{group}w"] = values + 1
                    volumes.append(values)
                    places = math.prod(n - size + 1 for n, size in zip(shape, block, strict=True))
                    self.outcomes += number * math.log2(places)
        self.drawn = ["v", "w", "corner"]

        def check(row_id, row):
            corner = np.asarray(row["corner"]).tolist()
            at = tuple(slice(first, first + size) for first, size in zip(corner, block, strict=True))
            whole = volumes[row_id // number]
            assert np.array_equal(whole[at], row["v"]), (row_id, corner)
            assert np.array_equal(whole[at] + 1, row["w"]), (row_id, corner)

        self.check = check
        pattern = "g*" if in_groups else None
        rows = Patches({"v": block, "w": block}, per_file=number, seed=self.rng.randint(0, 3), groups=pattern)
        return {"columns": ["v", "w", "corner"], "rows": rows}, number * len(volumes)

    def ragged_arrays(self, option, names, dtype):
        """Draw arrays whose rows begin and end at the same places; return the datasets, and the rows of each array."""
        counts = self.numpy.integers(0, 6, self.rng.randint(1, 8)) * (self.rng.random() < 0.9)
        gaps = self.numpy.integers(0, 3, len(counts)) * (option in ("bounds", "starts"))
        stops = np.cumsum(counts + gaps)
        starts = stops - counts
        found = {"bounds": np.stack([starts, stops], axis=1), "offsets": np.append(0, stops), "ends": stops}
        found = {f"said_{name}": value for name, value in (found | {"counts": counts, "starts": starts}).items()}
        tail = self.rng.randint(0, 5) if option in ("bounds", "starts") else 0
        rows = {}
        for number, name in enumerate(names):
            axes = (2,) * (number % 2)
            found[name] = (100 * self.numpy.random((int(stops[-1]) + tail * number, *axes))).astype(dtype)
            rows[name] = [found[name][a:b] for a, b in zip(starts, stops, strict=True)]
        return found, rows

    def groups(self):
        """Groups, or files, with arrays whose rows begin and end where one dataset says; some have a draw of them."""
        is_group, names = self.rng.random() < 0.8, "pqr"[: self.rng.randint(1, 3)]
        option, dtype = self.rng.choice(BOUNDS), self.rng.choice(["f4", "f8", "i2", ">i8"])
        said = {option: f"said_{option}"} | ({"counts": "said_counts"} if option == "starts" else {})
        for name in "abc"[: self.rng.randint(1, 3)]:
            with h5py.File(self.folder / f"{name}.h5", "w") as file:
                for group in range(self.rng.randint(1, 4) if is_group else 1):
                    made, rows = self.ragged_arrays(option, names, dtype)
                    for dataset, values in made.items():
                        file[f"g{group}/{dataset}" if is_group else dataset] = values
                    self.expected += [dict(zip(rows, row, strict=True)) for row in zip(*rows.values(), strict=True)]
        columns, numbers, self.varies = [], {}, True
        for name in names:
            column = ragged(name, **said)
            if self.rng.random() < 0.5:
                column, numbers[name] = self.drawing(column, [len(row[name]) for row in self.expected])
                self.drawn.append(name)
            columns.append(column)

        def check(row_id, row):
            for name, whole in self.expected[row_id].items():
                found = np.asarray(row[name])
                found = found[0] if is_group else found
                if name in numbers:
                    assert len(found) == min(numbers[name], len(whole)), (row_id, name)
                    at = -1
                    for entry in found:  # entries keep their order
                        at = next(i for i in range(at + 1, len(whole)) if np.array_equal(whole[i], entry))
                else:
                    assert found.shape == whole.shape, (row_id, name)
                    assert np.array_equal(found, whole), (row_id, name)

        self.check = check
        options = {"rows": Groups("g*"), "windows": Windows({name: [0] for name in names})} if is_group else {}
        return {"columns": columns, **options}, len(self.expected)

    def arrays(self):
        """Plain rows, or groups of one array each. Some entries of each row are drawn."""
        is_group, wide = self.rng.random() < 0.5, self.rng.randint(1, 12)
        for name in "abc"[: self.rng.randint(1, 3)]:
            rows = self.rng.randint(1, 15)
            values = np.sort(self.numpy.random((rows, wide)), axis=1)
            with h5py.File(self.folder / f"{name}.h5", "w") as file:
                if is_group:
                    for number, row in enumerate(values):
                        cut = row[: self.rng.randint(1, wide)]
                        file[f"g{number}/x"], file[f"g{number}/y"] = cut, cut[:1]
                        self.expected.append(cut)
                else:
                    chunks = (self.rng.randint(1, rows), self.rng.randint(1, wide))
                    file.create_dataset("x", data=values, chunks=self.rng.choice([None, chunks]))
                    file["y"] = values[:, :1]
                    self.expected += list(values)
        column, number = self.drawing("x", map(len, self.expected))
        self.drawn, self.varies = ["x"], is_group

        def check(row_id, row):
            found, whole = np.asarray(row["x"]), self.expected[row_id]
            assert len(found) == min(number, len(whole)), row_id
            assert np.array_equal(whole[np.isin(whole, found)], found), row_id
            assert np.array_equal(row["y"], whole[:1]), row_id

        self.check = check
        return {"columns": [column, "y"], "rows": Groups("g*") if is_group else None}, len(self.expected)


def rows_of(batch):
    """Return the rows of a batch, tensors or samples, by their ids."""
    if isinstance(batch, list):
        return {int(row["row_id"]): dict(row) for row in batch}
    lengths = {name: batch[f"{name}_length"] for name in batch if f"{name}_length" in batch}
    found = {}
    for i, number in enumerate(batch["row_id"].tolist()):
        found[number] = {name: batch[name][i] for name in batch if not name.endswith("_length")}
        for name, length in lengths.items():
            count = int(length[i].max())
            value = found[number][name]
            found[number][name] = value[:, :count] if length[i].ndim else value[:count]
    assert len(found) == len(batch["row_id"]), "a batch has a row twice"
    return found


def plain(row):
    return {name: as_lists(value) for name, value in row.items()}


class Case:
    """A dataset, its epochs as one way delivers them, and everything else that reads them, compared with these."""

    def __init__(self, seed, folder, max_workers, is_ray):
        folder.mkdir()
        self.data = data = Drawn(seed, folder)
        self.rng, self.is_ray = data.rng, is_ray
        self.max_workers = max_workers
        seed = self.rng.randint(0, 9)
        self.shuffle = self.rng.choice([False, Shuffle("rows", seed), Shuffle("chunks", seed), Shuffle("files", seed)])
        self.batch = self.rng.randint(1, 9)
        self.collate = list if data.varies or self.rng.random() < 0.5 else None
        self.known, self.datasets = {}, []

    def dataset(self):
        kept = self.rng.choice([None, None, 0, 300])
        dataset = H5Dataset(self.data.source, **self.data.options, include_row_ids=True, kept_bytes=kept)
        self.datasets.append(dataset)
        return dataset

    def close(self):
        for dataset in self.datasets:
            dataset.close()

    def epoch(self, number):
        """Return the rows of an epoch, and their order, compared with the files."""
        if number not in self.known:
            batches = loader(self.dataset(), self.batch, shuffle=self.shuffle, threads=0, collate_fn=list)
            batches.set_epoch(number)
            rows = {}
            for batch in batches:
                assert not rows.keys() & rows_of(batch).keys(), "an epoch has a row twice"
                rows |= rows_of(batch)
            for row_id, row in rows.items():
                self.data.check(row_id, row)
            assert sorted(rows) == list(range(self.data.count))
            if self.data.kind == "times":
                ordered = [rows[row_id] for row_id in sorted(rows)]
                self.data.verify({name: [row[name] for row in ordered] for name in ordered[0]})
            self.known[number] = {row_id: plain(row) for row_id, row in rows.items()}
        return self.known[number]

    def compare(self, rows, number, *, is_whole=True, order=None):
        expected = self.epoch(number)
        for row_id, row in rows.items():
            assert plain(row) == expected[row_id], (number, row_id)
        if is_whole:
            assert list(rows) == (list(expected) if order is None else order), "an epoch is not complete"

    def run(self):
        ways = [self.left_loader, self.left_loader, self.left_plain, self.resumed, self.by_number]
        self.check_epochs_differ()
        for way in [self.in_ray] if self.is_ray else self.rng.sample(ways, 2):
            way()

    def check_epochs_differ(self):
        first, other = (self.epoch(number) for number in (0, 3))
        drawn = [{id_: [row[name] for name in self.data.drawn] for id_, row in rows.items()} for rows in (first, other)]
        assert self.data.outcomes < 40 or drawn[0] != drawn[1], "epochs have the same draws"

    def workers(self):
        return self.rng.randint(0, self.max_workers)

    def leave(self, batches, number):
        """Take some batches of an epoch, and leave it in one of the ways in which people do."""
        iterator, rows = iter(batches), {}
        total = -(-len(self.epoch(number)) // self.batch)
        for _ in range(self.rng.randint(1, total)):
            rows |= rows_of(next(iterator))
        self.compare(rows, number, is_whole=False)
        how = self.rng.choice(["held", "deleted", "closed"])
        if how == "closed" and hasattr(iterator, "close"):
            iterator.close()
        return iterator if how == "held" else None, rows

    def left_loader(self):
        workers = self.workers()
        batches = loader(
            self.dataset(),
            self.batch,
            shuffle=self.shuffle,
            threads=self.rng.choice([None, 0, 1, 3]),
            workers=workers,
            collate_fn=self.collate,
        )
        number, held = 0, []
        for _ in range(self.rng.randint(1, 3)):
            if self.rng.random() < 0.5:
                number = self.rng.randint(0, 3)
                batches.set_epoch(number)
            if self.rng.random() < 0.7:
                held.append(self.leave(batches, number)[0])
                number += 1
            self.whole(batches, number)
            number += 1

    def whole(self, batches, number):
        rows = {}
        for batch in batches:
            found = rows_of(batch)
            assert not rows.keys() & found.keys()
            rows |= found
        self.compare(rows, number)

    def left_plain(self):
        dataset, workers = self.dataset(), self.workers()
        sampler = OrderSampler(dataset, shuffle=self.shuffle)
        batches = DataLoader(
            dataset,
            self.batch,
            sampler=sampler,
            num_workers=workers,
            collate_fn=self.collate,
            persistent_workers=bool(workers) and self.rng.random() < 0.5,
        )
        held = []
        for _ in range(self.rng.randint(1, 2)):
            for is_left in (True, False):
                number = self.rng.randint(0, 3)
                sampler.set_epoch(number)
                if is_left:
                    held.append(self.leave(batches, number)[0])
                    if batches.persistent_workers:  # torch has one iterator, which begins again
                        held.clear()
                else:
                    self.whole(batches, number)

    def resumed(self):
        number, threads = self.rng.randint(0, 3), self.rng.choice([None, 0, 2])
        options = {"shuffle": self.shuffle, "collate_fn": self.collate}
        batches = loader(self.dataset(), self.batch, threads=threads, workers=self.workers(), **options)
        batches.set_epoch(number)
        _, rows = self.leave(batches, number)
        state = json.loads(json.dumps(batches.state_dict()))
        again = loader(self.dataset(), self.batch, threads=self.rng.choice([None, 0]), **options)
        again.load_state_dict(state)
        for batch in again:
            assert not rows.keys() & rows_of(batch).keys()
            rows |= rows_of(batch)
        self.compare(rows, number)
        self.whole(again, number + 1)

    def by_number(self):
        dataset, expected = self.dataset(), self.epoch(0)
        count = len(expected)
        asked = [self.rng.randrange(count) for _ in range(self.rng.randint(1, 12))]
        for row_id, row in zip(asked, dataset.__getitems__(asked), strict=True):
            assert plain(row) == expected[row_id]
        assert plain(dataset[asked[0]]) == expected[asked[0]]

    def in_ray(self):
        shuffle = None if self.shuffle is False else self.shuffle
        rows = read_h5(self.data.source, **self.data.options, include_row_ids=True, shuffle=shuffle)
        for number in (0, 1):
            found = {row["row_id"]: {name: as_lists(value) for name, value in row.items()} for row in rows.take_all()}
            expected = self.epoch(number)
            assert sorted(found) == sorted(expected)
            for row_id, row in found.items():
                assert row == expected[row_id], (number, row_id)


def as_lists(value):
    if isinstance(value, (np.ndarray, np.generic, torch.Tensor)):
        return as_lists(value.tolist())
    return [as_lists(each) for each in value] if isinstance(value, list) else value


def _children_of(task):
    """Return the processes that a thread has started; none if it has ended."""
    try:
        return Path(f"/proc/self/task/{task}/children").read_text().split()
    except FileNotFoundError:
        return []


def what_is_open():
    """Return how many descriptors, threads, processes and names in /dev/shm this process has."""
    gc.collect()
    processes = [number for task in os.listdir("/proc/self/task") for number in _children_of(task)]
    return {
        "descriptors": len(os.listdir("/proc/self/fd")),
        "threads": threading.active_count(),
        "processes": len(processes),
        "/dev/shm": sum(f"_{os.getpid()}_" in name for name in os.listdir("/dev/shm")),  # others use it, too
    }


def assert_nothing_is_left(before):
    end = time.monotonic() + 10
    while (left := {name: n for name, n in what_is_open().items() if n > before[name]}) and time.monotonic() < end:
        time.sleep(0.02)
    assert not left, f"{left} of {before}"


def check(seed, folder, max_workers=0, *, is_ray=False):
    before = what_is_open()
    try:
        case = Case(seed, folder / str(seed), max_workers, is_ray)
        case.run()
        case.close()
        del case
        if not is_ray:
            assert_nothing_is_left(before)
    except BaseException as exc:
        exc.add_note(f"seed {seed}, at most {max_workers} workers, Ray: {is_ray}")
        raise


def parts(small, large, step):
    """Return first seeds: those of each run, and those of a night."""
    return [small, *(pytest.param(first, marks=pytest.mark.nightly) for first in range(1000, 1000 + large, step))]


pytestmark = [
    pytest.mark.skipif(not os.path.isdir("/proc/self/task"), reason="descriptors and processes are counted there"),
    pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning"),
]


@pytest.mark.parametrize("first", parts(0, 2000, 100))
def test_epochs_of_random_datasets(tmp_path, first):
    for seed in range(first, first + (100 if first else 16)):
        check(seed, tmp_path)


@pytest.mark.parametrize("first", parts(0, 60, 10))
def test_epochs_that_workers_read(tmp_path, first):
    list(DataLoader(range(2), num_workers=1))  # what the first worker of a process opens stays open
    for seed in range(first, first + (10 if first else 2)):
        check(10_000 + seed, tmp_path, 3)


@pytest.mark.usefixtures("ray_local")
@pytest.mark.parametrize("first", parts(0, 4, 4))
def test_epochs_in_ray(tmp_path, first):
    for seed in range(first, first + (4 if first else 1)):
        check(20_000 + seed, tmp_path, is_ray=True)
