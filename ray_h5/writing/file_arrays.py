"""Rows of columns -> arrays of a file, in the forms that `read_h5` and AnnData read."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, cast

import numpy as np

from ray_h5.codecs.encode import CodecName
from ray_h5.columns.sparse_rows import SparseBatch, index_dtype
from ray_h5.errors import SchemaMismatchError, UnsupportedColumnError
from ray_h5.writing.file_writer import TEXT, OutputArray, OutputFile
from ray_h5.writing.layouts import Layout

PLAIN = ("plain", "text")
"""Kinds of values that are one array."""

_TEXT_BYTES = 32


@dataclass(frozen=True, slots=True)
class Form:
    """What the values of a column are written as.

    Attributes
    ----------
    kind : {"plain", "text", "ragged", "sparse"}
        Values of one type and shape; texts of any length; arrays of varying length; rows of a sparse matrix.
    dtype : numpy.dtype
        The type of a value; objects for text.
    shape : tuple of int
        Of a row; for ragged ones: of an item of it; for sparse ones: its length.
    """

    kind: str
    dtype: np.dtype
    shape: tuple[int, ...] = ()

    def __str__(self) -> str:
        dtype = "text" if self.dtype.hasobject else str(self.dtype)
        return f"{self.kind} {dtype} {self.shape}" if self.shape else f"{self.kind} {dtype}"


def varies(name: str, shape: str) -> UnsupportedColumnError:
    """Return the error of rows that differ along an axis that is not their first."""
    return UnsupportedColumnError(
        f"column {name!r} has rows of shape {shape}; rows that are written may differ along their first axis alone. "
        "Pad the others, or flatten the rows and keep their shapes in a column."
    )


def windows_of_sparse_rows(name: str) -> UnsupportedColumnError:
    """Return the error of rows that each are several rows of a sparse matrix."""
    return UnsupportedColumnError(
        f"column {name!r} has windows of sparse rows; a matrix that is written has one row each. Write the rows "
        "without windows, and pass windows= where they are read; or leave the column out with columns=[...]."
    )


@dataclass(frozen=True, slots=True, eq=False)
class Ranges:
    """Rows of varying length.

    Attributes
    ----------
    offsets : numpy.ndarray
        int64: row i has the values from ``offsets[i]`` to ``offsets[i + 1]``.
    values : numpy.ndarray
        The values of all rows, one row after the other.
    """

    offsets: np.ndarray
    values: np.ndarray


ColumnValues: TypeAlias = "np.ndarray | Ranges | SparseBatch"
"""Rows of a column: an array with a row for each index of its first axis, or ranges of arrays."""


def part_of(values: ColumnValues, start: int, stop: int) -> ColumnValues:
    """Return some rows of a column."""
    if isinstance(values, Ranges):
        offsets = values.offsets[start : stop + 1]
        return Ranges(offsets - offsets[0], values.values[offsets[0] : offsets[-1]])
    if isinstance(values, SparseBatch):
        offsets = values.indptr[start : stop + 1]
        part = slice(int(offsets[0]), int(offsets[-1]))
        return SparseBatch(offsets - offsets[0], values.indices[part], values.data[part], values.width)
    return values[start:stop]


def check_paths(names: Sequence[str] | Mapping[str, Any]) -> None:
    """Raise if names cannot be paths in one file."""
    taken = set(names)
    for name in names:
        parts = name.split("/")
        if not name or "" in parts or set(parts) & {".", ".."} or "\0" in name:
            raise SchemaMismatchError(f"column {name!r}: expected a name that can be a path in a file; rename it")
        for depth in range(1, len(parts)):
            if "/".join(parts[:depth]) in taken:
                raise SchemaMismatchError(
                    f"columns {'/'.join(parts[:depth])!r} and {name!r}: one is in the other; rename one of them"
                )


def _array(file: OutputFile, name: str, dtype: np.dtype, shape: tuple[int, ...], layout: Layout) -> OutputArray:
    is_text = dtype.hasobject
    row_bytes = (_TEXT_BYTES if is_text else dtype.itemsize) * max(1, math.prod(shape))
    codec = cast(CodecName, layout.codec or "zstd")
    return file.array(name, TEXT if is_text else dtype, shape, layout.rows_of_chunk(row_bytes), codec)


def _values(values: np.ndarray, form: Form, name: str) -> np.ndarray:
    """Return values as h5py stores them."""
    if not form.dtype.hasobject:
        return values.view(form.dtype) if values.dtype.kind in "Mm" else values
    texts = values.astype(object) if values.dtype.kind in "SU" else values
    for value in texts.reshape(-1).tolist():
        if value is None:
            raise SchemaMismatchError(f"column {name!r} has a text that is missing")
        if (b"\0" if isinstance(value, bytes) else "\0") in value:
            raise UnsupportedColumnError(
                f"column {name!r} holds {value!r}: HDF5 ends a text at its first NUL. Write it as an array of bytes."
            )
    return texts


class ColumnWriter:
    """Writes rows of a column to a file: values of one shape and texts to an array, others to a group of arrays.

    Arrays of varying length are offsets and values as AnnData writes those of awkward, sparse rows are a CSR matrix as
    AnnData writes it.

    Parameters
    ----------
    file : OutputFile
        The file.
    name : str
        The column.
    form : Form
        What its values are.
    layout : Layout
        How they are laid out.
    """

    def __init__(self, file: OutputFile, name: str, form: Form, layout: Layout) -> None:
        self._file, self._name, self._form = file, name, form
        self._total = 0
        self._is_plain = form.kind in PLAIN
        if self._is_plain:
            self._data = _array(file, name, form.dtype, form.shape, layout)
            return
        file.group(name)
        item: tuple[int, ...] = ()
        if form.kind == "sparse":
            (width,) = form.shape
            self._indices = _array(file, f"{name}/indices", index_dtype(width), item, layout)
            offsets, values = "indptr", "data"
        else:
            item, offsets, values = form.shape, "node0-offsets", "node1-data"
        self._offsets = _array(file, f"{name}/{offsets}", np.dtype(np.int64), (), layout)
        self._offsets.append(np.zeros(1, np.int64))
        self._data = _array(file, f"{name}/{values}", form.dtype, item, layout)

    def append(self, values: Any) -> None:
        """Add rows."""
        data = values
        if isinstance(values, SparseBatch):
            data = values.data
            self._indices.append(values.indices.astype(self._indices.dtype))
            self._append_lengths(values.indptr.astype(np.int64))
        elif isinstance(values, Ranges):
            data = values.values
            self._append_lengths(values.offsets)
        self._data.append(_values(data, self._form, self._name))

    def _append_lengths(self, offsets: np.ndarray) -> None:
        self._offsets.append(self._total + offsets[1:])
        self._total += int(offsets[-1])

    def finish(self, rows: int) -> None:
        """Say what a group is, and that it has so many rows."""
        if self._is_plain:
            return
        said: dict[str, Any] = {"encoding-version": "0.1.0"}
        if self._form.kind == "sparse":
            said |= {"encoding-type": "csr_matrix", "shape": np.array([rows, *self._form.shape])}
        else:
            dtype = self._form.dtype
            names = {"O": "string", "?": "bool", "c8": "complex64", "c16": "complex128"}
            primitive = names.get(dtype.str.lstrip("<>|="), dtype.name)
            content: dict[str, Any] = {"class": "NumpyArray", "primitive": primitive}
            content |= {"inner_shape": list(self._form.shape), "parameters": {}, "form_key": "node1"}
            form = {"class": "ListOffsetArray", "offsets": "i64", "content": content}
            form |= {"parameters": {}, "form_key": "node0"}
            said |= {"encoding-type": "awkward-array", "form": json.dumps(form), "length": rows}
        self._file.group(self._name, said)
