"""Benches whose figures depend on the state of the machine before each turn."""

import os

import numpy as np
import pytest

from ray_h5.bench import BENCHES
from ray_h5.bench.cases import plan_files
from ray_h5.bench.measure import run_turns
from ray_h5.bench.workloads import make_workload
from tests.benchkit import one_turn


@pytest.mark.slow
def test_what_comes_before_a_turn_comes_before_each_contestant():
    seen = []
    contestants = {name: lambda name=name: seen.append(name) for name in "ab"}
    run_turns(contestants, 2, before=lambda: seen.append("before"))
    assert seen[::2] == ["before"] * 6
    assert sorted(seen[1::2]) == ["a"] * 3 + ["b"] * 3


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "posix_fadvise"), reason="this system has no hints")
def test_bench_cold_compares_with_the_bare_loops_and_lets_pages_go(tmp_path, monkeypatch):
    asked = []
    advise = os.posix_fadvise
    monkeypatch.setattr(os, "posix_fadvise", lambda *arguments: asked.append(arguments[3]) or advise(*arguments))
    found = BENCHES["cold"](one_turn(0.01, tmp_path))
    baselines = [each.baseline for each in found if each.case == "shuffled epoch, 2 threads"]
    assert baselines == ["plain_loader", "preads", "preads, hints 64 ahead", "preads, hints 64 ahead, and decode"]
    assert [each.case for each in found if each.baseline == "without hints"] == [
        "sequential epoch, cold",
        "shuffled epoch, warm",
        "sequential epoch, warm",
    ]
    assert {os.POSIX_FADV_DONTNEED, os.POSIX_FADV_WILLNEED} <= set(asked)


def test_reads_of_the_bare_loop_are_all_chunks_of_all_rows(tmp_path):
    from ray_h5.bench.cases.cold import _Reads

    workload = make_workload("signals", str(tmp_path), 0.01)
    reads = _Reads.of(workload)
    assert len(reads.extents) == 3 * workload.rows
    assert len({(number, extent.offset) for number, extent, _ in reads.extents}) == len(reads.extents)
    by_row = np.array([number for number, _, _ in reads.extents]).reshape(-1, 3)
    assert (by_row == by_row[:, :1]).all()
    reads.run(0)
    reads.run(64)


@pytest.mark.slow
def test_the_loader_bench_has_the_cases_with_nothing_kept_first(tmp_path, monkeypatch):
    from ray_h5.bench.baselines import torch_loaders
    from ray_h5.bench.cases import loader

    caches, plain = [], torch_loaders.PlainH5Dataset

    def recorded(paths, columns, chunk_cache_bytes=None):
        caches.append(chunk_cache_bytes)
        return plain(paths, columns, chunk_cache_bytes)

    monkeypatch.setattr(torch_loaders, "PlainH5Dataset", recorded)
    workload = make_workload("signals", str(tmp_path), 0.01)
    nothing = loader._against_plain(workload, 0, 1, kept=False)
    kept = loader._against_plain(workload, 0, 1, kept=True)
    assert caches == [torch_loaders.SMALL_CHUNK_CACHE, torch_loaders.LARGE_CHUNK_CACHE]
    assert not any("kept" in each.case for each in nothing)
    assert all("kept" in each.case for each in kept)
    assert [each.case for each in loader._threads(workload, 1)] == [
        "loader, 2 threads",
        "bare compiled loop, 2 threads",
    ]


@pytest.mark.slow
def test_bench_repack_compares_with_what_was_there(tmp_path, monkeypatch):
    from ray_h5.bench.cases import repack

    monkeypatch.setattr(repack, "_VALUES", 500)
    monkeypatch.setattr(repack, "_written", lambda *_: None)
    found = [each for each in BENCHES["repack"](one_turn(1, tmp_path)) if each is not None]
    assert {(each.case, each.baseline) for each in found} >= {
        ("large chunks, shuffled rows", "not repacked"),
        ("middle chunks, shuffled rows", "not repacked"),
        ("large chunks, new chunks", "decode alone"),
        ("large chunks, same chunks", "cp"),
    }


@pytest.mark.slow
def test_bench_images_compares_with_pillow(tmp_path, monkeypatch):
    from ray_h5.bench.cases import images

    monkeypatch.setattr(images, "_COUNT", 8)
    monkeypatch.setattr(images, "_BATCH_SIZE", 4)
    monkeypatch.setattr(images, "_FORMATS", {"JPEG": {}})
    monkeypatch.setattr(images, "_SIZE", (30, 40))
    found = BENCHES["images"](one_turn(0.5, tmp_path))
    assert [(each.case, each.baseline) for each in found] == [
        ("JPEG 0 threads", "Pillow"),
        ("JPEG 1 threads", "Pillow"),
    ]


@pytest.mark.slow
def test_bench_scaling_has_a_row_for_each_number_of_threads_and_workers(tmp_path, monkeypatch):
    from ray_h5.bench.cases import scaling

    monkeypatch.setattr(scaling, "cpu_count", lambda: 2)
    found = BENCHES["scaling"](one_turn(0.05, tmp_path))
    kinds = ("signals", "images, gzip", "images, zstd", "JPEG", "cells")
    counts = ("1 thread", "2 threads", "1 worker", "2 workers")
    assert [each.case for each in found] == [f"{kind}, {count}" for kind in kinds for count in counts]


@pytest.mark.nightly
def test_bench_train_measures_waiting_and_the_first_batch(tmp_path):
    found = BENCHES["train"](one_turn(0.1, tmp_path))
    assert [(each.case, each.unit) for each in found] == [
        (f"4 workers, steps of {step} ms: {what}", unit)
        for step in (20, 5)
        for what, unit in (("waiting", "share"), ("first batch", "s"))
    ]
    assert all(each.ours > 0 for each in found)


@pytest.mark.slow
def test_bench_plan_measures_the_planning_of_many_files(tmp_path):
    found = plan_files.bench_plan_files(one_turn(0.001, tmp_path))
    assert [(each.case, each.baseline, each.unit) for each in found] == [
        ("100000 files, 3 columns, CPU", "-", "s"),
        ("100000 files, 3 columns, CPU", "h5py calls", "files/s"),
        ("3 columns, plan, a file", "-", "B"),
        ("100000 files, 3 columns, CPU with index_dir", "-", "s"),
        ("11759 files, a row each, 4 columns, CPU", "-", "s"),
        ("11759 files, a row each, 4 columns, CPU", "h5py calls", "files/s"),
        ("a row each, 4 columns, plan, a file", "-", "B"),
        ("11759 files, a row each, 4 columns, CPU with index_dir", "-", "s"),
    ]
