"""What files in a store cost: requests and bytes to open them, and those of an epoch."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import numpy as np

from ray_h5.buffers import empty
from ray_h5.index.row_index import RowIndex
from ray_h5.order.draws.shuffle import Shuffle
from ray_h5.plan.block_rows import by_file
from ray_h5.plan.read_plan import ReadPlan, make_plan
from ray_h5.read.file_reads import request_cost_of
from ray_h5.read.jobs import ReadStats
from ray_h5.read.read_parts import FileRead
from ray_h5.storage.request_pool import fetched
from ray_h5.storage.storage_of_path import Storage, storage_of

_SAMPLED_BLOCKS = 4
_SAMPLED_ROWS = 1 << 14


@dataclass(frozen=True, slots=True)
class OpenCost:
    """What it takes to open a file in a store: rounds of requests that wait for those before, requests, their bytes."""

    rounds: int
    requests: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class EpochCost:
    """What an epoch asks a store for, estimated from some of its blocks.

    `waste` is how many times the bytes of the rows are fetched, as they are stored.
    """

    order: str
    requests: int
    nbytes: int
    waste: float


@dataclass(frozen=True, slots=True)
class StoreReport:
    """What files in a store cost: to open `path`, which takes the most requests; and epochs, in order and shuffled."""

    opening: OpenCost
    path: str
    epochs: tuple[EpochCost, ...] = ()


@contextmanager
def opening(costs: dict[str, OpenCost], path: str, storage: Storage) -> Iterator[None]:
    """Add what it takes to open a file to `costs`, if it is fetched."""
    before = fetched.value.rounds, fetched.value.requests, fetched.value.nbytes
    yield
    if storage_of(path, storage).is_fetched:
        after = fetched.value.rounds, fetched.value.requests, fetched.value.nbytes
        costs[path] = OpenCost(*(now - then for now, then in zip(after, before, strict=True)))


def store_report(costs: dict[str, OpenCost], index: RowIndex | None, stored_bytes: int) -> StoreReport | None:
    """Return what files in a store cost; None if none is in one. `costs` are those to open each.

    The columns of `index`, which is None if the files cannot be read together, take `stored_bytes` in the files.
    """
    if not costs:
        return None
    path = max(costs, key=lambda path_of: costs[path_of].requests)
    epochs = () if index is None or not index.num_rows else tuple(_epochs(index, stored_bytes))
    return StoreReport(costs[path], path, epochs)


def _epochs(index: RowIndex, stored_bytes: int) -> Iterator[EpochCost]:
    seen = set()
    for shuffle in (None, Shuffle("auto"), Shuffle("rows")):
        plan = make_plan(index, list(index.columns.values()), shuffle=shuffle)
        order = "in order" if plan.order.shuffle is None else f"shuffled by {plan.order.shuffle.unit}"
        if order in seen:
            continue
        seen.add(order)
        rows = min(plan.block_rows, plan.num_rows, _SAMPLED_ROWS)
        starts = np.unique(np.linspace(0, plan.num_rows - rows, _SAMPLED_BLOCKS).astype(int)).tolist()
        costs = [request_cost(plan, plan.at(np.arange(start, start + rows), 0)) for start in starts]
        share = plan.num_rows / (rows * len(starts))
        nbytes = round(sum(cost.bytes_read for cost in costs) * share)
        requests = max(1, round(sum(cost.requests for cost in costs) * share))
        yield EpochCost(order, requests, nbytes, nbytes / max(1, stored_bytes))


def request_cost(plan: ReadPlan, row_ids: np.ndarray) -> ReadStats:
    """Return the requests that reading rows of files in stores makes, and their bytes. No row is read.

    Values of varying length, such as strings, are not counted.
    """
    arrays = {column.name: empty((len(row_ids), *column.row_shape), column.dtype) for column in plan.columns}

    def planned(file: int, places: np.ndarray) -> FileRead:
        return plan.open(file).planned(arrays, row_ids[places] - plan.files.starts[file], places, **plan.read_options)

    return request_cost_of([partial(planned, *part) for part in by_file(plan.files, row_ids)])
