"""Jobs of several tables that read the same bytes, as one job each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from ray_h5.read.kernel.job_table import Field, JobTable


def shared(tables: Sequence[JobTable]) -> JobTable:
    """Return the jobs of several tables as one, where jobs with the same bytes are one job with the pieces of each.

    All are of one file, and none has a destination of its own.
    """
    whole = JobTable.join(tables)
    jobs = whole.jobs
    order = np.lexsort((jobs[Field.SIZE], jobs[Field.OFFSET]))
    new = np.ones(len(order), bool)
    new[1:] = np.any(np.diff(jobs[Field.OFFSET : Field.SIZE + 1, order]) != 0, axis=0)
    first = order[new]
    counts = (jobs[Field.END] - jobs[Field.BEGIN])[order]
    begins = jobs[Field.BEGIN, order]
    ends = np.cumsum(counts)
    # The loop needs arrays in C order, which indexing does not return.
    pieces = whole.pieces.take(np.arange(ends[-1]) + np.repeat(begins - (ends - counts), counts), axis=1)
    jobs_of_each = jobs.take(first, axis=1)
    stops = ends[np.flatnonzero(np.append(new[1:], True))]
    jobs_of_each[Field.END], jobs_of_each[Field.BEGIN, 0], jobs_of_each[Field.BEGIN, 1:] = stops, 0, stops[:-1]

    def corrupt(job: int, reason: str) -> Exception:
        origin, number = whole.origin_of(int(first[job]))
        return origin.corrupt(number, reason)

    def least(job: int) -> int:
        origin, number = whole.origin_of(int(first[job]))
        return int(whole.jobs[Field.DECODED, first[job]]) if origin.least is None else origin.least(number)

    origin = replace(whole.origins[0], stop=len(first), corrupt=corrupt, least=least)
    return JobTable(jobs_of_each, pieces, whole.boxes, [origin], whole.keeps)
