"""Run by torchrun: python -m torch.distributed.run ddp_script.py FOLDER PAIRS SIGNALS..."""

import json
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

from ray_h5.torch_data import EpochShuffleSampler, RankMemCachedH5Dataset, create_optimized_dataloader


def step(model, optimizer, inputs):
    loss = model(inputs).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def main():
    folder, pairs, *signals = sys.argv[1:]
    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    model = DistributedDataParallel(torch.nn.Linear(12, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    seen = {"combined": [], "contiguous": [], "interleave": []}

    loader = create_optimized_dataloader(
        hdf5_files=signals, batch_size=8, num_workers=1, rank=rank, world_size=world_size, cache_size=100
    )
    for epoch in range(2):
        loader.sampler.set_epoch(epoch)
        seen["combined"].append([])
        for batch in loader:
            step(model, optimizer, batch["fhr_st"][:, 0])
            seen["combined"][-1] += batch["fhr_st"][:, 0, 0].int().tolist()

    for mode in ("contiguous", "interleave"):
        dataset = RankMemCachedH5Dataset(path=pairs, x_key="images", y_key="labels", mode=mode)
        sampler = EpochShuffleSampler(data_len=len(dataset), seed=42, shuffle=True)
        batches = DataLoader(dataset, batch_size=4, sampler=sampler, num_workers=1, pin_memory=False)
        for epoch in range(2):
            sampler.set_epoch(epoch)
            seen[mode].append([i for inputs, _ in batches for i in inputs[:, 0, 0].int().tolist()])

    seen["weight"] = model.module.weight.sum().item()
    (Path(folder) / f"rank{rank}.json").write_text(json.dumps(seen))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
