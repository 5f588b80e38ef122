"""All names of Ray that are not public and that this package uses, in one place; written for Ray 2.60.

A test lists them. What a dataset will execute is a graph of *operators*; Ray has no public way to look at it.
"""

from __future__ import annotations

import dataclasses
import inspect
import os
import re
import time
from collections.abc import Callable
from types import FrameType
from typing import Any, NamedTuple, TypeVar, cast

import ray
from ray._private.ray_logging import stderr_deduplicator, stdout_deduplicator
from ray._private.worker import global_worker
from ray.autoscaler.v2.sdk import get_cluster_status
from ray.data import DataIterator, Dataset, Datasource
from ray.data._internal.logical.interfaces import LogicalPlan
from ray.data._internal.logical.operators import Aggregate, Count, MapBatches, StreamingRepartition, Write
from ray.data._internal.logical.optimizers import LogicalOptimizer
from ray.data.dataset import _ExecutionCache
from ray.exceptions import RayTaskError

from ray_h5.errors import RayH5Error
from ray_h5.per_process import INSTANCES

T = TypeVar("T")
Source = TypeVar("Source", bound=Datasource)

_of_parent: list[list[Any]] = []
# A forked child, as a worker of a DataLoader is, shares its parent's connection to Ray's store. If it freed an object
# of Ray, in garbage or in a cache of its parent, the store would read so amid the parent's messages and end, and all of
# Ray with it. So garbage stays, and values of caches do.
os.register_at_fork(
    before=lambda: _of_parent.append([instance.value for instance in list(INSTANCES)]), after_in_parent=_of_parent.pop
)

_LIMITS_WAIT_SECONDS = 0.1
"""How long an execution waits for the resources of the cluster; an answer takes a few milliseconds."""


# The operators of a dataset ---------------------------------------------------------------------------


def operators(ds: Dataset, *, optimized: bool = True) -> list[Any]:
    """Return the operators of a dataset, the last one first; by default those that remain once Ray has optimized them.

    It then has pushed filters and columns into the reading.
    """
    plan = LogicalOptimizer().optimize(ds._logical_plan) if optimized else ds._logical_plan
    known, todo = [], [plan.dag]
    while todo:
        known.append(todo.pop())
        todo += known[-1].input_dependencies
    return known


def datasources(ds: Dataset, *, optimized: bool = True) -> list[Datasource]:
    """Return the datasources that a dataset reads; by default with the filters and columns pushed into them."""
    return [operator.datasource for operator in operators(ds, optimized=optimized) if hasattr(operator, "datasource")]


def row_count_changers(ds: Dataset) -> list[str]:
    """Return the names of the operators after the reading that may change the number of rows, or of rows in a block.

    A function of the user may change it, unless ``map_batches`` was given ``udf_modifying_row_count=False`` or the
    function has the attribute ``keeps_rows``. Operators that make new blocks change it.
    """
    return [
        operator.name
        for operator in operators(ds)
        if operator.input_dependencies  # a read has none
        and not getattr(getattr(operator, "fn", None), "keeps_rows", False)
        and (
            len(operator.input_dependencies) > 1  # such as union, zip and join
            or isinstance(operator, StreamingRepartition)
            or getattr(operator, "can_modify_num_rows", True)
        )
    ]


class Step(NamedTuple):
    """A function of ``map_batches``, what Ray calls it, its further arguments, and the format of its batches."""

    name: str
    fn: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    batch_format: str
    in_tasks: bool
    """Whether it runs in tasks on CPUs: not in actors, and not on GPUs."""


def steps_after_reading(ds: Dataset) -> tuple[Datasource | None, list[Step]]:
    """Return the datasource of a dataset and the functions after the reading; None if it is anything else."""
    *maps, read = operators(ds)
    source = getattr(read, "datasource", None)
    steps = []
    for operator in reversed(maps):
        if not isinstance(operator, MapBatches) or len(operator.input_dependencies) != 1:
            return None, []
        steps.append(
            Step(
                operator.name,
                operator.fn,
                tuple(operator.fn_args or ()),
                dict(operator.fn_kwargs or {}),
                operator.batch_format or "default",
                not hasattr(operator.compute, "min_size") and not (operator.ray_remote_args or {}).get("num_gpus"),
            )
        )
    return source if getattr(read, "per_block_limit", None) is None else None, steps


