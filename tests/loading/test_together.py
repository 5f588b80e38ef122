"""Rows of many files are planned at once where their columns are alike, and otherwise file by file."""

import os
from unittest import mock

import h5py
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ray_h5.errors import CorruptChunkError, StaleIndexError
from ray_h5.read.joint_columns import JointColumns
from ray_h5.read.native.library import compiled_loop
from ray_h5.torch_data import H5Dataset
from tests.hdf5.h5kit import flip
from tests.properties import few

pytestmark = pytest.mark.skipif(compiled_loop() is None, reason="the loop is not compiled")

STORAGES = {
    "contiguous": {},
    "one row a chunk": {"chunks": (1, 5), "compression": "lzf"},
    "four rows a chunk": {"chunks": (4, 5), "compression": "gzip", "shuffle": True},
    "chunks without filters": {"chunks": (3, 5)},
    "parts of rows a chunk": {"chunks": (2, 3), "compression": "lzf"},
    "parts of rows without filters": {"chunks": (4, 4)},
}


@pytest.fixture
def together(monkeypatch):
    """Whether each read of many files was done at once."""
    done, read = [], JointColumns.read

    def recorded(self, *args):
        found = read(self, *args)
        done.append(found)
        return found

    monkeypatch.setattr(JointColumns, "read", recorded)
    return done


def write(folder, count=4, rows=11, **options):
    paths, values = [], []
    for number in range(count):
        x = np.random.default_rng(number).integers(0, 99, (rows + number, 5)).astype("<f4")
        paths.append(str(folder / f"{number:03d}.h5"))
        with h5py.File(paths[-1], "w") as file:
            file.create_dataset("x", data=x, **options)
            file["y"] = np.arange(len(x)) + 1000 * number
        values.append(x)
    return paths, np.concatenate(values)


def drawn(dataset, count=40, seed=0):
    """Return rows as threads of a loader read them."""
    rows = np.random.default_rng(seed).integers(0, len(dataset), count)
    with dataset.source.sharing_chunks():
        return rows, dataset.read(rows)


@pytest.mark.parametrize("name", STORAGES)
@pytest.mark.parametrize("kept_bytes", [0, 300])
def test_columns_that_are_alike_are_read_at_once(tmp_path, together, name, kept_bytes):
    paths, values = write(tmp_path, **STORAGES[name])
    dataset = H5Dataset(paths, ["x", "y"], kept_bytes=kept_bytes)
    for seed in range(3):
        rows, found = drawn(dataset, seed=seed)
        np.testing.assert_array_equal(found["x"], values[rows])
    assert together
    assert all(together)


@pytest.mark.parametrize("damage", [False, True])
def test_rows_that_are_chunks(tmp_path, damage):
    values = np.arange(44 * 40, dtype="<f4").reshape(44, 40) // 100  # shorter when they are compressed
    paths = [str(tmp_path / f"{number:03d}.h5") for number in range(4)]
    for number, path in enumerate(paths):
        with h5py.File(path, "w") as file:
            x = values[11 * number : 11 * (number + 1)]
            found = file.create_dataset("x", data=x, chunks=(1, 40), compression="gzip", shuffle=True)
            for row in range(0, 11, 3):  # stored as they are
                found.id.write_direct_chunk((row, 0), x[row].tobytes(), filter_mask=3)
            if damage:
                found.id.write_direct_chunk((5, 0), b"damaged", filter_mask=0)
    dataset = H5Dataset(paths, ["x"], kept_bytes=0)
    order = np.random.default_rng(3).permutation(len(values))
    if damage:
        with pytest.raises(CorruptChunkError, match=r"00\d.h5: column 'x', chunk 5 "):
            dataset.read(order)
        return
    for rows in (order, np.r_[order, order[:1]], np.arange(9), order[:1], order[3:6]):
        np.testing.assert_array_equal(dataset.read(rows)["x"], values[rows])


