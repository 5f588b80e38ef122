"""Ray's own `union` and `mix`: each dataset counts its epochs; a position inside one is refused by name."""

import numpy as np
import pytest
from ray.data import DataContext, MixStoppingCondition

import ray_h5
from ray_h5 import H5Dataset, OrderSampler, Shuffle, set_epoch
from ray_h5.errors import PositionError
from tests.ray_data.kit import ids_of, position_at, write_chunked

pytestmark = pytest.mark.usefixtures("ray_local")

SHUFFLE = Shuffle("rows", 7)


@pytest.fixture(scope="module")
def paths(tmp_path_factory):
    return write_chunked(tmp_path_factory.mktemp("mixtures"), (120, 40))


@pytest.fixture(autouse=True)
def in_order(monkeypatch):
    monkeypatch.setattr(DataContext.get_current().execution_options, "preserve_order", True)


def both(paths):
    options = {"columns": ["x", "label"], "shuffle": SHUFFLE, "include_row_ids": True, "block_rows": 8}
    return [ray_h5.read_h5(path, **options) for path in paths]


def rows_of(ds):
    """The rows of a dataset of the first file, and of the second file."""
    values = np.concatenate([batch["x"][:, 0] for batch in ds.iter_batches(batch_size=None)]).astype(int)
    return values[values < 120].tolist(), (values[values >= 120] - 120).tolist(), values


def order_of(path, epoch):
    dataset = H5Dataset(path, ["x"])
    sampler = OrderSampler(dataset, shuffle=SHUFFLE)
    sampler.set_epoch(epoch)
    return list(sampler)


def combined(how, one, other):
    if how == "union":
        return one.union(other)
    stop = MixStoppingCondition.STOP_ON_SHORTEST if how == "shortest" else MixStoppingCondition.STOP_ON_LONGEST_DROP
    return one.mix(other, weights=[0.75, 0.25], stopping_condition=stop)


@pytest.mark.slow
@pytest.mark.parametrize("how", ["union", "mix", "shortest"])
def test_each_dataset_has_its_epochs_and_their_orders(paths, how):
    one, other = both(paths)
    ds = combined(how, one, other)
    for epoch in (0, 1):
        first, second, values = rows_of(ds)
        expected = [order_of(path, epoch) for path in paths]
        if how == "shortest":  # Ray ends it where one of them ends
            assert first == expected[0][: len(first)]
            assert second == expected[1][: len(second)]
        else:
            assert [first, second] == expected
        if how != "union":
            assert 6 <= np.count_nonzero(values[:32] >= 120) <= 10
    set_epoch(one, 5)
    set_epoch(other, 3)
    first, second, _ = rows_of(ds)
    assert first == order_of(paths[0], 5)[: len(first)]
    assert second == order_of(paths[1], 3)[: len(second)]
    set_epoch(ds, 4)  # of both
    first, second, _ = rows_of(ds)
    assert [first[:9], second[:9]] == [order_of(path, 4)[:9] for path in paths]


@pytest.mark.slow
@pytest.mark.parametrize(("how", "operator"), [("union", "Union"), ("mix", "Mix")])
def test_a_position_is_refused_by_name(paths, how, operator):
    one, other = both(paths)
    ds = combined(how, one, other)
    assert len(ids_of(one)) == 120
    set_epoch(one, 2, position_at(one, 2, 16))
    with pytest.raises(PositionError, match=rf"found an execution with {operator}.*weights={{'a/\*.h5': 0.3"):
        rows_of(ds)
    assert ids_of(one) == order_of(paths[0], 2)[16:]
