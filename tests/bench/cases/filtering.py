"""Bench `filter`: an epoch of all rows, a tenth and a hundredth, against filtering after the reading.

The selected rows are neighbours, such as the recordings of some patients, as in most real selections. The last cases
select rows that are scattered over all chunks, so that each chunk has to be decoded.
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
from ray_h5.index.file_options import FileOptions
from ray_h5.index.select_rows import select
from ray_h5.order.plan_reads import read_rows
from ray_h5.order.read_plan import make_plan
from ray_h5.predicates.criteria import where
from tests.bench.measure import OURS, Contest, Result, run_turns
from tests.bench.session import ray_session
from tests.bench.verify import count_rows
from tests.bench.workloads import Workload, make_workload

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.bench import BenchOptions

__all__ = ["bench_filter"]

_BATCH_SIZE = 64
_SHARES = {"100%": 1.0, "10%": 0.1, "1%": 0.01}
_CASES = {
    "signals": (("fhr_st", "target", "weight"), "guid"),
    "wide": (("vector", "label"), "subject"),
}
_SCATTERED_BY = "quality"


def bench_filter(options: BenchOptions) -> list[Result]:
    """Measure the cost of a filter by the share of rows that it selects."""
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
        criteria["1% scattered"] = {_SCATTERED_BY: ray_h5.between(0.0, 0.01)}
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
    """Return values of a column that about `share` of the rows have."""
    values = FileOptions.of(workload.paths).index([key]).look_up([key])[key].unique().to_pylist()
    # The first values, so that their rows are neighbours.
    return values[: max(1, round(share * len(values)))]


def _rows_and_bytes(workload: Workload, columns: Sequence[str], chosen: dict[str, Any]) -> tuple[int, int]:
    """Return the number of rows that pass, and the bytes of the files that reading them takes."""
    index = FileOptions.of(workload.paths).index(columns)
    plan = make_plan(index, list(index.columns.values()), select(index, index.columns, where(**chosen)))
    bytes_read = 0
    for start in range(0, plan.num_rows, plan.block_rows):
        selected_indexes = np.arange(start, min(start + plan.block_rows, plan.num_rows))
        bytes_read += read_rows(plan, plan.row_ids(selected_indexes)).stats.bytes_read
    return plan.num_rows, bytes_read


def _ours(workload: Workload, columns: Sequence[str], chosen: dict[str, Any]) -> ray.data.Dataset:
    return ray_h5.read_h5(workload.paths, columns=columns).filter(expr=ray_h5.where(**chosen))


def _post_filter(workload: Workload, columns: Sequence[str], chosen: dict[str, Any]) -> ray.data.Dataset:
    """Return a dataset of the same reader that filters rows after they are read."""
    (named,) = chosen
    expression = where(**chosen)
    ds = ray_h5.read_h5(workload.paths, columns=[*columns, named])
    return ds.map_batches(partial(_keep, expression, list(columns)), batch_format="pyarrow", zero_copy_batch=True)


def _keep(expression: pc.Expression, columns: list[str], table: pa.Table) -> pa.Table:
    return table.filter(expression).select(columns)


def _epoch(dataset: ray.data.Dataset, rows: int) -> None:
    count_rows(dataset.iter_torch_batches(batch_size=_BATCH_SIZE), rows)
