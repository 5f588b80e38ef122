"""Columns of several kinds in Ray: the values that plain PyTorch has."""

import numpy as np
import pytest

import ray_h5
from ray_h5 import TorchCollate, Windows, between, csr, torch_data, where
from tests.kit.files import save
from tests.rows import test_lists_of_lists as lists
from tests.rows.test_encoded_and_plain import mixed  # noqa: F401  a fixture

pytestmark = pytest.mark.usefixtures("ray_local")


def test_labels(tmp_path):
    for name, values in zip("ab", [["T", "B", "T", "NK"], ["B", "B", "mono", "T"]], strict=True):
        save(tmp_path / f"{name}.h5", {"kind": np.array(values, object)})
    ds = ray_h5.read_h5(tmp_path, labels={"kind": "auto"})
    assert ray_h5.labels_of(ds) == {"kind": {"B": 0, "NK": 1, "T": 2, "mono": 3}}
    assert ray_h5.labels_of(ds) == torch_data.H5Dataset(tmp_path, labels={"kind": "auto"}).labels
    assert next(iter(ds.iter_torch_batches(batch_size=8)))["kind"].tolist() == [2, 0, 2, 1, 0, 0, 3, 2]
    chosen = ds.filter(expr=where(kind=["mono", "NK"]))
    assert [row["kind"] for row in chosen.take_all()] == [1, 3]
    assert ray_h5.labels_of(chosen) == ray_h5.labels_of(ds)
    with pytest.raises(ray_h5.RayH5Error, match="expected a dataset of read_h5, found a str"):
        ray_h5.labels_of("a.h5")
    with pytest.raises(ray_h5.RayH5Error, match=r"paths: found a dataset, (Materialized)?Dataset; pass its paths"):
        ray_h5.kfold(ds, 2)


def test_columns_that_one_file_encodes_and_another_does_not(mixed, tmp_path):  # noqa: F811
    folder, texts = mixed
    ds = ray_h5.read_h5(folder, columns=["obs/kind", "obs/n", "obs/batch"], index_dir=tmp_path / "index", block_rows=4)
    assert [str(each) for each in ds.schema().types] == ["string", "int64", "int64"]
    rows = ds.take_all()
    assert [row["obs/kind"] for row in rows] == texts
    assert [row["obs/n"] for row in rows][:8] == [1, None, 3, 4, 5, 6, 0, 1]
    assert ds.filter(expr=where(**{"obs/batch": 30})).count() == 6
    batches = [each["obs/n"] for each in ds.iter_torch_batches(batch_size=5, collate_fn=TorchCollate())]
    assert [type(each) for each in batches] == [list] * 4, "also where a batch lacks no value"
    assert [value for each in batches for value in each] == [1, None, 3, 4, 5, 6, *range(6), *range(6)]


def test_files_that_are_read_together_by_row(tmp_path):
    for number in range(3):
        save(tmp_path / f"x_{number}.h5", {"x": np.arange(4) + 10 * number})
        save(tmp_path / f"y_{number}.h5", {"y": -(np.arange(4.0) + 10 * number)})
    ds = ray_h5.read_h5(tmp_path / "x_*.h5", zip_files=tmp_path / "y_*.h5", shuffle=True, block_rows=3)
    rows = ds.filter(expr=where(y=between(-12, -2))).take_all()
    assert sorted(row["x"] for row in rows) == [2, 3, 10, 11, 12]
    assert all(row["y"] == -row["x"] for row in rows)


def test_lists_of_lists_and_spans_of_sparse_rows(tmp_path):
    lists.write(tmp_path / "a.h5")
    columns = ["time", *lists.COLUMNS.values(), csr("m", shape=(None, 6))]
    at = dict.fromkeys(["time", "flat", "vlen", "cells", "m"], "time")
    windows = Windows({"time": [0.0], **{name: slice(-1.25, 0.25) for name in at if name != "time"}}, at=at)
    plain = torch_data.H5Dataset(tmp_path / "a.h5", columns, windows=windows)
    ds = ray_h5.read_h5(tmp_path / "a.h5", columns=columns, windows=windows)
    rows = ds.take_all()
    for name in ("flat", "vlen", "cells", "m"):
        assert [lists.plain(row[name]) for row in rows] == [lists.plain(plain[i][name]) for i in range(5)]
    (batch,) = ds.iter_torch_batches(batch_size=5, collate_fn=TorchCollate(padding=True))
    assert batch["m_length"].tolist() == [1, 2, 2, 2, 2]
    assert [lists.plain(row) for row in batch["flat"]] == [lists.plain(plain[i]["flat"]) for i in range(5)]
