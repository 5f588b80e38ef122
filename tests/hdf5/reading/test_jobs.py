"""Which thread does which part of a read."""

import threading
import time

import numpy as np
import pytest

from ray_h5.hdf5.reader import RowReader
from ray_h5.hdf5.reading import direct_column
from ray_h5.hdf5.reading.jobs import InTurn, run_jobs
from tests.hdf5.h5kit import assert_same, write


def test_all_jobs_are_done_once_and_those_in_turn_by_one_thread():
    together, seen, in_turn = threading.Barrier(2), [], []

    def shared(worker):
        together.wait(10)  # two threads, or it breaks
        worker.stats.requests += 1
        seen.append(threading.get_ident())

    def one(worker):
        worker.stats.requests += 1
        in_turn.append(threading.get_ident())

    stats = run_jobs([shared, InTurn([one] * 5), shared, InTurn([one]), shared, shared], 2)
    assert (stats.requests, len(seen), len(in_turn)) == (10, 4, 6)
    assert len(set(seen)) == 2
    assert len(set(in_turn)) == 1


def test_an_error_in_any_thread_is_raised():
    def fail(_):
        raise IndexError("it failed")

    def succeed(_):
        pass

    for jobs in ([fail, succeed, succeed], [succeed, succeed, fail], [InTurn([succeed, fail]), succeed]):
        with pytest.raises(IndexError, match="it failed"):
            run_jobs(jobs, 2)


def test_after_an_error_no_other_job_is_begun():
    done = []

    def fail(_):
        raise IndexError("it failed")

    def other(_):
        time.sleep(0.01)
        done.append(1)

    for jobs in ([fail, *[other] * 200], [InTurn([fail]), *[other] * 200]):
        done.clear()
        with pytest.raises(IndexError):
            run_jobs(jobs, 2)
        assert len(done) < 100


@pytest.mark.parametrize(("row_values", "jobs_of_one_thread"), [(256, True), (16384, False)])
def test_small_chunks_are_decoded_by_one_thread(tmp_path, monkeypatch, row_values, jobs_of_one_thread):
    values = np.arange(64 * row_values, dtype="f4").reshape(64, row_values)
    path = write(tmp_path / "a.h5", {"x": values}, chunks=(1, row_values), compression="gzip")
    made = []
    whole = direct_column.DirectColumn.jobs

    def jobs(self, *arguments):
        found = whole(self, *arguments)
        made.extend(found)
        return found

    monkeypatch.setattr(direct_column.DirectColumn, "jobs", jobs)
    assert_same(RowReader(path, threads=4).read(["x"])["x"], values)
    assert all(isinstance(job, InTurn) for job in made) == jobs_of_one_thread
