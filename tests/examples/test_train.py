"""examples/train.py trains, goes on where it ended, survives a killed worker, and validates on what it should."""

import argparse
import contextlib
import itertools
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import h5py
import numpy as np
import psutil
import pytest

from tests.bench.files import make_workload

from .programs import EXAMPLES, program

PROGRAM = EXAMPLES / "train.py"


@pytest.fixture(scope="session")
def example():
    """The program as a module."""
    return program("train")


@pytest.fixture(scope="session")
def files(tmp_path_factory):
    """Four files of 50 rows."""
    return make_workload("signals", folder=str(tmp_path_factory.mktemp("data")), size=0.05).paths


@pytest.fixture
def train(files, tmp_path, capsys):
    """Run the program; return its output, the metrics of each epoch, and what each rank did."""

    def run(*words, log="log", limit_s=500, meanwhile=None):
        began = time.monotonic()
        folder = tmp_path / log
        folder.mkdir()
        words = ["--paths", *files, "--row-log", str(folder), *words]
        environment = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
        with open(tmp_path / f"{log}.txt", "w+") as output:
            child = subprocess.Popen(
                [sys.executable, str(PROGRAM), *map(str, words)],
                env=environment,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            with ending(child):
                if meanwhile is not None:
                    meanwhile(child, folder)
                child.wait(limit_s)
            output.seek(0)
            text = output.read()
        assert child.returncode == 0, text[-6000:]
        with capsys.disabled():
            print(f"\ntrain.py {log}: {time.monotonic() - began:.0f} s ", end="")
        return text, metrics_in(text), entries(folder)

    return run


@contextlib.contextmanager
def ending(child):
    """End a program and all that it started, unless it has ended by itself."""
    process = psutil.Process(child.pid)
    try:
        yield
    finally:
        if child.poll() is None:
            for each in [*process.children(recursive=True), process]:
                with contextlib.suppress(psutil.Error):
                    each.kill()
            child.wait()


LINE = re.compile(
    r"epoch (?P<epoch>\d+)/\d+  loss (?P<loss>[\d.]+)  validation loss (?P<valid_loss>[\d.]+)  (?P<rows>\d+) rows"
    r"  (?P<speed>\d+) rows/s  waiting for data (?P<waiting>\d+)%  (?P<seconds>[\d.]+) s$",
    re.MULTILINE,
)


def metrics_in(text):
    """Return the metrics that were printed, by epoch from 0 on."""
    found = [{name: float(value) for name, value in line.groupdict().items()} for line in LINE.finditer(text)]
    return {int(each["epoch"]) - 1: each for each in found}


def entries(folder):
    """Return what each rank logged, in the order of ranks."""
    return [[json.loads(line) for line in open(path)] for path in sorted(Path(folder).glob("rank*.jsonl"))]


def effective(log):
    """Return the rows of each epoch that the model was trained on, for one rank.

    What a worker did beyond the checkpoint that the next attempt began with is lost with it.
    """
    epochs = {}
    for entry in log:
        if "from_epoch" in entry:
            first = entry["from_epoch"]
            epochs = {epoch: rows for epoch, rows in epochs.items() if epoch <= first}
            epochs[first] = epochs.get(first, [])[: entry["from_rows"]]
        else:
            epochs.setdefault(entry["epoch"], []).extend(entry["rows"])
    return {epoch: rows for epoch, rows in epochs.items() if rows}


def rows_of_epochs(logs):
    """Return how often each row came in each epoch, over all ranks."""
    found = {}
    for log in logs:
        for epoch, rows in effective(log).items():
            found.setdefault(epoch, Counter()).update(rows)
    return found


def rows_to_train_on(text):
    train = re.search(r"^rows: .* -> (\d+) in full batches$", text, re.MULTILINE)
    valid = re.search(r"^rows to validate on: (\d+)$", text, re.MULTILINE)
    return int(train[1]), int(valid[1])


def test_it_trains_and_goes_on_where_it_ended(train, tmp_path):
    output = tmp_path / "out"
    text, metrics, logs = train("--epochs", 2, "--workers", 2, "--batch-size", 8, "--output", output, log="first")
    rows, _ = rows_to_train_on(text)
    assert metrics[1]["loss"] < metrics[0]["loss"]
    assert metrics[1]["valid_loss"] < metrics[0]["valid_loss"]
    assert [metrics[epoch]["rows"] for epoch in (0, 1)] == [rows, rows]
    assert [sorted(each.values()) for each in rows_of_epochs(logs).values()] == [[1] * rows] * 2
    newest = max(output.glob("run_*/checkpoint_*/where.json")).parent
    assert sorted(path.name for path in newest.iterdir()) == ["scale.json", "weights.pt", "where.json"]
    assert json.loads((newest / "where.json").read_text()) == {"epoch": 2, "position": None}

    words = ["--epochs", 3, "--workers", 2, "--batch-size", 8, "--resume", output]
    text, more, logs = train(*words, log="second")
    assert list(more) == [2]
    assert [log[0] for log in logs] == [{"from_epoch": 2, "from_rows": 0}] * 2
    assert more[2]["loss"] < metrics[1]["loss"]
    assert [sorted(each.values()) for each in rows_of_epochs(logs).values()] == [[1] * rows]


def kill_one_at(epoch, step, seconds=200):
    """Return what kills the worker of rank 0 when it has done a step."""

    def kill(child, folder):
        began = time.monotonic()
        while not any(each.get("epoch") == epoch and each["step"] >= step for log in entries(folder) for each in log):
            assert child.poll() is None
            assert time.monotonic() < began + seconds
            time.sleep(0.01)
        workers = [
            each for each in psutil.Process(child.pid).children(recursive=True) if "RayTrainWorker" in name_of(each)
        ]
        assert len(workers) == 2
        workers[0].send_signal(signal.SIGKILL)

    return kill


def name_of(process):
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""


@pytest.mark.nightly
def test_a_worker_killed_amid_an_epoch_changes_no_row(train, tmp_path):
    words = ["--epochs", 2, "--workers", 2, "--batch-size", 4, "--checkpoint-steps", 2, "--output", tmp_path / "out"]
    text, metrics, logs = train(*words, meanwhile=kill_one_at(epoch=1, step=7))
    rows, _ = rows_to_train_on(text)
    for log in logs:
        began = [each for each in log if "from_epoch" in each]
        assert began[0] == {"from_epoch": 0, "from_rows": 0}
        assert began[1]["from_epoch"] == 1
        assert 8 <= began[1]["from_rows"] < rows // 2, "it was not killed amid an epoch: the test does not test"
        assert len(began) == 2
    found = rows_of_epochs(logs)
    assert {epoch: sorted(each.values()) for epoch, each in found.items()} == {0: [1] * rows, 1: [1] * rows}
    assert metrics[1]["valid_loss"] < metrics[0]["valid_loss"]


@pytest.mark.nightly
def test_four_workers_learn_what_one_does(train, tmp_path):
    """Blocks of 8 go to 4 ranks in turn: a step of theirs has the rows of one batch of 32."""
    words = ["--epochs", 2, "--block-rows", 8]
    _, one, (alone,) = train(*words, "--workers", 1, "--batch-size", 32, "--output", tmp_path / "out1", log="one")
    _, four, logs = train(*words, "--workers", 4, "--batch-size", 8, "--output", tmp_path / "out4", log="four")
    steps = [[each["rows"] for each in log if "rows" in each] for log in [alone, *logs]]
    assert steps[0] == [list(itertools.chain(*parts)) for parts in zip(*steps[1:], strict=True)]
    for epoch in (0, 1):
        for name in ("loss", "valid_loss"):
            # Floats are added up in another order.
            assert four[epoch][name] == pytest.approx(one[epoch][name], rel=1e-3)
        assert four[epoch]["rows"] == one[epoch]["rows"]
        assert four[epoch]["valid_rows"] == one[epoch]["valid_rows"]


# Without a run ------------------------------------------------------------------------------------


def stored(files, name):
    with contextlib.ExitStack() as stack:
        opened = [stack.enter_context(h5py.File(path)) for path in files]
        return np.concatenate([file[name].asstr()[:] if name == "guid" else file[name][:] for file in opened])


def batches_of(ds):
    found = list(ds.iter_batches(batch_size=None))
    return {name: np.concatenate([each[name] for each in found]) for name in found[0]}


def row_numbers(targets, all_targets):
    """Return which rows these are; no two have the same target."""
    known = {target.tobytes(): row for row, target in enumerate(all_targets)}
    assert len(known) == len(all_targets)
    return [known[target.tobytes()] for target in targets]


@pytest.mark.usefixtures("ray_local")
def test_validation_has_other_patients_each_row_once_and_no_augmentation(example, files, capsys):
    args = argparse.Namespace(workers=3, batch_size=8, seed=0, block_rows=None)
    datasets, scale = example.make_datasets(args, list(files))
    train, valid = batches_of(datasets["train"]), batches_of(datasets["valid"])
    valid = {name: values[~valid["is_padding"]] for name, values in valid.items()}
    rows = np.array(row_numbers(valid["target"], stored(files, "target")))
    epoch, guid = stored(files, "epoch"), stored(files, "guid")
    held_out = np.isin(guid, np.unique(guid[rows])) & (epoch >= 10) & (epoch <= 50)
    assert sorted(rows) == np.flatnonzero(held_out).tolist()
    assert rows_to_train_on(capsys.readouterr().out) == (len(train["row_id"]), len(rows))
    assert not set(guid[rows]) & set(guid[train["row_id"]])

    plain = scale.transform_batch({"fhr_st": stored(files, "fhr_st")})["fhr_st"]
    assert valid["fhr_st"].tobytes() == plain[rows].tobytes()
    augmented = (train["fhr_st"] != plain[train["row_id"]]).any(axis=(1, 2))
    assert 0.6 < augmented.mean() < 0.95


@pytest.mark.parametrize(
    ("name", "option", "value", "says"),
    [
        *(("train", flag, "0", "1 or more, found 0") for flag in ("--workers", "--batch-size", "--checkpoint-steps")),
        *(("ddp_plain", flag, "-1", "1 or more, found -1") for flag in ("--batch-size", "--save-every")),
        ("ddp_plain", "--save", "nowhere/run.pt", "the folder nowhere does not exist; make it first"),
    ],
)
def test_an_option_that_cannot_be_is_named_before_anything_runs(
    name, option, value, says, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [f"{name}.py", option, value])
    with pytest.raises(SystemExit):
        program(name).parse_arguments()
    error = capsys.readouterr().err
    assert option in error
    assert says in error


def test_resuming_what_is_not_there_is_a_clear_message(example, tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["train.py", "--resume", str(tmp_path)])
    with pytest.raises(SystemExit, match=rf"--resume {tmp_path}: there is no checkpoint below that folder"):
        example.main()


def test_the_folder_of_the_row_log_is_there_before_anything_runs(example, tmp_path, monkeypatch):
    def datasets(args, _):
        assert args.row_log == str(tmp_path / "logs" / "rows")
        assert Path(args.row_log).is_dir()
        raise StopAsyncIteration("made")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["train.py", "--row-log", "logs/rows", "--paths", "a.h5"])
    monkeypatch.setattr(example, "start_ray", lambda _: None)
    monkeypatch.setattr(example, "make_datasets", datasets)
    with pytest.raises(StopAsyncIteration, match="made"):
        example.main()


