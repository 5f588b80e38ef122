"""A chmod, chown, rename or hard link changes the ctime of a file alone: a training goes on, and says so once."""

import logging
import os

import h5py
import numpy as np
import pytest

from ray_h5 import H5Dataset, RayH5Error, RowReader, Sidecar, loader
from ray_h5.errors import NotFoundError, StaleIndexError

STORAGES = {
    "contiguous": {},
    "chunked": {"chunks": (5, 3)},
    "gzip": {"chunks": (5, 3), "compression": "gzip"},
    "groups": {},
}


def chmod(path):
    os.chmod(path, 0o600 if os.stat(path).st_mode & 0o777 != 0o600 else 0o640)


def link(path):
    os.link(path, f"{path}.backup{len(os.listdir(os.path.dirname(path)))}")


def rename(path):
    os.rename(path, f"{path}.away")
    os.rename(f"{path}.away", path)


def chown(path):
    if os.getuid():
        pytest.skip("this user may not chown")
    os.chown(path, os.stat(path).st_uid + 1, -1)


@pytest.fixture
def paths(tmp_path, request):
    values = np.random.default_rng(0).standard_normal((90, 3))
    for number in range(3):
        with h5py.File(tmp_path / f"{number}.h5", "w") as file:
            file.create_dataset("x", data=values[30 * number : 30 * number + 30], **request.param)
            file.create_dataset("text", data=[f"row {row}" for row in range(30)], dtype=h5py.string_dtype())
    return [str(tmp_path / f"{number}.h5") for number in range(3)], values


all_storages = pytest.mark.parametrize("paths", [{}, *list(STORAGES.values())[1:3]], indirect=True)
contiguous = pytest.mark.parametrize("paths", [{}], indirect=True)


@pytest.mark.parametrize(
    ("paths", "touch", "kept_bytes"),
    [
        *((storage, chmod, kept) for storage in ({}, *list(STORAGES.values())[1:3]) for kept in (0, 1 << 20)),
        *((STORAGES["gzip"], touch, 0) for touch in (link, rename, chown)),
    ],
    indirect=["paths"],
)
def test_training_goes_on(paths, touch, kept_bytes, caplog):
    paths, values = paths
    with caplog.at_level(logging.WARNING, "ray_h5"):
        batches = loader(paths, 9, columns=["x", "text"], kept_bytes=kept_bytes, shuffle=False)
        for _ in range(2):
            rows = 0
            for number, batch in enumerate(batches):
                np.testing.assert_array_equal(batch["x"], values[9 * number : 9 * number + 9])
                rows += len(batch["x"])
                if number in {1, 4}:
                    for path in paths:
                        touch(path)
            assert rows == 90
    said = [each.getMessage() for each in caplog.records if "ctime" in each.getMessage()]
    assert sorted(path for each in said for path in paths if each.startswith(f"{path}: ")) == paths


@pytest.mark.parametrize("paths", [STORAGES["gzip"]], indirect=True)
def test_a_resumed_epoch_and_another_process_go_on(paths):
    paths, values = paths
    dataset = H5Dataset(paths, ["x"])
    batches = loader(dataset, 9, shuffle=True, workers=1)
    it = iter(batches)
    seen = [next(it)["x"] for _ in range(4)]
    state = batches.state_dict()
    del it
    for path in paths:
        chmod(path)
    again = loader(H5Dataset(paths, ["x"]), 9, shuffle=True, workers=1)
    again.load_state_dict(state)
    seen += [batch["x"] for batch in again]
    found = np.concatenate([np.asarray(each) for each in seen])
    np.testing.assert_array_equal(np.sort(found[:, 0]), np.sort(values[:, 0]))


@contiguous
def test_a_table_beside_the_files(paths, tmp_path):
    paths, _ = paths
    table = tmp_path / "t.csv"
    table.write_text("path,label\n" + "".join(f"{path},{number}\n" for number, path in enumerate(paths)))
    dataset = H5Dataset(paths, ["x", "label"], sidecar=Sidecar(table, on="path"))
    chmod(table)
    assert dataset[40]["label"] == 1


@all_storages
def test_a_changed_file_is_still_an_error(paths):
    paths, _ = paths
    dataset = H5Dataset(paths, ["x"], kept_bytes=0)
    dataset.read(np.arange(90))
    before = os.stat(paths[1])
    with h5py.File(paths[1], "a") as file:
        del file["x"]  # the same name and size, and other places
        file.create_dataset("x", data=np.zeros((30, 3)), chunks=(6, 3))
    os.truncate(paths[1], before.st_size)
    os.utime(paths[1], ns=(before.st_atime_ns, before.st_mtime_ns))
    with pytest.raises(RayH5Error):
        dataset.read(np.arange(90))


@contiguous
def test_a_removed_file_says_so(paths):
    paths, _ = paths
    readers = RowReader(paths[0]), RowReader(paths[1])
    assert readers[0].read(["x"], [3])["x"].shape == (1, 3)
    state = RowReader(paths[2]).identity
    for path in paths[:2]:
        os.rename(path, f"{path}.away")
    for reader in readers:
        with pytest.raises(StaleIndexError, match="removed or renamed"):
            reader.read(["x"])
    os.unlink(paths[2])
    with pytest.raises(NotFoundError, match="no such file"):
        RowReader(paths[2], expect=state)
