"""Which indices, positions and bytes of an array are the values of rows: one value for all kinds of rows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np

from ray_h5.manifest.joined_arrays import JoinedArray
from ray_h5.manifest.layout import ColumnLayout
from ray_h5.manifest.row_requests import runs_between

Runs: TypeAlias = tuple[tuple[int, int], ...]
"""Positions along an axis, in the order of their delivery: the first of each run, and how many follow each other."""


@dataclass(frozen=True, slots=True)
class Selection:
    """A column whose rows are boxes of an array.

    A row is the corner of its box, as a number: its place along `axes`, in C order. What a box has past the end of
    an axis is zero.

    Attributes
    ----------
    array : str or JoinedArray
        The dataset, or many.
    axes : tuple of int
        The axes that boxes cut; they have the others as a whole, or parts of them.
    shape : tuple of int
        The shape of a box along `axes`; empty if a box has one index of each, and a row does not have these axes.
    taken : tuple of (Runs or None)
        The positions along each axis of the array, of those that boxes do not cut; None for all.
    of_value : Runs
        The bytes of each value, of fields of compound values; empty for whole values.
    dtype : numpy.dtype, optional
        What these bytes are, as they are stored; None for whole values.
    is_reversed : bool
        Whether the axes of a row are in the opposite order, as MATLAB has them.
    """

    array: str | JoinedArray
    axes: tuple[int, ...] = (0,)
    shape: tuple[int, ...] = ()
    taken: tuple[Runs | None, ...] = ()
    of_value: Runs = ()
    dtype: np.dtype | None = None
    is_reversed: bool = False

    def extents(self, layout: ColumnLayout) -> tuple[int, ...]:
        """Return the lengths of the axes that boxes cut."""
        return tuple(layout.shape[axis] for axis in self.axes)

    def box_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        """Return the shape of a box of an array of some shape, with all axes of the array."""
        lengths = list(shape)
        for axis, length in zip(self.axes, self.shape or (1,) * len(self.axes), strict=True):
            lengths[axis] = length
        for axis, runs in enumerate(self.taken):
            if runs is not None:
                lengths[axis] = sum(count for _, count in runs)
        return tuple(lengths)

    def corners(self, rows: np.ndarray, layout: ColumnLayout) -> np.ndarray:
        """Return the corners of boxes along all axes of the array: int64 of shape (rows, axes)."""
        begins = np.zeros((len(rows), len(layout.shape)), np.int64)
        for axis, at in zip(self.axes, np.unravel_index(rows, self.extents(layout)), strict=True):
            begins[:, axis] = at
        return begins


def runs_of_positions(positions: np.ndarray) -> Runs:
    """Return positions as runs of those that follow each other."""
    if not len(positions):
        return ()
    starts, stops = runs_between(positions[1:] != positions[:-1] + 1)
    return tuple(zip(positions[starts].tolist(), (stops - starts).tolist(), strict=True))


def layout_of_boxes(layout: ColumnLayout, selection: Selection) -> ColumnLayout:
    """Return the layout of the boxes of an array: the first axis is the corners."""
    shape = (math.prod(selection.extents(layout)), *selection.box_shape(layout.shape))
    return replace(layout, shape=shape, chunk_shape=None, fill=None, offset=None)


def rows_in_order(layout: ColumnLayout, axes: int) -> ColumnLayout | None:
    """Return the layout of an array with its first axes as one, if rows of it follow each other in the file so.

    They do in chunks of one index of all of these axes but the last. The chunks keep their numbers.
    """
    if axes == 1:
        return layout
    shape = (math.prod(layout.shape[:axes]), *layout.shape[axes:])
    if (chunk := layout.chunk_shape) is None:
        return replace(layout, shape=shape)
    if any(size > 1 for size in chunk[: axes - 1]) or layout.shape[axes - 1] % chunk[axes - 1]:
        return None
    return replace(layout, shape=shape, chunk_shape=chunk[axes - 1 :])
