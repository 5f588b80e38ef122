"""What of an epoch is left to read: a short list of ranges of positions.

A run is one training run. It ends at a checkpoint, and the next run may have another number of ranks, another
`block_rows` and another tail: ``tail_rows`` is usually ``workers * batch_size``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from ray_h5.errors import PositionError
from ray_h5.order.block_layout import BlockLayout, Tail

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
        # Rows that come again follow in the order of the rows, as often as there are too few.
        turns = range(-(-wanted // count) if count else 0)
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

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain values; the tail is a part of the position."""
        return {
            "ranges": [list(bounds) for bounds in self.ranges],
            "dropped": [list(bounds) for bounds in self.dropped],
        }

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
