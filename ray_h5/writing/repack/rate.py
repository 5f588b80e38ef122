"""How fast shuffled rows are read, measured on a sample."""

from __future__ import annotations

import itertools
import time

import numpy as np

from ray_h5.index.file_options import FileOptions
from ray_h5.order.execute_plan import read_rows
from ray_h5.order.read_plan import make_plan

_SAMPLED_ROWS, _BATCH_ROWS = 256, 16
_LEAST_SECONDS, _SAMPLED_SECONDS = 0.2, 1.5
"""A sample that is read faster than the first is read again; one that takes longer than the second is cut off."""


def shuffled_rate(files: FileOptions) -> float:
    """Return rows a second, read in batches in a random order."""
    index = files.index()
    delivered = index.outputs
    plan = make_plan(index, [delivered[name] for name in index.names])
    drawn = np.random.default_rng(0).permutation(plan.num_rows)[:_SAMPLED_ROWS]
    starts = range(0, len(drawn), _BATCH_ROWS)
    began, count, seconds = time.perf_counter(), 0, 0.0
    for number, start in enumerate(itertools.cycle(starts), 1):
        rows = drawn[start : start + _BATCH_ROWS]
        read_rows(plan, rows)
        count, seconds = count + len(rows), time.perf_counter() - began
        if seconds > (_SAMPLED_SECONDS if number < len(starts) else _LEAST_SECONDS):
            break
    return count / max(seconds, 1e-9)
