"""Columns that encode their values: codes of categories, values with a mask of those that are missing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from ray_h5.errors import CastError, CorruptFileError
from ray_h5.hdf5.buffers import empty
from ray_h5.hdf5.layout import ColumnLayout, Kind
from ray_h5.hdf5.parts import Part
from ray_h5.hdf5.reading.casting import cast_error, lost
from ray_h5.hdf5.reading.coalesce import request_of
from ray_h5.planning.rows.columns import Reading


@dataclass(frozen=True, slots=True)
class Stored:
    """Where values are: a dataset, or one field of a dataset of compound values.

    Attributes
    ----------
    layout : ColumnLayout
        The dataset.
    field : str, optional
        The field.
    """

    layout: ColumnLayout
    field: str | None = None

    @property
    def dtype(self) -> np.dtype:
        return self.layout.dtype if self.field is None else self.layout.dtype[self.field]

    def part(self, rows: np.ndarray) -> tuple[Part, Callable[[], np.ndarray]]:
        """Return the read of rows, and a function that returns their values once they are read."""
        values = empty((len(rows), *self.layout.row_shape), self.layout.dtype, self.layout.where)
        part = Part(self.layout.name, request_of(rows), values)
        return part, lambda: values if self.field is None else values[self.field]


@dataclass(frozen=True, slots=True, eq=False)
class PlainColumn:
    """A column that is a dataset, as it is stored."""

    stored: ColumnLayout

    def layout(self, num_rows: int, path: str) -> ColumnLayout:  # noqa: ARG002  as the other columns have it
        return self.stored

    def reading(self, rows: np.ndarray, places: np.ndarray, out: np.ndarray) -> Reading:
        return Reading([Part(self.stored.name, request_of(rows, places), out)])


@dataclass(frozen=True, slots=True, eq=False)
class FieldColumn:
    """A column that is a field of compound values."""

    name: str
    values: Stored

    def layout(self, num_rows: int, path: str) -> ColumnLayout:  # noqa: ARG002  as the other columns have it
        dtype = self.values.dtype
        kind: Kind = "string" if dtype.kind in "SO" else "bool" if dtype.kind == "b" else "number"
        shape = (self.values.layout.num_rows,)
        return _layout(self.name, replace(self.values.layout, kind=kind, stored_dtype=dtype, shape=shape), path)

    def reading(self, rows: np.ndarray, places: np.ndarray, out: np.ndarray) -> Reading:
        part, values = self.values.part(rows)

        def finish() -> None:
            out[places] = values()

        return Reading([part], finish)


@dataclass(frozen=True, eq=False)
class CategoryColumn:
    """A column of codes, delivered as the values that they stand for; or as codes, into an array of integers.

    Attributes
    ----------
    name : str
        Name.
    codes : Stored
        The codes; -1 stands for a missing value.
    categories : numpy.ndarray
        The values: numbers, or texts as bytes.
    path : str
        The file, for messages.
    """

    name: str
    codes: Stored
    categories: np.ndarray
    path: str

    def layout(self, num_rows: int, path: str) -> ColumnLayout:  # noqa: ARG002  as the other columns have it
        stored = self.codes.layout
        values = self.categories.dtype
        return replace(
            _layout(self.name, stored, path),
            kind="category",
            shape=(stored.num_rows,),
            stored_dtype=np.dtype(object),
            element=np.dtype(object) if values.kind in "OS" else values,
            enum=tuple((_shown(value), code) for code, value in enumerate(self.categories.tolist())),
            item_bytes=self.codes.dtype.itemsize,
        )

    def reading(self, rows: np.ndarray, places: np.ndarray, out: np.ndarray) -> Reading:
        part, read = self.codes.part(rows)

        def finish() -> None:
            codes = read()
            self._check(codes, rows)
            if out.dtype.hasobject:
                out[places] = self._values[codes.astype(np.int64)]
            elif out.dtype.kind in "iu":
                out[places] = self._as_integers(codes, rows, out.dtype)
            else:
                out[places] = self._as_floats(out.dtype)[codes.astype(np.int64)]

        return Reading([part], finish)

    def _check(self, codes: np.ndarray, rows: np.ndarray) -> None:
        count = len(self.categories)
        if codes.dtype.kind not in "iu":
            raise CorruptFileError(
                f"{self.path}: column {self.name!r}: expected integers as codes, found {codes.dtype}"
            )
        if not len(codes) or -1 <= int(codes.min()) <= int(codes.max()) < count:
            return
        at = int(np.flatnonzero((codes < -1) | (codes >= count))[0])
        raise CorruptFileError(
            f"{self.path}: column {self.name!r}, row {rows[at]}: code {codes[at]} stands for nothing: there are "
            f"{count} categories, and -1 is a missing value. Restore the file from a copy, or write it again."
        )

    @cached_property
    def _values(self) -> np.ndarray:
        """Return the value of each code; None at the end, which is where -1 leads."""
        return np.array([*self.categories.tolist(), None, None], object)[:-1]

    def _as_integers(self, codes: np.ndarray, rows: np.ndarray, dtype: np.dtype) -> np.ndarray:
        wrong = np.flatnonzero(lost(codes, dtype))
        if len(wrong):
            where = f"{self.path}: column {self.name!r}, row {rows[wrong[0]]}"
            raise cast_error(where, codes[wrong[0]], dtype)
        return codes.astype(dtype)

    def _as_floats(self, dtype: np.dtype) -> np.ndarray:
        """Return the value of each code as a number; NaN at the end."""
        if self.categories.dtype.kind not in "biuf" or dtype.kind != "f":
            raise CastError(
                f"{self.path}: column {self.name!r}: its categories are {self._kind}, which cannot be cast to {dtype}; "
                f"with dtypes={{{self.name!r}: 'int32'}} their codes are delivered"
            )
        return np.append(self.categories.astype(dtype), np.array(np.nan, dtype))

    @property
    def _kind(self) -> str:
        return "text" if self.categories.dtype.kind in "OS" else str(self.categories.dtype)


@dataclass(frozen=True, slots=True, eq=False)
class OptionalColumn:
    """A column of values, and a mask of those that are missing.

    Attributes
    ----------
    name : str
        Name.
    values, mask : Stored
        The values; and booleans, true where one is missing.
    path : str
        The file, for messages.
    """

    name: str
    values: Stored
    mask: Stored
    path: str

    def layout(self, num_rows: int, path: str) -> ColumnLayout:  # noqa: ARG002  as the other columns have it
        found = _layout(self.name, self.values.layout, path)
        if found.kind == "string":
            return replace(found, stored_dtype=np.dtype(object))
        return replace(
            found, kind="optional", stored_dtype=np.dtype(object), element=found.dtype, item_bytes=found.row_bytes
        )

    def reading(self, rows: np.ndarray, places: np.ndarray, out: np.ndarray) -> Reading:
        (first, values), (second, mask) = self.values.part(rows), self.mask.part(rows)

        def finish() -> None:
            missing = mask().astype(bool)
            out[places] = self._delivered(values(), missing, rows, out.dtype)

        return Reading([first, second], finish)

    def _delivered(self, values: np.ndarray, missing: np.ndarray, rows: np.ndarray, dtype: np.dtype) -> np.ndarray:
        if dtype.hasobject:
            found = values.astype(object)
            found[missing] = None
            return found
        where = f"{self.path}: column {self.name!r}, row"
        if dtype.kind != "f" and missing.any():
            raise CastError(
                f"{where} {rows[int(np.argmax(missing))]}: the value is missing, which {dtype} cannot say; use a "
                f"float, such as dtypes={{{self.name!r}: 'float64'}}, where it is NaN"
            )
        wrong = np.flatnonzero(lost(values, dtype, "rounded") & ~missing)
        if len(wrong):
            raise cast_error(f"{where} {rows[wrong[0]]}", values[wrong[0]], dtype)
        found = values.astype(dtype)
        if missing.any():
            found[missing] = np.nan
        return found


def _layout(name: str, stored: ColumnLayout, path: str) -> ColumnLayout:
    return replace(stored, name=name, path=path, fill=None, offset=None)


def _shown(value: object) -> str:
    return value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else str(value)
