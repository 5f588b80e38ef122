"""Hints about the next reads: when they are given, for which bytes, and when there are none."""

import os
import threading
import time

import h5py
import numpy as np
import pytest

from ray_h5.hdf5.reader import RowReader
from ray_h5.hdf5.reading import ahead, turn
from ray_h5.hdf5.reading.jobs import Fetch, LongFetch, run_jobs
from tests.hdf5.h5kit import assert_same, write

ROWS = 400
SHUFFLED = np.random.default_rng(0).permutation(ROWS)


def file_of(folder, name="a.h5", **options):
    values = np.arange(ROWS * 1200, dtype="f4").reshape(ROWS, 1200)
    return write(folder / name, {"x": values}, **options), values


LAYOUTS = {
    "contiguous": {},
    "raw": {"chunks": (1, 1200)},
    "rows_of_a_raw_chunk": {"chunks": (8, 1200)},
    "small": {"chunks": (1, 1200), "compression": "lzf"},
    "large": {"chunks": (8, 1200), "compression": "gzip", "shuffle": True},
    "split": {"chunks": (1, 300), "compression": "gzip"},
}


@pytest.mark.parametrize("options", LAYOUTS.values(), ids=LAYOUTS)
def test_reads_that_wait_are_hinted_ahead_and_return_the_same(tmp_path, disk, options):
    path, values = file_of(tmp_path, **options)
    disk.is_slow = True
    reader = RowReader(path)
    reader.read(["x"], np.arange(0, ROWS, 20))
    disk.events.clear()
    rows = SHUFFLED[::3]
    assert_same(reader.read(["x"], rows)["x"], values[rows])
    reads = disk.of("read")
    assert disk.of("hint")
    done = 0
    for kind, *extent in disk.events:
        if kind == "read":
            done += 1
        else:  # each hint is about one of the next 96 reads, or the one that is about to begin
            assert extent in reads[done : done + ahead.AHEAD_READS + 1]


@pytest.mark.parametrize("options", LAYOUTS.values(), ids=LAYOUTS)
def test_there_are_no_hints_while_memory_answers(tmp_path, disk, options):
    path, values = file_of(tmp_path, **options)
    reader = RowReader(path)
    for rows in (SHUFFLED, np.arange(ROWS)):
        assert_same(reader.read(["x"], rows)["x"], values[rows])
    assert not disk.of("hint")


def test_the_hints_end_when_reads_do_not_wait(tmp_path, disk):
    path, values = file_of(tmp_path, chunks=(1, 1200))
    reader = RowReader(path)
    disk.is_slow = True
    reader.read(["x"], SHUFFLED[:100])
    disk.is_slow = False
    reader.read(["x"], SHUFFLED)
    assert disk.of("hint")
    disk.events.clear()
    assert_same(reader.read(["x"], SHUFFLED)["x"], values[SHUFFLED])
    assert not disk.of("hint")
    disk.is_slow = True
    reader.read(["x"], SHUFFLED[:100])
    assert disk.of("hint")


def test_one_read_that_waits_begins_nothing(tmp_path, disk):
    path, _ = file_of(tmp_path, chunks=(1, 1200))
    reader = RowReader(path)
    for _ in range(20):
        disk.is_slow = True
        reader.read(["x"], [3])
        disk.is_slow = False
        reader.read(["x"], SHUFFLED)
    assert not disk.of("hint")


def test_reads_that_hints_make_short_do_not_end_the_hints():
    times = ahead.ReadTimes()
    for _ in range(10):
        times.add_read(0.001, 1000)
    for _ in range(500):  # rows of three columns, of which two lie in pages that come with the first
        for seconds in (20e-6, 1e-6, 1e-6):
            times.add_hint(seconds, 1000)
            times.add_read(2e-6, 1000, hinted=True)
    assert times.is_cold
    for _ in range(100):
        times.add_hint(1e-6, 1000)
    assert not times.is_cold


def test_threads_of_one_read_give_each_hint_once(tmp_path, disk):
    path, values = file_of(tmp_path, chunks=(1, 1200))
    disk.is_slow = True
    assert_same(RowReader(path, threads=4).read(["x"], SHUFFLED)["x"], values[SHUFFLED])
    hints = [tuple(extent) for extent in disk.of("hint")]
    assert len(set(hints)) == len(hints) > ROWS - 2 * ahead.AHEAD_READS


