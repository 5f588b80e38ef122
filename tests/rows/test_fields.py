"""Fields of compound values as columns: what they hold, where they can be named, and what is refused."""

import h5py
import numpy as np
import pytest

from ray_h5 import Groups, H5Dataset, Shuffle, Windows, balance, between, fields, part, ragged, where
from ray_h5.errors import OptionError, UnknownColumnError, UnsupportedColumnError
from tests.hdf5.h5kit import by_h5py
from tests.kit.files import save

JET = np.dtype(
    [("pt", "<f4"), ("eta", "<f4"), ("id", "<i4"), ("name", "S4"), ("p", [("x", "<f8"), ("v", "<f4", (3,))])]
)


@pytest.fixture
def path(tmp_path):
    rng = np.random.default_rng(0)
    jets = np.zeros((50, 4), JET)
    for name in ("pt", "eta", "id"):
        jets[name] = rng.integers(0, 9, jets.shape)
    jets["name"] = b"jet"
    jets["p"]["x"], jets["p"]["v"] = rng.random((50, 4)), rng.random((50, 4, 3))
    event = np.zeros(
        50, [("weight", "<f4"), ("label", "<i8"), ("flag", "?"), ("kind", h5py.enum_dtype({"A": 1, "B": 2}))]
    )
    event["weight"], event["label"] = np.arange(50) / 2, np.arange(50) % 5
    event["flag"], event["kind"] = np.arange(50) % 2, 1
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("jets", data=jets, chunks=(8, 4), compression="gzip")
        file["event"] = event
        file["flat"] = jets[:, 0]
        file["offsets"] = np.arange(0, 51, 10)
    return tmp_path / "a.h5"


def test_a_field_of_each_type(path):
    jets, event = by_h5py(path, "jets"), by_h5py(path, "event")
    names = ["jets/pt", "jets/p/x", "jets/p/v", "event/label", "event/flag", "event/kind", "flat/name"]
    dataset = H5Dataset(path, names)
    found = dataset[list(range(50))]
    for name, expected in zip(
        names,
        [jets["pt"], jets["p"]["x"], jets["p"]["v"], event["label"], event["flag"], event["kind"], jets["name"][:, 0]],
        strict=True,
    ):
        one = [each.decode() for each in expected] if expected.dtype.kind == "S" else expected.tolist()
        assert (found[name].tolist() if hasattr(found[name], "tolist") else found[name]) == one, name


def test_several_fields_are_the_last_axis(path):
    jets = by_h5py(path, "jets")
    dataset = H5Dataset(path, [fields("jets", ["eta", "pt"]), "event/weight"])
    found = dataset[[3, 40, 3]]
    assert found["jets"].shape == (3, 4, 2)
    assert found["jets"].numpy().dtype == "f4"
    assert np.array_equal(found["jets"], np.stack([jets[name] for name in ("eta", "pt")], axis=-1)[[3, 40, 3]])
    mixed = H5Dataset(path, [fields("jets", ["pt", "p/x", "id"])])[[1, 2]]["jets"].numpy()
    assert mixed.dtype == "f8"
    assert np.array_equal(mixed, np.stack([jets["pt"], jets["p"]["x"], jets["id"]], axis=-1)[[1, 2]])
    cast = H5Dataset(path, [fields("jets", ["pt", "id"])], dtypes={"jets": "float16"})[[1]]["jets"].numpy()
    assert cast.dtype == "f2"


def test_in_predicates_and_weights(path):
    event = by_h5py(path, "event")
    chosen = H5Dataset(path, ["event/weight"], where(**{"event/label": [1, 2], "event/weight": between(3, None)}))
    keep = np.isin(event["label"], [1, 2]) & (event["weight"] >= 3)
    assert chosen[list(range(len(chosen)))]["event/weight"].tolist() == event["weight"][keep].tolist()
    dataset = H5Dataset(path, ["event/label"])
    order = dataset.epoch_order(Shuffle(weights=balance("event/label"), rows_per_epoch=100))
    assert len(order.selected_indices(np.arange(100), 0)) == 100


def test_of_a_ragged_column(path):
    flat = by_h5py(path, "flat")
    found = H5Dataset(path, [ragged("flat/pt", offsets="offsets")])
    assert len(found) == 5
    assert found[2]["flat/pt"].tolist() == flat["pt"][20:30].tolist()


@pytest.mark.parametrize(
    ("column", "error", "message"),
    [
        ("jets/pT", UnknownColumnError, "whose fields are pt, eta, id, name, p"),
        (fields("jets", ["pt", "etta"]), UnknownColumnError, "no field 'etta' in 'jets'.*Did you mean 'eta'"),
        (fields("jets", ["pt", "name"]), UnsupportedColumnError, "'jets/name'"),
        (fields("jets", ["pt", "p/v"]), UnsupportedColumnError, "of one shape"),
        (fields("offsets", ["pt"]), UnsupportedColumnError, "expected compound values"),
    ],
)
def test_refused(path, column, error, message):
    with pytest.raises(error, match=message):
        H5Dataset(path, [column])


def test_arguments():
    with pytest.raises(OptionError, match=r"'jets/pt'"):
        fields("jets", "pt")
    for names in ([], [3], None, ["pt", "pt"]):
        with pytest.raises(OptionError, match="fields"):
            fields("jets", names)
    with pytest.raises(OptionError, match="more than once"):
        H5Dataset("a.h5", [fields("jets", ["pt"]), "jets"])


