import contextlib
import logging
import re

import pytest
import ray
from ray.data import ActorPoolStrategy
from ray.train import RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer
from ray.util import placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

import ray_h5
from ray_h5.errors import OptionError, PredicateError, UnknownOptionError
from ray_h5.ray_data.internals.cluster import may_grow
from ray_h5.ray_data.training import free_resources
from tests.ray_data.kit import write_chunked

pytestmark = [pytest.mark.usefixtures("ray_local"), pytest.mark.versions]  # a cluster of 2 CPUs


@pytest.fixture
def paths(tmp_path):
    return write_chunked(tmp_path)


@contextlib.contextmanager
def reserved(*bundles):
    """Reserve what training workers do."""
    group = placement_group([{"CPU": cpus} for cpus in bundles])
    try:
        assert group.wait(30)
        yield group
    finally:
        remove_placement_group(group)


def checked(ds, workers, caplog):
    """Return what is said to a trainer with workers that have reserved what they need."""
    caplog.clear()
    with caplog.at_level(logging.WARNING, "ray_h5"):
        free_resources.check_free_resources("train", ds, [ray.get_runtime_context().get_node_id()] * workers)
    return [each.message for each in caplog.records if each.name == free_resources.__name__]


def loop():
    for batch in ray_h5.train_batches("train", 0, batch_size=8):
        assert len(batch["x"])


@pytest.mark.parametrize("workers", [2, 5])
def test_a_trainer_whose_workers_take_all_cpus_is_an_error(paths, tmp_path, monkeypatch, workers):
    def made(datasets, workers):
        return TorchTrainer(
            loop,
            datasets=datasets,
            dataset_config=ray_h5.data_config(),
            scaling_config=ScalingConfig(num_workers=workers),
            run_config=RunConfig(storage_path=str(tmp_path)),
        )

    trainer = made({"train": ray_h5.read_h5(paths, name="train")}, workers)
    # On the driver, before workers start.
    monkeypatch.setattr(TorchTrainer, "_initialize_and_run_controller", None)
    with pytest.raises(OptionError, match=r"ScalingConfig\(resources_per_worker={'CPU': 0.5}\)") as caught:
        trainer.fit()
    needs = "dataset 'train': a task of ReadH5 needs 1 CPU. "
    assert str(caught.value).startswith(f"{needs}The {workers} workers of the trainer reserve {workers} of 2 CPU")
    light = ray_h5.read_h5(paths, name="train", num_cpus=0.5).filter(expr=ray.data.expressions.col("x") > 1)
    with pytest.raises(PredicateError, match="'x'"):
        made({"train": light}, 1).fit()
    with pytest.raises(TypeError):  # nothing else is wrong: the controller is started
        made({"train": ray_h5.read_h5(paths), "made": lambda: None}, 1).fit()


def test_each_task_needs_room_on_a_node(paths, caplog):
    whole, half = ray_h5.read_h5(paths), ray_h5.read_h5(paths, num_cpus=0.5)
    with reserved(0.75, 0.75):
        with pytest.raises(OptionError, match=r"ReadH5 needs 1 CPU. .* leaves 0.5 CPU on a node: its tasks would wait"):
            checked(whole, 2, caplog)
        assert checked(half, 2, caplog) == []
        light = half.map_batches(np_identity, num_cpus=0.5)
        assert checked(light, 2, caplog) == []
        with pytest.raises(OptionError, match=r"MapBatches\(np_identity\) needs 1 CPU"):
            checked(half.map_batches(np_identity), 2, caplog)
        with pytest.raises(OptionError, match=r"a task of MapBatches\(np_identity\) needs 0.5 CPU, 1 GPU"):
            checked(half.map_batches(np_identity, num_gpus=1, num_cpus=0.5, batch_size=8), 2, caplog)
        assert checked(ray.data.from_items([{"x": 1}] * 8), 2, caplog) == []
        with pytest.raises(OptionError, match="dataset 'train': a task of ReadRange needs 1 CPU"):
            checked(ray.data.range(8), 2, caplog)
    in_memory = whole.materialize()
    with reserved(1, 1) as group:
        assert checked(in_memory, 2, caplog) == []
        placed = PlacementGroupSchedulingStrategy(group)
        own = ray_h5.read_h5(paths, ray_remote_args={"scheduling_strategy": placed})
        assert checked(own, 2, caplog) == []
    with reserved(0.5, 0.5):
        assert checked(whole, 2, caplog) == []


def np_identity(batch):
    return batch


class Identity:
    def __call__(self, batch):
        return batch


@pytest.mark.slow
def test_what_others_may_free_is_a_warning(paths, caplog):
    ds = ray_h5.read_h5(paths)
    with reserved(1), reserved(1):  # a trainer, and the trial of a tuning run that it is made by
        (message,) = checked(ds, 1, caplog)
    assert "'train': a task of ReadH5 needs 1 CPU. The 1 workers, and other placement groups" in message
    with reserved(1):
        (message,) = checked(ds.map_batches(Identity, compute=ActorPoolStrategy(size=1)), 1, caplog)
    assert "its actors and one task need 2 CPU at a time, found 1 CPU beside the 1 workers" in message


def test_where_nodes_may_be_added_it_is_a_warning(paths, caplog, monkeypatch):
    assert not may_grow()
    monkeypatch.setattr(free_resources, "may_grow", lambda: True)
    with reserved(1, 1):
        (message,) = checked(ray_h5.read_h5(paths), 2, caplog)
    assert "its tasks wait until an autoscaler adds a node. Leave room" in message


def bad_loop():
    ray_h5.train_batches("train", 0, batch_size=0)


@pytest.mark.slow
def test_an_error_in_the_loop_leaves_fit_as_what_it_is(paths, tmp_path):
    trainer = TorchTrainer(
        bad_loop,
        datasets={"train": ray_h5.read_h5(paths, name="train", num_cpus=0.5)},
        dataset_config=ray_h5.data_config(),
        scaling_config=ScalingConfig(num_workers=1),
        run_config=RunConfig(storage_path=str(tmp_path)),
    )
    with pytest.raises(OptionError, match="batch_size=0") as caught:
        trainer.fit()
    assert isinstance(caught.value, ray.train.WorkerGroupError)
    assert type(caught.value.__cause__) is OptionError


@pytest.mark.parametrize(
    ("option", "said"),
    [("label_selctor", "Did you mean 'label_selector'?"), ("preserve_order", "there is no option 'preserve_order'.")],
)
def test_an_unknown_option_is_refused(option, said):
    with pytest.raises(UnknownOptionError, match=re.escape(said)):
        ray_h5.data_config(**{option: False})
