"""Threads that run the compiled loop together."""

import functools
import gc
import os
import shutil
import subprocess
import threading
import time
import zlib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from ray_h5.codecs import filter_ids
from ray_h5.codecs.pipeline import ChunkDecoder
from ray_h5.errors import CorruptChunkError
from ray_h5.loading import read_calls
from ray_h5.manifest.layout import FilterPipeline, FilterStep
from ray_h5.read.jobs import Worker
from ray_h5.read.native.job_table import (
    CHUNKS_DECODED,
    IN_MEMORY,
    NO_BOXES,
    NO_PIECES,
    Field,
    JobTable,
    Origin,
    pipeline_number,
)
from ray_h5.read.native.library import compiled_loop, pool_of
from ray_h5.torch_data import h5_data_loader, loader
from tests.kit.files import save

pytestmark = pytest.mark.skipif(compiled_loop() is None, reason="the loop is not compiled")


@functools.cache
def compressed(count):
    """Return the stored bytes of a chunk of as many integers."""
    return zlib.compress(np.arange(count, dtype="<i4").tobytes())


def decoding(count):
    """Return a table of jobs that take some milliseconds each, and where their values go."""
    pipeline = FilterPipeline((FilterStep(filter_ids.DEFLATE, "deflate", (6,)),))
    values = np.arange(1 << 18, dtype="<i4")
    decoder = ChunkDecoder(pipeline, values.nbytes)
    stored = np.frombuffer(compressed(len(values)), np.uint8).copy()
    out = np.zeros((count, len(values)), "<i4")
    jobs = np.zeros((len(Field), count), np.int64)
    jobs[Field.FILE], jobs[Field.OFFSET], jobs[Field.SIZE] = IN_MEMORY, stored.ctypes.data, len(stored)
    jobs[Field.PIPELINE], jobs[Field.DECODED] = pipeline_number(pipeline), values.nbytes
    jobs[Field.DESTINATION] = out.ctypes.data + np.arange(count) * values.nbytes
    origin = Origin(None, decoder, None, lambda _: values.nbytes)
    chunks = np.stack([np.zeros(count, np.int64), np.arange(count)])
    return JobTable(jobs, NO_PIECES, NO_BOXES, chunks, [origin], [out, stored]), out, values


@pytest.mark.parametrize(("threads", "helpers", "planners"), [(1, 0, 2), (2, 2, 1), (3, 2, 3), (2, 5, 4), (16, 13, 3)])
def test_tables_of_a_pool_are_run_once_and_whole(threads, helpers, planners):
    pool = pool_of(threads, helpers)

    def run(count):
        table, out, values = decoding(count)
        counts = Worker().run_table(table)
        assert counts[CHUNKS_DECODED] == count
        return (out == values).all()

    with ThreadPoolExecutor(planners, initializer=pool.enter) as executor:
        assert all(executor.map(run, [1, 2, 7, 20, 3, 1, 1, 11] * 2))


def test_damaged_chunks_of_a_pool_are_named():
    def corrupt(job, reason):
        return CorruptChunkError(f"chunk {job}: {reason}")

    def run(place):
        table, *_ = decoding(12)
        table.origins[0] = replace(table.origins[0], corrupt=corrupt)
        stored = table.keeps[1]
        stored[len(stored) // 2 :] = 0  # of all chunks: the first one is named
        with pytest.raises(CorruptChunkError, match="chunk 0"):
            Worker().run_table(table)
        return place

    with ThreadPoolExecutor(2, initializer=pool_of(2, 2).enter) as executor:
        assert list(executor.map(run, range(6))) == list(range(6))


def test_a_fork_goes_on_without_the_threads_of_a_pool():
    pool = pool_of(2, 2)
    pool.enter()
    try:
        child = os.fork()
        if child == 0:  # nothing may be raised here
            table, out, values = decoding(5)
            Worker().run_table(table)
            is_right = (out == values).all()
            pool.end()
            del pool
            gc.collect()
            os._exit(0 if is_right else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    finally:
        compiled_loop().library.ray_h5_use_pool(compiled_loop().of_thread.value.address, None, 0)


@pytest.mark.slow
def test_pools_have_no_data_races(tmp_path):
    compiler = shutil.which("cc")
    program, source = tmp_path / "pool", Path(__file__).with_name("race_pool.c")
    flags = ["-O1", "-g", "-pthread", "-fsanitize=thread"]
    made = subprocess.run([compiler, *flags, "-o", program, source], capture_output=True, text=True, check=False)
    if made.returncode:
        pytest.skip(f"no ThreadSanitizer: {made.stderr[-200:]}")
    with open(tmp_path / "bytes", "wb") as file:
        file.write(np.random.default_rng(0).bytes(8 << 20))
    run = subprocess.run([program, tmp_path / "bytes"], capture_output=True, text=True, check=False, timeout=300)
    if "unexpected memory mapping" in run.stderr:
        pytest.skip("ThreadSanitizer does not run here")
    assert run.returncode == 0, run.stderr[-4000:]


@pytest.mark.parametrize(("threads", "cpus", "expected"), [(1, 2, 2), (2, 4, 3), (2, 2, 2), (1, 1, 1)])
def test_one_thread_more_than_asked_for_plans_reads_if_it_has_a_cpu(tmp_path, monkeypatch, threads, cpus, expected):
    monkeypatch.setattr(read_calls, "cpu_count", lambda: cpus)
    values = np.arange(800_000, dtype="<f4").reshape(800, 1000)
    path = save(tmp_path / "a.h5", {"x": values}, chunks=(1, 1000))
    names, read = set(), h5_data_loader._read

    def slowly(*args, **options):
        time.sleep(0.02)
        return read(*args, **options)

    monkeypatch.setattr(h5_data_loader, "_read", slowly)

    def noted(batch):
        names.update(each.name for each in threading.enumerate() if each.name.startswith("ray_h5_loader"))
        return batch

    batches = loader(path, 8, columns=["x"], threads=threads, kept_bytes=0, shuffle=True)
    for _ in range(3):
        rows = np.concatenate([noted(batch)["x"].numpy() for batch in batches])
        np.testing.assert_array_equal(rows[np.argsort(rows[:, 0])], values)
    assert len(names) == expected
