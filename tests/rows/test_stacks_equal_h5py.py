"""Virtual datasets that stack blocks of alike sources are read as one column, as h5py reads them."""

import h5py
import numpy as np
import pytest

from ray_h5 import RowReader
from ray_h5.read.arrays.column import Column
from ray_h5.read.jobs import ReadStats

STORAGES = {
    "contiguous": {},
    "gzip": {"chunks": (4, 3), "compression": "gzip", "shuffle": True},
    "raw chunks": {"chunks": (3, 3)},
    "partly written": {"chunks": (2, 3), "compression": "lzf", "fillvalue": 7},
    "bitshuffle": {"chunks": (4, 3), "compression": 32008, "compression_opts": (0, 2)},
}


@pytest.fixture
def joined(monkeypatch):
    """How many reads were planned over all sources at once."""
    done, plan = [], Column.jobs

    def counted(self, *args, **named):
        if len(self.source.table) > 1:
            done.append(len(self.source.table))
        return plan(self, *args, **named)

    monkeypatch.setattr(Column, "jobs", counted)
    return done


def write(folder, stored, cuts=None, files=5):
    """Files of different lengths, and a stack of blocks of them, with rows before, between and after that none has."""
    layout = h5py.VirtualLayout((200, 3), "f4", maxshape=(None, 3))
    at = 2
    for number in range(files):
        rows = 9 + number
        with h5py.File(folder / f"{number}.h5", "w") as file:
            x = file.create_dataset("x", (rows, 3), "f4", **stored)
            written = rows - 3 * ("fillvalue" in stored)
            x[:written] = np.arange(3 * written).reshape(-1, 3) + 1000 * number
        cut = (cuts or {}).get(number, slice(number % 3, rows))
        source = h5py.VirtualSource(f"{number}.h5", "x", (rows, 3))[cut]
        layout[at : at + source.shape[0]] = source
        at += source.shape[0] + (2 if number == 1 else 0)
    with h5py.File(folder / "all.h5", "w", libver="latest") as file:
        file.create_virtual_dataset("x", layout, fillvalue=-5)
        return file["x"][()]


@pytest.mark.parametrize("name", STORAGES)
def test_stacks(tmp_path, joined, name):
    values = write(tmp_path, STORAGES[name])
    rng = np.random.default_rng(0)
    with RowReader(tmp_path / "all.h5", threads=2, allow_external=[tmp_path]) as reader:
        for rows in [np.arange(200), rng.permutation(200), rng.integers(0, 60, 90), np.array([0, 199]), [11, 11, 3]]:
            np.testing.assert_array_equal(reader.read(["x"], rows)["x"], values[rows])
        np.testing.assert_array_equal(reader.read(["x"])["x"], values)
        np.testing.assert_array_equal(reader.read(["x"], slice(20, 20))["x"], values[20:20])
        cast = np.empty((90, 3), "f8")
        rows = rng.integers(0, 60, 90)
        reader.read_into({"x": cast}, rows, rng.permutation(90))
        assert sorted(map(tuple, cast)) == sorted(map(tuple, values[rows].astype("f8")))
    assert set(joined) == {5}


def test_each_chunk_is_read_once(tmp_path):
    write(tmp_path, STORAGES["gzip"])
    with RowReader(tmp_path / "all.h5", allow_external=[tmp_path]) as reader:
        reader.read(["x"], np.arange(200)[::-1])
        assert reader.stats == ReadStats(requests=5, bytes_read=reader.stats.bytes_read, chunks_decoded=16)


@pytest.mark.parametrize("cut", [slice(0, 9, 2), (slice(None), slice(0, 3))])
def test_other_mappings(tmp_path, joined, cut):
    values = write(tmp_path, {}, {2: cut})
    with RowReader(tmp_path / "all.h5", allow_external=[tmp_path]) as reader:
        np.testing.assert_array_equal(reader.read(["x"])["x"], values)
    assert bool(joined) == isinstance(cut, tuple)


def test_a_source_of_its_own_kind(tmp_path, joined):
    write(tmp_path, STORAGES["gzip"])
    with h5py.File(tmp_path / "3.h5", "w") as file:
        file["x"] = np.arange(36, dtype="f4").reshape(12, 3)
    with h5py.File(tmp_path / "all.h5") as file:
        values = file["x"][()]
    with RowReader(tmp_path / "all.h5", allow_external=[tmp_path]) as reader:
        np.testing.assert_array_equal(reader.read(["x"], np.arange(200)[::-1])["x"], values[::-1])
    assert not joined
