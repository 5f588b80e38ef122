"""Errors of this package inside those that Ray makes of them."""

import pytest
import ray
from ray.exceptions import RayTaskError

from ray_h5 import errors
from ray_h5.ray_data.ray_internals import own_error

pytestmark = pytest.mark.versions

OWN = errors.CorruptChunkError("a.h5: column 'x': chunk 3 is damaged")


def wrapped(error):
    return RayTaskError("read", "a stack trace of many lines", error).as_instanceof_cause()


@pytest.mark.parametrize(
    "error",
    [
        OWN,
        wrapped(OWN),
        wrapped(wrapped(OWN)),
        ray.train.ControllerError(wrapped(OWN)),
        ray.train.WorkerGroupError("rank 1: what is wrong", {1: OWN}),
    ],
)
def test_our_error_is_found(error):
    assert own_error(error) is OWN


@pytest.mark.parametrize("error", [ValueError("x"), wrapped(ValueError("x")), KeyboardInterrupt()])
def test_other_errors_are_none_of_ours(error):
    assert own_error(error) is None
