"""How the positions of an epoch are cut into blocks."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np

from ray_h5.errors import OptionError
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
        if self.rule not in ("drop", "pad") or not is_integer(self.rows) or self.rows < 1:
            raise OptionError(f"{self}: expected 'drop' or 'pad', and 1 row or more")
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

    def bounds(self, block: int) -> tuple[int, int]:
        """Return the first row of a block, and the first row after it."""
        if block < self.full_blocks:
            return block * self.block_rows, (block + 1) * self.block_rows
        start = self.full_blocks * self.block_rows + (block - self.full_blocks) * self.last_rows
        turn = block - self.full_blocks
        return start, start + (self.last_rows if self.last_rows and turn < self.world_size else self.unshared_rows)

    def rows_of(self, rank: int, start: int, stop: int) -> np.ndarray:
        """Return rows `start` to `stop` of those that a rank takes, which has equally many as the others."""
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
