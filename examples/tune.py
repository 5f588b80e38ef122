"""Try learning rates and widths with Ray Tune, several trials at once, each a training run of Ray Train.

    python examples/tune.py                                   # makes its own files first
    python examples/tune.py --paths "data/*.h5" --at-once 4   # yours, with the columns of examples/train.py

Each trial reads its own dataset "train" and counts its own epochs: trials do not wait for each other.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from pathlib import Path
from typing import Any

import ray
import ray.train.torch
import torch
from files import make_signals
from ray import tune
from ray.train import RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer
from ray.tune.integration.ray_train import TuneReportCallback
from torch import nn

import ray_h5

CLASSES = 4


def train_loop(config: dict[str, Any]) -> None:
    """Train in one worker of one trial; Ray runs this function in each worker."""
    torch.set_num_threads(1)  # trials share the cores
    torch.manual_seed(0)
    device = ray.train.torch.get_device()
    model = nn.Sequential(
        nn.Conv1d(43, config["width"], kernel_size=5, padding=2), nn.ReLU(), nn.Conv1d(config["width"], CLASSES, 1)
    )
    model = ray.train.torch.prepare_model(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=config["lr"])
    for epoch in range(config["epochs"]):
        losses, rows = [], []
        for batch in ray_h5.train_batches("train", epoch, batch_size=config["batch_size"]):
            loss = nn.functional.cross_entropy(model(batch["fhr_st"]), batch["target"].long())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
            rows += batch["row_id"].tolist()
        log(config, epoch, rows)
        total = torch.stack(losses).mean().to(device)
        if torch.distributed.is_initialized():
            torch.distributed.all_reduce(total)
            total /= torch.distributed.get_world_size()
        ray.train.report({"epoch": epoch, "loss": total.item()})


def log(config: dict[str, Any], epoch: int, rows: list[int]) -> None:
    """Write the rows of this worker in an epoch, to check that each row comes once."""
    if config["row_log"]:
        rank = ray.train.get_context().get_world_rank()
        with open(Path(config["row_log"]) / f"{config['trial']}_rank{rank}.jsonl", "a") as file:
            print(json.dumps({"epoch": epoch, "rows": rows}), file=file)


def trial(config: dict[str, Any]) -> None:
    """Run one training; Ray Tune calls this function for each choice of parameters, each time in a new process."""
    ds = ray_h5.read_h5(
        config["paths"],
        columns=["fhr_st", "target"],
        shuffle=ray_h5.Shuffle(seed=0),
        include_row_ids=True,
        tail="drop",
        tail_rows=config["workers"] * config["batch_size"],
    )
    trial_id = tune.get_context().get_trial_id()
    TorchTrainer(
        train_loop,
        train_loop_config={**config, "trial": trial_id},
        datasets={"train": ds},
        dataset_config=ray_h5.data_config(),
        scaling_config=ScalingConfig(num_workers=config["workers"]),
        run_config=RunConfig(name=f"trial_{trial_id}", storage_path=config["output"], callbacks=[TuneReportCallback()]),
    ).fit()


def main() -> None:
    args = parse_arguments()
    output = str(Path(args.output or tempfile.mkdtemp(prefix="ray_h5_tune_")).absolute())
    if args.row_log:
        # Workers have another current folder.
        args.row_log = str(Path(args.row_log).absolute())
        Path(args.row_log).mkdir(parents=True, exist_ok=True)
    os.environ.setdefault("RAY_TRAIN_ENABLE_PRINT_PATCH", "0")  # or every line is shown twice
    if os.environ.get("RAY_ADDRESS"):
        ray.init()
    else:
        # A trial needs a CPU, and so does each worker of its trainer; two more CPUs read.
        ray.init(address="local", num_cpus=max(os.cpu_count() or 1, args.at_once * (1 + args.workers) + 2))
    paths = args.paths or make_signals(size=args.rows / 4000)
    space: dict[str, Any] = {name: getattr(args, name) for name in ("epochs", "workers", "batch_size", "row_log")}
    space |= {"paths": paths, "output": output}
    space |= {"lr": tune.grid_search([1e-3, 1e-2]), "width": tune.grid_search(args.widths)}
    tuner = tune.Tuner(
        trial,
        param_space=space,
        tune_config=tune.TuneConfig(metric="loss", mode="min", max_concurrent_trials=args.at_once),
        run_config=tune.RunConfig(name="tune", storage_path=output),
    )
    results = tuner.fit()
    if results.num_errors:
        raise SystemExit(f"{results.num_errors} of {len(results)} trials failed: {results.errors[0]}")
    for result in results:
        print(f"lr {result.config['lr']:g}; width {result.config['width']}; loss {result.metrics['loss']:.4f}")
    best = results.get_best_result().config
    print(f"best: lr {best['lr']:g}; width {best['width']}")


def count(text: str) -> int:
    """Return an integer of 1 or more; argparse names the option in its error."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"expected an integer of 1 or more, found {number}")
    return number


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Try parameters of a small network on HDF5 files with Ray Tune.")
    parser.add_argument("--paths", nargs="+", help="HDF5 files, folders or globs (default: makes its own)")
    parser.add_argument("--rows", type=count, default=1000, help="rows to make without --paths (default: %(default)s)")
    parser.add_argument("--epochs", type=count, default=3)
    parser.add_argument("--widths", type=count, nargs="+", default=[16, 64], help="widths of the hidden layer")
    parser.add_argument("--at-once", type=count, default=2, help="trials that run at a time (default: %(default)s)")
    parser.add_argument("--workers", type=count, default=1, help="training processes a trial (default: %(default)s)")
    parser.add_argument("--batch-size", type=count, default=32, help="rows a step and worker (default: %(default)s)")
    parser.add_argument("--output", help="folder for results (default: a temporary one)")
    parser.add_argument("--row-log", help="folder to write the row ids of each epoch to")
    return parser.parse_args()


if __name__ == "__main__":
    main()
