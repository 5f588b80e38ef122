import subprocess
import sys
import threading
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader

from ray_h5.planning.index.scope import Scope
from ray_h5.torch_data import CombinedHDF5Dataset, H5Dataset, loader
from ray_h5.torch_data.reading import row_cache, row_source
from ray_h5.torch_data.reading.row_cache import copy_alone, take_rows
from ray_h5.torch_data.reading.sample_cache import SampleCache

DTYPES = [
    "?",
    "i1",
    "u1",
    "i2",
    "u2",
    "f2",
    "i4",
    "f4",
    "u8",
    "f8",
    "c8",
    "c16",
    "S3",
    "V5",
    [("a", "<i2"), ("b", "u1")],
]


@given(
    dtype=st.sampled_from(DTYPES),
    shape=st.lists(st.integers(0, 5), max_size=2),
    rows=st.lists(st.integers(0, 6), max_size=9),
)
def test_rows_are_taken_as_numpy_takes_them(dtype, shape, rows):
    dtype = np.dtype(dtype)
    count = 7 * int(np.prod(shape))
    held = np.random.default_rng(0).integers(0, 2 if dtype == "?" else 256, count * dtype.itemsize, np.uint8)
    held = held.view(dtype).reshape(7, *shape) if count else np.zeros((7, *shape), dtype)
    wanted = np.array(rows, np.int64)
    with pytest.MonkeyPatch.context() as patch:
        for least in (1, 1 << 40):
            patch.setattr(row_cache, "_PARALLEL_BYTES", least)
            out = np.zeros((len(rows), *shape), dtype)
            take_rows(held, wanted, out)
            assert out.tobytes() == held[wanted].tobytes()


@pytest.mark.parametrize("least", [1, 1 << 40])
def test_rows_are_taken_into_what_numpy_fills_and_nothing_else(monkeypatch, least):
    monkeypatch.setattr(row_cache, "_PARALLEL_BYTES", least)
    held, rows = np.arange(24, dtype="i4").reshape(4, 6), np.array([3, 0])
    every_other, read_only = np.zeros((2, 12), "i4")[:, ::2], np.zeros((2, 6), "i4")
    take_rows(held, rows, every_other)
    assert np.array_equal(every_other, held[rows])
    read_only.flags.writeable = False
    with pytest.raises(ValueError, match=r"read-only|not writeable"):
        take_rows(held, rows, read_only)
    assert not read_only.any()
    with pytest.raises(TypeError, match="Cannot cast"):
        take_rows(held, rows, np.zeros((2, 6), "f4"))  # of the same size


@pytest.fixture
def selections(monkeypatch):
    """The threads in which torch took rows."""
    threads, select = [], torch.index_select

    def noted(*args, **options):
        threads.append(threading.current_thread().name)
        return select(*args, **options)

    monkeypatch.setattr(row_cache, "_PARALLEL_BYTES", 1)
    monkeypatch.setattr(torch, "index_select", noted)
    return threads


def test_threads_that_read_ahead_take_rows_by_themselves(files, selections):
    for threads in (0, 2):
        batches = loader(files, 8, threads=threads)
        for _ in range(2):  # the second epoch comes from memory
            assert sum(len(batch["epoch"]) for batch in batches) == 60
    assert set(selections) == {threading.current_thread().name}
    assert len(selections) >= 8


def test_no_more_states_of_files_are_held_than_said(files, monkeypatch):
    monkeypatch.setattr(row_source, "_MAX_STATES", 1)
    dataset = CombinedHDF5Dataset(files, ["epoch"])
    for _ in range(2):
        assert dataset[:]["epoch"].tolist() == [*range(30), *range(30)]
    assert len(dataset._source._states) == 1


@pytest.mark.parametrize("kept_bytes", [0, None])
def test_a_file_that_does_not_answer_holds_up_no_other(files, monkeypatch, kept_bytes):
    dataset = H5Dataset(files, ["epoch"], kept_bytes=kept_bytes)
    open_reader, waits, answers = Scope.open, threading.Event(), threading.Event()

    def slow(scope, path, *state):
        if path == files[0]:
            waits.set()
            assert answers.wait(60)
        return open_reader(scope, path, *state)

    monkeypatch.setattr(Scope, "open", slow)
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(dataset.read, np.arange(20))
        assert waits.wait(60)
        second = pool.submit(dataset.read, np.arange(20, 35))
        try:
            assert second.result(timeout=10)["epoch"].tolist() == [*range(20, 30), *range(5)]
        finally:
            answers.set()
        assert first.result()["epoch"].tolist() == [*range(20)]


