"""Batches of numpy arrays -> torch tensors on the device that trains."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from typing import Any, ClassVar, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import torch
from ray.data.block import BlockAccessor
from ray.data.collate_fn import ArrowBatchCollateFn

from ray_h5.columns.ragged.padding import Fill, Padding, PadLike, check_length_name, lengths_of
from ray_h5.columns.schema import LENGTH
from ray_h5.device import can_pin
from ray_h5.errors import CastError, OptionError, SchemaMismatchError, UnknownColumnError, UnsupportedColumnError
from ray_h5.messages import no_column
from ray_h5.options import names_options
from ray_h5.ray_data.arrow.blocks import (
    declared_shape,
    dense_batch,
    is_bfloat16,
    is_integral,
    is_ragged,
    is_sparse,
    item_type,
    may_be_null,
    to_batch,
    with_tensors,
)
from ray_h5.read.casting import UNSAFE, Casting, as_casting, lost
from ray_h5.transforms.sparse_tensors import csr_tensor

Dtype: TypeAlias = "torch.dtype | npt.DTypeLike"
"""A dtype of torch or numpy, or its name; ``"bfloat16"`` too."""

TorchBatch = dict[str, Any]
"""A tensor a column; columns that hold no numbers stay numpy arrays."""

_READ_ONLY = "The given NumPy array is not writable"
"""The warning of torch for views of Ray's object store, which nobody writes to."""


