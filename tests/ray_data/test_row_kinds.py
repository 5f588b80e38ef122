"""Groups, grids and windows through Ray: schema, values, padding, and moments that count each value once."""

import h5py
import numpy as np
import pyarrow as pa
import pytest
import torch

import ray_h5
from ray_h5 import Files, Groups, H5Dataset, TorchCollate, Windows, between, row_mask, where
from ray_h5.columns.ragged.padding import Padding
from ray_h5.errors import SchemaMismatchError, UnknownColumnError
from tests.golden.layouts import encoded

pytestmark = pytest.mark.usefixtures("ray_local")

DEMOS = Groups("data/demo_*", attrs=("num_samples",), key="demo")
LENGTHS = [5, 1, 9, 3, 7, 5]


@pytest.fixture
def demos(tmp_path):
    paths = [tmp_path / f"{i}.h5" for i in range(2)]
    rng = np.random.default_rng(0)
    for path in paths:
        with h5py.File(path, "w") as file:
            for k, length in enumerate(LENGTHS):
                group = file.create_group(f"data/demo_{k}")
                group["actions"] = rng.normal(size=(length, 3))
                group["obs/eef"] = rng.normal(size=(length, 2)).astype("f4")
                group["image"] = rng.integers(0, 255, (4, 5), dtype="u1")
                group.attrs["num_samples"] = length
            file["mask/train"] = [b"demo_3", b"demo_0"]
    return [str(path) for path in paths]


def each_demo(paths):
    for path in paths:
        with h5py.File(path) as file:
            for k in range(len(LENGTHS)):
                yield {"actions": file[f"data/demo_{k}/actions"][()], "eef": file[f"data/demo_{k}/obs/eef"][()]}


def test_predicates_on_attributes_and_masks_of_names(demos):
    ds = ray_h5.read_h5(demos, columns=["actions", "num_samples"], rows=DEMOS, include_row_ids=True)
    long = ds.filter(expr=where(num_samples=between(5, None)))
    assert [row["row_id"] for row in long.take_all()] == [0, 2, 4, 5, 6, 8, 10, 11]
    masked = ds.filter(expr=where(**{"mask/train": row_mask()}))
    assert [row["row_id"] for row in masked.take_all()] == [0, 3, 6, 9]


@pytest.mark.parametrize("pad", [None, -1.0])
def test_batches_of_ragged_rows(demos, pad):
    ds = ray_h5.read_h5(demos, columns=["actions", "image"], rows=DEMOS)
    batches = list(ds.iter_torch_batches(batch_size=5, collate_fn=TorchCollate(padding=Padding.of(pad))))
    expected = [demo["actions"] for demo in each_demo(demos)]
    at = 0
    for batch in batches:
        assert batch["image"].shape[1:] == (4, 5)
        rows = batch["actions"]
        for i in range(len(rows)):
            length = len(expected[at])
            if pad is not None:
                assert batch["actions_length"][i] == length
                assert (rows[i][length:] == pad).all()
            torch.testing.assert_close(rows[i][:length], torch.from_numpy(expected[at]), rtol=0, atol=0)
            at += 1
    assert at == 12


def test_moments_count_each_step_once(demos):
    windows = Windows({"actions": range(-2, 6), "obs/eef": [0, 1]}, pad="edge")
    ds = ray_h5.read_h5(demos, rows=DEMOS, windows=windows, shuffle=True)
    scaler = ray_h5.Standardize(["actions", "obs/eef"], axis=(0, 1)).fit(ds)
    for column, name in (("actions", "actions"), ("obs/eef", "eef")):
        whole = np.concatenate([demo[name] for demo in each_demo(demos)]).astype("f8")
        np.testing.assert_allclose(scaler.stats_[column].mean.reshape(-1), whole.mean(axis=0), rtol=1e-6)
        np.testing.assert_allclose(scaler.stats_[column].moments.std().reshape(-1), whole.std(axis=0), rtol=1e-5)


