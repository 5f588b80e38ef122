"""``ray-h5 bench filter``: an epoch of all rows, a tenth and a hundredth, against filtering after the reading.

What is kept lies together: the recordings of some patients, the rows of some subjects. That is how
people select; of rows strewn over all chunks each chunk has to be decoded, which the last cases show.
"""

from __future__ import annotations

import statistics
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import ray.data

import ray_h5
from ray_h5.bench.measure import OURS, Contest, Result, run_turns
from ray_h5.bench.session import ray_session
from ray_h5.bench.verify import count_rows
from ray_h5.bench.workloads import Workload, make_workload
from ray_h5.planning.epoch.plan import make_plan
from ray_h5.planning.epoch.reading import read_rows
from ray_h5.planning.files import FileOptions
from ray_h5.planning.index.select import select
from ray_h5.planning.predicates.criteria import where

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ray_h5.bench import BenchOptions

__all__ = ["bench_filter"]

_BATCH_SIZE = 64
_SHARES = {"100%": 1.0, "10%": 0.1, "1%": 0.01}
_CASES = {
    "signals": (("fhr_st", "target", "weight"), "guid"),
    "wide": (("vector", "label"), "subject"),
}
_STREWN = "quality"


def bench_filter(options: BenchOptions) -> list[Result]:
    """Measure what a filter costs by what it keeps."""
    results: list[Result] = []
    with ray_session(2 << 30):
        for name, (columns, key) in _CASES.items():
            workload = make_workload(name, options.folder, options.size)
            results += _bench_workload(workload, columns, key, options.turns)
    return results


def _bench_workload(workload: Workload, columns: Sequence[str], key: str, turns: int) -> list[Result]:
    criteria: dict[str, dict[str, Any]] = {
        share: {key: _some_values(workload, key, number)} for share, number in _SHARES.items()
    }
    if workload.name == "wide":
        criteria["1% strewn"] = {_STREWN: ray_h5.between(0.0, 0.01)}
    results: list[Result] = []
    medians: dict[str, float] = {}
    read: dict[str, int] = {}
    for share, chosen in criteria.items():
        rows, read[share] = _rows_and_bytes(workload, columns, chosen)
        label = f"{workload.name} {share}"
        contestants = {
            OURS: partial(_epoch, _ours(workload, columns, chosen), rows),
            "post_filter": partial(_epoch, _post_filter(workload, columns, chosen), rows),
        }
        contest = Contest("filter", f"{label} epoch", run_turns(contestants, turns))
        medians[share] = statistics.median(contest.seconds[OURS])
        results.append(contest.against("post_filter", amount=rows, unit="rows/s", goal=None))
        goal = 0.05 * medians["100%"] + 0.3 if share == "1%" else None
        results.append(contest.within(goal))
        results.append(_counted(f"{label} bytes read", read[share], read["100%"]))
    return results


def _counted(case: str, ours: int, full: int) -> Result:
    share = ours / full
    return Result("filter", case, "100%", "MB", ours / 1e6, full / 1e6, share, (share, share), None, None)


def _some_values(workload: Workload, key: str, share: float) -> list[Any]:
    """Return values of a column that about a share of the rows have."""
    values = FileOptions.of(workload.paths).index([key]).look_up([key])[key].unique().to_pylist()
    # From one end: their rows lie together.
    return values[: max(1, round(share * len(values)))]


def _rows_and_bytes(workload: Workload, columns: Sequence[str], chosen: dict[str, Any]) -> tuple[int, int]:
    """Return how many rows pass, and how many bytes of the files reading them takes."""
    index = FileOptions.of(workload.paths).index(columns)
    plan = make_plan(index, list(index.columns.values()), select(index, index.columns, where(**chosen)))
    bytes_read = 0
    for start in range(0, plan.num_rows, plan.block_rows):
        ranks = np.arange(start, min(start + plan.block_rows, plan.num_rows))
        bytes_read += read_rows(plan, plan.row_ids(ranks)).stats.bytes_read
    return plan.num_rows, bytes_read


def _ours(workload: Workload, columns: Sequence[str], chosen: dict[str, Any]) -> ray.data.Dataset:
    return ray_h5.read_h5(workload.paths, columns=columns).filter(expr=ray_h5.where(**chosen))


def _post_filter(workload: Workload, columns: Sequence[str], chosen: dict[str, Any]) -> ray.data.Dataset:
    """Filter by the same reader's rows, after they were read."""
    (named,) = chosen
    expression = where(**chosen)
    ds = ray_h5.read_h5(workload.paths, columns=[*columns, named])
    return ds.map_batches(partial(_keep, expression, list(columns)), batch_format="pyarrow", zero_copy_batch=True)


def _keep(expression: pc.Expression, columns: list[str], table: pa.Table) -> pa.Table:
    return table.filter(expression).select(columns)


def _epoch(dataset: ray.data.Dataset, rows: int) -> None:
    count_rows(dataset.iter_torch_batches(batch_size=_BATCH_SIZE), rows)
