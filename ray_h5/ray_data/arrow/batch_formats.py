"""Batches of users, which are dicts, pandas frames or Arrow tables, to arrays of their columns and back."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeAlias

import numpy as np
import pandas as pd  # type: ignore[import-untyped]
import pyarrow as pa
from ray.data.block import BlockAccessor, BlockColumn
from ray.data.extensions import ArrowTensorArray, TensorArray, TensorDtype

from ray_h5.buffers import objects
from ray_h5.errors import OptionError, SchemaMismatchError

Change: TypeAlias = Callable[[Mapping[str, Any]], Mapping[str, Any]]


def names_of(batch: Any) -> list[str]:
    """Return the names of the columns of a batch.

    Raises
    ------
    OptionError
        If it is not a batch.
    """
    if isinstance(batch, pa.Table):
        return list(batch.column_names)
    if isinstance(batch, (Mapping, pd.DataFrame)):
        return list(batch)
    raise OptionError(
        f"expected a batch, {{column: array or tensor}}, a pandas.DataFrame or a pyarrow.Table, found "
        f"{type(batch).__name__}; pass one array as {{column: array}}"
    )


def changed(batch: Any, names: Iterable[str], change: Change) -> Any:
    """Return a batch of the same type in which those columns of `names` that it has are changed.

    The batch is a mapping of arrays or tensors, which may be one row, a frame of pandas or a table of Arrow. `change`
    takes {column: array} and returns the same mapping with new arrays.
    """
    names_there = set(names_of(batch))
    wanted = [name for name in names if name in names_there]
    if isinstance(batch, Mapping):
        return {**batch, **change({name: batch[name] for name in wanted})}
    table = BlockAccessor.for_block(batch.select(wanted)).to_numpy() if isinstance(batch, pa.Table) else batch
    arrays = {name: _stacked(name, table[name]) for name in wanted}
    # The type of a column of objects and no rows is unknown.
    made = change({name: array for name, array in arrays.items() if len(array) or array.dtype != object})
    if isinstance(batch, pa.Table):
        for name, array in made.items():
            # Ray would turn an array with several axes and no rows into objects.
            column = ArrowTensorArray.from_numpy(array, column_name=name) if array.ndim > 1 else pa.array(array)
            batch = batch.set_column(batch.column_names.index(name), name, column)
        return batch
    frame = batch.copy(deep=False)
    for name, array in made.items():
        values = array
        if array.ndim > 1:
            values = TensorArray(array) if isinstance(frame[name].dtype, TensorDtype) else objects(array)
        frame[name] = pd.Series(values, index=frame.index)
    return frame


def as_array(name: str, column: BlockColumn) -> np.ndarray[Any, Any]:
    """Return a column of a block as one array."""
    if isinstance(column, pd.Series):
        return _stacked(name, column)
    return _stacked(name, BlockAccessor.for_block(pa.table({name: column})).to_numpy()[name])


def _stacked(name: str, column: pd.Series | np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return a column of a frame or table as one array; rows that are arrays are stacked."""
    values = np.asarray(column)
    if values.dtype != object or not len(values) or not isinstance(values[0], (np.ndarray, list)):
        return values
    try:
        return np.stack(list(values))
    except ValueError as exc:
        shapes = sorted({np.shape(value) for value in values})
        raise SchemaMismatchError(
            f"column {name!r}: rows have the shapes {', '.join(map(str, shapes[:4]))}; expected one shape"
        ) from exc
