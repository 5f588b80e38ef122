"""A full cache makes room for what comes again, of what is needed last or never; its bytes are right always."""

import errno
import gc
import os
import signal
import subprocess
import sys
import textwrap
import time

import numpy as np
import pytest

from ray_h5.storage.disk_cache import LATER, NEVER
from ray_h5.storage.disk_cache import cache as cache_module
from ray_h5.storage.disk_cache.block_file import BLOCK_BYTES
from tests.storage.test_disk_cache import FOLDER, Remote, block_file, cache_at, read_all, taken

ROW, ROWS = 4 * BLOCK_BYTES, 32
SIZE = ROW * ROWS


class Uses:
    """When each row of a file is needed, and when others have to be to make room for it."""

    def __init__(self, due, room):
        self.due, self.making = np.repeat(np.asarray(due, float), 4), np.repeat(np.asarray(room, float), 4)
        self.turns = 0

    @property
    def progress(self):
        self.turns += 1
        return self.turns  # victims are looked for whenever there is time

    def blocks(self, first, end):
        return self.due[first:end]

    def room(self, first, end):
        return self.making[first:end]


def share(rows=ROWS):
    """Return the bytes that some rows take in a cache."""
    return rows * ROW + 8192


def read(remote, getter, rows):
    """Read rows; return how many of them were fetched. A cache that is full takes note of that by the first one."""
    remote.fetched.clear()
    for row in rows:
        read_all(remote, getter, [row], ROW)
        time.sleep(0.002)
    return len(remote.fetched)


def filled(tmp_path, rows=16):
    """Return a file, of which the cache has the first rows, and is full."""
    remote = Remote(SIZE)
    getter = remote.cached(cache_at(tmp_path, share(rows)))
    read(remote, getter, range(ROWS))
    assert read(remote, getter, range(rows)) == 0
    return remote, getter


def test_rows_that_are_never_needed_make_room(tmp_path):
    remote, getter = filled(tmp_path)
    uses = Uses([NEVER] * 16 + [1.5] * 16, [NEVER] * 16 + [LATER] * 16)
    getter.follow(uses)
    read(remote, getter, range(16, ROWS))
    assert read(remote, getter, range(16, ROWS)) <= 1
    assert taken(tmp_path) <= share(16) + 8192
    # An order that is not read any more is forgotten, and everything stays.
    del uses
    gc.collect()
    before = taken(tmp_path)
    read(remote, getter, range(16))
    assert read(remote, getter, range(16, ROWS)) <= 1
    assert taken(tmp_path) == before


def test_the_row_that_is_needed_furthest_ahead_makes_room(tmp_path):
    remote, getter = filled(tmp_path)
    due = np.linspace(0.1, 0.8, 16)
    uses = Uses([*due, *[0.1] * 16], [NEVER] * 20 + [0.6] * 4 + [NEVER] * 8)
    getter.follow(uses)
    read(remote, getter, range(20, 24))
    assert read(remote, getter, range(20, 24)) <= 1
    kept = [row for row in range(16) if read(remote, getter, [row]) == 0]
    assert kept == list(range(len(kept)))  # the last ones are gone
    assert len(kept) in (12, 13)


def test_rows_that_are_needed_as_late_stay(tmp_path):
    remote, getter = filled(tmp_path)
    uses = Uses([1.9] * ROWS, [LATER] * ROWS)
    getter.follow(uses)
    for _ in range(3):
        read(remote, getter, range(16, ROWS))
    assert read(remote, getter, range(16)) == 0


def test_what_two_orders_of_a_process_need_stays(tmp_path):
    remote, getter = filled(tmp_path)
    ones = Uses([NEVER] * 16 + [1.5] * 16, [NEVER] * 16 + [LATER] * 16)
    others = Uses([1.5] * 16 + [NEVER] * 16, [LATER] * 16 + [NEVER] * 16)
    getter.follow(ones)
    getter.follow(others)
    read(remote, getter, range(16, ROWS))
    assert read(remote, getter, range(16)) == 0


def test_what_libhdf5_reads_stays(tmp_path):
    remote = Remote(SIZE)
    getter = remote.cached(cache_at(tmp_path, share(8)))
    getter.lasting().get(0, ROW)
    read(remote, getter, range(8))
    uses = Uses([NEVER] * 8 + [1.5] * 24, [NEVER] * 8 + [LATER] * 24)
    getter.follow(uses)
    read(remote, getter, [9, *range(8, ROWS)])
    assert read(remote, getter, [0]) == 0
    assert read(remote, getter, range(9, 15)) <= 1
    assert read(remote, getter, range(1, 8)) >= 6


def test_a_row_finds_room_as_a_whole_or_not_at_all(tmp_path):
    remote, getter = filled(tmp_path)
    uses = Uses([NEVER] + [1.5] * 31, [LATER] * ROWS)
    uses.due[:2] = 1.5  # half of the first row
    getter.follow(uses)
    for _ in range(2):
        read(remote, getter, range(16, ROWS))
    assert read(remote, getter, range(16)) == 0


def test_a_disk_without_holes_keeps_what_it_has(tmp_path, monkeypatch):
    from ray_h5.storage.disk_cache import block_file as module

    def punch(*_):
        raise OSError(errno.EOPNOTSUPP, "no holes")

    monkeypatch.setattr(module, "punch", punch)
    remote, getter = filled(tmp_path)
    uses = Uses([NEVER] * 16 + [1.5] * 16, [NEVER] * 16 + [LATER] * 16)
    getter.follow(uses)
    read(remote, getter, range(16, ROWS))
    assert read(remote, getter, range(16)) == 0


