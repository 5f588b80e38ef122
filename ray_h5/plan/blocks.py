"""Blocks of an epoch, read by one task each; and where a run of a plan begins."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ray_h5.order.position import Position
from ray_h5.order.remaining_blocks import positions_of
from ray_h5.plan.block_rows import BlockRows
from ray_h5.plan.read_plan import ReadPlan
from ray_h5.plan.row_source import RowSource, read_rows


@dataclass(frozen=True, slots=True, eq=False)
class Block:
    """The result of one read task.

    Attributes
    ----------
    rows : BlockRows
        Row ids and the columns of the files.
    positions : numpy.ndarray
        int64: the positions of the rows in the epoch.
    epoch : int
        The epoch.
    seed : int
        The seed of the order.
    """

    rows: BlockRows
    positions: np.ndarray
    epoch: int
    seed: int = 0


def start_of(plan: ReadPlan, epoch: int = 0, world_size: int = 1, seed: int | None = None) -> Position:
    """Return where a run begins that reads a whole epoch. `seed` replaces one that the plan has drawn."""
    order = plan.order.with_drawn_seed(seed)
    return Position(order.seed, epoch, 0, world_size, plan.block_rows, plan.fingerprint, None, plan.tail)


def read_block(
    plan: ReadPlan, start: Position, block: int, limit: int | None = None, source: RowSource | None = None
) -> Block:
    """Read one block of a run: with the same result at each call. `source` may know some rows already."""
    plan = plan.with_drawn_seed(start.seed)
    positions, epoch = positions_of(start, block, limit), start.epoch
    draws = plan.order.draw_numbers(positions, epoch) if plan.is_drawn else None
    row_ids = plan.at(positions, epoch)
    rows = read_rows(plan, row_ids, draws) if source is None else source.block_rows(row_ids, draws)
    return Block(rows, positions, epoch, plan.order.seed)
