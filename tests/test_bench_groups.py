"""The benches of groups and windows at a tiny size: they run, compare bytes with h5py, and count chunks."""

import h5py
import numpy as np
import pytest

from tests.bench.baselines.group_reads import slice_windows
from tests.bench.cases import groups, patches, windows
from tests.bench.group_workloads import ATTRIBUTES, make_demos, make_traces
from tests.benchkit import one_turn


@pytest.mark.slow
def test_bench_windows_decodes_each_chunk_once(tmp_path, monkeypatch):
    monkeypatch.setattr(windows, "_BATCHES", 1)
    monkeypatch.setattr(windows, "_BLOCK", 64)
    results = windows.bench_windows(one_turn(0.01, tmp_path))
    assert {(each.case, each.baseline) for each in results} == {
        *((f"contiguous {order}", "h5py slices") for order in ("random", "neighbouring")),
        *(
            (f"gzip {order}", other)
            for order in ("random", "neighbouring")
            for other in ("h5py slices", "pread+decode")
        ),
        *((f"gzip {order}, decoded", "-") for order in ("random", "neighbouring")),
    }
    assert [each.ours for each in results if each.case.endswith("decoded")] == [1, 1]


@pytest.mark.slow  # starts a process for each index
def test_bench_groups_measures_batches_and_the_index(tmp_path, monkeypatch):
    monkeypatch.setattr(groups, "_INDEX_TURNS", 1)
    monkeypatch.setattr(groups, "_BATCHES", 1)
    results = groups.bench_groups(one_turn(0.001, tmp_path))
    assert {each.baseline for each in results} == {"pread", "bare compiled loop", "h5py by name", "-"}
    found = {each.case: each for each in results if each.baseline == "-"}
    assert all(each.ok for each in found.values())
    assert {"index of 128 datasets, 10 attributes", "index of 128 datasets, 10 attributes, peak"} <= set(found)


def test_workloads_of_groups_are_made_once(tmp_path):
    for make in (
        lambda: make_demos(str(tmp_path), 0.01, gzip=True),
        lambda: make_traces(str(tmp_path), 3, (2, 4), attributes=True),
    ):
        made = make()
        before = (tmp_path / made.path).stat().st_mtime_ns
        assert make() == made
        assert (tmp_path / made.path).stat().st_mtime_ns == before
    with h5py.File(made.path) as file:
        assert sorted(file["data/trace_2"].attrs) == sorted(ATTRIBUTES)


@pytest.mark.parametrize("step", [0, 2, 4])
def test_the_baseline_repeats_steps_at_the_ends(tmp_path, step):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["demo/x"] = np.arange(5)
        found = slice_windows(file, [("demo", step, 5)], {"x": range(-1, 3)})["x"]
    assert found[0].tolist() == np.clip(np.arange(step - 1, step + 3), 0, 4).tolist()


@pytest.mark.slow
def test_bench_patches_decodes_each_chunk_once(tmp_path, monkeypatch):
    monkeypatch.setattr(patches, "_BATCHES", 1)
    monkeypatch.setattr(patches, "_BATCH", 2)
    results = patches.bench_patches(one_turn(0.001, tmp_path))
    assert {each.baseline for each in results} == {"h5py slices", "whole volume", "pread+decode", "-"}
    assert [each.ours for each in results if each.case.endswith("decoded")] == [1, 1, 1]
