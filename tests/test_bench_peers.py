"""The bench of other formats and libraries, with those that are installed."""

import os
import re
import signal
import sys
from contextlib import ExitStack, nullcontext

import h5py
import numpy as np
import pytest

from ray_h5.cli import main
from ray_h5.read.kernel.job_table import CHUNKS_DECODED
from tests.bench import BenchOptions
from tests.bench.cases import peers
from tests.bench.measure import Result
from tests.bench.peers import child, data_loaders, floor
from tests.bench.peers.contestants import BARE, CONTESTANTS, Contestant
from tests.bench.peers.plot import plot_first_epochs
from tests.bench.peers.problems import PROBLEMS, make_problem
from tests.bench.peers.report import Report
from tests.bench.peers.report import main as report_main
from tests.kit.fault_server import FaultServer

# torchdata calls what this torch deprecates.
pytestmark = pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return str(tmp_path_factory.mktemp("workloads"))


@pytest.fixture
def without_workers(monkeypatch):
    """Let all loaders run in this process: starting others takes long, and the slow test does it."""
    monkeypatch.setattr(data_loaders, "worker_options", lambda _: {"num_workers": 0})


@pytest.mark.usefixtures("without_workers")
@pytest.mark.parametrize("case", [case for case in PROBLEMS if case != "store"])
@pytest.mark.parametrize("name", ["ray_h5", "ray_h5, default", "h5py"])
def test_every_case_delivers_the_rows_that_a_conversion_writes(case, name, folder, tmp_path):
    problem = make_problem(case, folder, 0.01)
    assert sum(1 for part in range(len(problem.parts)) for _ in problem.samples(part)) == problem.rows
    assert len(problem.dataset()) == problem.rows
    tried = child.try_out(CONTESTANTS[name], problem, str(tmp_path))
    assert tried["same order"] == 1
    assert tried["resumes"] == 1
    assert 0 <= tried["quality"] <= 1
    found = child.turn(CONTESTANTS[name], problem, str(tmp_path))
    assert found["disk"] == 0
    assert found["first"] >= found["conversion"] >= 0


class _Loses:
    def __init__(self, batches, change):
        self.batches, self.change = batches, change

    def __iter__(self):
        return map(self.change, self.batches)


@pytest.mark.parametrize("case", [case for case in PROBLEMS if case != "store"])
def test_the_bare_read_delivers_each_row_and_decodes_each_chunk_once(case, folder, tmp_path, monkeypatch):
    problem = make_problem(case, folder, 0.1)
    floor.plan(problem)
    counts, run = [], floor.run_table

    def counted(*given):
        found = run(*given)
        counts.append(found[CHUNKS_DECODED])
        return found

    monkeypatch.setattr(floor, "run_table", counted)
    for module in ("h5py", "RowReader"):  # it is planned: nothing is looked up
        monkeypatch.delattr(floor, module)
    assert sum(len(batch[next(iter(batch))]) for batch in CONTESTANTS[BARE].load(problem, "", 2)) == problem.rows
    assert sum(counts) == filtered_chunks(problem)
    tried = child.try_out(CONTESTANTS[BARE], problem, str(tmp_path))
    assert tried["same order"] == 1
    assert tried["resumes"] == 0


def filtered_chunks(problem):
    """Return how many chunks have to be decoded, as h5py counts them."""
    names = ["X/data", "X/indices"] if problem.name == "cells" else problem.names.values()
    chunks = []
    for path in problem.paths if problem.name != "windows" else []:  # contiguous
        with h5py.File(path) as file:
            for name in names:
                all_skipped = (1 << file[name].id.get_create_plist().get_nfilters()) - 1
                file[name].id.chunk_iter(lambda chunk, skipped=all_skipped: chunks.append(chunk.filter_mask < skipped))
    return sum(chunks)


@pytest.mark.usefixtures("without_workers")
@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda batch: {name: values[1:] for name, values in batch.items()}, "rows"),
        (lambda batch: {name: values + 1 for name, values in batch.items()}, "bytes of a row differ"),
        (lambda batch: {name: values[[0] * len(values)] for name, values in batch.items()}, "each row once"),
    ],
)
def test_a_contestant_that_delivers_other_rows_fails(change, said, folder, tmp_path):
    problem = make_problem("images", folder, 0.01)
    wrong = Contestant("h5py", "h5py", lambda *given: _Loses(CONTESTANTS["h5py"].load(*given), change))
    run = child.turn if said == "rows" else child.try_out
    with pytest.raises(RuntimeError, match=said):
        run(wrong, problem, str(tmp_path))


