"""DecodeImage for Ray: images that cannot be decoded are nulls of a block."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from ray.data.block import BlockAccessor
from ray.data.extensions import ArrowTensorArray

from ray_h5.columns.schema import ColumnSpec
from ray_h5.manifest.value_type import ValueType
from ray_h5.options import names_options
from ray_h5.ray_data.arrow.blocks import ragged_array
from ray_h5.transforms import image_transform
from ray_h5.transforms.image_transform import IS_NULL

_PLACES = ("path", "row_id")
"""Columns that name the rows in messages."""


@names_options
@dataclass(frozen=True)
class DecodeImage(image_transform.DecodeImage):
    """Decode images; see `ray_h5.transforms.image_transform.DecodeImage`."""

    __doc__ = image_transform.DecodeImage.__doc__

    def __call__(self, batch: Mapping[str, Any] | pa.Table) -> Any:
        """Return a batch, or one sample, with the columns decoded; the other columns of a table stay as they are."""
        if isinstance(batch, pa.Table):
            return self._of_table(batch)
        images = super().__call__(batch)
        if self.on_error != "null" or not isinstance(images.get(self.columns[0] + IS_NULL), np.ndarray):
            return images
        null = {name: np.asarray(images[name + IS_NULL]) for name in self.columns}
        if not any(is_null.any() for is_null in null.values()):
            return images
        arrays = {name: values for name, values in images.items() if name not in null or values.dtype != object}
        table = BlockAccessor.batch_to_block(arrays)
        for name, missing in null.items():
            if name in arrays:
                table = table.set_column(table.column_names.index(name), name, _with_nulls(arrays[name], missing, name))
            else:
                table = table.append_column(name, _objects(images[name]))
        return table.select(list(images))

    def _of_table(self, table: pa.Table) -> pa.Table:
        if not set(self.columns) <= set(table.column_names):
            return super().__call__(dict.fromkeys(table.column_names))  # an error
        own = [name for name in (*self.columns, *_PLACES) if name in table.column_names]
        made = BlockAccessor.batch_to_block(self(BlockAccessor.for_block(table.select(own)).to_numpy()))
        for name in made.column_names:
            if name in self.columns:
                table = table.set_column(table.column_names.index(name), name, made[name])
            elif name not in own:
                table = table.append_column(name, made[name])
        return table


def _with_nulls(values: np.ndarray, missing: np.ndarray, name: str) -> pa.Array:
    """Return images of one shape as Ray's tensors, some of them null."""
    plain = ArrowTensorArray.from_numpy(np.ascontiguousarray(values), column_name=name)
    storage = plain.storage
    parts = [pa.py_buffer(np.packbits(~missing, bitorder="little")), *storage.buffers()[1:2]]
    if pa.types.is_fixed_size_list(storage.type):
        parts = parts[:1]
    flat = storage.values
    nulls = pa.Array.from_buffers(storage.type, len(storage), parts, children=[flat])
    return plain.type.wrap_array(nulls)


def _objects(values: np.ndarray) -> Any:
    """Return images of several shapes as Ray's tensors of varying shape, some of them null."""
    there = next((image for image in values if image is not None), np.empty((0, 0, 0), np.uint8))
    type_ = ValueType("ragged", np.dtype(object), element=there.dtype, ragged_shape=(None,) * there.ndim)
    return ragged_array(values, ColumnSpec("image", type_))
