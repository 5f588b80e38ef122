"""Clone a behaviour from demonstrations: windows of episodes, trained by two workers, interrupted and resumed once.

    python examples/episodes.py                              # makes a file of demonstrations first
    python examples/episodes.py --paths "demos/*.hdf5"       # yours, as robomimic writes them

The files have groups data/demo_0, data/demo_1, ..., each with obs/state (steps, 6) and actions (steps, 2). The policy
sees two states and predicts eight actions.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import ray
import ray.train.torch
import torch
from ray.train import Checkpoint, RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer
from torch import nn

import ray_h5

STATES, ACTIONS = 2, 8
DEMOS = ray_h5.Groups("data/demo_*")
# From the state before to the state now, and from the action now to the seven after it.
WINDOWS = ray_h5.Windows({"obs/state": range(1 - STATES, 1), "actions": range(ACTIONS)}, pad="edge")


def make_demonstrations(folder: str, demos: int = 40) -> str:
    """Write demonstrations of an arm that moves to a goal; return the path of the file."""
    rng = np.random.default_rng(0)
    path = str(Path(folder) / "demos.hdf5")
    with h5py.File(path, "w") as file:
        for number in range(demos):
            position, goal = rng.uniform(-1, 1, (2, 2))
            states, actions = [], []
            velocity = np.zeros(2)
            for _ in range(int(rng.integers(30, 80))):
                action = 0.5 * (goal - position) - 0.8 * velocity
                states.append([*position, *velocity, *goal])
                actions.append(action)
                velocity = velocity + 0.2 * action + rng.normal(scale=0.005, size=2)
                position = position + 0.2 * velocity
            group = file.create_group(f"data/demo_{number}")
            group["obs/state"] = np.array(states, "f4")
            group["actions"] = np.array(actions)
            group.attrs["num_samples"] = len(actions)
    return path


def policy() -> nn.Module:
    """Two states -> eight actions."""
    return nn.Sequential(
        nn.Flatten(), nn.Linear(STATES * 6, 64), nn.ReLU(), nn.Linear(64, ACTIONS * 2), nn.Unflatten(1, (ACTIONS, 2))
    )


def train_loop(config: dict[str, Any]) -> None:
    """Train in one worker, up to the last epoch or to the step at which this run is interrupted."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = ray.train.torch.prepare_model(policy())
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    epoch, position, steps = restore(config, model, optimizer)
    for now in range(epoch, config["epochs"]):
        batches = ray_h5.train_batches("demos", now, batch_size=config["batch_size"], position=position)
        position, losses = None, []
        for batch in batches:
            # What is beyond the end of an episode repeats its last action, and does not count.
            real = ~batch["actions_is_pad"]
            loss = ((model(batch["obs/state"]) - batch["actions"].float()) ** 2).mean(dim=2)[real].mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
            steps += 1
            if steps == config["interrupt_at"]:
                save({"epoch": now, "steps": steps}, model, optimizer, batches.position())
                return
        if ray.train.get_context().get_world_rank() == 0:
            print(f"epoch {now + 1}/{config['epochs']}  loss {np.mean(losses):.5f}  {len(losses)} steps", flush=True)
        save({"epoch": now + 1, "steps": steps, "loss": float(np.mean(losses))}, model, optimizer, None)


def save(
    metrics: dict[str, Any], model: nn.Module, optimizer: torch.optim.Optimizer, position: ray_h5.Position | None
) -> None:
    """Report metrics; the first worker adds a checkpoint with the weights and the position in the epoch."""
    if ray.train.get_context().get_world_rank() != 0:
        ray.train.report(metrics)
        return
    with tempfile.TemporaryDirectory() as folder:
        weights = {"model": getattr(model, "module", model).state_dict(), "optimizer": optimizer.state_dict()}
        torch.save(weights, Path(folder) / "weights.pt")
        where = {**metrics, "position": None if position is None else position.to_dict()}
        (Path(folder) / "where.json").write_text(json.dumps(where))
        ray.train.report(metrics, checkpoint=Checkpoint.from_directory(folder))


def restore(
    config: dict[str, Any], model: nn.Module, optimizer: torch.optim.Optimizer
) -> tuple[int, ray_h5.Position | None, int]:
    """Load the last checkpoint of this run, or that of the run before; return epoch, position in it and steps done."""
    checkpoint = ray.train.get_checkpoint()
    if checkpoint is None and config["resume"]:
        checkpoint = Checkpoint.from_directory(config["resume"])
    if checkpoint is None:
        return 0, None, 0
    with checkpoint.as_directory() as folder:
        weights = torch.load(Path(folder) / "weights.pt", map_location="cpu", weights_only=True)
        where = json.loads((Path(folder) / "where.json").read_text())
    getattr(model, "module", model).load_state_dict(weights["model"])
    optimizer.load_state_dict(weights["optimizer"])
    position = None if where["position"] is None else ray_h5.Position.from_dict(where["position"])
    return where["epoch"], position, where["steps"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--paths", nargs="+", help="files of demonstrations")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--interrupt-at", type=int, default=40, help="step at which the first run ends")
    args = parser.parse_args()
    ray_h5.quiet()
    ray.init(address="local", num_cpus=max(os.cpu_count() or 1, args.workers + 2))
    output = tempfile.mkdtemp(prefix="ray_h5_episodes_")
    paths = args.paths or [make_demonstrations(output)]

    demos = ray_h5.read_h5(
        paths,
        columns=["obs/state", "actions", "actions_is_pad"],
        rows=DEMOS,
        windows=WINDOWS,
        shuffle=ray_h5.Shuffle(seed=1),
        tail="drop",
        tail_rows=args.workers * args.batch_size,
    )
    print(f"{demos.count()} windows of {STATES} states and {ACTIONS} actions", flush=True)
    # Each channel of the states gets mean 0 and deviation 1. A step counts once, though several windows have it.
    scale = ray_h5.Standardize(["obs/state"], axis=(0, 1)).fit(demos)

    def fit(interrupt_at: int, resume: str) -> ray.train.Result:
        config = {"epochs": args.epochs, "batch_size": args.batch_size, "interrupt_at": interrupt_at, "resume": resume}
        return TorchTrainer(
            train_loop,
            train_loop_config=config,
            datasets={"demos": scale.transform(demos)},
            dataset_config=ray_h5.data_config(),
            scaling_config=ScalingConfig(num_workers=args.workers),
            run_config=RunConfig(storage_path=output),
        ).fit()

    first = fit(args.interrupt_at, "")
    print(f"interrupted after {first.metrics['steps']} steps, in epoch {first.metrics['epoch'] + 1}", flush=True)
    last = fit(-1, first.checkpoint.path)
    print(f"{last.metrics['steps']} steps in all, loss {last.metrics['loss']:.5f}")
    print(f"weights: {last.checkpoint.path}")


if __name__ == "__main__":
    main()
