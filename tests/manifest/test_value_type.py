"""What a value is, apart from where it lies: in files, in groups, and of what is made of others."""

from dataclasses import fields

import h5py
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ray_h5 import Groups, RowReader
from ray_h5.manifest.layout import ColumnLayout, ValueArray
from ray_h5.manifest.value_type import ValueType

OBJECTS = np.dtype(object)
SHAPES = st.lists(st.integers(0, 4), max_size=3).map(tuple)
NUMBERS = st.sampled_from(["<f4", ">f8", "u1", ">i2", "?", "c8"]).map(np.dtype)


@given(NUMBERS, SHAPES)
def test_numbers_are_arrays_of_their_type(dtype, shape):
    type_ = ValueType("number", dtype.newbyteorder("="), shape)
    value = np.zeros(type_.row_shape, type_.dtype)
    assert (type_.value_bytes, type_.shape, type_.held) == (value.nbytes, value.shape, value.dtype)
    assert type_.varying_shape is None
    assert not type_.may_be_missing


@given(NUMBERS, SHAPES, SHAPES)
def test_steps_that_are_lists_vary_between_their_own_axes(dtype, steps, own):
    lists = ValueType("list", OBJECTS, (3, *steps), np.dtype((dtype, own)))
    assert lists.varying_shape == (3, *steps, None, *own)
    assert ValueType("ragged", OBJECTS, element=dtype, ragged_shape=(None, *own)).varying_shape == (None, *own)


@given(NUMBERS, st.lists(st.integers(1, 4), min_size=1, max_size=3).map(tuple))
def test_what_is_made_lies_nowhere(dtype, shape):
    here = dtype.newbyteorder("=")
    type_, stored = ValueType("number", here, shape[1:]), None if dtype == here else dtype
    layout = ColumnLayout("x", type_, shape[0], file_dtype=stored, offset=8, fill=np.ones((), dtype), path="a.h5")
    assert (layout.shape, layout.dtype, layout.stored_dtype) == (shape, here, dtype)
    assert layout.row_bytes == np.zeros(shape[1:], dtype).nbytes
    made = layout.made(name="y")
    assert type(made) is ValueArray
    assert {one.name for one in fields(made)} & {"storage", "offset", "fill", "file_dtype"} == set()
    assert (made.name, made.type, made.num_rows, made.path) == ("y", type_, shape[0], "a.h5")
    assert layout.with_type(ValueType("number", np.dtype("i8"), shape[1:])).stored_dtype == "i8"
    assert layout.with_shape((1, *shape)).stored_dtype == dtype


@pytest.fixture
def path(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        for name in "ab":
            group = file.create_group(name)
            group["x"] = np.arange(12, dtype=">f4").reshape(6, 2)
            group.attrs["n"] = 3
    return str(tmp_path / "a.h5")


def test_datasets_alone_have_a_layout(path):
    with RowReader(path, group="a") as reader:
        assert type(reader.columns["x"]) is ColumnLayout
    with RowReader(path, rows=Groups("*", attrs=["n"])) as reader:
        assert {name: type(array) for name, array in reader.columns.items() if name in {"x", "n"}} == {
            "x": ValueArray,
            "n": ValueArray,
        }
