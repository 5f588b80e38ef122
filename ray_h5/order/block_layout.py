"""How the positions of an epoch are cut into blocks, and which of them are left: a short list of ranges.

A run is one training run. It ends at a checkpoint, and the next run may have another number of ranks, another
`block_rows` and another tail: ``tail_rows`` is usually ``workers * batch_size``.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np

from ray_h5.errors import OptionError, PositionError
from ray_h5.options import as_integer, is_integer

BLOCK_BYTES = 64 << 20
"""A block costs Ray about 30 ms whatever its size (measured), as long as it takes to read this many bytes."""

MAX_BLOCK_BYTES = 128 << 20
"""Ray cuts what a task returns into pieces of this size, once it is half as large again."""

RANGE_WINDOW_BYTES = 320 << 20
"""Most bytes of a window of rows that are ranges. It is read at once, also where blocks are smaller: its chunks are
decoded once. Rows of 600 entries: 65,536."""

MIN_ROW_BYTES = 64
"""What a task keeps of each row beside its values while it reads: its position, row id, place, and so on."""

MOST_TAIL_ROWS = 1 << 31
"""Workers * batch size stays far below it."""

_MOST_TURNS = 1 << 16
"""How often rows may come again that are parts of an epoch: each time is a range for each part."""

MIN_BLOCKS = 4
"""A small dataset is still cut into about this many blocks, to be read in parallel."""


@dataclass(frozen=True, slots=True)
class Tail:
    """The treatment of the last rows of an epoch, if the number of rows is no multiple of `rows`.

    Parameters
    ----------
    rule : {"drop", "pad"}
        ``drop`` leaves them out; a shuffle leaves out others in each epoch. ``pad`` repeats rows from the beginning of
        the order and marks them in the column ``is_padding``.
    rows : int
        Usually workers * batch size: every worker then gets the same number of full batches.
    """

    rule: Literal["drop", "pad"]
    rows: int

    def __post_init__(self) -> None:
        if self.rule not in ("drop", "pad") or not is_integer(self.rows) or not 1 <= self.rows < MOST_TAIL_ROWS:
            raise OptionError(f"{self}: expected 'drop' or 'pad', and 1 row or more, fewer than {MOST_TAIL_ROWS}")
        object.__setattr__(self, "rows", int(self.rows))

    def apply(self, num_rows: int) -> int:
        """Return how many positions an epoch of `num_rows` rows has."""
        return (num_rows if self.rule == "drop" else num_rows + self.rows - 1) // self.rows * self.rows


@dataclass(frozen=True, slots=True)
class BlockLayout:
    """A number of rows, cut into blocks for ranks that take blocks in turn.

    A round is one block for each rank. The blocks of full rounds hold `block_rows` rows each. The blocks of the last
    round share the other rows evenly. At most one more block follows, with fewer rows than there are ranks.

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
        """Number of blocks in full rounds."""
        return self.num_rows // (self.block_rows * self.world_size) * self.world_size

    @property
    def last_rows(self) -> int:
        """Rows of each block of the last round, if that round is not full."""
        return (self.num_rows - self.full_blocks * self.block_rows) // self.world_size

    @property
    def num_blocks(self) -> int:
        return self.full_blocks + (self.world_size if self.last_rows else 0) + (1 if self.unshared_rows else 0)

    @property
    def unshared_rows(self) -> int:
        """Rows that remain when all ranks have the same number of rows."""
        return self.num_rows - self.full_blocks * self.block_rows - self.last_rows * self.world_size

    def bounds(self, block: int, done: int = 0) -> tuple[int, int]:
        """Return the first row that is left of a block once each rank has done `done` rows, and the row after it."""
        rounds = min(block, self.full_blocks) // self.world_size
        start, stop = block * self.block_rows, (block + 1) * self.block_rows
        if (turn := block - self.full_blocks) >= 0:
            start = self.full_blocks * self.block_rows + turn * self.last_rows
            if not self.last_rows or turn == self.world_size:
                return start, start + self.unshared_rows
            stop = start + self.last_rows
        # A rank has a block in each round. Those of the present round are begun, of all ranks alike.
        return start + min(max(done - rounds * self.block_rows, 0), stop - start), stop

    def blocks_left(self, done: int) -> range:
        """Return the numbers of the blocks that are left, or begun, once each rank has done `done` rows."""
        full_rounds = self.full_blocks // self.world_size
        if done >= full_rounds * self.block_rows + max(self.last_rows, 1):
            return range(self.num_blocks - bool(self.unshared_rows), self.num_blocks)
        return range(min(done // self.block_rows, full_rounds) * self.world_size, self.num_blocks)

    def rows_of(self, rank: int | np.ndarray, start: int, stop: int) -> np.ndarray:
        """Return rows `start` to `stop` of those that a rank takes, which has equally many as the others.

        Of several ranks in an array of shape (ranks, 1), the result has a line for each.
        """
        rows = np.arange(start, stop, dtype=np.int64)
        rounds, within = np.divmod(rows, self.block_rows)
        shared = self.full_blocks // self.world_size * self.block_rows  # of this rank, in full rounds
        last = shared * self.world_size + rank * self.last_rows + rows - shared
        return np.where(rows < shared, (rounds * self.world_size + rank) * self.block_rows + within, last)


def choose_block_rows(row_bytes: int, num_rows: int, block_rows: int | None, num_blocks: int | None) -> int:
    """Return how many rows a block holds.

    Parameters
    ----------
    row_bytes : int
        Bytes of a row in memory.
    num_rows : int
        Rows of all blocks.
    block_rows, num_blocks : int, optional
        The choice of the user, if there is one.

    Returns
    -------
    int
        A power of two by default: batches of usual sizes are then inside one block and need no copy. It depends on the
        data alone, not on the machine.
    """
    if block_rows is not None:
        block_rows = as_integer("block_rows", block_rows, 1)
    if num_blocks is not None:
        num_blocks = as_integer("override_num_blocks", num_blocks, 1)
    if block_rows is not None and num_blocks is not None:
        raise OptionError("block_rows and override_num_blocks both say how large a block is; pass one of them")
    if block_rows is not None:
        return block_rows
    if num_blocks is not None:
        return max(1, -(-num_rows // num_blocks))
    rows = min(BLOCK_BYTES / max(row_bytes, MIN_ROW_BYTES), num_rows / MIN_BLOCKS)
    return 1 << round(math.log2(max(rows, 1)))


Ranges: TypeAlias = tuple[tuple[int, int], ...]
"""First positions, and those after the last ones, in the order in which they are read."""


@dataclass(frozen=True, slots=True)
class Left:
    """The positions of an epoch that are left to read.

    Those of `epoch_rows` or more stand for rows that come again, at the end of an epoch that is padded.

    Attributes
    ----------
    ranges : tuple of (int, int)
        The positions.
    tail : Tail, optional
        The treatment of the last rows that these positions have.
    dropped : tuple of (int, int)
        Positions that this tail leaves out.
    """

    ranges: Ranges
    tail: Tail | None = None
    dropped: Ranges = ()

    @property
    def num_positions(self) -> int:
        """How many positions there are."""
        return _count(self.ranges)

    @classmethod
    def of(cls, left: Left | None, tail: Tail | None, epoch_rows: int) -> Left:
        """Return what a run with a tail reads, of what others have left or, for None, of a whole epoch.

        With the same tail, a run continues the positions of the run before it: together they do what one run would
        have done. Another tail applies to the rows that are not done.
        """
        left = cls(_joined([(0, epoch_rows)])) if left is None else left
        if tail == left.tail:
            return left
        rows = _joined((start, min(stop, epoch_rows)) for start, stop in (*left.ranges, *left.dropped))
        count = _count(rows)
        wanted = count if tail is None else tail.apply(count)
        if rows == ((0, epoch_rows),):  # all turns are one range
            return cls(_joined([(0, wanted)]), tail, _joined([(wanted, count)]))
        # Rows that come again follow in the order of the rows, as often as there are too few.
        turns = range(-(-wanted // count) if count else 0)
        if tail is not None and len(turns) > _MOST_TURNS:
            raise PositionError(
                f"the {count} rows that are left of an epoch would come {len(turns)} times to fill up {tail.rows} rows "
                "(tail): expected workers * batch size. Begin the epoch again, without a position."
            )
        again = _joined((start + turn * epoch_rows, stop + turn * epoch_rows) for turn in turns for start, stop in rows)
        return cls(_joined(_part(again, 0, wanted)), tail, _joined(_part(rows, wanted, count)))

    def after(self, rows: int, world_size: int, block_rows: int) -> Left:
        """Return what is left when each of the ranks, which take blocks in turn, has done `rows` rows.

        All full rounds before the present one are done. In the present round, each rank has done the same number of
        rows of its block: the rests of these blocks come first. All later rounds follow.

        Raises
        ------
        PositionError
            If these are more rows than there are.
        """
        count = self.num_positions
        if not rows:
            return self
        if rows * world_size > count:
            raise PositionError(
                f"the position has more rows done than the epoch has: {rows} on each of {world_size} ranks, of {count}"
            )
        layout = BlockLayout(count, block_rows, world_size)
        first = min(rows // block_rows, layout.full_blocks // world_size) * world_size
        start = first * block_rows
        block = block_rows if first < layout.full_blocks else layout.last_rows
        done = rows - first // world_size * block_rows  # of each block of the present round
        ends = [start + (rank + 1) * block for rank in range(world_size)]
        parts = [part for end in ends for part in _part(self.ranges, end - block + done, end)] if done < block else []
        return Left(_joined([*parts, *_part(self.ranges, ends[-1], count)]), self.tail, self.dropped)

    def positions(self, ordinals: np.ndarray) -> np.ndarray:
        """Return the positions with some ordinals among those that are left."""
        if len(self.ranges) == 1:
            return ordinals + self.ranges[0][0]
        starts, stops = np.array(self.ranges, np.int64).reshape(-1, 2).T
        ends = np.cumsum(stops - starts)
        at = np.searchsorted(ends, ordinals, side="right")
        return stops[at] - (ends[at] - ordinals)

    def check(self, epoch_rows: int) -> None:
        """Raise a PositionError if this is not what a run may leave of an epoch of `epoch_rows` rows."""
        again = self.tail.rows if self.tail is not None and self.tail.rule == "pad" else 0
        last = max((stop for _, stop in (*self.ranges, *self.dropped)), default=0)
        if self.num_positions > epoch_rows + again or last > epoch_rows * (_MOST_TURNS + 1 if again else 1) + again:
            raise PositionError(
                f"Position: left={self.to_dict()!r:.200}: {self.num_positions} positions up to {last} cannot be left "
                f"of an epoch of {epoch_rows} rows; at most {again} of them come again. Begin the epoch again, without "
                "a position."
            )

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain values; the tail is a part of the position."""
        return {name: [list(bounds) for bounds in getattr(self, name)] for name in ("ranges", "dropped")}

    @classmethod
    def from_dict(cls, state: Any, tail: Tail | None) -> Left:
        """Return what `to_dict` described."""
        try:
            ranges, dropped = (tuple((int(a), int(b)) for a, b in state[name]) for name in ("ranges", "dropped"))
        except (TypeError, ValueError, KeyError):
            ranges = dropped = ((0, 0),)
        if not all(0 <= start < stop for start, stop in (*ranges, *dropped)):
            raise PositionError(f"Position: left={state!r}: expected ranges of positions: [[first, last + 1], ...]")
        return cls(ranges, tail, dropped)


def _count(ranges: Ranges) -> int:
    return sum(stop - start for start, stop in ranges)


def _joined(ranges: Iterable[tuple[int, int]]) -> Ranges:
    """Return ranges without those that are empty; one that begins where the one before it ends is a part of that."""
    joined: list[tuple[int, int]] = []
    for start, stop in ranges:
        if joined and start < stop and joined[-1][1] == start:
            joined[-1] = joined[-1][0], stop
        elif start < stop:
            joined.append((start, stop))
    return tuple(joined)


def _part(ranges: Ranges, first: int, last: int) -> Iterator[tuple[int, int]]:
    """Yield the positions with ordinals `first` to `last` - 1."""
    before = 0
    for start, stop in ranges:
        low, high = max(first - before, 0), min(last - before, stop - start)
        if low < high:
            yield start + low, start + high
        before += stop - start
