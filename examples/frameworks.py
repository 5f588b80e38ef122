"""Datasets for a training framework that makes the `DataLoader` itself.

    torchrun --nproc-per-node 2 examples/frameworks.py
    python -m torch.distributed.run --standalone --nproc-per-node 1 examples/frameworks.py

`Handler` imitates the framework: it does not know HDF5, and passes options to the `DataLoader`.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from files import make_signals
from torch.utils.data import DataLoader, Dataset

from ray_h5.torch_data import EpochShuffleSampler, H5LazyDataset, RankMemCachedH5Dataset, h5_worker_init_fn


class Handler:
    """The part of a framework that owns model and loader."""

    def __init__(self, model: torch.nn.Module) -> None:
        self.model = model
        self.loader: DataLoader[Any] | None = None

    def set_train_loader(self, dataset: Dataset[Any], **options: Any) -> None:
        self.loader = DataLoader(dataset, **options)

    def train(self) -> float:
        optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-2)
        for inputs, targets in self.loader:
            loss = torch.nn.functional.cross_entropy(self.model(inputs), targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        return loss.item()


def main() -> None:
    path = make_signals(size=0.05)[0]
    handler = Handler(torch.nn.Conv1d(43, 4, 5, padding=2))

    dataset = H5LazyDataset(path, x_key="fhr_st", y_key="target", y_dtype="int64")
    handler.set_train_loader(dataset, batch_size=10, shuffle=True, num_workers=2, worker_init_fn=h5_worker_init_fn)
    print(f"lazy: loss {handler.train():.4f}")

    dist.init_process_group("gloo")
    shard = RankMemCachedH5Dataset(path, x_key="fhr_st", y_key="target", mode="interleave", dtype_y="int64")
    sampler = EpochShuffleSampler(data_len=len(shard), seed=42, shuffle=True)
    handler.set_train_loader(shard, batch_size=10, sampler=sampler, num_workers=0, pin_memory=False)
    for epoch in range(3):
        sampler.set_epoch(epoch)
        print(f"rank {dist.get_rank()}, epoch {epoch}: loss {handler.train():.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
