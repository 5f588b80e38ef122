"""The short examples run, and learn from the files that they make."""

import re

import numpy as np
import pytest
import torch

from .programs import EXAMPLES, program


@pytest.mark.parametrize("name", ["bags", "patches"])
def test_they_are_short(name):
    assert sum(bool(line.strip()) for line in (EXAMPLES / f"{name}.py").read_text().splitlines()) <= 60


def test_attention_finds_slides_with_a_few_odd_features(tmp_path):
    bags = program("bags")
    assert bags.train(str(tmp_path), bags.make_slides(str(tmp_path))) >= 0.75


def test_a_convolution_finds_balls(tmp_path):
    patches = program("patches")
    assert patches.train(patches.make_volumes(str(tmp_path)), epochs=2) > 0.5


@pytest.mark.parametrize(("name", "run", "least"), [("jets", "train", 0.75), ("spikes", "decode", 0.8)])
def test_parts_of_columns_are_learned_from(name, run, least, tmp_path):
    torch.manual_seed(0)
    module = program(name)
    module.make_file(tmp_path / "a.h5")
    assert getattr(module, run)(str(tmp_path / "a.h5")) > least
    assert len((EXAMPLES / f"{name}.py").read_text().splitlines()) <= 60


def test_a_classifier_of_cells_learns_from_balanced_batches(tmp_path, capsys):
    cells = program("cells")
    for seed in range(2):
        cells.make_file(tmp_path / f"donor{seed}.h5ad", seed)
    genes = [f"gene{i}" for i in range(0, cells.GENES, 2)]
    assert cells.train([str(tmp_path)], ["T cell", "B cell"], genes, 2) > 0.95
    drawn = [int(each) for each in re.findall(r"cell': (\d+)", capsys.readouterr().out)]
    assert len(drawn) == 4
    assert max(drawn) - min(drawn) < 0.1 * max(drawn)


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning", "ignore::UserWarning")
def test_anndata_reads_the_files_of_cells(tmp_path):
    anndata = pytest.importorskip("anndata", reason="anndata is the oracle of this test")
    cells = program("cells")
    cells.make_file(tmp_path / "a.h5ad", 0)
    found = anndata.read_h5ad(tmp_path / "a.h5ad")
    assert found.shape == (cells.CELLS, cells.GENES)
    assert set(found.obs["cell_type"]) == set(cells.TYPES)
    assert np.all(found.X.data >= 1)
