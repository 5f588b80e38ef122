"""Train a tagger on jets: events are compound values, jets and their tracks; three fields are one tensor."""

import tempfile
from pathlib import Path

import h5py
import numpy as np
import torch
from torch import nn

from ray_h5 import Shuffle, balance, between, fields, where
from ray_h5.torch_data import H5Dataset, loader

TRACKS = ["d0", "pt", "dphi"]


def make_file(path: Path, jets: int = 4000) -> None:
    rng = np.random.default_rng(0)
    label = rng.random(jets) < 0.1
    jet = np.zeros(jets, [("pt", "f4"), ("eta", "f4"), ("flavour", "i4")])
    jet["pt"], jet["eta"], jet["flavour"] = rng.exponential(50, jets) + 20, rng.normal(0, 1, jets), label * 5
    kind = [("pt", "f4"), ("d0", "f4"), ("z0", "f4"), ("dphi", "f4"), ("hits", "u1"), ("valid", "?")]
    track = np.zeros((jets, 40), kind)
    track["valid"] = np.arange(40) < rng.integers(5, 40, (jets, 1))
    for name in ("pt", "d0", "z0", "dphi"):
        track[name] = rng.normal(0, 1, track.shape) * track["valid"]
    track["d0"] += 0.5 * label[:, None] * track["valid"]
    with h5py.File(path, "w") as file:
        file.create_dataset("jets", data=jet, chunks=(500,), compression="lzf")
        file.create_dataset("tracks", data=track, chunks=(100, 40), compression="lzf")


def train(path: str, epochs: int = 3) -> float:
    """Return the share of jets that the tagger gets right."""
    torch.manual_seed(0)
    columns = [fields("tracks", TRACKS), "tracks/valid", "jets/flavour"]
    dataset = H5Dataset(path, columns, where(**{"jets/pt": between(25, None)}))
    batches = loader(dataset, 128, shuffle=Shuffle(weights=balance("jets/flavour")))
    embed, head = nn.Sequential(nn.Linear(3, 32), nn.ReLU(), nn.Linear(32, 32)), nn.Linear(32, 1)
    optimizer = torch.optim.Adam([*embed.parameters(), *head.parameters()], lr=3e-3)
    right = total = 0
    for epoch in range(epochs):
        right = total = 0
        for batch in batches:
            found = head((embed(batch["tracks"]) * batch["tracks/valid"][..., None]).mean(1))[:, 0]
            wanted = (batch["jets/flavour"] == 5).float()
            loss = nn.functional.binary_cross_entropy_with_logits(found, wanted)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            right, total = right + int(((found > 0) == (wanted > 0)).sum()), total + len(wanted)
        print(f"epoch {epoch}: {right / total:.1%} of {total} jets right")
    return right / total


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        make_file(Path(folder) / "jets.h5")
        train(f"{folder}/jets.h5")
