"""examples/cells.py makes files that anndata reads, draws each cell type equally often, and learns."""

import importlib.util
import re
from pathlib import Path

import numpy as np
import pytest

PROGRAM = Path(__file__).parents[2] / "examples" / "cells.py"


@pytest.fixture(scope="module")
def cells():
    spec = importlib.util.spec_from_file_location("cells", PROGRAM)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_classifier_learns_from_balanced_batches(cells, tmp_path, capsys):
    for seed in range(2):
        cells.make_file(tmp_path / f"donor{seed}.h5ad", seed)
    genes = [f"gene{i}" for i in range(0, cells.GENES, 2)]
    assert cells.train([str(tmp_path)], ["T cell", "B cell"], genes, 2) > 0.95
    drawn = [int(each) for each in re.findall(r"cell': (\d+)", capsys.readouterr().out)]
    assert len(drawn) == 4
    assert max(drawn) - min(drawn) < 0.1 * max(drawn)


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning", "ignore::UserWarning")
def test_anndata_reads_the_files(cells, tmp_path):
    anndata = pytest.importorskip("anndata", reason="anndata is the oracle of this test")
    cells.make_file(tmp_path / "a.h5ad", 0)
    found = anndata.read_h5ad(tmp_path / "a.h5ad")
    assert found.shape == (cells.CELLS, cells.GENES)
    assert set(found.obs["cell_type"]) == set(cells.TYPES)
    assert np.all(found.X.data >= 1)
