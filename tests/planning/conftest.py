import h5py
import numpy as np
import pytest


@pytest.fixture
def five_files(tmp_path):
    """Five files, of 4, 0, 3, 5 and 1 rows."""
    paths = []
    first = 0
    for i, rows in enumerate([4, 0, 3, 5, 1]):
        path = tmp_path / f"f{i}.h5"
        ids = np.arange(first, first + rows)
        with h5py.File(path, "w") as file:
            file["signal"] = np.repeat(ids[:, None], 6, axis=1).astype("f4").reshape(rows, 2, 3)
            file["label"] = (ids % 3).astype("u1")
            file["score"] = np.where(ids % 4 == 0, np.nan, ids).astype("f8")
            file["name"] = np.array([f"p{i}" for i in ids], dtype=h5py.string_dtype())
        paths.append(str(path))
        first += rows
    return paths
