"""Which thread does which part of a read."""

import threading
import time

import pytest

from ray_h5.read.jobs import InTurn, run_jobs


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
