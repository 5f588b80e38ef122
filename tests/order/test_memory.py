import subprocess
import sys
import tracemalloc

import numpy as np
import pytest

from ray_h5.index.row_index import build_index
from ray_h5.order.draws.shuffle import Shuffle
from ray_h5.plan.blocks import read_block, start_of
from ray_h5.plan.read_plan import make_plan
from tests.kit.files import save

CHUNK_ROWS, CHUNKS = 128, 24
ROW_BYTES = 64 * 64 * 4

MEASURE = r"""
import re, sys
import numpy as np
from ray_h5.index.row_index import build_index
from ray_h5.plan.read_plan import make_plan
from ray_h5.plan.blocks import read_block, start_of

def resident(key):
    return 1024 * int(re.search(key + r":\s+(\d+)", open("/proc/self/status").read())[1])

def plan(block_rows):
    index = build_index(sys.argv[1:2])
    return make_plan(index, list(index.columns.values()), eval(sys.argv[2]), block_rows=block_rows)

read_block(plan(8), start_of(plan(8)), 0)  # libraries and code are loaded
open("/proc/self/clear_refs", "w").write("5")  # the peak begins here
before = resident("VmRSS")
block = read_block(plan(1 << 20), start_of(plan(1 << 20)), 0).rows
print(resident("VmHWM") - before, sum(a.nbytes for a in block.arrays.values()))
"""


@pytest.mark.slow
def test_a_read_holds_its_block_and_a_few_chunks(tmp_path):
    path, selection = str(tmp_path / "a.h5"), "np.arange(0, 3072, 2)"
    values = np.random.default_rng(0).integers(0, 9, (CHUNK_ROWS * CHUNKS, 64, 64)).astype("f4")
    save(path, {"x": values}, chunks=(CHUNK_ROWS, 64, 64), compression=1, shuffle=True)
    done = subprocess.run([sys.executable, "-c", MEASURE, path, selection], capture_output=True, text=True, check=True)
    peak, block = map(int, done.stdout.split())
    assert block == ROW_BYTES * CHUNK_ROWS * CHUNKS // 2
    # What is fetched, what passes between two steps, and the chunk that rows are taken from; 4 MiB for the rest.
    assert peak <= block + 3 * CHUNK_ROWS * ROW_BYTES + (4 << 20)


def test_a_block_of_narrow_rows_keeps_little_beside_it(tmp_path):
    """Row by row numbers of rows, and what they come of, are more than the values; blocks are cut by both."""
    save(tmp_path / "a.h5", {"x": np.ones(8_000_000, "f4")})
    index = build_index([str(tmp_path / "a.h5")])
    for shuffle in (None, Shuffle("rows")):
        plan = make_plan(index, list(index.columns.values()), shuffle=shuffle)
        tracemalloc.start()
        try:
            read_block(plan, start_of(plan), 1)
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert peak <= 112 << 20