def with_datasources(
    ds: Dataset, kind: type[Source], change: Callable[[Source], Datasource], *, whole_blocks: bool = False
) -> Dataset:
    """Return the same dataset over changed datasources of a kind, with a context of its own; `ds` if nothing changes.

    With `whole_blocks` its functions return one block for each block that they receive. By default Ray joins blocks
    that have fewer rows than the ``batch_size`` of ``map_batches``, and cuts blocks that become larger than its
    ``target_max_block_size``, as bytes that become floats may. A worker of a trainer then receives other rows than
    planned.
    """

    def changed(operator: Any) -> Any:
        if isinstance(before := getattr(operator, "datasource", None), kind):
            after = change(before)
            return dataclasses.replace(operator, datasource=after, datasource_or_legacy_reader=after)
        # Without a minimum of rows Ray does not join blocks.
        if whole_blocks and getattr(operator, "min_rows_per_bundled_input", None) is not None:
            return dataclasses.replace(operator, min_rows_per_bundled_input=None)
        return operator  # the same object, so that an unchanged plan is recognized

    before = ds._logical_plan.dag
    after = before._apply_transform(changed)
    if after is before:
        return ds
    clone = Dataset.copy(ds, _deep_copy=True)
    clone._logical_plan = LogicalPlan(after, clone.context)
    if whole_blocks:
        clone.context.target_max_block_size = None  # without a target size it does not cut them
    return clone


# The blocks that Ray keeps ----------------------------------------------------------------------------


class _StreamedCache(_ExecutionCache):
    """What Ray remembers of the executions of a dataset: its schema and counts, and not its blocks.

    ``split``, ``train_test_split`` and ``to_arrow_refs`` leave their blocks with the dataset, and each later iteration
    would return these: another epoch and a position would change nothing.
    """

    def get_bundle(self, dag: Any) -> Any:
        """Return the blocks of the execution that has just ended: to the method that executed it, which asks once."""
        bundle = super().get_bundle(dag)
        self._bundle = None
        return bundle

    def copy(self) -> _StreamedCache:
        """Return the cache of a dataset made from this one; `materialize` takes `deep_copy`, which keeps blocks."""
        new = _StreamedCache()
        new.__dict__.update(super().copy().__dict__)
        return new


def begin_each_time(ds: Dataset) -> None:
    """Let each iteration of a dataset, and of those derived from it, execute it again."""
    ds._cache = _StreamedCache()


# Executions -------------------------------------------------------------------------------------------


_LOOKS = {inspect.unwrap(look).__code__ for look in (Dataset.take, Dataset.take_batch, Dataset.schema)}
"""What looks at the first rows; ``show`` and ``columns`` call these. To an executor of Ray it is a ``limit``."""


class Execution(NamedTuple):
    """What an execution does with the rows that are read."""

    is_look: bool = False
    """Whether it is for a method that looks at the first rows, such as ``take`` and ``schema``."""
    reducers: tuple[str, ...] = ()
    """Operators that count, aggregate or write rows, and hand out none."""
    combiners: tuple[str, ...] = ()
    """Operators that combine several datasets, or one dataset with itself."""
    datasources: tuple[Any, ...] = ()
    datasinks: tuple[Any, ...] = ()


