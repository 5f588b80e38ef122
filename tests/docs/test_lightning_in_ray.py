"""The snippet of docs/frameworks.md for lightning inside Ray Train, with two ranks."""

import os
import subprocess
import sys

import h5py
import numpy as np
import pytest

from tests.docs.pages import ROOT, blocks

ROWS = 400

# Two CPUs for the ranks, and others to read: more than those of the Ray that tests share.
BEFORE = """
import ray
import ray.train

ray.init(address="local", num_cpus=4, object_store_memory=256 << 20, include_dashboard=False)
ray.train.constants.DEFAULT_STORAGE_PATH = {folder!r} + "/ray_results"
"""

STEP = "    def training_step(self, batch, batch_number):\n"

# Each rank notes which rows it gets.
NOTE = """        with open({folder!r} + f"/rank{{self.global_rank}}.txt", "a") as file:
            file.writelines(f"{{self.current_epoch}} {{row}}\\n" for row in batch["label"].tolist())
            batch["label"] = batch["label"] % 4
"""


@pytest.mark.nightly  # half a minute: Ray starts, and lightning is imported by each rank
def test_each_row_reaches_one_rank_in_each_epoch(tmp_path):
    (tmp_path / "data").mkdir()
    with h5py.File(tmp_path / "data" / "run.h5", "w") as file:
        file.create_dataset("image", (ROWS, 3, 32, 32), "f4")
        file["label"] = np.arange(ROWS)
    (snippet,) = (code for _, code in blocks("docs/frameworks.md", "python") if "RayDDPStrategy" in code)
    assert STEP in snippet
    before, note = (each.format(folder=str(tmp_path)) for each in (BEFORE, NOTE))
    (tmp_path / "script.py").write_text(before + snippet.replace(STEP, STEP + note))
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    subprocess.run(
        [sys.executable, "-W", "ignore", "script.py"], cwd=tmp_path, env=environment, check=True, timeout=400
    )
    lines = [(tmp_path / f"rank{rank}.txt").read_text().splitlines() for rank in (0, 1)]
    ranks = [[tuple(map(int, line.split())) for line in rank] for rank in lines]
    for epoch in (0, 1):
        seen = [[row for at, row in rank if at == epoch] for rank in ranks]
        assert [len(rows) for rows in seen] == [ROWS // 2, ROWS // 2]
        assert sorted(seen[0] + seen[1]) == list(range(ROWS))
    assert [row for _, row in ranks[0][: ROWS // 2]] != [row for _, row in ranks[0][ROWS // 2 :]]
