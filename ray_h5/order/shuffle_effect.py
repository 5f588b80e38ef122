"""What a shuffle costs, and how well it mixes."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from ray_h5.order.read_plan import ReadPlan

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


def shuffle_effect(plan: ReadPlan, chunk_group_rows: int) -> ShuffleEffect | None:
    """Return the cost of the shuffle of a plan; None without a shuffle.

    Parameters
    ----------
    plan : ReadPlan
        The plan.
    chunk_group_rows : int
        Rows of a chunk of the widest column.
    """
    effect, runs = _effect(plan, chunk_group_rows), plan.order.runs
    if effect is None or runs is None:
        return effect
    window = min(runs.window_rows, plan.epoch_rows)
    return replace(effect, sorted_rows=window, run_rows=min(runs.run_rows, window))


def _effect(plan: ReadPlan, chunk_group_rows: int) -> ShuffleEffect | None:
    shuffle, rows = plan.order.shuffle, plan.num_rows
    if shuffle is None:  # as where there are no rows
        return None
    chunks = _chunks_with_rows(plan, chunk_group_rows)
    block, of_chunk = min(plan.block_rows, rows), rows / chunks
    if shuffle.unit == "files":
        return ShuffleEffect("files", 1, 1, 1.0)
    if shuffle.unit == "rows":
        # The rows of a block are drawn from all chunks. This is the expected number of different chunks.
        touched = chunks * (1 - (1 - 1 / chunks) ** block)
        return ShuffleEffect("rows", rows, min(chunks, rows), max(1.0, touched * (rows / chunks) / block))
    window = min(shuffle.window_rows or rows, rows)
    if plan.order.range_chunks is not None:
        return _of_ranges(plan, window, chunk_group_rows, plan.order.range_chunks)
    mixed = min(max(1, round(window / of_chunk)), chunks)
    # A window that is spread over several blocks is read by each of them.
    in_block = mixed * (1 - (1 - 1 / mixed) ** block) if window > block else max(1, block / of_chunk)
    return ShuffleEffect("chunks", window, mixed, max(1.0, in_block * of_chunk / block))


def _chunks_with_rows(plan: ReadPlan, size: int) -> int:
    """Return how many chunks hold selected rows, about: chunks begin with files, which is left out here."""
    if plan.selection is None:
        return -(-plan.files.num_rows // size)
    count, last = 0, -1
    for first in range(0, len(plan.selection), _MOST_ROWS):
        windows = np.unique(plan.selection[first : first + _MOST_ROWS] // size)
        count, last = count + len(windows) - int(windows[0] == last), int(windows[-1])
    return count


def _of_ranges(plan: ReadPlan, window: int, chunk_rows: int, range_chunks: int) -> ShuffleEffect:
    """Return the cost where the rows of a group begin in some chunks: its last row ends in a further one."""
    chunks = max(1.0, plan.files.num_rows / chunk_rows)
    groups = max(1.0, window / max(plan.order.chunk_group_rows or 1, 1))
    mixed = max(1, round(min(groups * range_chunks, chunks)))
    touched = min(groups * (range_chunks + 1), chunks)  # chunks that a window touches
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
