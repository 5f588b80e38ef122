"""Rows of several texts, compound values, times or opaque values: lists in Arrow."""

import h5py
import numpy as np
import pytest
from torch.utils.data import DataLoader

import ray_h5
from ray_h5.errors import PredicateError
from ray_h5.torch_data import H5Dataset, loader, where

ROWS = 6


@pytest.fixture
def path(tmp_path):
    rng = np.random.default_rng(0)
    tracks = np.zeros((ROWS, 4, 2), [("x", "f4"), ("n", "i8"), ("s", "S3")])
    tracks["x"], tracks["n"], tracks["s"] = (
        rng.random(tracks.shape),
        np.arange(tracks.size).reshape(tracks.shape),
        b"ab",
    )
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["captions"] = np.array([[f"c{i}{j} é" for j in range(5)] for i in range(ROWS)], dtype=object)
        file["fixed"] = np.array([[f"f{i}{j}" for j in range(3)] for i in range(ROWS)], "S4")
        file.create_dataset("tracks", data=tracks, chunks=(2, 4, 2), compression="gzip")
        file["opaque"] = np.arange(ROWS * 4, dtype="u1").view("V2").reshape(ROWS, 2)
        file["times"] = np.arange(ROWS * 2).reshape(ROWS, 2).astype("M8[s]").astype(h5py.opaque_dtype("M8[s]"))
        varying = file.create_dataset("varying", (ROWS, 2), h5py.vlen_dtype("i4"))
        for i, j in np.ndindex(ROWS, 2):
            varying[i, j] = np.arange(i + j)
        file["label"] = np.arange(ROWS)
    return str(tmp_path / "a.h5")


def expected(i):
    return {
        "captions": [f"c{i}{j} é" for j in range(5)],
        "fixed": [f"f{i}{j}" for j in range(3)],
        "opaque": [bytes([4 * i, 4 * i + 1]), bytes([4 * i + 2, 4 * i + 3])],
        "varying": [list(range(i)), list(range(i + 1))],
    }


@pytest.mark.usefixtures("ray_local")
def test_rows_in_ray(path):
    ds = ray_h5.read_h5(path, block_rows=2)
    rows = ds.take_all()
    with h5py.File(path) as file:
        tracks = file["tracks"][:]
    for i, row in enumerate(rows):
        assert {name: row[name] for name in expected(i)} == expected(i)
        assert [each.second for each in row["times"]] == [2 * i, 2 * i + 1]
        assert [[dict(each) for each in line] for line in row["tracks"]] == [
            [{"x": float(v["x"]), "n": int(v["n"]), "s": "ab"} for v in line] for line in tracks[i]
        ]
    (batch,) = ds.select_columns(["captions", "fixed", "opaque", "label"]).iter_batches(batch_size=ROWS)
    assert [list(each) for each in batch["captions"]] == [expected(i)["captions"] for i in range(ROWS)]
    kept = ds.filter(expr=ray_h5.where(label=[1, 4])).map_batches(lambda each: each).take_all()
    assert [row["captions"][0] for row in kept] == ["c10 é", "c40 é"]


def test_rows_in_plain_pytorch(path):
    samples = H5Dataset(path)
    with h5py.File(path) as file:
        tracks, times = file["tracks"][:], file["times"].astype("M8[s]")[:]
    for i in range(ROWS):
        sample = samples[i]
        assert sample["captions"] == expected(i)["captions"]
        assert sample["fixed"] == expected(i)["fixed"]
        assert sample["opaque"].tobytes() == b"".join(expected(i)["opaque"])
        assert [each.tolist() for each in sample["varying"]] == expected(i)["varying"]
        assert np.array_equal(sample["tracks"], tracks[i])
        assert np.array_equal(sample["times"], times[i])
    for batches in (loader(path, 3, shuffle=False), DataLoader(H5Dataset(path), 3)):
        found = [each for batch in batches for each in batch["captions"]]
        assert found == [expected(i)["captions"] for i in range(ROWS)]
    assert H5Dataset(path, ["captions"], dtypes={"captions": bytes})[0]["captions"][1] == "c01 é".encode()


def test_a_predicate_cannot_name_them(path):
    with pytest.raises(PredicateError, match=r"'captions' holds an array of shape \(5,\) a row"):
        H5Dataset(path, ["label"], where(captions="a"))
