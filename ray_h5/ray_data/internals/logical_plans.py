"""The operators of a dataset's logical plan: what they read, reserve and do to rows."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from ray.data import Dataset, Datasource
from ray.data._internal.logical.interfaces import LogicalPlan
from ray.data._internal.logical.operators import AbstractMap, MapBatches, Read, StreamingSplit
from ray.data._internal.logical.optimizers import LogicalOptimizer
from ray.data.dataset import _ExecutionCache
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy


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


def operators(ds: Dataset) -> list[Any]:
    """Return the logical operators of a dataset that remain once filters and columns are pushed into the reading."""
    found, todo = [], [LogicalOptimizer().optimize(ds._logical_plan).dag]
    while todo:
        operator = todo.pop()
        found.append(operator)
        todo += operator.input_dependencies
    return found


def row_count_changers(operators: Iterable[Any]) -> list[str]:
    """Return the names of the operators after the reading that may change the number of rows, or of rows in a block.

    A function of the user may change it, unless ``map_batches`` was given ``udf_modifying_row_count=False`` or the
    function has the attribute ``keeps_rows``. Operators that make new blocks change it.
    """
    return [
        operator.name
        for operator in operators
        if operator.input_dependencies  # a read has none
        and not isinstance(operator, StreamingSplit)  # it hands whole blocks on
        and not getattr(getattr(operator, "fn", None), "keeps_rows", False)
        and (
            len(operator.input_dependencies) > 1  # such as union, zip and join
            or type(operator).__name__ == "StreamingRepartition"
            or getattr(operator, "can_modify_num_rows", True)
        )
    ]


def datasources(ds: Dataset) -> list[Datasource]:
    """Return the datasources that a dataset reads."""
    return [operator.datasource for operator in operators(ds) if hasattr(operator, "datasource")]


def with_datasources(ds: Dataset, change: Callable[[Datasource], Datasource]) -> Dataset:
    """Return the same dataset over changed datasources; `ds` itself if no datasource changes."""

    def changed(operator: Any) -> Any:
        before = getattr(operator, "datasource", None)
        after = before if before is None else change(before)
        if after is before:
            return operator  # the same object, so that an unchanged plan is recognized below
        return dataclasses.replace(operator, datasource=after, datasource_or_legacy_reader=after)

    dag = ds._logical_plan.dag
    after = dag._apply_transform(changed)
    return ds if after is dag else Dataset._from_parent(ds, LogicalPlan(after, ds.context))


def with_whole_blocks(ds: Dataset) -> Dataset:
    """Return the same dataset, but each of its functions returns one block for each block that it receives.

    By default Ray joins blocks that have fewer rows than the ``batch_size`` of ``map_batches``, and cuts blocks that
    become larger than its ``target_max_block_size``, as bytes that become floats may. A worker of a trainer then
    receives other rows than planned.
    """

    def changed(operator: Any) -> Any:
        if not isinstance(operator, MapBatches) or operator.min_rows_per_bundled_input is None:
            return operator
        return dataclasses.replace(operator, min_rows_per_bundled_input=None)

    # Without a target size Ray does not cut blocks, and without a minimum of rows it does not join them.
    context = ds.context.copy()
    context.target_max_block_size = None
    whole = Dataset._from_parent(ds, LogicalPlan(ds._logical_plan.dag._apply_transform(changed), context))
    whole._context = context  # the context of the parent stays as it is
    return whole


class TaskDemand(NamedTuple):
    """The resources that one task, or one actor, of an operator reserves.

    Attributes
    ----------
    name : str
        The operator.
    resources : dict
        Amounts by the name of the resource, such as CPU.
    actors : int
        Actors that are started at once; 0 where tasks run.
    """

    name: str
    resources: dict[str, float]
    actors: int = 0


def task_demands(ds: Dataset) -> list[TaskDemand]:
    """Return what the tasks of a dataset reserve, where it is known.

    Operators that run in a placement group of their own, or choose their options while they run, are left out. Ray runs
    several operators in one task only if they reserve the same, so the demand of each operator is that of its task.
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
        # Ray's default for a task is one CPU, and nothing else.
        cpus = options.get("num_cpus")
        wanted = {"CPU": 1 if cpus is None else cpus, "GPU": options.get("num_gpus"), "memory": options.get("memory")}
        wanted |= options.get("resources") or {}
        resources = {key: float(amount) for key, amount in wanted.items() if amount}
        if resources:
            found.append(TaskDemand(operator.name, resources, int(getattr(operator.compute, "min_size", 0))))
    return found