@pytest.mark.usefixtures("without_workers")
def test_a_state_that_is_forgotten_is_no_resume(folder, tmp_path):
    problem = make_problem("images", folder, 0.05)

    class Forgets(_Loses):
        def state_dict(self):
            return {}

        def load_state_dict(self, state):
            pass

    wrong = Contestant("h5py", "h5py", lambda *given: Forgets(CONTESTANTS["h5py"].load(*given), lambda batch: batch))
    assert child.try_out(wrong, problem, str(tmp_path))["resumes"] == 0


@pytest.mark.parametrize(("order", "expected"), [("path", 0), ("exact", 1), ("chunks", 0.35)])
def test_the_quality_of_a_shuffle_is_that_of_its_batches(order, expected):
    rows, rng = np.arange(4096), np.random.default_rng(1)
    if order == "exact":
        rows = rng.permutation(rows)
    if order == "chunks":
        rows = rng.permutation(rows.reshape(-1, 32)).ravel()  # two chunks of 32 rows a batch
    assert abs(child._quality(rows, 64) - expected) < 0.3
    assert (child._quality(rows, 64) == 0) == (order == "path")


@pytest.mark.slow
def test_bench_peers_runs_what_is_installed_and_names_the_rest(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(peers, "is_installed", lambda name: name in {"ray_h5", BARE, "h5py"})
    asked = ["bench", "peers", "--case", "images", "--size", "0.02", "--folder", str(tmp_path), "--json"]
    assert main(asked) == 0
    lines = capsys.readouterr().out
    (tmp_path / "peers.json").write_text(lines)
    report = Report.load(tmp_path / "peers.json")
    assert {each.baseline for each in report.results} == {BARE, "h5py"}
    assert [each.case.rpartition(": ")[2] for each in report.results] == 2 * list(peers._UNITS)
    assert next(each.theirs for each in report.results if each.unit == "x") == 1
    assert [each.goal for each in report.results if each.goal] == [5]
    assert not any(each.ok is not None for each in report.results)  # too small to judge
    memory = next(each for each in report.results if each.case.endswith("memory"))
    assert 30 < memory.ours < 4000
    assert list(report.seconds) == ["images"]
    assert {each["contestant"] for each in report.left_out} == {*CONTESTANTS} - {"ray_h5", BARE, "h5py"}
    assert report.about["versions"]["h5py"] == h5py.__version__
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- figures -->\nold\n<!-- end of figures -->\nafter\n")
    monkeypatch.setattr(sys, "argv", ["report", str(tmp_path / "peers.json"), str(page)])
    report_main()
    text = page.read_text()
    assert re.match(
        r"before\n<!-- figures -->\n\n`python -m tests.bench peers --size 0.02 --turns 5` on .* cores of ", text
    )
    assert text.endswith("\n\n<!-- end of figures -->\nafter\n")
    assert "old" not in text
    assert "| h5py " in text
    assert "- litdata: not installed: pip install litdata" in text
    assert len(plot_first_epochs(report.results).axes) == 1
    assert not list(tmp_path.glob("peers-*"))  # what they wrote is gone


@pytest.mark.parametrize(
    ("ratio", "floor", "said"),
    [
        (6.0, 9.0, None),
        (3.2, 9.0, "images, lance: we are 3.2 times sooner, the bare read 9 times"),
        (
            3.2,
            4.1,
            (
                "images, lance: we are 3.2 times sooner; 5 times lies above the floor: "
                "the bare read itself is 4.1 times sooner"
            ),
        ),
        (3.2, None, "images, lance: we are 3.2 times sooner"),
    ],
)
def test_the_report_says_where_the_goal_lies_above_the_floor(ratio, floor, said):
    report = Report(about={"size": 1, "turns": 5, "machine": "2 cores", "versions": {"Python": "3"}})
    case = "images, 2048 rows of 12.3 kB"
    for measure in ("conversion", "extra disk", "0 workers", "2 workers", "memory", "shuffle quality"):
        report.results.append(
            Result("peers", f"{case}: {measure}", "lance", "s", 1.0, 1.0, 1.0, (1.0, 1.0), None, None)
        )
    for measure in ("same order", "resumes exactly"):
        report.results.append(Result("peers", f"{case}: {measure}", "lance", "of 1", 1, 1, None, (1, 1), None, None))
    first = Result(
        "peers", f"{case}: first epoch", "lance", "s", 0.1, 0.1 * ratio, ratio, (ratio, ratio), 5.0, ratio >= 5
    )
    report.results.append(first)
    if floor is not None:
        report.results.append(
            Result("peers", f"{case}: of bare read", "lance", "x", 1.4, floor, None, (floor, floor), None, None)
        )
    text = report.to_markdown()
    assert ("Nearer than 5 times:" in text) == (said is not None)
    assert said is None or f"- {said}\n" in text
    assert floor is None or f"| {floor:g}x " in text


def stand_in(failing):
    """Return a stand-in for the processes of contestants: it fails where a test says."""

    class Process:
        def __init__(self, name, *_):
            self.name, self.stopped = name, 0

        def step(self, what, answer):
            if failing.get(self.name) == what:
                raise RuntimeError(f"{what}: no")
            return answer

        def ready(self):
            self.step("ready", None)

        def turn(self):
            return self.step(
                "turn", dict.fromkeys(("first", "conversion", "disk", "steady 0", "steady 2", "memory"), 1.0)
            )

        def tried(self):
            return self.step("try", dict.fromkeys(("quality", "resumes", "same order"), 1.0))

        def stop(self):
            pass

    return Process


@pytest.mark.parametrize("step", ["ready", "turn", "try"])
def test_a_contestant_that_fails_is_left_out_by_name_and_the_others_go_on(step, monkeypatch, folder):
    monkeypatch.setattr(peers, "is_installed", lambda name: name in {"ray_h5", "h5py", "webdataset"})
    monkeypatch.setattr(peers, "_Process", stand_in({"webdataset": step}))
    found = list(peers.records(BenchOptions(0.01, 5, folder, ("images", "signals"))))
    kinds = [kind for record in found for kind in record]
    assert kinds[0] == "about"
    assert kinds[-1] == "took"
    failed = [record["left out"] for record in found if record.get("left out", {}).get("case")]
    assert failed == [
        {"contestant": "webdataset", "case": case, "reason": f"{step}: no"} for case in ("images", "signals")
    ]
    assert {record["result"]["baseline"] for record in found if "result" in record} == {"h5py"}


def test_a_failure_of_ours_is_an_error_after_the_other_cases(monkeypatch, folder):
    monkeypatch.setattr(peers, "is_installed", lambda name: name in {"ray_h5", "h5py"})
    monkeypatch.setattr(peers, "_Process", stand_in({"ray_h5": "try"}))
    seen = []
    with pytest.raises(RuntimeError, match="images: try: no; signals: try: no"):
        seen.extend(peers.records(BenchOptions(0.01, 5, folder, ("images", "signals"))))


def test_a_case_that_is_unknown_or_of_another_bench(capsys):
    assert main(["bench", "peers", "--case", "image"]) == 1
    assert "Did you mean 'images'" in capsys.readouterr().err
    assert main(["bench", "read", "--case", "images"]) == 1
    assert "--case: read measures all its cases" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize(
    ("asked", "said"), [("nothing", "KeyError"), ("exit", "its process has ended"), ("hang", "no answer within 1 s")]
)
def test_a_process_says_why_it_gives_no_answer(asked, said, tmp_path, monkeypatch):
    process = peers._Process("h5py", "images", 0.02, str(tmp_path), {})
    try:
        process.ready()
        if asked == "hang":
            monkeypatch.setattr(peers, "_LIMIT_S", 1)
            os.kill(process._process.pid, signal.SIGSTOP)
        if asked == "exit":
            os.kill(process._process.pid, signal.SIGKILL)
        with pytest.raises(RuntimeError, match=said):
            process._ask("nothing")
    finally:
        process.stop()
    assert not list(tmp_path.glob("peers-*"))


def test_a_store_is_read_by_the_names_of_its_files(folder, tmp_path, monkeypatch):
    pytest.importorskip("obstore")
    problem = make_problem("store", folder, 0.01)
    with FaultServer(problem.store) as server, ExitStack() as stack:
        monkeypatch.setattr(peers, "ServerProcess", lambda *_, **__: nullcontext(server))
        for name, value in peers._store_environment(stack, problem.store).items():
            monkeypatch.setenv(name, value)
        found = child.turn(CONTESTANTS["ray_h5"], problem, str(tmp_path))
        assert found["disk"] > 0  # its cache
        assert {each.method for each in server.requests()} <= {"GET", "HEAD"}
        assert sum(each.nbytes for each in server.requests()) > problem.rows * problem.row_bytes / 100
