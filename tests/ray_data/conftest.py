import h5py
import numpy as np
import pytest


@pytest.fixture
def signals(tmp_path):
    """Three files of 20, 0 and 30 rows, one chunk a row, each with columns of every kind."""
    rng = np.random.default_rng(0)
    paths = []
    for i, rows in enumerate([20, 0, 30]):
        path = tmp_path / f"s{i + 9}.h5"  # s9, s10, s11: not in the order of characters
        with h5py.File(path, "w", libver="latest") as file:

            def column(name, values, file=file, **kind):
                options = {"chunks": (1, *values.shape[1:]), "maxshape": (None, *values.shape[1:])}
                return file.create_dataset(name, data=values, **options, **kind)

            column("wide", rng.standard_normal((rows, 5, 40)).astype("f4"), compression="gzip", fletcher32=True)
            column("other", rng.standard_normal((rows, 200)).astype("f8"), compression="gzip", fletcher32=True)
            column("obs/image", rng.integers(0, 255, (rows, 4, 4)).astype("u1"), compression="lzf")
            column("label", rng.integers(0, 4, rows).astype("u1"), compression="lzf")
            column("epoch", rng.integers(0, 60, rows).astype("f4"), compression="lzf")
            column("good", rng.integers(0, 2, rows).astype(bool))
            column("wave", (rng.standard_normal(rows) + 1j).astype("c8"))
            names = np.array([f"p{j % 7}" for j in range(rows)], dtype=h5py.string_dtype())
            column("guid", names, dtype=h5py.string_dtype(), compression="lzf")
        paths.append(str(path))
    return paths
