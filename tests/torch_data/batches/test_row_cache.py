import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ray_h5.columns.ragged.sparse_rows import Entries, rows_of
from ray_h5.index.file_opener import Scope
from ray_h5.loading import row_cache, row_source
from ray_h5.loading.row_cache import RowCache
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
    bound=st.integers(0, 12),
    batches=st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=8), max_size=12),
    first=st.sampled_from([1, 64]),
)
@few(15)
def test_the_rows_read_first_stay_of_each_column_as_many_as_its_bound(bound, batches, first):
    specs = {"x": ((), np.dtype("i8")), "y": ((2,), np.dtype("i8")), "list": ((), np.dtype(object))}
    bounds, model = {"x": 10, "y": bound, "list": bound, "other": 0}, list[int]()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(row_cache, "_FIRST_ROWS", first)
        cache = RowCache(specs, 10, {name: bounds[name] for name in ("y", "list")})
        for batch in batches:
            seen = {name: [] for name in bounds}

            def read(out, rows, places, seen=seen):
                for name, array in out.items():
                    seen[name] += rows.tolist()
                    for row, place in zip(rows.tolist(), places.tolist(), strict=True):
                        array[place] = np.full(row, row) if name == "list" else row

            out = {name: np.empty((len(batch), *shape), dtype) for name, (shape, dtype) in specs.items()}
            out["other"] = np.empty(len(batch))
            cache.read_through(out, np.array(batch), None, read)
            assert out["x"].tolist() == out["y"][:, 1].tolist() == out["other"].tolist() == batch
            assert [each.tolist() for each in out["list"]] == [[row] * row for row in batch]
            assert seen == {name: [row for row in batch if row not in model[:most]] for name, most in bounds.items()}
            for array in (*out.values(), *out["list"]):
                array[...] = -1  # nothing of it is shared
            model += [row for row in dict.fromkeys(batch) if row not in model]
            for names, most in ((["x"], 10), (["x", "y"], bound), (["x", "other"], 0)):
                held = sorted(model[:most])
                assert (cache.num_held(names), np.flatnonzero(cache.holds(np.arange(10), names)).tolist()) == (
                    len(held),
                    held,
                )
            assert len(cache.columns["y"]) <= min(bound, max(2 * len(model), first))


def test_columns_that_are_not_held_are_read_by_one_call(files):
    dataset, calls = CombinedHDF5Dataset(files, kept_bytes=3000, cache_size=5), []
    read = dataset.source._read_files
    dataset.source._read_files = lambda out, *rest, **more: (calls.append(set(out)), read(out, *rest, **more))
    dataset[:20]
    assert calls == [set(dataset.columns)]
    dataset[:20]
    assert len(calls) == 2
    assert "fhr_st" in calls[1]
    assert "epoch" not in calls[1]


def test_rows_of_a_sparse_matrix_keep_no_others():
    entries = Entries(np.arange(100), np.arange(100.0))
    cache, rows = RowCache({"m": ((), np.dtype(object))}, 10, {"m": 4}), rows_of(entries, np.arange(0, 101, 10))
    for _ in range(2):
        out = {"m": np.empty(2, object)}
        cache.read_through(out, np.array([3, 7]), None, lambda out, wanted, places: out["m"].put(places, rows[wanted]))
        assert [row.data.tolist() for row in out["m"]] == [list(range(30, 40)), list(range(70, 80))]
    assert all(len(row.entries.data) == 10 for row in out["m"])
    out["m"][0].data[:] = -1
    assert cache.columns["m"][0].data[0] == 30
