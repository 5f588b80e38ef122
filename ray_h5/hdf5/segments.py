"""Columns that consist of many datasets, as tables: which datasets, of which shapes, and where they are in the file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from ray_h5.hdf5.layout import ColumnLayout

NOT_WRITTEN = -1
"""Offset of a contiguous dataset that was never written."""


@dataclass(frozen=True, eq=False)
class Segments:
    """One column whose values are in many datasets of a file, the segments.

    A *unit* is one index of the first axis of a segment; a segment with a single value is one unit. Units are numbered
    through all segments.

    Attributes
    ----------
    name : str
        The column.
    paths : sequence of str
        The datasets, below the group that the file was opened with; None where a group lacks the column.
    layouts : tuple of ColumnLayout
        One layout for each class of segments: segments that agree in all but their names, lengths and places. Its
        first axis has one unit.
    class_of : numpy.ndarray
        int32: the class of each segment; -1 where a group lacks the column.
    shapes : numpy.ndarray
        int64 of shape (segments, axes): the shape of each dataset, with the axes of an array type.
    offsets : numpy.ndarray
        int64: where a contiguous dataset begins in the file, or `NOT_WRITTEN`.
    single : bool
        Whether each segment has a single value, and no axis.
    """

    name: str
    paths: Sequence[str | None]
    layouts: tuple[ColumnLayout, ...]
    class_of: np.ndarray
    shapes: np.ndarray
    offsets: np.ndarray
    single: bool = False

    def __len__(self) -> int:
        return len(self.class_of)

    @cached_property
    def lengths(self) -> np.ndarray:
        """int64: the units of each segment."""
        if self.single:
            return (self.class_of >= 0).astype(np.int64)
        return self.shapes[:, 0] if self.shapes.shape[1] else np.zeros(len(self), np.int64)

    @cached_property
    def starts(self) -> np.ndarray:
        """int64: the first unit of each segment; the last entry is the number of units."""
        return np.concatenate([[0], np.cumsum(self.lengths)])

    @property
    def unit_shape(self) -> tuple[int, ...] | None:
        """Shape of a unit; None if segments differ in it, so that no array holds units of all segments."""
        shapes = {layout.row_shape for layout in self.layouts}
        return shapes.pop() if len(shapes) == 1 else None

    @property
    def common_shape(self) -> tuple[int | None, ...]:
        """Shape of a segment; None for an axis along which they differ."""
        if self.single:
            return self.layouts[0].row_shape
        there = self.shapes[self.class_of >= 0]
        if not len(there):
            return (None,) * self.shapes.shape[1]
        same = (there == there[0]).all(axis=0)
        return tuple(int(n) if alike else None for n, alike in zip(there[0], same, strict=True))

    @property
    def unit(self) -> ColumnLayout:
        """A layout with the type of all segments, and the shape of a unit of the first class."""
        return replace(self.layouts[0], stored_dtype=self.dtype) if len(self.layouts) > 1 else self.layouts[0]

    @property
    def dtype(self) -> np.dtype:
        """Dtype of an array that holds values of all segments. Texts may have several lengths."""
        return np.result_type(*(layout.dtype for layout in self.layouts))

    def segments_of(self, units: np.ndarray) -> np.ndarray:
        """Return the segment of each unit."""
        return np.searchsorted(self.starts, units, side="right") - 1


@dataclass(frozen=True, eq=False)
class GroupTable:
    """The groups, or datasets, of a file that match a pattern, in the order of rows.

    Attributes
    ----------
    names : tuple of str
        Their paths, below the group that the file was opened with.
    columns : dict of str to Segments
        Their datasets, by the name below each group.
    attributes : dict of str to numpy.ndarray
        The attributes that were asked for: one value for each group. Strings are objects.
    """

    names: tuple[str, ...]
    columns: dict[str, Segments]
    attributes: dict[str, np.ndarray]

    def __len__(self) -> int:
        return len(self.names)