@pytest.fixture(scope="module")
def mixed(tmp_path_factory):
    """Four files with a column of each storage, and their values."""
    folder, found = tmp_path_factory.mktemp("mixed"), {name: [] for name in [*STORAGES, "two"]}
    rng = np.random.default_rng(0)
    for number in range(4):
        with h5py.File(folder / f"{number}.h5", "w") as file:
            for name, options in STORAGES.items():
                found[name].append(rng.integers(0, 99, (9 + number, 5)).astype("<f4"))
                file.create_dataset(name, data=found[name][-1], **options)
            found["two"].append(rng.integers(0, 3, (9 + number, 200), np.int16))
            file.create_dataset("two", data=found["two"][-1], chunks=(1, 200), compression="gzip", fletcher32=True)
    return str(folder), {name: np.concatenate(parts) for name, parts in found.items()}


@few(12)
@given(
    st.lists(st.sampled_from([*STORAGES, "two"]), min_size=1, unique=True),
    st.lists(st.tuples(st.integers(0, 41), st.integers(1, 4)), min_size=1, max_size=12),
)
def test_rows_read_at_once_equal_h5py_and_those_read_file_by_file(mixed, columns, runs):
    path, values = mixed
    rows = np.concatenate([np.arange(first, min(first + count, 42)) for first, count in runs])
    dataset = H5Dataset(path, columns, kept_bytes=0)
    at_once = dataset.read(rows)
    with mock.patch.object(JointColumns, "of_files", return_value=None):
        one_by_one = H5Dataset(path, columns, kept_bytes=0).read(rows)
    for name in columns:
        assert at_once[name].tobytes() == one_by_one[name].tobytes() == values[name][rows].tobytes()
    dataset.close()


@pytest.mark.parametrize("odd", ["chunks", "dtype in memory", "unwritten", "filter of Python"])
def test_others_are_read_file_by_file(tmp_path, odd):
    import hdf5plugin

    paths, values = write(tmp_path, **STORAGES["four rows a chunk"])
    options = {}
    if odd == "dtype in memory":
        options = {"dtypes": {"x": "float64"}}
    else:
        with h5py.File(paths[1], "a") as file:
            x = file["x"][()]
            del file["x"]
            if odd == "chunks":
                file.create_dataset("x", data=x, chunks=(2, 5), compression="gzip")
            elif odd == "unwritten":
                made = file.create_dataset(
                    "x", x.shape, "<f4", chunks=(4, 5), compression="gzip", shuffle=True, fillvalue=7
                )
                made[:4] = x[:4]
                x[4:] = 7
            else:
                file.create_dataset("x", data=x, chunks=(4, 5), **hdf5plugin.Bitshuffle())
        values[11 : 11 + len(x)] = x
    dataset = H5Dataset(paths, ["x"], kept_bytes=0, **options)
    for seed in range(2):
        rows, found = drawn(dataset, seed=seed)
        np.testing.assert_array_equal(found["x"], values[rows])


def test_errors_are_those_of_the_file(tmp_path, together):
    paths, values = write(tmp_path, **STORAGES["four rows a chunk"])
    dataset = H5Dataset(paths, ["x"], kept_bytes=0)
    drawn(dataset)
    with h5py.File(paths[2]) as file:
        chunk = file["x"].id.get_chunk_info(1)
    state = os.stat(paths[2])
    flip(paths[2], chunk.byte_offset + chunk.size // 2, 6)
    os.utime(paths[2], ns=(state.st_atime_ns, state.st_mtime_ns))
    fresh = H5Dataset(paths, ["x"], kept_bytes=0)
    ahead = np.arange(20)
    with fresh.source.sharing_chunks():
        with pytest.raises(CorruptChunkError, match=r"002\.h5: column 'x', chunk 1 \(rows 4 to 7"):
            fresh.read(np.arange(len(fresh)))
        np.testing.assert_array_equal(fresh.read(ahead)["x"], values[ahead])
    assert together[0]
    assert not all(together)


def test_a_file_that_changes_is_an_error(tmp_path):
    paths, _ = write(tmp_path, **STORAGES["contiguous"])
    dataset = H5Dataset(paths, ["x"], kept_bytes=0)
    drawn(dataset)
    with h5py.File(paths[0], "a") as file:
        file["x"][0] = 3
    with pytest.raises(StaleIndexError, match=r"000\.h5"):
        dataset.read(np.arange(20))
