import warnings

import h5py
import numpy as np
import pyarrow as pa
import pytest
import torch
from ray.data.block import BlockAccessor
from ray.data.extensions import ArrowPythonObjectArray

import ray_h5
from ray_h5 import H5Dataset, TorchCollate, train_batches
from ray_h5.buffers import objects
from ray_h5.columns.ragged.padding import Padding
from ray_h5.device import to_device
from ray_h5.errors import CastError, OptionError, SchemaMismatchError, UnknownColumnError, UnsupportedColumnError
from ray_h5.plan.blocks import read_block, start_of
from ray_h5.ray_data.arrow.blocks import to_table
from ray_h5.ray_data.training.device import as_device
from tests.golden.layouts import encoded

BATCH = {
    "f4": np.arange(6, dtype="f4").reshape(2, 3),
    "f8": np.array([1.0, 2.0]),
    "f2": np.array([1, 2], "f2"),
    "u1": np.array([1, 255], "u1"),
    "i8": np.array([-1, 2**40]),
    "b": np.array([True, False]),
    "z": np.array([1j, 2], "c8"),
    "name": np.array(["a", "ä"], dtype=object),
    "text": np.array(["a", "ä"]),
    "time": np.array([1, 2], "M8[ns]"),
}


@pytest.mark.parametrize(
    ("pad", "says"),
    [
        ({"name": 0}, "'name' holds text or other values that are no numbers"),
        ({"time": 0}, "'time' holds text or other values"),
        ({"rows": 1.5}, "'rows' has dtype int64, which cannot hold 1.5"),
        ({"equal": -1}, "'equal' has dtype uint8, which cannot hold -1"),
        ({"u1": -1}, None),  # one number a row, which is never padded
        (-1, None),  # for the rows that vary: others are not asked whether they hold it
    ],
)
@pytest.mark.parametrize("as_table", [False, True])
def test_padding_that_cannot_be_is_an_error_as_in_plain_pytorch(tmp_path, pad, says, as_table):
    batch = {**BATCH, "equal": np.zeros((2, 3), "u1"), "rows": objects([np.arange(2), np.arange(3)])}
    with h5py.File(tmp_path / "a.h5", "w") as file:
        for name in batch.keys() - {"rows", "name", "text", "time"}:
            file[name] = batch[name]
        file["name"] = file["text"] = ["a", "b"]
        file["time"] = np.zeros(2, h5py.opaque_dtype("M8[ns]"))
        file.create_dataset("rows", data=batch["rows"], dtype=h5py.vlen_dtype("i8"))
    if as_table:
        batch = BlockAccessor.batch_to_block({**batch, "z": batch["u1"], "rows": list(batch["rows"])})
    ways = [lambda: TorchCollate(padding=pad)(batch), lambda: H5Dataset(tmp_path / "a.h5", pad=pad)[:]]
    for way in ways if as_table or pad != {"rows": 1.5} else ways[1:]:  # an array of arrays says no dtype
        if says is None:
            assert way()["u1"].tolist() == [1, 255]
        else:
            with pytest.raises(UnsupportedColumnError, match=f"pad: column {says}"):
                way()


