"""What a shuffle costs, and how well it mixes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ray_h5.plan.read_plan import ReadPlan

_MOST_ROWS = 1 << 18
"""The most selected rows that are looked at together."""


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
    sorted_rows, run_rows : int
        Rows that are sorted by length together, and rows of similar length that follow each other; 0 without lengths.
    """

    unit: str
    window_rows: int
    chunks_mixed: int
    reads_per_byte: float
    sorted_rows: int = 0
    run_rows: int = 0

    def __str__(self) -> str:
        by_length = f", by length in runs of {self.run_rows} of {self.sorted_rows} rows" if self.sorted_rows else ""
        return (
            f"shuffled by {self.unit}, {self.chunks_mixed} chunks mixed in a window of {self.window_rows} rows"
            f"{by_length}, each byte read {self.reads_per_byte:.1f} times"
        )


def shuffle_effect(plan: ReadPlan) -> ShuffleEffect | None:
    """Return the cost of the shuffle of a plan; None without a shuffle."""
    order, shuffle, rows = plan.order, plan.order.shuffle, plan.num_rows
    if shuffle is None:  # as where there are no rows
        return None
    sorted_rows = run_rows = 0
    if order.runs is not None:
        sorted_rows = min(order.runs.window_rows, plan.epoch_rows)
        run_rows = min(order.runs.run_rows, sorted_rows)
    chunk_rows = plan.chunk_group_rows  # of the widest column
    chunks = _chunks_with_rows(plan, chunk_rows)
    block, of_chunk, window = min(plan.block_rows, rows), rows / chunks, min(shuffle.window_rows or rows, rows)
    if shuffle.unit == "files":
        window, mixed, reads = 1, 1, 1.0
    elif shuffle.unit == "rows":
        # The rows of a block are drawn from all chunks.
        window, mixed, reads = rows, min(chunks, rows), _different(chunks, block) * of_chunk / block
    elif order.range_chunks is None:
        mixed = min(max(1, round(window / of_chunk)), chunks)
        # A window that is spread over several blocks is read by each of them.
        in_block = _different(mixed, block) if window > block else max(1, block / of_chunk)
        reads = in_block * of_chunk / block
    else:
        # The rows of a chunk group begin in some chunks: its last row ends in a further one.
        of_files, block = max(1.0, plan.files.num_rows / chunk_rows), min(plan.block_rows, window)
        groups = max(1.0, window / max(order.chunk_group_rows or 1, 1))
        mixed = max(1, round(min(groups * order.range_chunks, of_files)))
        touched = min(groups * (order.range_chunks + 1), of_files)  # chunks that a window touches
        # A smaller block than a window has rows of most of its chunks.
        in_block = _different(touched, block) if window > block else touched
        reads = in_block * chunk_rows / block
    return ShuffleEffect(shuffle.unit, window, mixed, max(1.0, reads), sorted_rows, run_rows)


def _different(chunks: float, rows: int) -> float:
    """Return the expected number of different chunks that rows have which are drawn from all of some chunks."""
    return chunks * (1 - (1 - 1 / chunks) ** rows)


def _chunks_with_rows(plan: ReadPlan, size: int) -> int:
    """Return how many chunks hold selected rows, about: chunks begin with files, which is left out here."""
    if plan.selection is None:
        return -(-plan.files.num_rows // size)
    count, last = 0, -1
    for first in range(0, len(plan.selection), _MOST_ROWS):
        chunks = plan.selection[first : first + _MOST_ROWS] // size  # they ascend
        new = np.count_nonzero(chunks[1:] != chunks[:-1]) + int(chunks[0] != last)
        count, last = count + int(new), int(chunks[-1])
    return count


def describe(plan: ReadPlan) -> str:
    """Return one line about a plan."""
    effect = shuffle_effect(plan)
    is_all = plan.order.draws is None and plan.epoch_rows == plan.num_rows
    weighted = "" if plan.order.draws is None else " with weights"
    drawn = "" if is_all else f", of which an epoch draws {plan.epoch_rows}{weighted},"
    rows = f"{plan.num_rows} of {plan.files.num_rows} rows{drawn}"
    return f"{rows} in blocks of {plan.block_rows}; {effect or 'in path order'}"
