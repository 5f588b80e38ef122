"""Bytes of remote files on a local disk: each is right or fetched again, whatever happens to the disk."""

import os
import random
import signal
import subprocess
import sys
import textwrap
import time

import numpy as np
import pytest

from ray_h5.errors import OptionError
from ray_h5.storage import block_cache
from ray_h5.storage.block_cache import BlockCache, CachedFile, cache_for

FOLDER = "ray_h5-cache-3"
BIG = 1 << 30


class Remote:
    """A file that counts what is fetched of it."""

    def __init__(self, size, seed=0):
        self.bytes = np.random.default_rng(seed).bytes(size)
        self.place, self.state = f"s3://bkt/{seed}.h5", "etag"
        self.fetched = []

    def get(self, offset, nbytes):
        self.fetched.append((offset, nbytes))
        return memoryview(self.bytes)[offset : offset + nbytes]

    def cached(self, cache):
        return CachedFile(cache, self.get, self.place, self.state, len(self.bytes))


def cache_at(folder, max_bytes=BIG):
    return BlockCache(str(folder), max_bytes)


def read_all(remote, getter, rows, row_bytes):
    for row in rows:
        at = int(row) * row_bytes
        assert getter.get(at, row_bytes) == remote.bytes[at : at + row_bytes]


def taken(folder):
    return sum(each.stat().st_blocks * 512 for each in (folder / FOLDER).iterdir())


def block_file(folder):
    (path,) = (folder / FOLDER).iterdir()
    return path


def test_each_byte_is_fetched_once(tmp_path):
    remote, draw = Remote(1_000_003), random.Random(0)
    getter = remote.cached(cache_at(tmp_path))
    for _ in range(300):
        offset = draw.randrange(len(remote.bytes))
        nbytes = min(draw.choice([1, 100, 20_000, 200_000]), len(remote.bytes) - offset)
        assert getter.get(offset, nbytes) == remote.bytes[offset : offset + nbytes]
    assert getter.get(0, len(remote.bytes)) == remote.bytes
    remote.fetched.clear()
    assert getter.get(0, len(remote.bytes)) == remote.bytes
    assert remote.cached(cache_at(tmp_path)).get(7, 999_000) == remote.bytes[7:999_007]  # as another process has it
    assert remote.fetched == []
    assert taken(tmp_path) < 1_100_000


def test_a_range_beyond_the_end_is_asked_of_the_store(tmp_path):
    remote = Remote(100)
    getter = remote.cached(cache_at(tmp_path))
    assert getter.get(0, 100) == remote.bytes
    assert len(getter.get(90, 20)) == 10  # the store names the error
    assert remote.fetched == [(0, 100), (90, 20)]


@pytest.mark.parametrize("damage", ["flip", "zeros", "cut", "empty", "records", "removed", "head"])
def test_damage_is_fetched_again(tmp_path, damage):
    remote = Remote(200_000)
    remote.cached(cache_at(tmp_path)).get(0, 200_000)
    path = block_file(tmp_path)
    size = path.stat().st_size
    with open(path, "r+b") as file:
        if damage == "flip":
            file.seek(size - 60_000)
            byte = file.read(1)
            file.seek(size - 60_000)
            file.write(bytes([byte[0] ^ 1]))
        elif damage == "zeros":
            file.seek(size - 60_000)
            file.write(bytes(20_000))
        elif damage == "records":
            file.seek(4096)
            file.write(os.urandom(64))
        elif damage == "head":
            file.write(b"other")
        else:
            file.truncate({"cut": size - 1, "empty": 0}.get(damage, size))
    if damage == "removed":
        path.unlink()
    remote.fetched.clear()
    getter = remote.cached(cache_at(tmp_path))
    assert getter.get(0, 200_000) == remote.bytes
    assert len(remote.fetched) == 1
    assert getter.get(0, 200_000) == remote.bytes
    assert len(remote.fetched) == 1


@pytest.mark.parametrize(("first", "second"), [(0, 5), (5, 0), (3, 4)])
def test_a_block_that_is_copied_with_its_record_to_another_place_is_fetched_again(tmp_path, first, second):
    remote, size = Remote(10 * block_cache.BLOCK_BYTES), block_cache.BLOCK_BYTES
    remote.cached(cache_at(tmp_path)).get(0, len(remote.bytes))
    data = bytearray(block_file(tmp_path).read_bytes())
    for begin, width in ((0, 8), (4096, size)):  # records, and blocks
        at, to = begin + first * width, begin + second * width
        data[to : to + width] = data[at : at + width]
    block_file(tmp_path).write_bytes(data)
    remote.fetched.clear()
    assert remote.cached(cache_at(tmp_path)).get(0, len(remote.bytes)) == remote.bytes
    assert remote.fetched == [(second * size, size)]