@pytest.mark.parametrize("list_of", [pa.list_, pa.large_list])
def test_lists_of_numbers_are_padded(list_of):
    """HDF5's own arrays of varying length are lists in Arrow; complex numbers are lists of two parts."""
    rows = [[], [1, 2], None, [3]]
    columns = {
        "x": pa.array(rows, list_of(pa.int16())),
        "z": pa.array([row and [(n, -n) for n in row] for row in rows], list_of(pa.list_(pa.float32(), 2))),
        "text": pa.array([["a"], [], ["b", "c"], []], list_of(pa.string())),
    }
    table = pa.concat_tables([pa.table(columns).slice(1), pa.table(columns).slice(0, 2)])
    found = TorchCollate(padding=Padding(True))(table)
    assert found["x"].dtype == torch.int16
    assert found["x"].tolist() == [[1, 2], [0, 0], [3, 0], [0, 0], [1, 2]]
    assert found["x_length"].tolist() == found["z_length"].tolist() == [2, 0, 1, 0, 2]
    assert found["z"].tolist() == [[[n, -n] for n in row] for row in found["x"].tolist()]
    assert isinstance(found["text"], np.ndarray)
    assert TorchCollate(padding=Padding({"x": -1}))(table)["x"].tolist()[1:3] == [[-1, -1], [3, -1]]
    assert isinstance(TorchCollate()(table)["x"], np.ndarray)
    with pytest.raises(UnsupportedColumnError, match="column 'x' has lists with missing values"):
        TorchCollate(padding=Padding(True))(pa.table({"x": pa.array([[1, None]], list_of(pa.int64()))}))


@pytest.mark.parametrize("name", ["name", "text", "time"])
def test_a_dtype_for_what_is_no_number_is_an_error(name):
    with pytest.raises(UnsupportedColumnError, match=f"dtypes: column '{name}' .* expected numbers"):
        TorchCollate({name: torch.float32})(BATCH)


def test_tensors_are_views():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for writeable in (True, False):
            array = np.arange(12, dtype="f4").reshape(3, 4)
            array.setflags(write=writeable)
            assert TorchCollate()({"x": array})["x"].data_ptr() == array.ctypes.data
            # Nothing is copied either where the dtype asked for is the one it has.
            assert TorchCollate(torch.float32)({"x": array})["x"].data_ptr() == array.ctypes.data
            assert TorchCollate()({"x": array[1:]})["x"].data_ptr() == array[1:].ctypes.data


def test_dtypes_by_name():
    found = TorchCollate({"f4": torch.bfloat16, "u1": torch.float32, "b": torch.int64})(BATCH)
    assert [found[name].dtype for name in ("f4", "u1", "b", "f8")] == [
        torch.bfloat16,
        torch.float32,
        torch.int64,
        torch.float64,
    ]
    assert found["u1"].tolist() == [1, 255]
    with pytest.raises(UnknownColumnError, match=r"dtypes: no column 'texts'.*Did you mean 'text'"):
        TorchCollate({"texts": torch.float32})(BATCH)


def test_devices():
    batches = [TorchCollate()(BATCH) for _ in range(3)]
    assert list(to_device(iter(batches), torch.device("cpu"))) == batches
    moved = list(to_device(iter(batches), torch.device("meta")))
    assert len(moved) == 3
    assert moved[0]["f4"].device.type == "meta"
    assert moved[0]["name"] is BATCH["name"]
    assert as_device("cpu") == torch.device("cpu")
    if not torch.cuda.is_available():
        with pytest.raises(OptionError, match=r"device=.?cuda:0.?: torch finds no CUDA device"):
            as_device(torch.device("cuda:0"))


@pytest.mark.parametrize("device", ["gpu", None, 99, "mps", "meta", "hpu", "cuda:99", 2.5])
def test_a_device_that_is_not_there_is_an_error(device):
    with pytest.raises(OptionError, match=r"device=.*: .*\. Expected 'auto'"):
        as_device(device)


@pytest.mark.parametrize("dtype", ["float16", np.float16, np.dtype("f2"), ">f2", "torch.float16", torch.float16])
def test_dtypes_by_the_names_of_numpy(dtype):
    assert TorchCollate(dtype)(BATCH)["f4"].dtype == torch.float16
    found = TorchCollate({"f4": dtype})(BATCH)
    assert (found["f4"].dtype, found["f8"].dtype) == (torch.float16, torch.float64)
    assert TorchCollate("bfloat16")(BATCH)["f8"].dtype == torch.bfloat16


