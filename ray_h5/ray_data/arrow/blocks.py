"""Arrays -> the Arrow tables that are the blocks of Ray Data.

Rows of varying shape are Ray's variable-shape tensors, rows of sparse matrices two lists a row, with the memory that
was read.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from ray.data.block import BlockAccessor
from ray.data.extensions import ArrowPythonObjectType, ArrowTensorArray, ArrowVariableShapedTensorType

from ray_h5.arrow_arrays import as_real, real_dtype, to_arrow
from ray_h5.buffers import objects
from ray_h5.columns.ragged.padding import cast_rows
from ray_h5.columns.schema import ColumnSpec, scalar_to_arrow
from ray_h5.columns.sparse_rows import SparseBatch, index_dtype
from ray_h5.loading.origin_columns import PATH_SPEC, ROW_ID_SPEC, Origin
from ray_h5.manifest.partition import Partition
from ray_h5.manifest.value_type import ValueType
from ray_h5.plan.block_rows import BlockRows
from ray_h5.plan.blocks import Block
from ray_h5.plan.read_plan import ReadPlan
from ray_h5.ray_data.arrow.nullable_tensors import NullableTensorType

_MAY_BE_NULL = b"ray_h5.may_be_null"
_BFLOAT16 = b"ray_h5.bfloat16"
_SHAPE = b"ray_h5.ragged_shape"
"""Along which axes rows of varying shape differ in all files."""


def to_table(plan: ReadPlan, block: Block, names: Sequence[str]) -> pa.Table:
    """Return columns of a block, of the files and added ones, as an Arrow table; the arrays are not copied."""
    specs = {spec.name: spec for spec in plan.columns}
    columns = {name: _to_arrow(plan, block, specs.get(name), name) for name in names}
    if not columns:
        # Arrow forgets the length of a table without columns; Ray's own selection of no columns keeps it.
        return BlockAccessor.for_block(pa.table({ROW_ID_SPEC.name: block.rows.row_ids})).select([])
    fields = [_field(name, column.type, specs.get(name)) for name, column in columns.items()]
    return pa.table(list(columns.values()), schema=pa.schema(fields))


def _field(name: str, type_: pa.DataType, spec: ColumnSpec | None) -> pa.Field:
    """Return the field of a column, with what its type does not say and `TorchCollate` needs.

    Ray keeps what fields say until a function returns arrays of numpy, or rows.
    """
    said: dict[bytes, bytes] = {}
    if spec is not None and spec.kind == "ragged":
        if is_ragged(type_) and type_.ndim == len(spec.type.ragged_shape):
            shape = [None if length is None else int(length) for length in spec.type.ragged_shape]
            said = {_SHAPE: json.dumps(shape).encode()}
    elif spec is not None and (
        spec.type.has_nullable_items or (spec.type.may_be_missing and is_integral(item_type(type_)))
    ):
        said = {_MAY_BE_NULL: b"1"}
    if spec is not None and spec.as_bfloat16:
        said[_BFLOAT16] = b"1"
    return pa.field(name, type_, metadata=said or None)


def item_type(type_: pa.DataType) -> pa.DataType:
    """Return the type of the values of lists, and of lists of lists; any other type as it is."""
    while pa.types.is_list(type_) or pa.types.is_large_list(type_) or pa.types.is_fixed_size_list(type_):
        type_ = type_.value_type
    return type_


def is_integral(type_: pa.DataType) -> bool:
    """Return whether values are integers or booleans, of which numpy has none that is missing."""
    return bool(pa.types.is_integer(type_) or pa.types.is_boolean(type_))


def may_be_null(field: pa.Field) -> bool:
    """Return whether a file may say that a value is missing in a column of integers or booleans, or in a list."""
    return _MAY_BE_NULL in (field.metadata or {})


def is_bfloat16(field: pa.Field) -> bool:
    """Return whether integers are the bits of bfloat16."""
    return _BFLOAT16 in (field.metadata or {})


def schema_of(plan: ReadPlan, names: Sequence[str]) -> pa.Schema:
    """Return the schema of the blocks, which is the schema of an empty one."""
    arrays = {spec.name: np.empty((0, *spec.row_shape), spec.dtype) for spec in plan.as_arrays}
    nothing = np.empty(0, np.int64)
    return to_table(plan, Block(BlockRows(nothing, arrays), nothing, 0), names).schema


def _to_arrow(plan: ReadPlan, block: Block, spec: ColumnSpec | None, name: str) -> pa.Array:
    rows = block.rows

    def where(row: int) -> str:
        return plan.files.where(int(rows.row_ids[row]))

    if spec is not None and name in plan.beside.columns:
        if spec.is_scalar:
            return plan.beside.arrow(name, plan.files, rows.row_ids)
        values = plan.beside.array(name, plan.files, rows.row_ids)
        if spec.kind == "ragged":
            return ragged_array(values, spec, where)
        if spec.is_tensor:
            return ArrowTensorArray.from_numpy(values, column_name=name)
        return scalar_to_arrow(values, spec, where)
    if spec is not None and spec.name in rows.arrays:
        if spec.kind == "ragged":
            return ragged_array(rows.arrays[name], spec, where)
        if spec.kind == "sparse":
            return sparse_array(rows.arrays[name], spec, where)
        array = as_real(rows.arrays[name])
        if spec.kind == "list" and name in plan.cast and len(array):
            cast = objects(cast_rows(list(array), spec, where))
            array = np.stack(cast.tolist()) if spec.row_shape else cast
        if spec.is_tensor:
            return ArrowTensorArray.from_numpy(array, column_name=name)
        return scalar_to_arrow(array, spec, where)
    made = Origin.of(plan, block).column(name)
    return pa.array(made) if isinstance(made, np.ndarray) else made.cast(PATH_SPEC.value_type)


# Rows of varying shape ---------------------------------------------------------------------------------


def ragged_array(rows: np.ndarray, spec: ColumnSpec, where: Callable[[int], str] | None = None) -> pa.Array:
    """Return rows of varying shape, an array each: tensors, or lists of text. `where` returns the place of row i.

    Numbers are not copied where they lie in one array.
    """
    assert spec.element is not None
    if spec.element.kind not in "biufc":
        return to_arrow(rows, pa.large_list(pa.string()))
    missing = np.array([row is None for row in rows], bool)
    empty = np.empty((0,) * len(spec.type.ragged_shape), spec.element)
    filled = [empty if row is None else row for row in rows]
    element, parts = real_dtype(spec.element), (2,) if spec.element.kind == "c" else ()
    axes, cast = len(spec.type.ragged_shape) + len(parts), cast_rows(filled, spec, where)
    shapes = np.array([(*row.shape, *parts) for row in cast if row is not None], np.int64).reshape(len(rows), axes)
    there = [row for row in cast if row is not None]
    whole = _common_base(there, spec.element)
    if whole is None:
        whole = np.concatenate([*(np.asarray(row).reshape(-1) for row in there), np.empty(0, spec.element)])
    flat = as_real(whole).reshape(-1)
    offsets = Partition.of(shapes.prod(axis=1)).starts
    data = pa.LargeListArray.from_arrays(pa.array(offsets), pa.array(flat))
    starts, null = pa.array(np.arange(0, (len(rows) + 1) * axes, axes, dtype=np.int32)), pa.array(missing)
    shape = pa.ListArray.from_arrays(starts, pa.array(shapes.reshape(-1)), mask=null if spec.type.nullable else None)
    storage = pa.StructArray.from_arrays([data, shape], ["data", "shape"], mask=null)
    type_ = NullableTensorType if spec.type.nullable else ArrowVariableShapedTensorType
    return type_(pa.from_numpy_dtype(element), axes).wrap_array(storage)


def _common_base(rows: Sequence[np.ndarray], element: np.dtype) -> np.ndarray | None:
    """Return the array that all rows are consecutive parts of, as one axis; None if there is none."""
    if not len(rows) or rows[0].dtype != element:
        return None
    base = rows[0].base
    if base is None or not base.flags.c_contiguous or base.dtype != element:
        return None
    at = base.__array_interface__["data"][0]
    start = at
    for row in rows:
        if row.base is not base or not row.flags.c_contiguous:
            return None
        if row.size and row.__array_interface__["data"][0] != at:
            return None
        at += row.nbytes
    flat: np.ndarray = base.reshape(-1)[: (at - start) // element.itemsize]
    return flat


def declared_shape(field: pa.Field) -> tuple[int | None, ...] | None:
    """Return the shape of a row, with None for axes along which rows differ; None if the field does not say it."""
    said = (field.metadata or {}).get(_SHAPE)
    return None if said is None else tuple(json.loads(said))


def is_ragged(type_: pa.DataType) -> bool:
    """Return whether values are tensors of varying shape."""
    return isinstance(type_, ArrowVariableShapedTensorType)


def with_tensors(table: pa.Table) -> pa.Table:
    """Return a table in which columns of Python objects that are tensors, or None for a missing one, are tensors.

    Ray makes such objects of what a function returns, where None is amid tensors.
    """
    for number, field in enumerate(table.schema):
        if isinstance(field.type, ArrowPythonObjectType):
            rows = table.column(number).to_pylist()
            kinds = {(row.dtype, row.ndim) if isinstance(row, np.ndarray) else None for row in rows if row is not None}
            if len(kinds) == 1 and (kind := kinds.pop()) is not None and kind[0].kind in "biufc" and kind[1]:
                element, axes = kind
                type_ = ValueType(
                    "ragged", np.dtype(object), element=element, ragged_shape=(None,) * axes, nullable=True
                )
                tensors = ragged_array(objects(rows), ColumnSpec(field.name, type_))
                table = table.set_column(number, field.name, tensors)
    return table


# Rows of sparse matrices -------------------------------------------------------------------------------

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
    values = pa.array(as_real(batch.data).reshape(-1))
    if batch.data.dtype.kind == "c":
        values = pa.FixedSizeListArray.from_arrays(values, 2)
    parts = [
        pa.LargeListArray.from_arrays(offsets, index),
        pa.LargeListArray.from_arrays(offsets, values),
        pa.array(np.full(len(batch), batch.width, index.type.to_pandas_dtype())),
    ]
    names = [_INDICES, _DATA, _DENSE_WIDTH if spec.type.dense else _WIDTH]
    if len(spec.type.ragged_shape) > 1:
        parts.append(pa.array(np.full(len(batch), spec.type.ragged_shape[0], np.int64)))
        names.append(_STEPS)
    return pa.StructArray.from_arrays(parts, names)


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


def dense_batch(name: str, column: pa.ChunkedArray) -> np.ndarray | None:
    """Return the rows of a column of a table as a dense array: with windows, of shape ``(rows, steps, width)``.

    None for a column whose batches are sparse.
    """
    if column.type.field(2).name != _DENSE_WIDTH:
        return None
    dense = to_batch(column).to_dense(name)
    if not has_steps(column.type):
        return dense
    steps = int(pc.struct_field(column, _STEPS)[0].as_py()) if len(column) else 1
    return dense.reshape(len(dense), steps, -1 if dense.size else dense.shape[1] // steps)


def list_parts(lists: pa.Array) -> tuple[np.ndarray, pa.Array]:
    """Return where each list of a part of an array begins, int64 from 0 on, and the values of all of them."""
    # Lists that Ray made of what a function returned have offsets of 32 bits.
    offsets = lists.offsets.to_numpy().astype(np.int64, copy=False)
    return offsets - offsets[0], lists.values.slice(int(offsets[0]), int(offsets[-1] - offsets[0]))


def to_batch(column: pa.ChunkedArray) -> SparseBatch:
    """Return the rows of a column of a table. Nothing is copied if they follow each other in memory."""
    whole = column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
    # flatten() applies the slice of the struct; field() would not.
    indices, data, width, *_ = whole.flatten()
    (offsets, places), (_, values) = list_parts(indices), list_parts(data)
    if pa.types.is_fixed_size_list(values.type):
        parts = values.flatten().to_numpy()
        numbers = parts.view(np.result_type(parts.dtype, np.complex64))
    else:
        numbers = values.to_numpy(zero_copy_only=False)
    length = int(width[0].as_py()) if len(width) else 0
    return SparseBatch(offsets, places.to_numpy(), numbers, length)
