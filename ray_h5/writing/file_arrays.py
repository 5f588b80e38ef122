"""Rows of columns -> arrays of a file, in the forms that `read_h5` and AnnData read."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias, cast

import numpy as np

from ray_h5.buffers import objects
from ray_h5.codecs.encode import CodecName
from ray_h5.columns.schema import ColumnSpec
from ray_h5.columns.varying.sparse_rows import SparseBatch, index_dtype
from ray_h5.errors import SchemaMismatchError, UnsupportedColumnError
from ray_h5.writing.layouts import Layout
from ray_h5.writing.output import TEXT, OutputArray, OutputFile, stored_dtype

_TEXT_BYTES = 32


@dataclass(frozen=True, slots=True)
class Form:
    """What the values of a column are written as.

    Attributes
    ----------
    kind : {"plain", "text", "ragged", "sparse", "optional"}
        Values of one type and shape; texts of any length; arrays of varying length; rows of a sparse matrix; values
        of one type that may be missing.
    dtype : numpy.dtype
        The type of a value; objects for text.
    shape : tuple of int
        Of a row; for ragged ones: of an item of it; for sparse ones: its length.
    attributes : mapping of str to object
        The attributes of the column.
    fill : object, optional
        The fill value.
    layout : Layout, optional
        How this column is laid out, if not as the others.
    """

    kind: str
    dtype: np.dtype
    shape: tuple[int, ...] = ()
    attributes: Mapping[str, Any] = field(default_factory=dict, compare=False)
    fill: Any = field(default=None, compare=False)
    layout: Layout | None = field(default=None, compare=False)

    @classmethod
    def of(cls, spec: ColumnSpec) -> Form:
        """Return the form of a column that is read."""
        if spec.kind in {"number", "bool", "binary", "struct", "time"}:
            if spec.dtype.hasobject:
                raise UnsupportedColumnError(
                    f"column {spec.name!r} has {spec.dtype}: texts or lists in compound values cannot be written. "
                    "Leave it out with columns=[...]."
                )
            return cls("plain", stored_dtype(spec.dtype), spec.row_shape)
        if spec.kind == "string":
            return cls("text", np.dtype(object), spec.row_shape)
        assert spec.element is not None
        if spec.kind in {"list", "ragged"}:
            inner = spec.ragged_shape[1:] if spec.kind == "ragged" else ()
            if spec.row_shape or None in inner:
                raise varies(spec.name, spec.shown_shape)
            return cls("ragged", _element(spec.element), cast(tuple[int, ...], inner))
        if spec.kind == "sparse":
            if len(spec.ragged_shape) > 1:
                raise windows_of_sparse_rows(spec.name)
            return cls("sparse", stored_dtype(spec.element), (int(spec.ragged_shape[0] or 0),))
        if spec.row_shape:
            raise UnsupportedColumnError(
                f"column {spec.name!r} has {spec.kind} values of shape {spec.row_shape}; one a row can be written. "
                "Pass dtypes= to read them as numbers, or leave it out."
            )
        return cls("optional", _element(spec.element))

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


def _element(dtype: np.dtype) -> np.dtype:
    return np.dtype(object) if dtype.kind in "SOU" else stored_dtype(dtype)


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

    @classmethod
    def of(cls, rows: Iterable[np.ndarray], form: Form) -> Ranges:
        """Return rows that are arrays of their own."""
        rows = list(map(np.asarray, rows))
        offsets = np.concatenate([[0], np.cumsum([len(row) for row in rows], dtype=np.int64)])
        dtype = object if form.dtype.hasobject else form.dtype
        return cls(offsets, np.concatenate([*rows, np.empty((0, *form.shape), dtype)]))


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


class ColumnWriter(Protocol):
    """Writes one column."""

    def append(self, values: Any) -> None:
        """Add rows: an array, or `Ranges` or a `SparseBatch`, as the form says."""

    def finish(self, rows: int) -> None:
        """Write what is known at the end; `rows` are all rows."""


class TableWriter:
    """Writes rows of columns to a file.

    Parameters
    ----------
    file : OutputFile
        The file.
    forms : mapping of str to Form
        The columns.
    layout : Layout
        How they are laid out.
    """

    def __init__(self, file: OutputFile, forms: Mapping[str, Form], layout: Layout) -> None:
        self.rows = 0
        self._file = file
        check_paths(forms)
        if any(form.kind not in {"plain", "text"} for form in forms.values()):
            file.group("/", {"encoding-type": "ray_h5", "encoding-version": "1"})  # groups that are columns are read so
        self._columns = {name: _writer(file, name, form, form.layout or layout) for name, form in forms.items()}

    def append(self, columns: Mapping[str, ColumnValues], rows: int) -> None:
        """Add rows: an array for each column."""
        for name, writer in self._columns.items():
            writer.append(columns[name])
        self.rows += rows

    def finish(self) -> None:
        """Write what is left. The file is still open."""
        for writer in self._columns.values():
            writer.finish(self.rows)


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


def _writer(file: OutputFile, name: str, form: Form, layout: Layout) -> ColumnWriter:
    made: dict[str, Callable[[OutputFile, str, Form, Layout], ColumnWriter]] = {
        "plain": _Plain,
        "text": _Plain,
        "ragged": _Ragged,
        "sparse": _Sparse,
        "optional": _Optional,
    }
    return made[form.kind](file, name, form, layout)


def _array(
    file: OutputFile,
    name: str,
    dtype: np.dtype,
    shape: tuple[int, ...],
    layout: Layout,
    attributes: Mapping[str, Any] | None = None,
    fill: Any = None,
) -> OutputArray:
    is_text = dtype.hasobject
    row_bytes = (_TEXT_BYTES if is_text else dtype.itemsize) * max(1, math.prod(shape))
    codec = cast(CodecName, layout.codec or "zstd")
    return file.array(
        name,
        TEXT if is_text else dtype,
        shape,
        chunk_rows=layout.rows_of_chunk(row_bytes),
        codec=codec,
        attributes=attributes,
        fill=fill,
    )


def _values(values: np.ndarray, form: Form, name: str) -> np.ndarray:
    if form.dtype.hasobject:
        return as_texts(values, name)
    return values.view(form.dtype) if values.dtype.kind in "Mm" else values


def as_texts(values: np.ndarray, name: str) -> np.ndarray:
    """Return texts as objects that h5py stores."""
    found = values.astype(object) if values.dtype.kind in "SU" else values
    for value in found.reshape(-1).tolist():
        if value is None:
            raise SchemaMismatchError(f"column {name!r} has a text that is missing")
        if (b"\0" if isinstance(value, bytes) else "\0") in value:
            raise UnsupportedColumnError(
                f"column {name!r} holds {value!r}: HDF5 ends a text at its first NUL. Write it as an array of bytes."
            )
    return found


class _Plain:
    """Values of one shape, and texts."""

    def __init__(self, file: OutputFile, name: str, form: Form, layout: Layout) -> None:
        self._name, self._form = name, form
        self._array = _array(file, name, form.dtype, form.shape, layout, form.attributes, form.fill)

    def append(self, values: np.ndarray) -> None:
        self._array.append(_values(values, self._form, self._name))

    def finish(self, rows: int) -> None:
        pass


class _Ragged:
    """Arrays of varying length, as AnnData writes those of awkward: a group of offsets and values."""

    def __init__(self, file: OutputFile, name: str, form: Form, layout: Layout) -> None:
        self._file, self._name, self._form = file, name, form
        self._total = 0
        file.group(name)
        self._offsets = _array(file, f"{name}/node0-offsets", np.dtype(np.int64), (), layout)
        self._offsets.append(np.zeros(1, np.int64))
        self._data = _array(file, f"{name}/node1-data", form.dtype, form.shape, layout)

    def append(self, values: Any) -> None:
        found = values if isinstance(values, Ranges) else Ranges.of(values, self._form)
        self._offsets.append(self._total + found.offsets[1:])
        self._total += int(found.offsets[-1])
        self._data.append(_values(found.values, self._form, self._name))

    def finish(self, rows: int) -> None:
        content: dict[str, Any] = {"class": "NumpyArray", "primitive": _primitive(self._form.dtype)}
        content |= {"inner_shape": list(self._form.shape), "parameters": {}, "form_key": "node1"}
        form = {"class": "ListOffsetArray", "offsets": "i64", "content": content, "parameters": {}, "form_key": "node0"}
        said: dict[str, Any] = {"encoding-type": "awkward-array", "encoding-version": "0.1.0"}
        said |= {"form": json.dumps(form), "length": rows}
        self._file.group(self._name, {**said, **self._form.attributes})


class _Sparse:
    """Rows of a sparse matrix, as AnnData writes them."""

    def __init__(self, file: OutputFile, name: str, form: Form, layout: Layout) -> None:
        self._file, self._name, self._form = file, name, form
        self._total = 0
        (self._width,) = form.shape
        file.group(name)
        self._data = _array(file, f"{name}/data", form.dtype, (), layout)
        self._indices = _array(file, f"{name}/indices", index_dtype(self._width), (), layout)
        self._indptr = _array(file, f"{name}/indptr", np.dtype(np.int64), (), layout)
        self._indptr.append(np.zeros(1, np.int64))

    def append(self, values: Any) -> None:
        batch = values
        if not isinstance(batch, SparseBatch):
            spec = ColumnSpec(self._name, "sparse", np.dtype(object), (), self._form.dtype, ragged_shape=(self._width,))
            batch = SparseBatch.of(batch, spec)
        self._indptr.append(self._total + batch.indptr[1:].astype(np.int64))
        self._total += len(batch.data)
        self._indices.append(batch.indices.astype(index_dtype(self._width)))
        self._data.append(batch.data)

    def finish(self, rows: int) -> None:
        said = {"encoding-type": "csr_matrix", "encoding-version": "0.1.0"}
        self._file.group(self._name, {**said, "shape": np.array([rows, self._width]), **self._form.attributes})


class _Optional:
    """Values that may be missing, as AnnData writes them: categories for text and floats, else values and a mask."""

    def __init__(self, file: OutputFile, name: str, form: Form, layout: Layout) -> None:
        self._file, self._name, self._form = file, name, form
        self._is_text = form.dtype.hasobject
        self._of_codes = form.dtype.kind not in "biu"
        self._categories: dict[Any, int] = {}
        self._layout = layout
        file.group(name)
        if self._of_codes:
            self._codes = _array(file, f"{name}/codes", np.dtype(np.int32), (), layout)
        else:
            self._values = _array(file, f"{name}/values", form.dtype, (), layout)
            self._mask = _array(file, f"{name}/mask", np.dtype(bool), (), layout)

    def append(self, values: np.ndarray) -> None:
        missing = np.fromiter((each is None for each in values.tolist()), bool, len(values))
        if self._of_codes:
            known = self._categories
            texts = (None if each is None else _text(each) for each in values.tolist())
            codes = (-1 if each is None else known.setdefault(each, len(known)) for each in texts)
            self._codes.append(np.fromiter(codes, np.int32, len(values)))
            return
        found = np.zeros(len(values), self._form.dtype)
        found[~missing] = values[~missing].astype(self._form.dtype)
        self._values.append(found)
        self._mask.append(missing)

    def finish(self, rows: int) -> None:  # noqa: ARG002  as the other columns have it
        said: dict[str, Any] = {"encoding-version": "0.2.0" if self._of_codes else "0.1.0"}
        if self._of_codes:
            said |= {"encoding-type": "categorical", "ordered": False}
            categories = objects(self._categories)
            found = _array(self._file, f"{self._name}/categories", self._form.dtype, (), self._layout)
            found.append(categories if self._is_text else categories.astype(self._form.dtype))
        else:
            said["encoding-type"] = "nullable-boolean" if self._form.dtype.kind == "b" else "nullable-integer"
        self._file.group(self._name, {**said, **self._form.attributes})


def _text(value: Any) -> Any:
    return value.decode() if isinstance(value, bytes) else value


def _primitive(dtype: np.dtype) -> str:
    if dtype.hasobject:
        return "string"
    return {"?": "bool", "c8": "complex64", "c16": "complex128"}.get(dtype.str.lstrip("<>|="), dtype.name)
