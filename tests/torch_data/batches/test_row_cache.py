import threading
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader

from ray_h5.columns.varying.sparse_rows import Entries, rows_of
from ray_h5.index.file_opener import Scope
from ray_h5.loading import row_cache, row_source
from ray_h5.loading.row_cache import RecentRowCache
from ray_h5.torch_data import CombinedHDF5Dataset, H5Dataset
from tests.properties import few


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

    def slow(scope, path, *state, **how):
        if path == files[0]:
            waits.set()
            assert answers.wait(60)
        return open_reader(scope, path, *state, **how)

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

    def together(scope, path, *state, **how):
        both.wait(60)
        return open_reader(scope, path, *state, **how)

    monkeypatch.setattr(Scope, "open", together)
    with ThreadPoolExecutor(2) as pool:
        reads = [pool.submit(dataset.read, np.arange(20)) for _ in range(2)]
        assert [each.result()["epoch"].tolist() for each in reads] == [[*range(20)]] * 2
    assert len(dataset._source._readers) == 1


@given(
    size=st.integers(1, 6),
    batches=st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=8), max_size=12),
    first=st.sampled_from([1, 64]),
)
@few(30)
def test_the_cache_keeps_what_was_used_last(size, batches, first):
    def read(out, rows, places):
        for name, array in out.items():
            for row, place in zip(rows.tolist(), places.tolist(), strict=True):
                array[place] = np.full(row, row) if name == "list" else row
        seen.extend(rows.tolist())

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(row_cache, "_FIRST_SLOTS", first)
        specs = {"x": ((), np.dtype("i8")), "y": ((2,), np.dtype("i8")), "list": ((), np.dtype(object))}
        cache, model = RecentRowCache(specs, size), OrderedDict()
    for batch in batches:
        seen, missing = [], [row for row in batch if row not in model]
        out = {name: np.empty((len(batch), *shape), dtype) for name, (shape, dtype) in specs.items()}
        cache.read_through(out, np.array(batch), None, read)
        assert out["x"].tolist() == out["y"][:, 1].tolist() == batch
        assert [each.tolist() for each in out["list"]] == [[row] * row for row in batch]
        assert seen == missing
        for array in (*out.values(), *out["list"]):
            array[...] = -1  # nothing of it is shared
        for row in [*(row for row in batch if row in model), *missing[-size:]]:
            model.pop(row, None)
            model[row] = True
            if len(model) > size:
                model.popitem(last=False)
        assert cache.held_rows().tolist() == list(model)
        assert cache.holds(np.arange(10)).tolist() == [row in model for row in range(10)]
        assert max(map(len, cache.columns.values())) <= max(size, first)


def test_rows_of_a_sparse_matrix_keep_no_others():
    entries = Entries(np.arange(100), np.arange(100.0))
    cache, rows = RecentRowCache({"m": ((), np.dtype(object))}, 4), rows_of(entries, np.arange(0, 101, 10))
    for _ in range(2):
        out = {"m": np.empty(2, object)}
        cache.read_through(out, np.array([3, 7]), None, lambda out, wanted, places: out["m"].put(places, rows[wanted]))
        assert [row.data.tolist() for row in out["m"]] == [list(range(30, 40)), list(range(70, 80))]
    assert all(len(row.entries.data) == 10 for row in out["m"])
    out["m"][0].data[:] = -1
    assert cache.columns["m"][0].data[0] == 30


def test_a_warm_cache_gives_what_was_read(files):
    dataset = CombinedHDF5Dataset(files, cache_size=60, kept_bytes=0)
    first, again = (list(DataLoader(dataset, batch_size=60)) for _ in range(2))
    assert dataset.get_stats()["cache_hits"] == 60
    for name, values in first[0].items():
        assert values == again[0][name] if name == "guid" else torch.equal(values, again[0][name])
