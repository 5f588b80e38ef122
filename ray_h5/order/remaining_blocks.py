"""What an epoch has left to read, in blocks, from any position of it: how Ray reads it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from ray_h5.order.block_layout import BlockLayout
from ray_h5.order.execute_plan import BlockRows, read_rows
from ray_h5.order.position import Position
from ray_h5.order.read_plan import ReadPlan
from ray_h5.order.remaining_ranges import Left

ReadsRows: TypeAlias = Callable[[ReadPlan, np.ndarray, "np.ndarray | None"], BlockRows]
"""Reads rows of a plan, as `read_rows` does."""


@dataclass(frozen=True, slots=True)
class Remainder:
    """The positions of an epoch that a run has to read: all, or what earlier runs have left.

    It is small, and tasks need nothing else beside the plan.

    Attributes
    ----------
    epoch : int
        The epoch.
    world_size : int
        Ranks that take its blocks in turn.
    seed : int, optional
        The seed of the run that is resumed. It replaces a seed that the plan has drawn.
    left : Left, optional
        What earlier runs have left of it; None for all.
    """

    epoch: int = 0
    world_size: int = 1
    seed: int | None = None
    left: Left | None = None

    def left_of(self, plan: ReadPlan) -> Left:
        """Return these positions, with the tail of a plan."""
        return Left.of(self.left, plan.tail, plan.epoch_rows)

    def block_layout(self, plan: ReadPlan) -> BlockLayout:
        """Return how these positions are cut into blocks."""
        return BlockLayout(self.left_of(plan).num_positions, plan.block_rows, self.world_size)

    def positions(self, plan: ReadPlan, block: int, limit: int | None = None) -> np.ndarray:
        """Return the positions of a block; at most the first `limit`."""
        start, stop = self.block_layout(plan).bounds(block)
        ordinals = np.arange(start, stop if limit is None else min(stop, start + limit), dtype=np.int64)
        return self.left_of(plan).positions(ordinals)


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
    return Position(
        plan.order.with_drawn_seed(remainder.seed).seed,
        remainder.epoch,
        rows,
        remainder.world_size,
        plan.block_rows,
        plan.fingerprint,
        None if remainder.left is None else remainder.left_of(plan),
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
    return Remainder(position.epoch, world_size, order.seed, position.left_under(plan.tail, order.epoch_rows))
