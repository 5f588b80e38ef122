"""Columns that consist of many datasets, as tables: which datasets, of which shapes, and where they are in the file."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, overload

import numpy as np

from ray_h5.manifest.layout import LAYOUT_BYTES, ColumnLayout, ValueArray
from ray_h5.manifest.partition import Partition
from ray_h5.merged_facts import Facts
from ray_h5.per_process import cached_property

if TYPE_CHECKING:
    from ray_h5.manifest.known_columns import PackedIndex


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

    @property
    def nbytes(self) -> int:
        return len(self.data) + self.ends.nbytes

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
        texts = np.empty(len(at), object)
        texts[:] = [self.data[a:b] for a, b in zip(begins, self.ends[at].tolist(), strict=True)]
        return texts


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


MISSING, LACKS, ENDS = -1, "lacks ", "ends "
"""Class of a dataset where a group lacks the column; and before an attribute, what says which groups lack its text, or
where the values of each end, if groups have several."""


@dataclass(frozen=True, eq=False)
class JoinedValues:
    """The values that many groups have of a column, one group after the other: how many each has, and of which type.

    A *unit* is one index of the first axis of what a group has; a single value is one unit. Units are numbered through
    all groups::

        class_of   0   0  MISSING  1        of two classes: dtypes or shapes of a unit differ
        shapes   (2,3) (1,3) (0,0) (2,5)
        units     0 1    2           3 4

    Attributes
    ----------
    name : str
        The column.
    paths : Paths
        The datasets, or the groups that have values of a column that is made of several, below the group that the file
        was opened with. A group may lack the column; see `class_of`.
    layouts : tuple of ValueArray
        One array for each class: values that agree in all but their names, lengths and places. Its first axis has one
        unit.
    class_of : numpy.ndarray
        int32: the class of what each group has, or `MISSING`.
    shapes : numpy.ndarray
        int64 of shape (groups, axes): the shape of what each group has, with the axes of an array type.
    single : bool
        Whether each group has a single value, and no axis.
    """

    name: str
    paths: Paths
    layouts: tuple[ValueArray, ...]
    class_of: np.ndarray
    shapes: np.ndarray
    single: bool = False

    def __len__(self) -> int:
        return len(self.class_of)

    @cached_property
    def is_there(self) -> np.ndarray:
        """bool: whether each group has the column."""
        return self.class_of != MISSING

    @cached_property
    def lengths(self) -> np.ndarray:
        """int64: the units of each group."""
        if self.single:
            return self.is_there.astype(np.int64)
        return self.shapes[:, 0] if self.shapes.shape[1] else np.zeros(len(self), np.int64)

    @cached_property
    def units(self) -> Partition:
        """The units of each group."""
        return Partition.of(self.lengths)

    @property
    def nbytes(self) -> int:
        """Bytes in memory, about, without the paths."""
        arrays = self.class_of, self.shapes, self.is_there, self.lengths, self.units.starts
        return sum(array.nbytes for array in arrays) + len(self.layouts) * LAYOUT_BYTES

    @cached_property
    def unit_shape(self) -> tuple[int, ...] | None:
        """Shape of a unit; None if groups differ in it, so that no array holds units of all."""
        shapes = {layout.row_shape for layout in self.layouts}
        return shapes.pop() if len(shapes) == 1 else None

    @cached_property
    def dtype(self) -> np.dtype:
        """Dtype of an array that holds values of all groups. Texts may have several lengths."""
        return np.result_type(*(layout.dtype for layout in self.layouts))


@dataclass(frozen=True, eq=False)
class JoinedArray(JoinedValues):
    """An array whose units are those of many datasets of a file, one after the other: a column of groups.

    Attributes
    ----------
    layouts : tuple of ColumnLayout
        One layout for each class of datasets. Its sources are the file that has them, if it is the second of two read
        together.
    offsets : numpy.ndarray
        int64: where a contiguous dataset begins in the file, or `UNALLOCATED`.
    chunks : PackedIndex, optional
        Of a file in a store: the chunks of all datasets, numbered as `chunk_numbers` says.
    """

    layouts: tuple[ColumnLayout, ...]
    offsets: np.ndarray = field(kw_only=True)
    chunks: PackedIndex | None = None

    @property
    def is_chunked(self) -> np.ndarray:
        """bool: whether each dataset consists of chunks that are read without libhdf5."""
        of_class = np.array([layout.is_decoded and layout.storage == "chunked" for layout in self.layouts])
        return of_class[self.class_of] & self.is_there

    @cached_property
    def chunk_numbers(self) -> Partition:
        """The numbers that the chunks of each dataset may have."""
        rows, per_row = np.ones((2, len(self.layouts)), np.int64)
        for number, layout in enumerate(self.layouts):
            if layout.chunk_shape:
                rows[number] = layout.chunk_shape[0]
                per_row[number] = math.prod(
                    -(-n // c) for n, c in zip(layout.row_shape, layout.chunk_shape[1:], strict=False)
                )
        counts = -(-self.lengths // rows[self.class_of]) * per_row[self.class_of] * self.is_chunked
        return Partition.of(counts)

    @property
    def nbytes(self) -> int:
        """Bytes in memory, about, without the paths."""
        packed = 0 if self.chunks is None else len(self.chunks.data)
        return super().nbytes + self.offsets.nbytes + packed

    @property
    def unit(self) -> ColumnLayout:
        """A layout with the type of all datasets, and the shape of a unit of the first class."""
        first = self.layouts[0]
        return first.with_type(replace(first.type, dtype=self.dtype)) if len(self.layouts) > 1 else first


@dataclass(frozen=True, eq=False)
class GroupTable(Facts):
    """The groups, or datasets, of a file that match a pattern, in the order of rows.

    Attributes
    ----------
    names : Paths
        Their paths, below the group that the file was opened with.
    columns : dict of str to JoinedArray
        Their datasets, by the name below each group.
    attributes : dict of str to numpy.ndarray or Texts
        The attributes that were asked for: one value for each group; after `LACKS`, bools of those that lack a text.
    made : dict of str to JoinedValues
        By column: what groups have of those that are no datasets as they are stored.
    """

    names: Paths
    columns: dict[str, JoinedArray]
    attributes: dict[str, np.ndarray | Texts]
    made: dict[str, JoinedValues] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.names)

    @property
    def nbytes(self) -> int:
        """Bytes in memory, about. Columns share the paths of groups."""
        texts = {
            id(column): column.nbytes
            for column in (self.names.groups, *(c.paths.groups for c in self.columns.values()))
        }
        held = (*self.columns.values(), *self.made.values(), *self.attributes.values())
        return sum(texts.values()) + sum(array.nbytes for array in held)

    def values_of(self, name: str) -> JoinedValues | None:
        """Return what groups have of a column, as far as it is known."""
        return self.made.get(name, self.columns.get(name))
