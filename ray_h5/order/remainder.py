"""What an epoch has left to read, in blocks, from any position of it: how Ray reads it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from ray_h5.order.blocks import BlockLayout
from ray_h5.order.plan_reads import BlockRows, read_rows
from ray_h5.order.progress import RunProgress, epoch_positions, run_extents
from ray_h5.order.read_plan import ReadPlan

if TYPE_CHECKING:
    from ray_h5.order.position import Position

ReadsRows: TypeAlias = Callable[[ReadPlan, np.ndarray, "np.ndarray | None"], BlockRows]
"""Reads rows of a plan, as `read_rows` does."""


@dataclass(frozen=True, slots=True)
class Remainder:
    """The positions of an epoch that a run has to read: all, or what earlier runs have not done.

    It is small, and tasks need nothing else beside the plan.

    Attributes
    ----------
    epoch : int
        The epoch.
    done : tuple of RunProgress
        What earlier runs have done of it.
    world_size : int
        Ranks that take its blocks in turn.
    seed : int, optional
        The seed of the run that is resumed. It replaces a seed that the plan has drawn.
    """

    epoch: int = 0
    done: tuple[RunProgress, ...] = ()
    world_size: int = 1
    seed: int | None = None

    def block_layout(self, plan: ReadPlan) -> BlockLayout:
        """Return how these positions are cut into blocks."""
        extent = run_extents(plan.epoch_rows, self.done, plan.tail)[-1]
        return BlockLayout(extent.num_positions, plan.block_rows, self.world_size)

    def positions(self, plan: ReadPlan, block: int, limit: int | None = None) -> np.ndarray:
        """Return the positions of a block; at most the first `limit`."""
        start, stop = self.block_layout(plan).bounds(block)
        ordinals = np.arange(start, stop if limit is None else min(stop, start + limit), dtype=np.int64)
        return epoch_positions(plan.epoch_rows, self.done, plan.tail, ordinals)


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


def read_block(
    plan: ReadPlan, remainder: Remainder, block: int, limit: int | None = None, read: ReadsRows = read_rows
) -> Block:
    """Read one block of an epoch: with the same result at each call. `read` may know some rows already."""
    plan = plan.with_drawn_seed(remainder.seed)
    positions = remainder.positions(plan, block, limit)
    epoch = remainder.epoch
    rows = read(plan, plan.at(positions, epoch), plan.order.draw_numbers(positions, epoch) if plan.is_drawn else None)
    return Block(rows, positions, epoch, plan.seed)


def position_of(plan: ReadPlan, remainder: Remainder, rows: int = 0) -> Position:
    """Return the position after `rows` rows of each rank; `resume` continues from there."""
    from ray_h5.order.position import Position

    return Position(
        plan.order.with_drawn_seed(remainder.seed).seed,
        remainder.epoch,
        rows,
        remainder.world_size,
        plan.block_rows,
        plan.fingerprint,
        remainder.done,
        plan.tail,
    )


def resume(plan: ReadPlan, position: Position, world_size: int) -> Remainder:
    """Return the rest of the epoch of a position. The seed of the position replaces one that the plan has drawn.

    Raises
    ------
    PositionError
        If the position is of other files, another selection or another shuffle; it says what differs.
    """
    order = position.checked_order(plan.fingerprint, plan.order)
    return Remainder(position.epoch, position.done, world_size, order.seed)