OTHER = """
    import sys, time
    from tests.storage.test_disk_cache import cache_at
    order = cache_at(sys.argv[1]).evictions.running("another")
    print("ready", flush=True)
    time.sleep(60)
"""


def test_another_order_is_read_by_another_process(tmp_path, monkeypatch):
    monkeypatch.setattr("ray_h5.storage.disk_cache.evictions._ORDERS_S", 0.0)
    remote, getter = filled(tmp_path)
    command = [sys.executable, "-c", textwrap.dedent(OTHER), str(tmp_path)]
    running = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert running.stdout.readline() == "ready\n"
    uses, mine = Uses([NEVER] * 16 + [1.5] * 16, [NEVER] * 16 + [LATER] * 16), getter.running("mine")
    getter.follow(uses)
    read(remote, getter, range(16, ROWS))
    assert read(remote, getter, range(16)) == 0  # nobody here knows what the other one needs
    running.send_signal(signal.SIGKILL)
    running.communicate()
    read(remote, getter, range(16, ROWS))
    assert read(remote, getter, range(16, ROWS)) <= 1
    names = {path.name for path in (tmp_path / FOLDER).iterdir()}
    assert "order-mine" in names
    assert "order-another" not in names
    del mine


PROCESS = """
    import sys, numpy as np
    from tests.storage.test_disk_cache import Remote, cache_at
    from tests.storage.test_evictions import ROW, ROWS, SIZE, Uses
    folder, limit, seed, turns = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
    remote, random = Remote(SIZE), np.random.default_rng(seed)
    getter = remote.cached(cache_at(folder, limit))
    order = getter.running("one")
    uses = Uses(random.random(ROWS), random.random(ROWS))
    getter.follow(uses)
    print("ready", flush=True)
    for turn in range(turns):
        if turn % 20 == 0:
            uses.due, uses.making = np.repeat(random.random(ROWS), 4), np.repeat(random.random(ROWS), 4)
        at = int(random.integers(0, SIZE))
        nbytes = int(min(random.integers(1, 3 * ROW), SIZE - at))
        assert getter.get(at, nbytes) == remote.bytes[at : at + nbytes]
"""


def process(folder, seed, turns):
    command = [sys.executable, "-c", textwrap.dedent(PROCESS), str(folder), str(share(16)), str(seed), str(turns)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def test_processes_that_make_room_while_others_read(tmp_path):
    running = [process(tmp_path, seed, 600) for seed in range(3)]
    for each in running:
        each.communicate(timeout=60)
    assert [each.returncode for each in running] == [0, 0, 0]
    assert taken(tmp_path) <= share(16) + 8192


def test_processes_that_are_killed_while_they_make_room(tmp_path):
    for seed in range(4):
        running = process(tmp_path, seed, 10**9)
        assert running.stdout.readline() == "ready\n"
        time.sleep(0.1 + 0.05 * seed)
        running.send_signal(signal.SIGKILL)
        running.communicate()
        remote = Remote(SIZE)
        getter = remote.cached(cache_at(tmp_path, share(16)))
        assert getter.get(0, SIZE) == remote.bytes
        read_all(remote, getter, range(ROWS), ROW)
    assert taken(tmp_path) <= share(16) + 8192


@pytest.mark.parametrize("is_punched", [False, True])
def test_a_crash_between_the_hole_and_the_records(tmp_path, is_punched, monkeypatch):
    from ray_h5.storage.disk_cache import block_file as module

    remote, getter = filled(tmp_path)
    file, punch = getter._file, module.punch

    def dies(*given):
        if is_punched:
            punch(*given)
        raise OSError(errno.EIO, "the process dies here")

    monkeypatch.setattr(module, "punch", dies)
    with pytest.raises(OSError, match="dies"):
        file.drop(0, 8)
    monkeypatch.undo()
    another = remote.cached(cache_at(tmp_path, share(16)))
    assert read(remote, another, range(16)) == (2 if is_punched else 0)
    assert read(remote, another, range(16)) == 0
    assert taken(tmp_path) <= share(16) + 8192


def test_a_clock_that_was_set_back(tmp_path):
    first, second = Remote(SIZE, 1), Remote(SIZE, 2)
    first.cached(cache_at(tmp_path, share(ROWS))).get(0, SIZE)
    ahead = time.time() + 86400
    os.utime(block_file(tmp_path), (ahead, ahead))
    other = cache_at(tmp_path, share(ROWS), "b/*.h5")
    for _ in range(2):
        assert second.cached(other).get(0, SIZE) == second.bytes
    assert len(second.fetched) == 1


def test_a_clock_that_is_set_back_while_it_is_used(tmp_path, monkeypatch):
    first, second = Remote(SIZE, 1), Remote(SIZE, 2)
    monkeypatch.setattr(cache_module.time, "time", lambda now=time.time: now() + 86400)
    other = cache_at(tmp_path, share(ROWS), "b/*.h5")
    monkeypatch.undo()
    getter = first.cached(cache_at(tmp_path, share(ROWS)))
    getter.get(0, SIZE)
    time.sleep(1.1)  # whoever uses a file says so once a second
    getter.get(0, SIZE)
    second.cached(other).get(0, SIZE)
    assert getter.get(0, SIZE) == first.bytes
    assert len(first.fetched) in (1, 2)
