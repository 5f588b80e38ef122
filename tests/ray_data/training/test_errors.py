"""The error that leaves ``fit()``."""

import pickle
import subprocess
import sys

import pytest
import ray
from ray.exceptions import RayTaskError

from ray_h5 import errors
from ray_h5.ray_data.internals.trainers import let_own_errors_leave_fit
from ray_h5.ray_data.quiet import short_text

pytestmark = pytest.mark.versions

let_own_errors_leave_fit()

LEAVES = [getattr(errors, name) for name in errors.__all__]


@pytest.mark.parametrize("leaf", LEAVES)
def test_it_is_that_of_ray_and_that_of_this_package(leaf):
    own = leaf("what is wrong")
    error = pickle.loads(pickle.dumps(ray.train.WorkerGroupError("rank 1: what is wrong", {1: own})))
    assert isinstance(error, ray.train.WorkerGroupError)
    assert isinstance(error, leaf) == (leaf is not errors.OutOfMemoryError)
    assert isinstance(error, errors.RayH5Error)
    assert str(error) == "Training failed due to worker errors:\nrank 1: what is wrong"
    assert (type(error.__cause__), str(error.__cause__)) == (leaf, "what is wrong")
    assert str(error.worker_failures[1]) == "what is wrong"
    assert type(error).__name__ == "WorkerGroupError"
    text = short_text(error, None)
    assert text == f"ray_h5.errors.{leaf.__name__}: what is wrong\n"


def test_errors_of_tasks_and_of_the_controller():
    own = errors.StaleIndexError("a.h5 changed")
    task = RayTaskError("read", "a traceback", own).as_instanceof_cause()
    error = ray.train.ControllerError(task)
    assert isinstance(error, errors.StaleIndexError)
    assert isinstance(error, ray.train.ControllerError)
    assert error.__cause__ is own
    assert error.controller_failure is task
    assert isinstance(ray.train.WorkerGroupError("text", {0: task}), errors.StaleIndexError)


def test_other_errors_stay_as_they_are():
    for error in (ray.train.WorkerGroupError("text", {0: ValueError("x")}), ray.train.ControllerError(KeyError("x"))):
        assert not isinstance(error, errors.RayH5Error)
        assert type(pickle.loads(pickle.dumps(error))) is type(error)
        assert type(error) in (ray.train.WorkerGroupError, ray.train.ControllerError)


@pytest.mark.slow
def test_a_process_without_this_package_gets_what_ray_made():
    made = ray.train.WorkerGroupError("text", {0: errors.OptionError("x")})
    code = f"""import pickle, ray.train
error = pickle.loads({pickle.dumps(made)!r})
assert type(error) is ray.train.WorkerGroupError
assert pickle.loads(pickle.dumps(error)).worker_failures[0].args == ("x",)"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
