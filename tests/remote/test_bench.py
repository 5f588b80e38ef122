"""`python -m tests.bench remote` runs, with every case that its goals are about."""

import json
import subprocess
import sys

import pytest

pytestmark = pytest.mark.slow


def test_bench_remote(tmp_path):
    # A process of its own: the bench starts Ray, and other tests may have one.
    command = [sys.executable, "-m", "tests.bench", "remote", "--size", "0.002", "--json", "--folder", tmp_path]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=300)
    found = json.loads(done.stdout)
    assert {each["case"] for each in found if each["goal"] is not None} >= {
        "whole column",
        "plan contiguous",
        "plan paged",
        "plan default, one-row chunks",
        "plan 8 files, first time",
        "plan 8 files, with index_dir",
    }
    for each in found:
        if each["unit"].startswith(("requests", "rounds", "listings")):
            assert each["goal"] is None or each["ours"] <= each["goal"], each
