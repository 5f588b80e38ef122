"""Layouts of files and columns, as frozen values that pickle, print and compare."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeAlias

import numpy as np

from ray_h5.content_equality import ComparedByContent
from ray_h5.manifest.file_state import SourceStates
from ray_h5.manifest.value_type import Kind, ValueType
from ray_h5.storage.byte_source import Identity

Storage = Literal["contiguous", "chunked", "compact", "virtual", "external"]

LAYOUT_BYTES = 2 << 10
"""What a layout takes in memory, about (measured): caches count it."""


@dataclass(frozen=True, slots=True)
class FilterStep:
    """One step of a filter pipeline: its registered id, name and parameters."""

    id: int
    name: str
    client_data: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class FilterPipeline:
    """The filters that were applied to a chunk when it was written, in that order."""

    steps: tuple[FilterStep, ...] = ()

    def __str__(self) -> str:
        return "+".join(step.name for step in self.steps) or "none"

    @property
    def all_skipped(self) -> int:
        """The filter mask of a chunk to which none of them was applied."""
        return (1 << len(self.steps)) - 1


@dataclass(frozen=True, slots=True, eq=False)
class ColumnLayout(ComparedByContent):
    """How one column is stored.

    Attributes
    ----------
    name : str
        Path of the dataset below the group.
    type : ValueType
        The type of a value, which is a row along the first axis.
    num_rows : int
        Length of the first axis.
    stored_dtype : numpy.dtype
        dtype of the bytes in the file; big-endian if the file says so.
    storage : str
        Layout class of the dataset.
    chunk_shape : tuple of int, optional
        Shape of a chunk, if chunked.
    pipeline : FilterPipeline
        The filter pipeline.
    offset : int, optional
        Where contiguous data begins in the file, in bytes.
    fill : numpy.ndarray, optional
        0-d array of `stored_dtype`: the value of rows that were never written; None for zeros.
    item_bytes : int
        Size of a value in the file; 0 if it is not known.
    user_block : int
        Size of the user block, which is before the HDF5 part of the file, in bytes: addresses begin after it.
    sources : tuple of (str, Identity or None)
        Other files that the values come from, through external links, virtual datasets or external
        storage. None is a missing file; it is used once it exists.
    direct : bool
        Whether the stored bytes, once they are decoded, are the values, so that this package reads them without
        libhdf5.
    file_type : bytes
        If values are made here of stored bytes, as text and arrays of varying length are, and types that numpy lacks:
        the size of a length and of an address in the file, a byte each, and the type as libhdf5 encodes it. Of other
        columns that are not direct, the values are in other datasets.
    odd_type : str
        For numbers and booleans of a type that numpy does not have: a description of that type.
    lost_fields : tuple of str
        For compound values: fields of HDF5's own time, which neither h5py nor numpy has, and references.
    path : str
        The file, for messages: layouts of two files may be equal.
    """

    name: str
    type: ValueType
    num_rows: int
    stored_dtype: np.dtype
    storage: Storage
    chunk_shape: tuple[int, ...] | None = None
    pipeline: FilterPipeline = FilterPipeline()
    offset: int | None = None
    fill: np.ndarray | None = None
    item_bytes: int = 0
    user_block: int = 0
    sources: SourceStates = ()
    direct: bool = False
    file_type: bytes = b""
    odd_type: str = ""
    lost_fields: tuple[str, ...] = ()
    path: str = field(default="", compare=False)

    @property
    def where(self) -> str:
        """File and column, for the beginning of a message."""
        return f"{self.path}: column {self.name!r}" if self.path else f"column {self.name!r}"

    @property
    def fill_value(self) -> np.ndarray:
        """The value of rows that were never written, as a 0-d array."""
        return np.zeros((), self.stored_dtype) if self.fill is None else self.fill

    @property
    def is_decoded(self) -> bool:
        """Whether the stored bytes are read and decoded here."""
        return self.direct or bool(self.file_type)

    @property
    def kind(self) -> Kind:
        return self.type.kind

    @property
    def dtype(self) -> np.dtype:
        """Dtype of the values that a read returns: the stored one in native byte order."""
        return self.type.dtype

    @property
    def element(self) -> np.dtype | None:
        return self.type.element

    @property
    def row_shape(self) -> tuple[int, ...]:
        return self.type.row_shape

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the dataset, followed by the shape of its array type if it has one."""
        return (self.num_rows, *self.type.row_shape)

    @property
    def row_bytes(self) -> int:
        return math.prod(self.row_shape) * self.stored_dtype.itemsize

    @property
    def chunk_rows(self) -> int:
        """Rows that are fetched and decoded together; 1 if each row can be read alone."""
        return self.chunk_shape[0] if self.chunk_shape else 1

    @property
    def chunk_bytes(self) -> int:
        """Bytes of a decoded chunk."""
        return math.prod(self.chunk_shape or ()) * (self.item_bytes or self.stored_dtype.itemsize)

    def with_shape(self, shape: tuple[int, ...], **changes: Any) -> ColumnLayout:
        """Return the layout of an array of another shape, with other fields."""
        return replace(self, num_rows=shape[0], type=replace(self.type, row_shape=shape[1:]), **changes)

    def with_type(self, type_: ValueType, **changes: Any) -> ColumnLayout:
        """Return the layout of values of another type, with other fields."""
        dtype = self.stored_dtype if type_.dtype == self.type.dtype else type_.dtype
        return replace(self, type=type_, stored_dtype=dtype, **changes)

    def made(self, type_: ValueType | None = None, **changes: Any) -> ColumnLayout:
        """Return the layout of values that are made of these: they lie nowhere, and have no value that fills them."""
        return self.with_type(self.type if type_ is None else type_, offset=None, fill=None, **changes)


