"""Whether the rows that workers received show which rows of an epoch are done; found out from what is executed."""

from __future__ import annotations

from ray.data import DataContext

from ray_h5.order.read_plan import ReadPlan
from ray_h5.ray_data.internals.executions import DatasetExecution, may_cut

_ADVICE = "Pass dataset_config=ray_h5.data_config() to the trainer."


def why_not_resumable(
    name: str, plan: ReadPlan, world_size: int, execution: DatasetExecution, context: DataContext, is_resumable: bool
) -> str:
    """Return why an execution has no position; an empty string if it has one.

    Parameters
    ----------
    name : str
        The name of the dataset.
    plan : ReadPlan
        The rows that are read.
    world_size : int
        Ranks that the epoch was cut for.
    execution : DatasetExecution
        The operators that are executed.
    context : DataContext
        The options they are executed with.
    is_resumable : bool
        False where the user was warned that a run that resumes begins its epoch again.
    """
    subject = f"dataset {name!r}"
    if not context.execution_options.preserve_order:
        return f"{subject} is read without order, so that no position shows which rows are done. {_ADVICE}"
    if not is_resumable:
        return ""  # the beginning of the epoch is a position that is always right
    if not execution.operators:
        return f"{subject}: this version of Ray does not show what it executes; expected one that does, such as 2.60."
    if execution.row_count_changers:
        return (
            f"{subject}: {', '.join(execution.row_count_changers)} may change the number of rows, or of rows in a "
            "block, after the reading, so that no position shows which rows are done. If a function keeps them, pass "
            "map_batches(..., udf_modifying_row_count=False)."
        )
    return _why_split_wrongly(subject, world_size, execution) or _why_blocks_change(subject, plan, execution, context)


def _why_split_wrongly(subject: str, world_size: int, execution: DatasetExecution) -> str:
    """Return why the rows of the workers are not the shares that were planned."""
    workers, is_equal = execution.split or (1, True)
    if workers != world_size:
        return (
            f"{subject}: set_epoch said that {world_size} workers share it, found {workers}: no position shows "
            f"which rows are done. Call set_epoch(..., world_size={workers}) before the epoch begins."
        )
    if not is_equal:
        return (
            f"{subject} is split unevenly among {workers} workers, so that no position shows which rows are done. "
            "Split it evenly: streaming_split(..., equal=True)."
        )
    return ""


def _why_blocks_change(subject: str, plan: ReadPlan, execution: DatasetExecution, context: DataContext) -> str:
    """Return why the workers receive other blocks than those that were planned. One worker gets all rows in order."""
    if execution.split is None or execution.split[0] == 1:
        return ""
    # Without a target size Ray cuts nothing, and joins blocks only for functions that ask for a batch size.
    regrouping = execution.block_joiners if context.target_max_block_size is None else execution.functions
    if regrouping:
        return (
            f"{subject}: Ray may join or cut blocks for {', '.join(regrouping)}, so that no position shows which rows "
            f"are done. {_ADVICE}"
        )
    block_bytes = min(plan.block_rows, plan.num_positions) * plan.row_bytes
    if may_cut(block_bytes, context):
        return (
            f"{subject}: Ray cuts blocks of {block_bytes} bytes, so that no position shows which rows are done. "
            f"{_ADVICE} Or lower block_rows."
        )
    return ""