def test_a_file_that_is_removed_while_it_is_used(tmp_path, monkeypatch):
    remote = Remote(100_000)
    getter = remote.cached(cache_at(tmp_path))
    assert getter.get(0, 50_000) == remote.bytes[:50_000]
    block_file(tmp_path).unlink()
    assert getter.get(0, 100_000) == remote.bytes
    monkeypatch.setattr(block_cache, "_TOUCH_S", 0.0)  # after a second at most, it is noticed
    assert getter.get(0, 100_000) == remote.bytes
    assert taken(tmp_path) > 100_000, "another file is made"
    assert remote.cached(cache_at(tmp_path)).get(0, 100_000) == remote.bytes


@pytest.mark.parametrize("share", [0.3, 0.5, 0.8])
def test_a_cache_that_is_too_small_keeps_its_share(tmp_path, share):
    remote, row_bytes, rows = Remote(8 << 20), 64 << 10, 128
    cache = cache_at(tmp_path, int(len(remote.bytes) * share))
    for epoch in range(4):
        remote.fetched.clear()
        # A run may end and another one begin meanwhile.
        getter = remote.cached(cache if epoch % 2 else cache_at(tmp_path, int(len(remote.bytes) * share)))
        read_all(remote, getter, np.random.default_rng(epoch).permutation(rows), row_bytes)
        assert taken(tmp_path) <= len(remote.bytes) * share + 8192
        if epoch:
            assert len(remote.fetched) <= rows * (1 - share) + 3


def test_files_that_nobody_uses_make_room_least_recently_used_first(tmp_path):
    old, recent, new = (Remote(1 << 20, seed) for seed in (1, 2, 3))
    limit = (2 << 20) + 100_000
    for remote in (old, recent):
        remote.cached(cache_at(tmp_path, limit)).get(0, 1 << 20)
        time.sleep(0.05)
    cache = cache_at(tmp_path, limit)
    for _ in range(2):
        assert new.cached(cache).get(0, 1 << 20) == new.bytes
    assert len(new.fetched) == 1
    assert recent.cached(cache).has([(0, 1 << 20)]) == [True]
    assert old.cached(cache).has([(0, 1 << 20)]) == [False]
    old.cached(cache).get(0, 1 << 20)  # `recent` and `new` are in use: their turn in the epoch may be later
    assert recent.cached(cache).get(0, 1 << 20) == recent.bytes
    assert [len(remote.fetched) for remote in (old, recent, new)] == [2, 1, 1]
    assert taken(tmp_path) <= limit


def test_files_that_no_cache_made_stay(tmp_path):
    remote, limit = Remote(1 << 20), 200_000
    cache_at(tmp_path, limit)
    folder = tmp_path / FOLDER
    (tmp_path / "thesis.tex").write_text("mine")
    (folder / f"{'0' * 32}-{'1' * 32}").symlink_to(tmp_path / "thesis.tex")
    (folder / f"{'0' * 32}-{'2' * 32}").mkdir()
    (folder / "thesis.tex").write_bytes(b"mine" * 100_000)
    os.utime(folder / "thesis.tex", (1e9, 1e9))
    before = set(os.listdir(folder))
    for each in (remote, Remote(1 << 20, 1)):  # the second needs the room that is left
        each.cached(cache_at(tmp_path, limit)).get(0, 180_000)
    assert before <= set(os.listdir(folder))
    assert (tmp_path / "thesis.tex").read_text() == "mine"


def test_a_link_with_the_name_of_a_temporary_file_is_not_followed(tmp_path):
    remote = Remote(1 << 20)
    cache = cache_at(tmp_path)
    (tmp_path / "thesis.tex").write_text("mine")
    path = remote.cached(cache).path
    os.symlink(tmp_path / "thesis.tex", f"{path}.new")
    remote.cached(cache).get(0, 1000)
    assert remote.cached(cache).has([(0, 1000)]) == [True]
    assert (tmp_path / "thesis.tex").read_text() == "mine"