@pytest.fixture
def with_gpus(example, monkeypatch):
    """Run the program with --gpu as far as to its files; Ray finds so many GPUs, and torch has CUDA or not."""

    def run(gpus, address=None, cuda=False):
        monkeypatch.setattr(sys, "argv", ["train.py", "--gpu", "--workers", "2"])
        monkeypatch.setattr(example.torch.cuda, "is_available", lambda: cuda)
        monkeypatch.setattr(example, "start_ray", lambda _: None)
        monkeypatch.setattr(example.ray, "cluster_resources", lambda: {"CPU": 2.0, **({"GPU": gpus} if gpus else {})})
        monkeypatch.delenv("RAY_ADDRESS", raising=False)
        if address:
            monkeypatch.setenv("RAY_ADDRESS", address)

        def files(_):
            raise StopAsyncIteration("files")

        monkeypatch.setattr(example, "make_files", files)
        example.main()

    return run


@pytest.mark.parametrize(
    ("gpus", "cuda", "says"),
    [
        (0, False, "--gpu: Ray finds 0 GPUs on this machine for 2 workers"),
        (1.0, True, "--gpu: Ray finds 1 GPUs on this machine for 2 workers"),
        (2.0, False, "--gpu: torch finds no CUDA device here"),
    ],
)
def test_a_gpu_that_is_not_there_is_a_clear_message(with_gpus, gpus, cuda, says, tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with pytest.raises(SystemExit, match=says):
        with_gpus(gpus, cuda=cuda)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("gpus", "address", "cuda"), [(2.0, None, True), (0, "127.0.0.1:6379", False)])
