"""Training on several processes, as people start it: torchrun, gloo, DistributedDataParallel."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("ddp_script.py")


def torchrun(processes, *arguments, folder):
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(  # noqa: PLW1510  what it said is shown below
        [*command, str(SCRIPT), str(folder), *arguments], capture_output=True, text=True, env=environment, timeout=300
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return [json.loads((folder / f"rank{rank}.json").read_text()) for rank in range(processes)]


@pytest.mark.slow
def test_training(files, pairs, tmp_path):
    processes = 3
    ranks = torchrun(processes, pairs, *files, folder=tmp_path)
    for epoch in range(2):
        combined = [rank["combined"][epoch] for rank in ranks]
        assert {len(each) for each in combined} == {len(combined[0])}
        assert {i for each in combined for i in each} == set(range(60))
        assert sum(map(len, combined)) == 60
    assert ranks[0]["combined"][0] != ranks[0]["combined"][1]
    for mode in ("contiguous", "interleave"):
        for epoch in range(2):
            assert sorted(i for rank in ranks for i in rank[mode][epoch]) == list(range(50))
        assert ranks[0][mode][0] != ranks[0][mode][1]
    assert sorted(ranks[-1]["interleave"][0]) == list(range(processes - 1, 50, processes))
    assert len({rank["weight"] for rank in ranks}) == 1  # the model is the same on all
