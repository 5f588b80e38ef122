"""Draws with weights in Ray: the epochs of a dataset are those of its plan, and errors come on the driver."""

import h5py
import numpy as np
import pytest

import ray_h5
from ray_h5 import H5Dataset, OrderSampler, Shuffle, Standardize, balance
from ray_h5.errors import OptionError
from tests.ray_data.kit import ids_of, write_chunked

pytestmark = pytest.mark.usefixtures("ray_local")


@pytest.fixture(scope="module")
def paths(tmp_path_factory):
    return write_chunked(tmp_path_factory.mktemp("weights"))


def test_each_draw_of_a_row_has_a_key_of_its_own(paths):
    shuffle = Shuffle("rows", 7, weights=np.arange(150) < 5, rows_per_epoch=60)
    ds = ray_h5.read_h5(paths, columns=["label"], shuffle=shuffle, include_row_keys=True, include_row_ids=True)
    (found,) = ds.iter_batches(batch_size=60)
    assert set(found["row_id"]) == set(range(5))
    assert len(set(found["row_key"])) == 60


def test_statistics_are_of_each_row_once(paths):
    shuffle = Shuffle("rows", 7, weights=np.arange(150) < 5)
    ds = ray_h5.read_h5(paths, columns=["x"], shuffle=shuffle)
    plain = ray_h5.read_h5(paths, columns=["x"])
    fitted, expected = (Standardize(["x"]).fit(each).stats_ for each in (ds, plain))
    assert str(fitted) == str(expected)


def test_weights_that_cannot_be_used_are_errors_of_the_driver(paths):
    for weights, said in (
        ("x", "holds an array"),
        (np.ones(3), "expected 150"),
        (balance("label", {5: 0.5}), "class 5"),
    ):
        with pytest.raises(OptionError, match=said):
            ray_h5.read_h5(paths, shuffle=Shuffle("rows", weights=weights))


@pytest.mark.parametrize("option", [{"weights": "w"}, {"weights": balance("w")}, {"by_length": "w"}])
def test_rows_that_a_filter_leaves_out_need_no_weight(tmp_path, option):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["w"], file["is_good"] = np.array([1, 2, np.nan, 1, 2]), np.array([1, 1, 0, 1, 1], bool)
    shuffle = Shuffle("rows", 7, **option)
    ds = ray_h5.read_h5(tmp_path / "a.h5", shuffle=shuffle, include_row_ids=True)
    assert ds.schema().names == ["is_good", "w", "row_id"]
    good = H5Dataset(tmp_path / "a.h5", predicate=ray_h5.torch_data.where(is_good=True))
    expected = good.row_ids(list(OrderSampler(good, shuffle=shuffle))).tolist()
    assert ids_of(ds.filter(expr=ray_h5.where(is_good=True))) == expected
    for look in (ds.count, ds.materialize):
        with pytest.raises(OptionError, match=r"row 2: column 'w' is .*Filter these rows"):
            look()
