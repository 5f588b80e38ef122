"""Which rows are read, and in which order: a frozen value, made once and executed in tasks."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from typing import Literal

import numpy as np

from ray_h5.errors import OptionError, StaleIndexError
from ray_h5.hdf5.buffers import empty
from ray_h5.hdf5.checks.changed_files import check_state
from ray_h5.hdf5.layout import FileState
from ray_h5.hdf5.reader import RowReader
from ray_h5.hdf5.reading.jobs import ReadStats
from ray_h5.options import as_integer, is_integer
from ray_h5.planning.epoch.fingerprint import Fingerprint, fingerprint
from ray_h5.planning.epoch.order import EvenChunkGroups, ListedChunkGroups, Order
from ray_h5.planning.epoch.shuffle import Shuffle
from ray_h5.planning.index.file_facts import Scope, wrong_index
from ray_h5.planning.index.file_table import FileTable
from ray_h5.planning.index.row_index import RowIndex
from ray_h5.planning.index.sources import SourceTable
from ray_h5.planning.schema import Cast, ColumnSpec

_BLOCK_BYTES = 64 << 20
"""A block costs Ray about 30 ms whatever its size (measured), as long as reading this many bytes."""

_LEAST_ROW_BYTES = 64
"""What a task keeps of each row beside its values while it reads: its position, row id, place, and so on."""

_MOST_BLOCK_BYTES = 128 << 20
"""Ray cuts what a task returns into pieces of this size, once it is half as large again."""

_FEWEST_BLOCKS = 4
"""A small dataset is still cut into about this many blocks, to be read in parallel."""


@dataclass(frozen=True, slots=True)
class Tail:
    """What becomes of the last rows of an epoch, where they do not fill a multiple of `rows`.

    Parameters
    ----------
    rule : {"drop", "pad"}
        Leave them out (other ones in each epoch, if it is shuffled), or repeat rows from the
        beginning of the order; these are marked in the column ``is_padding``.
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


@dataclass(frozen=True, eq=False)
class ReadPlan:
    """Which rows are read, in which order an epoch has them, and how it is cut into blocks.

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
    order : Order
        The order of an epoch.
    block_rows : int
        Rows of a block; the last ones may have fewer.
    tail : Tail, optional
        What becomes of the last rows; None keeps them.
    sources : SourceTable
        The other files that the columns come from, and those that the selection was made of.
    cast : frozenset of str
        The columns that are cast while they are read; the others are planned with the dtypes that files store.
    """

    files: FileTable
    columns: tuple[ColumnSpec, ...]
    scope: Scope
    selection: np.ndarray | None
    order: Order
    block_rows: int
    tail: Tail | None = None
    sources: SourceTable = field(default_factory=SourceTable)
    cast: frozenset[str] = frozenset()

    @property
    def num_rows(self) -> int:
        """Selected rows."""
        return self.files.num_rows if self.selection is None else len(self.selection)

    @property
    def num_positions(self) -> int:
        """Rows of an epoch."""
        return self.num_rows if self.tail is None else self.tail.apply(self.num_rows)

    @property
    def row_bytes(self) -> int:
        """Bytes of one row in memory."""
        return sum(column.row_bytes for column in self.columns)

    @property
    def seed(self) -> int:
        """The seed of the order; 0 where there is none."""
        return (self.order.shuffle and self.order.shuffle.seed) or 0

    @cached_property
    def hash(self) -> str:
        """Tells what decides which row stands where: files, selection and shuffle.

        Files count by their names and rows, not by where they are mounted.
        """
        found = hashlib.blake2b(digest_size=16)
        found.update(self.files.starts.tobytes())
        for path in self.files.paths.to_pylist():
            found.update(path.rsplit(b"/", 1)[-1] + b"\0")
        found.update(b"all" if self.selection is None else np.ascontiguousarray(self.selection).data)
        found.update(repr(self.order.shuffle).encode())
        if self.order.groups is not None:
            # What is drawn as a whole is up to the chunks, and so to the columns asked for.
            found.update(self.order.groups.described())
        return found.hexdigest()

    def state(self, file: int) -> FileState:
        """Return the state that a file was in when the plan was made."""
        return FileState(self.files.identity(file), self.sources.of_file(file))

    def open(self, file: int) -> RowReader:
        """Open a file, if it, and the sources of its columns, are as they were when the plan was made."""
        reader = self.scope.open(self.files.path(file), self.state(file))
        self.check(file, reader)
        return reader

    @cached_property
    def fingerprint(self) -> Fingerprint:
        """What `hash` is made of, except the seed, part by part: to name what differs."""
        return fingerprint(self.files, self.selection, self.order)

    def with_drawn_seed(self, seed: int | None) -> ReadPlan:
        """Return the plan with the seed of the run that is resumed, if its own was drawn; else the plan itself."""
        order = self.order.with_drawn_seed(seed)
        return self if order is self.order else replace(self, order=order)

    def check(self, file: int, reader: RowReader) -> None:
        """Raise unless a file holds what the plan was made for; what an index on disk says of it may be wrong.

        Raises
        ------
        StaleIndexError
            With what was expected and what was found.
        """
        rows = int(self.files.starts[file + 1] - self.files.starts[file])
        for name, layout in reader.find([column.name for column in self.columns]).items():
            expected = next(column for column in self.columns if column.name == name)
            found = ColumnSpec.of(layout)
            if layout.num_rows != rows or not expected.is_read_from(found, name in self.cast):
                planned = f"{rows} rows of {expected}"
                raise StaleIndexError(wrong_index(layout, planned, f"{layout.num_rows} of {found}"))

    def row_ids(self, ranks: np.ndarray) -> np.ndarray:
        """Return the row ids of some of the selected rows, given by their ranks in path order."""
        return ranks if self.selection is None else self.selection[ranks]

    def at(self, positions: np.ndarray, epoch: int) -> np.ndarray:
        """Return the row ids at some positions of an epoch."""
        return self.row_ids(self.order.ranks(positions % max(self.num_rows, 1), epoch))


