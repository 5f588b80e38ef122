"""What runs in Ray tasks: reading blocks, and looking files up."""

from __future__ import annotations

import socket
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import ray
from ray.data.block import BlockMetadata
from ray.data.datasource import ReadTask
from ray.exceptions import RayError, RayTaskError

from ray_h5.errors import NotFoundError, RayH5Error, ReadFailedError
from ray_h5.planning.epoch.blocks import BlockLayout
from ray_h5.planning.epoch.plan import ReadPlan
from ray_h5.planning.epoch.position import Remainder, read_block
from ray_h5.planning.index.file_facts import FileFacts
from ray_h5.planning.predicates.evaluate import fingerprint
from ray_h5.ray_data.blocks import schema_of, to_table
from ray_h5.ray_data.internals import is_sent_by_ray, task_attempts

_MAX_PLANS = 4
_MAX_ATTEMPTS = 5
"""Workers that may die with one block."""


@dataclass(slots=True)
class _Made:
    """A plan that was made: here, or in another process that put it into Ray's object store."""

    predicate: bytes | None
    """The fingerprint of the predicate; None if it has none, and the plan is not found again."""
    names: tuple[str, ...]
    plan: ReadPlan | None = None
    reference: ray.ObjectRef[ReadPlan] | None = None
    session: str = ""
    """The session of Ray that the reference is valid in."""

    def put(self) -> ray.ObjectRef[ReadPlan]:
        """Return the plan in Ray's object store, put there once a session."""
        if self.reference is None or self.session != _session():
            self.reference, self.session = ray.put(self.plan), _session()
        return self.reference

    def found(self) -> ReadPlan | None:
        if self.plan is None and self.session == _session():
            try:
                self.plan = ray.get(self.reference)
            except RayError:
                return None  # the process that made it is gone, and the plan with it
        return self.plan

    def shared(self) -> _Made | None:
        """Return it as it goes to another process of the cluster, by reference; None if there is no plan any more."""
        return _Made(self.predicate, self.names, None, self.put()) if self.found() is not None else None


def _session() -> str:
    """Return what tells this process's connection to a cluster from others, before and after `ray.shutdown`."""
    if not ray.is_initialized():
        return ""
    context = ray.get_runtime_context()
    # A driver's own id is made of its job's, which is the same in each cluster that is started anew.
    return str(context.get_node_id() + context.get_worker_id())


class Plans:
    """The plans made so far, for one datasource and all that Ray derives from it, epoch after epoch."""

    def __init__(self, made: Sequence[_Made] = ()) -> None:
        self._made = list(made)
        for each in self._made:
            each.session = _session()  # it is valid here, too

    def get(
        self,
        predicate: pc.Expression | None,
        names: tuple[str, ...],
        make: Callable[[tuple[str, ...]], ReadPlan],
    ) -> ReadPlan:
        """Return the plan for a predicate and columns; made if it is none of the last ones."""
        wanted = b"" if predicate is None else fingerprint(predicate)
        for each in self._made if wanted is not None else ():
            if each.names == names and each.predicate == wanted and (plan := each.found()) is not None:
                return plan
        plan = make(names)
        self._made = [*self._made[1 - _MAX_PLANS :], _Made(wanted, names, plan)]
        return plan

    def reference(self, plan: ReadPlan) -> ray.ObjectRef[ReadPlan]:
        """Return the plan in Ray's object store, put there once."""
        made = next((each for each in self._made if each.plan is plan), None)
        if made is None:
            return ray.put(plan)  # meanwhile another iteration made plans, and this one was let go
        return made.put()

    def __reduce__(self) -> tuple[Any, ...]:
        # What was planned before a trainer or a splitter gets the dataset is not planned again there. Another cluster,
        # which may get it by `Dataset.serialize_lineage`, has none of this one's objects.
        shared = [each.shared() for each in self._made] if is_sent_by_ray() else []
        return Plans, ([each for each in shared if each is not None],)


def read_tasks(
    plan: ReadPlan,
    source: ReadPlan | ray.ObjectRef[ReadPlan],
    names: tuple[str, ...],
    remainder: Remainder,
    limit: int | None = None,
    input_files: tuple[str, ...] = (),
) -> list[ReadTask]:
    """Return a task for each block of what is left of an epoch.

    Parameters
    ----------
    plan : ReadPlan
        The plan.
    source : ReadPlan, or a reference to one
        What the tasks get.
    names : tuple of str
        The columns of a block, in order.
    remainder : Remainder
        What is left of which epoch.
    limit : int, optional
        Most rows that are wanted of a task.
    input_files : tuple of str
        What the metadata are to name. Ray adds up those of all tasks: the first one names all files.
    """
    schema = schema_of(plan, names)
    layout = remainder.block_layout(plan)
    if layout.num_blocks == 0:
        metadata = BlockMetadata(num_rows=0, size_bytes=0, input_files=input_files, exec_stats=None)
        return [ReadTask(partial(_read_nothing, schema), metadata, schema=schema)]
    read = partial(_read_block, source, names, remainder)
    return [
        _task(read, layout, block, plan.row_bytes, schema, limit, None if block else input_files)
        for block in range(layout.num_blocks)
    ]


def _task(
    read: Callable[..., Iterable[pa.Table]],
    layout: BlockLayout,
    block: int,
    row_bytes: int,
    schema: pa.Schema,
    limit: int | None,
    input_files: tuple[str, ...] | None,
) -> ReadTask:
    start, stop = layout.bounds(block)
    rows = stop - start
    metadata = BlockMetadata(num_rows=rows, size_bytes=rows * row_bytes, input_files=input_files, exec_stats=None)
    return ReadTask(partial(read, block, limit), metadata, schema=schema, per_task_row_limit=limit)


def _read_block(
    plan: ReadPlan | ray.ObjectRef[ReadPlan],
    names: tuple[str, ...],
    remainder: Remainder,
    block: int,
    limit: int | None,
) -> Iterable[pa.Table]:
    if not isinstance(plan, ReadPlan):
        plan = ray.get(plan)
    _check_attempts(plan, remainder, block)
    with _on_this_host():
        table = to_table(plan, read_block(plan, remainder, block, limit), names)
    yield table


def _check_attempts(plan: ReadPlan, remainder: Remainder, block: int) -> None:
    """Give up on a block whose reading kills its worker; Ray itself would begin it anew for ever."""
    attempts = task_attempts()
    if attempts <= _MAX_ATTEMPTS:
        return
    row_ids = plan.with_drawn_seed(remainder.seed).at(remainder.positions(plan, block), remainder.epoch)
    paths = [plan.files.path(file) for file in np.unique(plan.files.files_of(row_ids)).tolist()]
    raise ReadFailedError(
        f"{attempts} workers died while they read, or worked on, block {block}: {len(row_ids)} rows of "
        f"{', '.join(paths[:5])}{' ...' if len(paths) > 5 else ''}. Either a file makes the reading crash: read it "
        "alone, with RowReader; or the tasks need more memory than there is: make blocks smaller with block_rows=, or "
        "reserve memory with memory=."
    )


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
