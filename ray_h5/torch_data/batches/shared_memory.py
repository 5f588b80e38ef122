"""Batches from loader workers to the training process, through shared memory that is used again.

A `DataLoader` moves each tensor of each batch in a new piece of shared memory: it is allocated, filled, sent,
mapped and freed. The kernel clears every page of it, which costs as much as reading the rows (1 ms a MiB). Here
a worker has one piece of shared memory, a pool, with a few slots. A batch is read into a free slot, and the tensors
of the training process are views of it. The slot is free again when the last of these is gone, in the training
process and in the worker. A training loop that keeps batches keeps their slots. While none is free, batches take
torch's path.

Measured on workload `signals` (batches of 64 rows or 3.5 MB, two worker processes, two CPUs, seven epochs in turn):
torch's path takes 3.7 times as long for an epoch of `CombinedHDF5Dataset`, whose rows are in memory after the first
epochs, 2.7 times if each epoch reads and decodes, and 2.8 times for `H5LazyDataset`. The training process needs 32 ms
of CPU for an epoch instead of 7.
"""

from __future__ import annotations

import itertools
import math
import os
import secrets
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from ray_h5.buffers import Spec
from ray_h5.errors import RayH5Error
from ray_h5.per_process import PerProcess

_SLOTS = 6
"""Two batches in transfer (DataLoader's prefetch factor), one in use, one being read, and two to spare."""

_WORKER, _TRAINER = 0, 1
"""The sides of a slot."""

_ALIGN = 64
_HEAD_BYTES = 4096
_SMALL_BYTES = 1 << 15
"""A tensor outside the slot that is smaller is copied into the message itself."""

PoolKey = tuple[int, str]
"""The process that made a pool, and a random name."""


class TransportError(RayH5Error, RuntimeError):
    """A batch from a loader worker cannot be rebuilt from the message that arrived."""


@dataclass(slots=True, eq=False)
class _Pool:
    """The slots of one worker, as one side sees them.

    The memory begins with two bytes for each slot, one for each side: not 0 while that side uses the slot.
    """

    memory: torch.Tensor
    key: PoolKey
    slot_bytes: int
    sent: set[int] | None = None
    """The slots whose batch was sent since they were taken; None before the memory was sent."""

    def address(self, number: int) -> int:
        """Return where a slot begins."""
        return self.memory.data_ptr() + _HEAD_BYTES + number * self.slot_bytes

    def mark(self, number: int, side: int, *, used: bool) -> None:
        """Note that a side uses a slot, or no longer does."""
        self.memory.numpy()[2 * number + side] = used