def test_fields_in_other_byte_orders_in_groups(tmp_path):
    values = np.zeros(6, [("x", "<f4"), ("y", ">f4")])
    values["x"], values["y"] = np.arange(6), np.arange(6) + 10
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["g0/t"] = values
        file.create_dataset("g1/t", data=values[:4], chunks=(3,), compression="gzip")
    dataset = H5Dataset(tmp_path / "a.h5", [fields("t", ["y", "x"])], rows=Groups("g*"))
    for i, n in enumerate((6, 4)):
        np.testing.assert_array_equal(dataset[i]["t"], np.stack([values["y"], values["x"]], axis=1)[:n])


def test_windows_over_groups_whose_steps_differ_in_shape(tmp_path):
    """Each group has images of a size of its own, of compound values; a window has the axes of the fields last."""
    dtype, rng = np.dtype([("a", "<i4"), ("b", ">f8"), ("v", "<i2", (2,))]), np.random.default_rng(0)
    cells = []
    with h5py.File(tmp_path / "a.h5", "w") as file:
        for i, side in enumerate((3, 5, 3)):
            cells.append(np.zeros((4 + i, 2, side), dtype))
            for name in dtype.names:
                cells[-1][name] = rng.integers(0, 99, cells[-1][name].shape)
            file[f"e_{i}/t"] = cells[-1]
    offsets = {"t": [-1, 0, 2], "v": [0, 1], "plain": [1]}
    columns = {"t": fields("t", ["a", "b"]), "v": "t/v", "plain": "t/a", "now": fields("t", ["b"])}
    windows = Windows(offsets, pad="edge", per_step=["now"])
    dataset = H5Dataset(tmp_path / "a.h5", columns, rows=Groups("e_*"), windows=windows)
    rows = [(each, t) for each in cells for t in range(len(each))]
    assert len(dataset) == len(rows)
    batch = dataset[list(range(len(rows)))]
    for i, (each, t) in enumerate(rows):
        values = {"t": np.stack([each["a"], each["b"]], -1), "v": each["v"], "plain": each["a"]}
        for name, steps in offsets.items():
            expected = values[name][np.clip(t + np.array(steps), 0, len(each) - 1)]
            np.testing.assert_array_equal(batch[name][i], expected, name)
        np.testing.assert_array_equal(batch["now"][i], each["b"][t][..., None])


@pytest.mark.parametrize("windows", [Windows({"x": [0, 1]}), Windows({"y": [0]}, per_step=["x"])])
def test_parts_of_steps_that_differ_in_shape_are_refused(tmp_path, windows):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        for i in range(2):
            file[f"e_{i}/x"], file[f"e_{i}/y"] = np.zeros((4 + i, 2, 5 + i)), np.arange(4 + i)
    with pytest.raises(
        UnsupportedColumnError, match=r"'x'.*have other shapes in other groups, such as \(2, 5\) and \(2, 6\)"
    ):
        H5Dataset(tmp_path / "a.h5", [part("x", {0: [1]}), "y"], rows=Groups("e_*"), windows=windows)


def test_a_field_of_datasets_that_are_rows(tmp_path):
    """Each dataset that matches is a row; a field of it is a column of its own."""
    values = np.zeros((3, 4), [("a", "<f4"), ("b", "<i4")])
    values["a"], values["b"] = np.arange(12).reshape(3, 4), 7
    save(tmp_path / "a.h5", {f"scans/s{i}": row for i, row in enumerate(values)})
    dataset = H5Dataset(tmp_path / "a.h5", {"value/a": "value/a", "z": "value/b"}, rows=Groups("scans/*"))
    np.testing.assert_array_equal(dataset[[0, 1, 2]]["value/a"], values["a"])
    np.testing.assert_array_equal(dataset[[0, 1, 2]]["z"], values["b"])


def test_windows_over_a_field_beside_all_columns_of_groups(tmp_path):
    values = np.zeros(4, [("a", "<f4"), ("b", "<i4")])
    values["a"] = np.arange(4)
    with h5py.File(tmp_path / "a.h5", "w") as file:
        for i in range(2):
            file[f"g{i}/t"], file[f"g{i}/x"] = values, np.arange(4) + i
    dataset = H5Dataset(tmp_path / "a.h5", rows=Groups("g*"), windows=Windows({"t/a": [0, 1]}, pad="drop"))
    assert len(dataset) == 6
    np.testing.assert_array_equal(dataset[4]["t/a"], values["a"][1:3])
    assert dataset[4]["x"] == 2


@pytest.mark.parametrize("rows", [None, Groups("g*")])
def test_bounds_that_are_a_sparse_matrix_are_refused(tmp_path, rows):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        for group in ("", "g0/", "g1/"):
            file[f"{group}r"] = np.arange(4)
            matrix = file.create_group(f"{group}X")
            matrix.attrs.update({"encoding-type": "csr_matrix", "shape": (4, 2)})
            matrix["data"], matrix["indices"], matrix["indptr"] = np.ones(4), np.zeros(4, "i4"), np.arange(5)
    windows = None if rows is None else Windows({"r": [0]})
    with pytest.raises(UnsupportedColumnError, match="'X' has rows of varying length itself"):
        H5Dataset(tmp_path / "a.h5", [ragged("r", offsets="X")], rows=rows, windows=windows)