def make_plan(
    index: RowIndex,
    columns: Sequence[ColumnSpec],
    selection: np.ndarray | None = None,
    shuffle: Shuffle | None = None,
    block_rows: int | None = None,
    num_blocks: int | None = None,
    tail: Tail | None = None,
    selected_by: Iterable[str] | None = None,
) -> ReadPlan:
    """Return the plan for some rows and columns.

    Parameters
    ----------
    index : RowIndex
        The files.
    columns : sequence of ColumnSpec
        What is read of each row.
    selection : numpy.ndarray, optional
        int64: the selected row ids, ascending; None selects all.
    shuffle : Shuffle, optional
        The order; None keeps that of the files.
    block_rows, num_blocks : int, optional
        Rows of a block, or the number of blocks; by default blocks are sized by their bytes.
    tail : Tail, optional
        What becomes of the last rows.
    selected_by : iterable of str, optional
        The columns that the selection was made of; None for all whose values were looked up.

    Raises
    ------
    OptionError
        If rows are selected, and the tail leaves none of them.
    """
    columns = tuple(columns)
    num_rows = index.num_rows if selection is None else len(selection)
    order = make_order(index, selection, shuffle)
    row_bytes = sum(column.row_bytes for column in columns)
    positions = num_rows if tail is None else tail.apply(num_rows)
    if tail is not None and num_rows and not positions:
        raise OptionError(
            f"tail='drop', tail_rows={tail.rows}: only {num_rows} rows are selected, so that none is left; lower "
            "tail_rows (workers * batch size), or take tail='pad'"
        )
    rows = choose_block_rows(row_bytes, positions, block_rows, num_blocks)
    window = order.window_rows
    if window is not None and block_rows is None and num_blocks is None and window * row_bytes <= _MOST_BLOCK_BYTES:
        # A chunk is then needed by one task only.
        rows = -(-max(rows, window) // window) * window
    named = () if selection is None else index.looked_up if selected_by is None else selected_by
    sources = index.sources_of([*(column.name for column in columns), *named])
    cast = _cast_columns(index, columns)
    return ReadPlan(index.files, columns, index.scope, selection, order, rows, tail, sources, cast)


def _cast_columns(index: RowIndex, columns: Sequence[ColumnSpec]) -> frozenset[str]:
    """Return the columns whose dtypes in the files are no concern: they are cast, or may be."""
    if type(index.cast) is not Cast:  # which may cast any
        return frozenset(column.name for column in columns)
    stored = index.columns
    changed = {each.name for each in columns if each.name not in stored or stored[each.name].dtype != each.dtype}
    return frozenset(changed | index.cast.dtypes.keys())


def make_order(index: RowIndex, selection: np.ndarray | None, shuffle: Shuffle | None) -> Order:
    """Return the order of an epoch, its unit decided.

    It depends on the index, the selection and the shuffle; not on the columns that are read in the
    end, nor on blocks.
    """
    num_rows = index.num_rows if selection is None else len(selection)
    unit = decide_unit(shuffle, index.chunk_group_rows)
    if shuffle is None or unit is None or num_rows == 0:
        return Order(num_rows)
    if unit == "rows":
        return Order(num_rows, replace(shuffle, unit="rows"))
    files = index.files
    if unit == "files":
        starts = files.starts if selection is None else np.searchsorted(selection, files.starts)
        return Order(num_rows, shuffle, ListedChunkGroups(np.unique(starts)))
    shuffle = replace(shuffle, unit="chunks", window_rows=shuffle.window_rows or _default_window(index, num_rows))
    if selection is None:
        return Order(num_rows, shuffle, EvenChunkGroups(files.starts, index.chunk_group_rows), index.chunk_group_rows)
    groups = ListedChunkGroups(_chunk_groups(files, selection, index.chunk_group_rows))
    return Order(num_rows, shuffle, groups, index.chunk_group_rows)


def decide_unit(shuffle: Shuffle | None, chunk_group_rows: int) -> str | None:
    """Return what is drawn: rows where each can be had alone, else chunks."""
    if shuffle is None:
        return None
    if shuffle.unit != "auto":
        return shuffle.unit
    return "rows" if chunk_group_rows == 1 and shuffle.window_rows is None else "chunks"


def _chunk_groups(files: FileTable, selection: np.ndarray, chunk_group_rows: int) -> np.ndarray:
    """Return the first rank of each group of selected rows that lie in the same chunks, then their number."""
    selected = np.diff(np.searchsorted(selection, files.starts))
    lengths = np.diff(files.starts)
    first_chunk = np.concatenate([[0], np.cumsum(-(-lengths // chunk_group_rows))[:-1]])
    chunk = selection - np.repeat(files.starts[:-1], selected)
    chunk //= chunk_group_rows
    chunk += np.repeat(first_chunk, selected)
    return np.concatenate([[0], np.flatnonzero(chunk[1:] != chunk[:-1]) + 1, [len(selection)]])


def _default_window(index: RowIndex, num_rows: int) -> int:
    """Return a window that mixes 16 chunks or more, if a block can hold them."""
    row_bytes = max(sum(column.row_bytes for column in index.columns.values()), _LEAST_ROW_BYTES)
    wanted = max(_BLOCK_BYTES // row_bytes, 16 * index.chunk_group_rows)
    rows = min(wanted, _MOST_BLOCK_BYTES // row_bytes, num_rows // _FEWEST_BLOCKS)
    return 1 << max(rows, 1).bit_length() - 1


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
    rows = min(_BLOCK_BYTES / max(row_bytes, _LEAST_ROW_BYTES), num_rows / _FEWEST_BLOCKS)
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


def read_rows(plan: ReadPlan, row_ids: np.ndarray) -> BlockRows:
    """Read rows in the order given: a pure function of the plan, the same each time it is called.

    Raises
    ------
    StaleIndexError, MissingSourceError
        If a file, or another that its columns or the selection come from, is no longer as it was when the plan was
        made.
    """
    arrays = {each.name: empty((len(row_ids), *each.row_shape), each.dtype) for each in plan.columns}
    stats = ReadStats()
    for file, places in by_file(plan.files, row_ids) if arrays or plan.selection is not None else ():
        if not arrays:
            check_state(plan.files.path(file), plan.state(file))  # the selection may be made of it
            continue
        with plan.open(file) as reader:
            reader.read_into(arrays, row_ids[places] - plan.files.starts[file], places)
            stats.add(reader.stats)
    return BlockRows(row_ids, arrays, stats)


def by_file(files: FileTable, row_ids: np.ndarray) -> list[tuple[int, np.ndarray]]:
    """Return the files that rows lie in, ascending, each with the places of its rows among `row_ids`, ascending too."""
    of = files.files_of(row_ids)
    order = np.argsort(of, kind="stable")
    of = of[order]
    cuts = [0, *(np.flatnonzero(of[1:] != of[:-1]) + 1).tolist(), len(of)]
    return [(int(of[start]), order[start:stop]) for start, stop in pairwise(cuts) if stop > start]
