import gc
import logging
import os
import shutil
import subprocess
import sys
from pathlib import Path

import h5py
import numpy as np
import pytest
from hypothesis import HealthCheck, settings

from tests.properties import DEFAULT_EXAMPLES

# A worker that reports waits until it is asked, by default every 2 s.
os.environ.setdefault("RAY_TRAIN_HEALTH_CHECK_INTERVAL_S", "0.2")

# Threads of torch wait for each other in loops that take a CPU: models of tests took three times as long. It is
# read when torch is imported, here and in the programs and workers that tests start.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# Whatever PYTHONDONTWRITEBYTECODE says: hundreds of programs and workers of Ray import the package, and each would
# compile it. Test modules, too, are then compiled once for all runs.
sys.dont_write_bytecode = False

# "ci" runs the same examples each time; "nightly" looks for new ones, and many more: --hypothesis-profile=nightly
_COMMON = {"deadline": None, "print_blob": True, "suppress_health_check": [HealthCheck.too_slow]}
settings.register_profile("ci", max_examples=DEFAULT_EXAMPLES, derandomize=True, **_COMMON)
settings.register_profile("nightly", max_examples=1000, **_COMMON)
settings.load_profile("ci")

_FOLDER = Path(__file__).parent
_SLOW = {"cluster": "own clusters", "integration": "own clusters", "examples": "programs"}
"""Folders of slow tests. With `-n`, those of a group run in one process, one after the other: each needs all CPUs."""

_EARLY = {"codecs", "hdf5", "index", "order", "predicates", "read", "rows", "tables", "training_runs"}
"""Folders of tests that run before Ray starts."""


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    from tests.scheduling import Scheduling

    return Scheduling(config, log)


@pytest.hookimpl(tryfirst=True)  # pytest-xdist reads the groups in the same hook
def pytest_collection_modifyitems(items):
    for item in items:
        group = _SLOW.get(_folder_of(item))
        if group is not None and item.get_closest_marker("nightly") is None:
            item.add_marker(pytest.mark.slow)
        group = "ray" if _needs_ray(item) else group
        if group is not None:
            item.add_marker(pytest.mark.xdist_group(group))
    _leave_out_of_stores(items)
    # Ray starts once: the tests that need it come together, in one process. It leaves threads and memory there.
    # Tests that count threads, measure memory and fork run before.
    items.sort(
        key=lambda item: (
            _needs_ray(item) or _folder_of(item) not in _EARLY,
            "ray_data" if _needs_ray(item) else _folder_of(item),
        )
    )


@pytest.hookimpl(trylast=True)
def pytest_collection_finish():
    """Leave the modules and tests, which stay to the end, out of each collection of garbage, and of forks' memory."""
    gc.collect()
    gc.freeze()


def _needs_ray(item):
    return "ray_local" in item.fixturenames


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

    # Workers then import neither test modules nor what these import, as torch: half of what many tests cost.
    ray.cloudpickle.register_pickle_by_value(sys.modules["tests"])
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


@pytest.fixture
def steps_in_python(monkeypatch):
    """Read and decode without the compiled loop: its reads are those of the system, which no test replaces."""
    from ray_h5.read.native import dense_rows as dense
    from ray_h5.read.native import job_table as table

    monkeypatch.setattr(table, "compiled_loop", lambda: None)
    monkeypatch.setattr(dense, "compiled_loop", lambda: None)
    table._pipeline_row.cache_clear()
    yield
    table._pipeline_row.cache_clear()


@pytest.fixture(scope="session")
def temporary_bucket(tmp_path_factory):
    """The folder of temporary files as a bucket."""
    pytest.importorskip("obstore")
    from tests.remote.through_store import Bucket

    bucket = Bucket(tmp_path_factory.mktemp("bucket"))
    with bucket.server:
        yield bucket


@pytest.fixture(autouse=True)
def unknown_headers():
    """What libhdf5 said of the files of other tests is forgotten: a test finds the same on its own."""
    from ray_h5.hdf5.tree import known_headers

    known_headers._known.clear()
    known_headers.KNOWN_NOTES.clear()


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
    from tests.remote.on_disk import QUICK, SLOW, why_on_disk

    module = metafunc.module.__file__.removeprefix(f"{_FOLDER}/")
    asked = metafunc.config.option.markexpr
    when = "slow" if module in SLOW else "nightly"
    if module not in QUICK and "store" not in asked and (when not in asked or f"not {when}" in asked):
        return  # they would be made to be left out, which takes a while
    if not why_on_disk(module, metafunc.definition):
        marks = [pytest.mark.store, *([] if module in QUICK else [getattr(pytest.mark, when)])]
        where = [pytest.param("disk", id=pytest.HIDDEN_PARAM), pytest.param("store", id="store", marks=marks)]
        metafunc.parametrize("files_in", where, indirect=True)


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 2 MiB."""
    folder = tmp_path / "small"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", folder]
    if not shutil.which("mount") or subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("this user may not mount a file system")
    yield folder
    subprocess.run(["umount", "-l", folder], check=True)


@pytest.fixture
def one_process(tmp_path):
    """A group of one process in `torch.distributed`."""
    import torch

    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path / 'store'}", rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


@pytest.fixture
def five_files(tmp_path):
    return write_five_files(tmp_path)


def write_five_files(folder):
    """Write five files, of 4, 0, 3, 5 and 1 rows."""
    paths = []
    first = 0
    for i, rows in enumerate([4, 0, 3, 5, 1]):
        path = folder / f"f{i}.h5"
        ids = np.arange(first, first + rows)
        with h5py.File(path, "w") as file:
            file["signal"] = np.repeat(ids[:, None], 6, axis=1).astype("f4").reshape(rows, 2, 3)
            file["label"] = (ids % 3).astype("u1")
            file["score"] = np.where(ids % 4 == 0, np.nan, ids).astype("f8")
            file["name"] = np.array([f"p{i}" for i in ids], dtype=h5py.string_dtype())
        paths.append(str(path))
        first += rows
    return paths
