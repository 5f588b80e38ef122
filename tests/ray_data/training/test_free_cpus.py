"""A trainer whose workers reserve all CPUs is told so."""

import contextlib
import logging
import re

import pytest
import ray
from ray.util import placement_group, remove_placement_group

import ray_h5
from ray_h5.errors import OptionError, UnknownOptionError
from ray_h5.ray_data.training import data_config as free_cpus
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


def checked(ds, caplog):
    """Return what is said to a trainer with workers that have reserved what they need."""
    caplog.clear()
    with caplog.at_level(logging.WARNING, "ray_h5"):
        free_cpus.check_free_cpus("train", ds)
    return [each.message for each in caplog.records if each.name == free_cpus.__name__]


def test_workers_that_take_all_cpus_are_an_error(paths, caplog):
    whole, half = ray_h5.read_h5(paths), ray_h5.read_h5(paths, num_cpus=0.5)
    assert checked(whole, caplog) == []
    with reserved(0.75, 0.75):
        with pytest.raises(OptionError, match=r"needs 1 CPU, and workers reserve 1.5 of the 2 CPUs.* wait for ever"):
            checked(whole, caplog)
        assert checked(half, caplog) == []
        with pytest.raises(OptionError, match="needs 1 CPU"):
            checked(half.map_batches(lambda batch: batch), caplog)
        assert checked(ray.data.from_items([{"x": 1}] * 8), caplog) == []
    in_memory = whole.materialize()
    with reserved(1, 1):
        assert checked(in_memory, caplog) == []
    with reserved(0.5, 0.5):
        assert checked(whole, caplog) == []


def test_what_others_may_free_is_a_warning(paths, caplog, monkeypatch):
    ds = ray_h5.read_h5(paths)
    with reserved(1), reserved(1):  # a trainer, and the trial of a tuning run that it is made by
        (message,) = checked(ds, caplog)
    assert "workers reserve 2 of the 2 CPUs" in message
    assert not free_cpus.may_grow()
    monkeypatch.setattr(free_cpus, "may_grow", lambda: True)
    with reserved(1, 1):
        (message,) = checked(ds, caplog)
    assert "unless another trainer ends or a node is added. Leave room" in message


@pytest.mark.parametrize(
    ("option", "said"),
    [
        ("label_selctor", "Did you mean 'label_selector'?"),
        ("preserve_order", "there is no option 'preserve_order'."),
        ("dataset_checkpoint_configs", "store train_batches(...).position()"),
    ],
)
def test_an_unknown_option_is_refused(option, said):
    with pytest.raises(UnknownOptionError, match=re.escape(said)):
        ray_h5.data_config(**{option: False})
