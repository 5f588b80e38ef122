"""Processes that are forked while Ray runs, as workers of a DataLoader are: they free nothing of Ray's store."""

import subprocess
import sys

import pytest

PROGRAM = """
import gc, os, sys, threading
import numpy as np
import ray
import ray_h5
from ray_h5.lru import LRU

ray.init(address="local", num_cpus=1, object_store_memory=400_000_000, include_dashboard=False, log_to_driver=False)
ray_h5.quiet()
ended = threading.Event()

def stored():
    return ray.get(ray.put(np.zeros(200_000)))

def use_the_store():
    while not ended.is_set():
        stored()

thread = threading.Thread(target=use_the_store)
thread.start()
gc.disable()
cache = LRU(100)
for _ in range(40):
    for number in range(60):
        if sys.argv[1] == "cache":
            cache.put(number, stored())
        else:
            cycle = [stored()]
            cycle.append(cycle)
    child = os.fork()
    if child == 0:
        gc.collect()
        os._exit(0)
    os.waitpid(child, 0)
    gc.collect()
ended.set()
thread.join()
print(len(stored()))
"""


@pytest.mark.slow
@pytest.mark.parametrize("holder", ["garbage", "cache"])
def test_what_a_child_frees_does_not_end_ray(holder):
    program = [sys.executable, "-c", PROGRAM, holder]
    done = subprocess.run(program, capture_output=True, text=True, check=False, timeout=300)
    assert done.stdout.splitlines()[-1:] == ["200000"], done.stderr[-2000:]
