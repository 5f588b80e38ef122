"""Attention-based multiple instance learning: a file is a slide, a bag of features, and a table has the labels.

    python examples/bags.py                       # makes slides and a table first
    python examples/bags.py features/ labels.csv  # a table with slide_id, the name of the file, and label

A file has "features" of shape (N, 16).
"""

import sys
import tempfile

import h5py
import numpy as np
import torch
from torch import nn

from ray_h5 import Files, Shuffle, Sidecar, kfold
from ray_h5.torch_data import loader


def make_slides(folder: str, count: int = 48, width: int = 16) -> str:
    """Write slides; those of label 1 have a few features that are shifted. Return the table."""
    rng = np.random.default_rng(0)
    for i in range(count):
        features = rng.normal(size=(rng.integers(20, 200), width)).astype("f4")
        features[::10, :4] += 3 * (i % 2)
        with h5py.File(f"{folder}/slide_{i}.h5", "w") as file:
            file["features"] = features
    np.savetxt(table := f"{folder}/labels.csv", ["slide_id,label", *(f"slide_{i},{i % 2}" for i in range(count))], "%s")
    return table


class Attention(nn.Module):
    """Weighs the features of a bag."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.body, self.head = nn.Sequential(nn.Linear(width, 32), nn.ReLU()), nn.Linear(32, 1)
        self.weight = nn.Sequential(nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 1))

    def forward(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        found = self.body(batch["features"])
        is_pad = torch.arange(found.shape[1]) >= batch["features_length"][:, None]
        weights = self.weight(found)[..., 0].masked_fill(is_pad, -torch.inf).softmax(1)
        return self.head((weights[..., None] * found).sum(1))[:, 0]


def train(slides: str, table: str, epochs: int = 20) -> float:
    """Return the share of held-out slides that are classified right."""
    torch.manual_seed(0)
    options = {"rows": Files(key="slide_id"), "sidecar": Sidecar(table, on="slide_id"), "pad": True}
    fit, held = kfold(slides, 3, stratify="label", rows=options["rows"], sidecar=options["sidecar"])[0]
    shuffle = Shuffle(by_length="features", batch_values=2000)  # a batch has at most 2000 features
    batches = loader(slides, 16, shuffle=shuffle, predicate=fit, **options)
    optimizer = torch.optim.Adam((model := Attention(16)).parameters(), 5e-3)
    for batch in (batch for _ in range(epochs) for batch in batches):
        loss = nn.functional.binary_cross_entropy_with_logits(model(batch), batch["label"].float())
        optimizer.zero_grad(), loss.backward(), optimizer.step()
    valid = loader(slides, 16, shuffle=False, predicate=held, **options)
    return torch.cat([(model(batch) > 0) == batch["label"] for batch in valid]).float().mean().item()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as made:
        print("right of held out:", train(*(sys.argv[1:] or (made, make_slides(made)))))
