"""The columns that all files share, and their values as Arrow arrays."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa

from ray_h5.arrow_arrays import arrow_type, large_type, real_dtype, to_arrow
from ray_h5.errors import OptionError, UnsupportedColumnError
from ray_h5.hdf5.format.value_types import as_dtype
from ray_h5.manifest.layout import ValueArray
from ray_h5.manifest.value_type import HasType, Kind, ValueType
from ray_h5.read.arguments import without_ones
from ray_h5.read.casting import Casting

LENGTH = "_length"
"""Ending of the column with the lengths of padded rows."""

TENSOR_KINDS = frozenset({"number", "bool"})

NULLABLE_KINDS = frozenset({"category", "optional", "string"})
"""Kinds with values that may be missing. They are plain values of type `ColumnSpec.element`, or text."""

_LIST_BYTES = 4096

_OBJECTS = np.dtype(object)

_SHOWN_CHARACTERS = 60
"""Characters of a value in an error: text that is not UTF-8 may be an image."""

_ARROW_UNITS = frozenset({("s", 1), ("ms", 1), ("us", 1), ("ns", 1)})


_WITH_AXES_OF_ONE = frozenset({"number", "bool", "string", "time"})
"""Kinds of values that are one value a row also with axes of one: MATLAB and others write labels of shape (rows, 1)."""


_BFLOAT16 = ("bfloat16", "torch.bfloat16")


@dataclass(frozen=True, slots=True)
class ColumnSpec(HasType):
    """One column as it is delivered, the same in every file.

    Attributes
    ----------
    name : str
        Name.
    type : ValueType
        The type of a row. It names no integers: files may number classes and categories in other ways. The dtype is
        that of the array that a read fills.
    mean_bytes : int
        For rows of varying shape, and of a sparse matrix: bytes of a row in the mean.
    as_bytes : bool
        For strings: deliver the bytes, which need not be UTF-8.
    casting : {"checked", "rounded", "unsafe"}
        For numbers that are cast: whether values that `dtype` cannot hold are an error.
    as_bfloat16 : bool
        For integers of 16 bits: whether they are the bits of bfloat16, which NumPy and Arrow lack. Tensors are views.
    """

    name: str
    type: ValueType
    mean_bytes: int = 0
    as_bytes: bool = False
    casting: Casting = "checked"
    as_bfloat16: bool = False

    def with_type(self, **changes: Any) -> ColumnSpec:
        """Return the column with a type of which some fields are others."""
        return replace(self, type=replace(self.type, **changes))

    @classmethod
    def of(cls, layout: ValueArray) -> ColumnSpec:
        held, axes = layout.type.held, len(layout.type.ragged_shape)
        # Arrays of numbers, or lists of strings.
        if layout.kind == "ragged" and not (held.kind in "biufc" or (held.kind in "SO" and axes == 1)):
            raise UnsupportedColumnError(
                f"{layout.where} has rows of varying shape that hold {held} with {axes} axes; read_h5 and H5Dataset "
                "deliver those of numbers and booleans, and lists of strings. RowReader reads it; or leave it out with "
                "columns=[...]."
            )
        if has_long_double(held):
            shown = f"dtype {held}" if layout.element is None else f"arrays of {held} of varying length"
            raise UnsupportedColumnError(
                f"{layout.where} has {shown}, whose long doubles Arrow and torch lack. RowReader reads it; or write "
                "them as float64 (complex128)."
            )
        if (odd := odd_time(layout.dtype)) is not None:
            raise UnsupportedColumnError(
                f"{layout.where} has times of dtype {odd}, a unit that Arrow lacks. RowReader reads it; or write them "
                "in seconds, or as int64."
            )
        # The strings of two files may have different fixed lengths. Objects hold both.
        dtype = np.dtype(object) if layout.kind == "string" else layout.dtype
        is_varying = layout.kind in {"ragged", "sparse"}
        shape, mean_bytes = ((), layout.item_bytes) if is_varying else (layout.row_shape, 0)
        return cls(layout.name, replace(layout.type, dtype=dtype, row_shape=shape, enum=()), mean_bytes)

    @property
    def row_bytes(self) -> int:
        """Bytes of one row in memory; a guess for strings and lists, whose sizes are not known before they are read."""
        if self.kind in {"ragged", "sparse"}:
            return max(self.mean_bytes, 1)
        sizes = {"string": 32, "category": 32, "optional": 16, "list": _LIST_BYTES}
        return math.prod(self.row_shape) * sizes.get(self.kind, self.dtype.itemsize)

    def holds(self, tensors: ColumnSpec) -> bool:
        """Return whether steps that are lists of arrays hold tensors: those of files whose arrays are equally long."""
        shape = self.type.varying_shape if self.row_shape else None
        if shape is None or len(shape) != len(tensors.row_shape):
            return False
        return all(one in {None, other} for one, other in zip(shape, tensors.row_shape, strict=True))

    @property
    def tensor_shape(self) -> tuple[int, ...]:
        """Shape of one row in Arrow and torch: complex numbers get a last axis of (real, imaginary)."""
        return (*self.row_shape, 2) if self.dtype.kind == "c" else self.row_shape

    @property
    def with_none(self) -> ColumnSpec | None:
        """The column for rows of which some are None; None for a type that cannot be."""
        if self.kind in TENSOR_KINDS and not self.row_shape:
            return ColumnSpec(self.name, ValueType("optional", _OBJECTS, element=self.dtype))
        if self.kind in TENSOR_KINDS:
            type_ = ValueType("ragged", _OBJECTS, element=self.dtype, ragged_shape=self.row_shape, nullable=True)
            return ColumnSpec(self.name, type_, self.row_bytes)
        is_list = self.kind in {"ragged", "list", *NULLABLE_KINDS} and not self.row_shape
        return self if is_list else None

    @property
    def value_type(self) -> pa.DataType:
        """Arrow type of one value. Rows of several values that tensors cannot hold are lists of fixed size."""
        type_ = self._item_type
        for length in () if self.kind in TENSOR_KINDS else reversed(self.row_shape):
            type_ = pa.list_(type_, length)
        return type_

    @property
    def _item_type(self) -> pa.DataType:
        if self.as_bytes or (self.kind == "binary" and self.row_shape):  # pyarrow has no lists of binary of fixed size
            return pa.binary()
        if self.kind == "sparse":
            return pa.null()  # a column of all rows is never kept
        if self.kind in NULLABLE_KINDS and self.element is not None:
            return arrow_type(self.element)
        if self.element is not None:
            # Arrow makes no arrays of NumPy of lists of binary of fixed size.
            is_opaque = self.element.kind == "V" and self.element.names is None and self.element.subdtype is None
            type_ = pa.binary() if is_opaque else arrow_type(self.element)
            for _ in self.type.ragged_shape or (None,):
                type_ = pa.large_list(type_)
            return type_
        return arrow_type(self.dtype) if self.dtype.kind != "c" else pa.from_numpy_dtype(real_dtype(self.dtype))

    @property
    def is_tensor(self) -> bool:
        """Whether a row is a tensor in Arrow: numbers or booleans, of one shape."""
        return self.kind in TENSOR_KINDS and self.tensor_shape != ()

    @property
    def kept_type(self) -> pa.DataType:
        """Arrow type of one value in a column of all rows."""
        return large_type(self._item_type if self.has_one_value else self.value_type)

    @property
    def is_scalar(self) -> bool:
        """Whether a row is one plain value, without axes."""
        return self.tensor_shape == () and self.kind not in {"ragged", "sparse"}

    @property
    def has_one_value(self) -> bool:
        """Whether a predicate can name the column: one plain value a row, also with axes of one, such as (rows, 1)."""
        is_plain = self.kind in _WITH_AXES_OF_ONE and self.dtype.kind != "c"
        return self.is_scalar or (is_plain and all(length == 1 for length in self.row_shape))

    @property
    def is_id(self) -> bool:
        """Whether values may be ids: one text or integer a row."""
        is_id = self.kind == "string" or (self.kind == "number" and self.dtype.kind in "iu")
        return is_id and self.has_one_value

    @property
    def without_axes(self) -> ColumnSpec:
        """The column without axes of one."""
        return self.with_type(row_shape=()) if self.row_shape and self.has_one_value else self

    def is_read_from(self, stored: ColumnSpec, is_cast: bool) -> bool:
        """Return whether a column of a file is delivered as this one; `is_cast` if the user asked for another dtype.

        Files may store a column in several ways. Besides its own kind, it may be::

            delivered         stored
            number, bool      category or optional, if cast
            string            category of text
            optional          category, number, bool
            list, ragged      number, bool: arrays of one shape
        """
        if self.as_bfloat16 and stored.type.held != np.uint16:
            return False  # numbers would become bits
        rules = {"ragged": self._holds_arrays, "sparse": self._holds_sparse, "list": self._holds_lists}
        rules |= dict.fromkeys(TENSOR_KINDS, self._holds_numbers)
        return rules.get(self.kind, self._holds_values)(stored, is_cast)

    def _is_alike(self, stored: ColumnSpec) -> bool:
        """Return whether rows have the same shape, up to axes of one."""
        return without_ones(self.row_shape) == without_ones(stored.row_shape)

    def _holds_numbers(self, stored: ColumnSpec, is_cast: bool) -> bool:
        """Return whether numbers of one shape hold those of a column, or what categories and optional values are."""
        may_cast = is_cast and stored.kind in {*TENSOR_KINDS, "category", "optional"}
        is_same = stored.kind in TENSOR_KINDS and self.dtype == stored.dtype
        return self._is_alike(stored) and (may_cast or is_same)

    def _holds_sparse(self, stored: ColumnSpec, is_cast: bool) -> bool:
        """Return whether rows of a sparse matrix hold those of a column: of the same length."""
        is_same = is_cast or self.element == stored.element
        return is_same and stored.kind == "sparse" and self.type.ragged_shape == stored.type.ragged_shape

    def _holds_arrays(self, stored: ColumnSpec, is_cast: bool) -> bool:
        """Return whether rows of varying shape hold those of a column, which may have further axes of one."""
        if is_cast and stored.kind == "list" and not stored.row_shape:  # of one axis: they are arrays once cast
            return self.type.ragged_shape == stored.type.varying_shape
        is_same = is_cast or self.element == stored.type.held
        shape, axes = stored.type.shape, len(self.type.ragged_shape)
        has_axes = len(shape) >= axes and set(shape[axes:]) <= {1}
        fits = has_axes and all(one in {None, other} for one, other in zip(self.type.ragged_shape, shape, strict=False))
        return is_same and stored.kind in {"ragged", *TENSOR_KINDS} and fits

    def _holds_lists(self, stored: ColumnSpec, is_cast: bool) -> bool:
        """Return whether lists hold those of a column; of numbers, arrays of one shape, or lists in another dtype."""
        if stored.kind in TENSOR_KINDS:
            is_same = self.element is not None and self.element.base == stored.dtype
            return self.holds(stored) and (is_cast or is_same)
        if not is_cast or stored.kind != "list":
            return self._holds_values(stored, is_cast)
        types = self.type, stored.type
        shapes = [(one.row_shape, one.ragged_shape, one.element and one.element.shape) for one in types]
        return shapes[0] == shapes[1]

    def _holds_values(self, stored: ColumnSpec, _: bool) -> bool:
        """Return whether values hold those of a column of the same kind, or of text as categories, plain numbers."""
        if self.kind == "string":
            is_encoded = stored.kind == "category" and stored.element is not None and stored.element.kind in "OS"
        else:
            is_encoded = self.kind == "optional" and stored.kind in {"category", *TENSOR_KINDS}
        if not (is_encoded and self.is_scalar and stored.is_scalar):
            if self.kind != stored.kind or not self._is_alike(stored):
                return False
            # The fields of compound values may have other offsets in another file: types of Arrow are without them.
            stored = stored.with_type(row_shape=self.row_shape)
        return self.as_bytes or self.value_type == stored.value_type

    def cast(self, dtype: object, casting: Casting = "checked") -> ColumnSpec:
        """Return the spec of this column delivered as another dtype."""
        if dtype is None:  # numpy takes it for float64
            raise OptionError(
                f"dtypes: None for column {self.name!r} is no dtype; leave the column out to keep its own"
            )
        if str(dtype) in _BFLOAT16:
            return self._of_bits()
        wanted = as_dtype(dtype, f"column {self.name!r} in dtypes")
        if self.kind in {"category", "optional"}:
            return self._cast_values(wanted, casting)
        if self.kind == "string":
            if wanted.kind != "S":
                raise OptionError(
                    f"dtypes: column {self.name!r} holds strings; only bytes can be asked for, not {wanted}"
                )
            return replace(self, as_bytes=True)
        held = (
            self.element.base if self.kind in {"ragged", "sparse", "list"} and self.element is not None else self.dtype
        )
        if held.kind not in "biufc":
            ways = f" For numbers of classes, pass labels={{{self.name!r}: 'auto'}}." if held.kind in "OS" else ""
            ways = f" Name a field, such as {f'{self.name}/{held.names[0]}'!r}." if held.names else ways
            raise OptionError(f"dtypes: column {self.name!r} holds {self}, which cannot be cast; leave it out.{ways}")
        if wanted.kind not in "biufc" or has_long_double(wanted):
            raise OptionError(f"dtypes: column {self.name!r} holds {held}; {wanted} is no type of numbers")
        if self.kind == "sparse":
            return replace(self.with_type(element=wanted.newbyteorder("=")), casting=casting)
        if self.element is not None:
            return self.with_elements(wanted.newbyteorder("="), casting)
        kind: Kind = "bool" if wanted.kind == "b" else "number"
        return replace(self.with_type(dtype=wanted.newbyteorder("="), kind=kind), casting=casting)

    def _of_bits(self) -> ColumnSpec:
        """Return the spec of this column delivered as bfloat16, whose bits it holds."""
        if self.kind not in {"number", "ragged"} or self.type.held != np.uint16:
            raise OptionError(
                f"dtypes: column {self.name!r} holds {self}; 'bfloat16' is for uint16 that are the bits of bfloat16. "
                "To round numbers to it, pass 'float32' here, and cast tensors: batch.to(torch.bfloat16), or "
                "dtypes= of train_batches"
            )
        return replace(self, as_bfloat16=True)

    def with_elements(self, dtype: np.dtype, casting: Casting = "checked") -> ColumnSpec:
        """Return the spec of rows of varying shape that hold numbers of another dtype.

        Lists of one axis, such as those of values that may be missing, are arrays then.
        """
        assert self.element is not None
        own, size = self.element.shape, self.mean_bytes * dtype.itemsize // self.element.base.itemsize
        lacks_rows = self.type.nullable and self.kind == "ragged"
        type_ = replace(self.type, element=np.dtype((dtype, own)), nullable=lacks_rows)
        if self.kind == "list" and (shape := self.type.varying_shape) is not None and not self.row_shape:
            type_, size = replace(type_, kind="ragged", element=dtype, ragged_shape=shape), _LIST_BYTES
        return replace(self, type=type_, mean_bytes=size, casting=casting)

    def _cast_values(self, wanted: np.dtype, casting: Casting) -> ColumnSpec:
        """Return the spec of categories, or of optional values, as text or numbers: codes are integers."""
        assert self.element is not None
        is_text = self.element.kind in "OS"
        if wanted.kind == "S" and is_text:
            return replace(self, as_bytes=True)
        is_category = self.kind == "category"
        fits = "iu" if is_category and is_text else "iuf" if is_category else "biuf"
        if wanted.kind not in fits or has_long_double(wanted):
            what = "categories: integers for their codes" if is_category else "values that may be missing"
            raise OptionError(f"dtypes: column {self.name!r} holds {what}; it cannot be delivered as {wanted}")
        kind: Kind = "bool" if wanted.kind == "b" else "number"
        type_ = ValueType(kind, wanted.newbyteorder("="), self.row_shape, drawn=self.type.drawn)
        return ColumnSpec(self.name, type_, casting=casting)

    @property
    def shown_shape(self) -> str:
        """The shape of a row, for messages; ``?`` stands for a length that varies."""
        return shown_shape(self.type.ragged_shape if self.kind in {"ragged", "sparse"} else self.tensor_shape)

    def __str__(self) -> str:
        if self.as_bfloat16:
            return str(replace(self, as_bfloat16=False)).replace("uint16", "bfloat16", 1)
        if self.kind == "ragged":
            return f"{self.element} {self.shown_shape}"
        if self.kind == "sparse":
            return f"sparse {self.element} {self.shown_shape}"
        if self.kind in {"category", "optional"}:
            return f"{self.kind} {self.value_type}"
        kind = self.dtype.name if self.kind in TENSOR_KINDS else self.kind
        if self.kind in {"struct", "list", "binary", "time"}:
            kind = str(self._item_type)
        return f"{kind} {self.row_shape}" if self.row_shape else kind


def is_text(kind: pa.DataType) -> bool:
    """Return whether a type is that of text."""
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def is_number(kind: pa.DataType) -> bool:
    """Return whether a type is that of integers or floats."""
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind))


def shown_shape(shape: Sequence[int | None]) -> str:
    """Return a shape as text; ``?`` stands for a length that varies."""
    return f"({', '.join('?' if n is None else str(n) for n in shape)}{',' if len(shape) == 1 else ''})"


@dataclass(frozen=True)
class Cast:
    """The casts while columns are read: the dtypes of columns, and whether a lost value is an error."""

    dtypes: Mapping[str, object] = field(default_factory=dict)
    casting: Casting = "checked"

    def __call__(self, spec: ColumnSpec) -> ColumnSpec:
        return spec.cast(self.dtypes[spec.name], self.casting) if spec.name in self.dtypes else spec


def scalar_to_arrow(
    array: np.ndarray, spec: ColumnSpec, where: Callable[[int], str], type_: pa.DataType | None = None
) -> pa.Array:
    """Return the values of a scalar column as an Arrow array. ``where(i)`` names the place of value i.

    Parameters
    ----------
    array : numpy.ndarray
        The values.
    spec : ColumnSpec
        The column.
    where : callable
        Names the place of a value, for messages.
    type_ : pyarrow.DataType, optional
        `ColumnSpec.value_type`, or `ColumnSpec.kept_type`.

    Raises
    ------
    UnsupportedColumnError
        If a string is not UTF-8.
    """
    type_ = spec.value_type if type_ is None else type_
    if spec.as_bytes and not spec.row_shape:
        return pa.array(array, type_)
    try:
        return to_arrow(array, type_)
    except pa.ArrowInvalid:
        check_utf8(array, spec.name, where)
        raise


@lru_cache(maxsize=256)
def has_long_double(dtype: np.dtype) -> bool:
    """Return whether values are, or contain, long doubles, which Arrow and torch lack."""
    return any(leaf.kind in "fc" and real_dtype(leaf).itemsize > 8 for leaf in _plain(dtype))


@lru_cache(maxsize=256)
def odd_time(dtype: np.dtype) -> np.dtype | None:
    """Return the dtype of times in a unit that Arrow lacks or misreads; None if there are none."""
    units = {"M": _ARROW_UNITS | {("D", 1)}, "m": _ARROW_UNITS}
    odd = (leaf for leaf in _plain(dtype) if leaf.kind in units and np.datetime_data(leaf) not in units[leaf.kind])
    return next(odd, None)


def _plain(dtype: np.dtype) -> Iterator[np.dtype]:
    """Yield the dtypes of the parts of a value."""
    if dtype.names is not None:
        for name in dtype.names:
            yield from _plain(dtype[name])
    elif dtype.subdtype is not None:
        yield from _plain(dtype.subdtype[0])
    else:
        yield dtype


def check_utf8(array: np.ndarray, name: str, where: Callable[[int], str]) -> None:
    """Raise an UnsupportedColumnError for the first row of a column whose text is not UTF-8; ``where(i)`` names it."""
    rows = array.tolist()
    flat = rows if array.ndim == 1 else array.ravel().tolist()
    if {*map(type, flat)} <= {bytes} and b"".join(flat).isascii():
        return  # fast path: nothing is decoded
    row = next((i for i, value in enumerate(rows) if not _is_utf8(value)), None)
    if row is not None:
        shown = repr(rows[row])
        shown = (
            shown if len(shown) <= _SHOWN_CHARACTERS else f"{shown[:_SHOWN_CHARACTERS]}... ({len(shown)} characters)"
        )
        raise UnsupportedColumnError(
            f"{where(row)}: column {name!r} holds {shown}, which is not UTF-8. Pass dtypes={{{name!r}: bytes}} "
            f"to read_h5, H5Dataset or loader to get its values as bytes; ray_h5.DecodeImage({name!r}) makes arrays of "
            "those that are images."
        ) from None


def _is_utf8(value: object) -> bool:
    if isinstance(value, (tuple, list, np.ndarray)):  # a compound value, and arrays in it
        return all(map(_is_utf8, value))
    try:
        return not isinstance(value, bytes) or value.decode() is not None
    except UnicodeDecodeError:
        return False
