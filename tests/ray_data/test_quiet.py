"""ray_h5.quiet: the messages of a program and of this package are seen, and Ray's are few."""

import subprocess
import sys

import numpy as np
import pytest

from tests.kit.files import save

PROGRAM = """
import os, sys
import ray, ray_h5
hook = sys.excepthook
ray_h5.quiet()
assert sys.excepthook is hook
ray.init(address="local", num_cpus=2, object_store_memory=128 << 20, include_dashboard=False)
ds = ray_h5.read_h5("a.h5", shuffle=True)
print(ds.count())
import logging
below = [handler for handler in logging.getLogger("ray.data").handlers if handler.level > logging.DEBUG]
assert [type(handler).__name__ for handler in below] == ["PlainRayHandler"], below
print(sum(len(batch["x"]) for batch in ds.iter_batches()))
try:
    ds.filter(expr=ray_h5.where(zz=3)).count()
except ray_h5.RayH5Error as exc:
    print("caught", exc)
os.utime("a.h5", (1, 1))
try:
    for batch in ds.iter_batches():
        pass
except ray_h5.RayH5Error as exc:
    print(type(exc).__mro__[1].__name__)
"""


@pytest.mark.slow
def test_a_program_shows_its_own_lines_and_our_errors(tmp_path):
    save(tmp_path / "a.h5", {"x": np.zeros((100, 3), "f4"), "odd": np.zeros(100, np.longdouble)})
    (tmp_path / "program.py").write_text(PROGRAM)
    found = subprocess.run(
        [sys.executable, "program.py"], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=120
    )
    assert found.returncode == 0, found.stderr
    assert found.stdout.splitlines()[:2] == ["100", "100"], found.stdout
    assert found.stdout.splitlines()[2].startswith("caught ")
    lines = found.stderr.splitlines()
    assert lines[0].startswith("ray_h5: shuffle=True: seed ")
    assert lines[1].startswith("ray_h5: warning: left out 1 of 2 columns: odd")
    assert lines[2].startswith("ray_h5: reading 100 of 100 rows in blocks of ")
    assert not [line for line in lines[3:] if "INFO" in line or "progress" in line], found.stderr


TRAINING = """
import time
import ray
import ray_h5
ray_h5.quiet()
from ray.train import ScalingConfig
from ray.train.torch import TorchTrainer

def loop():
    time.sleep(3)
    print("trained")

if __name__ == "__main__":
    ray.init(address="local", num_cpus=2, object_store_memory=128 << 20, include_dashboard=False)
    TorchTrainer(loop, scaling_config=ScalingConfig(num_workers=1)).fit()
"""


@pytest.mark.slow
def test_a_training_shows_what_workers_print_and_no_lines_about_the_controller(tmp_path):
    """Without a dashboard, a helper of Ray Train fails to ask for the state of the controller each second."""
    (tmp_path / "program.py").write_text(TRAINING)
    found = subprocess.run(
        [sys.executable, "program.py"], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=120
    )
    assert found.returncode == 0, found.stderr
    assert "trained" in found.stdout + found.stderr
    assert "Failed to query Ray Train Controller" not in found.stdout + found.stderr
