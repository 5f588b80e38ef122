"""The snippet of docs/frameworks.md for lightning inside Ray Train, with two ranks."""

import json

import h5py
import numpy as np
import pytest

from tests.docs.pages import blocks

ROWS = 400


@pytest.mark.usefixtures("ray_local")
def test_each_row_reaches_one_rank_in_each_epoch(tmp_path, monkeypatch):
    import torch
    from lightning.pytorch import LightningModule

    folder = str(tmp_path)
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["row"] = np.arange(ROWS, dtype="f4")[:, None]

    class Model(LightningModule):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(1, 1)
            self.seen = []

        def training_step(self, batch, _):
            self.seen += [(self.current_epoch, row) for row in batch["row"].int().flatten().tolist()]
            return self.layer(batch["row"]).mean()

        def on_train_end(self):
            with open(f"{folder}/rank{self.global_rank}.json", "w") as file:
                json.dump(self.seen, file)

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=1e-9)

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("ray.train.constants.DEFAULT_STORAGE_PATH", str(tmp_path / "ray_results"))
    (snippet,) = (code for _, code in blocks("docs/frameworks.md", "python") if "RayDDPStrategy" in code)
    names = {"__name__": "__main__", "Model": Model, "path": str(tmp_path / "a.h5"), "columns": ["row"]}
    exec(snippet, names)
    ranks = [json.loads((tmp_path / f"rank{rank}.json").read_text()) for rank in (0, 1)]
    for epoch in (0, 1):
        seen = [[row for at, row in rank if at == epoch] for rank in ranks]
        assert [len(rows) for rows in seen] == [ROWS // 2, ROWS // 2]
        assert sorted(seen[0] + seen[1]) == list(range(ROWS))
    assert ranks[0][: ROWS // 2] != ranks[0][ROWS // 2 :]
