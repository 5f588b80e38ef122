"""Blocks of datasets that one column has end to end: each is made of its lines, and each line is in one dataset."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from ray_h5.buffers import empty
from ray_h5.columns.ragged.range_columns import OfParts
from ray_h5.columns.stored_values import Stored
from ray_h5.columns.values import Decoded, Reading, Taken, Values
from ray_h5.manifest.indices import Indices
from ray_h5.manifest.joined_arrays import JoinedArray
from ray_h5.manifest.layout import ValueArray
from ray_h5.manifest.partition import Partition
from ray_h5.manifest.row_requests import Request, request_of


@dataclass(frozen=True, eq=False)
class BlocksEndToEnd(Values):
    """Blocks of values end to end. Their units are places along the axes that they cut, as of `Take`.

    A line is what a block has of one index of the first axis. A block of 3 lines from index 2 on is in two datasets::

        dataset   |     0     |        1        |
        index     | 0   1   2 | 0   1   2   3   |
        lines               2   3   4

    Attributes
    ----------
    lines : Values
        Lines. Their units are places along the first axis and those that blocks cut.
    length, places : int
        How many indices the first axis has, and how many places each of them has.
    at : numpy.ndarray
        int64: the indices of a block along the first axis: from its corner on, or from 0 if `is_whole`.
    is_whole : bool
        Whether blocks do not cut the first axis.
    """

    lines: Values
    length: int
    places: int
    at: np.ndarray
    is_whole: bool

    @classmethod
    def of(cls, values: Values, axes: tuple[int, ...], shape: tuple[int, ...], taken: Indices) -> Values:
        """Return blocks of a shape along `axes`; `taken` has indices along axes that they do not cut."""
        if isinstance(values, Decoded):
            return replace(values, values=cls.of(values.values, axes, shape, taken))
        array, is_whole, first = values.array, 0 not in axes, taken[0] if taken else None
        at = np.arange(array.num_rows if is_whole else shape[0])
        at = at if first is None else first.indices
        others = axes if is_whole else axes[1:]
        places = math.prod(array.shape[axis] for axis in others)
        box = (1, *(shape if is_whole else shape[1:]))
        lines = _lines(values, (0, *others), box, (None, *taken[1:]), places)
        return cls(lines, array.num_rows, places, at, is_whole)

    @property
    def array(self) -> ValueArray:
        line = self.lines.array
        rows = self.places if self.is_whole else line.num_rows
        return line.with_shape((rows, len(self.at), *line.row_shape[1:]))

    def reading(self, units: Request, out: np.ndarray) -> Reading:
        wanted, line, count = units.listed(), self.lines.array, len(self.at)
        corners, rest = (0, wanted.rows) if self.is_whole else np.divmod(wanted.rows, self.places)
        indices = np.add.outer(corners, self.at) if not self.is_whole else np.tile(self.at, (len(wanted), 1))
        rows = (indices * self.places + rest[:, None]).reshape(-1)
        is_there = np.flatnonzero(indices.reshape(-1) < self.length)
        blocks = empty((len(rows), *line.row_shape), line.dtype, line.where)
        blocks[indices.reshape(-1) >= self.length] = np.zeros((), line.dtype)

        def finish() -> None:
            out[wanted.places] = blocks.reshape(len(wanted), count, *line.row_shape[1:])

        return self.lines.reading(request_of(rows[is_there], is_there), blocks).then(finish)


def can_be_cut(values: Values) -> bool:
    """Return whether blocks of values end to end can be read: numbers of datasets, as they are stored or unpacked."""
    if isinstance(values, Decoded):
        return values.of_each_value and values.mask is None and values.table_of is None and can_be_cut(values.values)
    if isinstance(values, OfParts):
        return values.of is None and all(map(can_be_cut, values.parts))
    if isinstance(values, Taken):
        return values.entries is None and can_be_cut(values.values)
    return isinstance(values, Stored) and isinstance(values.address, (str, JoinedArray))


def num_axes(values: Values) -> int:
    """Return how many axes the arrays of values have, without those that fields add."""
    if isinstance(values, (Decoded, Taken)):
        return num_axes(values.values)
    if isinstance(values, OfParts):
        return num_axes(values.parts[0])
    return len(values.layout.shape if isinstance(values, Stored) else values.array.shape)


def _lines(values: Values, axes: tuple[int, ...], box: tuple[int, ...], taken: Indices, places: int) -> Values:
    """Return boxes of one index of the first axis; their units are places along it and the axes that blocks cut."""
    if isinstance(values, Decoded):
        return replace(values, values=_lines(values.values, axes, box, taken, places))
    if isinstance(values, OfParts):
        lines = tuple(_lines(part, axes, box, taken, places) for part in values.parts)
        units = None if values.units is None else Partition(values.units.starts * places)
        return replace(values, parts=lines, part_of=_of_lines(values.part_of, places), units=units)
    if isinstance(values, Taken):  # what fields add is taken of whole lines, which have one axis more
        return replace(values, values=_lines(values.values, axes, box, taken, places), taken=(None, *values.taken))
    assert isinstance(values, Stored)
    return values.boxes(axes, box, taken)


def _of_lines(
    part_of: Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]], places: int
) -> Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]:
    """Return the part of each line, and its number among those of that part, given those of units."""

    def of(lines: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        units, rest = np.divmod(lines, places)
        parts, units = part_of(units)
        return parts, units * places + rest

    return of
