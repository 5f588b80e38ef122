"""Rows by length in Ray: the order of plain PyTorch."""

import h5py
import numpy as np
import pytest

import ray_h5
from ray_h5 import Groups, Shuffle, set_epoch
from ray_h5.errors import OptionError
from ray_h5.order.remainder import Remainder, position_of
from ray_h5.ray_data.ray_internals import datasources
from ray_h5.torch_data import H5Dataset, OrderSampler
from tests.ray_data.kit import ids_of

pytestmark = pytest.mark.usefixtures("ray_local")

N = 600
LENGTHS = np.random.default_rng(0).integers(5, 200, N)
DEMOS = Groups("data/demo_*", attrs=["num_samples"])
SHUFFLE = Shuffle(seed=7, by_length="num_samples")


def write_demos(folder):
    path = str(folder / "demos.h5")
    with h5py.File(path, "w") as file:
        for i, length in enumerate(LENGTHS.tolist()):
            file[f"data/demo_{i}/actions"] = np.full((length, 1), i, "f4")
            file[f"data/demo_{i}"].attrs["num_samples"] = length
    return path


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return write_demos(tmp_path_factory.mktemp("lengths"))


def read(path, shuffle=SHUFFLE, **options):
    options = {"columns": ["actions"], "include_row_ids": True, **options}
    return ray_h5.read_h5(path, rows=DEMOS, shuffle=shuffle, **options)


def in_torch(path, epoch):
    dataset = H5Dataset(path, ["actions"], rows=DEMOS)
    sampler = OrderSampler(dataset, shuffle=SHUFFLE)
    sampler.set_epoch(epoch)
    return dataset.row_ids(list(sampler)).tolist()


def test_a_run_resumes_inside_an_epoch(path):
    ds = read(path, block_rows=16)
    (source,) = datasources(ds)
    position = position_of(source.plan(), Remainder(2, 3), 16)  # three ranks have done a block each
    set_epoch(ds, 2, position=position)
    assert ids_of(ds) == in_torch(path, 2)[48:]


@pytest.mark.parametrize(
    ("by_length", "said"), [("actions_", "actions_"), ("path", "path"), (np.ones(3), "expected 600, one for each row")]
)
def test_lengths_that_cannot_be_used_are_errors_of_the_driver(path, by_length, said):
    with pytest.raises((OptionError, KeyError), match=said):
        read(path, Shuffle(by_length=by_length))
