"""Train a 3-D convolution on blocks of volumes that differ in shape.

    python examples/patches.py               # makes volumes first
    python examples/patches.py "scans/*.h5"

Files have "raw" (channels, z, y, x) and "label" (z, y, x).
"""

import sys
import tempfile

import h5py
import numpy as np
import torch
from torch import nn

from ray_h5 import Patches, Shuffle
from ray_h5.torch_data import H5Dataset, loader

SHAPES = {"raw": (16, 16, 16), "label": (16, 16, 16)}


def make_volumes(folder: str, count: int = 4) -> str:
    """Write volumes with a bright ball each, in chunks."""
    rng = np.random.default_rng(0)
    for i in range(count):
        shape = tuple(rng.integers(32, 48, 3).tolist())
        at = np.stack(np.indices(shape), -1) - np.array([rng.integers(12, n - 12) for n in shape])
        label = (at**2).sum(-1) < 100
        with h5py.File(f"{folder}/scan_{i}.h5", "w") as file:
            raw = rng.normal(size=shape) + 2 * label
            file.create_dataset("raw", data=raw[None].astype("f4"), chunks=(1, 16, 16, 16), compression="gzip")
            file.create_dataset("label", data=label.astype("u1"), chunks=(16, 16, 16), compression="gzip")
    return f"{folder}/*.h5"


def train(paths: str, epochs: int = 4) -> float:
    """Train on 24 blocks a volume and epoch that hold some of the class; return the overlap on a grid (Dice)."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv3d(1, 4, 5, padding=2), nn.ReLU(), nn.Conv3d(4, 1, 5, padding=2))
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    drawn = Patches(SHAPES, per_file=24, where_any=("label", [1]))
    batches = loader(paths, 8, rows=drawn, shuffle=Shuffle(seed=0))
    for batch in (batch for _ in range(epochs) for batch in batches):  # each epoch draws other blocks
        loss = nn.functional.binary_cross_entropy_with_logits(model(batch["raw"])[:, 0], batch["label"].float())
        optimizer.zero_grad(), loss.backward(), optimizer.step()
    both = either = 0
    for row in H5Dataset(paths, rows=Patches(SHAPES)):  # a grid: row["corner"] is the place of the block
        with torch.no_grad():
            found = model(row["raw"][None])[0, 0] > 0
        both += 2 * int((found & (row["label"] > 0)).sum())
        either += int(found.sum() + row["label"].sum())
    return both / either


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as made:
        print("overlap:", train(*(sys.argv[1:] or [make_volumes(made)])))