@names_options
class TorchCollate(ArrowBatchCollateFn):
    """Converts a batch to tensors. They are views, except where a dtype or pinning needs a copy.

    Columns of strings and of other values that torch does not have stay numpy arrays. A column whose rows vary in shape
    becomes a list of tensors, or with `padding` one tensor and the column ``<column>_length``: a column that `padding`
    names has lengths in each batch, also where a function made its rows equally long. If all columns are such
    lists, ``<column>_length`` is there too: Ray would concatenate the tensors of a batch that has lists of tensors
    alone. A column of integers or booleans that a file stores with a mask, or as categories, becomes a list, with None
    for a missing value; with a floating dtype in `dtypes` a tensor, with NaN.

    Parameters
    ----------
    dtypes : dtype, or mapping of str to dtype, optional
        A dtype for all floating columns, or for the columns named: a dtype of torch or numpy, or its name.
        ``torch.bfloat16`` and ``torch.float16`` are for mixed precision. By default dtypes stay as they are.
    pin_memory : bool
        Put tensors into page-locked memory, from which a GPU copies while it computes.
    padding : bool, float or mapping of str to float, optional
        The option `pad` of `train_batches`: how rows of varying shape are padded.
    casting : {"checked", "unsafe"}
        Whether a value that its new dtype cannot hold is an error, as for `read_h5`.

    Raises
    ------
    OptionError
        If torch does not have a dtype, or there is no accelerator to pin memory for.
    SchemaMismatchError
        When it is called: if a value is missing in another column of integers or booleans.
    """

    _in_order: ClassVar = False
    """Whether batches come in order, one after the other: they may come in threads, several at a time."""

    def __init__(
        self,
        dtypes: Dtype | Mapping[str, Dtype] | None = None,
        pin_memory: bool = False,
        casting: Casting = "checked",
        padding: PadLike | Padding = None,
    ) -> None:
        self._is_checked = as_casting(casting) == "checked"
        self._padding = Padding.of(padding)
        self._varies: dict[str, bool] = {}
        self._of_bits: set[str] = set()
        self._dtypes: torch.dtype | dict[str, torch.dtype] | None
        if isinstance(dtypes, Mapping):
            self._dtypes = {name: _as_dtype(dtype, f" for column {name!r}") for name, dtype in dtypes.items()}
        else:
            self._dtypes = None if dtypes is None else _as_dtype(dtypes)
        if pin_memory and not can_pin():
            raise OptionError(
                f"pin_memory={pin_memory!r}: torch finds no accelerator that copies from pinned memory; leave it out, "
                "and memory is pinned where the device is a GPU"
            )
        self._pin = pin_memory

    def __call__(self, batch: pa.Table | Mapping[str, np.ndarray]) -> TorchBatch:
        """Return the tensors of a batch: a table of Arrow, or arrays by column."""
        batch = with_tensors(batch) if isinstance(batch, pa.Table) else batch
        names = batch.column_names if isinstance(batch, pa.Table) else list(batch)
        if isinstance(self._dtypes, Mapping):
            for name in self._dtypes.keys() - {*names}:
                raise UnknownColumnError(f"dtypes: {no_column([name], names)}")
        if self._padding is not None:
            self._padding.check_names(names)
        fields = batch.schema if isinstance(batch, pa.Table) else ()
        self._of_bits = {field.name for field in fields if is_bfloat16(field)}
        tensors: TorchBatch = {}
        for name in names:
            made = self._column(batch.select([name])) if isinstance(batch, pa.Table) else self._array(name, batch[name])
            if len(made) > 1:
                check_length_name(name, names)
            tensors.update(made)
        ragged = {field.name: field for field in fields if is_ragged(field.type)}
        if ragged.keys() == tensors.keys():
            # Ray concatenates the tensors of a batch that has lists of tensors alone.
            for name, field in ragged.items():
                check_length_name(name, names)
                lengths = lengths_of(tensors[name], field.type.ndim, declared_shape(field))
                tensors[name + LENGTH] = self._convert(name + LENGTH, lengths)
        return tensors

    def _column(self, table: pa.Table) -> TorchBatch:
        """Return a column of a table as a tensor, and the lengths of its rows if it is padded."""
        (field,), column = table.schema, table.column(0)
        name, type_ = field.name, field.type
        if is_sparse(type_):
            return {name: self._sparse(name, column)}
        if self._padding is not None and (entries := _entries_of(type_)) is not None:
            item, parts = entries
            fill = self._padding.fill(name, item, (None, *parts), (), is_nullable=may_be_null(field))
            if fill is not None:
                return self._listed(name, column, fill)
        if is_integral(item_type(type_)) and (may_be_null(field) or _items(column).null_count):
            return {name: self._with_nulls(field, column)}
        array = BlockAccessor.for_block(table).to_batch_format("numpy")[name]
        # The type of a column says whether its rows vary in shape. Its array does not: those of a batch may agree.
        if not is_ragged(type_):
            return self._array(name, array)
        # Ray makes empty arrays of rows without a value.
        absent = column.is_null().to_pylist()
        rows = [None if missing else row for row, missing in zip(array, absent, strict=True)]
        fill = self._fill(name, np.dtype(type_.value_type.to_pandas_dtype()), declared_shape(field) or (), varies=True)
        if fill is None:
            return {name: [None if row is None else self._convert(name, row) for row in rows]}
        return self._padded(name, *fill.padded(name, rows, axes=type_.ndim))

    def _array(self, name: str, values: np.ndarray) -> TorchBatch:
        fill = self._fill(name, values.dtype, values.shape[1:], varies=False)
        if fill is None:
            return {name: self._convert(name, values)}
        return self._padded(name, values, lengths_of(list(values), values.ndim - 1))

    def _with_nulls(self, field: pa.Field, column: pa.ChunkedArray) -> Any:
        """Return integers or booleans that may be missing: the same for each batch, whether or not it has such."""
        name = field.name
        wanted = self._dtypes.get(name) if isinstance(self._dtypes, Mapping) else None
        if wanted is None and may_be_null(field):
            return column.to_pylist()
        items = _items(column)
        advice = f"pass dtypes={{{name!r}: 'float64'}}, which has NaN, or leave such rows out"
        if wanted is None:
            raise SchemaMismatchError(
                f"column {name!r} lacks {items.null_count} values in this batch, and a tensor of {items.type} cannot "
                f"say so. To go on, {advice}: ~where(**{{{name!r}: None}})."
            )
        absent, (rest, steps) = items.is_null().to_numpy(), _without_steps(column)
        if rest.type != items.type or (column.null_count and steps):
            raise UnsupportedColumnError(
                f"dtypes: column {name!r} has lists of {items.type} of varying length, which are not cast; leave it "
                "out of dtypes, and a batch has lists, with None for a missing value"
            )
        if absent.any() and not wanted.is_floating_point:
            raise CastError(f"dtypes: column {name!r} has no value in a row, and {wanted} cannot say so. {advice}.")
        there = items.fill_null(False if pa.types.is_boolean(items.type) else 0)
        tensor = self._convert(name, there.to_numpy())
        if absent.any():
            tensor[torch.from_numpy(absent)] = torch.nan
        return tensor.reshape(len(column), *steps)

    def _fill(self, name: str, dtype: np.dtype, shape: tuple[int | None, ...], *, varies: bool) -> Fill | None:
        """Return how rows of a column are filled up; None for one that has no lengths in this batch.

        A column that is not named has them if its rows vary in shape, which may not depend on the batch.
        """
        padding, is_scalar = self._padding, not (varies or shape)
        if padding is None or padding.value(name, dtype) is None or (is_scalar and dtype.kind in "biufc"):
            return None
        if not padding.names and self._varies.setdefault(name, varies) != varies:
            raise SchemaMismatchError(
                f"pad: rows of column {name!r} vary in length in one batch, and are equally long in another, where Ray "
                f"made one tensor of what a function returned. Name the column, and each batch has its lengths: "
                f"pad={{{name!r}: 0}}."
            )
        return padding.fill(name, dtype, shape, ()) if varies or padding.names else None

    def _listed(self, name: str, column: pa.ChunkedArray, fill: Fill) -> TorchBatch:
        """Return the rows of a column of lists, padded."""
        column, steps = _without_steps(column)
        rows, parts = list[np.ndarray](), fill.shape[1:]
        for chunk in column.chunks:
            values = chunk.flatten()
            for _ in parts:
                values = values.flatten()
            if values.null_count:
                raise UnsupportedColumnError(
                    f"pad: column {name!r} has lists with missing values, which no tensor holds. Fill them in, or "
                    "leave the column out of pad={...}."
                )
            ends = np.cumsum(pc.list_value_length(chunk).fill_null(0).to_numpy())
            rows += np.split(values.to_numpy(zero_copy_only=False).reshape(-1, *parts), ends)[:-1]
        return self._padded(name, *fill.padded(name, rows, (len(rows) // math.prod(steps), *steps)))

    def _padded(self, name: str, array: np.ndarray, lengths: np.ndarray) -> TorchBatch:
        return {name: self._convert(name, array), name + LENGTH: self._convert(name + LENGTH, lengths)}

    def _dtype_of(self, name: str, tensor: torch.Tensor) -> torch.dtype | None:
        """Return the dtype that a column is cast to, if it is."""
        if isinstance(self._dtypes, Mapping):
            return self._dtypes.get(name)
        return self._dtypes if tensor.is_floating_point() else None

    def _sparse(self, name: str, column: pa.ChunkedArray) -> Any:
        """Return the rows of a sparse matrix as one tensor."""
        if (dense := dense_batch(name, column)) is not None:
            return self._convert(name, dense)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=_READ_ONLY)
            tensor = csr_tensor(*to_batch(column).canonical().parts)
        if (dtype := self._dtype_of(name, tensor)) is not None:
            values = tensor.values()
            cast = _cast(name, values.numpy(), values, dtype) if self._is_checked else values.to(dtype)
            parts = tensor.crow_indices(), tensor.col_indices(), cast
            tensor = torch.sparse_csr_tensor(*parts, tensor.shape, check_invariants=False)  # as they were
        return tensor.pin_memory() if self._pin else tensor

    def _convert(self, name: str, values: np.ndarray) -> Any:
        if values.dtype.kind not in "biufc":
            if isinstance(self._dtypes, Mapping) and name in self._dtypes:
                raise UnsupportedColumnError(
                    f"dtypes: column {name!r} has dtype {values.dtype}, expected numbers for {self._dtypes[name]}; "
                    "leave it out of dtypes, and it stays a numpy array"
                )
            return values
        tensor = _view_of(values)
        if name in self._of_bits:  # what they are is not said once a function has returned arrays of NumPy
            tensor = tensor.view(torch.bfloat16)
            return self._pinned(tensor if (dtype := self._dtype_of(name, tensor)) is None else tensor.to(dtype))
        if (dtype := self._dtype_of(name, tensor)) is not None:
            if tensor.is_complex() and not dtype.is_complex:
                raise UnsupportedColumnError(
                    f"dtypes: column {name!r} has dtype {values.dtype}, of which {dtype} would keep only the real part"
                )
            tensor = _cast(name, values, tensor, dtype) if self._is_checked else tensor.to(dtype)
        return self._pinned(tensor)

    def _pinned(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.pin_memory() if self._pin else tensor


def _view_of(values: np.ndarray) -> torch.Tensor:
    if values.flags.writeable:  # fast path: to change the filters of warnings costs more than the tensor
        return torch.as_tensor(values)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=_READ_ONLY)
        return torch.as_tensor(values)


def _without_steps(column: pa.ChunkedArray) -> tuple[pa.ChunkedArray, list[int]]:
    """Return the values of a column with several a row, as windows have them, one after the other, and how many."""
    steps = []
    while pa.types.is_fixed_size_list(column.type):
        steps.append(column.type.list_size)
        column = pc.list_flatten(column)
    return column, steps


def _items(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return the values of all lists of a column, one after the other."""
    item = item_type(column.type)
    while column.type != item:
        column = pc.list_flatten(column)
    return column


def _entries_of(type_: pa.DataType) -> tuple[np.dtype, tuple[int, ...]] | None:
    """Return the dtype and shape of the entries of the lists that rows are, or have several of; None for other types.

    Complex numbers are entries of shape (2,).
    """
    while pa.types.is_fixed_size_list(type_):
        type_ = type_.value_type
    if not (pa.types.is_list(type_) or pa.types.is_large_list(type_)):
        return None
    item = type_.value_type
    parts: tuple[int, ...] = ()
    while pa.types.is_fixed_size_list(item):
        item, parts = item.value_type, (*parts, item.list_size)
    is_number = pa.types.is_integer(item) or pa.types.is_floating(item) or pa.types.is_boolean(item)
    return np.dtype(item.to_pandas_dtype() if is_number else object), parts


def _cast(name: str, values: np.ndarray, tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return a tensor of another dtype.

    Raises
    ------
    CastError
        If the dtype cannot hold a value, by the rules of `read_h5`.
    """
    cast = tensor.to(dtype)
    try:
        wanted = torch.empty(0, dtype=dtype).numpy().dtype
    except (TypeError, RuntimeError):  # numpy has no bfloat16
        if values.dtype.kind in "fc":
            wrong = np.isfinite(values) & ~torch.isfinite(cast).numpy()
        else:
            wrong = cast.double().numpy() != values
    else:
        wrong = lost(values, wanted)
    if wrong.any():
        raise CastError(
            f"dtypes: column {name!r}: {values[wrong][0]} cannot be cast to {dtype}, which has no such value. Choose a "
            f"dtype that holds it; or {UNSAFE}."
        )
    return cast


def _as_dtype(dtype: object, where: str = "") -> torch.dtype:
    """Return the dtype of torch for a name or a dtype of numpy."""
    if isinstance(dtype, torch.dtype):
        return dtype
    named = getattr(torch, dtype.removeprefix("torch."), None) if isinstance(dtype, str) else None
    if isinstance(named, torch.dtype):  # numpy has no bfloat16
        return named
    try:
        # numpy takes None for float64, so None becomes object, which torch does not have.
        wanted = np.dtype(object if dtype is None else dtype)  # type: ignore[call-overload]
        return torch.from_numpy(np.empty(0, wanted.newbyteorder("="))).dtype
    except (TypeError, ValueError) as exc:
        raise OptionError(
            f"dtypes: {dtype!r}{where} is not a dtype of torch; expected one such as torch.float16, or 'float16'"
        ) from exc
