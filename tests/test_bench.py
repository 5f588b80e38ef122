"""Benches whose figures depend on the state of the machine before each turn."""

import json
import os

import h5py
import hdf5plugin  # noqa: F401  lets h5py read the workloads
import numpy as np
import pytest

import tests.bench.__main__ as bench_command
from ray_h5 import RowReader
from tests.bench import BENCHES, BenchOptions
from tests.bench.__main__ import main
from tests.bench.cases import plan_files
from tests.bench.measure import Result, run_turns
from tests.bench.workloads import make_workload
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
    from tests.bench.cases.cold import _Reads

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
    from tests.bench.baselines import torch_loaders
    from tests.bench.cases import loader

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
    from tests.bench.cases import repack

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
    from tests.bench.cases import images

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
    from tests.bench.cases import scaling

    monkeypatch.setattr(scaling, "cpu_count", lambda: 2)
    found = BENCHES["scaling"](one_turn(0.05, tmp_path))
    kinds = ("signals", "images, gzip", "images, zstd", "JPEG", "cells")
    counts = ("1 thread", "2 threads", "1 worker", "2 workers")
    assert [each.case for each in found] == [f"{kind}, {count}" for kind in kinds for count in counts]


@pytest.mark.nightly
def test_bench_train_measures_waiting_and_the_first_batch(tmp_path):
    found = BENCHES["train"](one_turn(0.1, tmp_path))
    firsts = (": first batch of the first epoch", ": first batch of later ones")
    assert [(each.case, each.unit) for each in found] == [
        (f"4 workers, steps of {step} ms: {what}", unit)
        for step in (20, 5)
        for what, unit in (("waiting", "share"), ("first batch", "s"))
    ] + [
        (f"{workers} workers, read in {reading}{what}", "s" if what else "rows/s")
        for workers in (1, 2)
        for reading in ("tasks", "workers")
        for what in ("", *firsts)
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


KEYS = ["baseline", "bench", "case", "goal", "ok", "ours", "ratio", "spread", "theirs", "unit"]


def result(**other):
    values = dict.fromkeys(KEYS) | {"bench": "read", "case": "all", "baseline": "pread", "unit": "MB/s", "ours": 1500.0}
    return Result(**(values | {"theirs": 750.0, "ratio": 2.0, "spread": (1.9, 2.1), "goal": 1.5, "ok": True} | other))


@pytest.fixture
def one_bench(monkeypatch):
    asked = []
    monkeypatch.setattr(bench_command, "BENCHES", {"read": lambda options: asked.append(options) or [result()]})
    return asked


def test_bench_prints_a_table(one_bench, capsys):
    main(["read", "--size", "0.5", "--turns", "7"])
    assert (one_bench[0].size, one_bench[0].turns) == (0.5, 7)
    table, notes = capsys.readouterr().out.split("\n\n")
    head, line = table.splitlines()
    assert head.split() == ["bench", "case", "baseline", "unit", "ours", "theirs", "ratio", "spread"]
    assert line.split() == ["read", "all", "pread", "MB/s", "1500", "750", "2x", "1.9..2.1"]
    assert [each.split(":")[0] for each in notes.splitlines()] == ["ours, theirs", "ratio", "spread", "too small"]
    assert "at --size 0.5 " in notes


@pytest.mark.usefixtures("one_bench")
def test_bench_prints_the_goals_of_this_version_if_asked(capsys):
    main(["read", "--size", "0.5", "--goals"])
    table, notes = capsys.readouterr().out.split("\n\n")
    head, line = table.splitlines()
    assert head.split()[-2:] == ["goal", "ok"]
    assert line.split()[-3:] == [">=", "1.5", "yes"]
    assert "at --size 0.5 it is not judged" in notes


def test_the_words_in_the_names_of_cases_are_explained(monkeypatch, capsys):
    monkeypatch.setattr(
        bench_command, "BENCHES", {"read": lambda _: [result(case="combined, kept nothing, threads 2")]}
    )
    main(["read"])
    shown = capsys.readouterr().out
    assert "combined: CombinedHDF5Dataset" in shown
    assert "kept nothing: ray_h5 holds no rows" in shown
    assert "warm:" not in shown
    assert "too small" not in shown


@pytest.mark.parametrize(("size", "shown"), [(1.0, False), (0.01, None)])
def test_goals_are_judged_at_full_size_only(monkeypatch, size, shown):
    from tests.bench.cases import read

    monkeypatch.setattr(read, "bench_read", lambda _: [result(ok=False)])
    (found,) = BENCHES["read"](BenchOptions(size))
    assert (found.ok, found.goal) == (shown, 1.5)


def test_bench_prints_json(one_bench, capsys):
    main(["read", "--json"])
    assert len(one_bench) == 1
    assert [sorted(each) for each in json.loads(capsys.readouterr().out)] == [KEYS]


def test_a_workload_is_made_once_and_read_as_h5py_reads_it(tmp_path):
    made = [make_workload(name, str(tmp_path), 0.01) for name in ("signals", "flat", "images")]
    for workload in made:
        for path in workload.paths:
            names = [column.name for column in workload.columns if column.dtype != "str"]
            with RowReader(path) as reader, h5py.File(path) as file:
                found = reader.read(names)
                assert all(found[name].tobytes() == file[name][:].tobytes() for name in names)
                assert len(found[names[0]]) * len(workload.paths) == workload.rows
    times = [path.stat().st_mtime_ns for path in sorted(tmp_path.glob("*/*.h5"))]
    assert make_workload("signals", str(tmp_path), 0.01).paths == made[0].paths
    assert [path.stat().st_mtime_ns for path in sorted(tmp_path.glob("*/*.h5"))] == times
