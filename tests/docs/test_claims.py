"""Claims of the documents that name a number, a pair of options or an error are tried."""

import re
import runpy

import h5py
import numpy as np
import pyarrow as pa
import pytest

import ray_h5
import tests.bench
from ray_h5 import Shuffle, balance
from ray_h5.errors import OptionError
from ray_h5.torch_data import H5Dataset, OrderSampler
from tests.docs.pages import ROOT, text_of

ROWS = 60
KINDS = [
    {"weights": "weight"},
    {"weights": "weight", "replacement": False},
    {"weights": balance("label")},
    {"by_length": "label"},
]
"""The options of the columns of the table in docs/shuffling.md."""


@pytest.fixture
def dataset(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("x", data=np.zeros((ROWS, 4)), chunks=(10, 4))
        file["weight"], file["label"] = np.arange(ROWS) + 1.0, np.arange(ROWS) % 3
    return H5Dataset(tmp_path / "a.h5")


def test_the_table_of_shuffles_says_what_combines(dataset):
    cells = r" \| (yes|no)" * 4
    lines = re.findall(rf'^\| `"(\w+)"`{cells} \|$', text_of("docs/shuffling.md"), re.MULTILINE)
    assert [unit for unit, *_ in lines] == ["auto", "rows", "chunks", "files"]
    for unit, *said in lines:
        for says, options in zip(said, KINDS, strict=True):
            if says == "yes":
                assert len(list(OrderSampler(dataset, shuffle=Shuffle(unit, seed=0, **options)))) == ROWS
            else:
                with pytest.raises(OptionError):
                    len(list(OrderSampler(dataset, shuffle=Shuffle(unit, seed=0, **options))))


def test_attrs_name_the_attribute_of_each_column(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["x"] = np.arange(3)
        file.attrs["sampling_rate"] = 250.0
    (named,) = re.findall(r"with `attrs=(\{.*?\})`, the column `(\w+)`", text_of("docs/tables.md"))
    assert H5Dataset(tmp_path / "a.h5", attrs=eval(named[0]))[0][named[1]] == 250.0


def test_performance_names_every_bench():
    (said,) = re.findall(r"NAME is (.*?)\. ", text_of("docs/performance.md").replace("\n", " "))
    assert sorted(re.findall(r"`(\w+)`", said)) == sorted(tests.bench.BENCHES)


def test_every_public_name_with_options_is_on_the_page_of_options():
    listed = runpy.run_path(str(ROOT / "docs" / "make_options.py"))["NAMES"]
    names = {name.partition(".")[0] for line in listed.values() for name in line.split()}
    plain = {"read_h5", "RayH5Error", "Sample", "any_equal", "between", "row_mask", "where"}  # their page says it all
    assert set(ray_h5.__all__) - names == plain


def test_rows_of_varying_shape_stay_an_array_of_arrays_where_they_agree():
    from ray.data._internal.tensor_extensions.arrow import ArrowVariableShapedTensorArray
    from ray.data.block import BlockAccessor

    rows = np.empty(2, object)
    rows[:] = [np.ones((3, 2)), np.zeros((3, 2))]
    table = pa.table({"x": ArrowVariableShapedTensorArray.from_numpy(rows)})
    found = BlockAccessor.for_block(table).to_batch_format("numpy")["x"]
    assert (found.dtype, found.shape) == (object, (2,))
    assert "an array of arrays (dtype object), also where all its rows happen to agree" in text_of("docs/rows.md")
