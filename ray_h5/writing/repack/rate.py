"""How fast shuffled rows are read, measured on a sample."""

from __future__ import annotations

import time

import numpy as np

from ray_h5.index.file_options import FileOptions
from ray_h5.order.plan_reads import read_rows
from ray_h5.order.read_plan import make_plan

_SAMPLED_ROWS, _SAMPLED_SECONDS, _BATCH_ROWS = 256, 1.5, 16


def shuffled_rate(files: FileOptions) -> float:
    """Return rows a second, read in batches in a random order."""
    index = files.index()
    delivered = index.delivered
    plan = make_plan(index, [delivered[name] for name in index.names])
    drawn = np.random.default_rng(0).permutation(plan.num_rows)[:_SAMPLED_ROWS]
    began, count = time.perf_counter(), 0
    for start in range(0, len(drawn), _BATCH_ROWS):
        rows = drawn[start : start + _BATCH_ROWS]
        read_rows(plan, rows)
        count += len(rows)
        if time.perf_counter() - began > _SAMPLED_SECONDS:
            break
    return count / max(time.perf_counter() - began, 1e-9)
