"""Kills and full disks: never wrong data, never half a file, no temporary file after the next run."""

import contextlib
import gc
import os
import random
import resource
import signal
import time
from pathlib import Path
from types import SimpleNamespace

import h5py
import numpy as np
import pyarrow as pa
import pytest

from ray_h5 import H5Datasink, repack
from ray_h5.errors import WriteFailedError
from tests.writing.test_repack import ROWS, check_rows, read_all, write_files


def in_child(work):
    """Run a function in a child; return its process id."""
    if child := os.fork():
        return child
    try:
        with open(os.devnull, "w") as quiet:
            os.dup2(quiet.fileno(), 2)
        work()
        os._exit(0)
    finally:
        os._exit(1)


@pytest.mark.slow
def test_a_kill_at_any_moment(tmp_path):
    paths, out = write_files(tmp_path / "in"), tmp_path / "out"
    began = time.monotonic()
    repack(paths, tmp_path / "whole")
    seconds = time.monotonic() - began
    names = sorted(os.listdir(tmp_path / "whole"))
    rows = {name: read_all(str(tmp_path / "whole" / name))["id"].tolist() for name in names}
    draw, killed = random.Random(0), 0
    for turn in range(20):
        child = in_child(lambda: repack(paths, out, overwrite=True))
        time.sleep(draw.uniform(0, seconds))
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)
        killed += os.waitpid(child, 0)[1] != 0
        there = [name for name in os.listdir(out) if not name.startswith(".")] if out.exists() else []
        for name in there:
            check_rows(read_all(str(out / name)), rows[name])
        if turn % 4 == 3:
            repack(paths, out, overwrite=True)
            assert sorted(os.listdir(out)) == names
            check_rows(read_all(str(out)), [row for name in names for row in rows[name]])
    assert killed > 5


@pytest.mark.slow
def test_a_killed_repack_is_resumed(tmp_path):
    paths, out = write_files(tmp_path / "in", 6), tmp_path / "out"
    for turn in range(5):
        child = in_child(lambda: repack(paths, out, resume=True))
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline and not (out / f"f{turn}.h5").exists():
            time.sleep(0.001)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    found = repack(paths, out, resume=True)
    assert len(found.kept) >= 5
    check_rows(read_all(str(out)), range(6 * ROWS))
    repack(paths, out, overwrite=True)
    assert [name for name in os.listdir(out) if name.startswith(".")] == []


def test_a_full_disk(tmp_path, small_disk):
    paths = write_files(tmp_path / "in")
    with pytest.raises(WriteFailedError, match="the disk is full"):
        repack(paths, small_disk / "out", codec="none", chunk_rows=4)
    assert not (small_disk / "out").exists()
    repack(paths, small_disk / "out")  # a good codec: it fits


def test_a_full_disk_of_a_write_task(small_disk):
    sink = H5Datasink(small_disk / "out", codec="none")
    sink.on_write_start()
    with pytest.raises(WriteFailedError, match="the disk is full"):
        sink.write([pa.table({"x": np.zeros(1 << 20)})], SimpleNamespace(task_idx=0))
    sink.on_write_failed(WriteFailedError())
    assert not (small_disk / "out").exists()


@pytest.fixture(scope="module")
def many_objects(tmp_path_factory):
    rng, path = np.random.default_rng(0), tmp_path_factory.mktemp("many") / "a.h5"
    with h5py.File(path, "w") as file:
        for number in range(1500):
            file[f"g{number % 7}/d{number}"] = np.arange(20)
        file.create_dataset("text", data=["x" * 50] * 5000, dtype=h5py.string_dtype())
        file["plain"] = rng.standard_normal(10**5)
        file.create_dataset("chunks", data=rng.standard_normal(10**5), chunks=(100,), compression="gzip")
        file.attrs["long"] = np.arange(1000.0)
    return path


def many_columns(folder):
    """Write a table whose metadata do not fit, either; what Ray does when a task fails."""
    sink = H5Datasink(folder, codec="none")
    sink.on_write_start()
    try:
        block = {f"c{number}": np.random.default_rng(0).standard_normal(3000) for number in range(30)}
        sink.write([pa.table({**block, "text": ["x" * 100] * 3000})], SimpleNamespace(task_idx=0))
    finally:
        sink.on_write_failed(WriteFailedError())


@pytest.mark.parametrize("left", [64, *(pytest.param(left, marks=pytest.mark.slow) for left in (0, 16, 200, 600))])
@pytest.mark.parametrize("kind", ["repack", "page", "task"])
def test_the_process_lives_when_the_disk_gets_full(many_objects, small_disk, left, kind):
    free = os.statvfs(small_disk)
    with open(small_disk / "fill", "wb") as file:
        file.write(bytes(free.f_bavail * free.f_bsize - (left << 10)))

    def write():
        if kind == "task":
            many_columns(small_disk / "out")
        else:
            repack(many_objects, small_disk / "out.h5", page="64KiB" if kind == "page" else None)

    def work():
        with pytest.raises(WriteFailedError, match="the disk is full"):
            write()
        gc.collect()

    child = in_child(work)
    assert os.waitpid(child, 0)[1] == 0
    assert [name for _, _, files in os.walk(small_disk) for name in files] == ["fill"]


def test_a_large_array_on_a_full_disk_takes_no_memory(tmp_path, small_disk):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["x"] = np.ones((1 << 20, 40))  # 320 MiB, copied as it is
    limit = 200 << 20

    def work():
        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + limit, used + limit))
        with pytest.raises(WriteFailedError, match="the disk is full"):
            repack(tmp_path / "a.h5", small_disk / "out.h5", threads=1)

    child = in_child(work)
    assert os.waitpid(child, 0)[1] == 0
