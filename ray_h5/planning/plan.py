"""Which rows each block holds: a frozen value, made once and executed in tasks."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from ray_h5.errors import OptionError
from ray_h5.hdf5.buffers import empty
from ray_h5.hdf5.columns import ReadStats
from ray_h5.planning.index import FileTable, Scope
from ray_h5.planning.schema import ColumnSpec

_BLOCK_BYTES = 64 << 20
"""A block costs Ray about 30 ms whatever its size (measured), as long as reading this many bytes."""

_FEWEST_BLOCKS = 4
"""A small dataset is still cut into about this many blocks, to be read in parallel."""


@dataclass(frozen=True, slots=True, eq=False)
class ReadPlan:
    """The order of the rows, cut into blocks.

    Attributes
    ----------
    files : FileTable
        The files.
    columns : tuple of ColumnSpec
        What is read of each row.
    scope : Scope
        How the files are opened.
    selection : numpy.ndarray, optional
        int64: the selected row ids, ascending; None selects all.
    block_rows : int
        Rows of a block; the last one may have fewer.
    """

    files: FileTable
    columns: tuple[ColumnSpec, ...]
    scope: Scope
    selection: np.ndarray | None
    block_rows: int

    @property
    def num_rows(self) -> int:
        return self.files.num_rows if self.selection is None else len(self.selection)

    @property
    def num_blocks(self) -> int:
        return -(-self.num_rows // self.block_rows)

    @property
    def row_bytes(self) -> int:
        """Bytes of one row in memory."""
        return sum(column.row_bytes for column in self.columns)

    def rows_in(self, block: int) -> int:
        """Return how many rows block number `block` holds."""
        return min(self.block_rows, self.num_rows - block * self.block_rows)

    def row_ids(self, block: int, limit: int | None = None) -> np.ndarray:
        """Return the row ids of a block, in their order; at most the first `limit`."""
        start = block * self.block_rows
        count = self.rows_in(block) if limit is None else min(limit, self.rows_in(block))
        if self.selection is None:
            return np.arange(start, start + count, dtype=np.int64)
        return self.selection[start : start + count]


def choose_block_rows(row_bytes: int, num_rows: int, block_rows: int | None, num_blocks: int | None) -> int:
    """Return how many rows a block holds.

    Parameters
    ----------
    row_bytes : int
        Bytes of a row in memory.
    num_rows : int
        Rows of all blocks.
    block_rows, num_blocks : int, optional
        What the user asked for, if anything.

    Returns
    -------
    int
        A power of two unless the user asked otherwise: batches of usual sizes then lie inside
        one block and need no copy. It depends on the data alone, not on the machine.
    """
    for name, value in (("block_rows", block_rows), ("override_num_blocks", num_blocks)):
        if value is not None and value < 1:
            raise OptionError(f"{name}={value}: expected 1 or more")
    if block_rows is not None and num_blocks is not None:
        raise OptionError("block_rows and override_num_blocks both say how large a block is; pass one of them")
    if block_rows is not None:
        return block_rows
    if num_blocks is not None:
        return max(1, math.ceil(num_rows / num_blocks))
    rows = min(_BLOCK_BYTES / max(row_bytes, 1), num_rows / _FEWEST_BLOCKS)
    return 1 << round(math.log2(max(rows, 1)))


@dataclass(frozen=True, slots=True, eq=False)
class BlockRows:
    """The rows of one block, as arrays.

    Attributes
    ----------
    row_ids : numpy.ndarray
        int64.
    arrays : mapping of str to numpy.ndarray
        The columns.
    stats : ReadStats
        What reading them cost.
    """

    row_ids: np.ndarray
    arrays: Mapping[str, np.ndarray]
    stats: ReadStats = field(default_factory=ReadStats)


def read_block(plan: ReadPlan, block: int, limit: int | None = None) -> BlockRows:
    """Read one block: a pure function of the plan, the same each time it is called.

    Raises
    ------
    StaleIndexError
        If a file is no longer as it was when the plan was made.
    """
    row_ids = plan.row_ids(block, limit)
    arrays = {each.name: empty((len(row_ids), *each.row_shape), each.dtype) for each in plan.columns}
    stats = ReadStats()
    for file, places in _by_file(plan.files, row_ids) if arrays else ():
        with plan.scope.open(plan.files.path(file), plan.files.identity(file)) as reader:
            reader.read_into(arrays, row_ids[places] - plan.files.starts[file], places)
            stats.add(reader.stats)
    return BlockRows(row_ids, arrays, stats)


def _by_file(files: FileTable, row_ids: np.ndarray) -> Sequence[tuple[int, np.ndarray]]:
    of = files.files_of(row_ids)
    order = np.argsort(of, kind="stable")
    cuts = np.flatnonzero(np.diff(of[order])) + 1
    return [(int(of[places[0]]), places) for places in np.split(order, cuts) if len(places)]
