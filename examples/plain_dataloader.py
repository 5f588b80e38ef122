"""Train in plain PyTorch, without Ray: the same files, rows and order.

    python examples/plain_dataloader.py                     # makes its own files first
    python examples/plain_dataloader.py --paths "data/*.h5"

Three ways to make batches: a `DataLoader`, `create_optimized_dataloader`, and `loader`.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterable
from typing import Any

import torch
from files import make_signals
from torch.utils.data import DataLoader

from ray_h5.torch_data import CombinedHDF5Dataset, create_optimized_dataloader, loader, where

FIELDS = ["fhr_st", "target", "weight"]


def make_loaders(paths: list[str], batch_size: int) -> dict[str, Iterable[Any]]:
    dataset = CombinedHDF5Dataset(paths, load_fields=FIELDS, bg_label=False, label=1)
    print(f"{len(dataset)} samples in which class 1 occurs; one has {', '.join(dataset[0])}")
    return {
        "DataLoader": DataLoader(dataset, batch_size=batch_size, shuffle=True),
        "create_optimized_dataloader": create_optimized_dataloader(
            paths, batch_size, num_workers=2, load_fields=FIELDS, bg_label=False, label=1
        ),
        "loader": loader(paths, batch_size, columns=FIELDS, predicate=where(bg_label=False)),
    }


def train_epoch(model: torch.nn.Module, batches: Iterable[Any]) -> tuple[float, int]:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    total, rows = 0.0, 0
    for batch in batches:
        each = torch.nn.functional.cross_entropy(model(batch.fhr_st), batch.target.long(), reduction="none")
        loss = (each * batch.weight).sum() / batch.weight.sum().clamp(min=1)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.item() * len(batch.target)
        rows += len(batch.target)
    return total / rows, rows


def main() -> None:
    parser = argparse.ArgumentParser(description="Train on HDF5 files in plain PyTorch.")
    parser.add_argument("--paths", nargs="+", help="HDF5 files, folders or globs (default: makes its own)")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=32)
    args = parser.parse_args()
    paths = args.paths or make_signals(size=0.1)
    for name, batches in make_loaders(paths, args.batch_size).items():
        torch.manual_seed(0)
        model = torch.nn.Conv1d(43, 4, kernel_size=5, padding=2)
        for epoch in range(args.epochs):
            if hasattr(batches.sampler, "set_epoch"):
                batches.sampler.set_epoch(epoch)
            began = time.perf_counter()
            loss, rows = train_epoch(model, batches)
            print(f"{name}, epoch {epoch}: loss {loss:.4f}, {rows / (time.perf_counter() - began):.0f} rows/s")


if __name__ == "__main__":
    main()
