"""What a user says about files is the same wherever they are read."""

import os

import h5py
import numpy as np
import pytest
from pyarrow.fs import LocalFileSystem, SubTreeFileSystem

import ray_h5
import ray_h5.torch_data
from ray_h5.errors import OptionError, RayH5Error, UnknownColumnError
from tests.kit.files import save

pytestmark = pytest.mark.usefixtures("ray_local")

ENTRANCES = {
    "read_h5": ray_h5.read_h5,
    "H5Datasource": ray_h5.H5Datasource,
    "build_index": ray_h5.build_index,
    "kfold": ray_h5.kfold,
    "torch_data.kfold": ray_h5.torch_data.kfold,
    "H5Dataset": ray_h5.torch_data.H5Dataset,
}


@pytest.fixture
def given(tmp_path):
    """A folder, and the options without any of which its files cannot be read."""
    for folder in ("in", "other"):
        (tmp_path / folder).mkdir()
    for i, dtype in enumerate(("i4", "i8")):
        save(tmp_path / f"other/{i}.h5", {"guid": np.arange(4, dtype=dtype) + 4 * i})
        save(tmp_path / f"in/{i}.nc", {"deep/guid": h5py.ExternalLink(str(tmp_path / f"other/{i}.h5"), "guid")})
    return {
        "paths": ["in", "gone.h5"],
        "group": "deep",
        "dtypes": {"guid": "i8"},
        "casting": "unsafe",
        "allow_external": tmp_path / "other",
        "filesystem": SubTreeFileSystem(str(tmp_path), LocalFileSystem()),
        "file_extensions": ["nc"],
        "ignore_missing_paths": True,
    }


def enter(entrance, options):
    if "kfold" in entrance:
        options = {"hdf5_group" if name == "group" else name: value for name, value in options.items()}
        options |= {"k": 2, "group": "guid", "stratify": None}
    return ENTRANCES[entrance](**options)


@pytest.mark.parametrize("entrance", ENTRANCES)
def test_each_way_to_read_takes_the_same_options(given, entrance, tmp_path):
    enter(entrance, {**given, "index_dir": tmp_path / "index"})
    assert len(os.listdir(tmp_path / "index")) == 1
    for name in given.keys() - {"paths", "casting"}:
        with pytest.raises(RayH5Error):
            enter(entrance, {key: value for key, value in given.items() if key != name})
    for name, wrong in (
        ("group", None),
        ("dtypes", ["i8"]),
        ("casting", "safe"),
        ("index_dir", 3),
        ("filesystem", "s3"),
    ):
        with pytest.raises(OptionError, match=name):
            enter(entrance, {**given, name: wrong})


def test_folds_are_of_what_is_delivered(given):
    folds = ray_h5.torch_data.kfold(**{**given, "group": "guid"}, hdf5_group="deep", k=2, stratify=None)
    tested = [ray_h5.torch_data.H5Dataset(**given, predicate=test) for _, test in folds]
    assert sorted(int(sample.guid) for dataset in tested for sample in dataset) == list(range(8))


@pytest.mark.parametrize("entrance", ENTRANCES)
def test_dtypes_of_a_column_that_is_not_there_are_an_error(given, entrance):
    with pytest.raises(UnknownColumnError, match=r"no 'gid' below group 'deep'\. Did you mean 'guid'"):
        enter(entrance, {**given, "dtypes": {"guid": "i8", "gid": "i8"}})
