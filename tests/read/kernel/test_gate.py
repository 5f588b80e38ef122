"""How many threads run the compiled loop at one time."""

import gc
import threading
import time
import zlib

import numpy as np
import pytest

from ray_h5.codecs import filters
from ray_h5.codecs.pipeline import ChunkDecoder
from ray_h5.manifest.layout import FilterPipeline, FilterStep
from ray_h5.read.kernel.job_table import IN_MEMORY, NO_BOXES, NO_PIECES, Field, JobTable, Origin, pipeline_number
from ray_h5.read.kernel.library import compiled_loop, gate_for
from ray_h5.read.kernel.run_tables import new_times, run_table
from ray_h5.torch_data import h5_data_loader, loader
from tests.hdf5.h5kit import write

pytestmark = pytest.mark.skipif(compiled_loop() is None, reason="the loop is not compiled")


def decoding(count):
    """Return a table of jobs that take some milliseconds each, and where their values go."""
    pipeline = FilterPipeline((FilterStep(filters.DEFLATE, (6,)),))
    values = np.arange(1 << 18, dtype="<i4")
    decoder = ChunkDecoder(pipeline, values.nbytes)
    stored = np.frombuffer(zlib.compress(values.tobytes()), np.uint8)
    out = np.zeros((count, len(values)), "<i4")
    jobs = np.zeros((len(Field), count), np.int64)
    jobs[Field.FILE], jobs[Field.OFFSET], jobs[Field.SIZE] = IN_MEMORY, stored.ctypes.data, len(stored)
    jobs[Field.PIPELINE], jobs[Field.DECODED] = pipeline_number(pipeline), values.nbytes
    jobs[Field.DESTINATION] = out.ctypes.data + np.arange(count) * values.nbytes
    return JobTable(jobs, NO_PIECES, NO_BOXES, [Origin(count, None, decoder, None)], [out, stored]), out, values


def test_threads_run_one_after_the_other_through_a_gate_for_one():
    gate, done = gate_for(1), []

    def run():
        gate.enter()
        table, out, values = decoding(20)
        ready.wait()
        began = time.thread_time()
        run_table(table, new_times())
        done.append(time.thread_time() - began)
        assert (out == values).all()

    ready = threading.Barrier(4, timeout=60)
    threads = [threading.Thread(target=run) for _ in range(3)]
    for each in threads:
        each.start()
    ready.wait()
    began = time.perf_counter()
    for each in threads:
        each.join()
    assert len(done) == 3
    # Side by side they would take less time than the sum, on two cores; a busy machine makes it longer.
    assert time.perf_counter() - began >= 0.9 * sum(done)


def test_a_thread_that_entered_no_gate_waits_for_none_and_gates_go_with_their_threads():
    gates = [gate_for(1) for _ in range(50)]

    def run():
        for each in gates:  # the last one counts
            each.enter()
        table, out, values = decoding(1)
        run_table(table, new_times())
        assert (out == values).all()

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    gates.clear()
    gc.collect()
    table, out, values = decoding(1)
    run_table(table, new_times())
    assert (out == values).all()


@pytest.mark.parametrize(("threads", "cpus", "expected"), [(1, 2, 2), (2, 4, 3), (2, 2, 2), (1, 1, 1)])
def test_one_thread_more_than_asked_for_plans_reads_if_it_has_a_cpu(tmp_path, monkeypatch, threads, cpus, expected):
    monkeypatch.setattr(h5_data_loader, "cpu_count", lambda: cpus)
    values = np.arange(4000, dtype="<f4").reshape(400, 10)
    path = write(tmp_path / "a.h5", {"x": values}, chunks=(1, 10))
    names = set()

    def noted(batch):
        names.update(each.name for each in threading.enumerate() if each.name.startswith("ray_h5_loader"))
        return batch

    batches = loader(path, 8, columns=["x"], threads=threads, kept_bytes=0, shuffle=True)
    for _ in range(3):
        rows = np.concatenate([noted(batch)["x"].numpy() for batch in batches])
        np.testing.assert_array_equal(rows[np.argsort(rows[:, 0])], values)
    assert len(names) == expected
