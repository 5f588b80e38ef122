"""read_h5 over files in a store: the rows of local files, in tasks that ask for no metadata."""

import h5py
import numpy as np
import pytest

import ray_h5
from ray_h5.errors import RayH5Error, StaleIndexError
from tests.kit.stores import served

pytest.importorskip("obstore")
pytestmark = pytest.mark.usefixtures("ray_local")


@pytest.fixture
def server(tmp_path):
    rng = np.random.default_rng(0)
    (tmp_path / "bkt").mkdir()
    for number in range(5):
        with h5py.File(tmp_path / f"bkt/run_{number}.h5", "w") as file:
            file.create_dataset("x", data=rng.random((40, 30)), chunks=(3, 30), compression="gzip")
            file["label"] = np.arange(40) % 3
            file["s"] = np.array([f"row {i}" for i in range(40)], object)
    with served(tmp_path) as server:
        yield server


def test_the_rows_of_local_files(server, tmp_path):
    options = {"shuffle": ray_h5.Shuffle("rows", seed=3), "block_rows": 64}
    remote = ray_h5.read_h5("s3://bkt/run_*.h5", storage_options=server.options, **options)
    local = ray_h5.read_h5(str(tmp_path / "bkt/run_*.h5"), **options)
    for of in (lambda ds: ds, lambda ds: ds.filter(expr=ray_h5.where(label=[1]))):
        ours, theirs = of(remote).take_all(), of(local).take_all()
        assert len(ours) == len(theirs)
        assert all(np.array_equal(a["x"], b["x"]) and a["s"] == b["s"] for a, b in zip(ours, theirs, strict=True))


def test_a_file_that_changes_under_the_tasks(server, tmp_path):
    dataset = ray_h5.read_h5("s3://bkt/run_*.h5", columns=["x"], storage_options=server.options)
    with h5py.File(tmp_path / "bkt/run_3.h5", "w") as file:
        file["x"] = np.zeros((40, 30))
    with pytest.raises(RayH5Error) as caught:
        dataset.take_all()
    assert isinstance(caught.value, StaleIndexError)
    assert "run_3.h5" in str(caught.value)
