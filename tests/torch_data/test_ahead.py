"""Hints about what a loader reads next, across files and batches; and threads of a loader."""

import shutil

import h5py
import numpy as np
import pytest
import torch

from ray_h5.errors import RayH5Error
from ray_h5.hdf5.reading import ahead, turn
from ray_h5.planning.epoch.reading import read_rows
from ray_h5.torch_data import H5Dataset, loader
from ray_h5.torch_data.data_loader import H5DataLoader
from ray_h5.torch_data.samplers import OrderSampler

FILES, ROWS = 6, 60


@pytest.fixture(scope="module")
def paths(tmp_path_factory):
    folder, rng = tmp_path_factory.mktemp("ahead"), np.random.default_rng(0)
    found = []
    for number in range(FILES):
        found.append(str(folder / f"f{number}.h5"))
        with h5py.File(found[-1], "w") as file:
            noise = rng.standard_normal((ROWS, 1500)).astype("f4")  # it does not compress: rows are copied
            file.create_dataset("x", data=noise, chunks=(1, 1500), compression="lzf")
            file.create_dataset("y", data=np.repeat(noise[:, :1], 500, 1), chunks=(1, 500), compression="lzf")
    return found


def epoch(batches):
    return [(batch.x.clone(), batch.y.clone()) for batch in batches]


def same(one, other):
    return len(one) == len(other) and all(torch.equal(a, b) for a, b in zip(sum(one, ()), sum(other, ()), strict=True))


@pytest.mark.parametrize("threads", [0, 1, 2])
@pytest.mark.parametrize("kept_bytes", [0, None])
def test_a_loader_whose_reads_wait_delivers_the_same_and_gives_hints(paths, disk, threads, kept_bytes):
    calm = epoch(loader(paths, 16, threads=threads, kept_bytes=0))
    assert not disk.of("hint")
    disk.is_slow = True
    assert same(epoch(loader(paths, 16, threads=threads, kept_bytes=kept_bytes)), calm)
    # At most a few reads come before the first hint.
    assert len({tuple(extent) for extent in disk.of("hint")}) > 0.8 * FILES * ROWS


@pytest.mark.parametrize("threads", [0, 1])
def test_each_range_is_hinted_once_an_epoch(paths, disk, threads):
    batches = loader(paths, 16, threads=threads, kept_bytes=0)
    disk.is_slow = True
    for _ in range(2):
        disk.events.clear()
        epoch(batches)
        hints = [tuple(extent) for extent in disk.of("hint")]
        assert len(set(hints)) == len(hints) > 0.9 * FILES * ROWS


def test_kept_rows_are_not_hinted(paths, disk):
    batches = loader(paths, 16, threads=1)
    disk.is_slow = True
    calm = epoch(batches)
    assert disk.of("hint")
    disk.events.clear()
    assert len(epoch(batches)) == len(calm)
    assert not disk.events


@pytest.mark.parametrize("threads", [1, 2])
def test_the_next_batches_are_hinted_before_they_are_read(paths, disk, threads):
    dataset = H5Dataset(paths, columns=["x"], kept_bytes=0)
    asked, read = [], dataset.read
    dataset.read = lambda indices, out=None: (asked.append(len(disk.events)), read(indices, out))[1]
    disk.is_slow = True
    list(H5DataLoader(dataset, 20, OrderSampler(dataset, run_length=20), threads=threads, prefetch_factor=1))
    unhinted = 0
    for begin in asked[4:]:
        hinted = {tuple(extent) for kind, *extent in disk.events[:begin] if kind == "hint"}
        first = next(extent for kind, *extent in disk.events[begin:] if kind == "read")
        unhinted += tuple(first) not in hinted
    assert unhinted <= 1


def test_the_rows_of_the_next_files_are_hinted(paths, disk):
    dataset = H5Dataset(paths, columns=["x"], kept_bytes=0)
    disk.is_slow = True
    rows = np.random.default_rng(1).permutation(FILES * ROWS)[:60]  # about ten of each file
    read_rows(dataset._source.plan, rows)
    reads, hinted, late = disk.of("read"), set(), []
    for kind, *extent in disk.events:
        if kind == "hint":
            hinted.add(tuple(extent))
        else:
            late.append(tuple(extent) not in hinted)
    assert len(reads) > 50
    assert not any(late[10:])


def test_a_file_that_is_gone_is_reported_when_its_turn_comes(paths, disk, tmp_path):
    copies = []
    for number, path in enumerate(paths[:2]):
        copies.append(tmp_path / f"f{number}.h5")
        shutil.copy(path, copies[-1])
    dataset = H5Dataset([str(path) for path in copies], columns=["x"], kept_bytes=0)
    disk.is_slow = True
    dataset.read(np.arange(0, ROWS, 2))
    copies[1].unlink()
    with pytest.raises(RayH5Error, match=r"f1\.h5"):
        read_rows(dataset._source.plan, np.arange(0, 2 * ROWS, 2))


def test_two_threads_of_a_loader_read_at_the_same_time_only_where_reads_wait(paths, disk, monkeypatch):
    batches = loader(paths, 8, threads=2, kept_bytes=0)
    disk.is_slow = True
    slow = epoch(batches)
    assert disk.most == 2
    # On a busy machine any read may take long, and any turn.
    disk.is_slow = False
    monkeypatch.setattr(ahead, "_LONG_S", 1e9)
    monkeypatch.setattr(turn, "_PATIENCE_S", 60)
    epoch(batches)
    disk.most = 0
    assert len(epoch(batches)) == len(slow)
    assert disk.most == 1
