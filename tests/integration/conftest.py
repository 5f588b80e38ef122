import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil
import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def folder():
    """A folder with a short name: paths of Unix sockets go below it."""
    path = tempfile.mkdtemp(prefix="h5t_", dir="/tmp")
    yield path
    shutil.rmtree(path)


@pytest.fixture
def play(folder, capsys):
    """Run a scenario in a process of its own, or as a job on `nodes` nodes; return what it found."""

    def run(name, *, limit_s, prefix=(), nodes=0, **arguments):
        began = time.monotonic()
        command = [*prefix, sys.executable]
        if nodes:
            command += ["cluster/local.py", "--nodes", str(nodes), "--object-store-mb", "100", "--"]
        command += ["-m", "tests.integration.scenarios", name, json.dumps(arguments), folder]
        result = last_line(start(command), limit_s)
        with capsys.disabled():
            print(f"\n{name} {json.dumps(arguments)}: {time.monotonic() - began:.0f} s ", end="")
        assert result.pop("left") == [], "processes are left"
        assert max(result.pop("held")) <= 1, "a file is open more than once"
        return result

    return run


def start(command):
    return subprocess.Popen(
        command,
        cwd=ROOT,
        env={**os.environ, "RAY_DEDUP_LOGS": "0"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def last_line(child, limit_s):
    """Return the JSON object that a scenario ends with; end all its processes if it takes too long."""
    process = psutil.Process(child.pid)
    try:
        output, errors = child.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired:
        for each in [*process.children(recursive=True), process]:
            each.kill()
        output, errors = child.communicate()
        pytest.fail(f"it hangs: not done after {limit_s} s\n{output[-2000:]}\n{errors[-4000:]}")
    assert child.returncode == 0, f"{output[-2000:]}\n{errors[-4000:]}"
    return json.loads(output.strip().splitlines()[-1])
