"""Whether the rows that workers had tell which rows of an epoch are done; known from what is executed."""

from __future__ import annotations

from ray.data import DataContext

from ray_h5.planning.plan import ReadPlan
from ray_h5.ray_data.internals import Execution, may_cut


def why_no_position(
    name: str, plan: ReadPlan, world_size: int, execution: Execution, context: DataContext, rows_are_kept: bool
) -> str:
    """Return why an execution has no position; an empty string if it has.

    Parameters
    ----------
    name : str
        The dataset.
    plan : ReadPlan
        What is read.
    world_size : int
        Ranks that the epoch was cut for.
    execution : Execution
        What is executed.
    context : DataContext
        How it is executed.
    rows_are_kept : bool
        False where the user was told that a position is the beginning of the epoch.
    """
    subject = f"dataset {name!r}"
    advice = "Pass dataset_config=ray_h5.data_config() to the trainer."
    if not context.execution_options.preserve_order:
        return f"{subject} is read without order, so that no position tells which rows are done. {advice}"
    if not rows_are_kept:
        return ""  # a position is then the beginning of the epoch
    if not execution.operators:
        return f"{subject}: this version of Ray does not show what it executes; expected one that does, such as 2.60."
    if execution.changers:
        return (
            f"{subject}: {', '.join(execution.changers)} may change the number of rows, or of those in a block, after "
            "the reading, so that no position tells which rows are done. Say that a function does not: "
            "map_batches(..., udf_modifying_row_count=False)."
        )
    workers, is_equal = execution.split or (1, True)
    if workers != world_size:
        return (
            f"{subject}: set_epoch said that {world_size} workers share it, found {workers}: no position tells "
            f"which rows are done. Call set_epoch(..., world_size={workers}) before the epoch begins."
        )
    if not is_equal:
        return (
            f"{subject} is split unevenly among {workers} workers, so that no position tells which rows are done. "
            "Split it evenly: streaming_split(..., equal=True)."
        )
    block_bytes = min(plan.block_rows, plan.num_positions) * plan.row_bytes
    regrouping = execution.joiners if context.target_max_block_size is None else execution.functions
    if workers > 1 and regrouping:
        return (
            f"{subject}: Ray may join or cut blocks for {', '.join(regrouping)}, so that no position tells which rows "
            f"are done. {advice}"
        )
    if workers > 1 and may_cut(block_bytes, context):
        return (
            f"{subject}: Ray cuts blocks of {block_bytes} bytes, so that no position tells which rows are done. "
            f"{advice} Or lower block_rows."
        )
    return ""
