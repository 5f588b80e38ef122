"""What a value is, apart from where it lies."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np

Kind: TypeAlias = Literal[
    "number", "bool", "string", "time", "binary", "struct", "list", "ragged", "sparse", "category", "optional"
]


@dataclass(frozen=True, slots=True)
class ValueType:
    """The type of one value: of a unit of an array, of a row, of a column in all files.

    ::

        values                        kind        dtype    row_shape  element  ragged_shape
        images of one size            "number"    uint8    (28, 28)
        text of varying length        "string"    object
        arrays of varying length      "list"      object              int16
        rows that differ in length    "ragged"    object              float32  (None, 3)
        rows of a sparse matrix       "sparse"    object              float32  (2000,)
        four steps of such rows       "sparse"    object              float32  (4, 2000)
        codes of names                "category"  object              object

    Attributes
    ----------
    kind : Kind
        The kind of a value. They are delivered as h5py delivers them: strings as object arrays of bytes (variable
        length) or arrays of dtype S (fixed length), opaque ones as dtype V ("binary"), compound ones as structured
        arrays ("struct") whose fields are in the order in which they lie, and arrays of varying length as object
        arrays of arrays ("list"). Columns that are made of several datasets are object arrays: of arrays ("ragged"),
        of rows of a sparse matrix ("sparse"), and of values or None ("category" and "optional").
    dtype : numpy.dtype
        dtype of the array that a read fills, in native byte order.
    row_shape : tuple of int
        Shape of a value in that array; ``()`` for a scalar.
    element : numpy.dtype, optional
        For arrays of varying length, and rows of a sparse matrix: dtype of their elements. For categories and optional
        values: that of the values, objects for text.
    ragged_shape : tuple of (int or None)
        For rows of varying shape ("ragged"): the shape of a row; None for axes along which rows differ. For rows of a
        sparse matrix ("sparse"): their length.
    enum : tuple of (str, int)
        For enums: the names of their integers. Those of a field begin with its name. For categories: the values and
        their codes.
    dense : bool
        For rows of a sparse matrix: whether batches of tensors are dense.
    nullable : bool
        For lists: whether a value of a list may be missing, which is None. For rows of varying shape: whether there are
        rows without a value, which are None.
    drawn : bool
        Whether values are drawn: each epoch has others of the same row. Values that are made of drawn ones are drawn.
    """

    kind: Kind
    dtype: np.dtype
    row_shape: tuple[int, ...] = ()
    element: np.dtype | None = None
    ragged_shape: tuple[int | None, ...] = ()
    enum: tuple[tuple[str, int], ...] = ()
    dense: bool = False
    nullable: bool = False
    drawn: bool = False

    @property
    def value_bytes(self) -> int:
        """Bytes of a value in an array that a read fills."""
        return math.prod(self.row_shape) * self.dtype.itemsize

    @property
    def held(self) -> np.dtype:
        """Dtype of what a value holds: that of its elements, if it has such."""
        return self.dtype if self.element is None else self.element

    @property
    def shape(self) -> tuple[int | None, ...]:
        """Shape of a value; None for axes along which values differ."""
        return self.ragged_shape or self.row_shape

    @property
    def varying_shape(self) -> tuple[int | None, ...] | None:
        """Shape of a value, with None for axes along which values differ; None if all have one shape."""
        if self.kind == "list" and not self.ragged_shape:
            own = self.element.shape if self.element is not None and self.row_shape else ()
            return (*self.row_shape, None, *own)
        return self.ragged_shape if self.kind == "ragged" else None

    @property
    def may_be_missing(self) -> bool:
        """Whether files may say that a value is missing."""
        return self.nullable or self.kind in {"category", "optional"}

    @property
    def has_nullable_items(self) -> bool:
        """Whether values are lists whose items may be missing: they are not padded."""
        return self.nullable and self.kind == "list"


class HasType:
    """Base of what has values of a type: what is mostly asked of the type is asked of it."""

    __slots__ = ()
    type: ValueType

    @property
    def kind(self) -> Kind:
        return self.type.kind

    @property
    def dtype(self) -> np.dtype:
        """Dtype of the values that a read returns."""
        return self.type.dtype

    @property
    def element(self) -> np.dtype | None:
        return self.type.element

    @property
    def row_shape(self) -> tuple[int, ...]:
        return self.type.row_shape
