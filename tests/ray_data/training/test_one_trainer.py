"""What the workers of a trainer read: a mixture, rows by length, and names that it does not have.

One trainer for all tests: each starts a dozen processes.
"""

import json
from pathlib import Path

import h5py
import numpy as np
import pytest
import ray.train
from ray.train import RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer

import ray_h5
from ray_h5 import Groups, Shuffle
from ray_h5.errors import OptionError
from ray_h5.order.position import Position
from ray_h5.ray_data.training.train_batches import train_batches
from tests.ray_data.epochs.test_mixtures import both, combined, order_of
from tests.ray_data.kit import write_chunked

pytestmark = [pytest.mark.usefixtures("ray_local"), pytest.mark.slow]

N = 600
LENGTHS = np.random.default_rng(0).integers(5, 200, N)
BY_LENGTH = Shuffle(seed=7, by_length="num_samples")


def write_demos(folder):
    path = str(folder / "demos.h5")
    with h5py.File(path, "w") as file:
        for i, length in enumerate(LENGTHS.tolist()):
            file[f"data/demo_{i}/actions"] = np.full((length, 1), i, "f4")
            file[f"data/demo_{i}"].attrs["num_samples"] = length
    return path


def read_demos(path, shuffle=BY_LENGTH):
    rows = Groups("data/demo_*", attrs=["num_samples"])
    return ray_h5.read_h5(path, rows=rows, shuffle=shuffle, columns=["actions"], include_row_ids=True)


def loop(config):
    found = {"mixture": [], "positions": [], "said": []}
    for epoch in (3, 4):
        batches = ray_h5.train_batches("mixture", epoch, batch_size=8)
        found["mixture"] += [[epoch, batch["x"][:, 0].int().tolist()] for batch in batches]
        found["positions"].append(batches.position().to_dict())
    for name in ("random", "by_length"):
        size = length = 0
        ids = []
        for batch in ray_h5.train_batches(name, 0, batch_size=8, pad=True):
            size += batch["actions"].shape[:2].numel()
            length += int(batch["actions_length"].sum())
            ids += batch["row_id"].tolist()
        found[name] = [size, length, ids]
    for name in ("trian", ""):
        try:
            list(train_batches(name, 0, batch_size=np.int64(4)))
        except OptionError as exc:
            found["said"].append(str(exc))
    rank = ray.train.get_context().get_world_rank()
    (Path(config["log"]) / f"{rank}.json").write_text(json.dumps(found))


@pytest.fixture(scope="module")
def paths(tmp_path_factory):
    return write_chunked(tmp_path_factory.mktemp("mixture"), (120, 40))


@pytest.fixture(scope="module")
def ranks(paths, tmp_path_factory):
    """What each worker found."""
    folder = tmp_path_factory.mktemp("trainer")
    demos = write_demos(folder)
    datasets = {
        "mixture": combined("mix", *both(paths)),
        "random": read_demos(demos, Shuffle(seed=7)),
        "by_length": read_demos(demos),
    }
    TorchTrainer(
        loop,
        train_loop_config={"log": str(folder)},
        datasets=datasets,
        dataset_config=ray_h5.data_config(datasets_to_split=["mixture", "random", "by_length"]),
        scaling_config=ScalingConfig(num_workers=2, resources_per_worker={"CPU": 0.25}),
        run_config=RunConfig(storage_path=str(folder)),
    ).fit()
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(2)]


def test_a_mixture_and_its_position_is_the_beginning_of_the_epoch(paths, ranks):
    for epoch in (3, 4):
        shares = [[row for at, ids in found["mixture"] for row in ids if at == epoch] for found in ranks]
        assert len(shares[0]) == len(shares[1])
        assert sorted(shares[0] + shares[1]) == list(range(160))
        firsts = [row for row in shares[0] + shares[1] if row < 120]
        assert sorted(firsts) == sorted(order_of(paths[0], epoch))
    assert all(Position.from_dict(each).rows == 0 for found in ranks for each in found["positions"])


def test_batches_of_rows_by_length_have_little_padding(ranks):
    padding = {}
    for name in ("random", "by_length"):
        sizes, used, ids = zip(*(found[name] for found in ranks), strict=True)
        padding[name] = 1 - sum(used) / sum(sizes)
        assert len(ids[0]) == len(ids[1])
        assert sorted(ids[0] + ids[1]) == list(range(N))
    assert padding["random"] >= 0.3
    assert padding["by_length"] <= 0.05


def test_keys_that_the_trainer_does_not_have(ranks):
    for found in ranks:
        misspelt, empty = found["said"]
        assert "the trainer has no dataset 'trian'" in misspelt
        assert "expected the key of a dataset of the trainer" in empty
