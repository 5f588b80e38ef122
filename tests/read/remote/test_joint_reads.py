"""Large ranges of a file in a store are put together from parts, a bounded number of them at a time."""

import threading
import time
import tracemalloc

import numpy as np
import pytest

from ray_h5.manifest.row_requests import Request
from ray_h5.read import coalesced_reads
from ray_h5.read.coalesced_reads import cost_of
from ray_h5.read.file_reads import run_all
from ray_h5.read.jobs import staged
from ray_h5.read.native.job_table import NO_BOXES, NO_DESCRIPTOR, NO_PIECES, RAW, Field, JobTable, Origin
from ray_h5.storage.byte_source import ObjectIdentity
from ray_h5.storage.stores.store_base import RemoteFile

RANGE, COUNT = 9 << 20, 80


class Held(RemoteFile):
    """A file in memory that is read as if it were in a store."""

    def __init__(self, data):
        self._expect, self._cached = ObjectIdentity("a", len(data)), None
        self._data, self._lock = memoryview(data), threading.Lock()
        self.begun, self.done, self.most = set(), set(), 0

    def identity(self):
        return self._expect

    def get(self, offset, nbytes):
        with self._lock:
            self.begun.add(offset // (RANGE >> 10))
            self.most = max(self.most, len(self.begun - self.done))
        return self._data[offset : offset + nbytes]


def copy(source, offset, staged):
    """Return a table of one job, which copies a range as it is stored."""
    table = np.zeros((len(Field), 1), np.int64)
    table[Field.FILE], table[Field.PIPELINE], table[Field.OFFSET] = NO_DESCRIPTOR, RAW, offset
    table[Field.SIZE], table[Field.DECODED], table[Field.DESTINATION] = len(staged), len(staged), staged.ctypes.data
    return [
        JobTable(table, NO_PIECES, NO_BOXES, np.zeros((2, 1), np.int64), [Origin(source, None, None, None)], [staged])
    ]


def put(source, out, number, values):
    out[number] = values
    source.done.add(number)


def jobs(source, nbytes, out=None):
    return [
        job
        for i in range(COUNT)
        for job in staged(
            source,
            lambda _, values, i=i: copy(source, i * nbytes, values[0]),
            [Request.range(i, i, 1)],
            np.empty((0, nbytes), "u1"),
            lambda _, values, i=i: put(source, out, i, values),
        )
    ]


def test_a_cost_takes_no_memory():
    source = Held(b"")
    none = np.broadcast_to(np.uint8(0), RANGE)
    tracemalloc.start()
    cost = cost_of([job for i in range(COUNT) for job in copy(source, i * RANGE, none)])
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert (cost.requests, cost.bytes_read) == (2 * COUNT, RANGE * COUNT)
    assert peak < 1 << 20


@pytest.fixture
def small_parts(monkeypatch):
    sizes = {"GAP_BYTES": 0, "FEW_GAP_BYTES": 0, "LEAST_PART_BYTES": 1 << 10, "MOST_PART_BYTES": 2 << 10}
    for name, size in sizes.items():
        monkeypatch.setattr(coalesced_reads, name, size)


@pytest.mark.usefixtures("small_parts")
def test_large_ranges_are_put_together_a_few_at_a_time(monkeypatch):
    data = np.random.default_rng(0).integers(0, 256, COUNT * (RANGE >> 10), np.uint8)
    source, out = Held(data.data), np.zeros((COUNT, RANGE >> 10), np.uint8)
    monkeypatch.setattr(coalesced_reads, "_WHOLE_BYTES", 10 * (RANGE >> 10))
    stats = run_all(jobs(source, RANGE >> 10, out), 1)
    np.testing.assert_array_equal(out.reshape(-1), data)
    assert stats.bytes_read == len(data)
    assert source.most <= 10


class LastFirst(Held):
    """A file whose last part arrives first, and its first part last."""

    def get(self, offset, nbytes):
        time.sleep(0.02 * (1 - offset / self.size))
        return self._data[offset : offset + nbytes]


@pytest.mark.usefixtures("small_parts")
def test_parts_of_a_range_arrive_in_any_order():
    data = np.random.default_rng(0).integers(0, 256, (9 << 10) + 5, np.uint8)
    source, out = LastFirst(data.data), np.zeros_like(data)
    stats = run_all(copy(source, 0, out), 1)
    np.testing.assert_array_equal(out, data)
    assert (stats.requests, stats.bytes_read) == (10, len(data))


def test_the_jobs_of_a_request_run_together(monkeypatch):
    data = np.random.default_rng(0).integers(0, 256, 1 << 20, np.uint8)
    source, out = Held(data.data), np.zeros_like(data)
    table = np.zeros((len(Field), 1 << 14), np.int64)
    table[Field.FILE], table[Field.PIPELINE] = NO_DESCRIPTOR, RAW
    table[Field.OFFSET] = np.arange(1 << 14)[::-1] * 64
    table[Field.SIZE] = table[Field.DECODED] = 64
    table[Field.DESTINATION] = table[Field.OFFSET] + out.ctypes.data
    made, in_memory = [], JobTable.in_memory
    monkeypatch.setattr(JobTable, "in_memory", lambda *given: made.append(1) or in_memory(*given))
    job = JobTable(
        table, NO_PIECES, NO_BOXES, np.zeros((2, 1 << 14), np.int64), [Origin(source, None, None, None)], [out]
    )
    stats = run_all([job], 2)
    np.testing.assert_array_equal(out, data)
    assert stats.requests == len(made) == 1
