"""Each bench runs at a tiny size, delivers each row once, and prints its goals; what it measures is not tested."""

import gc
import json
import math
import subprocess
import sys
from importlib.util import find_spec

import pytest
import torch

import tests.bench
from ray_h5.errors import OptionError
from tests.bench import BENCHES, BenchOptions, run
from tests.bench.__main__ import main
from tests.bench.baselines.epochs import count_rows, verify_rows
from tests.bench.files import SIGNALS, make_workload
from tests.bench.measure import OURS, Case, Took, of_figures, run_case, run_turns

QUICK = ("cold", "groups", "images", "patches", "plan", "read", "sparse", "windows")
LONG = ("draws", "filter", "loader", "peers", "ray", "remote", "shuffle", "train")
COUNTED = ("requests", "requests a file", "rounds", "listings")


@pytest.fixture(autouse=True)
def little_to_look_at():
    """Each turn of a bench begins with a collection of garbage, which would look at all that other tests left."""
    gc.freeze()


@pytest.mark.slow
def test_contestants_take_turns_in_an_order_that_changes():
    ran = []
    contestants = {name: lambda name=name: ran.append(name) for name in "ab"}
    run_turns(contestants, 2, before=lambda: ran.append("before"))
    assert ran[::2] == ["before"] * 6
    assert [ran[i : i + 4 : 2] for i in (1, 5, 9)] != [["a", "b"]] * 3
    assert sorted(ran[1::2]) == ["a"] * 3 + ["b"] * 3


def case():
    contestants = {OURS: lambda: Took(1), "two": lambda: Took(2), "plain": lambda: Took(8)}
    goals = {"plain": 3.0, ("two", "plain"): 3.0, "-": 2.0}
    return Case("all", [], contestants, 8, "rows/s", goals)


@pytest.mark.slow
def test_a_case_has_a_line_for_each_goal():
    results, seconds = run_case("read", case(), 3)
    assert [(each.case, each.baseline, each.ours, each.theirs, each.ratio, each.ok) for each in results] == [
        ("all", "plain", 8, 1, 8, True),
        ("all, two", "plain", 4, 1, 4, True),
        ("all", "-", 1, None, None, True),
    ]
    assert seconds == {OURS: [1] * 3, "two": [2] * 3, "plain": [8] * 3}


@pytest.fixture
def one_bench(monkeypatch):
    sent = []

    class Module:
        @staticmethod
        def bench_read(options):
            sent.append((yield case()))
            yield of_figures("read", "some", "s", [options.size], most=0.4)

    monkeypatch.setattr(tests.bench, "import_module", lambda _: Module)
    return sent


@pytest.mark.slow
def test_a_bench_gets_the_seconds_of_its_cases(one_bench):
    assert [each.ok for each in run("read", BenchOptions(1.0))] == [True, True, True, False]
    assert one_bench[0]["two"] == [2] * 5


@pytest.mark.slow
@pytest.mark.usefixtures("one_bench")
def test_goals_are_judged_at_full_size_only(capsys):
    main(["read", "--size", "0.5", "--turns", "1"])
    shown = capsys.readouterr()
    assert [line.split("  ")[0] for line in shown.err.splitlines()] == ["all", "all, two", "all", "some"]
    table, _ = shown.out.split("\n\n")
    assert [line.split()[-3:] for line in table.splitlines()[1:]] == [[">=", "3", "-"]] * 2 + [["<=", "2", "-"]] + [
        ["<=", "0.4", "-"]
    ]
    main(["read", "--json"])
    assert [each["ok"] for each in json.loads(capsys.readouterr().out)] == [True, True, True, False]


def test_a_lost_row_is_an_error(tmp_path):
    made = make_workload("signals", str(tmp_path), 0.002)
    assert make_workload("signals", str(tmp_path), 0.002) == made
    batches = [{name: torch.zeros(2, *made.columns[name][0]) for name in SIGNALS}] * len(made.paths)
    count_rows(batches, made.rows)
    with pytest.raises(RuntimeError, match="expected 9"):
        count_rows(batches, 9)
    with pytest.raises(RuntimeError, match="does not deliver each row once"):
        verify_rows(made.paths, SIGNALS, batches)


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without CUDA")
def test_bench_gpu_says_what_it_lacks():
    with pytest.raises(OptionError, match="bench gpu: torch finds no CUDA device here"):
        run("gpu", BenchOptions())


def check_results(name, text):
    results = json.loads(text)
    assert {each["bench"] for each in results} == {name}
    assert any(each["goal"] is not None for each in results)
    for each in results:
        assert math.isfinite(each["ours"])
        if each["unit"] in COUNTED and each["goal"] is not None:
            assert each["ours"] <= each["goal"], each


TINY = ["--size", "0.001", "--turns", "1", "--json", "--folder"]


@pytest.mark.slow
@pytest.mark.parametrize("name", QUICK)
def test_a_quick_bench_runs(name, tmp_path, capsys):
    main([name, *TINY, str(tmp_path)])
    check_results(name, capsys.readouterr().out)


@pytest.mark.nightly
@pytest.mark.parametrize("name", LONG)
def test_a_long_bench_runs(name, tmp_path):
    check_long(name, tmp_path)


@pytest.mark.nightly
@pytest.mark.skipif(find_spec("stable_worldmodel") is None, reason="needs stable-worldmodel")
def test_bench_worldmodel_runs(tmp_path):
    check_long("worldmodel", tmp_path)


def check_long(name, tmp_path):
    # A process of its own: some start Ray, and other tests may have one.
    command = [sys.executable, "-m", "tests.bench", name, *TINY, tmp_path]
    check_results(name, subprocess.run(command, check=True, stdout=subprocess.PIPE, timeout=600).stdout)


def test_all_benches_are_tried():
    assert sorted([*QUICK, *LONG, "gpu", "worldmodel"]) == sorted(BENCHES)
