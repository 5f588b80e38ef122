"""A test that ends its process or hangs is one that fails; all others run."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

TESTS = """
import os, time
import pytest

@pytest.mark.parametrize("number", range(8))
def test_alone(number):
    if number == 3:
        os._exit(3)

@pytest.mark.xdist_group("together")
@pytest.mark.parametrize("number", range(4))
def test_together(number):
    if number == 1:
        time.sleep(100)

def test_the_last():
    os._exit(3)
"""
CONFTEST = """
from tests.conftest import pytest_xdist_make_scheduler
"""


@pytest.mark.slow
def test_a_process_that_ends_amid_a_test_stops_no_other(tmp_path):
    (tmp_path / "test_ends.py").write_text(TESTS)
    (tmp_path / "conftest.py").write_text(CONFTEST)
    words = ["-n", "2", "--dist", "loadgroup", "--timeout", "4", "--timeout-method", "thread", "-c", "/dev/null"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", tmp_path, *words, tmp_path],
        cwd=ROOT, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    ended = re.findall(r"^FAILED \S*::(test_\S+)", done.stdout, re.MULTILINE)
    assert sorted(ended) == [
        "test_alone[3]",
        "test_the_last",
        "test_together[1]@together",
    ], done.stdout
    assert "3 failed, 10 passed" in done.stdout
