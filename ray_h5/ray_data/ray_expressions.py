"""Predicates as expressions of Ray: how it pushes them into the reading, or evaluates them on blocks."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import pandas as pd  # type: ignore[import-untyped]
import pyarrow as pa
import pyarrow.compute as pc
from ray.data.block import BlockColumn
from ray.data.datatype import DataType
from ray.data.expressions import ColumnExpr, Expr, PyArrowComputeUDFExpr, UDFExpr, col

from ray_h5.errors import PredicateError
from ray_h5.predicates.comparisons import compared
from ray_h5.predicates.criteria import Criterion
from ray_h5.predicates.evaluate import no_scalar
from ray_h5.predicates.time_steps import occurs
from ray_h5.predicates.virtual_names import AnyEqual, Compared, Fold, RowMask
from ray_h5.ray_data.arrow.batch_formats import as_array


class RowChooser:
    """Chooses rows of a block, where Ray filters: after ``map_batches`` and other operators that stop the pushdown."""

    __name__ = "where"  # Ray shows it as the name of the operator

    def __init__(self, criterion: Criterion) -> None:
        self.criterion = criterion

    def __call__(self, *columns: BlockColumn) -> BlockColumn:
        """Return a boolean for each row, as a column of the same type of block."""
        criterion = self.criterion
        if isinstance(criterion.wanted, (RowMask, Fold)):
            what = f"row_mask(): {criterion.column!r}" if isinstance(criterion.wanted, RowMask) else "kfold(): a fold"
            raise PredicateError(
                f"{what} says which rows of the files to take, and this filter gets the blocks of another operator. "
                "Put the filter directly after read_h5, before map_batches and the like."
            )
        if isinstance(criterion.wanted, AnyEqual):
            values, *valid = map(as_array, criterion.columns, columns)
            occurring = occurs(values, valid[0] if valid else None, criterion.column, criterion.wanted)
            return _like(pa.chunked_array([pa.array(occurring)]), columns[0])
        assert isinstance(criterion.wanted, Compared)
        values = _scalars(columns[0], criterion.column)
        return _like(compared(criterion.column, criterion.wanted, values), columns[0])


def _scalars(column: BlockColumn, name: str) -> pa.Array | pa.ChunkedArray:
    try:
        # In floating columns NaN is a number; in objects and times pandas marks missing values with it.
        is_series = isinstance(column, pd.Series)
        values = pa.array(column, from_pandas=column.dtype.kind != "f") if is_series else column
    except (pa.ArrowInvalid, pa.ArrowTypeError) as exc:
        raise PredicateError(f"predicate: column {name!r} holds values of several types: {exc}") from exc
    type_ = values.type
    if not isinstance(type_, pa.BaseExtensionType) or not hasattr(type_, "shape"):
        return values
    if any(length != 1 for length in type_.shape):
        raise no_scalar(name, type_.shape, are_numbers=True)
    # Tensors of one value each are these values.
    chunks = values.chunks if isinstance(values, pa.ChunkedArray) else [values]
    return pa.chunked_array([pc.list_flatten(chunk.storage) for chunk in chunks], type_.storage_type.value_type)


def _like(passes: pa.ChunkedArray, column: BlockColumn) -> BlockColumn:
    if not isinstance(column, pd.Series):
        return passes
    # pandas' nullable booleans, as Arrow's may be null.
    return pd.Series(passes.to_pandas(types_mapper={pa.bool_(): pd.BooleanDtype()}.get).array, column.index)


def column_names(expression: Expr) -> frozenset[str]:
    """Return the names of the columns in an expression of Ray."""
    if isinstance(expression, ColumnExpr):
        return frozenset({expression.name})
    if isinstance(expression, UDFExpr) and isinstance(expression.fn, RowChooser):
        return frozenset({expression.fn.criterion.over([str(arg.name) for arg in expression.args]).named})
    names: set[str] = set()
    for field in dataclasses.fields(expression):
        value = getattr(expression, field.name)
        parts = value.values() if isinstance(value, Mapping) else value if isinstance(value, (list, tuple)) else [value]
        for part in parts:
            if isinstance(part, Expr):
                names |= column_names(part)
    return frozenset(names)


def as_expr(criterion: Criterion) -> Expr:
    """Return an expression that Ray pushes into the reading or evaluates itself, with the same result."""
    chooser = RowChooser(criterion)
    args = [col(name) for name in criterion.columns]
    return PyArrowComputeUDFExpr(
        fn=chooser, args=args, kwargs={}, data_type=DataType.bool(), pc_func=_pushed, pc_positional=(chooser,)
    )


def _pushed(*arguments: Any) -> pc.Expression:
    """Return the predicate for a datasource. Columns may have been renamed."""
    *columns, chooser = arguments
    return chooser.criterion.over([str(column) for column in columns]).expression
