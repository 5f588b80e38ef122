"""`labels=` in Ray: the same numbers as in plain PyTorch."""

import h5py
import numpy as np
import pytest

import ray_h5
from ray_h5 import torch_data

TEXTS = [["T", "B", "T", "NK"], ["B", "B", "mono", "T"]]


@pytest.fixture
def pattern(tmp_path):
    for name, values in zip("ab", TEXTS, strict=True):
        with h5py.File(tmp_path / f"{name}.h5", "w") as file:
            file["x"] = np.arange(4.0)
            file["kind"] = np.array(values, object)
    return str(tmp_path / "*.h5")


@pytest.mark.usefixtures("ray_local")
def test_labels(pattern):
    ds = ray_h5.read_h5(pattern, labels={"kind": "auto"})
    assert ray_h5.labels_of(ds) == {"kind": {"B": 0, "NK": 1, "T": 2, "mono": 3}}
    assert ray_h5.labels_of(ds) == torch_data.H5Dataset(pattern, labels={"kind": "auto"}).labels
    batch = next(iter(ds.iter_torch_batches(batch_size=8)))
    assert batch["kind"].tolist() == [2, 0, 2, 1, 0, 0, 3, 2]
    chosen = ds.filter(expr=ray_h5.where(kind=["mono", "NK"]))
    assert [row["kind"] for row in chosen.take_all()] == [1, 3]
    assert ray_h5.labels_of(chosen) == ray_h5.labels_of(ds)
    with pytest.raises(ray_h5.RayH5Error, match="expected a dataset of read_h5, found a str"):
        ray_h5.labels_of(pattern)
    with pytest.raises(ray_h5.RayH5Error, match=r"paths: found a dataset, (Materialized)?Dataset; pass its paths"):
        ray_h5.kfold(ds, 2)
