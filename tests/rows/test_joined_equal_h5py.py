"""`joined`: the rows of several datasets, end to end, as h5py reads them."""

import h5py
import numpy as np
import pytest
import torch

from ray_h5.errors import OptionError, RayH5Error, SchemaMismatchError, UnsupportedColumnError
from ray_h5.torch_data import Groups, H5Dataset, Patches, Shuffle, Windows, joined, loader, where


@pytest.fixture(params=["chunked", "contiguous", "text"])
def frames(request, tmp_path):
    """Two files of 11 datasets, of 0 to 4 rows: frames_10 is after frames_9."""
    rng = np.random.default_rng(0)
    for number in range(2):
        with h5py.File(tmp_path / f"{number}.h5", "w") as file:
            lengths = rng.integers(0, 5, 11)
            for i, length in enumerate(lengths):
                values = rng.random((length, 3, 2))
                options = (
                    {"chunks": (2, 3, 2), "maxshape": (None, 3, 2), "compression": "gzip"}
                    if request.param == "chunked"
                    else {}
                )
                if request.param == "text":
                    values = np.array([f"{i} {row}" for row in range(length)], "S8")
                file.create_dataset(f"data/frames_{i}", data=values, **options)
            file["label"] = np.arange(lengths.sum())
    return tmp_path


def oracle(folder):
    parts = []
    for number in range(2):
        with h5py.File(folder / f"{number}.h5") as file:
            parts += [file[f"data/frames_{i}"][()] for i in range(11)]
    return np.concatenate(parts)


def test_rows_are_those_of_h5py(frames):
    dataset = H5Dataset(frames, [joined("data/frames_*"), "label"])
    expected = oracle(frames)
    assert len(dataset) == len(expected)
    found = dataset[list(range(len(dataset)))]["data/frames"]
    if expected.dtype.kind == "S":
        assert [each.encode() for each in found] == expected.tolist()
        return
    np.testing.assert_array_equal(found.numpy(), expected)
    order = np.random.default_rng(1).permutation(len(expected))
    np.testing.assert_array_equal(dataset[order.tolist()]["data/frames"].numpy(), expected[order])
    batches = loader(dataset, 5, shuffle=Shuffle("chunks", seed=2))
    assert sum(len(batch["label"]) for batch in batches) == len(expected)
    chosen = H5Dataset(frames, [joined("data/frames_*", name="x")], where(label=[0, 2]))
    assert torch.equal(chosen[0]["x"], dataset[0]["data/frames"])
    windows = H5Dataset(frames, [joined("data/frames_*", name="x")], windows=Windows({"x": [0, 1]}, pad="drop"))
    np.testing.assert_array_equal(windows[0]["x"].numpy(), expected[:2])


def test_what_cannot_be_joined(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["a_0"], file["a_1"] = np.zeros((2, 3)), np.zeros((2, 4))
        file["one_0"] = 1.0
        file["g_0/x"] = np.zeros(2)
        file["x_0"] = np.zeros(2)
        file["x_1"] = h5py.ExternalLink("gone.h5", "x")
    wrong = {"a": "rows of several shapes", "one": "single values", "g": "these are groups", "z": "nothing matches"}
    for begin, says in wrong.items():
        pattern = f"{begin}_*"
        with pytest.raises(RayH5Error, match=says):
            H5Dataset(tmp_path / "a.h5", [joined(pattern)])
    with pytest.raises(RayH5Error, match=r"gone\.h5"):
        H5Dataset(tmp_path / "a.h5", [joined("x_*")])
    with pytest.raises(OptionError, match="expected a glob"):
        joined("data")
    with pytest.raises(RayH5Error, match="rows of several shapes"):
        H5Dataset(tmp_path / "a.h5", [joined("a_*")], rows=Patches({"a": (2,)}))
    with pytest.raises(RayH5Error, match=r"nothing matches the pattern 'g_0/y_\*'"):
        H5Dataset(tmp_path / "a.h5", [joined("y_*")], rows=Groups("g_*"))
    with h5py.File(tmp_path / "a.h5", "r+") as file:
        file["g_0/y_0"], file["g_1/y_0"] = np.zeros((2, 3)), np.zeros((2, 4))
    with pytest.raises(SchemaMismatchError, match=r"column 'y': its parts differ: .* in 'g_0', and .* in 'g_1'"):
        H5Dataset(tmp_path / "a.h5", [joined("y_*")], rows=Groups("g_*"))


def test_datasets_of_other_files_are_read_as_these_files(tmp_path):
    with h5py.File(tmp_path / "data_0.h5", "w") as file:
        file["entry/data/data"] = np.zeros((3, 2))
    with h5py.File(tmp_path / "master.h5", "w") as file:
        file["entry/data/data_0"] = h5py.ExternalLink("data_0.h5", "/entry/data/data")
        file["entry/data/data_1"] = np.zeros((3, 2))
    with pytest.raises(UnsupportedColumnError, match=r"'entry/data/data_0' leads to another file.*read those files"):
        H5Dataset(tmp_path / "master.h5", [joined("entry/data/data_*")], allow_external=tmp_path)
    assert len(H5Dataset(tmp_path / "data_0.h5", ["entry/data/data"])) == 3


def test_a_column_that_is_called_as_a_dataset_of_references(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        for i in range(3):
            file[f"frames_{i}"], file[f"more_{i}"], file[f"cells/c{i}"] = [i], [10 * i], 100 + i
        file["refs"] = np.array([file[f"cells/c{i}"].ref for i in range(3)], h5py.ref_dtype)
    made = {"refs": joined("frames_*"), "cells": "refs", "more": joined("more_*"), "again": joined("frames_*")}
    for names in (list(made), list(made)[::-1]):
        rows = H5Dataset(tmp_path / "a.h5", {name: made[name] for name in names})
        expected = [{"refs": i, "cells": 100 + i, "more": 10 * i, "again": i} for i in range(3)]
        assert [{name: int(value) for name, value in row.items()} for row in rows] == expected


@pytest.mark.parametrize("missing", [None, "ep_3/c_0", "ep_9/c_0"])
def test_groups_of_one_pattern_and_of_several(tmp_path, missing):
    """One pattern is read as one array, several group by group: with the same rows, and the same error."""
    with h5py.File(tmp_path / "a.h5", "w") as file:
        rows = []
        for i in range(12):  # ep_10 after ep_9
            parts = [np.full((k + 1, 2), 10 * i + k) for k in range(1 + i % 3)]
            for k, part in enumerate(parts):
                file[f"ep_{i}/c_{k}"] = part
            rows.append(np.concatenate(parts).tolist())
        for i in range(12):
            file[f"ep_{i}/s_0"], file[f"ep_{i}/s_1"] = np.full(i, i), np.arange(2)
        if missing:
            del file[missing]
    patterns = ("ep_*", ["ep_?", "ep_1?"])
    for name, expected in (("c", rows), ("s", [[i] * i + [0, 1] for i in range(12)])):
        for pattern in patterns:
            options = {"rows": Groups(pattern), "index_dir": tmp_path / "index"}
            if name == "c" and missing:  # the group has one dataset
                with pytest.raises(RayH5Error, match=r"nothing matches the pattern 'ep_\d/c_"):
                    H5Dataset(tmp_path / "a.h5", [joined("c_*")], **options)
                continue
            for _ in range(2):
                found = H5Dataset(tmp_path / "a.h5", [joined(f"{name}_*")], **options)
                assert [row[name].tolist() for row in found] == expected
