"""Train a small network on HDF5 files with DistributedDataParallel, without Ray.

    torchrun --nproc-per-node 2 examples/ddp_plain.py                     # makes its own files first
    torchrun --nproc-per-node 2 examples/ddp_plain.py --paths "data/*.h5" --epochs 10 --save run.pt

The model and the loss are those of train.py. A run that finds the file of ``--save`` continues where that was
written, also inside an epoch and with another number of processes.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import time
from pathlib import Path

import torch
import torch.distributed as dist
from files import make_signals
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from ray_h5.torch_data import H5DataLoader, create_optimized_dataloader

CLASSES = 4


class ConvNet(nn.Module):
    """1-D convolutions over time: (batch, 43, 300) -> class logits (batch, CLASSES, 300)."""

    def __init__(self, channels: int = 43, width: int = 64) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv1d(channels, width, kernel_size=5, padding=2),
            nn.BatchNorm1d(width),
            nn.ReLU(),
            nn.Conv1d(width, width, kernel_size=5, padding=2),
            nn.ReLU(),
            nn.Conv1d(width, CLASSES, kernel_size=1),
        )

    def forward(self, signal: torch.Tensor) -> torch.Tensor:
        return self.layers(signal)


def weighted_loss(logits: torch.Tensor, target: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Cross-entropy a time step, averaged over the steps whose weight is not zero."""
    each = nn.functional.cross_entropy(logits, target.long(), reduction="none")
    return (each * weight).sum() / weight.sum().clamp(min=1)


class Run:
    """Model, optimizer and position in the data, with their checkpoints."""

    def __init__(self, batches: H5DataLoader, device: torch.device, path: Path | None) -> None:
        self.batches, self.device, self.path = batches, device, path
        self.model = DistributedDataParallel(ConvNet().to(device))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)
        self.first_epoch = 0
        if path is not None and path.exists():
            state = torch.load(path, map_location=device, weights_only=True)
            self.model.module.load_state_dict(state["model"])
            self.optimizer.load_state_dict(state["optimizer"])
            self.batches.load_state_dict(state["batches"])
            self.first_epoch = state["batches"]["epoch"]  # after the end of an epoch, that of the next one

    def save(self) -> None:
        if self.path is None or dist.get_rank() != 0:
            return
        parts = {"model": self.model.module, "optimizer": self.optimizer, "batches": self.batches}
        written = self.path.with_suffix(".part")
        torch.save({name: part.state_dict() for name, part in parts.items()}, written)
        written.replace(self.path)

    def epoch(self, epoch: int, save_every: int) -> torch.Tensor:
        self.batches.set_epoch(epoch)
        totals = torch.zeros(2, dtype=torch.float64)  # loss times rows, rows
        for step, batch in enumerate(self.batches, start=1):
            signal, target, weight = (batch[name].to(self.device, non_blocking=True) for name in FIELDS)
            loss = weighted_loss(self.model(signal), target, weight)
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            totals += torch.tensor([loss.item() * len(target), len(target)], dtype=torch.float64)
            if step % save_every == 0:
                self.save()
        self.save()
        return totals


FIELDS = ("fhr_st", "target", "weight")


def main() -> None:
    args = parse_arguments()
    local_rank = int(os.environ.get("LOCAL_RANK", "0"))
    gpu = torch.cuda.is_available()
    dist.init_process_group("nccl" if gpu else "gloo")
    device = torch.device("cuda", local_rank) if gpu else torch.device("cpu")
    if gpu:
        torch.cuda.set_device(device)
    with contextlib.closing(_Group()):
        train(args, device)


def train(args: argparse.Namespace, device: torch.device) -> None:
    rank, world_size = dist.get_rank(), dist.get_world_size()
    torch.set_num_threads(max(1, (os.cpu_count() or 1) // world_size))
    torch.manual_seed(0)
    if rank == 0 and not args.paths:
        make_signals(size=args.rows / 4000)
    dist.barrier()
    batches = create_optimized_dataloader(
        hdf5_files=args.paths or make_signals(size=args.rows / 4000),
        batch_size=args.batch_size,
        num_workers=2,
        rank=rank,
        world_size=world_size,
        load_fields=list(FIELDS),
        epoch_min=10,
        epoch_max=50,
    )
    run = Run(batches, device, args.save)
    for epoch in range(run.first_epoch, args.epochs):
        began = time.perf_counter()
        totals = run.epoch(epoch, args.save_every).to(device)
        dist.all_reduce(totals)
        if rank == 0 and totals[1]:  # a run that stopped after the last step of an epoch has no rows left of it
            rate = totals[1].item() / (time.perf_counter() - began)
            print(f"epoch {epoch}: loss {(totals[0] / totals[1]).item():.4f}, {rate:.0f} rows/s", flush=True)


class _Group:
    """Destroys the process group, also after an error."""

    def close(self) -> None:
        dist.destroy_process_group()


def count(text: str) -> int:
    """Return an integer of 1 or more; argparse names the option of another value."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"expected an integer of 1 or more, found {number}")
    return number


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Train a small network on HDF5 files under torchrun.")
    parser.add_argument("--paths", nargs="+", help="HDF5 files, folders or globs (default: makes its own)")
    parser.add_argument("--rows", type=count, default=2000, help="rows to make without --paths (default: %(default)s)")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=count, default=32, help="rows a step and process (default: %(default)s)")
    parser.add_argument("--save", type=Path, help="checkpoint to write, and to continue from if it exists")
    parser.add_argument("--save-every", type=count, default=50, help="steps between checkpoints (default: %(default)s)")
    args = parser.parse_args()
    if args.save and not args.save.parent.is_dir():
        parser.error(f"--save {args.save}: the folder {args.save.parent} does not exist; make it first")
    return args


if __name__ == "__main__":
    main()
