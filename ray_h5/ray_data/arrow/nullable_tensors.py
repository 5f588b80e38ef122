"""Tensors of varying shape of which some are missing, as an Arrow type.

In batches of NumPy and pandas, Ray's own type makes an empty array of a missing tensor; this one makes None.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import numpy as np
import pyarrow as pa
from ray.data.extensions import (
    ArrowVariableShapedTensorArray,
    ArrowVariableShapedTensorType,
    TensorDtype,
)

from ray_h5.errors import SchemaMismatchError


class NullableTensorType(ArrowVariableShapedTensorType):
    """Ray's type of tensors of varying shape, for columns of which values are missing.

    All blocks of a dataset have it, whether or not one lacks a value. Storage is that of Ray's type, except that the
    shape of a missing tensor is missing, too: where another type takes its place there is an error, and no empty array.
    Ray sends blocks through Arrow's streams, whose reader finds a type by its name: processes import this module.
    """

    def __init__(self, dtype: pa.DataType, ndim: int) -> None:
        self._axes = ndim
        of_tensors = pa.struct([("data", pa.large_list(dtype)), ("shape", pa.list_(pa.int64()))])
        # Ray's own would give it the name of Ray's type.
        super(ArrowVariableShapedTensorType, self).__init__(of_tensors, "ray_h5.nullable_tensor")

    @property
    def ndim(self) -> int:
        """Return the number of axes of a tensor."""
        return self._axes

    def __arrow_ext_serialize__(self) -> bytes:
        return str(self._axes).encode()

    @classmethod
    def __arrow_ext_deserialize__(cls, storage_type: pa.DataType, serialized: bytes) -> NullableTensorType:
        return cls(storage_type.field("data").type.value_type, int(serialized))

    def __arrow_ext_class__(self) -> type:
        return NullableTensorArray

    def __str__(self) -> str:
        return f"NullableTensorType(ndim={self._axes}, dtype={self.value_type})"

    def to_pandas_dtype(self) -> TensorDtype:
        """Return the dtype of a column of pandas."""
        return _NullableTensorDtype(self.shape, self.value_type.to_pandas_dtype())


class NullableTensorArray(ArrowVariableShapedTensorArray):
    """An array of `NullableTensorType`."""

    def to_numpy(self, zero_copy_only: bool = True) -> np.ndarray:
        """Return views of the tensors as an array of objects, with None for those that are missing."""
        if not self.null_count:
            return super().to_numpy(zero_copy_only=zero_copy_only)
        # Ray's type makes a view of each shape, and a missing tensor has none: it gets one of no values meanwhile.
        data, shapes = self.storage.field("data"), self.storage.field("shape").fill_null([0] * self.type.ndim)
        there = pa.StructArray.from_arrays([data, shapes], ["data", "shape"])
        rows = ArrowVariableShapedTensorType(self.type.value_type, self.type.ndim).wrap_array(there).to_numpy()
        rows[self.is_null().to_numpy(zero_copy_only=False)] = None
        return rows

    def to_var_shaped_tensor_array(self, ndim: int) -> Any:
        """Raise: Ray joins this array and one of another type, which cannot say that a value is missing."""
        raise SchemaMismatchError(
            f"tensors of {self.type.value_type} with {ndim} axes are joined of which some may be missing and others "
            "may not, as by union() of two datasets. Read the files of both in one call with missing='null', or "
            "leave the column out of one with columns=[...]."
        )


class _NullableTensorDtype(TensorDtype):
    """Makes a column of pandas: Ray's tensors, or objects if one of them is missing."""

    def __from_arrow__(self, array: pa.Array | pa.ChunkedArray) -> Any:
        if not array.null_count:
            return super().__from_arrow__(array)
        chunks = array.chunks if isinstance(array, pa.ChunkedArray) else [array]
        # TensorArray refuses None, and PythonObjectArray stacks tensors that are equally large.
        values = np.concatenate([chunk.to_numpy() for chunk in chunks])
        return values[np.newaxis]  # as pandas keeps columns of objects


with suppress(pa.ArrowKeyError):  # it is registered: the module is imported again
    pa.register_extension_type(NullableTensorType(pa.int64(), 0))
