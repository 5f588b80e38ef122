"""Batches of numpy arrays -> torch tensors on the device that trains."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import torch
from ray.data.block import BlockAccessor
from ray.data.collate_fn import ArrowBatchCollateFn

from ray_h5.errors import CastError, OptionError, UnknownColumnError, UnsupportedColumnError
from ray_h5.hdf5.reading.casting import UNSAFE, Casting, as_casting, lost
from ray_h5.messages import no_column
from ray_h5.planning.padding import LENGTH, Padding, check_length_name, pad_rows
from ray_h5.ray_data.ragged import declared_shape, is_ragged
from ray_h5.ray_data.sparse import is_dense, is_sparse, to_batch
from ray_h5.transforms.sparse_tensors import csr_tensor

Dtype: TypeAlias = "torch.dtype | npt.DTypeLike"
"""A dtype of torch or numpy, or its name; ``"bfloat16"`` too."""

TorchBatch = dict[str, Any]
"""A tensor a column; columns that hold no numbers stay numpy arrays."""


class TorchCollate(ArrowBatchCollateFn):
    """Converts a batch to tensors. They are views, except where a dtype or pinning needs a copy.

    Columns of strings and of other values that torch does not have stay numpy arrays. A column whose rows vary in shape
    becomes a list of tensors, or with `padding` one tensor and the column ``<column>_length``.

    Parameters
    ----------
    dtypes : dtype, or mapping of str to dtype, optional
        A dtype for all floating columns, or for the columns named: a dtype of torch or numpy, or its name.
        ``torch.bfloat16`` and ``torch.float16`` are for mixed precision. By default dtypes stay as they are.
    pin_memory : bool
        Put tensors into page-locked memory, from which a GPU copies while it computes.
    padding : Padding, optional
        How rows of varying shape are padded.
    casting : {"checked", "unsafe"}
        Whether a value that its new dtype cannot hold is an error, as for `read_h5`.

    Raises
    ------
    OptionError
        If torch does not have a dtype, or there is no accelerator to pin memory for.
    """

    def __init__(
        self,
        dtypes: Dtype | Mapping[str, Dtype] | None = None,
        pin_memory: bool = False,
        casting: Casting = "checked",
        padding: Padding | None = None,
    ) -> None:
        self._is_checked = as_casting(casting) == "checked"
        self._padding = padding
        self._dtypes: torch.dtype | dict[str, torch.dtype] | None
        if isinstance(dtypes, Mapping):
            self._dtypes = {name: _as_dtype(dtype, f" for column {name!r}") for name, dtype in dtypes.items()}
        else:
            self._dtypes = None if dtypes is None else _as_dtype(dtypes)
        if pin_memory and not torch.accelerator.is_available():
            raise OptionError(
                f"pin_memory={pin_memory!r}: torch finds no accelerator that copies from pinned memory; leave it out, "
                "and memory is pinned where the device is a GPU"
            )
        self._pin = pin_memory

    def __call__(self, batch: pa.Table | Mapping[str, np.ndarray]) -> TorchBatch:
        """Return the tensors of a batch: a table of Arrow, or arrays by column."""
        arrays, ragged = batch, {}
        sparse: dict[str, torch.Tensor] = {}
        if isinstance(batch, pa.Table):
            # The type of a column says whether its rows vary in shape. Its array does not: those of a batch may agree.
            ragged = {field.name: field for field in batch.schema if is_ragged(field.type)}
            sparse = {field.name: _sparse(batch[field.name]) for field in batch.schema if is_sparse(field.type)}
            # A placeholder keeps the order of the columns; lists of objects would take long to make.
            others = batch.drop_columns(list(sparse)) if sparse else batch
            arrays = BlockAccessor.for_block(others).to_batch_format("numpy") if others.num_columns else {}
            arrays = {name: arrays.get(name, _NOTHING) for name in batch.column_names} if sparse else arrays
        if isinstance(self._dtypes, Mapping):
            for name in self._dtypes.keys() - arrays.keys():
                raise UnknownColumnError(f"dtypes: {no_column([name], arrays)}")
        if self._padding is not None:
            self._padding.check_names(arrays)
            for name in ragged:
                if self._padding.value(name) is not None:
                    check_length_name(name, arrays)
        found: TorchBatch = {}
        for name, values in arrays.items():
            if name in sparse:
                found[name] = self._convert_tensor(name, sparse[name])
            elif name in ragged:
                found.update(self._ragged(name, list(values), ragged[name]))
            else:
                found[name] = self._convert(name, values)
        return found

    def _ragged(self, name: str, rows: list[np.ndarray], column: pa.Field) -> TorchBatch:
        fill = None if self._padding is None else self._padding.value(name)
        if fill is None:
            return {name: [self._convert(name, row) for row in rows]}
        dtype = np.dtype(column.type.value_type.to_pandas_dtype())
        array, lengths = pad_rows(name, rows, fill, dtype, column.type.ndim, declared_shape(column))
        return {name: self._convert(name, array), name + LENGTH: self._convert(name + LENGTH, lengths)}

    def _dtype_of(self, name: str, tensor: torch.Tensor) -> torch.dtype | None:
        """Return the dtype that a column is cast to, if it is."""
        if isinstance(self._dtypes, Mapping):
            return self._dtypes.get(name)
        return self._dtypes if tensor.is_floating_point() else None

    def _convert_tensor(self, name: str, tensor: torch.Tensor) -> torch.Tensor:
        """Return a tensor that rows of a sparse matrix became, in its dtype."""
        if tensor.layout == torch.strided:
            return self._convert(name, tensor.numpy())
        dtype = self._dtype_of(name, tensor)
        if dtype is None:
            return tensor
        values = tensor.values()
        cast = _cast(name, values.numpy(), values, dtype) if self._is_checked else values.to(dtype)
        parts = tensor.crow_indices(), tensor.col_indices(), cast
        return torch.sparse_csr_tensor(*parts, tensor.shape, check_invariants=False)  # as they were

    def _convert(self, name: str, values: np.ndarray) -> Any:
        if values.dtype.kind not in "biufc":
            if isinstance(self._dtypes, Mapping) and name in self._dtypes:
                raise UnsupportedColumnError(
                    f"dtypes: column {name!r} has dtype {values.dtype}, expected numbers for {self._dtypes[name]}; "
                    "leave it out of dtypes, and it stays a numpy array"
                )
            return values
        with warnings.catch_warnings():
            # The array may be a view of Ray's object store, which is read-only.
            warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
            tensor = torch.as_tensor(values)
        dtype = self._dtype_of(name, tensor)
        if dtype is not None:
            if tensor.is_complex() and not dtype.is_complex:
                raise UnsupportedColumnError(
                    f"dtypes: column {name!r} has dtype {values.dtype}, of which {dtype} would keep only the real part"
                )
            tensor = _cast(name, values, tensor, dtype) if self._is_checked else tensor.to(dtype)
        return tensor.pin_memory() if self._pin else tensor


_NOTHING = np.empty(0)


def _sparse(column: pa.ChunkedArray) -> torch.Tensor:
    """Return the batch of a column of rows of a sparse matrix."""
    with warnings.catch_warnings():
        # As below: the memory may be Ray's.
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        rows = to_batch(column)
        return torch.from_numpy(rows.to_dense()) if is_dense(column.type) else csr_tensor(*rows.canonical().parts)


def _cast(name: str, values: np.ndarray, tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return a tensor of another dtype.

    Raises
    ------
    CastError
        If the dtype cannot hold a value, by the rules of `read_h5`.
    """
    cast = tensor.to(dtype)
    wanted = _numpy_dtype(dtype)
    if wanted is not None:
        found = lost(values, wanted)
    elif values.dtype.kind in "fc":  # numpy has no bfloat16
        found = np.isfinite(values) & ~torch.isfinite(cast).numpy()
    else:
        found = cast.double().numpy() != values
    if found.any():
        raise CastError(
            f"dtypes: column {name!r}: {values[found][0]} cannot be cast to {dtype}, which has no such value. Choose a "
            f"dtype that holds it; or {UNSAFE}."
        )
    return cast


