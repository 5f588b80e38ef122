"""A look at the stored chunks that values come from where the column itself has none, before libhdf5 decodes them."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

import h5py
import numpy as np

from ray_h5.errors import MissingSourceError
from ray_h5.hdf5.columns import Library, Worker
from ray_h5.hdf5.external import is_numbered, nth_names
from ray_h5.hdf5.gather import Request, request_of
from ray_h5.hdf5.guard import ChunkGuard

Opened: TypeAlias = Callable[[], h5py.Dataset]
Needed: TypeAlias = Callable[[tuple[int, ...]], np.ndarray]
"""Tells which rows are needed of a dataset of some shape."""

GuardOf: TypeAlias = Callable[[h5py.Dataset], ChunkGuard]


@dataclass(frozen=True, slots=True)
class RowBlocks:
    """The rows that a selection takes: blocks of them, at equal distances.

    Attributes
    ----------
    first, stride, block : int
        Where the first block begins, from each to the next, and the rows of a block.
    count : int, optional
        How many blocks; None where there is no end to them.
    """

    first: int
    stride: int
    block: int
    count: int | None

    @classmethod
    def of(cls, space: h5py.h5s.SpaceID) -> RowBlocks | None:
        """Return the rows of a selection; None if they are no such blocks."""
        if space.get_select_type() != h5py.h5s.SEL_HYPERSLABS or not space.is_regular_hyperslab():
            return None
        first, stride, count, block = (int(along[0]) for along in space.get_regular_hyperslab())
        if block == h5py.h5s.UNLIMITED:
            return cls(first, 1, 1, None)
        # Of one block alone the stride may be anything.
        return cls(first, max(stride, block), block, None if count == h5py.h5s.UNLIMITED else count)

    @property
    def rows(self) -> int | None:
        """How many rows that is."""
        return None if self.count is None else self.count * self.block

    def numbers(self, rows: np.ndarray) -> np.ndarray:
        """Return in which blocks rows lie, each block once."""
        return np.unique(self._places(rows) // self.block)

    def takes(self, rows: np.ndarray) -> bool:
        """Tell whether any of some rows is selected."""
        return len(self._places(rows)) > 0

    def only(self, number: int) -> RowBlocks:
        """Return one of the blocks."""
        return RowBlocks(self.first + number * self.stride, self.block, self.block, 1)

    def moved_to(self, other: RowBlocks, rows: np.ndarray) -> np.ndarray:
        """Return the rows of another selection of as many that stand for `rows`, as far as these are selected."""
        places = self._places(rows)
        return other.first + places // other.block * other.stride + places % other.block

    def _places(self, rows: np.ndarray) -> np.ndarray:
        number, within = np.divmod(rows - self.first, self.stride)
        taken = (number >= 0) & (within < self.block)
        if self.count is not None:
            taken &= number < self.count
        return number[taken] * self.block + within[taken]


@dataclass(frozen=True, slots=True, eq=False)
class Mapping:
    """One mapping of a virtual dataset, to one source or to many that are counted.

    Attributes
    ----------
    names : (str, str)
        The file and the dataset that it leads to.
    rows, source_rows : RowBlocks, optional
        What it selects here and there.
    bounds : (int, int)
        The first and the last row that it selects here.
    is_whole : bool
        Whether it takes the whole of a source, whose size only the source tells.
    row_values : int
        How many values of a row it selects.
    """

    names: tuple[str, str]
    rows: RowBlocks | None
    source_rows: RowBlocks | None
    bounds: tuple[int, int]
    is_whole: bool
    row_values: int

    @classmethod
    def all_of(cls, dataset: h5py.Dataset) -> Iterator[Mapping]:
        """Yield what libhdf5 tells of the mappings of a virtual dataset, but for those of nothing."""
        made = dataset.id.get_create_plist()
        for number in range(made.get_virtual_count()):
            here = made.get_virtual_vspace(number)
            if here.get_select_type() != h5py.h5s.SEL_NONE:
                names = made.get_virtual_filename(number), made.get_virtual_dsetname(number)
                yield cls._of(names, here, made.get_virtual_srcspace(number), dataset.shape)

    @classmethod
    def _of(
        cls, names: tuple[str, str], here: h5py.h5s.SpaceID, there: h5py.h5s.SpaceID, shape: tuple[int, ...]
    ) -> Mapping:
        rows, bounds, row_values = RowBlocks.of(here), (0, shape[0] - 1), math.prod(shape[1:])
        if here.get_select_type() == h5py.h5s.SEL_ALL:
            rows = RowBlocks(0, 1, 1, shape[0])
        elif rows is None:
            low, high = here.get_select_bounds()
            bounds = int(low[0]), int(high[0])
        else:
            _, _, counts, blocks = here.get_regular_hyperslab()
            # Of counted sources each has one block of a row.
            times = [1 if count == h5py.h5s.UNLIMITED else int(count) for count in counts[1:]]
            row_values = math.prod(times) * math.prod(map(int, blocks[1:]))
        is_whole = there.get_select_type() == h5py.h5s.SEL_ALL
        return cls(names, rows, RowBlocks.of(there), bounds, is_whole, row_values)

    @property
    def is_numbered(self) -> bool:
        return is_numbered(*self.names)

    def followed(self, rows: np.ndarray) -> Iterator[tuple[int, Needed]]:
        """Yield the numbers of the sources that rows come from, and which of their rows these are."""
        if self.is_numbered and self.rows is not None and self.rows.count is None:
            for number in self.rows.numbers(rows).tolist():
                yield number, partial(self._there, self.rows.only(number), rows)
        elif self._takes(rows):
            # Counted sources that lie side by side all have a part of a row.
            for number in itertools.count() if self.is_numbered else (0,):
                yield number, partial(self._there, self.rows, rows)

    def _takes(self, rows: np.ndarray) -> bool:
        if self.rows is not None:
            return self.rows.takes(rows)
        low, high = self.bounds
        return bool(np.any((rows >= low) & (rows <= high)))

    def _there(self, taken: RowBlocks | None, rows: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
        """Return the rows of a source of some shape that stand for `rows`; all, where that is not row by row."""
        source = RowBlocks(0, 1, 1, shape[0]) if self.is_whole else self.source_rows
        # A source may have another shape by now. libhdf5 then goes through the whole of it value by value.
        alike = math.prod(shape[1:]) == self.row_values or not self.is_whole
        if taken is None or source is None or source.rows != taken.rows or not alike:
            return np.arange(shape[0])
        return taken.moved_to(source, rows)


class OriginGuard:
    """Does what `ChunkGuard` does for a dataset in another file, or a virtual one, whose values come from others.

    Of a virtual dataset it follows the rows that are read to those of its sources; where a mapping does
    not go row by row, to all rows of the source. What was found whole is not opened again.

    Parameters
    ----------
    guard_of : callable
        Makes the guard of a dataset that is stored in chunks.
    """

    def __init__(self, guard_of: GuardOf) -> None:
        self._guard_of = guard_of
        self._looked = False
        self._shape: tuple[int, ...] = ()
        self._chunks: ChunkGuard | None = None
        self._mappings: list[Mapping] = []
        self._sources: dict[tuple[Mapping, int], OriginGuard] = {}

    def check_column(self, name: str, request: Request, worker: Worker, library: Library) -> None:
        """Raise `CorruptChunkError` unless each chunk that rows of column `name` come from is of its proper size."""
        self.check(lambda: library.dataset(name), lambda _: request.listed().rows, worker, library)

    def check(self, opened: Opened, needed: Needed, worker: Worker, library: Library) -> None:
        """Do so for rows of a dataset, which is opened only if there is something to look at."""
        opened = functools.cache(opened)
        if not self._looked:
            self._look(opened())
        if self._chunks is None and not self._mappings:
            return
        rows = needed(self._shape)
        rows = rows[rows < self._shape[0]]  # what lies behind the end of a source is filled in
        if not len(rows):
            return
        if self._chunks is not None:
            self._chunks.check_in(opened, request_of(rows), worker)
        for mapping in self._mappings:
            self._follow(mapping, opened, rows, worker, library)

    def _follow(self, mapping: Mapping, opened: Opened, rows: np.ndarray, worker: Worker, library: Library) -> None:
        for number, needed in mapping.followed(rows):
            source = self._sources.setdefault((mapping, number), OriginGuard(self._guard_of))
            open_source = partial(_source, library, opened, *nth_names(*mapping.names, number))
            try:
                source.check(open_source, needed, worker, library)
            except MissingSourceError:
                if not mapping.is_numbered:
                    raise
                return  # libhdf5 stops counting there

    def _look(self, dataset: h5py.Dataset) -> None:
        self._shape = dataset.shape
        if dataset.is_virtual:
            self._mappings = list(Mapping.all_of(dataset))
        elif dataset.chunks is not None:
            self._chunks = self._guard_of(dataset)
        self._looked = True


def _source(library: Library, opened: Opened, file_name: str, name: str) -> h5py.Dataset:
    return library.source(opened(), file_name, name)