@pytest.mark.parametrize("dtype", ["floaty", "U3", "M8[s]", 3, ["f4"], object, "f4,f4"])
def test_what_is_no_dtype_is_an_error(dtype):
    with pytest.raises(OptionError, match=r"dtypes: .* is not a dtype of torch; expected one such as"):
        TorchCollate(dtype)
    with pytest.raises(OptionError, match=r"dtypes: .* for column 'f4' is not a dtype of torch"):
        TorchCollate({"f4": dtype})


def test_half_of_a_complex_column_is_not_dropped():
    batch = {"c": np.array([1 + 2j], "c8")}
    with pytest.raises(UnsupportedColumnError, match=r"column 'c' has dtype complex64, of which torch\.float32"):
        TorchCollate({"c": "float32"})(batch)
    assert TorchCollate({"c": "complex128"})(batch)["c"].item() == 1 + 2j


@pytest.mark.skipif(torch.accelerator.is_available(), reason="memory can be pinned here")
def test_memory_is_pinned_for_an_accelerator_only():
    with pytest.raises(OptionError, match="pin_memory=True: torch finds no accelerator"):
        TorchCollate(pin_memory=True)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        *(({"batch_size": size}, "batch_size=.*: expected an integer of 1") for size in (0, -1, "16", 2.5, None, True)),
        *(({"prefetch_batches": n}, "prefetch_batches=.*: expected an integer of 0 or more") for n in (-1, "a")),
        ({"epoch": -1}, "epoch=-1: expected an integer of 0 or more"),
        *(({"drop_last": value}, "drop_last=.*: expected True or False") for value in ("no", 1, None)),
        *(({"name": name}, "expected the key of a dataset of the trainer") for name in (None, "", 3)),
        *(({"device": device}, "expected to be called in the loop of a trainer") for device in ("auto", "cpu")),
    ],
)
def test_options_of_train_batches(options, said):
    with pytest.raises(OptionError, match=said):
        train_batches(**{"name": "train", "epoch": 0, "batch_size": 4, **options})


@pytest.mark.parametrize(
    ("values", "dtype", "value"),
    [
        (np.array([1, 300]), "int8", "300"),
        (np.array([1.0, np.nan]), "int64", "nan"),
        (np.array([1.0, 1e39]), "float32", "1e\\+39"),
        (np.array([1.0, 1e39]), "bfloat16", "1e\\+39"),
        (np.array([1, 257]), "bfloat16", "257"),
        (np.array([1.0, 1e5], "f4"), torch.float16, "100000.0"),
    ],
)
def test_a_cast_that_loses_a_value_is_an_error(values, dtype, value):
    with pytest.raises(CastError, match=f"column 'x': {value} cannot be cast to torch"):
        TorchCollate({"x": dtype})({"x": values})
    assert len(TorchCollate({"x": dtype}, casting="unsafe")({"x": values})["x"]) == 2
    with pytest.raises(OptionError, match="casting=None: expected 'checked'"):
        TorchCollate({"x": dtype}, casting=None)


LARGE = 2**53 + 1  # no float64


@pytest.fixture
def masked(tmp_path):
    """A file of 4 rows, in blocks of 2: values are missing in the first block alone."""
    path = str(tmp_path / "masked.h5")
    with h5py.File(path, "w") as file:
        for name, values, kind in (("id", [LARGE, 7, LARGE, 3], "integer"), ("is_good", [True, False] * 2, "boolean")):
            encoded(file, name, f"nullable-{kind}", values=np.array(values), mask=np.arange(4) == 1)
        encoded(file, "batch", "categorical", codes=np.array([0, -1, 1, 1], "i1"), categories=np.array([LARGE, 30]))
    return path


def tables(path, columns=("batch", "id", "is_good"), **options):
    plan = ray_h5.H5Datasource(path, columns=list(columns), block_rows=2, **options).plan()
    names = [spec.name for spec in plan.columns]
    return [to_table(plan, read_block(plan, start_of(plan), block, None), names) for block in (0, 1)]