@dataclass(frozen=True, slots=True)
class FileLayout:
    """The columns below one group of one file.

    Attributes
    ----------
    path : str
        The file.
    group : str
        The group that column names are relative to.
    identity : Identity
        The state of the file that was read.
    columns : mapping of str to ColumnLayout
        The columns that can be read.
    refused : mapping of str to Exception
        The columns that cannot be read, and the error that reading each raises.
    sought : SourceStates
        Other files that decide which columns there are: those that links to groups lead to, and those of columns that
        cannot be read.
    """

    path: str
    group: str
    identity: Identity
    columns: Mapping[str, ColumnLayout]
    refused: Mapping[str, Exception]
    sought: SourceStates = ()


EncodingKind: TypeAlias = Literal[
    "csr", "csc", "compressed", "category", "optional", "frame", "ragged", "pandas", "references", "other"
]

Form: TypeAlias = Literal["", "anndata", "10x", "loom", "pandas", "ray_h5"]
"""What kind of file it is, as far as that decides what its rows are; empty for files of datasets."""


@dataclass(frozen=True, slots=True)
class Encoding:
    """What a group, or a dataset, encodes.

    Attributes
    ----------
    kind : str
        ``csr`` and ``csc``: a sparse matrix, compressed along its rows or its columns. ``compressed``: one that does
        not say which. ``category``: codes, and the values that they stand for. ``optional``: values, and a mask of
        those that are missing. ``frame``: a table. ``ragged``: an array of varying length. ``references``: what other
        objects hold. ``other``: something else.
    said : str
        What the file calls it, for messages.
    shape : tuple of int
        Shape of a sparse matrix; empty if it is in a dataset ``shape``, or not said.
    values : str
        Dataset, below the group that the file was opened with, of the codes or values.
    other : str
        That of the categories, or the mask.
    index : str
        Name of the index of a table.
    text : str
        The form of an awkward array, or the columns of a table of pandas, as JSON.
    """

    kind: EncodingKind
    said: str
    shape: tuple[int, ...] = ()
    values: str = ""
    other: str = ""
    index: str = ""
    text: str = ""


@dataclass(frozen=True, slots=True)
class ColumnNotes:
    """What the file says about the values of a column.

    Attributes
    ----------
    packing : mapping of str to str
        Attributes of the CF conventions that convert stored values to physical ones, such as ``scale_factor``.
    enum : mapping of str to int
        The names of the values, if they are an enum.
    bare_dimension : bool
        Whether it is a dimension of netCDF without coordinates. It has a length and no values.
    time : str
        What numbers count, if they are times: ``days since 2000-01-01``.
    """

    packing: Mapping[str, str] = field(default_factory=dict)
    enum: Mapping[str, int] = field(default_factory=dict)
    bare_dimension: bool = False
    time: str = ""

    @property
    def follows_cf(self) -> bool:
        """Whether stored values are others than the attributes mean."""
        return bool(self.packing or self.time)

    @property
    def conversion(self) -> str:
        """What to do with stored values to get the values that the attributes mean; empty if nothing."""
        packing = self.packing
        compute = "value"
        if "scale_factor" in packing:
            compute += f" * {packing['scale_factor']}"
        if "add_offset" in packing:
            compute += f" + {packing['add_offset']}"
        if "scale_factor" in packing:
            compute += " (the rule of CF; some files mean value / scale_factor, and divide)"
        missing = list(dict.fromkeys(packing[name] for name in ("_FillValue", "missing_value") if name in packing))
        todo = [f"compute {compute}"] if compute != "value" else []
        todo += [f"take {' and '.join(missing)} for missing"] if missing else []
        todo += [f"count {self.time}"] if self.time else []
        return ", and ".join(todo)
