"""What reads would ask a store for."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ray_h5.read.file_reads import jobs_of_reads, kinds_of, opened_together
from ray_h5.read.jobs import ReadStats
from ray_h5.read.read_parts import FileRead
from ray_h5.read.remote.coalesced_reads import cost_of


def request_cost_of(reads: Sequence[Callable[[], FileRead]]) -> ReadStats:
    """Return what `run_reads` would ask a store for."""
    total = ReadStats()
    for together in opened_together(reads):
        total.add(cost_of(kinds_of(jobs_of_reads(together, True))[0]))
    return total
