"""The bench of sparse matrices at a tiny size: it runs, compares rows with h5py, and says how well a shuffle mixes."""

import h5py
import numpy as np
import pytest

from ray_h5.torch_data import H5Dataset
from tests.bench import measure
from tests.bench.baselines import sparse_reads
from tests.bench.baselines.sparse_reads import fetched_rows, slices_of
from tests.bench.cases import sparse
from tests.bench.sparse_workloads import make_cells
from tests.benchkit import one_turn


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return str(tmp_path_factory.mktemp("cells"))


@pytest.mark.slow
def test_bench_sparse_runs_without_the_libraries_of_others(folder, monkeypatch):
    monkeypatch.setattr(measure.gc, "collect", lambda: 0)  # it takes long in a process with many objects
    monkeypatch.setattr(sparse, "_RANDOM_BATCHES", 1)
    monkeypatch.setattr(sparse_reads.importlib.util, "find_spec", lambda _: None)
    results = sparse.bench_sparse(one_turn(0.005, folder))
    found = {(each.case, each.baseline): each for each in results}
    for label in ("gzip", "plain"):
        assert (f"{label}, dense, blocks of 16", "AnnData backed") in found
        assert (f"{label}, compressed rows, blocks of 16", "scDataset's way") in found
        assert (f"{label}, read alone", "pread + decode") in found
        entropy = found[f"{label}, compressed rows, Shuffle('chunks'), batch entropy", "-"]
        assert 0 < entropy.ours < np.log2(14)
    assert {each.goal for each in results} == {None, 2.5, 3.0, 40.0, 0.85}


def test_the_baseline_reads_the_same_rows(folder):
    made = make_cells(folder, 0.005, gzip=True)
    rows = np.array([7, 8, 9, 200, 3, 3])
    expected = H5Dataset(made.path, ["X"])[rows]["X"]
    with h5py.File(made.path) as file:
        indptr = file["X/indptr"][:].astype(np.int64)
        np.testing.assert_array_equal(slices_of(file, indptr, np.sort(rows[:4])).toarray(), expected[:4])
        found = list(fetched_rows(file, indptr, rows[:5], 2, dense=True))
    np.testing.assert_array_equal(np.vstack(found), expected[:5])


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning", "ignore::UserWarning")
@pytest.mark.filterwarnings("ignore:.*without encoding metadata")
def test_the_workload_is_what_anndata_writes(folder):
    pytest.importorskip("anndata", reason="anndata is the oracle of this test")
    import anndata

    made = make_cells(folder, 0.005, gzip=False)
    found = anndata.read_h5ad(made.path)
    assert found.shape == (made.cells, made.genes)
    np.testing.assert_array_equal(H5Dataset(made.path, ["X"])[:5]["X"], found.X[:5].toarray())
