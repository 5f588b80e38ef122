"""The exit of a process is silent, whatever of ours outlives the modules."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.kit.files import save

SCRIPT = Path(__file__).with_name("exit_script.py")


CASES = [
    "ordinary",
    "late",
    "datasets",
    "loader_in_the_middle",
    "slots fork",
    "slots spawn",
    "threads_that_read",
    "forked",
    "descriptors_closed_by_others",
]


@pytest.mark.slow
def test_nothing_is_said(tmp_path):
    path = save(tmp_path / "rows.h5", {"row": np.arange(500.0).reshape(500, 1)}, chunks=(16, 1))
    command = [sys.executable, "-X", "dev", "-W", "ignore", str(SCRIPT), str(path), *CASES]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert [json.loads(line) for line in done.stdout.splitlines()] == [[case, 0, ""] for case in CASES]
