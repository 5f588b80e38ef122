"""Values that are encoded: codes of categories, values with a mask of those that are missing."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np

from ray_h5.buffers import empty, objects
from ray_h5.columns.stored_values import Stored
from ray_h5.columns.values import Decoded, Reading
from ray_h5.errors import CastError, CorruptFileError, UnsupportedColumnError
from ray_h5.manifest.joined_arrays import JoinedArray
from ray_h5.manifest.layout import ColumnLayout
from ray_h5.manifest.row_requests import Request
from ray_h5.read.casting import cast_error, lost
from ray_h5.read.read_parts import Part
from ray_h5.read.reader import RowReader

_CATEGORY_BYTES = 256
"""About what a category takes: its value, its name and its code, as objects of Python."""

_Table: TypeAlias = tuple[np.ndarray, np.ndarray, np.ndarray]
"""Categories; and for each unit, the first of its own among them, and how many there are."""


@dataclass(frozen=True, slots=True, eq=False)
class Category(Decoded):
    """Codes, delivered as the values that they stand for; or as codes, into an array of integers.

    Attributes
    ----------
    values : Stored
        The codes; -1 stands for a missing value.
    name : str
        Name.
    categories : numpy.ndarray or JoinedArray
        The values: numbers, or texts as bytes. Each group of datasets has its own.
    path : str
        The file, for messages.
    """

    values: Stored
    name: str
    categories: np.ndarray | JoinedArray
    path: str

    @property
    def array(self) -> ColumnLayout:
        values = self.categories.dtype
        named = self.categories.tolist() if isinstance(self.categories, np.ndarray) else []
        texts = [
            value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else str(value) for value in named
        ]
        return replace(
            self.values.array,
            name=self.name,
            path=self.path,
            kind="category",
            stored_dtype=np.dtype(object),
            element=np.dtype(object) if values.kind in "OS" else values,
            enum=tuple(zip(texts, range(len(texts)), strict=True)),
            item_bytes=self.values.dtype.itemsize,
            fill=None,
            offset=None,
        )

    def blank(self, dtype: np.dtype) -> Any:
        return None if dtype.hasobject else -1 if dtype.kind in "iu" else np.nan

    def others(self, wanted: Request, *_: Any) -> tuple[Reading, _Table]:
        categories, units = self.categories, wanted.rows
        if isinstance(categories, np.ndarray):
            return Reading(), (categories, np.zeros(len(units), np.int64), np.full(len(units), len(categories)))
        assert isinstance(self.values.address, JoinedArray)
        touched, of = np.unique(self.values.address.datasets_of(units), return_inverse=True)
        lengths = categories.lengths[touched]
        firsts = np.cumsum(lengths) - lengths
        values = empty((int(lengths.sum()),), categories.dtype)
        runs = Request(categories.starts[touched], firsts, lengths).select(lengths > 0)
        return Reading([Part(categories, runs, values)] if len(runs) else []), (values, firsts[of], lengths[of])

    def decoded(self, stored: np.ndarray, rows: np.ndarray, dtype: np.dtype, others: _Table) -> np.ndarray:
        values, first, counts = others
        of_unit = (-1, *[1] * (stored.ndim - 1))  # the shape of numbers of units that go with their codes
        if (wrong := np.argwhere((stored < -1) | (stored >= counts.reshape(of_unit)))).size:
            at = tuple(wrong[0])
            raise CorruptFileError(
                f"{self.values.where(self.name, rows[at[0]])}: code {stored[at]} stands for nothing: there are "
                f"{counts[at[0]]} categories, and -1 is a missing value. Restore the file from a copy, or write it "
                "again."
            )
        if dtype.kind in "iu":
            if isinstance(self.categories, JoinedArray):
                raise CastError(
                    f"{self.path}: column {self.name!r}: each group has categories of its own, so that codes of two "
                    f"groups stand for different values. Leave {self.name!r} out of dtypes to get the values."
                )
            return _cast(self, stored, rows, dtype, lost(stored, dtype))
        # The value of each code, and of -1 at the end.
        if dtype.kind == "O":
            of_codes = objects([*values.tolist(), None])
        elif values.dtype.kind in "biuf" and dtype.kind == "f":
            of_codes = np.append(values.astype(dtype), np.array(np.nan, dtype))
        else:
            kind = "text" if values.dtype.kind in "OS" else str(values.dtype)
            raise CastError(
                f"{self.path}: column {self.name!r}: its categories are {kind}, which cannot be cast to {dtype}; "
                f"with dtypes={{{self.name!r}: 'int32'}} their codes are delivered"
            )
        codes = stored.astype(np.int64)
        decoded: np.ndarray = of_codes[np.where(codes < 0, -1, codes + first.reshape(of_unit))]
        return decoded


@dataclass(frozen=True, slots=True, eq=False)
class Optional(Decoded):
    """Values, and a mask of those that are missing.

    Attributes
    ----------
    values : Stored
        The values.
    name : str
        Name.
    mask : Stored
        Booleans, true where a value is missing.
    path : str
        The file, for messages.
    """

    needs = ("mask",)

    values: Stored
    name: str
    mask: Stored
    path: str

    @property
    def array(self) -> ColumnLayout:
        layout = replace(self.values.array, name=self.name, path=self.path, fill=None, offset=None)
        if layout.kind == "string":
            return replace(layout, stored_dtype=np.dtype(object))
        size = layout.row_bytes if len(layout.shape) == 1 else layout.stored_dtype.itemsize
        return replace(layout, kind="optional", stored_dtype=np.dtype(object), element=layout.dtype, item_bytes=size)

    def blank(self, dtype: np.dtype) -> Any:
        return None if dtype.hasobject else np.nan if dtype.kind == "f" else 0

    def decoded(self, stored: np.ndarray, rows: np.ndarray, dtype: np.dtype, others: list[np.ndarray]) -> np.ndarray:
        missing = others[0].astype(bool)
        if dtype.hasobject:
            found = stored.astype(object)
            found[missing] = None
            return found
        if dtype.kind != "f" and missing.any():
            where = self.values.where(self.name, rows[np.argwhere(missing)[0][0]])
            raise CastError(
                f"{where}: the value is missing, which {dtype} cannot say; use a float, such as "
                f"dtypes={{{self.name!r}: 'float64'}}, where it is NaN"
            )
        found = _cast(self, stored, rows, dtype, lost(stored, dtype, "rounded") & ~missing)
        if missing.any():
            found[missing] = np.nan
        return found


def category(reader: RowReader, name: str, codes: Stored, categories: ColumnLayout | JoinedArray) -> Category:
    """Return a column whose codes stand for the values of a dataset; each group of datasets has its own."""
    layout = categories.unit if isinstance(categories, JoinedArray) else categories
    if layout.row_shape or layout.kind not in {"number", "bool", "string"}:
        raise UnsupportedColumnError(
            f"{layout.where} has {layout.kind} values of shape {layout.row_shape}; expected the categories of "
            f"{name!r}: one number or text for each"
        )
    if codes.dtype.kind not in "iu":
        raise CorruptFileError(f"{reader.path}: column {name!r}: expected integers as codes, found {codes.dtype}")
    if codes.layout.row_shape and reader.form == "anndata":
        raise CorruptFileError(
            f"{reader.path}: column {name!r}: expected one code a row, found those of shape {codes.layout.shape}"
        )
    if isinstance(categories, JoinedArray):
        return Category(codes, name, categories, reader.path)
    whole = reader.fact(layout.name, lambda: reader.read_whole(layout.name, _CATEGORY_BYTES), of_file=True)
    return Category(codes, name, whole, reader.path)


def optional(reader: RowReader, name: str, values: Stored, mask: ColumnLayout | JoinedArray) -> Optional:
    """Return a column of values, of which other datasets say which are missing."""
    missing, joined = Stored.of(mask), values.address
    where, shapes = f"{reader.path}: column {name!r}", (values.layout.shape, missing.layout.shape)
    if isinstance(joined, JoinedArray) and isinstance(mask, JoinedArray):
        at = int(np.argmax((joined.shapes != mask.shapes).any(axis=1)))
        where += f", dataset {joined.paths[at]!r}"
        shapes = (tuple(joined.shapes[at].tolist()), tuple(mask.shapes[at].tolist()))
    if shapes[0] != shapes[1] or missing.dtype.kind not in "biu":
        raise CorruptFileError(
            f"{where}: expected as many values as entries of its mask, found {shapes[0]} and {missing.dtype} "
            f"{shapes[1]}"
        )
    return Optional(values, name, missing, reader.path)


def _cast(
    column: Category | Optional, stored: np.ndarray, rows: np.ndarray, dtype: np.dtype, is_lost: np.ndarray
) -> np.ndarray:
    """Return stored numbers as another dtype; raise for the first one that is lost."""
    if (wrong := np.argwhere(is_lost)).size:
        raise cast_error(column.values.where(column.name, rows[wrong[0][0]]), stored[tuple(wrong[0])], dtype)
    return stored.astype(dtype)
