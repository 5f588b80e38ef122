"""Rows of sparse matrices in the blocks of Ray Data: two lists a row, with the memory that was read."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pyarrow as pa

from ray_h5.planning.arrow import as_real
from ray_h5.planning.schema import ColumnSpec
from ray_h5.planning.sparse import SparseBatch, index_dtype

_INDICES, _DATA = "indices", "data"
_WIDTH, _DENSE_WIDTH = "length", "dense_length"
"""The field that holds the length of a row. Its name says whether batches of tensors are dense."""


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
    return pa.StructArray.from_arrays(parts, [_INDICES, _DATA, _DENSE_WIDTH if spec.dense else _WIDTH])


def _values(data: np.ndarray) -> pa.Array:
    if data.dtype.kind != "c":
        return pa.array(data)
    real = as_real(data)
    return pa.FixedSizeListArray.from_arrays(pa.array(real.reshape(-1)), 2)


def is_sparse(type_: pa.DataType) -> bool:
    """Return whether values are rows of a sparse matrix."""
    if not pa.types.is_struct(type_) or type_.num_fields != len((_INDICES, _DATA, _WIDTH)):
        return False
    names = [field.name for field in type_]
    return names[:2] == [_INDICES, _DATA] and names[2] in {_WIDTH, _DENSE_WIDTH}


def is_dense(type_: pa.DataType) -> bool:
    """Return whether batches of such a column are dense tensors."""
    return type_.field(2).name == _DENSE_WIDTH


def to_batch(column: pa.ChunkedArray) -> SparseBatch:
    """Return the rows of a column of a table. Nothing is copied if they follow each other in memory."""
    whole = column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
    # flatten() applies the slice of the struct; field() would not.
    indices, data, width = whole.flatten()
    offsets = indices.offsets.to_numpy()
    part = slice(int(offsets[0]), int(offsets[-1]))
    other = data.offsets.to_numpy()
    values = data.values.slice(int(other[0]), int(other[-1] - other[0]))
    if pa.types.is_fixed_size_list(values.type):
        parts = values.flatten().to_numpy()
        found = parts.view(np.result_type(parts.dtype, np.complex64))
    else:
        found = values.to_numpy(zero_copy_only=False)
    length = int(width[0].as_py()) if len(width) else 0
    return SparseBatch(offsets - offsets[0], indices.values.to_numpy()[part], found, length)
