"""What the runs of an epoch have done, and which positions that leaves for the next run.

A run is one training run. It ends at a checkpoint, and the next run may have another number of ranks, another
`block_rows` and another tail.

That a tail may change makes a chain of tails necessary. To refuse another tail would be simpler, but ``tail_rows`` is
usually ``workers * batch_size``: to resume with another number of workers, or another batch size, changes it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ray_h5.errors import PositionError
from ray_h5.options import check_count
from ray_h5.order.blocks import BlockLayout, Tail


@dataclass(frozen=True, slots=True)
class RunExtent:
    """The rows and positions of one run.

    Attributes
    ----------
    rows : int
        Rows that are not done before the run.
    num_positions : int
        Positions of the run: fewer than rows where the tail is dropped, more where it is padded.
    begins : bool
        Whether positions count from 0 again. Otherwise they continue those of the run before.
    """

    rows: int
    num_positions: int
    begins: bool = False

    @classmethod
    def of(cls, rows: int, tail: Tail | None) -> RunExtent:
        """Return the extent of a run with this tail."""
        return cls(rows, rows if tail is None else tail.apply(rows), begins=True)

    def rows_at(self, positions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return for each position how often the rows have repeated, and which row it is."""
        if not self.begins:
            return np.zeros_like(positions), positions
        times, rows = np.divmod(positions, max(self.rows, 1))
        return times, rows


@dataclass(frozen=True, slots=True)
class RunProgress:
    """What the ranks of one run have done. They take blocks in turn, and have done `rows` rows each.

    Attributes
    ----------
    rows : int
        Rows that each rank has done.
    world_size : int
        Ranks.
    block_rows : int
        Rows of a full block.
    tail : Tail, optional
        The treatment of the last rows in that run. Rows that it dropped are not done.
    """

    rows: int
    world_size: int
    block_rows: int
    tail: Tail | None = None

    def __post_init__(self) -> None:
        for name in ("rows", "world_size", "block_rows"):
            check_count(f"Position: earlier {name}", getattr(self, name), 1)

    def remaining(self, run: RunExtent) -> RunExtent:
        """Return what remains of a run, for a next run with the same tail."""
        not_done = run.num_positions - self.rows * self.world_size
        if run.num_positions <= run.rows or not_done < 0:
            return RunExtent(not_done + run.rows - run.num_positions, not_done)
        # Padding is at the end. Positions of it that are not done are no rows.
        padding = run.num_positions - run.rows
        last = self._not_done(np.arange(max(0, not_done - padding), not_done), run.num_positions)
        return RunExtent(not_done - int((last >= run.rows).sum()), not_done)

    def positions(self, remaining: np.ndarray, num_positions: int) -> np.ndarray:
        """Return positions of a run, given by their ordinals among those that are not done.

        Rows that the run dropped follow its `num_positions` positions.
        """
        dropped = remaining - (num_positions - self.rows * self.world_size)
        return np.where(dropped < 0, self._not_done(remaining, num_positions), num_positions + dropped)

    def _not_done(self, remaining: np.ndarray, num_rows: int) -> np.ndarray:
        """Return the positions with some ordinals among those that are not done.

        All full rounds before the present one are done. In the present round, each rank has done the same number of
        rows of its block: the rests of these blocks come first. All later rounds follow.
        """
        layout = BlockLayout(num_rows, self.block_rows, self.world_size)
        rounds = min(self.rows // self.block_rows, layout.full_blocks // self.world_size)
        first = rounds * self.world_size
        start = first * self.block_rows
        block = self.block_rows if first < layout.full_blocks else layout.last_rows
        done = self.rows - rounds * self.block_rows  # of each block of the present round
        rest = block - done
        later = remaining - rest * self.world_size
        if rest == 0:
            return start + block * self.world_size + remaining
        within = start + remaining // rest * block + done + remaining % rest
        return np.where(later < 0, within, start + block * self.world_size + later)


def run_extents(epoch_rows: int, done: Sequence[RunProgress], tail: Tail | None) -> list[RunExtent]:
    """Return the extents of the runs that have done something of an epoch, and of the next one.

    With the same tail, a run continues the positions of the run before it: together they do what one run would have
    done. Another tail applies to the rows that are not done.

    Raises
    ------
    PositionError
        If a run has done more rows than it had.
    """
    tails = [*(each.tail for each in done), tail]
    found = [RunExtent.of(epoch_rows, tails[0])]
    for each, after, before in zip(done, tails[1:], tails[:-1], strict=True):
        remaining = each.remaining(found[-1])
        if remaining.num_positions < 0:
            raise PositionError(
                f"the position has more rows done than the {epoch_rows} of the epoch: {each.rows} on each of "
                f"{each.world_size} ranks, of {found[-1].num_positions}"
            )
        found.append(remaining if after == before else RunExtent.of(remaining.rows, after))
    return found


def epoch_positions(
    epoch_rows: int, done: Sequence[RunProgress], tail: Tail | None, ordinals: np.ndarray
) -> np.ndarray:
    """Return the positions in an epoch of what the next run reads, given by ordinals. Repeated rows come after all."""
    *earlier, own = run_extents(epoch_rows, done, tail)
    repeats, found = own.rows_at(ordinals)
    # From this run back to the first: ordinals among the rows that a run left become positions of that run.
    for run, extent in zip(reversed(done), reversed(earlier), strict=True):
        more, found = extent.rows_at(run.positions(found, extent.num_positions))
        repeats += more
    return found + repeats * epoch_rows
