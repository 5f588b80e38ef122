"""Ray's own `union` and `mix`: each dataset counts its epochs; a position inside one is refused by name."""

import json
import logging
from pathlib import Path

import numpy as np
import pytest
import ray.train
from ray.data import DataContext, MixStoppingCondition
from ray.train import RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer

import ray_h5
from ray_h5 import Shuffle, set_epoch
from ray_h5.errors import PositionError
from ray_h5.planning.epoch.position import Position
from ray_h5.ray_data.epochs.set_epoch import running_epoch
from ray_h5.torch_data import H5Dataset, OrderSampler
from tests.ray_data.kit import ids_of, write_chunked

pytestmark = pytest.mark.usefixtures("ray_local")

SHUFFLE = Shuffle("rows", 7)


@pytest.fixture(scope="module")
def paths(tmp_path_factory):
    return write_chunked(tmp_path_factory.mktemp("mixtures"), (120, 40))


@pytest.fixture(autouse=True)
def in_order(monkeypatch):
    monkeypatch.setattr(DataContext.get_current().execution_options, "preserve_order", True)


def both(paths, one="one", other="other"):
    options = {"columns": ["x", "label"], "shuffle": SHUFFLE, "include_row_ids": True, "block_rows": 8}
    return [ray_h5.read_h5(path, name=name, **options) for path, name in zip(paths, (one, other), strict=True)]


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


@pytest.mark.parametrize("how", ["union", "mix", "shortest"])
def test_each_dataset_has_its_epochs_and_their_orders(paths, how):
    ds = combined(how, *both(paths))
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
    set_epoch("one", 5)
    set_epoch("other", 3)
    first, second, _ = rows_of(ds)
    assert first == order_of(paths[0], 5)[: len(first)]
    assert second == order_of(paths[1], 3)[: len(second)]


@pytest.mark.parametrize(("how", "operator"), [("union", "Union"), ("mix", "Mix")])
def test_a_position_is_refused_by_name(paths, how, operator):
    one, other = both(paths)
    ds = combined(how, one, other)
    assert len(ids_of(one)) == 120
    position = running_epoch("one").position(16)
    rows_of(ds)
    with pytest.raises(PositionError, match=rf"dataset 'one': {operator} may change the number of rows"):
        running_epoch("one").position(16)
    set_epoch("one", position.epoch, position=position)
    with pytest.raises(PositionError, match=rf"'one'.* combines it by {operator}.*weights={{'a/\*.h5': 0.3"):
        rows_of(ds)
    assert ids_of(one) == order_of(paths[0], position.epoch)[16:]


def loop(config):
    rank = ray.train.get_context().get_world_rank()
    rows, positions = [], []
    for epoch in (3, 4):
        batches = ray_h5.train_batches("train", epoch, batch_size=8)
        rows += [[epoch, batch["x"][:, 0].int().tolist()] for batch in batches]
        positions.append(batches.position().to_dict())
    (Path(config["log"]) / f"{rank}.json").write_text(json.dumps([rows, positions]))


@pytest.mark.slow
def test_a_trainer_reads_a_mixture_and_its_position_is_the_beginning_of_the_epoch(paths, tmp_path, caplog):
    ds = combined("mix", *both(paths, "train", "train"))
    with caplog.at_level(logging.WARNING, "ray_h5"):
        TorchTrainer(
            loop,
            train_loop_config={"log": str(tmp_path)},
            datasets={"train": ds},
            dataset_config=ray_h5.data_config(),
            scaling_config=ScalingConfig(num_workers=2, resources_per_worker={"CPU": 0.25}),
            run_config=RunConfig(storage_path=str(tmp_path)),
        ).fit()
    found = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2)]
    for epoch in (3, 4):
        shares = [[row for at, ids in rows for row in ids if at == epoch] for rows, _ in found]
        assert len(shares[0]) == len(shares[1])
        assert sorted(shares[0] + shares[1]) == list(range(160))
        firsts = [row for row in shares[0] + shares[1] if row < 120]
        assert sorted(firsts) == sorted(order_of(paths[0], epoch))
    assert all(Position.from_dict(each).rows == 0 for _, positions in found for each in positions)
