"""Columns of references in Ray: what MATLAB's cell arrays hold."""

import numpy as np
import pytest

import ray_h5
from tests.rows.test_references import matlab


@pytest.mark.usefixtures("ray_local")
def test_cells_are_rows(tmp_path):
    rng = np.random.default_rng(0)
    spikes = [rng.random((1, n)) for n in (3, 1, 5, 4, 2, 7)]
    matlab(tmp_path / "a.mat", {"spikes": spikes, "words": ["go", "a", "nö", "go", "a", "b"]})
    ds = ray_h5.read_h5(tmp_path / "a.mat", block_rows=2).filter(expr=ray_h5.where(words=["go", "nö"]))
    rows = ds.take_all()
    assert [row["words"] for row in rows] == ["go", "nö", "go"]
    for row, at in zip(rows, (0, 2, 3), strict=True):
        np.testing.assert_array_equal(row["spikes"], spikes[at].T)
