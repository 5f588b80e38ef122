"""Threads that wait for their turn help with the work of another one; whatever fails, none waits for ever."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from ray_h5.read import shared_work
from ray_h5.read.jobs import Worker
from ray_h5.read.shared_work import Turns


class Part:
    """A part of a table, as far as `Turns` knows it."""

    def __init__(self, action):
        self.action = action

    def run_alone(self, worker):
        worker.stats.chunks_decoded += 1
        self.action()


def turn(turns, parts):
    """Have a turn, and return what it has cost."""
    worker, mine = Worker(), object()
    try:
        assert turns.begin(mine)
        turns.run(parts, worker)
    finally:
        turns.end(mine)
    return worker.stats.chunks_decoded


def together(*calls):
    with ThreadPoolExecutor(len(calls)) as pool:
        return [each.result(20) for each in [pool.submit(*call) for call in calls]]


def test_a_thread_that_waits_runs_parts_of_the_other_one():
    turns, both = Turns(), threading.Barrier(2)
    # None of these parts ends before the other one has begun.
    parts = [Part(lambda: both.wait(20)) for _ in range(2)]
    assert together((turn, turns, parts), (turn, turns, [Part(lambda: None)])) == [2, 1]


def test_turns_follow_each_other():
    turns, running = Turns(), []

    def run(name):
        running.append(name)
        assert {*running} == {name}
        running.remove(name)

    calls = [(turn, turns, [Part(lambda name=name: run(name)) for _ in range(50)]) for name in range(4)]
    assert together(*calls) == [50] * 4


@pytest.mark.parametrize("error", [OSError, MemoryError, KeyboardInterrupt])
def test_a_part_that_fails_in_another_thread_is_run_again(error):
    turns, both, failed, leader = Turns(), threading.Barrier(2), [], []

    def run():
        if not failed:
            both.wait(20)  # one runs it here, and one there
        if threading.get_ident() != leader[0]:
            failed.append(1)
            raise error("only here")

    def lead():
        leader.append(threading.get_ident())
        return turn(turns, [Part(run), Part(run)])

    def follow():
        try:
            return turn(turns, [Part(lambda: None)])
        except KeyboardInterrupt:
            return "interrupted"

    found = together((lead,), (follow,))
    assert failed
    assert found[0] >= 3  # a part was begun twice
    assert found[1] == ("interrupted" if error is KeyboardInterrupt else 1)
    assert turn(turns, [Part(lambda: None)]) == 1


@pytest.mark.parametrize("error", [OSError, MemoryError, KeyboardInterrupt])
def test_an_error_lets_the_next_thread_have_its_turn(error):
    turns, is_taken = Turns(), threading.Event()

    def fail():
        is_taken.set()
        raise error("no")

    def lead():
        with pytest.raises(error):
            turn(turns, [Part(fail), Part(lambda: None)])

    def follow():
        is_taken.wait(20)
        return turn(turns, [Part(lambda: None)])

    assert together((lead,), (follow,))[1] == 1
    assert turn(turns, [Part(lambda: None)] * 3) == 3


def test_an_error_waits_for_the_parts_that_others_run():
    turns, both, ended = Turns(), threading.Barrier(2), []

    def run():
        both.wait(20)
        if threading.get_ident() == leader[0]:
            raise OSError("no")
        threading.Event().wait(0.05)
        ended.append(1)

    leader = []

    def lead():
        leader.append(threading.get_ident())
        with pytest.raises(OSError, match="no"):
            turn(turns, [Part(run), Part(run)])
        return list(ended)

    assert together((lead,), (turn, turns, [Part(lambda: None)])) == [[1], 1]


def test_nobody_waits_for_a_thread_that_hangs(monkeypatch):
    monkeypatch.setattr(shared_work, "_PATIENCE_S", 0.02)
    turns, hangs, goes_on = Turns(), threading.Event(), threading.Event()

    def hang():
        hangs.set()
        goes_on.wait(20)

    def follow():
        hangs.wait(20)
        try:
            return turns.begin(object())
        finally:
            goes_on.set()

    assert together((turn, turns, [Part(hang)]), (follow,)) == [1, False]
    assert turn(turns, [Part(lambda: None)]) == 1
