"""examples/tune.py runs two trials at a time, and each has all rows of its epochs in their order."""

import json
import os
import subprocess
import sys
from collections import defaultdict

import numpy as np
import pytest

from ray_h5 import Shuffle
from tests.bench.files import make_workload
from tests.index.kit import plan_files

from .programs import EXAMPLES
from .test_train import ending

PROGRAM = EXAMPLES / "tune.py"
EPOCHS, BATCH = 2, 16


@pytest.fixture
def files(tmp_path):
    return list(make_workload("signals", folder=str(tmp_path / "data"), size=0.05).paths)


@pytest.mark.nightly
def test_two_trials_at_once_have_each_their_own_epochs(files, tmp_path):
    words = ["--paths", *files, "--epochs", EPOCHS, "--widths", 8, "--batch-size", BATCH, "--workers", 1]
    words += ["--output", tmp_path / "out", "--row-log", tmp_path / "log", "--at-once", 2]
    environment = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
    child = subprocess.Popen(
        [sys.executable, str(PROGRAM), *map(str, words)],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    with ending(child):
        text, _ = child.communicate(timeout=500)
    assert child.returncode == 0, text[-6000:]
    losses = [line for line in text.splitlines() if line.startswith("lr ") and "; loss " in line]
    assert len(losses) == 2
    assert "best: lr " in text

    index, plan = plan_files(files, columns=["fhr_st", "target"], shuffle=Shuffle(seed=0))
    expected = [plan.at(np.arange(index.num_rows), epoch)[: 200 // BATCH * BATCH].tolist() for epoch in range(EPOCHS)]
    trials = defaultdict(dict)
    for path in (tmp_path / "log").glob("*_rank0.jsonl"):
        for line in path.read_text().splitlines():
            entry = json.loads(line)
            trials[path.name][entry["epoch"]] = entry["rows"]
    assert [[found[epoch] for epoch in sorted(found)] for found in trials.values()] == [expected, expected]