class _Pools:
    """The pools that one process uses: its own if it is a worker, and those of its workers."""

    def __init__(self) -> None:
        self.own: _Pool | None = None
        self._received: dict[PoolKey, _Pool] = {}
        self._lock = threading.Lock()  # each loader that pins memory has a thread that receives batches

    def take(self, nbytes: int) -> _Slot | None:
        """Return a free slot of this worker that holds `nbytes`, if there is one."""
        if self.own is None or self.own.slot_bytes < nbytes:
            slot_bytes = -(-nbytes // _HEAD_BYTES) * _HEAD_BYTES
            try:
                # A page is allocated when it is first written to, so slots that are never used cost nothing.
                memory = new_shared((_HEAD_BYTES + _SLOTS * slot_bytes,), np.dtype(np.uint8))
            except RuntimeError:  # no shared memory is left; torch's path raises the error that explains it
                return None
            memory[: 2 * _SLOTS] = 0
            self.own = _Pool(memory, (os.getpid(), secrets.token_hex(8)), slot_bytes)
        pool = self.own
        is_used = pool.memory.numpy()[: 2 * _SLOTS].reshape(_SLOTS, 2).any(axis=1)
        if is_used.all():
            return None
        number = int(is_used.argmin())
        pool.mark(number, _WORKER, used=True)
        if pool.sent:
            pool.sent.discard(number)
        return _Slot(pool, number, _WORKER)

    def received(self, key: PoolKey, memory: torch.Tensor | None, slot_bytes: int) -> _Pool:
        """Return the pool of a worker; its memory comes with the first batch only."""
        with self._lock:
            if memory is not None:
                for other in [other for other in list(self._received) if other[0] == key[0]]:
                    self._received.pop(other, None)  # the worker has a larger pool now
                self.drop_ended()
                self._received[key] = _Pool(memory, key, slot_bytes)
            pool = self._received.get(key)
        if pool is None:
            raise TransportError(
                f"a batch of worker {key[0]} arrived without the first one that it sent: a batch is to be received by "
                "the process that started the worker, in the order in which it was sent"
            )
        return pool

    def drop_ended(self) -> None:
        """Drop the pools of workers that have ended. Batches that are still in use keep the memory."""
        for key in list(self._received):
            if not _is_running(key[0]):
                self._received.pop(key, None)


_pools = PerProcess(_Pools)


@dataclass(slots=True, eq=False)
class _Slot:
    """One slot, as one side uses it. It is given back when this object dies in the process that made it."""

    pool: _Pool
    number: int
    side: int
    owner: _Pools = field(default_factory=lambda: _pools.value)

    @property
    def __array_interface__(self) -> dict[str, Any]:
        # numpy keeps a reference to the object that has this: arrays keep the slot, and tensors keep arrays.
        address = self.pool.address(self.number), False
        return {"data": address, "shape": (self.pool.slot_bytes,), "typestr": "|u1", "version": 3}

    def __del__(self, at_exit: Callable[[], bool] = sys.is_finalizing) -> None:
        # At the exit of a process modules may be cleared already, and the other side sees that the process ended.
        # The copy of a slot that a fork made gives nothing back: the parent still uses the slot.
        if at_exit() or self.owner is not _pools.value:
            return
        self.pool.mark(self.number, self.side, used=False)
        if self.side == _TRAINER and not _is_running(self.pool.key[0]):
            self.owner.drop_ended()


def new_shared(shape: tuple[int, ...], dtype: np.dtype) -> torch.Tensor:
    """Return an uninitialised tensor in shared memory."""
    # torch's collate calls this too: `share_memory_` would fill private memory first and copy it.
    storage = torch.UntypedStorage._new_shared(max(math.prod(shape) * dtype.itemsize, 1))
    return torch.from_numpy(np.empty(0, dtype)).set_(storage, 0, shape)


def arrays_in_slot(specs: Mapping[Any, Spec]) -> dict[Any, np.ndarray] | None:
    """Return what `new_arrays` does, in a slot of this loader worker; None if none is free."""
    sizes = [0 if dtype.hasobject else math.prod(shape) * dtype.itemsize for shape, dtype in specs.values()]
    starts = [0, *itertools.accumulate(-(-size // _ALIGN) * _ALIGN for size in sizes)]
    slot = _pools.value.take(max(starts[-1], 1))
    if slot is None:
        return None
    memory = np.asarray(slot)
    return {
        name: np.empty(shape, dtype) if dtype.hasobject else memory[start : start + size].view(dtype).reshape(shape)
        for (name, (shape, dtype)), start, size in zip(specs.items(), starts, sizes, strict=False)
    }


def pack(values: list[Any]) -> tuple[Any, ...] | None:
    """Return the message that carries a batch of this worker to the training process: the arguments of `unpack`.

    None if it lies in no slot, or was sent before.
    """
    pool = _pools.value.own
    if pool is None:
        return None
    tensors = [value for value in values if isinstance(value, torch.Tensor)]
    dense = [tensor for tensor in tensors if tensor.layout == torch.strided and tensor.numel()]
    starts = [value.data_ptr() - pool.address(0) for value in dense]
    number = next((start // pool.slot_bytes for start in starts if 0 <= start < _SLOTS * pool.slot_bytes), None)
    if number is None or (pool.sent and number in pool.sent):
        return None
    parts = [_packed(value, pool.address(number), pool.slot_bytes) for value in values]
    # The memory is sent with the first batch only: to receive a descriptor the other process has to wait for a
    # thread of this one (measured: 4 ms), and messages of one worker arrive in order.
    memory = pool.memory if pool.sent is None else None
    pool.sent = set() if pool.sent is None else pool.sent
    # Set here for the training process, which clears it. The worker may use its own side for longer.
    pool.mark(number, _TRAINER, used=True)
    pool.sent.add(number)
    return pool.key, memory, pool.slot_bytes, number, parts


def _packed(value: Any, begin: int, nbytes: int) -> Any:
    if not isinstance(value, torch.Tensor) or value.layout != torch.strided:
        return value  # a sparse tensor has no memory of its own, and goes torch's path with its parts
    start = value.data_ptr() - begin
    if 0 <= start < nbytes and value.is_contiguous() and value.numel():
        return _Tensor(start, tuple(value.shape), value.dtype)
    return _Tensor(value.numpy()) if value.nbytes < _SMALL_BYTES and value.dtype != torch.bfloat16 else value


@dataclass(frozen=True, slots=True)
class _Tensor:
    """A tensor in a message: where it begins in the slot, or the values of a small one."""

    at: int | np.ndarray
    shape: tuple[int, ...] = ()
    dtype: torch.dtype = torch.uint8


def unpack(key: PoolKey, memory: torch.Tensor | None, slot_bytes: int, number: int, parts: list[Any]) -> list[Any]:
    """Return the values that `pack` was given, as views of the slot."""
    in_slot = np.asarray(_Slot(_pools.value.received(key, memory, slot_bytes), number, _TRAINER))

    def unpacked(part: Any) -> Any:
        if not isinstance(part, _Tensor):
            return part
        if isinstance(part.at, np.ndarray):
            return torch.from_numpy(part.at)
        nbytes = math.prod(part.shape) * part.dtype.itemsize
        # Over these bytes alone: torch.save writes all the memory that a tensor is a view of.
        return torch.from_numpy(in_slot[part.at : part.at + nbytes]).view(part.dtype).reshape(part.shape)

    return list(map(unpacked, parts))


def _is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except OSError as exc:  # it may be another user's
        return not isinstance(exc, ProcessLookupError)
    return True
