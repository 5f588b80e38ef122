"""The private names of Ray that this package leans on, in one place; written for ray 2.60.

But for one: a `Datasource` has to set its own ``_projection_map``, as `H5Datasource` does.
"""

from __future__ import annotations

import dataclasses
import sys
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from types import FrameType
from typing import Any, NamedTuple

import ray
from ray._private import state
from ray._private.worker import global_worker
from ray.autoscaler.v2.sdk import get_cluster_status
from ray.data import DataContext, DataIterator, Dataset, Datasource
from ray.data._internal.execution.execution_callback import ExecutionCallback
from ray.data._internal.execution.operators.limit_operator import LimitOperator
from ray.data._internal.iterator.stream_split_iterator import StreamSplitDataIterator
from ray.data._internal.logical.interfaces import LogicalPlan
from ray.data._internal.logical.operators import (
    AbstractMap,
    Aggregate,
    Count,
    MapBatches,
    Read,
    StreamingSplit,
    Write,
)
from ray.data._internal.logical.optimizers import LogicalOptimizer
from ray.data.context import MAX_SAFE_BLOCK_SIZE_FACTOR
from ray.experimental import internal_kv
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

_LIMITS_WAIT_SECONDS = 0.1
"""How long an execution waits to be told what the cluster has; an answer takes a few milliseconds."""


class Execution(NamedTuple):
    """An execution of a dataset.

    Attributes
    ----------
    dataset : str
        The id of the dataset.
    run : int
        How many times it was executed before.
    peeks : bool
        Whether nothing but its first rows are wanted, as by ``take`` and ``schema``.
    operators : tuple
        The logical operators that are executed; none where Ray does not show them.
    """

    dataset: str
    run: int
    peeks: bool = False
    operators: tuple[Any, ...] = ()

    @property
    def iterates(self) -> bool:
        """Whether its rows are handed out, and not counted, aggregated or written."""
        return not any(isinstance(operator, (Count, Aggregate, Write)) for operator in self.operators)

    @property
    def combiners(self) -> list[str]:
        """Names of the operators that put several datasets together, or one with itself."""
        return [each.name for each in self.operators if len(each.input_dependencies) > 1]

    @property
    def changers(self) -> list[str]:
        """Names of the operators that may change the number of rows, or of those in a block."""
        return _row_count_changers(self.operators)

    @property
    def functions(self) -> list[str]:
        """Names of the operators that run a function of the user."""
        return [each.name for each in self.operators if getattr(each, "fn", None) is not None]

    @property
    def joiners(self) -> list[str]:
        """Names of the operators that Ray gives several blocks at once, where they are short."""
        return [each.name for each in self.operators if getattr(each, "min_rows_per_bundled_input", None) is not None]

    @property
    def split(self) -> tuple[int, bool] | None:
        """Among how many workers the rows are split, and whether evenly; None where they are not."""
        found = [(each.num_splits, each.equal) for each in self.operators if isinstance(each, StreamingSplit)]
        return found[0] if found else None