def _numpy_dtype(dtype: torch.dtype) -> np.dtype | None:
    """Return the dtype of numpy for one of torch; None where numpy has none."""
    try:
        return torch.empty(0, dtype=dtype).numpy().dtype
    except (TypeError, RuntimeError):
        return None


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


def to_device(batches: Iterable[TorchBatch], device: torch.device) -> Iterator[TorchBatch]:
    """Move batches to a device; to a GPU one batch ahead, while the model computes on the one before.

    Parameters
    ----------
    batches : iterable of dict
        Copies overlap with computing if the tensors are in pinned memory.
    device : torch.device
        The device.
    """
    if device.type == "cpu":
        yield from batches
    elif device.type != "cuda":
        for batch in batches:
            yield _moved(batch, device)
    else:
        yield from _ahead(batches, device)


def _ahead(batches: Iterable[TorchBatch], device: torch.device) -> Iterator[TorchBatch]:
    side = torch.cuda.Stream(device)
    ready: TorchBatch | None = None
    for batch in batches:
        with torch.cuda.stream(side):
            moved = _moved(batch, device)
        if ready is not None:
            yield _handed_over(ready, side, device)
        ready = moved
    if ready is not None:
        yield _handed_over(ready, side, device)


def _handed_over(batch: TorchBatch, side: torch.cuda.Stream, device: torch.device) -> TorchBatch:
    current = torch.cuda.current_stream(device)
    current.wait_stream(side)
    for value in batch.values():
        for tensor in value if isinstance(value, list) else [value]:
            if isinstance(tensor, torch.Tensor):
                # Without this its memory could be reused while the training stream still computes with it.
                tensor.record_stream(current)
    return batch


def _moved(batch: TorchBatch, device: torch.device) -> TorchBatch:
    return {name: _value_on(value, device) for name, value in batch.items()}


def _value_on(value: Any, device: torch.device) -> Any:
    if isinstance(value, list):
        return [_value_on(each, device) for each in value]
    return value.to(device, non_blocking=True) if isinstance(value, torch.Tensor) else value


def as_device(device: str | int | torch.device) -> torch.device:
    """Return a device that exists.

    Raises
    ------
    OptionError
        If it is not a device, or torch does not find it.
    """
    try:
        found = torch.device(device)
        missing = found.type == "cuda" and not torch.cuda.is_available()
        reason = "it holds no values" if found.type == "meta" else "torch finds no CUDA device in this process"
        if found.type != "meta" and not missing:
            torch.empty(0, device=found)
            return found
    # torch raises any of these for a backend that is missing.
    except (RuntimeError, TypeError, AssertionError, ImportError) as exc:
        reason = str(exc).split("\n", 1)[0].split(". ", 1)[0].rstrip(".")  # the rest lists all backends
    raise OptionError(
        f"device={str(device) if isinstance(device, torch.device) else device!r}: {reason}. Expected 'auto', the "
        "device that Ray Train gave to this worker, 'cpu', or a device that exists, such as 'cuda'; for GPUs, ask the "
        "trainer (ScalingConfig(use_gpu=True)) on a machine that has them."
    )