def execution_of(executor: Any) -> Execution:
    """Return what an executor of Ray is going to do, in the thread that lets it."""
    frame: FrameType | None = inspect.currentframe()
    while frame is not None and frame.f_code not in _LOOKS:
        frame = frame.f_back
    operators, reduce = list(executor._topology), (Aggregate, Count, Write)
    # A fused operator is of several logical ones.
    reducers = [each.name for each in operators if any(isinstance(op, reduce) for op in each._logical_operators)]
    combiners = [each.name for each in operators if len(each.input_dependencies) > 1]
    logical = [op for each in operators for op in each._logical_operators]
    sources = [op.datasource for op in logical if hasattr(op, "datasource")]
    sinks = [op.datasink_or_legacy_datasource for op in logical if isinstance(op, Write)]
    return Execution(frame is not None, tuple(reducers), tuple(combiners), tuple(sources), tuple(sinks))


def wait_for_limits(executor: Any) -> None:
    """Wait until an executor of Ray knows the resources of the cluster.

    Ray 2.60 requests them without waiting for the answer, takes a missing answer for zero, and requests them again a
    second later. Until then it runs one task at a time: for the whole of a short epoch.
    """
    deadline = time.monotonic() + _LIMITS_WAIT_SECONDS
    while executor._cluster_autoscaler.get_total_resources().is_zero() and time.monotonic() < deadline:
        time.sleep(0.001)


def task_attempts() -> int:
    """Return how often the calling task was started before: its worker, or its node, died each time."""
    return int(global_worker.core_worker.get_current_task_attempt_number()) if ray.is_initialized() else 0


# Logs -------------------------------------------------------------------------------------------------


def skip_lines(pattern: str) -> None:
    """Let this process not show lines of other processes in which a pattern occurs, unless the user chose one.

    Ray has an environment variable for it, which it reads when it is imported.
    """
    for lines in (stdout_deduplicator, stderr_deduplicator):
        lines.skip_re = lines.skip_re or re.compile(pattern)


# Errors ----------------------------------------------------------------------------------------------


def own_error(error: BaseException | None) -> RayH5Error | None:
    """Return the error of this package that Ray wraps into `error`; None if there is none."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        if isinstance(error, RayH5Error) and not isinstance(error, RayTaskError):
            return error
        # The error that a trainer raises says what made the training fail.
        failures = getattr(error, "worker_failures", None) or {}
        failed = next(iter(failures.values()), getattr(error, "controller_failure", None))
        error = getattr(error, "cause", None) or failed or error.__cause__
    return None


# Shards of a trainer ----------------------------------------------------------------------------------


def world_rank() -> int | None:
    """Return the rank of this worker of a trainer; None in other processes."""
    import ray.train

    try:
        return int(ray.train.get_context().get_world_rank())
    except (RuntimeError, AttributeError, DeprecationWarning):  # the last one in a trial of Ray Tune
        return None


def is_split(shard: DataIterator | Dataset) -> bool:
    """Return whether workers share the dataset of a shard: an actor of Ray, the coordinator, then executes it."""
    return hasattr(shard, "_coord_actor")


def of_dataset(dataset: DataIterator | Dataset, function: Callable[[Dataset], T]) -> T:
    """Return `function` of a dataset, or of that of a shard; it is called in the process that executes the dataset."""
    if not is_split(dataset):
        return function(getattr(dataset, "_base_dataset", dataset))
    call = dataset._coord_actor.__ray_call__.remote(lambda coordinator: function(coordinator._base_dataset))
    return cast("T", ray.get(call))


# The cluster ------------------------------------------------------------------------------------------


def task_cpus(ds: Dataset) -> float:
    """Return the most CPUs that a task of a dataset reserves; 0 for data in memory."""
    options = [operator.ray_remote_args or {} for operator in operators(ds) if hasattr(operator, "ray_remote_args")]
    return float(max((1 if (cpus := option.get("num_cpus")) is None else cpus for option in options), default=0))


def may_grow() -> bool:
    """Return whether an autoscaler may add nodes: only nodes that an autoscaler started have a named type."""
    status = get_cluster_status(ray.get_runtime_context().gcs_address)
    nodes = [*status.active_nodes, *status.idle_nodes]
    return any(node.ray_node_type_name not in ("", f"node_{node.node_id}") for node in nodes)