def running_execution(context: DataContext) -> Execution:
    """Return which dataset is being executed, and how.

    To be called from `Datasource.get_read_tasks`. Ray tells it to nobody, but its executor knows:
    it is the one further up the stack whose context was handed to us. Each `Dataset` object has an
    id and counts its executions, so that ``take`` and ``count``, which execute datasets of their
    own, do not count for the one that they were called on. Without an executor, the context's own
    count has to do.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        executor = frame.f_locals.get("self")
        dataset_id = getattr(executor, "_dataset_id", None)
        if isinstance(dataset_id, str) and getattr(executor, "_data_context", None) is context:
            name, _, run = dataset_id.rpartition("_")
            dag = frame.f_locals.get("dag")
            return Execution(name, int(run), isinstance(dag, LimitOperator), _logical_operators(dag))
        frame = frame.f_back
    return Execution("", context._execution_idx)


def _logical_operators(dag: Any) -> tuple[Any, ...]:
    """Return the logical operators that physical ones were made of."""
    found, todo, seen = {}, [dag], set()
    while todo:
        operator = todo.pop()
        if operator is None or id(operator) in seen:
            continue
        seen.add(id(operator))
        found.update({id(each): each for each in operator._logical_operators})
        todo += operator.input_dependencies
    return tuple(found.values())


class KnownLimits(ExecutionCallback):
    """Lets an execution know from its start what the cluster has.

    Ray 2.60 asks for it without waiting for the answer, takes none for nothing at all, and asks again a
    second later. Until then it runs one task at a time, however many CPUs there are: the whole of a short
    epoch, and the first second of each.
    """

    def before_execution_starts(self, executor: Any) -> None:
        """Wait for the answer, or for as long as it should take."""
        deadline = time.monotonic() + _LIMITS_WAIT_SECONDS
        with suppress(AttributeError):  # another version of Ray: as it does without this
            while executor._cluster_autoscaler.get_total_resources().is_zero() and time.monotonic() < deadline:
                time.sleep(0.001)

    def on_execution_step(self, executor: Any) -> None:
        """Have it asked again if there was none, as before the first execution of all."""
        with suppress(AttributeError):
            manager = executor._resource_manager
            if manager._global_limits.is_zero():
                manager._global_limits_last_update_time = 0


def begin_with_limits(ds: Dataset) -> None:
    """Have the executions of a dataset, and of those derived from it, begin with all that the cluster has."""
    ds.context.custom_execution_callback_classes = [*ds.context.custom_execution_callback_classes, KnownLimits]


def task_attempts() -> int:
    """Return how often the task that calls this was begun before: its worker, or its node, died each time."""
    if not ray.is_initialized():
        return 0
    return int(global_worker.core_worker.get_current_task_attempt_number())


def is_sent_by_ray() -> bool:
    """Return whether what is pickled now goes to a process of this cluster, in which references to objects are valid.

    They are not in what is stored for later, as by `Dataset.serialize_lineage`.
    """
    return ray.is_initialized() and global_worker.get_serialization_context().is_in_band_serialization()


def operators(ds: Dataset) -> list[Any]:
    """Return the logical operators that are left of a dataset when filters and columns have been pushed down."""
    found, todo = [], [LogicalOptimizer().optimize(ds._logical_plan).dag]
    while todo:
        operator = todo.pop()
        found.append(operator)
        todo += operator.input_dependencies
    return found


def row_count_changers(ds: Dataset) -> list[str]:
    """Return the names of the operators behind the reading that may change the number of rows, or of a block.

    A function of the user may, unless ``map_batches`` was told ``udf_modifying_row_count=False`` or
    the function has the attribute ``keeps_rows``; what makes other blocks does.
    """
    return _row_count_changers(operators(ds))


def _row_count_changers(operators: Iterable[Any]) -> list[str]:
    return [
        operator.name
        for operator in operators
        if operator.input_dependencies
        and not isinstance(operator, StreamingSplit)
        and not getattr(getattr(operator, "fn", None), "keeps_rows", False)
        and (
            len(operator.input_dependencies) > 1
            or type(operator).__name__ == "StreamingRepartition"
            or getattr(operator, "can_modify_num_rows", True)
        )
    ]


def datasources(ds: Dataset) -> list[Datasource]:
    """Return what a dataset is read from."""
    return [operator.datasource for operator in operators(ds) if hasattr(operator, "datasource")]


def with_datasources(ds: Dataset, change: Callable[[Datasource], Datasource]) -> Dataset:
    """Return a dataset that does the same to what other datasources read; `ds` itself if there is none to change."""

    def changed(operator: Any) -> Any:
        before = getattr(operator, "datasource", None)
        after = before if before is None else change(before)
        if after is before:
            return operator
        return dataclasses.replace(operator, datasource=after, datasource_or_legacy_reader=after)

    dag = ds._logical_plan.dag
    after = dag._apply_transform(changed)
    return ds if after is dag else Dataset._from_parent(ds, LogicalPlan(after, ds.context))


def with_whole_blocks(ds: Dataset) -> Dataset:
    """Return a dataset that does the same, each of its functions giving one block for each that it gets.

    Left to itself Ray joins blocks of fewer rows than the ``batch_size`` of ``map_batches``, and cuts those that
    have become larger than its ``target_max_block_size``, as bytes that become floats may: which rows a worker of
    a trainer gets then is not what was planned.
    """

    def changed(operator: Any) -> Any:
        if not isinstance(operator, MapBatches) or operator.min_rows_per_bundled_input is None:
            return operator
        return dataclasses.replace(operator, min_rows_per_bundled_input=None)

    context = ds.context.copy()
    context.target_max_block_size = None
    whole = Dataset._from_parent(ds, LogicalPlan(ds._logical_plan.dag._apply_transform(changed), context))
    whole._context = context  # that of the parent stays as it is
    return whole


class Demand(NamedTuple):
    """What one task, or actor, of an operator reserves.

    Attributes
    ----------
    name : str
        The operator.
    resources : dict
        By the name of the resource, such as CPU.
    actors : int
        Actors that are started at once; 0 where tasks run.
    """

    name: str
    resources: dict[str, float]
    actors: int = 0


def task_demands(ds: Dataset) -> list[Demand]:
    """Return what the tasks of a dataset reserve, where that is known; not where they have a place of their own.

    Ray runs operators in one task only if they reserve the same, so that each of them is that of a task.
    """
    strategies = {type(ds.context.scheduling_strategy), type(ds.context.scheduling_strategy_large_args)}
    if PlacementGroupSchedulingStrategy in strategies:
        return []
    found = []
    for operator in operators(ds):
        if not isinstance(operator, (Read, AbstractMap)) or operator.ray_remote_args_fn is not None:
            continue
        options = operator.ray_remote_args or {}
        if isinstance(options.get("scheduling_strategy"), PlacementGroupSchedulingStrategy):
            continue
        cpus = options.get("num_cpus")
        wanted = {"CPU": 1 if cpus is None else cpus, "GPU": options.get("num_gpus"), "memory": options.get("memory")}
        wanted |= options.get("resources") or {}
        resources = {key: float(amount) for key, amount in wanted.items() if amount}
        if resources:
            found.append(Demand(operator.name, resources, int(getattr(operator.compute, "min_size", 0))))
    return found


def may_grow() -> bool:
    """Return whether an autoscaler may add nodes: nodes that it started have a type with a name."""
    status = get_cluster_status(ray.get_runtime_context().gcs_address)
    nodes = [*status.active_nodes, *status.idle_nodes]
    return any(node.ray_node_type_name not in ("", f"node_{node.node_id}") for node in nodes)


def may_cut(block_bytes: int, context: DataContext) -> bool:
    """Return whether Ray cuts a block of that many bytes into several."""
    target = context.target_max_block_size
    return target is not None and block_bytes >= MAX_SAFE_BLOCK_SIZE_FACTOR * target


def workers_that_share(shard: DataIterator) -> int | None:
    """Return among how many workers a dataset is split; None where each reads the whole of it by itself."""
    return int(shard.world_size()) if isinstance(shard, StreamSplitDataIterator) else None


def trainer_shard(name: str) -> DataIterator | None:
    """Return what this worker has of a dataset of its trainer; None elsewhere, and if the trainer has none such."""
    if "ray.train" not in sys.modules:
        return None
    try:
        names = trainer_datasets()
    except RuntimeError:  # no worker of a trainer
        return None
    return ray.train.get_dataset_shard(name) if name in names else None


def trainer_datasets() -> list[str]:
    """Return the keys of the datasets of the trainer whose loop this is; none where Ray does not show them."""
    from ray.train.v2._internal.execution.context import get_train_context

    return sorted(getattr(get_train_context().dataset_shard_provider, "_dataset_names", ()))


# Processes, and what they leave for each other -------------------------------------------------------

_STORE = b"ray_h5"
"""Our part of the key-value store of the GCS."""


def process_id() -> str:
    """Return the id of this process in the cluster; that of its actor, if it has one."""
    context = ray.get_runtime_context()
    return context.get_actor_id() or context.get_worker_id()


def executing_process(shard: DataIterator) -> str:
    """Return the id of the process in which the dataset behind a shard is executed."""
    if isinstance(shard, StreamSplitDataIterator):
        return str(shard._coord_actor._actor_id.hex())
    return process_id()


def cluster_id() -> str:
    """Return what tells this cluster from others: they count their jobs alike."""
    ray.get_runtime_context()  # starts Ray, if it is not running
    return str(global_worker.gcs_client.cluster_id.hex())


def trial_id() -> str | None:
    """Return the id of the trial of Ray Tune that runs in this process, if there is one."""
    session = sys.modules.get("ray.train._internal.session")
    found = session.get_session() if session is not None else None
    return getattr(found, "trial_id", None)


def stored(key: str) -> bytes | None:
    """Return a value of the cluster's key-value store."""
    return internal_kv._internal_kv_get(key, namespace=_STORE)


def store(key: str, value: bytes, overwrite: bool = True) -> bool:
    """Put a value into the cluster's key-value store, and return whether the key was new; atomic."""
    return not internal_kv._internal_kv_put(key, value, overwrite, namespace=_STORE)


def forget(key: str, is_prefix: bool = False) -> None:
    """Delete a key of the cluster's key-value store, or all that begin so."""
    internal_kv._internal_kv_del(key, del_by_prefix=is_prefix, namespace=_STORE)


def stored_keys(prefix: str) -> list[str]:
    """Return the keys of the cluster's key-value store that begin so."""
    return [key.decode() for key in internal_kv._internal_kv_list(prefix, namespace=_STORE)]


def has_ended(job: str) -> bool:
    """Return whether nothing of a job runs any more: neither its driver nor a detached actor."""
    if any(each["JobID"] == job and not each["IsDead"] for each in state.jobs()):
        return False
    return all(each["State"] == "DEAD" for each in state.actors(job_id=ray.JobID.from_hex(job)).values())
