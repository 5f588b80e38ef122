"""Train a small network on HDF5 files through Ray: split by patient, standardize, augment, checkpoint, resume.

    python examples/train.py                                    # makes its own files first
    python examples/train.py --paths "data/*.h5" --input image --label label --group patient    # yours
    python examples/train.py --resume OUTPUT                    # continue a run that ended

--input is a column of numbers, and --label one of classes: integers or text, one value a row. Rows with the same value
of --group are never on both sides. Without --input, files need the columns of those that this program makes: fhr_st
(43, 300), target (300,) and weight (300,) to train on, and the scalars guid, cs_label and epoch to choose rows by.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from pathlib import Path
from typing import Any

import ray
import ray.train.torch
import torch
from files import make_signals
from ray.train import Checkpoint, CheckpointConfig, FailureConfig, LoggingConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer
from torch import nn

import ray_h5
from ray_h5.torch_data import H5Dataset

CLASSES = 4
COLUMNS = ["fhr_st", "target", "weight"]


class ConvNet(nn.Module):
    """1-D convolutions over time: (batch, 43, 300) -> class logits (batch, CLASSES, 300)."""

    def __init__(self, channels: int = 43, width: int = 64) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv1d(channels, width, kernel_size=5, padding=2),
            nn.GroupNorm(8, width),  # not BatchNorm: the loss is then the same with any number of workers
            nn.ReLU(),
            nn.Conv1d(width, width, kernel_size=5, padding=2),
            nn.ReLU(),
            nn.Conv1d(width, CLASSES, kernel_size=1),
        )

    def forward(self, signal: torch.Tensor) -> torch.Tensor:
        return self.layers(signal)


def make_model(config: dict[str, Any]) -> nn.Module:
    """Return the network: over time, or, for a column of your own, two layers over all its values."""
    if config["label"] is None:
        return ConvNet()
    return nn.Sequential(nn.Flatten(), nn.Linear(config["values"], 128), nn.ReLU(), nn.Linear(128, config["classes"]))


def loss_of(logits: torch.Tensor, batch: dict[str, torch.Tensor], label: str | None = None) -> torch.Tensor:
    """Return the cross-entropy of each row, averaged over its time steps; steps of weight 0 add nothing."""
    if label is not None:
        return nn.functional.cross_entropy(logits, batch[label], reduction="none")
    each = nn.functional.cross_entropy(logits, batch["target"].long(), reduction="none")
    return (each * batch["weight"]).mean(dim=1)


def make_datasets(args: argparse.Namespace, paths: list[str]) -> tuple[dict[str, ray.data.Dataset], Any]:
    """Return the datasets for training and validation, of different patients, and the fitted scale."""
    check_columns(paths)
    usable = ray_h5.where(epoch=ray_h5.between(10, 50))
    train_rows, valid_rows = ray_h5.kfold(paths, 5, group="guid", stratify="cs_label")[0]
    # A multiple of this many rows gives all workers the same number of full batches.
    step_rows = args.workers * args.batch_size
    train = ray_h5.read_h5(
        paths,
        columns=COLUMNS,
        shuffle=ray_h5.Shuffle(seed=args.seed),
        include_row_keys=True,
        include_row_ids=True,
        block_rows=args.block_rows,
        tail="drop",
        tail_rows=step_rows,
    ).filter(expr=usable & train_rows)
    # Every row counts once: rows that pad the last batches are marked, and left out of the sums.
    valid = ray_h5.read_h5(paths, columns=COLUMNS, tail="pad", tail_rows=step_rows)
    valid = valid.filter(expr=usable & valid_rows)
    tell_rows(paths, usable, train_rows, valid_rows, train)
    scale = ray_h5.Standardize(["fhr_st"], axis=(0, 2)).fit(train)  # a mean and a deviation for each channel
    augment = ray_h5.SpecAugment("fhr_st", time_mask_param=40, freq_mask_param=8)
    return {"train": scale.transform(train).map_batches(augment), "valid": scale.transform(valid)}, scale


def make_own_datasets(args: argparse.Namespace, paths: list[str]) -> tuple[dict[str, ray.data.Dataset], Any]:
    """Return the same for the columns that a user names; adds to `args` what the network needs to know."""
    value = H5Dataset(paths, [args.input])[0][args.input]
    if not isinstance(value, torch.Tensor):
        raise SystemExit(f"--input {args.input}: expected a column of numbers of one shape, found {value!r:.40}")
    train_rows, valid_rows = ray_h5.kfold(paths, 5, group=args.group, stratify=args.label)[0]
    options = {"columns": [args.input, args.label], "labels": {args.label: "auto"}}
    options |= {"include_row_ids": True, "tail_rows": args.workers * args.batch_size}
    shuffle = ray_h5.Shuffle(seed=args.seed)
    train = ray_h5.read_h5(paths, **options, shuffle=shuffle, block_rows=args.block_rows, tail="drop")
    valid = ray_h5.read_h5(paths, **options, tail="pad")
    args.classes = len(ray_h5.labels_of(train)[args.label])
    train, valid = train.filter(expr=train_rows), valid.filter(expr=valid_rows)
    print(f"rows: {train.count()} to train on, {valid.count()} in batches to validate on", flush=True)
    args.values = value.numel()
    scale = ray_h5.Standardize([args.input], axis=(0, *range(2, value.ndim + 1))).fit(train)  # channels come first
    return {"train": scale.transform(train), "valid": scale.transform(valid)}, scale


def tell_rows(paths: list[str], usable: Any, train_rows: Any, valid_rows: Any, train: ray.data.Dataset) -> None:
    """Print which rows are used. Before any transform, counting reads no wide column."""
    every = ray_h5.read_h5(paths, columns=COLUMNS)
    counts = {
        f"rows in {len(every.input_files())} files": every,
        "after the filter": every.filter(expr=usable),
        "in the fold to train on": every.filter(expr=usable & train_rows),
        "in full batches": train,
    }
    print("rows:", " -> ".join(f"{ds.count()} {what}" for what, ds in counts.items()), flush=True)
    print(f"rows to validate on: {every.filter(expr=usable & valid_rows).count()}", flush=True)


def train_loop(config: dict[str, Any]) -> None:
    """Train in one worker; Ray runs this function in each worker."""
    context = ray.train.get_context()
    # Each worker uses its share of the cores: more threads than cores only wait for each other.
    torch.set_num_threads(max(1, (os.cpu_count() or 1) // context.get_world_size()))
    torch.manual_seed(config["seed"])
    device = ray.train.torch.get_device()
    model = ray.train.torch.prepare_model(make_model(config))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler(device.type, enabled=device.type == "cuda")  # float16 needs scaled gradients
    first_epoch, position = restore(config, model, optimizer, scaler)
    log(config, {"from_epoch": first_epoch, "from_rows": position.rows if position else 0})
    for epoch in range(first_epoch, config["epochs"]):
        began = time.perf_counter()
        totals = torch.zeros(2, dtype=torch.float64, device=device)  # loss, rows
        waited = 0.0
        batches = ray_h5.train_batches("train", epoch, batch_size=config["batch_size"], position=position)
        asked = time.perf_counter()
        for step, batch in enumerate(batches, 1):
            waited += time.perf_counter() - asked
            if config["row_log"]:  # reading the ids waits for the GPU
                log(config, {"epoch": epoch, "step": step, "rows": batch["row_id"].tolist()})
            losses = train_step(model, optimizer, scaler, batch, config)
            totals[0] += losses.double().sum()
            totals[1] += len(losses)
            if step % config["checkpoint_steps"] == 0:
                here = {"epoch": epoch, "step": step}
                save(here, model, optimizer, scaler, epoch, batches.position(), config["scale"])
            asked = time.perf_counter()
        seconds = time.perf_counter() - began
        loss, rows = reduced(totals)
        metrics = {"epoch": epoch, "loss": loss, "rows": int(rows), "rows_per_s": rows / seconds}
        valid_loss, valid_rows = validate(model, config, device)
        metrics |= {"data_wait": waited / seconds, "valid_loss": valid_loss, "valid_rows": int(valid_rows)}
        if context.get_world_rank() == 0:
            print(line_of(metrics, config["epochs"], seconds), flush=True)
        position = None
        save(metrics, model, optimizer, scaler, epoch + 1, None, config["scale"])


def line_of(metrics: dict[str, Any], epochs: int, seconds: float) -> str:
    """Return the line of an epoch; its speed and its time are those of the training, without the validation."""
    parts = [
        f"epoch {metrics['epoch'] + 1}/{epochs}",
        f"loss {metrics['loss']:.4f}",
        f"validation loss {metrics['valid_loss']:.4f}",
        f"{metrics['rows']} rows",
        f"{metrics['rows_per_s']:.0f} rows/s",
        f"waiting for data {metrics['data_wait']:.0%}",
        f"{seconds:.1f} s",
    ]
    return "  ".join(parts)


def train_step(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    scaler: torch.amp.GradScaler,
    batch: dict[str, torch.Tensor],
    config: dict[str, Any],
) -> torch.Tensor:
    """Update the weights, on a GPU in mixed precision; return the loss of each row."""
    signal = batch[config["input"]].float()
    with torch.autocast(signal.device.type, dtype=torch.float16, enabled=scaler.is_enabled()):
        losses = loss_of(model(signal), batch, config["label"])
    optimizer.zero_grad()
    scaler.scale(losses.mean()).backward()
    scaler.step(optimizer)
    scaler.update()
    return losses.detach()


def validate(model: nn.Module, config: dict[str, Any], device: torch.device) -> tuple[float, float]:
    """Return the mean loss of the rows held out, and their number."""
    totals = torch.zeros(2, dtype=torch.float64, device=device)
    model.eval()
    with torch.no_grad():
        for batch in ray_h5.train_batches("valid", 0, batch_size=config["batch_size"]):
            real = ~batch["is_padding"]
            losses = loss_of(model(batch[config["input"]].float()), batch, config["label"])[real]
            totals += torch.stack([losses.double().sum(), real.sum()])
    model.train()
    return reduced(totals)


def reduced(totals: torch.Tensor) -> tuple[float, float]:
    """Return the mean loss over the rows of all workers, and the number of these rows."""
    if torch.distributed.is_initialized():
        torch.distributed.all_reduce(totals)
    return (totals[0] / totals[1].clamp(min=1)).item(), totals[1].item()


def save(
    metrics: dict[str, Any],
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    scaler: torch.amp.GradScaler,
    epoch: int,
    position: ray_h5.Position | None,
    scale: str,
) -> None:
    """Report metrics. The first worker adds a checkpoint: weights, scale, and the position to resume from."""
    if ray.train.get_context().get_world_rank() != 0:
        ray.train.report(metrics)
        return
    where = {"epoch": epoch, "position": position.to_dict() if position is not None else None}
    with tempfile.TemporaryDirectory() as folder:
        weights = {"model": getattr(model, "module", model).state_dict(), "optimizer": optimizer.state_dict()}
        weights["scaler"] = scaler.state_dict()
        torch.save(weights, Path(folder) / "weights.pt")
        (Path(folder) / "scale.json").write_text(scale)
        (Path(folder) / "where.json").write_text(json.dumps(where))
        ray.train.report(metrics, checkpoint=Checkpoint.from_directory(folder))


def restore(
    config: dict[str, Any], model: nn.Module, optimizer: torch.optim.Optimizer, scaler: torch.amp.GradScaler
) -> tuple[int, ray_h5.Position | None]:
    """Load the last checkpoint of this run, or the one that --resume names; return epoch and position."""
    checkpoint = ray.train.get_checkpoint()
    if checkpoint is None and config["resume"]:
        checkpoint = Checkpoint.from_directory(config["resume"])
    if checkpoint is None:
        return 0, None
    with checkpoint.as_directory() as folder:
        weights = torch.load(Path(folder) / "weights.pt", map_location="cpu", weights_only=True)
        where = json.loads((Path(folder) / "where.json").read_text())
    getattr(model, "module", model).load_state_dict(weights["model"])
    optimizer.load_state_dict(weights["optimizer"])
    if weights["scaler"] and scaler.is_enabled():
        scaler.load_state_dict(weights["scaler"])
    position = ray_h5.Position.from_dict(where["position"]) if where["position"] else None
    return where["epoch"], position


def log(config: dict[str, Any], entry: dict[str, Any]) -> None:
    """Write where this worker begins and the rows of each step, to check that each row comes once."""
    if config["row_log"]:
        rank = ray.train.get_context().get_world_rank()
        with open(Path(config["row_log"]) / f"rank{rank}.jsonl", "a") as file:
            print(json.dumps(entry), file=file)


def main() -> None:
    args = parse_arguments()
    resume = last_checkpoint(Path(args.resume).absolute()) if args.resume else None
    if args.row_log:
        # Workers have another current folder. Making the folder here also finds errors early.
        args.row_log = str(Path(args.row_log).absolute())
        Path(args.row_log).mkdir(parents=True, exist_ok=True)
    start_ray(args.workers)
    if args.gpu:
        check_gpus(args.workers)
    paths = args.paths or make_files(args.rows)
    datasets, scale = (make_datasets if args.label is None else make_own_datasets)(args, paths)
    output = Path(args.resume or args.output or tempfile.mkdtemp(prefix="ray_h5_train_")).absolute()
    config = {name: getattr(args, name) for name in ("epochs", "batch_size", "seed", "checkpoint_steps", "row_log")}
    config |= {"scale": scale.to_json(), "resume": resume, "input": args.input or "fhr_st", "label": args.label}
    config |= {"values": args.values, "classes": args.classes}
    trainer = TorchTrainer(
        train_loop,
        train_loop_config=config,
        datasets=datasets,
        dataset_config=ray_h5.data_config(),
        scaling_config=ScalingConfig(num_workers=args.workers, use_gpu=args.gpu),
        run_config=RunConfig(
            name=time.strftime("run_%Y%m%d_%H%M%S"),
            storage_path=str(output),
            failure_config=FailureConfig(max_failures=args.max_failures),
            checkpoint_config=CheckpointConfig(num_to_keep=2),
            logging_config=LoggingConfig("WARNING"),
        ),
    )
    result = trainer.fit()
    if result.checkpoint is None:
        raise SystemExit(f"nothing was left to train: {args.epochs} epochs are done")
    print(f"to train further: the same command with --resume {output}")
    print(f"weights, scale and position: {result.checkpoint.path}")


def last_checkpoint(output: Path) -> str:
    found = sorted(output.glob("run_*/checkpoint_*/where.json"), key=lambda path: path.stat().st_mtime_ns)
    if not found:
        raise SystemExit(f"--resume {output}: there is no checkpoint below that folder")
    return str(found[-1].parent)


def make_files(rows: int) -> list[str]:
    print(f"no --paths: making {rows} rows of signals in a temporary folder", flush=True)
    return make_signals(size=rows / 4000)


def check_columns(paths: list[str]) -> None:
    """Exit if files of a user have other columns than those that this program makes."""
    try:
        H5Dataset(paths, [*COLUMNS, "guid", "cs_label", "epoch"])
    except ray_h5.UnknownColumnError as exc:
        raise SystemExit(f"{exc}\nName columns of yours: --input image --label label") from None


def start_ray(workers: int) -> None:
    """Join the cluster that RAY_ADDRESS names, or start one here with room for workers and readers."""
    ray_h5.quiet()  # or a few lines of this program stand among hundreds of Ray's
    if os.environ.get("RAY_ADDRESS"):
        ray.init()
    else:
        ray.init(address="local", num_cpus=max(os.cpu_count() or 1, workers + 2))


def check_gpus(workers: int) -> None:
    """Exit if a run on this machine would wait for GPUs for ever; a cluster may still start machines with GPUs."""
    if os.environ.get("RAY_ADDRESS"):
        return
    found = ray.cluster_resources().get("GPU", 0)
    if found < workers:
        raise SystemExit(
            f"--gpu: Ray finds {found:g} GPUs on this machine for {workers} workers; leave --gpu out, ask for fewer "
            "--workers, or join a cluster that has them with RAY_ADDRESS"
        )
    if not torch.cuda.is_available():
        raise SystemExit("--gpu: torch finds no CUDA device here; leave --gpu out, or install a CUDA build of torch")


def count(text: str) -> int:
    """Return an integer of 1 or more; argparse names the option in its error."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"expected an integer of 1 or more, found {number}")
    return number


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Train a small network on HDF5 files through Ray.")
    parser.add_argument("--paths", nargs="+", help="HDF5 files, folders or globs (default: makes its own)")
    parser.add_argument("--input", metavar="COLUMN", help="a column of numbers to train on")
    parser.add_argument("--label", metavar="COLUMN", help="a column of classes, with --input")
    parser.add_argument("--group", metavar="COLUMN", help="a column, such as the patient, that keeps rows together")
    parser.set_defaults(values=0, classes=CLASSES)
    parser.add_argument("--rows", type=count, default=2000, help="rows to make without --paths (default: %(default)s)")
    parser.add_argument("--epochs", type=count, default=3)
    parser.add_argument("--workers", type=count, default=1, help="training processes (default: %(default)s)")
    parser.add_argument("--batch-size", type=count, default=32, help="rows a step and worker (default: %(default)s)")
    parser.add_argument("--block-rows", type=count, help="rows of a block (default: by their bytes)")
    parser.add_argument("--seed", type=int, default=0, help="of the weights and the order (default: %(default)s)")
    parser.add_argument("--gpu", action="store_true", help="a GPU for each worker, and mixed precision")
    parser.add_argument("--output", help="folder for checkpoints (default: a temporary one)")
    parser.add_argument("--resume", metavar="OUTPUT", help="the folder of a run that ended, to go on with")
    parser.add_argument("--checkpoint-steps", type=count, default=50, help="steps between checkpoints within an epoch")
    parser.add_argument("--max-failures", type=int, default=2, help="how often to start again when a worker dies")
    parser.add_argument("--row-log", help="folder to write the row ids of each step to")
    args = parser.parse_args()
    if (args.input is None) != (args.label is None) or (args.input and not args.paths):
        parser.error("--input and --label need each other, and --paths")
    return args


if __name__ == "__main__":
    main()
