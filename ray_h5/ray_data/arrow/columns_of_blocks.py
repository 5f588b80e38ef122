"""Blocks of Ray Data -> columns of files: the other way of `ray_h5.ray_data.arrow.blocks`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from ray.data.block import Block, BlockAccessor
from ray.data.extensions import (
    ArrowPythonObjectType,
    FixedShapeTensorType,
    get_arrow_extension_tensor_types,
)

from ray_h5.errors import NullValueError, OptionError, SchemaMismatchError, UnsupportedColumnError
from ray_h5.manifest.partition import Partition
from ray_h5.messages import no_column
from ray_h5.ray_data.arrow.blocks import has_steps, is_ragged, is_sparse, list_parts, to_batch, with_tensors
from ray_h5.writing.file_arrays import ColumnValues, Form, Ranges, check_paths, varies, windows_of_sparse_rows
from ray_h5.writing.file_writer import stored_dtype

_NATIVE = pa.types
_TENSORS = get_arrow_extension_tensor_types()


def columns_of(
    block: Block, names: Sequence[str] | None, null_value: Any, varying: Sequence[str] = ()
) -> tuple[dict[str, Form], dict[str, ColumnValues]]:
    """Return the columns of a block, or those of `names`, and what they are written as.

    Fields of structs are columns of their own. `null_value` is written for a missing value, or that by column; None
    makes it an error. Rows of the columns `varying` differ in length, also where those of this block do not.
    """
    table = with_tensors(BlockAccessor.for_block(block).to_arrow())
    if names is not None:
        absent = [name for name in names if name not in table.column_names]
        if absent:
            raise OptionError(f"columns: {no_column(absent, table.column_names)}")
        table = table.select(list(names))
    if isinstance(null_value, Mapping) and (absent := [name for name in null_value if name not in table.column_names]):
        raise OptionError(f"null_value: {no_column(absent, table.column_names)}")
    forms: dict[str, Form] = {}
    columns: dict[str, ColumnValues] = {}
    for name in table.column_names:
        whole = table.column(name)
        array = whole.chunk(0) if whole.num_chunks == 1 else whole.combine_chunks()
        fill = null_value.get(name) if isinstance(null_value, Mapping) else null_value
        for path, part in _leaves(name.strip("/"), array):
            if path in forms:
                raise SchemaMismatchError(
                    f"columns: two of them are {path!r} in a file, as {name!r} is; rename one of them"
                )
            forms[path], columns[path] = _column(path, part, fill)
    if absent := [name for name in varying if name not in forms]:
        raise OptionError(f"varying: {no_column(absent, list(forms))}")
    for name in varying:
        form, values = forms[name], columns[name]
        if form.kind == "ragged":
            continue
        # Ray stacks the rows of a block where they agree.
        if form.kind not in {"plain", "text"} or not form.shape or not isinstance(values, np.ndarray):
            raise OptionError(f"varying: column {name!r} has {form}; expected tensors or lists")
        length, *inner = form.shape
        starts = np.arange(len(values) + 1, dtype=np.int64) * length
        columns[name] = Ranges(starts, values.reshape(len(values) * length, *inner))
        forms[name] = Form("ragged", form.dtype, tuple(inner))
    check_paths(forms)
    return forms, columns


def _leaves(name: str, array: pa.Array) -> Iterator[tuple[str, pa.Array]]:
    """Yield the columns that an array is: one, or one for each field of a struct."""
    if _NATIVE.is_dictionary(array.type):
        array = array.dictionary_decode()
    if not _NATIVE.is_struct(array.type) or is_sparse(array.type):
        yield name, array
        return
    if not array.type.num_fields:
        raise UnsupportedColumnError(f"column {name!r} has structs without fields; leave it out with columns=[...]")
    for field, part in zip(array.type, array.flatten(), strict=True):
        yield from _leaves(f"{name}/{field.name}", part)


def _column(name: str, array: pa.Array, fill: Any) -> tuple[Form, ColumnValues]:
    type_ = array.type
    if isinstance(type_, ArrowPythonObjectType):
        raise UnsupportedColumnError(
            f"column {name!r} holds Python objects, which have no type in HDF5. Make arrays, numbers or text of them "
            "in map_batches, or leave it out with columns=[...]."
        )
    if _NATIVE.is_struct(type_):
        if not is_sparse(type_):  # a list holds it; others are columns for each field by now
            raise _nested(name, f"lists of {type_}")
        if has_steps(type_):
            raise windows_of_sparse_rows(name)
    is_tensor = isinstance(type_, (*_TENSORS, FixedShapeTensorType))
    is_bytes = _NATIVE.is_binary(type_) or _NATIVE.is_large_binary(type_)
    if not (is_tensor or is_bytes or _NATIVE.is_nested(type_)):
        return _scalars(name, _without_nulls(name, array, fill))
    _without_nulls(name, array, None)
    if is_tensor:
        return _tensors(name, array)
    if _NATIVE.is_struct(type_):
        batch = to_batch(pa.chunked_array([array]))
        return Form("sparse", batch.data.dtype, (batch.width,)), batch
    if is_bytes:
        whole = array.cast(pa.large_binary())
        _, offsets, data = whole.buffers()
        flat = pa.array([], pa.uint8()) if data is None else pa.Array.from_buffers(pa.uint8(), data.size, [None, data])
        starts = pa.Array.from_buffers(pa.int64(), len(whole) + 1, [None, offsets], offset=whole.offset)
        return _lists(name, pa.LargeListArray.from_arrays(starts, flat), None)
    if _NATIVE.is_list(type_) or _NATIVE.is_large_list(type_):
        return _lists(name, array, fill)
    if _NATIVE.is_fixed_size_list(type_):
        # flatten() applies the slice.
        form, values = _column(name, array.flatten(), fill)
        if not isinstance(values, np.ndarray):
            raise _nested(name, type_)
        shape = (type_.list_size, *form.shape)
        return Form(form.kind, form.dtype, shape), values.reshape(len(array), *shape)
    return _scalars(name, array)


def _scalars(name: str, array: pa.Array) -> tuple[Form, np.ndarray]:
    type_ = array.type
    if _NATIVE.is_string(type_) or _NATIVE.is_large_string(type_):
        return Form("text", np.dtype(object)), array.to_numpy(zero_copy_only=False)
    if _NATIVE.is_fixed_size_binary(type_):
        dtype = np.dtype((np.void, type_.byte_width))
        start = array.offset * type_.byte_width
        buffer = array.buffers()[1]
        return Form("plain", dtype), np.frombuffer(buffer, np.uint8)[start:][: len(array) * dtype.itemsize].view(dtype)
    if getattr(type_, "tz", None):
        raise UnsupportedColumnError(
            f"column {name!r} has times of a time zone ({type_}), which HDF5 files have no type for. Cast them to "
            "timestamp without a zone, or to int64."
        )
    known = _NATIVE.is_integer(type_) or _NATIVE.is_floating(type_) or _NATIVE.is_boolean(type_)
    if not (known or _NATIVE.is_timestamp(type_) or _NATIVE.is_duration(type_) or _NATIVE.is_date32(type_)):
        raise UnsupportedColumnError(
            f"column {name!r} has {type_}, which cannot be written. Cast it to numbers or text, or leave it out with "
            "columns=[...]."
        )
    values = array.to_numpy(zero_copy_only=False)
    if _NATIVE.is_date32(type_):
        values = values.astype("M8[D]")
    return Form("plain", stored_dtype(values.dtype)), values


def _without_nulls(name: str, array: pa.Array, fill: Any) -> pa.Array:
    """Return an array with `fill` for missing values; raise if there are some, and it is None."""
    if not array.null_count:
        return array
    row = pc.index(pc.is_null(array), True).as_py()
    if fill is None:
        raise NullValueError(
            f"column {name!r}: the value of row {row} of its block is missing (null), and HDF5 has no value for that. "
            f"Pass null_value={{{name!r}: ...}} for numbers and text, or fill or filter these rows before."
        )
    is_text = _NATIVE.is_string(array.type) or _NATIVE.is_large_string(array.type)
    wrong = OptionError(f"null_value={fill!r}: column {name!r} has {array.type}, which cannot hold it")
    if is_text != isinstance(fill, str):
        raise wrong
    try:
        return array.fill_null(pa.scalar(fill).cast(array.type))
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError):
        raise wrong from None


def _tensors(name: str, array: Any) -> tuple[Form, ColumnValues]:
    if not is_ragged(array.type):
        is_fixed = isinstance(array.type, FixedShapeTensorType)
        whole = array.to_numpy_ndarray() if is_fixed else array.to_numpy(zero_copy_only=False)
        return Form("plain", whole.dtype, whole.shape[1:]), whole
    # flatten() applies the slice of the struct; field() would not.
    (_, data), (_, shapes) = map(list_parts, array.storage.flatten())
    values, sizes = data.to_numpy(zero_copy_only=False), shapes.to_numpy().reshape(-1, array.type.ndim)
    filled = sizes[:, 0] > 0  # an empty row may have any shape
    inner = (sizes[filled] if filled.any() else sizes)[:1, 1:]
    if len(sizes) and (sizes[filled, 1:] != inner).any():
        shown = [len(set(column)) == 1 for column in sizes.T.tolist()]
        said = ", ".join(str(n) if same else "?" for n, same in zip(sizes[0].tolist(), shown, strict=True))
        raise varies(name, f"({said})")
    shape = tuple(inner[0].tolist()) if len(sizes) else ()
    starts = Partition.of(sizes[:, 0]).starts
    return Form("ragged", values.dtype, shape), Ranges(starts, values.reshape(int(starts[-1]), *shape))


def _lists(name: str, array: Any, fill: Any) -> tuple[Form, Ranges]:
    starts, inner = list_parts(array)
    form, values = _column(name, inner, fill)
    if not isinstance(values, np.ndarray) or form.kind not in {"plain", "text"} or (form.shape and form.kind == "text"):
        raise _nested(name, array.type)
    return Form("ragged", form.dtype, form.shape), Ranges(starts, values)


def _nested(name: str, type_: pa.DataType | str) -> UnsupportedColumnError:
    return UnsupportedColumnError(
        f"column {name!r} has {type_}: lists of numbers, text or arrays of one shape can be written. Flatten it, or "
        "leave it out with columns=[...]."
    )
