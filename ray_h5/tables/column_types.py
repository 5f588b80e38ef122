"""Types of columns of tables -> specs of columns."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from ray_h5.columns.schema import ColumnSpec


def spec_of(name: str, kind: pa.DataType) -> ColumnSpec | None:
    """Return the spec of a column of a table; None for a type that is not delivered."""
    if pa.types.is_dictionary(kind):
        return spec_of(name, kind.value_type)
    if (is_bool := pa.types.is_boolean(kind)) or is_number(kind):
        return ColumnSpec(name, "bool" if is_bool else "number", np.dtype(kind.to_pandas_dtype()), ())
    is_bytes = pa.types.is_binary(kind) or pa.types.is_large_binary(kind)
    if is_bytes or is_text(kind) or pa.types.is_string_view(kind) or pa.types.is_null(kind):
        return ColumnSpec(name, "string", np.dtype(object), (), as_bytes=is_bytes)
    if (is_span := pa.types.is_duration(kind)) or pa.types.is_timestamp(kind):  # of a time zone it is the time in UTC
        return ColumnSpec(name, "time", np.dtype(f"{'m8' if is_span else 'M8'}[{kind.unit}]"), ())
    if pa.types.is_date(kind):
        return ColumnSpec(name, "time", np.dtype("M8[D]"), ())
    if pa.types.is_fixed_size_list(kind) and is_number(kind.value_type):
        return ColumnSpec(name, "number", np.dtype(kind.value_type.to_pandas_dtype()), (kind.list_size,))
    if (pa.types.is_list(kind) or pa.types.is_large_list(kind)) and is_number(kind.value_type):
        element = np.dtype(kind.value_type.to_pandas_dtype())
        return ColumnSpec(name, "ragged", np.dtype(object), (), element, ragged_shape=(None,), mean_bytes=1 << 10)
    return None


def is_text(kind: pa.DataType) -> bool:
    """Return whether a type is that of text."""
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def is_number(kind: pa.DataType) -> bool:
    """Return whether a type is that of integers or floats."""
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind))