def test_hints_of_large_reads_are_few(tmp_path, disk):
    values = np.arange(8 << 20, dtype="f8").reshape(8, -1)  # 8 MiB a row
    path = write(tmp_path / "a.h5", {"x": values}, chunks=(1, values.shape[1]), compression="lzf")
    with h5py.File(path) as file:
        stored = file["x"].id.get_storage_size()
    assert stored > 24 << 20
    disk.is_slow = True
    reader = RowReader(path)
    for _ in range(3):
        assert_same(reader.read(["x"], SHUFFLED[SHUFFLED < 8])["x"], values[SHUFFLED[SHUFFLED < 8]])
    reads = disk.of("read")
    done = 0
    given = []
    for kind, *extent in disk.events:
        if kind == "read":
            done += 1
            given = [each for each in given if each != extent]
        else:
            given.append(extent)
            assert sum(nbytes for *_, nbytes in given) <= (16 << 20) + 2 * max(nbytes for *_, nbytes in reads)


@pytest.mark.parametrize("gone", [True, False])
def test_a_system_without_hints_reads_the_same(tmp_path, disk, monkeypatch, gone):
    def refuse(*_):
        raise OSError(22, "Invalid argument")

    if gone:
        monkeypatch.delattr(os, "posix_fadvise", raising=False)
    else:
        monkeypatch.setattr(os, "posix_fadvise", refuse, raising=False)
    path, values = file_of(tmp_path)
    disk.is_slow = True
    assert_same(RowReader(path).read(["x"], SHUFFLED[:100])["x"], values[SHUFFLED[:100]])
    assert disk.of("hint")


# Whose turn it is ------------------------------------------------------------------------------


class Busy:
    """Counts how many threads run its jobs at the same time."""

    def __init__(self):
        self.now = self.most = 0

    def __call__(self, *_):
        self.now += 1
        self.most = max(self.most, self.now)
        time.sleep(0.002)
        self.now -= 1


def at_once(*works):
    threads = [threading.Thread(target=work) for work in works]
    for each in threads:
        each.start()
    for each in threads:
        each.join(30)


@pytest.mark.parametrize(("kind", "most"), [(Fetch, 1), (LongFetch, 2)])
def test_short_jobs_are_run_by_one_thread_at_a_time(kind, most, monkeypatch):
    monkeypatch.setattr(turn, "_PATIENCE_S", 60)
    busy = Busy()
    jobs = [kind(busy, 0, 100)] * 20
    at_once(lambda: run_jobs(jobs, 1), lambda: run_jobs(jobs, 1))
    assert busy.most == most


def test_threads_whose_reads_wait_run_at_the_same_time(tmp_path, disk, monkeypatch):
    path, _ = file_of(tmp_path, chunks=(1, 1200), compression="lzf")
    reader, some = RowReader(path), np.arange(0, ROWS, 2)  # each is fetched by a call of its own
    disk.is_slow = True
    at_once(*[lambda: reader.read(["x"], some)] * 2)
    assert disk.most == 2
    # On a busy machine any read may take long, and any turn.
    disk.is_slow = False
    monkeypatch.setattr(ahead, "_LONG_S", 1e9)
    monkeypatch.setattr(turn, "_PATIENCE_S", 60)
    reader.read(["x"], some)
    disk.most = 0
    at_once(*[lambda: reader.read(["x"], some)] * 2)
    assert disk.most == 1


def test_a_thread_that_hangs_holds_no_other_one_up():
    held, done = threading.Event(), threading.Event()

    def hang(*_):
        held.set()
        assert done.wait(30)

    thread = threading.Thread(target=lambda: run_jobs([Fetch(hang, 0, 1)], 1))
    thread.start()
    assert held.wait(10)
    began = time.monotonic()
    for _ in range(100):
        run_jobs([Fetch(lambda *_: None, 0, 1)], 1)
    assert time.monotonic() - began < 5  # it waits once, not for each read
    done.set()
    thread.join(10)
    mine = turn.Turn()
    mine.take()
    mine.give_up()


def test_a_turn_that_is_kept_outlasts_the_reads_within(monkeypatch):
    monkeypatch.setattr(turn, "_PATIENCE_S", 60)
    mine = turn.turn_of_this_thread()
    with mine.kept():
        run_jobs([Fetch(lambda *_: None, 0, 1)], 1)
        with mine.kept():
            assert mine.is_held
        assert mine.is_held
        run_jobs([LongFetch(lambda *_: None, 0, 1)], 1)
        assert not mine.is_held
    assert not mine.is_held
    at_once(lambda: run_jobs([Fetch(Busy(), 0, 1)], 1))


def test_a_job_that_fails_gives_its_turn_up():
    def fail(*_):
        raise ValueError("it failed")

    for _ in range(3):
        with pytest.raises(ValueError, match="it failed"):
            run_jobs([Fetch(fail, 0, 1)], 1)
    began = time.monotonic()
    at_once(lambda: run_jobs([Fetch(Busy(), 0, 1)], 1))
    assert time.monotonic() - began < 0.09