def test_a_dataset_that_is_read_is_not_removed(tmp_path):
    first, second = Remote(2 << 20, 1), Remote(2 << 20, 2)
    limit = (2 << 20) + 100_000
    other = cache_at(tmp_path, limit)  # it began before
    time.sleep(0.05)
    getter = first.cached(cache_at(tmp_path, limit))
    getter.get(0, 2 << 20)
    second.cached(other).get(0, 2 << 20)
    assert getter.get(0, 2 << 20) == first.bytes
    assert len(first.fetched) == 1


PROCESS = """
    import sys, numpy as np
    from tests.storage.test_disk_cache import Remote, cache_at
    folder, limit, seed, turns = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
    remote = Remote(8 << 20)
    getter = remote.cached(cache_at(folder, limit))
    print("ready", flush=True)
    random = np.random.default_rng(seed)
    for _ in range(turns):
        at = int(random.integers(0, 8 << 20))
        nbytes = int(min(random.integers(1, 300_000), (8 << 20) - at))
        assert getter.get(at, nbytes) == remote.bytes[at : at + nbytes]
    print(sum(nbytes for _, nbytes in remote.fetched))
"""


def process(folder, limit, seed, turns):
    command = [sys.executable, "-c", textwrap.dedent(PROCESS), str(folder), str(limit), str(seed), str(turns)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


@pytest.mark.parametrize("limit", [BIG, 4 << 20])
def test_processes_share_it(tmp_path, limit):
    running = [process(tmp_path, limit, seed, 300) for seed in range(3)]
    printed = [each.communicate(timeout=60)[0].split() for each in running]
    assert [each.returncode for each in running] == [0, 0, 0]
    # Each process counts what the others wrote after it has written a hundredth of all.
    assert taken(tmp_path) <= limit + len(running) * (limit // 50) + 8192
    if limit == BIG:  # each alone would fetch nearly all of the file
        assert sum(int(words[1]) for words in printed) < 2.5 * (8 << 20)
        remote = Remote(8 << 20)
        remote.cached(cache_at(tmp_path)).get(0, 8 << 20)
        assert sum(nbytes for _, nbytes in remote.fetched) < 1 << 20


@pytest.mark.slow
def test_processes_that_are_killed_leave_right_bytes(tmp_path):
    for seed in range(4):
        running = process(tmp_path, 6 << 20, seed, 10**9)
        assert running.stdout.readline() == "ready\n"
        time.sleep(0.02 + 0.03 * seed)
        running.send_signal(signal.SIGKILL)
        running.communicate()
        remote = Remote(8 << 20)
        getter = remote.cached(cache_at(tmp_path, 6 << 20))
        assert getter.get(0, 8 << 20) == remote.bytes
        read_all(remote, getter, range(128), 64 << 10)
    assert taken(tmp_path) <= (6 << 20) + 8192


def test_a_disk_that_is_full(small_disk, caplog):
    remote = Remote(3 << 20)
    getter = remote.cached(cache_at(small_disk))
    for _ in range(2):
        read_all(remote, getter, range(48), 64 << 10)
    assert caplog.text.count("writing failed: No space left on device. Rows come from the store instead") == 1
    # What did fit is used.
    assert len(remote.fetched) < 96


def test_folders_that_cannot_be_used(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(OptionError, match="the folder cannot be made: File exists"):
        cache_at(tmp_path / "file")
    (tmp_path / FOLDER).mkdir(mode=0o777)
    (tmp_path / FOLDER).chmod(0o777)
    with pytest.raises(OptionError, match="other users may write"):
        cache_at(tmp_path)
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / FOLDER).symlink_to(tmp_path)
    with pytest.raises(OptionError, match="other users may write"):
        cache_at(tmp_path / "b")


def test_files_of_the_user_stay(tmp_path):
    (tmp_path / "mine.txt").write_text("mine")
    remote = Remote(1 << 20)
    remote.cached(cache_at(tmp_path, 100_000)).get(0, 1 << 20)
    remote.cached(cache_at(tmp_path, 100_000)).get(0, 1 << 20)
    assert (tmp_path / "mine.txt").read_text() == "mine"
    assert (tmp_path / FOLDER).stat().st_mode & 0o777 == 0o700


def test_one_cache_a_process(tmp_path):
    assert cache_for(str(tmp_path), 100) is cache_for(str(tmp_path), 100)