def test_integers_that_may_be_missing_are_lists_in_each_batch(masked):
    found = [TorchCollate()(each) for each in tables(masked)]
    assert found[0] == {"batch": [LARGE, None], "id": [LARGE, None], "is_good": [True, None]}
    assert found[1] == {"batch": [30, 30], "id": [LARGE, 3], "is_good": [True, False]}
    plain = H5Dataset(masked, ["batch", "id", "is_good"])
    assert found == [{name: plain[i : i + 2][name] for name in found[0]} for i in (0, 2)]


def test_integers_that_may_be_missing_as_tensors(masked):
    first, second = tables(masked)
    found = [TorchCollate({"is_good": "float32"})(each)["is_good"] for each in (first, second)]
    assert [each.dtype for each in found] == [torch.float32] * 2
    assert found[0][0] == 1
    assert found[0][1].isnan()
    assert found[1].tolist() == [1, 0]
    assert TorchCollate({"id": torch.int64})(second)["id"].tolist() == [LARGE, 3]
    with pytest.raises(CastError, match=f"column 'id': {LARGE} cannot be cast to torch.float64"):
        TorchCollate({"id": "float64"})(second)
    for casting in ("checked", "unsafe"):
        with pytest.raises(CastError, match=r"column 'id' has no value in a row, and torch\.int64 cannot say so"):
            TorchCollate({"id": torch.int64}, casting=casting)(first)
    (cast, _) = tables(masked, columns=["is_good"], dtypes={"is_good": "float32"})
    assert TorchCollate()(cast)["is_good"].dtype == torch.float32


GROUPS = [[LARGE, None], [7, 8, 9], [None, 3]]


@pytest.fixture
def masked_groups(tmp_path):
    path = str(tmp_path / "groups.h5")
    with h5py.File(path, "w") as file:
        for i, values in enumerate(GROUPS):
            numbers, mask = np.array([each or 0 for each in values]), np.array([each is None for each in values])
            encoded(file, f"{i}/n", "nullable-integer", values=numbers, mask=mask)
            encoded(file, f"{i}/is_good", "nullable-boolean", values=numbers % 2 == 1, mask=mask)
            codes, names = np.array([0, -1, 1], "i1"), np.array([LARGE, 30])
            encoded(file, f"{i}/kind", "categorical", codes=codes, categories=names)
            file[f"{i}/events"] = np.arange(i)
    return path


@pytest.mark.parametrize("names", [["n", "is_good", "kind", "events"], ["n"]])
def test_integers_that_may_be_missing_in_groups(masked_groups, names):
    """Rows are lists of another length each; no number becomes a float, whether or not a batch lacks a value."""
    options = {"rows": ray_h5.Groups("*")}
    found = [TorchCollate()(each) for each in tables(masked_groups, names, **options)]
    plain = H5Dataset(masked_groups, names, **options)
    for first, batch in zip((0, 2), found, strict=True):
        expected = plain[list(range(first, min(first + 2, 3)))]
        for name in set(names) - {"events"}:
            assert batch[name] == expected[name], name
            assert repr(batch[name]) == repr(expected[name]), name
    assert found[0]["n"] == GROUPS[:2]
    with pytest.raises(UnsupportedColumnError, match="column 'n' has lists of int64 of varying length"):
        TorchCollate({"n": "float64"})(tables(masked_groups, ["n"], **options)[0])
    with pytest.raises(UnsupportedColumnError, match="column 'n' has lists with missing values"):
        TorchCollate(padding=Padding({"n": 0}))(tables(masked_groups, ["n"], **options)[0])
    # One value for all columns is not for those that may lack some, as it is not for text.
    padded = TorchCollate(padding=Padding(True))(tables(masked_groups, ["n", "events"], **options)[0])
    beside = next(iter(ray_h5.loader(masked_groups, 2, shuffle=None, pad=True, columns=["n", "events"], **options)))
    assert padded["n"] == beside["n"] == GROUPS[:2]
    assert padded["events_length"].tolist() == beside["events_length"].tolist() == [0, 1]


