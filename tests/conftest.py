import logging
import os
import sys
import time
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
    _leave_out_of_stores(items)
    items.sort(key=lambda item: {"docs": "ray_data"}.get(_folder_of(item), _folder_of(item)))


def _leave_out_of_stores(items):
    from tests.remote.on_disk import ON_DISK

    for item in items:
        plain = item.name.replace("store-", "").replace("-store", "")
        if plain != item.name and (why := ON_DISK.get(f"{item.path.relative_to(_FOLDER)}::{plain}")):
            item.add_marker(pytest.mark.skip(reason=why))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call():
    """Fail a test that leaves a Ray behind, as `read_h5` starts one: the next tests could not start theirs."""
    ran = _ray_runs()
    try:
        return (yield)
    finally:
        if not ran and _ray_runs():
            sys.modules["ray"].shutdown()
            pytest.fail("this test has started Ray: it needs the fixture ray_local")


def _ray_runs():
    ray = sys.modules.get("ray")
    return ray is not None and ray.is_initialized()


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


class Disk:
    """Records the reads of files and the hints about them, in their order; reads wait while `is_slow`."""

    def __init__(self):
        self.is_slow = False
        self.events = []  # ("read" or "hint", path, offset, size)
        self.reading = 0
        self.most = 0  # threads that read at the same time

    def of(self, kind):
        return [extent for each, *extent in self.events if each == kind]


@pytest.fixture
def disk(monkeypatch):
    """Files whose reads take no time or 2.5 ms. On a busy machine any read may take some, so less does not count."""
    from ray_h5.hdf5.reading import ahead
    from ray_h5.storage.local import LocalFile

    disk, read_into, will_need = Disk(), LocalFile.read_into, LocalFile.will_need
    monkeypatch.setattr(ahead, "_MEMORY_S", 0.002)
    monkeypatch.setattr(ahead, "_LONG_S", 0.002)
    monkeypatch.setattr(ahead, "_HINT_S", 1e9)

    def reading(self, offset, buffer):
        disk.events.append(("read", self._path, offset, len(buffer)))
        disk.reading += 1
        disk.most = max(disk.most, disk.reading)
        if disk.is_slow:
            time.sleep(0.0025)
        read_into(self, offset, buffer)
        disk.reading -= 1

    def hinted(self, offset, nbytes):
        disk.events.append(("hint", self._path, offset, nbytes))
        will_need(self, offset, nbytes)

    monkeypatch.setattr(LocalFile, "read_into", reading)
    monkeypatch.setattr(LocalFile, "will_need", hinted)
    return disk


@pytest.fixture(scope="session")
def temporary_bucket(tmp_path_factory):
    """The folder of temporary files as a bucket."""
    pytest.importorskip("obstore")
    from tests.remote.through_store import Bucket

    bucket = Bucket(tmp_path_factory.mktemp("bucket"))
    with bucket.server:
        yield bucket


@pytest.fixture(autouse=True)
def files_in(request):
    """Where a test finds its files: on the disk, or in an object store."""
    where = getattr(request, "param", "disk")
    if where == "store":
        from tests.remote.through_store import fewer_examples, replace_openers

        bucket, monkeypatch = map(request.getfixturevalue, ("temporary_bucket", "monkeypatch"))
        for name, value in bucket.environment().items():
            monkeypatch.setenv(name, value)
        replace_openers(bucket, monkeypatch)
        fewer_examples(request.function, monkeypatch)
    return where


def pytest_generate_tests(metafunc):
    """Run tests a second time, with their files in an object store."""
    from tests.remote.on_disk import QUICK, why_on_disk

    module = metafunc.module.__file__.removeprefix(f"{_FOLDER}/")
    asked = metafunc.config.option.markexpr
    if module not in QUICK and "store" not in asked and ("slow" not in asked or "not slow" in asked):
        return  # they would be made to be left out, which takes a while
    if not why_on_disk(module, metafunc.definition):
        marks = [pytest.mark.store, *([] if module in QUICK else [pytest.mark.slow])]
        where = [pytest.param("disk", id=pytest.HIDDEN_PARAM), pytest.param("store", id="store", marks=marks)]
        metafunc.parametrize("files_in", where, indirect=True)
