"""`joined` in Ray: several datasets end to end."""

import h5py
import numpy as np
import pytest

import ray_h5


@pytest.mark.usefixtures("ray_local")
def test_datasets_end_to_end(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        for number, count in enumerate([3, 5, 2]):
            file[f"data/frames_{number}"] = np.arange(count * 2.0).reshape(count, 2) + 100 * number
        file["label"] = np.arange(10)
        expected = np.concatenate([file[f"data/frames_{number}"][()] for number in range(3)])
    ds = ray_h5.read_h5(tmp_path, columns=[ray_h5.joined("data/frames_*"), "label"], block_rows=4)
    (batch,) = ds.filter(expr=ray_h5.where(label=[1, 4, 9])).iter_torch_batches(batch_size=10)
    np.testing.assert_array_equal(batch["data/frames"].numpy(), expected[[1, 4, 9]])
