"""The reader for physicsnemo gives its datapipes the samples of its own readers of HDF5 and Zarr."""

import h5py
import numpy as np
import pytest
import torch

pytest.importorskip("physicsnemo.datapipes")

import physicsnemo_h5
import zarr
from hydra.utils import instantiate
from omegaconf import OmegaConf
from physicsnemo.datapipes import DataLoader, Dataset, HDF5Reader, Scale, ZarrReader

from ray_h5 import Groups

pytestmark = [pytest.mark.nightly, pytest.mark.filterwarnings("ignore")]


@pytest.fixture
def folder(tmp_path):
    """12 samples: along the first axis of a file, in files of a folder, and in groups of Zarr."""
    rng = np.random.default_rng(0)
    pressure, velocity = rng.standard_normal((12, 50)), rng.standard_normal((12, 50, 3)).astype("f4")
    with h5py.File(tmp_path / "all.h5", "w") as file:
        file.create_dataset("pressure", data=pressure, chunks=(4, 50), compression="gzip")
        file["velocity"] = velocity
    (tmp_path / "runs").mkdir()
    for i in range(12):
        values = {"pressure": pressure[i], "velocity": velocity[i], "inlet": velocity[i, :2, 0]}
        with h5py.File(tmp_path / "runs" / f"run_{i}.h5", "w") as file:
            for name, array in values.items():
                file[name] = array
        group = zarr.open_group(tmp_path / "zarr" / f"run_{i}.zarr", mode="w")
        for name, array in values.items():
            group.create_array(name, data=array)
    return tmp_path


def check_equal(one, other):
    for (data, metadata), (expected, of_theirs) in zip(one, other, strict=True):
        assert metadata == of_theirs
        assert set(data.keys()) == set(expected.keys())
        for name in expected.keys():  # noqa: SIM118  a TensorDict iterates over its batch
            assert data[name].dtype == expected[name].dtype
            assert torch.equal(data[name], expected[name])


@pytest.mark.parametrize("options", [{}, {"fields": ["velocity"]}, {"include_index_in_metadata": False}])
@pytest.mark.parametrize("path", ["all.h5", "runs"])
def test_samples_are_those_of_its_own_reader(folder, path, options):
    theirs, ours = (reader(folder / path, **options) for reader in (HDF5Reader, physicsnemo_h5.RayH5Reader))
    assert len(ours) == len(theirs) == 12
    assert set(ours.field_names) == set(theirs.field_names)
    check_equal([*ours, ours[-1]], [*theirs, theirs[-1]])
    with pytest.raises(IndexError):
        ours[12]


def test_its_pipeline_takes_the_reader(folder):
    def batches(name):
        config = {"_target_": "${dp:" + name + "}", "path": str(folder / "all.h5")}
        dataset = Dataset(instantiate(OmegaConf.create(config)), transforms=Scale(["pressure"], torch.tensor([2.0])))
        return [*DataLoader(dataset, batch_size=5, shuffle=True, seed=3, use_streams=False)]

    ours, theirs = batches("RayH5Reader"), batches("HDF5Reader")
    assert len(ours) == len(theirs) == 3
    for one, other in zip(ours, theirs, strict=True):
        assert all(torch.equal(one[name], other[name]) for name in ("pressure", "velocity"))


@pytest.mark.parametrize("fields", [["velocity", "pressure", "inlet"], ["velocity", "pressure"]])
def test_points_are_chosen_as_its_reader_of_zarr_does(folder, fields):
    points = {"n_points": 9, "target_keys": ["velocity", "pressure"]}
    readers = [
        reader(folder / path, fields=fields, coordinated_subsampling=points)
        for reader, path in ((physicsnemo_h5.RayH5Reader, "runs"), (ZarrReader, "zarr"))
    ]
    for reader in readers:
        reader.set_generator(torch.Generator().manual_seed(5))
        reader.set_epoch(2)
    for (ours, _), (theirs, _) in zip(*readers, strict=True):
        assert ours["velocity"].shape == (9, 3)
        assert all(torch.equal(ours[name], theirs[name]) for name in fields)


def test_rows_of_other_kinds_are_samples(folder):
    with h5py.File(folder / "groups.h5", "w") as file:
        for i in range(11):
            file[f"run_{i}/points"] = np.full((i + 1, 3), i, "f4")
    with physicsnemo_h5.RayH5Reader(folder / "groups.h5", rows=Groups("run_*")) as reader:
        assert [data["points"].shape for data, _ in reader] == [(i + 1, 3) for i in range(11)]
    with pytest.raises(ValueError, match="is for a folder"):
        physicsnemo_h5.RayH5Reader(folder / "groups.h5", coordinated_subsampling={"n_points": 1, "target_keys": []})
