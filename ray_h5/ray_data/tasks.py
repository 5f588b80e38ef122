"""Code that runs in Ray tasks: reading blocks, and looking up files."""

from __future__ import annotations

import socket
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import islice

import numpy as np
import pyarrow as pa
import ray
from ray.data.block import BlockMetadata
from ray.data.datasource import ReadTask
from ray.exceptions import RayTaskError

from ray_h5.errors import NotFoundError, RayH5Error, ReadFailedError
from ray_h5.index.facts.file_facts import FileFacts
from ray_h5.index.scan_files import read_ahead
from ray_h5.lru import LRU
from ray_h5.order.position import Position
from ray_h5.order.remaining_blocks import layout_of, positions_of
from ray_h5.plan.blocks import read_block
from ray_h5.plan.read_plan import ReadPlan
from ray_h5.plan.row_source import RowSource
from ray_h5.ray_data.arrow.blocks import schema_of, to_table
from ray_h5.ray_data.ray_internals import task_attempts

_MAX_ATTEMPTS = 5
"""How many workers may die while they read one block."""

_HERE_S = 3.0
"""How long files are looked up here: about as long as Ray takes to start processes that import this package."""


def read_tasks(
    plan: ReadPlan,
    plan_for_tasks: ReadPlan | ray.ObjectRef[ReadPlan],
    names: tuple[str, ...],
    run: Position,
    limit: int | None = None,
    input_files: tuple[str, ...] = (),
) -> list[ReadTask]:
    """Return a task for each block of the run that begins at `run`; it returns at most `limit` rows.

    `plan_for_tasks` is the plan as the tasks receive it, which may be a reference; `names` are the columns of a block,
    in order. Ray joins the metadata of all tasks, so the first task names all `input_files`.
    """
    schema = schema_of(plan, names)
    layout, tasks = layout_of(run), list[ReadTask]()
    for block in layout.blocks_left(run.rows):
        start, stop = layout.bounds(block, run.rows)
        of_files = None if tasks else input_files
        metadata = BlockMetadata(stop - start, (stop - start) * plan.row_bytes, None, input_files=of_files)
        read = partial(_read_block, plan_for_tasks, names, run, block, limit)
        tasks.append(ReadTask(read, metadata, schema=schema, per_task_row_limit=limit))
    return tasks or [task_of_nothing(schema, 0, input_files)]


def task_of_nothing(schema: pa.Schema, rows: int | None, input_files: tuple[str, ...]) -> ReadTask:
    """Return a task that reads no rows: Ray takes the schema, the number of rows and the files from it."""
    metadata = BlockMetadata(rows, rows, None, input_files=input_files)
    return ReadTask(lambda: [schema.empty_table()], metadata, schema=schema)


def _read_block(
    plan: ReadPlan | ray.ObjectRef[ReadPlan], names: tuple[str, ...], run: Position, block: int, limit: int | None
) -> Iterable[pa.Table]:
    # A plan is large, so tasks get a reference; Ray fetches the plan to each node once.
    key, source = None, None
    if not isinstance(plan, ReadPlan):
        key = ray.get_runtime_context().get_node_id(), plan.binary()  # each new cluster numbers its objects from 1
        source = _SOURCES.get(key)
        plan = ray.get(plan) if source is None else source.plan
    _check_attempts(plan, run, block)
    # Rows stay in memory if they are few, shuffled, and the same in each epoch.
    is_plain = plan.order.shuffle is not None and plan.scope.windows is None and not plan.is_drawn
    is_kept = is_plain and bool(plan.of_files) and _bytes_of(plan) <= _KEPT_BYTES
    with _on_this_host():
        if source is None and key is not None and limit is None and is_kept:
            source = RowSource(plan, _KEPT_BYTES)
            source.block_rows(plan.row_ids(np.arange(plan.num_rows)))  # in the order of the files: each is opened once
            _SOURCES.put(key, source)
        table = to_table(plan, read_block(plan, run, block, limit, source), names)
    yield table


def _bytes_of(plan: ReadPlan) -> int:
    return plan.files.num_rows * plan.row_bytes


_KEPT_BYTES = 32 << 20
"""Most bytes of the rows that stay in the memory of each process that reads blocks; half of a block."""

_SOURCES: LRU[RowSource] = LRU(4, 2 * _KEPT_BYTES, lambda source: _bytes_of(source.plan))
"""What reads the rows of small shuffled plans and keeps them. Each block has rows of nearly all files: without it, each
file is opened for each block of each epoch."""


def _check_attempts(plan: ReadPlan, run: Position, block: int) -> None:
    """Raise for a block whose reading kills its worker again and again; Ray would start the task again without end."""
    attempts = task_attempts()
    if attempts <= _MAX_ATTEMPTS:
        return
    row_ids = plan.with_drawn_seed(run.seed).at(positions_of(run, block), run.epoch)
    paths = [plan.files.path(file) for file in np.unique(plan.files.files_of(row_ids)).tolist()]
    raise ReadFailedError(
        f"{attempts} workers died while they read, or worked on, block {block}: {len(row_ids)} rows of "
        f"{', '.join(paths[:5])}{' ...' if len(paths) > 5 else ''}. Either a file makes the reading crash: read it "
        "alone, with RowReader; or the tasks need more memory than there is: make blocks smaller with block_rows=, or "
        "reserve memory with memory=."
    )


@contextmanager
def _on_this_host() -> Iterator[None]:
    """Add the host to the error of a missing file: other nodes may have the file."""
    try:
        yield
    except NotFoundError as exc:
        elsewhere = (
            "the environment of this node leads to another store: put endpoint and region into storage_options"
            if "://" in str(exc)
            else "this node does not see it: mount the file system that holds it at the same path on every node that "
            "reads; run the tasks on the nodes that have it, with ray_remote_args={'label_selector': {...}}; or write "
            "local:// before the path if only the driver's node has the file"
        )
        raise NotFoundError(
            f"on host {socket.gethostname()}: {exc}. It was there when the dataset was made. Either it was removed "
            f"since, or {elsewhere}."
        ) from exc


def in_tasks(
    work: Callable[[list[str]], list[FileFacts]], path_lists: Sequence[list[str]]
) -> Iterator[list[FileFacts]]:
    """Look up files here for a while; those that are left in Ray tasks, one for each list of paths."""
    until = time.monotonic() + _HERE_S
    for done, result in enumerate(read_ahead(work, path_lists), 1):
        yield result
        if time.monotonic() > until and done < len(path_lists):
            break
    else:
        return
    task = ray.remote(look_up)
    reference = ray.put(work)
    # Twice the CPUs: each CPU has its next task ready, and results wait in memory for few lists alone.
    most = 2 * max(1, int(ray.cluster_resources().get("CPU", 1)))
    left = iter(path_lists[done:])
    pending = deque(task.remote(reference, paths) for paths in islice(left, most))
    while pending:
        try:
            facts = ray.get(pending.popleft())
        except RayTaskError as exc:
            # Raise our own error, as the same work in this process would.
            raise exc.cause if isinstance(exc.cause, RayH5Error) else exc from None
        pending.extend(task.remote(reference, paths) for paths in islice(left, 1))
        yield facts


def look_up(work: Callable[[list[str]], list[FileFacts]], paths: list[str]) -> list[FileFacts]:
    """Do the work of one task of `in_tasks`; `work` is in the object store once for all tasks."""
    with _on_this_host():
        return work(paths)
