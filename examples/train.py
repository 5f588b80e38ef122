"""Train a small network on HDF5 files through Ray: read, filter, stream to workers, checkpoint.

    python examples/train.py                                   # makes its own files first
    python examples/train.py --paths "data/*.h5" --workers 4   # yours, with the same columns

The files need the columns fhr_st (43, 300), target (300,) and weight (300,) to train on, and the
scalars cs_label and epoch to choose rows by.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from pathlib import Path
from typing import Any

import ray
import ray.train.torch
import torch
from ray.data.expressions import col
from ray.train import Checkpoint, RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer
from torch import nn

import ray_h5
from ray_h5.bench.workloads import make_workload

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


def train_loop(config: dict[str, Any]) -> None:
    """Train in one worker; Ray runs it in each."""
    # A worker computes on its share of the cores: more threads than cores only wait for each other.
    torch.set_num_threads(max(1, (os.cpu_count() or 1) // ray.train.get_context().get_world_size()))
    torch.manual_seed(0)
    model = ray.train.torch.prepare_model(ConvNet())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    shard = ray.train.get_dataset_shard("train")
    for epoch in range(config["epochs"]):
        began = time.perf_counter()
        device = ray.train.torch.get_device()
        totals = torch.zeros(2, dtype=torch.float64, device=device)  # loss times rows, rows
        # Every worker gets the same number of rows, so all take the same number of steps.
        for batch in shard.iter_torch_batches(batch_size=config["batch_size"]):
            loss = weighted_loss(model(batch["fhr_st"]), batch["target"], batch["weight"])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            rows = len(batch["target"])
            totals += torch.tensor([loss.item() * rows, rows], dtype=torch.float64, device=device)
        report(model, epoch, totals, time.perf_counter() - began)


def report(model: nn.Module, epoch: int, totals: torch.Tensor, seconds: float) -> None:
    """Report the epoch of all workers together; the first one saves the model."""
    if torch.distributed.is_initialized():
        torch.distributed.all_reduce(totals)
    rows = int(totals[1])
    metrics = {"epoch": epoch, "loss": (totals[0] / totals[1]).item(), "rows": rows, "rows_per_s": rows / seconds}
    if ray.train.get_context().get_world_rank() != 0:
        ray.train.report(metrics)
        return
    print(f"epoch {epoch}: loss {metrics['loss']:.4f}, {rows} rows, {metrics['rows_per_s']:.0f} rows/s", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        torch.save(getattr(model, "module", model).state_dict(), Path(folder) / "model.pt")
        ray.train.report(metrics, checkpoint=Checkpoint.from_directory(folder))


def main() -> None:
    args = parse_arguments()
    if args.gpu and not torch.cuda.is_available():
        raise SystemExit("--gpu: torch finds no CUDA device here; leave --gpu out, or install a CUDA build of torch")
    paths = args.paths or make_files(args.rows)
    start_ray(args.workers)
    ds = ray_h5.read_h5(paths, columns=["fhr_st", "target", "weight"])
    ds = ds.filter(expr=(col("cs_label") == 1) & (col("epoch") >= 10) & (col("epoch") <= 50))
    print(f"{ds.count()} rows selected; reading {', '.join(ds.columns())}", flush=True)
    trainer = TorchTrainer(
        train_loop,
        train_loop_config={"epochs": args.epochs, "batch_size": args.batch_size},
        datasets={"train": ds},
        scaling_config=ScalingConfig(num_workers=args.workers, use_gpu=args.gpu),
        run_config=RunConfig(name="train", storage_path=args.output or tempfile.mkdtemp(prefix="ray_h5_train_")),
    )
    result = trainer.fit()
    print(f"loss {result.metrics['loss']:.4f}; the model is in {result.checkpoint.path}")


def make_files(rows: int) -> list[str]:
    print(f"no --paths: making {rows} rows of signals in a temporary folder", flush=True)
    return list(make_workload("signals", size=rows / 4000).paths)


def start_ray(workers: int) -> None:
    """Join the cluster that RAY_ADDRESS names, or start one here with room for workers and readers."""
    os.environ.setdefault("RAY_TRAIN_ENABLE_PRINT_PATCH", "0")  # or every line is shown twice
    if os.environ.get("RAY_ADDRESS"):
        ray.init()
    else:
        ray.init(num_cpus=max(os.cpu_count() or 1, workers + 2))


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Train a small network on HDF5 files through Ray.")
    parser.add_argument("--paths", nargs="+", help="HDF5 files, folders or globs (default: makes its own)")
    parser.add_argument("--rows", type=int, default=2000, help="rows to make without --paths (default: %(default)s)")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--workers", type=int, default=1, help="training processes (default: %(default)s)")
    parser.add_argument("--batch-size", type=int, default=32, help="rows a step and worker (default: %(default)s)")
    parser.add_argument("--gpu", action="store_true", help="a GPU for each worker")
    parser.add_argument("--output", help="folder for checkpoints (default: a temporary one)")
    return parser.parse_args()


if __name__ == "__main__":
    main()
