"""Rows of varying shape as Arrow arrays of Ray's variable-shape tensors."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence

import numpy as np
import pyarrow as pa
from ray.data.extensions import ArrowVariableShapedTensorType

from ray_h5.arrow_arrays import as_real, real_dtype, to_arrow
from ray_h5.columns.ragged.padding import cast_rows
from ray_h5.columns.schema import ColumnSpec

_SHAPE = b"ray_h5.ragged_shape"


def ragged_array(rows: np.ndarray, spec: ColumnSpec, where: Callable[[int], str] | None = None) -> pa.Array:
    """Return rows of varying shape: tensors, or lists of text. Numbers are not copied where they lie in one array.

    Parameters
    ----------
    rows : numpy.ndarray
        Objects: an array for each row.
    spec : ColumnSpec
        The column.
    where : callable, optional
        Returns the place of row i, for messages.
    """
    assert spec.element is not None
    if spec.element.kind not in "biufc":
        return to_arrow(rows, pa.large_list(pa.string()))
    missing = np.array([row is None for row in rows], bool)
    empty = np.empty((0,) * len(spec.ragged_shape), spec.element)
    filled = [empty if row is None else row for row in rows]
    element, parts = real_dtype(spec.element), (2,) if spec.element.kind == "c" else ()
    axes, cast = len(spec.ragged_shape) + len(parts), cast_rows(filled, spec, where)
    shapes = np.array([(*row.shape, *parts) for row in cast if row is not None], np.int64).reshape(len(rows), axes)
    flat = _flat([row for row in cast if row is not None], spec.element)
    offsets = np.concatenate([[0], np.cumsum(shapes.prod(axis=1))])
    data = pa.LargeListArray.from_arrays(pa.array(offsets), pa.array(flat))
    starts = pa.array(np.arange(0, (len(rows) + 1) * axes, axes, dtype=np.int32))
    shape = pa.ListArray.from_arrays(starts, pa.array(shapes.reshape(-1)))
    storage = pa.StructArray.from_arrays([data, shape], ["data", "shape"], mask=pa.array(missing))
    return ArrowVariableShapedTensorType(pa.from_numpy_dtype(element), axes).wrap_array(storage)


def _flat(rows: Sequence[np.ndarray], element: np.dtype) -> np.ndarray:
    """Return the values of all rows, one after the other."""
    whole = _common_base(rows, element)
    if whole is None:
        whole = np.concatenate([*(np.asarray(row).reshape(-1) for row in rows), np.empty(0, element)])
    return as_real(whole).reshape(-1)


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


def shape_said(spec: ColumnSpec) -> dict[bytes, bytes]:
    """Return what the field of rows of varying shape says: along which axes they differ in all files."""
    shape = [None if n is None else int(n) for n in spec.ragged_shape]
    return {_SHAPE: json.dumps(shape).encode()}


def declared_shape(field: pa.Field) -> tuple[int | None, ...] | None:
    """Return the shape of a row, with None for axes along which rows differ; None if the field does not say it."""
    said = (field.metadata or {}).get(_SHAPE)
    return None if said is None else tuple(json.loads(said))


def is_ragged(type_: pa.DataType) -> bool:
    """Return whether values are tensors of varying shape."""
    return isinstance(type_, ArrowVariableShapedTensorType)
