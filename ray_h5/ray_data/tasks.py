"""What runs in Ray tasks: reading blocks, and looking files up."""

from __future__ import annotations

import socket
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import ray
from ray.data.block import BlockMetadata
from ray.data.datasource import ReadTask
from ray.exceptions import RayTaskError

from ray_h5.errors import NotFoundError, RayH5Error
from ray_h5.planning.facts import FileFacts
from ray_h5.planning.plan import ReadPlan
from ray_h5.planning.position import Cut, Stretch, read_block
from ray_h5.ray_data.blocks import Output, schema_of, to_table

_MAX_PLANS = 4


class Plans:
    """The plans made so far, for one datasource and all that Ray derives from it, epoch after epoch."""

    def __init__(self) -> None:
        self._plans: list[tuple[pc.Expression | None, tuple[str, ...], ReadPlan]] = []
        self._references: dict[ReadPlan, ray.ObjectRef[ReadPlan]] = {}

    def get(
        self,
        predicate: pc.Expression | None,
        names: tuple[str, ...],
        make: Callable[[tuple[str, ...]], ReadPlan],
    ) -> ReadPlan:
        for known, its_names, plan in self._plans:
            if its_names == names and _same(known, predicate):
                return plan
        plan = make(names)
        self._plans.append((predicate, names, plan))
        for _, _, old in self._plans[:-_MAX_PLANS]:
            self._references.pop(old, None)
        del self._plans[:-_MAX_PLANS]
        return plan

    def reference(self, plan: ReadPlan) -> ray.ObjectRef[ReadPlan]:
        """Return the plan in Ray's object store, put there once."""
        if plan not in self._references:
            self._references[plan] = ray.put(plan)
        return self._references[plan]

    def __reduce__(self) -> tuple[Any, ...]:
        # A plan is made again where it is needed: its selection may be large.
        return Plans, ()


def _same(one: pc.Expression | None, other: pc.Expression | None) -> bool:
    return one is other or (one is not None and other is not None and one.equals(other))


def read_tasks(
    plan: ReadPlan,
    source: ReadPlan | ray.ObjectRef[ReadPlan],
    output: Output,
    stretch: Stretch,
    limit: int | None = None,
) -> list[ReadTask]:
    """Return a task for each block of what is left of an epoch.

    Parameters
    ----------
    plan : ReadPlan
        The plan.
    source : ReadPlan, or a reference to one
        What the tasks get.
    output : Output
        The columns of a block.
    stretch : Stretch
        What is left of which epoch.
    limit : int, optional
        Most rows that are wanted of a task.
    """
    schema = schema_of(plan, output)
    cut = stretch.cut(plan)
    if cut.num_blocks == 0:
        metadata = BlockMetadata(num_rows=0, size_bytes=0, input_files=None, exec_stats=None)
        return [ReadTask(partial(_read_nothing, schema), metadata, schema=schema)]
    read = partial(_read_block, source, output, stretch)
    return [_task(read, cut, block, plan.row_bytes, schema, limit) for block in range(cut.num_blocks)]


def _task(
    read: Callable[..., Iterable[pa.Table]], cut: Cut, block: int, row_bytes: int, schema: pa.Schema, limit: int | None
) -> ReadTask:
    start, stop = cut.bounds(block)
    rows = stop - start
    metadata = BlockMetadata(num_rows=rows, size_bytes=rows * row_bytes, input_files=None, exec_stats=None)
    return ReadTask(partial(read, block, limit), metadata, schema=schema, per_task_row_limit=limit)


def _read_block(
    plan: ReadPlan | ray.ObjectRef[ReadPlan], output: Output, stretch: Stretch, block: int, limit: int | None
) -> Iterable[pa.Table]:
    if not isinstance(plan, ReadPlan):
        plan = ray.get(plan)
    with _on_this_host():
        table = to_table(plan, read_block(plan, stretch, block, limit), output)
    yield table


@contextmanager
def _on_this_host() -> Iterator[None]:
    """Say where a file is missing: on another node it may well be there."""
    try:
        yield
    except NotFoundError as exc:
        raise NotFoundError(
            f"on host {socket.gethostname()}: {exc}. It was there when the dataset was made. Either it was removed "
            "since, or this node does not see it: mount the file system that holds it at the same path on every node "
            "that reads; keep readers to the nodes that have it with ray_remote_args={'label_selector': {...}}; or "
            "write local:// before the path if only the driver's node has the file."
        ) from exc


def _read_nothing(schema: pa.Schema) -> Iterable[pa.Table]:
    yield schema.empty_table()


def in_tasks(work: Callable[[list[str]], list[FileFacts]], groups: Sequence[list[str]]) -> Iterator[list[FileFacts]]:
    """Spread the look-up of files over Ray tasks, a bounded number at a time."""
    task = ray.remote(work_on)
    reference = ray.put(work)
    most = 2 * max(1, int(ray.cluster_resources().get("CPU", 1)))
    pending: deque[ray.ObjectRef[list[FileFacts]]] = deque()
    for group in groups:
        if len(pending) >= most:
            yield _get(pending.popleft())
        pending.append(task.remote(reference, group))
    while pending:
        yield _get(pending.popleft())


def work_on(work: Callable[[list[str]], list[FileFacts]], paths: list[str]) -> list[FileFacts]:
    """Do the work of `in_tasks`; the function comes by reference, once for all tasks."""
    with _on_this_host():
        return work(paths)


def _get(reference: ray.ObjectRef[list[FileFacts]]) -> list[FileFacts]:
    try:
        return ray.get(reference)
    except RayTaskError as exc:
        # As it would come out of this process.
        raise exc.cause if isinstance(exc.cause, RayH5Error) else exc from None