def test_integers_that_may_be_missing_in_windows(masked):
    options = {"windows": ray_h5.Windows({"id": [0, 1], "is_good": [0, 1]}, pad="drop")}
    found = [TorchCollate()(each) for each in tables(masked, ["id", "is_good"], **options)]
    assert found[0] == {"id": [[LARGE, None], [None, LARGE]], "is_good": [[True, None], [None, True]]}
    assert found[1] == {"id": [[LARGE, 3]], "is_good": [[True, False]]}
    cast = TorchCollate({"is_good": "float32"})(tables(masked, ["id", "is_good"], **options)[0])["is_good"]
    assert cast.dtype == torch.float32
    assert np.array_equal(cast.numpy(), [[1, np.nan], [np.nan, 1]], equal_nan=True)


def test_lists_of_other_integers_that_lack_one():
    """A table that users made: no float with NaN comes of it unasked."""
    for type_ in (pa.list_(pa.int64()), pa.large_list(pa.int64()), pa.list_(pa.int64(), 2)):
        batch = pa.table({"x": pa.array([[LARGE, None], [1, 2]], type_)})
        with pytest.raises(SchemaMismatchError, match="column 'x' lacks 1 values in this batch"):
            TorchCollate()(batch)
        assert [each.tolist() for each in TorchCollate()(batch.slice(1))["x"]] == [[1, 2]]


def test_other_integers_are_never_missing_as_a_table_says():
    batch = pa.table({"label": pa.array([LARGE, None]), "x": pa.array([1.0, None])})
    with pytest.raises(SchemaMismatchError, match=r"column 'label' lacks 1 values .*dtypes=.*float64"):
        TorchCollate()(batch)
    assert TorchCollate()(batch.slice(0, 1))["label"].tolist() == [LARGE]
    assert np.array_equal(TorchCollate()(batch.select(["x"]))["x"].numpy(), [1, np.nan], equal_nan=True)


@pytest.mark.parametrize("shapes", [[(2, 3), None], [(2, 3), (2, 3), None], [None, (1, 3), (2, 3)]])
@pytest.mark.parametrize("rows", [slice(None), slice(2)])
def test_objects_that_are_tensors(shapes, rows):
    """What Ray makes of None amid the tensors that a function returns; it makes no array of those that are alike."""
    values = np.empty(len(shapes), object)
    for i, shape in enumerate(shapes):
        values[i] = None if shape is None else np.full(shape, i, "f4")
    table = BlockAccessor.batch_to_block({"x": values, "k": np.arange(len(shapes))})[rows]
    found, shown = TorchCollate()(table)["x"], list(values)[rows]
    assert isinstance(found, list)
    assert [None if each is None else each.tolist() for each in found] == [
        None if each is None else each.tolist() for each in shown
    ]
    padded = TorchCollate(padding=True)(table)
    assert padded["x_length"].tolist() == [0 if each is None else len(each) for each in shown]
    others = pa.table({"x": ArrowPythonObjectArray.from_objects([{1}, None]), "k": [0, 1]})
    assert TorchCollate()(others)["x"].tolist() == [{1}, None]


def test_a_group_without_a_column_is_none(tmp_path):
    path = str(tmp_path / "groups.h5")
    with h5py.File(path, "w") as file:
        file["data/demo_0/x"], file["data/demo_1/y"], file["data/demo_2/x"] = np.ones((2, 3)), 1.0, np.ones((1, 3))
    datasource = ray_h5.H5Datasource(
        path, rows=ray_h5.Groups("data/demo_*", missing="null"), columns=["x"], block_rows=3
    )
    plan = datasource.plan()
    table = to_table(plan, read_block(plan, start_of(plan), 0, None), ["x"])
    found = TorchCollate()(table)["x"]
    assert [None if each is None else each.shape for each in found] == [(2, 3), None, (1, 3)]