def test_threads_that_open_a_file_at_once_keep_one_reader(files, monkeypatch):
    dataset = H5Dataset(files, ["epoch"], kept_bytes=0)
    open_reader, both = Scope.open, threading.Barrier(2)

    def together(scope, path, *state):
        both.wait(60)
        return open_reader(scope, path, *state)

    monkeypatch.setattr(Scope, "open", together)
    with ThreadPoolExecutor(2) as pool:
        reads = [pool.submit(dataset.read, np.arange(20)) for _ in range(2)]
        assert [each.result()["epoch"].tolist() for each in reads] == [[*range(20)]] * 2
    assert len(dataset._source._readers) == 1


def test_copy_alone_holds_for_one_thread(selections):
    held, rows, out = np.arange(12.0).reshape(4, 3), np.array([3, 0]), np.empty((2, 3))
    thread = threading.Thread(target=lambda: (copy_alone(), take_rows(held, rows, out)))
    thread.start()
    thread.join()
    assert (selections, out.tolist()) == ([], [[9, 10, 11], [0, 1, 2]])
    take_rows(held, rows, out)
    assert len(selections) == 1


FORKS = """
import os
import numpy as np
import torch
from ray_h5.torch_data.reading.row_cache import take_rows

torch.set_num_threads(2)
held, rows = np.arange(4 << 20, dtype=np.float64).reshape(512, -1), np.arange(0, 512, 2)
out = np.empty((256, held.shape[1]))
take_rows(held, rows, out)  # OpenMP has its threads now
out[:] = 0
pid = os.fork()
take_rows(held, rows, out)
assert np.array_equal(out, held[rows])
if pid:
    assert os.waitpid(pid, 0)[1] == 0
"""


def test_a_forked_process_does_not_wait_for_threads_that_it_has_not():
    subprocess.run([sys.executable, "-W", "ignore", "-c", FORKS], check=True, timeout=100)


class Numbers:
    """Stands for a source whose row i is i, and that keeps nothing or all."""

    num_rows = 10

    def __init__(self, keeps_all):
        self.keeps_all, self.held = keeps_all, np.zeros(10, bool)

    def is_held(self, indices):
        return self.held[indices]

    def check_unchanged(self, indices):
        pass

    def read_into(self, out, indices, places=slice(None)):
        for array in out.values():
            array[places] = indices.reshape(-1, *[1] * (array.ndim - 1))
        self.held[indices] = self.keeps_all


@given(
    size=st.integers(1, 6),
    batches=st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=8), max_size=12),
)
def test_the_cache_keeps_what_was_used_last(size, batches):
    cache, model, hits = SampleCache(Numbers(keeps_all=False), size), OrderedDict(), 0
    for batch in batches:
        indices, out = np.array(batch), {"x": np.full(len(batch), -1), "y": np.full((len(batch), 2), -1)}
        missing = [index for index in batch if index not in model]
        cache.read_into(out, indices)
        assert out["x"].tolist() == out["y"][:, 1].tolist() == batch
        for index in [*(index for index in batch if index in model), *missing[-size:]]:
            model.pop(index, None)
            model[index] = True
            if len(model) > size:
                model.popitem(last=False)
        hits += len(batch) - len(missing)
        assert [index for index in range(10) if index in cache] == sorted(model)
        assert (cache.hits, len(cache), cache.capacity) == (hits, len(model), size)


@given(batches=st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=8), max_size=12))
def test_the_cache_counts_the_rows_that_a_source_keeps(batches):
    cache, held, hits = SampleCache(Numbers(keeps_all=True), 2), set(), 0
    for batch in batches:
        out = {"x": np.full(len(batch), -1)}
        cache.read_into(out, np.array(batch))
        assert out["x"].tolist() == batch
        hits += sum(index in held for index in batch)
        held |= set(batch)
        assert [index for index in range(10) if index in cache] == sorted(held)
        assert (cache.hits, len(cache), cache.capacity) == (hits, len(held), 10)


def test_a_warm_cache_gives_what_was_read(files):
    dataset = CombinedHDF5Dataset(files, cache_size=60, kept_bytes=0)
    first, again = (list(DataLoader(dataset, batch_size=60)) for _ in range(2))
    assert dataset.get_stats()["cache_hits"] == 60
    for name, values in first[0].items():
        assert values == again[0][name] if name == "guid" else torch.equal(values, again[0][name])
