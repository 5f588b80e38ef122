"""What a process keeps: bounds, and forks."""

import subprocess
import sys

import pytest

from ray_h5.lru import LRU


def keep(kept, key, value):
    return kept.update(key, lambda _: value)


def test_those_used_last_are_kept():
    kept = LRU(2)
    keep(kept, "a", 1)
    keep(kept, "b", 2)
    assert kept.get("a") == 1
    keep(kept, "c", 3)
    assert [kept.get(key) for key in "abc"] == [1, None, 3]
    assert kept.update("a", lambda known: known + 10) == 11
    keep(kept, "d", 4)
    assert [kept.get(key) for key in "acd"] == [11, None, 4]


def test_bytes_are_bounded_and_counted_once():
    kept = LRU(10, 100, len)
    keep(kept, "a", bytes(60))
    keep(kept, "a", bytes(50))
    assert kept.total_bytes == 50
    keep(kept, "b", bytes(60))
    assert (kept.get("a"), kept.total_bytes) == (None, 60)
    keep(kept, "c", bytes(101))
    assert (len(kept), kept.total_bytes) == (0, 0)


def test_bounds_that_change_hold_from_the_next_value_on():
    kept = LRU(3)
    for key in "abc":
        keep(kept, key, key)
    kept.max_items = 1
    keep(kept, "d", "d")
    assert kept.values() == ["d"]


def test_only_the_value_that_is_meant_is_dropped():
    kept = LRU(2, nbytes=len)
    old, new = [1], [1]
    keep(kept, "a", old)
    keep(kept, "a", new)
    kept.drop("a", old)
    assert kept.get("a") is new
    kept.drop("a", new)
    assert (kept.get("a"), kept.total_bytes) == (None, 0)
    kept.drop("a", new)


def test_a_change_that_fails_leaves_what_was_there():
    kept = LRU(2)
    keep(kept, "a", 1)
    with pytest.raises(ZeroDivisionError):
        kept.update("a", lambda known: known // 0)
    assert kept.get("a") == 1


FORK = """
import os, signal, threading, warnings
from ray_h5.lru import LRU
warnings.simplefilter("ignore")
kept = LRU(2)
kept.update("a", lambda _: 1)
held, free = threading.Event(), threading.Event()
def change(known):
    held.set()
    free.wait(20)
    return 2
if {held}:
    threading.Thread(target=kept.update, args=("b", change)).start()
    held.wait(20)
child = os.fork()
if child == 0:
    signal.alarm(20)
    found = kept.get("a")
    kept.update("c", lambda _: 3)
    os._exit(0 if (found, kept.get("c")) == (None, 3) else 1)
free.set()
assert os.waitpid(child, 0)[1] == 0
"""


@pytest.mark.parametrize("held", [False, True])
def test_a_forked_child_has_an_empty_cache_and_a_free_lock(held):
    code = FORK.format(held=held)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
