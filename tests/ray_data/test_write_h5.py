"""`write_h5` in a cluster."""

import os
import signal

import h5py
import numpy as np
import pytest
import ray
from ray.data.expressions import col

import ray_h5
from ray_h5.errors import OptionError, OutputExistsError, SchemaMismatchError
from tests.hdf5.h5kit import concatenated

pytestmark = pytest.mark.usefixtures("ray_local")


def test_rows_pass_through_a_folder_in_their_order(signals, tmp_path):
    ds = ray_h5.read_h5(signals, block_rows=8).map_batches(lambda batch: batch)
    ray_h5.write_h5(ds, tmp_path / "out", chunk_rows=3, rows_per_file=11)
    names = sorted(os.listdir(tmp_path / "out"))
    assert all(name.startswith("part-") for name in names)
    found = ray_h5.read_h5(tmp_path / "out")
    for name in ("wide", "label", "good", "guid", "obs/image"):
        values = np.concatenate([batch[name] for batch in found.iter_batches(batch_size=None)])
        assert values.tolist() == concatenated(signals, name).tolist(), name
    with pytest.raises(OutputExistsError, match="not empty"):
        ray_h5.write_h5(ds, tmp_path / "out")
    ray_h5.write_h5(ds, tmp_path / "out", mode="ignore")
    assert sorted(os.listdir(tmp_path / "out")) == names


def test_an_error_of_a_task_is_raised_as_it_is_and_leaves_nothing(tmp_path):
    ds = ray.data.range(20, override_num_blocks=4)
    odd = ds.map_batches(lambda batch: {"x": np.zeros((len(batch["id"]), 2 + int(batch["id"].max() > 10)))})
    with pytest.raises(SchemaMismatchError, match="'x'"):
        ray_h5.write_h5(odd, tmp_path / "out")
    assert os.listdir(tmp_path) == []


def test_a_dataset_without_rows(tmp_path):
    ray_h5.write_h5(ray.data.range(10).filter(lambda _: False), tmp_path / "out")
    assert os.listdir(tmp_path / "out") == []


def test_a_dataset_into_the_folder_that_it_reads(signals, tmp_path):
    folder = tmp_path / "out"
    ray_h5.write_h5(ray_h5.read_h5(signals), folder)
    (tmp_path / "link").symlink_to(folder)
    h5py.File(tmp_path / "linked.h5", "w")["wide"] = h5py.ExternalLink("out/part-0-0.h5", "wide")
    names = sorted(os.listdir(folder))
    ds = ray_h5.read_h5(folder, columns=["wide"])
    linked = ray_h5.read_h5(tmp_path / "linked.h5", allow_external=[tmp_path])
    for mode in ("append", "overwrite"):
        for of in (ds.limit(3), ds.union(ray.data.range(3)), ds.filter(expr=col("label") > 99), linked):
            for target in (folder, tmp_path / "link"):
                with pytest.raises(OptionError, match=r"part-0-0\.h5 is read by the dataset .*another folder"):
                    ray_h5.write_h5(of, target, mode=mode)
        with pytest.raises(OptionError, match=r"part-0-0\.h5 is read by the dataset"):
            ds.write_datasink(ray_h5.H5Datasink(folder, mode=mode))
    assert sorted(os.listdir(folder)) == names
    ray_h5.write_h5(ds, folder, mode="ignore")
    ray_h5.write_h5(ray_h5.read_h5(signals), folder, mode="overwrite")
    ray_h5.write_h5(ray_h5.read_h5(folder), folder / "below", mode="append")
    assert ray_h5.read_h5(folder / "*.h5").count() == ray_h5.read_h5(folder / "below").count()


@pytest.mark.slow
def test_a_killed_worker_writes_its_rows_once(tmp_path):
    marker = str(tmp_path / "killed")

    def kill_once(batch):
        if batch["id"].max() >= 15 and not os.path.exists(marker):
            open(marker, "w").close()
            os.kill(os.getpid(), signal.SIGKILL)
        return batch

    ray_h5.write_h5(ray.data.range(20, override_num_blocks=4).map_batches(kill_once), tmp_path / "out")
    assert os.path.exists(marker)
    found = ray_h5.read_h5(tmp_path / "out")
    assert sorted(row["id"] for row in found.take_all()) == list(range(20))
    assert all(name.startswith("part-") for name in os.listdir(tmp_path / "out"))
