"""How an epoch is cut into blocks for ranks that take them in turn, and what of it they have done."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ray_h5.options import check_count
from ray_h5.planning.plan import Tail


@dataclass(frozen=True, slots=True)
class Cut:
    """A number of rows, cut into blocks for ranks that take blocks in turn.

    All blocks hold `block_rows` rows but those of the last round, which share what is left evenly;
    and one more, of less rows than there are ranks, that cannot be shared.

    Attributes
    ----------
    num_rows : int
        Rows to cut.
    block_rows : int
        Rows of a full block.
    world_size : int
        Ranks.
    """

    num_rows: int
    block_rows: int
    world_size: int = 1

    @property
    def full_blocks(self) -> int:
        """Blocks in full rounds."""
        return self.num_rows // (self.block_rows * self.world_size) * self.world_size

    @property
    def last_rows(self) -> int:
        """Rows of each block of the last round, if it is not a full one."""
        return (self.num_rows - self.full_blocks * self.block_rows) // self.world_size

    @property
    def num_blocks(self) -> int:
        return self.full_blocks + (self.world_size if self.last_rows else 0) + (1 if self.unshared_rows else 0)

    @property
    def unshared_rows(self) -> int:
        """Rows that are left when each rank has had as many as the others."""
        return self.num_rows - self.full_blocks * self.block_rows - self.last_rows * self.world_size

    def bounds(self, block: int) -> tuple[int, int]:
        """Return the first row of a block, and the first beyond it."""
        if block < self.full_blocks:
            return block * self.block_rows, (block + 1) * self.block_rows
        start = self.full_blocks * self.block_rows + (block - self.full_blocks) * self.last_rows
        turn = block - self.full_blocks
        return start, start + (self.last_rows if self.last_rows and turn < self.world_size else self.unshared_rows)


@dataclass(frozen=True, slots=True)
class Run:
    """What there is for a run to do.

    Attributes
    ----------
    rows : int
        Rows that are not done.
    num_positions : int
        Positions that it has for them; less where the tail is dropped, more where it is padded.
    begins : bool
        Whether the positions are counted anew, and do not go on from those of the run before.
    """

    rows: int
    num_positions: int
    begins: bool = False

    @classmethod
    def of(cls, rows: int, tail: Tail | None) -> Run:
        """Return what there is for a run with this tail."""
        return cls(rows, rows if tail is None else tail.apply(rows), begins=True)

    def rows_at(self, positions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return how many times the rows were gone through before each position, and which one it is."""
        if not self.begins:
            return np.zeros_like(positions), positions
        times, rows = np.divmod(positions, max(self.rows, 1))
        return times, rows


@dataclass(frozen=True, slots=True)
class Done:
    """What ranks that take blocks in turn have done: `rows` rows each.

    Attributes
    ----------
    rows : int
        Rows that each rank has done.
    world_size : int
        Ranks.
    block_rows : int
        Rows of a full block.
    tail : Tail, optional
        What became of the last rows in that run: it had not done what it left out, and repeated others.
    """

    rows: int
    world_size: int
    block_rows: int
    tail: Tail | None = None

    def __post_init__(self) -> None:
        for name in ("rows", "world_size", "block_rows"):
            check_count(f"Position: earlier {name}", getattr(self, name), 1)

    def left(self, run: Run) -> Run:
        """Return what is left of a run for one with the same tail: its rows and its positions."""
        not_done = run.num_positions - self.rows * self.world_size
        if run.num_positions <= run.rows or not_done < 0:
            return Run(not_done + run.rows - run.num_positions, not_done)
        # What would have been repeated comes last, and is no row that is left.
        last = self._within(np.arange(max(0, not_done - (run.num_positions - run.rows)), not_done), run.num_positions)
        return Run(not_done - int((last >= run.rows).sum()), not_done)

    def positions(self, left: np.ndarray, num_positions: int) -> np.ndarray:
        """Return which positions of a run those left are: ``left[i]`` counts what is not done.

        What the run left out follows its `num_positions` positions.
        """
        left_out = left - (num_positions - self.rows * self.world_size)
        return np.where(left_out < 0, self._within(left, num_positions), num_positions + left_out)

    def _within(self, left: np.ndarray, num_rows: int) -> np.ndarray:
        cut = Cut(num_rows, self.block_rows, self.world_size)
        round_ = min(self.rows // self.block_rows, cut.full_blocks // self.world_size)
        first = round_ * self.world_size
        block = self.block_rows if first < cut.full_blocks else cut.last_rows
        begun = self.rows - round_ * self.block_rows  # of each block of this round
        start = first * self.block_rows
        rest = block - begun
        behind = left - rest * self.world_size
        if rest == 0:
            return start + block * self.world_size + left
        inside = start + left // rest * block + begun + left % rest
        return np.where(behind < 0, inside, start + block * self.world_size + behind)
