"""The mappings of a virtual dataset: row of the virtual dataset -> row of a source dataset."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

import h5py
import numpy as np

from ray_h5.errors import CorruptFileError

Needed: TypeAlias = Callable[[tuple[int, ...]], np.ndarray]
"""Returns the rows that are needed of a dataset of a given shape, ascending."""

_ENDLESS = 1 << 62


@dataclass(frozen=True, slots=True)
class RowBlocks:
    """The rows of a hyperslab selection: blocks of rows at equal distances.

    Attributes
    ----------
    first, stride, block : int
        Where the first block begins, the distance from one block to the next, and the rows of a block.
    count : int, optional
        How many blocks; None if they have no end.
    """

    first: int
    stride: int
    block: int
    count: int | None

    @classmethod
    def of(cls, space: h5py.h5s.SpaceID) -> RowBlocks | None:
        """Return the rows of a selection; None if it is not a regular hyperslab."""
        if space.get_select_type() != h5py.h5s.SEL_HYPERSLABS or not space.is_regular_hyperslab():
            return None
        first, stride, count, block = (int(along[0]) for along in space.get_regular_hyperslab())
        if block == h5py.h5s.UNLIMITED:
            return cls(first, 1, 1, None)
        # libhdf5 accepts any stride if there is one block.
        return cls(first, max(stride, block), block, None if count == h5py.h5s.UNLIMITED else count)

    @property
    def rows(self) -> int | None:
        """How many rows the blocks have; None if they have no end."""
        return None if self.count is None else self.count * self.block

    @property
    def bounds(self) -> tuple[int, int]:
        """The first row, and the last one plus one. Endless blocks end after all rows that a dataset can have."""
        return self.first, _ENDLESS if self.count is None else self.first + (self.count - 1) * self.stride + self.block

    def numbers(self, rows: np.ndarray) -> np.ndarray:
        """Return the numbers of the blocks that contain rows, each once."""
        return np.unique(self._places(rows) // self.block)

    def takes(self, rows: np.ndarray) -> bool:
        """Return whether any of `rows` is selected."""
        return len(self._places(rows)) > 0

    def only(self, number: int) -> RowBlocks:
        """Return one block."""
        return RowBlocks(self.first + number * self.stride, self.block, self.block, 1)

    def moved_to(self, other: RowBlocks, rows: np.ndarray) -> np.ndarray:
        """Return the rows of another selection of the same length that correspond to the selected ones of `rows`."""
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
    """The file and dataset names of a mapping: of one source, or of many that are numbered.

    Attributes
    ----------
    file, dataset : str
        ``%b`` in them is replaced by the number of a source.
    """

    file: str
    dataset: str

    @property
    def is_numbered(self) -> bool:
        """Whether they are the names of numbered sources, up to the first missing one (H5Pset_virtual)."""
        return any("%b" in each.replace("%%", "") for each in (self.file, self.dataset))

    def numbered(self, number: int) -> tuple[str, str]:
        """Return the file and the dataset of one number; ``%%`` is a percent sign."""
        file_name, name = (
            "%".join(part.replace("%b", str(number)) for part in each.split("%%")) for each in (self.file, self.dataset)
        )
        return file_name, name


def sources_named(made: h5py.h5p.PropDCID, where: str) -> Iterator[tuple[SourceNames, int | None]]:
    """Yield the sources that a virtual dataset names, and how many axes each has to have (as in `VirtualMapping`).

    It needs the creation property list alone: libhdf5 opens the sources when the dataset is asked for its shape.

    Raises
    ------
    CorruptFileError
        If a mapping selects more than any dataset has; `where` names the dataset.
    """
    for number in range(made.get_virtual_count()):
        names = SourceNames(made.get_virtual_filename(number), made.get_virtual_dsetname(number))
        if made.get_virtual_vspace(number).get_select_type() == h5py.h5s.SEL_NONE:
            # Nothing is selected in the source either, and h5py fails when it is asked for that selection.
            yield names, None
        else:
            there = made.get_virtual_srcspace(number)
            if max(_end_of(made.get_virtual_vspace(number)), _end_of(there)) > _ENDLESS:
                raise CorruptFileError(
                    f"{where} has a mapping that selects more than any dataset has. Write the virtual dataset again."
                )
            yield names, _axes_selected(there)


def _end_of(space: h5py.h5s.SpaceID) -> int:
    """Return the largest end of a selection along an axis; what has no end counts as one."""
    kind = space.get_select_type()
    if kind == h5py.h5s.SEL_ALL:
        return 0
    if kind == h5py.h5s.SEL_HYPERSLABS and space.is_regular_hyperslab():
        slabs = (map(int, along) for along in zip(*space.get_regular_hyperslab(), strict=True))
        one = {h5py.h5s.UNLIMITED: 1}
        return max(
            first + one.get(count, count) * max(stride, one.get(block, block)) for first, stride, count, block in slabs
        )
    return max(map(int, space.get_select_bounds()[1]))


def _axes_selected(there: h5py.h5s.SpaceID) -> int | None:
    # A selection of the whole source has no shape: only the source has it.
    return None if there.get_select_type() == h5py.h5s.SEL_ALL else len(there.shape)


@dataclass(frozen=True, slots=True, eq=False)
class VirtualMapping:
    """One mapping of a virtual dataset, to one source or to many that are numbered.

    Attributes
    ----------
    names : SourceNames
        The source.
    rows, source_rows : RowBlocks, optional
        The rows that it selects in the virtual dataset and in the source; None if they are not blocks of rows.
    bounds : (int, int)
        The first row that it selects in the virtual dataset, and the last one plus one.
    row_values : int
        How many values of a row it selects.
    source_ndim : int, optional
        How many axes the source must have; None if the mapping selects all of it.
    """

    names: SourceNames
    rows: RowBlocks | None
    source_rows: RowBlocks | None
    bounds: tuple[int, int]
    row_values: int
    source_ndim: int | None

    @classmethod
    def all_of(cls, dataset: h5py.Dataset) -> Iterator[VirtualMapping]:
        """Yield the mappings of a virtual dataset. Its sources must have been checked (`ValueSources`)."""
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
    ) -> VirtualMapping:
        rows, bounds, row_values = RowBlocks.of(here), (0, shape[0]), math.prod(shape[1:])
        if here.get_select_type() == h5py.h5s.SEL_ALL:
            rows = RowBlocks(0, 1, 1, shape[0])
        elif rows is None:
            low, high = here.get_select_bounds()
            bounds = int(low[0]), int(high[0]) + 1
        else:
            bounds = rows.bounds
            _, _, counts, blocks = here.get_regular_hyperslab()
            # Each numbered source has one block of a row.
            times = [1 if count == h5py.h5s.UNLIMITED else int(count) for count in counts[1:]]
            row_values = math.prod(times) * math.prod(map(int, blocks[1:]))
        return cls(names, rows, RowBlocks.of(there), bounds, row_values, _axes_selected(there))

    def followed(self, rows: np.ndarray) -> Iterator[tuple[int, Needed]]:
        """Yield the number of each source that rows come from, and a function that returns its rows."""
        if self.names.is_numbered and self.rows is not None and self.rows.count is None:
            for number in self.rows.numbers(rows).tolist():
                yield number, partial(self._there, self.rows.only(number), rows)
        elif self.rows is None or self.rows.takes(rows):
            # Numbered sources side by side: each has a part of every row.
            for number in itertools.count() if self.names.is_numbered else (0,):
                yield number, partial(self._there, self.rows, rows)

    def _there(self, taken: RowBlocks | None, rows: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
        """Return the rows of a source of some shape that correspond to `rows`; all if it is not mapped row by row."""
        source, alike = self.source_rows, True
        if self.source_ndim is None:
            # The source may have another shape now. libhdf5 then maps all of it value by value.
            source, alike = RowBlocks(0, 1, 1, shape[0]), math.prod(shape[1:]) == self.row_values
        if taken is None or source is None or source.rows != taken.rows or not alike:
            return np.arange(shape[0])
        return taken.moved_to(source, rows)
