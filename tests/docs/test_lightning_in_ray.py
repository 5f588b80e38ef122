"""The snippet of docs/frameworks.md for lightning inside Ray Train, with two ranks."""

import json
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
import json

import ray
import ray.train
import torch
from lightning.pytorch import LightningModule

path, columns, folder = "a.h5", ["row"], {folder!r}
ray.init(address="local", num_cpus=4, object_store_memory=256 << 20, include_dashboard=False)
ray.train.constants.DEFAULT_STORAGE_PATH = folder + "/ray_results"


class Model(LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)
        self.seen = []

    def training_step(self, batch, _):
        self.seen += [(self.current_epoch, row) for row in batch["row"].int().flatten().tolist()]
        return self.layer(batch["row"]).mean()

    def on_train_end(self):
        with open(f"{{folder}}/rank{{self.global_rank}}.json", "w") as file:
            json.dump(self.seen, file)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=1e-9)


"""


@pytest.mark.nightly  # half a minute: Ray starts, and lightning is imported by each rank
def test_each_row_reaches_one_rank_in_each_epoch(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["row"] = np.arange(ROWS, dtype="f4")[:, None]
    (snippet,) = (code for _, code in blocks("docs/frameworks.md", "python") if "RayDDPStrategy" in code)
    (tmp_path / "script.py").write_text(BEFORE.format(folder=str(tmp_path)) + snippet)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    subprocess.run(
        [sys.executable, "-W", "ignore", "script.py"], cwd=tmp_path, env=environment, check=True, timeout=400
    )
    ranks = [json.loads((tmp_path / f"rank{rank}.json").read_text()) for rank in (0, 1)]
    for epoch in (0, 1):
        seen = [[row for at, row in rank if at == epoch] for rank in ranks]
        assert [len(rows) for rows in seen] == [ROWS // 2, ROWS // 2]
        assert sorted(seen[0] + seen[1]) == list(range(ROWS))
    assert [row for _, row in ranks[0][: ROWS // 2]] != [row for _, row in ranks[0][ROWS // 2 :]]
