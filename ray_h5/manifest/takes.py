"""Takes: which indices, positions and bytes of an array the values of rows are."""

# An example: of rows that are blocks of 2 x 3 of an array (4, 6, 3), channels 0 and 2 are taken, reversed.
#     axis 0   the corner of the block, and 2 indices      axes=(0, 1), shape=(2, 3)
#     axis 1   the corner of the block, and 3 indices
#     axis 2   2, 0                                        taken=(None, None, Along(2, -2, 2))
#     bytes    all, or those of a field at byte 8          of_value=Along.range(8, 4)
# What is taken of this is a take again: channel 0 of it is ``taken=(None, None, Along.range(2, 1))``.

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from ray_h5.manifest.indices import Along, Indices, composed, lengths_of
from ray_h5.manifest.joined_arrays import JoinedArray
from ray_h5.manifest.layout import Array, ColumnLayout


@dataclass(frozen=True, slots=True)
class Take:
    """What rows are of an array: boxes, or parts and fields of boxes, with axes reversed or not.

    A row is the corner of its box, as a number: its place along `axes`, in C order. What a box has past the end of
    an axis is zero. Without anything else, a row is one index of the first axis.

    Attributes
    ----------
    array : str or JoinedArray
        The dataset, or many.
    axes : tuple of int
        The axes that boxes cut; they have the others as a whole, or parts of them.
    shape : tuple of int
        The shape of a box along `axes`; empty if a box has one index of each, and a row does not have these axes.
    taken : tuple of (Along or None)
        The indices along each axis of the array, of those that boxes do not cut; None for all.
    of_value : Along, optional
        The bytes of each value, of fields of compound values; None for whole values.
    dtype : numpy.dtype, optional
        What these bytes are, as they are stored; None for whole values.
    is_reversed : bool
        Whether the axes of a row are in the opposite order, as MATLAB has them.
    """

    array: str | JoinedArray
    axes: tuple[int, ...] = (0,)
    shape: tuple[int, ...] = ()
    taken: Indices = ()
    of_value: Along | None = None
    dtype: np.dtype | None = None
    is_reversed: bool = False

    @property
    def is_plain(self) -> bool:
        """Whether rows are whole: each is one index of each of the first axes."""
        is_whole = self.of_value is None and self.dtype is None and all(at is None for at in self.taken)
        return is_whole and not (self.shape or self.is_reversed) and self.axes == tuple(range(len(self.axes)))

    def part(self, taken: Indices, row_ndim: int) -> Take:
        """Return a part of each row of `row_ndim` axes: indices along axes that boxes do not cut."""
        ndim = row_ndim + (0 if self.shape else len(self.axes))
        own = [axis for axis in range(ndim) if self.shape or axis not in self.axes]
        if self.is_reversed:
            own.reverse()
        of_axes = dict(zip(own, taken, strict=False))
        return replace(self, taken=composed(self.taken, tuple(of_axes.get(axis) for axis in range(ndim))))

    def over(self, axes: int, ndim: int) -> Take:
        """Return rows of one index along each of the first `axes` axes of rows, of an array of `ndim` axes."""
        return replace(self, axes=tuple(ndim - 1 - at if self.is_reversed else at for at in range(axes)))

    def extents(self, layout: ColumnLayout) -> tuple[int, ...]:
        """Return the lengths of the axes that boxes cut."""
        return tuple(layout.shape[axis] for axis in self.axes)

    def box_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        """Return the shape of a box of an array of some shape, with all axes of the array."""
        lengths = lengths_of(shape, self.taken)
        for axis, length in zip(self.axes, self.shape or (1,) * len(self.axes), strict=True):
            lengths[axis] = length
        return tuple(lengths)

    def corners(self, rows: np.ndarray, layout: ColumnLayout) -> np.ndarray:
        """Return the corners of boxes along all axes of the array: int64 of shape (rows, axes)."""
        begins = np.zeros((len(rows), len(layout.shape)), np.int64)
        for axis, at in zip(self.axes, np.unravel_index(rows, self.extents(layout)), strict=True):
            begins[:, axis] = at
        return begins

    def layout(self, array: ColumnLayout) -> ColumnLayout:
        """Return the layout of the boxes of an array: the first axis is the corners."""
        shape = (math.prod(self.extents(array)), *self.box_shape(array.shape))
        return array.with_shape(shape, chunk_shape=None, offset=None, fill=None)


def rows_in_order(layout: Array, axes: int) -> Array | None:
    """Return the layout of an array with its first axes as one, if rows of it follow each other in the file so.

    They do in chunks of one index of all of these axes but the last. The chunks keep their numbers.
    """
    if axes == 1:
        return layout
    shape = (math.prod(layout.shape[:axes]), *layout.shape[axes:])
    if (chunk := layout.chunk_shape) is None:
        return layout.with_shape(shape)
    if any(size > 1 for size in chunk[: axes - 1]) or layout.shape[axes - 1] % chunk[axes - 1]:
        return None
    return layout.with_shape(shape, chunk_shape=chunk[axes - 1 :])
