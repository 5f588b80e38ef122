"""What a run reads of an epoch, in blocks: how Ray reads it. A `Position` says where the run begins.

It says which positions the run reads, how they are cut into blocks, and how many rows of its blocks each rank has done;
tasks need nothing else beside the plan. With 2 ranks, blocks of 4 positions and 5 rows done, the blocks that are left
are the rests of the present round, then those of later rounds::

    positions   0 1 2 3 | 4 5 6 7 | 8  9 10 11 | 12 13 14 15 | 16 17 18 19 | ...
    rank              0 |       1 |          0 |           1 |           0 |
    left                              9 10 11 |    13 14 15 | 16 17 18 19 | ...
"""

from __future__ import annotations

from dataclasses import replace
from operator import attrgetter

import numpy as np

from ray_h5.order.block_layout import BlockLayout, Left
from ray_h5.order.position import Position


def continued(start: Position, position: Position, batch_rows: int = 1) -> Position:
    """Return where ranks begin that continue at a position; `start` is where they would begin a whole epoch.

    It is the same run if both cut the epoch alike, and if it ended between two batches of `batch_rows` rows: each rank
    then has the rows that it would have had, and the same batches. Otherwise what is left is cut again.
    """
    cut = attrgetter("world_size", "block_rows", "tail")
    if cut(position) == cut(start) and position.rows % batch_rows == 0:
        return replace(start, rows=position.rows, left=position.left)
    return replace(start, left=position.left_under(start.tail, start.plan.epoch_rows))


def left_of(start: Position) -> Left:
    """Return the positions that a run reads."""
    return Left.of(start.left, start.tail, start.plan.epoch_rows)


def layout_of(start: Position) -> BlockLayout:
    """Return how the positions that a run reads are cut into blocks."""
    return BlockLayout(left_of(start).num_positions, start.block_rows, start.world_size)


def positions_of(start: Position, block: int, limit: int | None = None) -> np.ndarray:
    """Return the positions that are left of a block of a run; at most the first `limit`."""
    first, stop = layout_of(start).bounds(block, start.rows)
    return left_of(start).positions(np.arange(first, stop if limit is None else min(stop, first + limit)))
