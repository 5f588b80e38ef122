"""Values that are encoded: codes of categories, values with a mask of those that are missing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from ray_h5.buffers import empty, objects
from ray_h5.columns.stored_values import Stored
from ray_h5.columns.values import Decoded, read_units
from ray_h5.errors import CastError, CorruptFileError, UnsupportedColumnError
from ray_h5.manifest.file_table import digest_of
from ray_h5.manifest.joined_arrays import JoinedArray
from ray_h5.manifest.layout import ColumnLayout, ValueArray
from ray_h5.manifest.partition import Partition
from ray_h5.manifest.row_requests import Request
from ray_h5.read.casting import cast_error, lost
from ray_h5.read.read_parts import Part
from ray_h5.read.reader import FileReader

_CATEGORY_BYTES = 256
"""About what a category takes: its value, its name and its code, as objects of Python."""


def category(reader: FileReader, name: str, codes: Stored, categories: ColumnLayout | JoinedArray) -> Decoded:
    """Return a column whose codes stand for the values of a dataset; each group of datasets has its own.

    Codes are delivered as these values, or as codes, into an array of integers; -1 stands for a missing value.
    """
    path, layout = reader.path, categories.unit if isinstance(categories, JoinedArray) else categories
    if layout.row_shape or layout.kind not in {"number", "bool", "string"}:
        raise UnsupportedColumnError(
            f"{layout.where} has {layout.kind} values of shape {layout.row_shape}; expected the categories of "
            f"{name!r}: one number or text for each"
        )
    if codes.dtype.kind not in "iu":
        raise CorruptFileError(f"{path}: column {name!r}: expected integers as codes, found {codes.dtype}")
    if codes.layout.row_shape and reader.form == "anndata":
        raise CorruptFileError(
            f"{path}: column {name!r}: expected one code a row, found those of shape {codes.layout.shape}"
        )
    if isinstance(categories, JoinedArray):
        return of_categories(codes, name, categories, path)
    whole = reader.fact(layout.name, lambda: reader.read_whole(layout.name, _CATEGORY_BYTES), of_file=True)
    return of_categories(codes, name, whole, path)


def categories_of_each(reader: FileReader, name: str, codes: Stored, categories: JoinedArray) -> Decoded:
    """Return a column whose codes stand for values of several datasets, those of one after those of the one before.

    Categories may be in another order in each. Codes that are delivered are numbers among all of them::

        dataset           0          1             all
        categories        a  b       c  a          a  b  c
        code among all    0  1       2  0
    """
    category(reader, name, codes, categories)  # raises for what are no categories
    stored = Stored.end_to_end(name, categories)
    paths = categories.paths
    key = f"categories below {digest_of(paths.groups.data + paths.groups.ends.tobytes())}{paths.below}"
    known: dict[Any, int] = {}
    numbers = [known.setdefault(value, len(known)) for value in reader.fact(key, lambda: read_units(reader, stored))]
    values = np.array([*known], object) if stored.dtype.kind in "OS" else np.array([*known], stored.dtype)
    return of_categories(codes, name, values, reader.path, (categories.units, np.array([*numbers, -1])))


def of_categories(
    codes: Stored,
    name: str,
    categories: np.ndarray | JoinedArray,
    path: str,
    of_each: tuple[Partition, np.ndarray] | None = None,
) -> Decoded:
    """Return codes as categories: numbers, or texts as bytes; those of datasets of groups are read with the codes.

    With `of_each`, codes of each dataset are of its own categories: which these are, and the number of each among all,
    with -1 at the end.
    """
    named = categories.tolist() if isinstance(categories, np.ndarray) else []
    texts = [value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else str(value) for value in named]
    element = np.dtype(object) if categories.dtype.kind in "OS" else categories.dtype

    def layout(array: ValueArray) -> ValueArray:
        enum = tuple(zip(texts, range(len(texts)), strict=True))
        type_ = replace(array.type, kind="category", dtype=np.dtype(object), element=element, enum=enum)
        return array.made(type_, name=name, path=path, item_bytes=codes.dtype.itemsize)

    def table_of(units: np.ndarray) -> tuple[Sequence[Part], Any]:
        """Return the categories; and for each unit, the first of its own among them, and how many there are."""
        if of_each is not None:
            assert isinstance(codes.address, JoinedArray)
            parts, (held, _) = codes.address.units.part_of(units), of_each
            return (), (categories, held.starts[parts], held.lengths_of(parts))
        if isinstance(categories, np.ndarray):
            return (), (categories, np.zeros(len(units), np.int64), np.full(len(units), len(categories)))
        assert isinstance(codes.address, JoinedArray)
        touched, of = np.unique(codes.address.units.part_of(units), return_inverse=True)
        own = Partition.of(categories.lengths[touched])
        values = empty((own.num_units,), categories.dtype)
        runs = Request(categories.units.starts[touched], own.firsts, own.lengths).select(own.lengths > 0)
        return [Part(categories, runs, values)] if len(runs) else (), (values, own.firsts[of], own.lengths[of])

    def decode(stored: np.ndarray, rows: np.ndarray, dtype: np.dtype, table: Any) -> np.ndarray:
        values, first, counts = table
        of_unit = (-1, *[1] * (stored.ndim - 1))  # the shape of numbers of units that go with their codes
        if (wrong := np.argwhere((stored < -1) | (stored >= counts.reshape(of_unit)))).size:
            at = tuple(wrong[0])
            raise CorruptFileError(
                f"{codes.where(name, rows[at[0]])}: code {stored[at]} stands for nothing: there are {counts[at[0]]} "
                "categories, and -1 is a missing value. Restore the file from a copy, or write it again."
            )
        if of_each is not None:
            stored, first = of_each[1][np.where(stored < 0, -1, stored + first.reshape(of_unit))], np.zeros_like(first)
        if dtype.kind in "iu":
            if isinstance(categories, JoinedArray):
                raise CastError(
                    f"{path}: column {name!r}: each group has categories of its own, so that codes of two groups stand "
                    f"for different values. Leave {name!r} out of dtypes to get the values."
                )
            return _cast(partial(codes.where, name), stored, rows, dtype, lost(stored, dtype))
        # The value of each code, and of -1 at the end.
        if dtype.kind == "O":
            of_codes = objects([*values.tolist(), None])
        elif values.dtype.kind in "biuf" and dtype.kind == "f":
            of_codes = np.append(values.astype(dtype), np.array(np.nan, dtype))
        else:
            kind = "text" if values.dtype.kind in "OS" else str(values.dtype)
            raise CastError(
                f"{path}: column {name!r}: its categories are {kind}, which cannot be cast to {dtype}; with "
                f"dtypes={{{name!r}: 'int32'}} their codes are delivered"
            )
        numbers = stored.astype(np.int64)
        decoded: np.ndarray = of_codes[np.where(numbers < 0, -1, numbers + first.reshape(of_unit))]
        return decoded

    return Decoded(codes, decode, layout, table_of=table_of)


def optional(reader: FileReader, name: str, values: Stored, mask: ColumnLayout | JoinedArray) -> Decoded:
    """Return a column of values, of which booleans in other datasets say which are missing."""
    path, missing, joined = reader.path, Stored.of(mask), values.address
    where, shapes = f"{path}: column {name!r}", (values.layout.shape, missing.layout.shape)
    if isinstance(joined, JoinedArray) and isinstance(mask, JoinedArray):
        at = int(np.argmax((joined.shapes != mask.shapes).any(axis=1)))
        where += f", dataset {joined.paths[at]!r}"
        shapes = (tuple(joined.shapes[at].tolist()), tuple(mask.shapes[at].tolist()))
    if shapes[0] != shapes[1] or missing.dtype.kind not in "biu":
        raise CorruptFileError(
            f"{where}: expected as many values as entries of its mask, found {shapes[0]} and {missing.dtype} "
            f"{shapes[1]}"
        )

    def layout(array: ValueArray) -> ValueArray:
        array = array.made(name=name, path=path)
        if array.kind == "string":
            return array.with_type(replace(array.type, dtype=np.dtype(object)))
        type_ = replace(array.type, kind="optional", dtype=np.dtype(object), element=array.dtype)
        return array.with_type(type_, item_bytes=array.dtype.itemsize)

    def decode(stored: np.ndarray, rows: np.ndarray, dtype: np.dtype, of_mask: np.ndarray) -> np.ndarray:
        is_missing = of_mask.astype(bool)
        if dtype.hasobject:
            decoded = stored.astype(object)
            decoded[is_missing] = None
            return decoded
        if dtype.kind != "f" and is_missing.any():
            raise CastError(
                f"{values.where(name, rows[np.argwhere(is_missing)[0][0]])}: the value is missing, which {dtype} "
                f"cannot say; use a float, such as dtypes={{{name!r}: 'float64'}}, where it is NaN"
            )
        is_lost = lost(stored, dtype, "rounded") & ~is_missing
        decoded = _cast(partial(values.where, name), stored, rows, dtype, is_lost)
        if is_missing.any():
            decoded[is_missing] = np.nan
        return decoded

    return Decoded(values, decode, layout, mask=missing)


def _cast(
    where: Callable[[int], str], stored: np.ndarray, rows: np.ndarray, dtype: np.dtype, is_lost: np.ndarray
) -> np.ndarray:
    """Return stored numbers as another dtype; raise for the first one that is lost; ``where(row)`` names its place."""
    if (wrong := np.argwhere(is_lost)).size:
        raise cast_error(where(rows[wrong[0][0]]), stored[tuple(wrong[0])], dtype)
    return stored.astype(dtype)
