"""The mappings of a virtual dataset: which rows of which sources its rows are."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

import h5py
import numpy as np

Needed: TypeAlias = Callable[[tuple[int, ...]], np.ndarray]
"""Tells which rows are needed of a dataset of some shape, ascending."""

_ENDLESS = 1 << 62


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
        """Return the rows of a selection; None if they are not such blocks."""
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

    @property
    def bounds(self) -> tuple[int, int]:
        """The first row, and the one behind the last, or behind all that there can be."""
        return self.first, _ENDLESS if self.count is None else self.first + (self.count - 1) * self.stride + self.block

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


@dataclass(frozen=True, slots=True)
class SourceNames:
    """What a mapping leads to, by name: one source, or many that are counted.

    Attributes
    ----------
    file, dataset : str
        ``%b`` in them stands for the number of a source.
    """

    file: str
    dataset: str

    @property
    def is_numbered(self) -> bool:
        """Whether it stands for sources that are counted: up to the first that is not there (H5Pset_virtual)."""
        return any("%b" in each.replace("%%", "") for each in (self.file, self.dataset))

    def numbered(self, number: int) -> tuple[str, str]:
        """Return the file and the dataset of one number; ``%%`` stands for a percent sign."""
        file_name, name = (
            "%".join(part.replace("%b", str(number)) for part in each.split("%%")) for each in (self.file, self.dataset)
        )
        return file_name, name


def sources_named(made: h5py.h5p.PropDCID) -> Iterator[tuple[SourceNames, int | None]]:
    """Yield the sources that a virtual dataset names, and how many axes each has to have (as in `Mapping`).

    It takes the creation list alone: libhdf5 opens sources as soon as the dataset is asked for its shape.
    """
    for number in range(made.get_virtual_count()):
        names = SourceNames(made.get_virtual_filename(number), made.get_virtual_dsetname(number))
        if made.get_virtual_vspace(number).get_select_type() == h5py.h5s.SEL_NONE:
            # Nothing is selected there either, and h5py fails when it is asked for that.
            yield names, None
        else:
            yield names, _axes_selected(made.get_virtual_srcspace(number))


def _axes_selected(there: h5py.h5s.SpaceID) -> int | None:
    # How large the whole of a source is, only the source says.
    return None if there.get_select_type() == h5py.h5s.SEL_ALL else len(there.shape)


@dataclass(frozen=True, slots=True, eq=False)
class Mapping:
    """One mapping of a virtual dataset, to one source or to many that are counted.

    Attributes
    ----------
    names : SourceNames
        What it leads to.
    rows, source_rows : RowBlocks, optional
        What it selects here and there; None where these are not blocks of rows.
    bounds : (int, int)
        The first row that it selects here, and the one behind the last.
    row_values : int
        How many values of a row it selects.
    source_ndim : int, optional
        How many axes the source has to have; None where it is taken whole, whatever its shape.
    """

    names: SourceNames
    rows: RowBlocks | None
    source_rows: RowBlocks | None
    bounds: tuple[int, int]
    row_values: int
    source_ndim: int | None

    @classmethod
    def all_of(cls, dataset: h5py.Dataset) -> Iterator[Mapping]:
        """Yield what libhdf5 tells of the mappings of a virtual dataset, whose sources have to be known (`Traces`)."""
        made, shape = dataset.id.get_create_plist(), dataset.shape or (1,)
        for number in range(made.get_virtual_count()):
            here = made.get_virtual_vspace(number)
            names = SourceNames(made.get_virtual_filename(number), made.get_virtual_dsetname(number))
            if here.get_select_type() == h5py.h5s.SEL_NONE:
                yield cls(names, RowBlocks(0, 1, 1, 0), None, (0, 0), 0, None)
            else:
                yield cls._of(names, here, made.get_virtual_srcspace(number), shape)

    @classmethod
    def _of(
        cls, names: SourceNames, here: h5py.h5s.SpaceID, there: h5py.h5s.SpaceID, shape: tuple[int, ...]
    ) -> Mapping:
        rows, bounds, row_values = RowBlocks.of(here), (0, shape[0]), math.prod(shape[1:])
        if here.get_select_type() == h5py.h5s.SEL_ALL:
            rows = RowBlocks(0, 1, 1, shape[0])
        elif rows is None:
            low, high = here.get_select_bounds()
            bounds = int(low[0]), int(high[0]) + 1
        else:
            bounds = rows.bounds
            _, _, counts, blocks = here.get_regular_hyperslab()
            # Of counted sources each has one block of a row.
            times = [1 if count == h5py.h5s.UNLIMITED else int(count) for count in counts[1:]]
            row_values = math.prod(times) * math.prod(map(int, blocks[1:]))
        return cls(names, rows, RowBlocks.of(there), bounds, row_values, _axes_selected(there))

    def followed(self, rows: np.ndarray) -> Iterator[tuple[int, Needed]]:
        """Yield the numbers of the sources that rows come from, and which of their rows these are."""
        if self.names.is_numbered and self.rows is not None and self.rows.count is None:
            for number in self.rows.numbers(rows).tolist():
                yield number, partial(self._there, self.rows.only(number), rows)
        elif self.rows is None or self.rows.takes(rows):
            # Counted sources that lie side by side all have a part of a row.
            for number in itertools.count() if self.names.is_numbered else (0,):
                yield number, partial(self._there, self.rows, rows)

    def _there(self, taken: RowBlocks | None, rows: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
        """Return the rows of a source of some shape that stand for `rows`; all, where that is not row by row."""
        source, alike = self.source_rows, True
        if self.source_ndim is None:
            # It may have another shape by now. libhdf5 then goes through the whole of it value by value.
            source, alike = RowBlocks(0, 1, 1, shape[0]), math.prod(shape[1:]) == self.row_values
        if taken is None or source is None or source.rows != taken.rows or not alike:
            return np.arange(shape[0])
        return taken.moved_to(source, rows)
