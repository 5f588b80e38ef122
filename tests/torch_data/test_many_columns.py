"""A file with very many datasets: what is done once a file, once a column, and never again."""

import sys

import numpy as np
import pytest

from ray_h5 import H5Dataset
from tests.kit.files import save

STORAGES = {"contiguous": {}, "gzip": {"chunks": (4,), "compression": "gzip"}}


def write(path, count, **storage):
    return save(path, {f"g{i % 7}/x{i:04d}": np.arange(12, dtype="f4") + i for i in range(count)}, **storage)


def steps_of(action):
    """Return how many steps the interpreter takes for an action; no time of this machine is in it."""
    found = 0

    def count(frame, event, _argument):
        nonlocal found
        frame.f_trace_lines, frame.f_trace_opcodes = False, True
        found += event == "opcode"
        return count

    before = sys.gettrace()
    sys.settrace(count)
    try:
        action()
    finally:
        sys.settrace(before)
    return found


def costs(path):
    """Return the steps of opening a dataset of all columns, of its first sample and of a later one."""
    made = []
    opening = steps_of(lambda: made.append(H5Dataset(path, kept_bytes=0)))
    return {
        "opening": opening,
        "first": steps_of(lambda: made[0][3]),
        "later": steps_of(lambda: made[0][7]),
    }


@pytest.mark.slow
@pytest.mark.parametrize("storage", STORAGES)
def test_the_cost_grows_with_the_number_of_columns_and_not_with_its_square(tmp_path, storage):
    H5Dataset(write(tmp_path / "warm.h5", 8, **STORAGES[storage]))[0]  # imports are no part of the cost
    few, many = (costs(write(tmp_path / f"{n}.h5", n, **STORAGES[storage])) for n in (100, 400))
    for what, cost in many.items():
        assert cost < 4.4 * few[what], what
