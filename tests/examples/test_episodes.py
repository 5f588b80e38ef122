"""examples/episodes.py trains on windows of episodes, is interrupted once, and reads each window of an epoch once."""

import os
import re
import subprocess
import sys
from pathlib import Path

PROGRAM = Path(__file__).parents[2] / "examples" / "episodes.py"


def test_the_program_trains_and_resumes(tmp_path):
    environment = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
    command = [sys.executable, str(PROGRAM), "--epochs", "2", "--interrupt-at", "10"]
    done = subprocess.run(
        command, check=False, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=400
    )
    assert done.returncode == 0, done.stderr[-3000:]
    windows = int(re.search(r"^(\d+) windows", done.stdout, re.MULTILINE)[1])
    assert "interrupted after 10 steps, in epoch 1" in done.stdout
    # Two workers take 32 windows a step. What was done before the interruption does not come again.
    assert f"{2 * (windows // 64)} steps in all" in done.stdout
    losses = [float(each) for each in re.findall(r"loss (\d+\.\d+)", done.stdout)]
    assert losses[-1] < losses[0]
