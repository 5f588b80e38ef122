"""The code of the documents runs: Python on real files and a real Ray, shell commands as far as to their options."""

import contextlib
import json
import os
import re
import socket
import subprocess
import sys
import time

import psutil
import pytest
import torch

from ray_h5 import Position
from tests.docs.pages import ROOT, blocks, text_of, with_blocks

_RUN_ELSEWHERE = ["docs/frameworks.md", "docs/four-gpus.md", "docs/cluster-s3.md", "docs/pytorch.md"]
"""By tests/torch_data/frameworks_script.py, in two processes, by test_lightning_in_ray.py, and below."""


_RANKS = "init_process_group("
"""What a program of several ranks has, which torchrun starts."""

_RAY = re.compile(r"\b(quiet|kfold|data_config)\(|\b(import|from) ray\b|from ray_h5 import .*\bwhere\b")
"""What imports Ray; a snippet that starts it calls `quiet`."""


def snippets(*, ray):
    """Return each snippet of Python with its page and line; those that start trainers or actors are slow tests."""
    for page in with_blocks("python"):
        for line, code in () if page in _RUN_ELSEWHERE else blocks(page, "python"):
            if _RANKS in code or ray != bool(_RAY.search(code)):
                continue
            marks = pytest.mark.slow if "TorchTrainer(" in code or "ActorPoolStrategy(" in code else ()
            yield pytest.param(page, line, code, marks=marks, id=f"{page}:{line}")


@pytest.mark.usefixtures("ray_local", "folder")
@pytest.mark.parametrize(("page", "line", "code"), list(snippets(ray=True)))
def test_a_snippet_runs_alone(page, line, code, tmp_path, monkeypatch):
    monkeypatch.setattr("ray.train.constants.DEFAULT_STORAGE_PATH", str(tmp_path / "ray_results"))
    run(page, line, code)


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(("page", "line", "code"), list(snippets(ray=False)))
def test_a_snippet_without_ray_runs_alone(page, line, code):
    run(page, line, code)


def run(page, line, code):
    for name in re.findall(r"^import (jax)$", code, re.MULTILINE):
        pytest.importorskip(name)
    # Blank lines before it give an error the line that it has on the page. Functions of __main__ travel to Ray's
    # workers by value, as those of a script do.
    exec(compile("\n" * (line - 1) + code, str(ROOT / page), "exec"), {"__name__": "__main__"})


@pytest.mark.parametrize("page", with_blocks("python"))
def test_each_snippet_imports_what_it_uses_and_shows_something(page):
    for line, code in blocks(page, "python"):
        assert "import " in code, f"{page}:{line}"
        assert re.search(r"print\(|savefig\(|self\.log\(", code), f"{page}:{line} prints nothing"
        reads_with_ray = re.search(r"\bread_h5\(|\bray_h5\.kfold\(", code)
        assert not reads_with_ray or "quiet()" in code, f"{page}:{line}: Ray prints more than the snippet"


def test_the_programs_of_the_fields_are_short():
    assert max(len(code.splitlines()) for _, code in blocks("docs/communities.md", "python")) <= 40


