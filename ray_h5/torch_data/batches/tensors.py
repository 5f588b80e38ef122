"""Tensors over the memory of arrays; samples and batches, whose tensors move together."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch.utils.data import get_worker_info

from ray_h5.buffers import Spec, empty, owner_of
from ray_h5.columns.ragged.padding import Fill, cast_rows
from ray_h5.columns.schema import ColumnSpec
from ray_h5.columns.sparse_rows import SparseBatch, dense_batch
from ray_h5.device import Movable
from ray_h5.torch_data.batches.shared_memory import arrays_in_slot
from ray_h5.transforms.sparse_tensors import csr_tensor


def new_arrays(specs: Mapping[Any, Spec], *, pinned: bool = False) -> dict[Any, np.ndarray]:
    """Return uninitialised arrays for the columns of a batch: in a loader worker, in shared memory if some is free.

    Parameters
    ----------
    specs : mapping of (shape, dtype)
        Shape and dtype of each array. An array of dtype object holds references, and is never shared.
    pinned : bool
        Whether those that tensors can hold are in pinned memory.
    """
    if pinned:
        arrays = {name: empty(shape, dtype) for name, (shape, dtype) in specs.items()}
        numbers = {name: torch.from_numpy(array) for name, array in arrays.items() if array.dtype.kind in "biufc"}
        return arrays | {name: torch.empty_like(number, pin_memory=True).numpy() for name, number in numbers.items()}
    if get_worker_info() is not None and (slot_arrays := arrays_in_slot(specs)) is not None:
        return slot_arrays
    return {name: empty(shape, dtype) for name, (shape, dtype) in specs.items()}


def loader_processes() -> int:
    """Return how many workers of a `DataLoader` read as this process does; 1 outside of them."""
    worker = get_worker_info()
    return 1 if worker is None else worker.num_workers


def to_torch(array: np.ndarray, spec: ColumnSpec | None = None) -> Any:
    """Return the values of a column of a batch: a tensor, or a list of values that tensors cannot hold.

    Rows of varying shape are a list of tensors, or of lists of text; None stands for one that a group lacks.
    """
    if array.dtype.kind in "biufc":
        return as_bfloat16(tensor_over(array)) if spec is not None and spec.as_bfloat16 else tensor_over(array)
    if spec is None or spec.kind not in {"ragged", "sparse"}:
        return [as_python(value, as_bytes=spec is not None and spec.as_bytes) for value in array]
    if spec.kind == "sparse":
        if not spec.type.dense:
            return csr_tensor(*SparseBatch.of(array, spec).canonical().parts)
        return torch.from_numpy(dense_batch(array, spec)).reshape(-1, *(int(n or 0) for n in spec.type.ragged_shape))
    if spec.element is None or spec.element.kind not in "biufc":
        return [None if row is None else [as_python(value) for value in row] for row in array]
    rows = map(row_tensor, rows_of(array, spec))
    return list(map(as_bfloat16, rows) if spec.as_bfloat16 else rows)


def as_bfloat16(bits: Any) -> Any:
    """Return the numbers whose bits a tensor of uint16 has, in the same memory; of each tensor of a list. None is None.

    NumPy has no such numbers.
    """
    if isinstance(bits, list):
        return list(map(as_bfloat16, bits))
    return bits.view(torch.bfloat16) if isinstance(bits, torch.Tensor) else bits


def rows_of(array: np.ndarray, spec: ColumnSpec) -> Sequence[Any]:
    """Return rows of numbers of varying shape in the dtype that they are delivered in: arrays, or lists of them."""
    if array.ndim > 1:
        assert spec.element is not None
        of_steps = spec.with_type(element=spec.element.base, row_shape=spec.row_shape[1:])
        return [rows_of(several, of_steps) for several in array]
    return cast_rows(list(array), spec)


def row_tensor(row: Any) -> Any:
    """Return a row of varying shape as a tensor, or a list of them; None for one that is missing."""
    if isinstance(row, list):
        return [row_tensor(value) for value in row]
    return torch.from_numpy(np.ascontiguousarray(row)) if isinstance(row, np.ndarray) else row


def tensor_over(array: np.ndarray) -> torch.Tensor:
    """Return a tensor over the memory of an array.

    If a tensor owns the memory, the result is a view of that tensor: torch finds out by the owner when a copy to a
    GPU has ended and pinned memory may be used again.
    """
    tensor, owner = torch.from_numpy(array), owner_of(array)
    if not isinstance(owner, torch.Tensor) or owner.dtype != tensor.dtype:
        return tensor
    if not (tensor.is_contiguous() and tensor.numel()):
        return tensor
    start = (tensor.data_ptr() - owner.data_ptr()) // tensor.element_size()
    return owner.reshape(-1)[start : start + tensor.numel()].reshape(tensor.shape)


def as_python(value: Any, *, as_bytes: bool = False) -> Any:
    """Return one value that is no number: text, which is UTF-8, as str, or as bytes; others as numpy returns them."""
    if isinstance(value, np.ndarray) and value.dtype == object:  # several a row
        return [as_python(item, as_bytes=as_bytes) for item in value]
    return value if as_bytes or not isinstance(value, bytes) else value.decode()


class Sample(Movable, dict[str, Any]):
    """A dict whose entries are attributes too: ``sample.target`` is ``sample["target"]``.

    ``batch.to(device)`` and ``batch.pin_memory()`` return a copy whose tensors are there. A name that is a method, such
    as ``items`` or ``to``, is reached by its key only.
    """

    def __missing__(self, name: str) -> Any:
        raise KeyError(self._no_entry(name))

    def __getattr__(self, name: str) -> Any:
        if name in self:
            return self[name]
        raise AttributeError(self._no_entry(name))

    def _no_entry(self, name: str) -> str:
        return f"this sample has no {name!r}; it has {', '.join(map(str, self))}"

    def __setattr__(self, name: str, value: Any) -> None:
        self[name] = value

    def copy(self) -> Sample:
        """Return a sample with the same values."""
        return padded_later(Sample(self), fills_of(self), own_lengths(self))

    def _with(self, entries: dict[str, Any]) -> Sample:
        return padded_later(Sample(entries), fills_of(self), own_lengths(self))

    def __reduce__(self) -> tuple[Any, ...]:
        if fills := fills_of(self):
            return padded_later, (Sample(self), fills, own_lengths(self))
        return Sample, (dict(self),)


def padded_later(sample: Sample, fills: Mapping[str, Fill], lengths: Iterable[str] = ()) -> Sample:
    """Return a sample whose rows are filled up, by column, when a batch is made of it and others.

    `lengths` names the entries that hold the lengths of its rows. A batch computes these entries again, as a transform
    may change the rows.
    """
    if fills:
        sample.__dict__.update(_fills=fills, _lengths={name: sample[name] for name in lengths})
    return sample


def fills_of(sample: Any) -> dict[str, Fill]:
    """Return how rows of a sample are filled up when a batch is made, by column."""
    return sample.__dict__.get("_fills", {}) if isinstance(sample, Sample) else {}


def own_lengths(sample: Any) -> list[str]:
    """Return which entries of a sample are lengths of its rows, and not what a user has set since."""
    lengths = sample.__dict__.get("_lengths", {}) if isinstance(sample, Sample) else {}
    return [name for name, value in lengths.items() if sample.get(name) is value]


class Pair(Movable, tuple[Any, ...]):
    """An (input, target) pair."""

    __slots__ = ()


class Listed(Movable, list[Any]):
    """A batch that is a list, such as inputs and targets; or the value of a sample that is a list, such as texts.

    A batch of the latter is a list of these. Of other lists ``default_collate`` makes one list of their first entries,
    one of the second ones, and so on.
    """

    def __reduce__(self) -> tuple[Any, ...]:
        return Listed, (list(self),)


class BatchArrays(dict[str, np.ndarray]):
    """The arrays of a batch, by column.

    Attributes
    ----------
    indices : numpy.ndarray
        The samples.
    """

    def __init__(self, arrays: Mapping[str, np.ndarray], indices: np.ndarray) -> None:
        super().__init__(arrays)
        self.indices = indices

    def __reduce__(self) -> tuple[Any, ...]:
        return BatchArrays, (dict(self), self.indices)