def test_a_head_without_a_gpu_may_start_trainers_that_have_one(with_gpus, gpus, address, cuda):
    with pytest.raises(StopAsyncIteration, match="files"):
        with_gpus(gpus, address, cuda)


def test_it_trains_on_the_columns_that_a_user_names(train, tmp_path):
    rng = np.random.default_rng(0)
    kinds = rng.integers(0, 3, 160)
    with h5py.File(tmp_path / "own.h5", "w") as file:
        file["scan"] = rng.standard_normal((160, 2, 8, 8)).astype("f4") + kinds[:, None, None, None]
        file["kind"] = np.array(["cat", "dog", "owl"], object)[kinds]
        file["patient"] = np.arange(160) // 4
    columns = ("--input", "scan", "--label", "kind", "--group", "patient")
    text, metrics, _ = train("--paths", tmp_path / "own.h5", *columns, "--epochs", 2, "--batch-size", 16)
    assert re.search(r"rows: 128 to train on, 32 in batches to validate on", text)
    assert metrics[1]["valid_loss"] < metrics[0]["valid_loss"]


def test_columns_that_it_cannot_use_are_named(example, tmp_path):
    with h5py.File(tmp_path / "own.h5", "w") as file:
        file["name"], file["kind"] = [b"a", b"b"], [0, 1]
    with pytest.raises(SystemExit, match=r"no 'fhr_st'(.|\n)*Name columns of yours: --input image --label label"):
        example.check_columns([str(tmp_path / "own.h5")])
    given = argparse.Namespace(input="name", label="kind", group=None)
    with pytest.raises(SystemExit, match="--input name: expected a column of numbers of one shape, found 'a'"):
        example.make_own_datasets(given, [str(tmp_path / "own.h5")])


@pytest.mark.slow
def test_a_run_without_ray_goes_on_with_the_epoch_after_the_one_that_it_has_ended(tmp_path):
    torchrun = [
        str(Path(sys.executable).with_name("torchrun")),
        "--standalone",  # on a free port
        "--nproc-per-node",
        "2",
        str(EXAMPLES / "ddp_plain.py"),
    ]
    for epochs, expected in ((1, [0]), (3, [1, 2])):
        words = ["--rows", "300", "--epochs", str(epochs), "--save", "run.pt"]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        done = subprocess.run(
            torchrun + words, check=False, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300
        )
        assert done.returncode == 0, done.stderr[-4000:]
        assert [int(number) for number in re.findall(r"^epoch (\d+):", done.stdout, re.MULTILINE)] == expected
