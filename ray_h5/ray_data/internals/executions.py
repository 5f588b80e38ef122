"""An execution of a dataset: which one runs, what it executes, and the resources that it starts with."""

from __future__ import annotations

import sys
import time
from contextlib import suppress
from types import FrameType
from typing import Any, NamedTuple

from ray.data import DataContext, Dataset
from ray.data._internal.execution.execution_callback import ExecutionCallback
from ray.data._internal.execution.operators.limit_operator import LimitOperator
from ray.data._internal.logical.operators import Aggregate, Count, StreamingSplit, Write
from ray.data.context import MAX_SAFE_BLOCK_SIZE_FACTOR

_LIMITS_WAIT_SECONDS = 0.1
"""How long an execution waits for the resources of the cluster; an answer takes a few milliseconds."""


class DatasetExecution(NamedTuple):
    """One execution of a dataset.

    Attributes
    ----------
    dataset : str
        The id of the dataset.
    run : int
        How many times the dataset was executed before.
    peeks : bool
        Whether only the first rows are wanted, as by ``take`` and ``schema``.
    operators : tuple
        The logical operators that are executed; empty where Ray does not show them.
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
        """Names of the operators that combine several datasets, or one dataset with itself."""
        return [each.name for each in self.operators if len(each.input_dependencies) > 1]

    @property
    def row_count_changers(self) -> list[str]:
        """Names of the operators that may change the number of rows, or of rows in a block."""
        from ray_h5.ray_data.internals.logical_plans import row_count_changers

        return row_count_changers(self.operators)

    @property
    def functions(self) -> list[str]:
        """Names of the operators that run a function of the user."""
        return [each.name for each in self.operators if getattr(each, "fn", None) is not None]

    @property
    def block_joiners(self) -> list[str]:
        """Names of the operators that get several short blocks joined into one."""
        return [each.name for each in self.operators if getattr(each, "min_rows_per_bundled_input", None) is not None]

    @property
    def split(self) -> tuple[int, bool] | None:
        """Among how many workers the rows are split, and whether evenly; None where they are not split."""
        found = [(each.num_splits, each.equal) for each in self.operators if isinstance(each, StreamingSplit)]
        return found[0] if found else None


def running_execution(context: DataContext) -> DatasetExecution:
    """Return the execution that called `Datasource.get_read_tasks` with this context.

    Ray does not pass it on, but its executor knows it: the executor is the object further up the stack that holds this
    very context. Each `Dataset` object has an id and counts its executions. ``take`` and ``count`` execute datasets of
    their own, so they do not count for the dataset that they were called on. Without an executor on the stack, the
    context's own count is the best there is.
    """
    frame: FrameType | None = sys._getframe(1)
    # Another executor may be on the stack too; ours is the one with this context.
    while frame is not None:
        executor = frame.f_locals.get("self")
        dataset_id = getattr(executor, "_dataset_id", None)
        if isinstance(dataset_id, str) and getattr(executor, "_data_context", None) is context:
            # Ray 2.60 names an execution "<dataset id>_<number of executions before>".
            name, _, run = dataset_id.rpartition("_")
            # The executor's local variable: the physical plan. ``take`` and ``schema`` end it with a limit.
            dag = frame.f_locals.get("dag")
            return DatasetExecution(name, int(run), isinstance(dag, LimitOperator), _logical_operators(dag))
        frame = frame.f_back
    return DatasetExecution("", context._execution_idx)


def _logical_operators(dag: Any) -> tuple[Any, ...]:
    """Return the logical operators that the physical operators of a DAG were made from."""
    found, todo, seen = {}, [dag], set()
    while todo:
        operator = todo.pop()
        # An operator that two others read from is met twice.
        if operator is None or id(operator) in seen:
            continue
        seen.add(id(operator))
        found.update({id(each): each for each in operator._logical_operators})
        todo += operator.input_dependencies
    return tuple(found.values())


class KnownLimits(ExecutionCallback):
    """Makes the resources of the cluster known to an execution from its start.

    Ray 2.60 requests them without waiting for the answer, treats a missing answer as zero, and requests them again a
    second later. Until then it runs one task at a time, however many CPUs there are. That is the whole of a short
    epoch, and the first second of each.
    """

    def before_execution_starts(self, executor: Any) -> None:
        """Wait for the answer, for at most `_LIMITS_WAIT_SECONDS`."""
        deadline = time.monotonic() + _LIMITS_WAIT_SECONDS
        with suppress(AttributeError):  # another version of Ray: it runs as it does without this callback
            while executor._cluster_autoscaler.get_total_resources().is_zero() and time.monotonic() < deadline:
                time.sleep(0.001)

    def on_execution_step(self, executor: Any) -> None:
        """Make Ray ask again at once if there was no answer, as before the first execution of a process."""
        with suppress(AttributeError):
            manager = executor._resource_manager
            if manager._global_limits.is_zero():
                manager._global_limits_last_update_time = 0


def begin_with_limits(ds: Dataset) -> None:
    """Let executions of a dataset, and of those derived from it, start with all resources of the cluster."""
    ds.context.custom_execution_callback_classes = [*ds.context.custom_execution_callback_classes, KnownLimits]


def may_cut(block_bytes: int, context: DataContext) -> bool:
    """Return whether Ray cuts a block of that many bytes into several."""
    target = context.target_max_block_size
    return target is not None and block_bytes >= MAX_SAFE_BLOCK_SIZE_FACTOR * target
