"""The exit of a process is silent, whatever of ours outlives the modules."""

import json
import os
import subprocess
import sys
from pathlib import Path

import h5py
import numpy as np
import pytest

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
    path = tmp_path / "rows.h5"
    with h5py.File(path, "w") as file:
        file.create_dataset("row", data=np.arange(500.0).reshape(500, 1), chunks=(16, 1))
    command = [sys.executable, "-X", "dev", "-W", "ignore", str(SCRIPT), str(path), *CASES]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert [json.loads(line) for line in done.stdout.splitlines()] == [[case, 0, ""] for case in CASES]
