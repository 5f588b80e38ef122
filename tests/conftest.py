import logging
import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# A worker that reports waits until it is asked, by default every 2 s.
os.environ.setdefault("RAY_TRAIN_HEALTH_CHECK_INTERVAL_S", "0.2")

# "ci" runs the same examples each time; "nightly" looks for new ones: --hypothesis-profile=nightly
_COMMON = {"deadline": None, "print_blob": True, "suppress_health_check": [HealthCheck.too_slow]}
settings.register_profile("ci", max_examples=200, derandomize=True, **_COMMON)
settings.register_profile("nightly", max_examples=10_000, **_COMMON)
settings.load_profile("ci")

_FOLDER = Path(__file__).parent
_SLOW = {"cluster": "own clusters", "integration": "own clusters", "examples": "programs"}
"""Folders of slow tests. With `-n`, those of a group run in one process, one after the other: each needs all CPUs."""


@pytest.hookimpl(tryfirst=True)  # pytest-xdist reads the groups in the same hook
def pytest_collection_modifyitems(items):
    for item in items:
        group = _SLOW.get(_folder_of(item))
        if group is not None:
            item.add_marker(pytest.mark.xdist_group(group))
            if item.get_closest_marker("nightly") is None:
                item.add_marker(pytest.mark.slow)
    # The documents come with the other tests that need Ray. It leaves threads and memory in the process. Tests of hdf5
    # and planning, which count threads, measure memory and fork, run before.
    items.sort(key=lambda item: {"docs": "ray_data"}.get(_folder_of(item), _folder_of(item)))


def _folder_of(item):
    return item.path.relative_to(_FOLDER).parts[0]


_RAY_OPTIONS = {"num_cpus": 2, "object_store_memory": 256 << 20, "include_dashboard": False, "log_to_driver": False}


@pytest.fixture(scope="session")
def ray_local():
    """The Ray of one node that the tests of a session share."""
    import ray

    for attempt in range(3):
        try:
            ray.init(address="local", logging_level=logging.ERROR, **_RAY_OPTIONS)
            break
        except Exception as exc:
            # Ray gives a node 30 s, which a machine that does something else may take.
            if "timed out during startup" not in str(exc) or attempt == 2:
                raise
            ray.shutdown()
    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = False
    context.execution_options.preserve_order = True  # or blocks arrive as they are finished
    yield
    ray.shutdown()
