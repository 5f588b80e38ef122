"""cluster/local.py runs a program on real nodes, ends as the program ends, and leaves no process or file."""

import asyncio
import glob
import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

ROOT = Path(__file__).parents[2]
PROGRAM = str(Path(__file__).with_name("program.py"))

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("aiohttp_cors") is None, reason="Ray's job server is not installed: ray[default]"
)


def start(*words, nodes=1):
    return subprocess.Popen(
        [sys.executable, "cluster/local.py", "--nodes", str(nodes), "--object-store-mb", "100", "--", *words],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


class Watch:
    """Follows a run's output, and notes the processes and folders that it made."""

    def __init__(self, child):
        self.child = psutil.Process(child.pid)
        self.folders = set(glob.glob("/tmp/ray_h5_*"))
        self.lines, self.below = [], []
        for line in child.stdout:
            self.lines.append(line)
            if line.startswith("started"):
                self.below = self.child.children(recursive=True)
                break

    def left(self):
        _, alive = psutil.wait_procs(self.below, timeout=5)
        # Examples that run in other tests meanwhile keep their results there.
        new = set(glob.glob("/tmp/ray_h5_*")) - self.folders
        return alive, [each for each in new if not re.search("train|episodes", each)]


def test_a_program_runs_on_all_nodes_and_nothing_is_left(tmp_path, capsys):
    began = time.monotonic()
    child = start(PROGRAM, "read", str(tmp_path))
    watch = Watch(child)
    output = child.communicate(timeout=180)[0]
    assert child.returncode == 0, output
    (line,) = [each for each in output.splitlines() if each.startswith("result")]
    result = json.loads(line.partition(" ")[2])
    assert result.pop("used") == 2
    assert result.pop("token_mode") == "0o600"
    assert result == {"rows": 128, "once": 128, "twice": 0, "differing": 0, "nodes": 2}
    assert len(watch.below) > 6
    assert watch.left() == ([], [])
    with capsys.disabled():
        print(f"\nlocal.py, 1 node: {time.monotonic() - began:.0f} s ", end="")


@pytest.mark.nightly
def test_its_exit_status_is_the_programs(tmp_path):
    child = start(PROGRAM, "fail", str(tmp_path))
    watch = Watch(child)
    output = child.communicate(timeout=120)[0]
    assert child.returncode == 3, output
    assert "the job failed" in output
    assert watch.left() == ([], [])


@pytest.mark.nightly
def test_ctrl_c_stops_everything(tmp_path):
    child = start(PROGRAM, "wait", str(tmp_path))
    watch = Watch(child)
    began = time.monotonic()
    child.send_signal(signal.SIGINT)
    output = child.communicate(timeout=60)[0]
    assert child.returncode == 130, output
    assert time.monotonic() - began < 15
    assert watch.left() == ([], [])


@pytest.mark.nightly
def test_even_sigkill_leaves_no_process(tmp_path):
    child = start(PROGRAM, "wait", str(tmp_path))
    watch = Watch(child)
    child.kill()
    child.communicate()
    assert psutil.wait_procs(watch.below, timeout=60)[1] == []  # Ray itself takes half a minute


@pytest.mark.nightly
def test_the_readmes_command_trains_a_model():
    child = start("examples/train.py", "--epochs", "2", nodes=3)
    output = child.communicate(timeout=400)[0]
    assert child.returncode == 0, output
    assert "weights, scale and position: " in output


class Job:
    """A job server whose log begins again with each request, and breaks off twice while the job runs."""

    def __init__(self):
        self.asked = 0

    async def tail_job_logs(self, _):
        self.asked += 1
        for text in ["one\n", "two\nthr", "ee\n", "four\n"][: 1 + self.asked]:
            yield text

    def get_job_info(self, _):
        from ray.job_submission import JobStatus  # here: it takes a while for each process that collects tests

        status = JobStatus.SUCCEEDED if self.asked == 3 else JobStatus.RUNNING
        return SimpleNamespace(status=status, message="", driver_exit_code=0)


def test_what_was_shown_is_not_shown_again_when_the_log_breaks_off(capsys):
    spec = importlib.util.spec_from_file_location("local_cluster", ROOT / "cluster" / "local.py")
    local = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(local)
    job = Job()
    assert asyncio.run(local._follow(job, "job")) == 0
    assert job.asked == 3
    assert capsys.readouterr().out == "one\ntwo\nthree\nfour\n"


def test_it_says_what_is_wrong_with_the_command():
    command = [sys.executable, "cluster/local.py", "--nodes", "0", "--", "x.py"]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert found.returncode == 2
    assert "expected 1 or more, found 0" in found.stderr
