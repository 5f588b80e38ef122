"""`RowReader` reads rows of every kind, in this process and in another one, as datasets do."""

import inspect
import pickle

import h5py
import numpy as np
import pytest

from ray_h5 import Files, Grid, Groups, H5Dataset, Patches, RowReader, Windows
from ray_h5.errors import OptionError

KINDS = [
    ({}, "x"),
    ({"rows": None, "windows": None}, "x"),
    ({"rows": Groups("demos/demo_*")}, "actions"),
    ({"rows": Groups("demos/demo_*"), "windows": Windows({"actions": [-1, 0, 1]})}, "actions"),
    ({"windows": Windows({"x": [-2, 0]}, pad="drop")}, "x"),
    ({"rows": Grid(2)}, "grid"),
    ({"rows": Files()}, "grid"),
    ({"rows": Patches({"grid": (2, 3, 2)}, stride=2)}, "grid"),
]


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    path, rng = tmp_path_factory.mktemp("rows") / "a.h5", np.random.default_rng(0)
    with h5py.File(path, "w") as file:
        file["x"] = rng.random((9, 4), "f4")
        file["grid"] = rng.random((5, 6, 4), "f4")
        for number in range(3):
            file[f"demos/demo_{number}/actions"] = rng.random((3 + number, 2))
    return str(path)


@pytest.mark.parametrize(("options", "column"), KINDS, ids=str)
def test_rows_are_those_of_a_dataset(path, options, column):
    with RowReader(path, **options) as reader:
        again = pickle.loads(pickle.dumps(reader))
        dataset = H5Dataset(path, [column], **options)
        rows = np.random.default_rng(1).permutation(reader.column(column).num_rows)
        assert len(rows) == len(dataset)
        for values in (reader.read([column], rows)[column], again.read([column], rows)[column]):
            for value, row in zip(values, rows.tolist(), strict=True):
                assert np.array_equal(value, dataset[row][column])
        assert repr(reader) == repr(again)
        assert repr(reader).startswith(f"RowReader({path!r}, ")


def test_the_signature_has_all_options():
    names = list(inspect.signature(RowReader).parameters)
    assert names[:6] == ["path", "group", "threads", "allow_external", "rows", "windows"]
    assert all(f"\n    {name} : " in RowReader.__doc__ for name in names)


def test_values_of_other_types_are_named(path):
    with pytest.raises(OptionError, match=r"write Groups\('demos/\*'\)"):
        RowReader(path, rows="demos/*")
    with pytest.raises(OptionError, match=r"windows=.*expected Windows"):
        RowReader(path, windows={"x": [0]})
