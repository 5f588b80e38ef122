"""What `read_h5` takes for the resources of its tasks and the order of their blocks, told before planning."""

import numpy as np
import pytest

import ray_h5
from ray_h5.errors import OptionError
from ray_h5.ray_data.arguments import as_flag, as_resources


@pytest.mark.parametrize(
    ("option", "given", "says"),
    [
        ("num_cpus", "a", "a number of 0 or more"),
        ("num_cpus", -1, "a number of 0 or more"),
        ("num_cpus", float("nan"), "a number of 0 or more"),
        ("num_cpus", float("inf"), "a number of 0 or more"),
        ("num_cpus", True, "a number of 0 or more"),
        ("memory", "1GB", "a number of 0 or more"),
        ("memory", -1, "a number of 0 or more"),
        ("concurrency", "a", "an integer of 1 or more"),
        ("concurrency", 0, "an integer of 1 or more"),
        ("ray_remote_args", "x", "a dict"),
        ("ray_remote_args", ["x"], "a dict"),
        ("preserve_order", "x", "True or False"),
        ("preserve_order", None, "True or False"),
        ("index_dir", 5, "a folder"),
    ],
)
def test_what_cannot_be_is_said_before_planning(option, given, says):
    with pytest.raises(OptionError, match=f"{option}=.*: expected {says}"):
        ray_h5.read_h5("/nowhere/a.h5", **{option: given})


def test_numbers_of_numpy_become_those_that_ray_takes():
    found = as_resources(np.int64(2), np.float32(0.5), np.int64(1 << 20), {"max_retries": 1})
    assert found == {
        "concurrency": 2,
        "num_cpus": 0.5,
        "memory": 1 << 20,
        "ray_remote_args": {"max_retries": 1},
    }
    assert {type(found[name]) for name in ("num_cpus", "memory")} == {float}
    assert as_resources(None, None, None, None) == dict.fromkeys(found)
    assert as_flag("preserve_order", np.False_) is False
