"""The bench of other formats and libraries, with those that are installed."""

import json

import numpy as np
import pytest

from ray_h5.bench import BENCHES
from ray_h5.bench.peers import child, contestants
from ray_h5.bench.peers.contestants import CONTESTANTS, Contestant
from ray_h5.bench.peers.problems import PROBLEMS, make_problem
from ray_h5.bench.peers.table import to_notes, to_wide_table
from tests.benchkit import one_turn

# torchdata calls what this torch deprecates.
pytestmark = pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return str(tmp_path_factory.mktemp("workloads"))


@pytest.fixture
def without_workers(monkeypatch):
    """Let all loaders run in this process: starting others takes long, and the slow test does it."""
    monkeypatch.setattr(contestants, "_workers", lambda _: {"num_workers": 0})


@pytest.mark.usefixtures("without_workers")
@pytest.mark.parametrize("case", PROBLEMS)
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
def test_bench_peers_runs_what_is_installed_and_names_the_rest(tmp_path, monkeypatch):
    from ray_h5.bench.cases import peers

    monkeypatch.setattr(peers, "PROBLEMS", ["images"])
    monkeypatch.setattr(peers, "is_installed", lambda name: name in {"ray_h5", "h5py"})
    found = BENCHES["peers"](one_turn(0.02, tmp_path))
    assert {each.baseline for each in found} == {"h5py"}
    assert [each.case.rpartition(": ")[2] for each in found] == list(peers._UNITS)
    assert [each.goal for each in found if each.goal] == [5]
    memory = next(each for each in found if each.case.endswith("memory"))
    assert 30 < memory.ours < 4000
    table = to_wide_table(found)
    assert "| ray_h5 " in table
    assert "| h5py " in table
    assert json.dumps([each.case for each in found])
    missing = [name for name in CONTESTANTS if not peers.is_installed(name)]
    assert "versions: ray_h5" in to_notes()
    assert missing
    assert not list(tmp_path.glob("peers-*"))  # what they wrote is gone


@pytest.mark.slow
def test_a_contestant_that_fails_is_named_with_its_error(tmp_path):
    from ray_h5.bench.cases import peers

    process = peers._Process("h5py", "images", 0.02, str(tmp_path))
    try:
        with pytest.raises(RuntimeError, match=r"h5py, images: .*KeyError"):
            process._ask("nothing")
    finally:
        process.stop()
