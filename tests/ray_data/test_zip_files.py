"""zip_files= in Ray: files that are read together by row."""

import h5py
import numpy as np
import pytest

import ray_h5


@pytest.mark.usefixtures("ray_local")
def test_rows_have_the_columns_of_both(tmp_path):
    for number in range(3):
        with h5py.File(tmp_path / f"x_{number}.h5", "w") as file:
            file["x"] = np.arange(4) + 10 * number
        with h5py.File(tmp_path / f"y_{number}.h5", "w") as file:
            file["y"] = -(np.arange(4.0) + 10 * number)
    ds = ray_h5.read_h5(tmp_path / "x_*.h5", zip_files=tmp_path / "y_*.h5", shuffle=True, block_rows=3)
    rows = ds.filter(expr=ray_h5.where(y=ray_h5.between(-12, -2))).take_all()
    assert sorted(row["x"] for row in rows) == [2, 3, 10, 11, 12]
    assert all(row["y"] == -row["x"] for row in rows)
