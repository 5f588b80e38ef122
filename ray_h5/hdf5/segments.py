"""Columns that consist of many datasets, as tables: which datasets, of which shapes, and where they are in the file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import overload

import numpy as np

from ray_h5.hdf5.layout import ColumnLayout


@dataclass(frozen=True, eq=False)
class Texts(Sequence[bytes]):
    """Many short texts as one: 10^6 of them are two arrays, and not 10^6 objects, in memory and in a pickle.

    Attributes
    ----------
    data : bytes
        The texts, one after the other.
    ends : numpy.ndarray
        int64: where each of them ends.
    """

    data: bytes
    ends: np.ndarray

    @classmethod
    def of(cls, texts: Sequence[bytes]) -> Texts:
        """Return the same texts."""
        sizes = np.fromiter(map(len, texts), np.int64, len(texts))
        return cls(b"".join(texts), np.cumsum(sizes))

    def __len__(self) -> int:
        return len(self.ends)

    @overload
    def __getitem__(self, at: int) -> bytes: ...
    @overload
    def __getitem__(self, at: slice) -> Texts: ...
    def __getitem__(self, at: int | slice) -> bytes | Texts:
        if isinstance(at, slice):
            return Texts.of([self[i] for i in range(*at.indices(len(self)))])
        at = range(len(self))[at]
        return self.data[self.ends[at - 1] if at else 0 : self.ends[at]]

    def take(self, at: np.ndarray) -> np.ndarray:
        """Return some texts, as an array of objects."""
        begins = np.where(at > 0, self.ends[at - 1], 0).tolist() if len(self) else []
        found = np.empty(len(at), object)
        found[:] = [self.data[a:b] for a, b in zip(begins, self.ends[at].tolist(), strict=True)]
        return found


@dataclass(frozen=True, eq=False)
class Paths(Sequence[str]):
    """Paths in a file: those of groups, or of what has one name in each of them.

    Attributes
    ----------
    groups : Texts
        The groups, in UTF-8.
    below : str
        What is added to each: ``"/actions"``; nothing for the groups themselves.
    """

    groups: Texts
    below: str = ""

    @classmethod
    def of(cls, paths: Sequence[str]) -> Paths:
        """Return the same paths."""
        return cls(Texts.of([path.encode() for path in paths]))

    def __len__(self) -> int:
        return len(self.groups)

    @overload
    def __getitem__(self, at: int) -> str: ...
    @overload
    def __getitem__(self, at: slice) -> Paths: ...
    def __getitem__(self, at: int | slice) -> str | Paths:
        if isinstance(at, slice):
            return Paths(self.groups[at], self.below)
        return self.groups[at].decode() + self.below


NOT_WRITTEN = -1
"""Offset of a contiguous dataset that was never written."""


MISSING = -1
"""Class of a segment where a group lacks the column."""


@dataclass(frozen=True, eq=False)
class Segments:
    """One column whose values are in many datasets of a file, the segments.

    A *unit* is one index of the first axis of a segment; a segment with a single value is one unit. Units are numbered
    through all segments.

    Attributes
    ----------
    name : str
        The column.
    paths : Paths
        The datasets, below the group that the file was opened with. A group may lack the column; see `class_of`.
    layouts : tuple of ColumnLayout
        One layout for each class of segments: segments that agree in all but their names, lengths and places. Its
        first axis has one unit.
    class_of : numpy.ndarray
        int32: the class of each segment, or `MISSING`.
    shapes : numpy.ndarray
        int64 of shape (segments, axes): the shape of each dataset, with the axes of an array type.
    offsets : numpy.ndarray
        int64: where a contiguous dataset begins in the file, or `NOT_WRITTEN`.
    single : bool
        Whether each segment has a single value, and no axis.
    """

    name: str
    paths: Paths
    layouts: tuple[ColumnLayout, ...]
    class_of: np.ndarray
    shapes: np.ndarray
    offsets: np.ndarray
    single: bool = False

    def __len__(self) -> int:
        return len(self.class_of)

    @cached_property
    def is_there(self) -> np.ndarray:
        """bool: whether each group has the column."""
        return self.class_of != MISSING

    @cached_property
    def lengths(self) -> np.ndarray:
        """int64: the units of each segment."""
        if self.single:
            return self.is_there.astype(np.int64)
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
        there = self.shapes[self.is_there]
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
    names : Paths
        Their paths, below the group that the file was opened with.
    columns : dict of str to Segments
        Their datasets, by the name below each group.
    attributes : dict of str to numpy.ndarray or Texts
        The attributes that were asked for: one value for each group.
    """

    names: Paths
    columns: dict[str, Segments]
    attributes: dict[str, np.ndarray | Texts]

    def __len__(self) -> int:
        return len(self.names)
