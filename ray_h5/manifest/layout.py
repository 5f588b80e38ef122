"""Layouts of files and columns, as frozen values that pickle, print and compare."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeAlias, TypeVar

import numpy as np

from ray_h5.content_equality import ComparedByContent
from ray_h5.manifest.file_state import SourceStates
from ray_h5.manifest.value_type import HasType, ValueType
from ray_h5.storage.byte_source import Identity

Storage = Literal["contiguous", "chunked", "compact", "virtual", "external"]

if TYPE_CHECKING:
    from typing_extensions import Self

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
class ValueArray(HasType, ComparedByContent):
    """Values of one type, one after the other: those of a dataset, or what is made of some, or what is in memory.

    `RowReader.columns` has one for each column, with what users ask of its type.

    Attributes
    ----------
    name : str
        The column.
    type : ValueType
        The type of a value, which is a row along the first axis.
    num_rows : int
        Length of the first axis.
    chunk_shape : tuple of int, optional
        Shape of what is fetched and decoded together, if rows are not read alone.
    item_bytes : int
        Size of a value in the file, of rows of varying shape in the mean; 0 if it is not known.
    sources : tuple of (str, Identity or None)
        Other files that the values come from, through external links, virtual datasets or external
        storage. None is a missing file; it is used once it exists.
    direct : bool
        Whether the stored bytes, once they are decoded, are the values, so that this package reads them without
        libhdf5.
    pipeline : FilterPipeline
        The filters of the dataset, or of the first one of those that values are made of.
    path : str
        The file, for messages: arrays of two files may be equal.
    """

    name: str
    type: ValueType
    num_rows: int
    chunk_shape: tuple[int, ...] | None = None
    item_bytes: int = 0
    sources: SourceStates = ()
    direct: bool = False
    pipeline: FilterPipeline = FilterPipeline()
    path: str = field(default="", compare=False)

    @property
    def where(self) -> str:
        """File and column, for the beginning of a message."""
        return f"{self.path}: column {self.name!r}" if self.path else f"column {self.name!r}"

    @property
    def ragged_shape(self) -> tuple[int | None, ...]:
        return self.type.ragged_shape

    @property
    def enum(self) -> tuple[tuple[str, int], ...]:
        return self.type.enum

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the array: rows, and the shape of a value."""
        return (self.num_rows, *self.type.row_shape)

    @property
    def row_bytes(self) -> int:
        return self.type.value_bytes

    @property
    def chunk_rows(self) -> int:
        """Rows that are fetched and decoded together; 1 if each row can be read alone."""
        return self.chunk_shape[0] if self.chunk_shape else 1

    def with_shape(self, shape: tuple[int, ...], **changes: Any) -> Self:
        """Return an array of another shape, with other fields."""
        return replace(self, num_rows=shape[0], type=replace(self.type, row_shape=shape[1:]), **changes)

    def with_type(self, type_: ValueType, **changes: Any) -> Self:
        """Return an array of values of another type, with other fields."""
        return replace(self, type=type_, **changes)

    def made(self, type_: ValueType | None = None, **changes: Any) -> ValueArray:
        """Return an array of values that are made of these: of another type, and with other fields.

        They lie nowhere, wherever these lie.
        """
        known = {name: getattr(self, name) for name in _OF_VALUES}
        return ValueArray(**{**known, "type": self.type if type_ is None else type_, **changes})


_OF_VALUES = tuple(one.name for one in fields(ValueArray))


@dataclass(frozen=True, slots=True, eq=False)
class ColumnLayout(ValueArray):
    """How one dataset is stored. Its shape is followed by the shape of its array type if it has one.

    Attributes
    ----------
    storage : str
        Layout class of the dataset.
    file_dtype : numpy.dtype, optional
        dtype of the bytes in the file, if it is not that of `type`: of another byte order.
    offset : int, optional
        Where contiguous data begins in the file, in bytes.
    fill : numpy.ndarray, optional
        0-d array of `stored_dtype`: the value of rows that were never written; None for zeros.
    user_block : int
        Size of the user block, which is before the HDF5 part of the file, in bytes: addresses begin after it.
    file_type : bytes
        If values are made here of stored bytes, as text and arrays of varying length are, and types that numpy lacks:
        the size of a length and of an address in the file, a byte each, and the type as libhdf5 encodes it. Of other
        columns that are not direct, the values are in other datasets.
    odd_type : str
        For numbers and booleans of a type that numpy does not have: a description of that type.
    lost_fields : tuple of str
        For compound values: fields of HDF5's own time, which neither h5py nor numpy has, and references.
    """

    storage: Storage = "contiguous"
    file_dtype: np.dtype | None = None
    offset: int | None = None
    fill: np.ndarray | None = None
    user_block: int = 0
    file_type: bytes = b""
    odd_type: str = ""
    lost_fields: tuple[str, ...] = ()

    @property
    def stored_dtype(self) -> np.dtype:
        """Dtype of the bytes in the file; big-endian if the file says so."""
        return self.type.dtype if self.file_dtype is None else self.file_dtype

    @property
    def fill_value(self) -> np.ndarray:
        """The value of rows that were never written, as a 0-d array."""
        return np.zeros((), self.stored_dtype) if self.fill is None else self.fill

    @property
    def is_decoded(self) -> bool:
        """Whether the stored bytes are read and decoded here."""
        return self.direct or bool(self.file_type)

    @property
    def chunk_bytes(self) -> int:
        """Bytes of a decoded chunk."""
        return math.prod(self.chunk_shape or ()) * (self.item_bytes or self.stored_dtype.itemsize)

    def with_type(self, type_: ValueType, **changes: Any) -> Self:
        is_same = type_.dtype == self.type.dtype
        return replace(self, type=type_, file_dtype=self.file_dtype if is_same else None, **changes)


Array = TypeVar("Array", bound=ValueArray)


@dataclass(frozen=True, slots=True)
class FileLayout(Generic[Array]):
    """The columns below one group of one file.

    Attributes
    ----------
    path : str
        The file.
    group : str
        The group that column names are relative to.
    identity : Identity
        The state of the file that was read.
    columns : mapping of str to ValueArray
        The columns that can be read; of the rows of axis 0, each is the `ColumnLayout` of a dataset.
    refused : mapping of str to Exception
        The columns that cannot be read, and the error that reading each raises.
    sought : SourceStates
        Other files that decide which columns there are: those that links to groups lead to, and those of columns that
        cannot be read.
    """

    path: str
    group: str
    identity: Identity
    columns: Mapping[str, Array]
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