def test_row_keys_of_windows_do_not_depend_on_offsets(demos):
    def keys(windows):
        ds = ray_h5.read_h5(
            demos, columns=["demo", "actions"], rows=DEMOS, windows=windows, include_row_keys=True, shuffle="rows"
        )
        return {row["row_key"] for row in ds.select_columns(["row_key"]).take_all()}

    every = keys(Windows({"actions": [0]}))
    assert len(every) == 2 * sum(LENGTHS)
    assert keys(Windows({"actions": range(4)}, pad="drop")) < every


def test_groups_that_lack_a_column(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        for i in range(4):
            file[f"g{i}/x"] = np.arange(3.0)
            if i % 2:
                file[f"g{i}/y"] = np.full((i, 2), i, "f4")
                file[f"g{i}/name"] = f"n{i}"
    rows = Groups("g*", missing="null")
    (tmp_path / "index").mkdir()
    for _ in range(2):
        ds = ray_h5.read_h5(str(tmp_path / "a.h5"), rows=rows, index_dir=tmp_path / "index")
        found = ds.take_all()
        assert [row["y"] is None for row in found] == [True, False, True, False]
        np.testing.assert_array_equal(found[3]["y"], np.full((3, 2), 3, "f4"))
        assert [row["name"] for row in found] == [None, "n1", None, "n3"]
        assert ds.filter(expr=where(name="n3")).count() == 1
        assert ds.filter(expr=where(name=None)).count() == 2


@pytest.mark.parametrize("lacks", [0, 2])
def test_groups_that_lack_columns_of_each_kind(tmp_path, lacks):
    """A row is None where its group lacks the column, also if the first group does."""
    with h5py.File(tmp_path / "a.h5", "w") as file:
        for i in range(3):
            group = file.create_group(f"g{i}")
            group["x"] = np.arange(3)
            if i == lacks:
                continue
            codes = np.array([0, -1, 1], "i1")
            encoded(group, "kind", "categorical", codes=codes, categories=np.array([b"a", b"b"]))
            encoded(group, "n", "nullable-integer", values=np.arange(i + 2), mask=np.arange(i + 2) == 1)
            times = np.arange(i, i + 2).astype("M8[s]")
            group.create_dataset("time", data=times.astype(h5py.opaque_dtype(times.dtype)))
            group["compound"] = np.array([(i, 0.5)] * (i + 1), [("a", "i4"), ("b", "f4")])
            group.create_dataset("list", data=["a", "b"][: i + 1], dtype=h5py.string_dtype())
    rows = Groups("g*", missing="null")
    plain = H5Dataset(tmp_path / "a.h5", rows=rows)
    assert set(plain.columns) == {"x", "kind", "n", "time", "compound", "list"}
    found = ray_h5.read_h5(str(tmp_path / "a.h5"), rows=rows).take_all()
    for i, row in enumerate(found):
        expected = plain[i]
        assert [row[name] is None for name in plain.columns] == [name != "x" and i == lacks for name in plain.columns]
        if i == lacks:
            assert all(expected[name] is None for name in set(plain.columns) - {"x"})
            continue
        assert row["kind"] == expected["kind"] == ["a", None, "b"]
        assert row["n"] == expected["n"] == [0, None, *range(2, i + 2)]
        assert [each.second for each in row["time"]] == [i, i + 1]
        assert [dict(each) for each in row["compound"]] == [{"a": i, "b": 0.5}] * (i + 1)
        assert row["list"] == expected["list"] == ["a", "b"][: i + 1]
    for name in ("kind", "n"):
        alone = H5Dataset(tmp_path / "a.h5", [name], rows=rows)
        assert [alone[i][name] for i in range(3)] == [plain[i][name] for i in range(3)]


@pytest.mark.parametrize("columns", [["x"], ["x", "z"], ["x", "y"], ["x", "name"]])
def test_batches_of_rows_that_vary_in_shape(tmp_path, columns):
    """Lists of tensors, whatever else a batch has: Ray would concatenate those of a batch of lists alone."""
    lengths = [3, 5, 4, 4]
    for i, n in enumerate(lengths):
        with h5py.File(tmp_path / f"{i}.h5", "w") as file:
            file["x"], file["z"], file["y"], file["name"] = np.arange(n) + 100 * i, np.ones((n, i % 2)), i, f"{i}"
    ds = ray_h5.read_h5(tmp_path, columns=columns, rows=Files())
    row = 0
    for batch in ds.iter_torch_batches(batch_size=2, collate_fn=TorchCollate()):
        expected = [torch.arange(n) + 100 * (row + k) for k, n in enumerate(lengths[row : row + 2])]
        assert isinstance(batch["x"], list)
        assert [each.tolist() for each in batch["x"]] == [each.tolist() for each in expected]
        if "z" in columns:
            assert [each.shape for each in batch["z"]] == [(n, k % 2) for k, n in enumerate(lengths)][row : row + 2]
            assert batch["z_length"].tolist() == [[n, k % 2] for k, n in enumerate(lengths)][row : row + 2]
        alone = columns[-1] in {"x", "z"}
        assert set(batch) == {*columns, *(f"{name}_length" for name in columns if alone)}
        assert not alone or batch["x_length"].tolist() == lengths[row : row + 2]
        row += 2
    assert row == 4


def test_padding_of_a_column_that_is_not_there():
    with pytest.raises(UnknownColumnError, match=r"pad: no column 'action'. Did you mean 'actions'"):
        TorchCollate(padding=Padding({"action": 0.0}))(pa.table({"actions": [1.0]}))


@pytest.fixture
def pictures(tmp_path):
    """Pictures that differ in height and width; the first four agree in width, and two of them in height."""
    shapes = [(2, 5), (3, 5), (3, 5), (4, 5), (1, 6), (2, 7)]
    with h5py.File(tmp_path / "a.h5", "w") as file:
        for i, shape in enumerate(shapes):
            file[f"s{i}/image"] = np.ones(shape)
            file[f"s{i}/steps"] = np.ones((shape[0], 3))
    return str(tmp_path / "a.h5"), shapes


@pytest.mark.parametrize("size", [1, 2, 3, 6])
@pytest.mark.parametrize(
    "change", [lambda ds: ds, lambda ds: ds.map_batches(lambda table: table, batch_format="pyarrow")], ids=["", "map"]
)
def test_lengths_have_a_shape_that_does_not_depend_on_the_batch(pictures, size, change):
    path, shapes = pictures
    ds = change(ray_h5.read_h5(path, columns=["image", "steps"], rows=Groups("s*")))
    batches = list(ds.iter_torch_batches(batch_size=size, collate_fn=TorchCollate(padding=Padding.of(True))))
    assert torch.cat([each["image_length"] for each in batches]).tolist() == [list(shape) for shape in shapes]
    assert torch.cat([each["steps_length"] for each in batches]).tolist() == [shape[0] for shape in shapes]


@pytest.mark.parametrize("first", [3, 5])
def test_lengths_of_rows_that_a_function_made_equally_long(pictures, first):
    """Ray makes a tensor of one shape of the rows of a block that agree."""

    def cut(batch):
        heights = [len(each) for each in batch["image"]]
        made = np.empty(len(heights), object)
        made[:] = [np.arange(first if heights == [2, 3, 3] else height) for height in heights]
        return {"x": made}

    ds = ray_h5.read_h5(pictures[0], columns=["image"], rows=Groups("s*"), block_rows=3).map_batches(cut, batch_size=3)
    lengths = [first] * 3 + [4, 1, 2]
    batches = list(ds.iter_torch_batches(batch_size=3, collate_fn=TorchCollate(padding=Padding({"x": 0}))))
    assert [each["x_length"].tolist() for each in batches] == [lengths[:3], lengths[3:]]
    for batch, expected in zip(batches, (lengths[:3], lengths[3:]), strict=True):
        for row, length in zip(batch["x"], expected, strict=True):
            assert row.tolist() == [*range(length), *[0] * (max(expected) - length)]
    with pytest.raises(SchemaMismatchError, match=r"'x' vary in length in one batch.* pad={'x': 0}"):
        list(ds.iter_torch_batches(batch_size=3, collate_fn=TorchCollate(padding=Padding.of(True))))
