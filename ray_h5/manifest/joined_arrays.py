"""Columns that consist of many datasets, as tables: which datasets, of which shapes, and where they are in the file."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, overload

import numpy as np

from ray_h5.manifest.layout import LAYOUT_BYTES, ColumnLayout
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
class JoinedArray:
    """An array whose units are those of many datasets of a file, one after the other: a column of groups.

    A *unit* is one index of the first axis of a dataset; a dataset with a single value is one unit. Units are numbered
    through all datasets.

    Attributes
    ----------
    name : str
        The column.
    paths : Paths
        The datasets, below the group that the file was opened with. A group may lack the column; see `class_of`.
    layouts : tuple of ColumnLayout
        One layout for each class of datasets: datasets that agree in all but their names, lengths and places. Its
        first axis has one unit. Its sources are the file that has them, if it is the second of two read together.
    class_of : numpy.ndarray
        int32: the class of each dataset, or `MISSING`.
    shapes : numpy.ndarray
        int64 of shape (datasets, axes): the shape of each dataset, with the axes of an array type.
    offsets : numpy.ndarray
        int64: where a contiguous dataset begins in the file, or `UNALLOCATED`.
    single : bool
        Whether each dataset has a single value, and no axis.
    chunks : PackedIndex, optional
        Of a file in a store: the chunks of all datasets, numbered as `chunk_numbers` says.
    """

    name: str
    paths: Paths
    layouts: tuple[ColumnLayout, ...]
    class_of: np.ndarray
    shapes: np.ndarray
    offsets: np.ndarray
    single: bool = False
    chunks: PackedIndex | None = None

    def __len__(self) -> int:
        return len(self.class_of)

    @cached_property
    def is_there(self) -> np.ndarray:
        """bool: whether each group has the column."""
        return self.class_of != MISSING

    @cached_property
    def lengths(self) -> np.ndarray:
        """int64: the units of each dataset."""
        if self.single:
            return self.is_there.astype(np.int64)
        return self.shapes[:, 0] if self.shapes.shape[1] else np.zeros(len(self), np.int64)

    @cached_property
    def units(self) -> Partition:
        """The units of each dataset."""
        return Partition.of(self.lengths)

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
        arrays = self.class_of, self.shapes, self.offsets, self.is_there, self.lengths, self.units.starts
        packed = 0 if self.chunks is None else len(self.chunks.data)
        return sum(array.nbytes for array in arrays) + len(self.layouts) * LAYOUT_BYTES + packed

    @cached_property
    def unit_shape(self) -> tuple[int, ...] | None:
        """Shape of a unit; None if datasets differ in it, so that no array holds units of all datasets."""
        shapes = {layout.row_shape for layout in self.layouts}
        return shapes.pop() if len(shapes) == 1 else None

    @property
    def unit(self) -> ColumnLayout:
        """A layout with the type of all datasets, and the shape of a unit of the first class."""
        first = self.layouts[0]
        return first.with_type(replace(first.type, dtype=self.dtype)) if len(self.layouts) > 1 else first

    @cached_property
    def dtype(self) -> np.dtype:
        """Dtype of an array that holds values of all datasets. Texts may have several lengths."""
        return np.result_type(*(layout.dtype for layout in self.layouts))


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
    """

    names: Paths
    columns: dict[str, JoinedArray]
    attributes: dict[str, np.ndarray | Texts]

    def __len__(self) -> int:
        return len(self.names)

    @property
    def nbytes(self) -> int:
        """Bytes in memory, about. Columns share the paths of groups."""
        texts = {
            id(column): column.nbytes
            for column in (self.names.groups, *(c.paths.groups for c in self.columns.values()))
        }
        held = (*self.columns.values(), *self.attributes.values())
        return sum(texts.values()) + sum(array.nbytes for array in held)
