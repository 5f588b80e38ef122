"""Rows of sparse matrices in the blocks of Ray Data: two lists a row, with the memory that was read."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ray_h5.arrow_arrays import as_real
from ray_h5.columns.ragged.sparse_rows import SparseBatch, index_dtype
from ray_h5.columns.schema import ColumnSpec

_INDICES, _DATA = "indices", "data"
_WIDTH, _DENSE_WIDTH = "length", "dense_length"
"""The field that holds the length of a row. Its name says whether batches of tensors are dense."""

_STEPS = "steps"
"""With windows: the field that holds how many rows of the matrix a row is, one after the other."""


def sparse_array(rows: np.ndarray, spec: ColumnSpec, where: Callable[[int], str] | None = None) -> pa.Array:
    """Return rows as structs of two lists, ``indices`` and ``data``, and the length of a row. Nothing is copied."""
    batch = SparseBatch.of(rows, spec, where)
    offsets = pa.array(batch.indptr)
    index = pa.array(np.ascontiguousarray(batch.indices, index_dtype(batch.width)))
    parts = [
        pa.LargeListArray.from_arrays(offsets, index),
        pa.LargeListArray.from_arrays(offsets, _values(batch.data)),
        pa.array(np.full(len(batch), batch.width, index.type.to_pandas_dtype())),
    ]
    names = [_INDICES, _DATA, _DENSE_WIDTH if spec.dense else _WIDTH]
    if len(spec.ragged_shape) > 1:
        parts.append(pa.array(np.full(len(batch), spec.ragged_shape[0], np.int64)))
        names.append(_STEPS)
    return pa.StructArray.from_arrays(parts, names)


def _values(data: np.ndarray) -> pa.Array:
    if data.dtype.kind != "c":
        return pa.array(data)
    real = as_real(data)
    return pa.FixedSizeListArray.from_arrays(pa.array(real.reshape(-1)), 2)


def is_sparse(type_: pa.DataType) -> bool:
    """Return whether values are rows of a sparse matrix."""
    if not pa.types.is_struct(type_):
        return False
    names = [field.name for field in type_]
    is_named = names[:2] == [_INDICES, _DATA] and names[2:3] in ([_WIDTH], [_DENSE_WIDTH])
    return is_named and names[3:] in ([], [_STEPS])


def has_steps(type_: pa.DataType) -> bool:
    """Return whether each value is several rows of a sparse matrix: of windows."""
    return type_.num_fields > len((_INDICES, _DATA, _WIDTH))


def is_dense(type_: pa.DataType) -> bool:
    """Return whether batches of such a column are dense tensors."""
    return type_.field(2).name == _DENSE_WIDTH


def dense_batch(name: str, column: pa.ChunkedArray) -> np.ndarray:
    """Return the rows of a column of a table as a dense array: with windows, of shape ``(rows, steps, width)``."""
    dense = to_batch(column).to_dense(name)
    if column.type.num_fields == len((_INDICES, _DATA, _WIDTH)):
        return dense
    steps = int(pc.struct_field(column, _STEPS)[0].as_py()) if len(column) else 1
    return dense.reshape(len(dense), steps, -1 if dense.size else dense.shape[1] // steps)


def to_batch(column: pa.ChunkedArray) -> SparseBatch:
    """Return the rows of a column of a table. Nothing is copied if they follow each other in memory."""
    whole = column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
    # flatten() applies the slice of the struct; field() would not.
    indices, data, width, *_ = whole.flatten()
    # Lists that Ray made of what a function returned have offsets of 32 bits.
    offsets = indices.offsets.to_numpy().astype(np.int64, copy=False)
    part = slice(int(offsets[0]), int(offsets[-1]))
    other = data.offsets.to_numpy()
    values = data.values.slice(int(other[0]), int(other[-1] - other[0]))
    if pa.types.is_fixed_size_list(values.type):
        parts = values.flatten().to_numpy()
        numbers = parts.view(np.result_type(parts.dtype, np.complex64))
    else:
        numbers = values.to_numpy(zero_copy_only=False)
    length = int(width[0].as_py()) if len(width) else 0
    return SparseBatch(offsets - offsets[0], indices.values.to_numpy()[part], numbers, length)