@pytest.mark.slow
@pytest.mark.parametrize(
    ("code", "options"),
    [
        (code, options)
        for page in with_blocks("python")
        for _, code in blocks(page, "python")
        if _RANKS in code
        for options in ([], ["--fsdp"])[: 1 + ("--fsdp" in code)]
    ],
)
def test_a_program_of_two_ranks_runs(code, options, folder):
    (folder / "train.py").write_text(code)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        common = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1]), "WORLD_SIZE": "2"}
    common |= {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    pipe = {"cwd": folder, "stdout": subprocess.PIPE, "text": True}
    ranks = []
    try:
        for rank in ("0", "1"):
            environment = common | {"RANK": rank, "LOCAL_RANK": rank}
            ranks.append(subprocess.Popen([sys.executable, "train.py", *options], env=environment, **pipe))
        said = [each.communicate(timeout=240)[0] for each in ranks]
    finally:
        for each in ranks:
            each.kill()
    assert [each.returncode for each in ranks] == [0, 0]
    assert all(f"rank {rank}" in text for rank, text in enumerate(said))
    if "all_reduce(sums)" in code:
        assert all("over 400 rows" in text for text in said)


def test_the_ten_minutes_begin_in_an_empty_folder(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (_, make), (_, train) = blocks("docs/pytorch.md", "python")
    exec(make, {})
    exec(train.replace('["epoch"], 3)', '["epoch"], 1)'), {})
    assert "epoch 0:" in capsys.readouterr().out
    exec(train, {})
    assert [line[:7] for line in capsys.readouterr().out.splitlines()] == ["epoch 1", "epoch 2"]


def test_the_quickstart_is_the_first_snippet_of_the_readme():
    _, snippet = blocks("README.md", "python")[0]
    assert text_of("examples/quickstart.py").endswith(f"\n{snippet}")
    assert len(snippet.splitlines()) <= 10


def kill(child):
    """Kill a program and all that it started."""
    program = psutil.Process(child.pid)
    for each in [*program.children(recursive=True), program]:
        with contextlib.suppress(psutil.Error):
            each.kill()
    child.wait()


def stored_checkpoints(results):
    """Return the checkpoints that a run which is started again knows."""
    with contextlib.suppress(OSError, json.JSONDecodeError):  # it is being written
        return json.loads((results / "four_gpus" / "checkpoint_manager_snapshot.json").read_text())[
            "checkpoint_results"
        ]
    return []


def progress(checkpoint):
    """Return the epoch of a checkpoint, and how many rows of it are done."""
    state = torch.load(checkpoint / "state.pt")
    position = state["position"]
    return state["epoch"], Position.from_dict(position).rows if position else 0


GPUS = 'scaling = ScalingConfig(num_workers=4, use_gpu=True, resources_per_worker={"GPU": 1, "CPU": 7})  # of 32 cores'
NODES = (
    'bucket, disk, shared, scaling = "s3://bucket", "/local", "/shared", ScalingConfig(num_workers=16, use_gpu=True)'
)
TWO_CPUS = 'ScalingConfig(num_workers=2, resources_per_worker={"CPU": 0.5})'


def training_script():
    """Return the program of docs/four-gpus.md with one CPU, which saves its position after every fifth step."""
    ((_, code),) = blocks("docs/four-gpus.md", "python")
    assert GPUS in code
    assert "step % 100 == 0" in code
    return code.replace(GPUS, "scaling = ScalingConfig(num_workers=1)").replace("step % 100 == 0", "step % 5 == 0")


@pytest.mark.slow
@pytest.mark.usefixtures("ray_local")
def test_the_training_script_resumes_when_it_fails_and_is_run_again(folder):
    code, step = training_script(), "            if step % 5 == 0:\n"
    fails = "            if (epoch, step) == (1, 7):\n                raise InterruptedError('amid an epoch')\n"
    assert step in code
    with pytest.raises(Exception, match="amid an epoch"):
        run("docs/four-gpus.md", 1, code.replace(step, fails + step))
    results = folder / "results"
    known = len(stored_checkpoints(results))
    run("docs/four-gpus.md", 1, code)
    check_that_it_resumed(results, known)


@pytest.mark.slow
@pytest.mark.usefixtures("ray_local")
@pytest.mark.parametrize(
    ("page", "line", "instead"),
    [
        ("docs/four-gpus.md", GPUS, f"scaling = {TWO_CPUS}"),
        ("docs/cluster-s3.md", NODES, f"bucket = disk = shared = str(Path().absolute())\nscaling = {TWO_CPUS}"),
    ],
)
def test_a_whole_program_runs_with_two_workers_by_one_changed_line(page, line, instead, folder):
    ((start, code),) = blocks(page, "python")
    assert len(code.splitlines()) <= 80
    assert line in code
    # What stores alone have: files on a disk refuse it.
    code = re.sub(r"    (storage_options|cache_dir|cache_bytes)=.*\n", "", code)
    run(page, start - 1, "from pathlib import Path\n" + code.replace(line, instead))
    assert list((folder / "results").glob("*/checkpoint_*" if "Checkpoint" in code else "*"))


@pytest.mark.nightly
def test_the_training_script_resumes_when_it_is_killed_and_run_again(folder):
    (folder / "script.py").write_text(training_script())
    command, options = [sys.executable, "-W", "ignore", "script.py"], {"cwd": folder, "stdout": subprocess.DEVNULL}
    options["env"] = {**os.environ, "PYTHONPATH": str(ROOT)}
    results = folder / "results"
    with subprocess.Popen(command, **options) as first:
        try:
            deadline = time.monotonic() + 240
            while not stored_checkpoints(results):
                assert first.poll() is None, "it has ended"
                assert time.monotonic() < deadline
                time.sleep(0.01)
        finally:
            kill(first)
    known = len(stored_checkpoints(results))
    with subprocess.Popen(command, **options) as second:
        try:
            assert second.wait(timeout=240) == 0
        finally:
            if second.poll() is None:
                kill(second)
    check_that_it_resumed(results, known)


def check_that_it_resumed(results, known):
    # The rows after the last checkpoint that was known come next, and no row comes again.
    found = [progress(results / "four_gpus" / each["checkpoint_dir_name"]) for each in stored_checkpoints(results)]
    assert known < len(found), "it was not killed amid its epochs: the test does not test"
    assert found == sorted(set(found))
    assert found[-1] == (2, 0)
