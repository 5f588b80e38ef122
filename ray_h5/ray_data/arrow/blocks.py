"""Arrays -> the Arrow tables that are the blocks of Ray Data."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
from ray.data.block import BlockAccessor
from ray.data.extensions import ArrowTensorArray

from ray_h5.arrow_arrays import as_real
from ray_h5.columns.schema import ColumnSpec, scalar_to_arrow
from ray_h5.loading.origin_columns import PATH_SPEC, ROW_ID_SPEC, epoch_column, paths_of
from ray_h5.order.execute_plan import BlockRows
from ray_h5.order.read_plan import ReadPlan
from ray_h5.order.remaining_blocks import Block
from ray_h5.ray_data.arrow.varying_blocks import is_ragged, ragged_array, shape_said, sparse_array

_MAY_BE_NULL = b"ray_h5.may_be_null"


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
        said = shape_said(spec) if is_ragged(type_) and type_.ndim == len(spec.ragged_shape) else {}
    elif spec is not None and spec.may_be_missing and is_integral(item_type(type_)):
        said = {_MAY_BE_NULL: b"1"}
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
    """Return whether a file may say that a value is missing in a column of integers or booleans, or lists of them."""
    return _MAY_BE_NULL in (field.metadata or {})


def schema_of(plan: ReadPlan, names: Sequence[str]) -> pa.Schema:
    """Return the schema of the blocks, which is the schema of an empty one."""
    arrays = {spec.name: np.empty((0, *spec.row_shape), spec.dtype) for spec in plan.of_files}
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
        return ArrowTensorArray.from_numpy(values, column_name=name)
    if spec is not None and spec.name in rows.arrays:
        if spec.kind == "ragged":
            return ragged_array(rows.arrays[name], spec, where)
        if spec.kind == "sparse":
            return sparse_array(rows.arrays[name], spec, where)
        array = as_real(rows.arrays[name])
        if spec.is_tensor:
            return ArrowTensorArray.from_numpy(array, column_name=name)
        return scalar_to_arrow(array, spec, where)
    made = epoch_column(plan, block, name)
    return paths_of(plan.files, rows.row_ids).cast(PATH_SPEC.value_type) if made is None else pa.array(made)
