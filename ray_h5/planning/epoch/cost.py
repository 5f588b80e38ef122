"""What a shuffle costs, and how well it mixes."""

from __future__ import annotations

from dataclasses import dataclass

from ray_h5.planning.epoch.plan import ReadPlan


@dataclass(frozen=True, slots=True)
class ShuffleEffect:
    """The cost of a shuffle, and how well it mixes.

    Attributes
    ----------
    unit : {"rows", "chunks", "files"}
        What is drawn.
    window_rows : int
        Rows that are mixed with each other.
    chunks_mixed : int
        Chunks whose rows are mixed with each other.
    reads_per_byte : float
        How often each byte is fetched and decoded in an epoch, approximately.
    """

    unit: str
    window_rows: int
    chunks_mixed: int
    reads_per_byte: float

    def __str__(self) -> str:
        return (
            f"shuffled by {self.unit}, {self.chunks_mixed} chunks mixed in a window of {self.window_rows} rows, each "
            f"byte read {self.reads_per_byte:.1f} times"
        )


def shuffle_effect(plan: ReadPlan, chunk_group_rows: int) -> ShuffleEffect | None:
    """Return the cost of the shuffle of a plan; None without a shuffle.

    Parameters
    ----------
    plan : ReadPlan
        The plan.
    chunk_group_rows : int
        Rows of a chunk of the widest column.
    """
    shuffle, rows = plan.order.shuffle, max(plan.num_rows, 1)
    if shuffle is None:
        return None
    chunks = max(1, -(-plan.files.num_rows // chunk_group_rows))
    block = min(plan.block_rows, rows)
    if shuffle.unit == "files":
        return ShuffleEffect("files", 1, 1, 1.0)
    if shuffle.unit == "rows":
        # The rows of a block are drawn from all chunks. This is the expected number of different chunks.
        touched = chunks * (1 - (1 - 1 / chunks) ** block)
        return ShuffleEffect("rows", rows, chunks, max(1.0, touched * (rows / chunks) / block))
    window = min(shuffle.window_rows or rows, rows)
    if plan.order.range_chunks is not None:
        return _of_ranges(plan, window, chunk_group_rows, plan.order.range_chunks)
    mixed = max(1, round(window / min(chunk_group_rows, rows)))
    # A window that is spread over several blocks is read by each of them.
    in_block = mixed * (1 - (1 - 1 / mixed) ** block) if window > block else max(1, block / chunk_group_rows)
    return ShuffleEffect("chunks", window, mixed, max(1.0, in_block * chunk_group_rows / block))


def _of_ranges(plan: ReadPlan, window: int, chunk_rows: int, range_chunks: int) -> ShuffleEffect:
    """Return the cost where the rows of a group begin in some chunks: its last row ends in a further one."""
    groups = max(1.0, window / max(plan.order.chunk_group_rows or 1, 1))
    mixed = max(1, round(groups * range_chunks))
    touched = groups * (range_chunks + 1)  # chunks that a window touches
    block = min(plan.block_rows, window)
    # A smaller block than a window has rows of most of its chunks.
    in_block = touched * (1 - (1 - 1 / touched) ** block) if window > block else touched
    return ShuffleEffect("chunks", window, mixed, max(1.0, in_block * chunk_rows / block))


def describe(plan: ReadPlan, chunk_group_rows: int) -> str:
    """Return one line about a plan."""
    effect = shuffle_effect(plan, chunk_group_rows)
    is_all = plan.order.draws is None and plan.epoch_rows == plan.num_rows
    weighted = "" if plan.order.draws is None else " with weights"
    drawn = "" if is_all else f", of which an epoch draws {plan.epoch_rows}{weighted},"
    rows = f"{plan.num_rows} of {plan.files.num_rows} rows{drawn}"
    return f"{rows} in blocks of {plan.block_rows}; {effect or 'in path order'}"
