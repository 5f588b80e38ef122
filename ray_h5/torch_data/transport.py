"""Batches from loader workers to the training process through shared memory that is used again.

A `DataLoader` moves each tensor of each batch in a new piece of shared memory: made, filled, sent,
mapped and thrown away. The kernel clears every page of it, which costs as much as reading the rows
(measured: about 1 ms a MiB). Here a worker has a few slots in one piece; a batch is read into a free
slot, the tensors of the training process are views of it, and the slot is free again when the last
of these is gone, there and in the worker. Whoever keeps batches keeps slots: with none free, batches
go torch's way.
"""

from __future__ import annotations

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
from torch.utils.data import get_worker_info

from ray_h5.errors import RayH5Error
from ray_h5.hdf5.buffers import empty
from ray_h5.torch_data.tensors import new_shared, owner_of

_SLOTS = 6
"""Two batches on their way (DataLoader's prefetch factor), one in use, one being read, and two to spare."""

_WORKER, _TRAINER = 0, 1
"""The sides of a slot."""

_ALIGN = 64
_HEAD_BYTES = 4096
_SMALL_BYTES = 1 << 15
"""A tensor outside a slot that is smaller goes with the message itself."""

Spec = tuple[tuple[int, ...], np.dtype]
Key = tuple[int, str]
"""The process that made a pool, and a name for the pool."""


class TransportError(RayH5Error, RuntimeError):
    """A batch from a loader worker cannot be made again from what arrived."""


@dataclass(slots=True, eq=False)
class _Slot:
    """A part of a pool, on either side. That side gives it back when this object dies in the process that holds it."""

    pool: torch.Tensor
    key: Key
    number: int
    start: int
    nbytes: int
    side: int
    owner: int = field(default_factory=os.getpid)
    sent: bool = False

    @property
    def __array_interface__(self) -> dict[str, Any]:
        # numpy keeps a reference to what it got this from: arrays keep the slot, and tensors keep arrays.
        where = self.pool.data_ptr() + self.start
        return {"data": (where, False), "shape": (self.nbytes,), "typestr": "|u1", "version": 3}

    def __del__(self, at_exit: Callable[[], bool] = sys.is_finalizing) -> None:
        # At the exit of the process modules may be cleared, and the other side sees that the process ended. A copy that
        # a fork made has no say.
        if not at_exit() and self.owner == os.getpid():
            self.pool.numpy()[2 * self.number + self.side] = 0
            if self.side == _TRAINER and not _is_running(self.key[0]):
                _forget_ended()


class _Pool:
    """The slots of one worker: a byte for each side of each, that says whether it holds it, and their memory."""

    def __init__(self, slot_bytes: int) -> None:
        self.slot_bytes = -(-slot_bytes // _HEAD_BYTES) * _HEAD_BYTES
        total = _HEAD_BYTES + _SLOTS * self.slot_bytes
        self.memory = new_shared((total,), np.dtype(np.uint8))  # a page is taken when it is first written to
        self._key = os.getpid(), secrets.token_hex(8)
        self._taken = self.memory.numpy()[: 2 * _SLOTS].reshape(_SLOTS, 2)
        self._taken[:] = 0

    def take(self) -> _Slot | None:
        free = np.flatnonzero(~self._taken.any(axis=1))
        if not len(free):
            return None
        number = int(free[0])
        self._taken[number, _WORKER] = 1
        return _Slot(self.memory, self._key, number, _HEAD_BYTES + number * self.slot_bytes, self.slot_bytes, _WORKER)


_pool: tuple[int, _Pool] | None = None
_announced: set[Key] = set()
_pools: dict[Key, torch.Tensor] = {}
_pools_lock = threading.Lock()
"""Each loader that pins has a thread that looks pools up."""


def new_arrays(specs: Mapping[Any, Spec]) -> dict[Any, np.ndarray]:
    """Return uninitialised arrays for the columns of a batch: in a loader worker those of a slot, if one is free.

    Parameters
    ----------
    specs : mapping of (shape, dtype)
        What to make; of dtype object, arrays of references.
    """
    if get_worker_info() is not None:
        starts, nbytes = _layout(specs)
        slot = _take(nbytes)
        if slot is not None:
            memory = np.asarray(slot)
            return {name: _placed(memory, starts[name], *spec) for name, spec in specs.items()}
    return {name: empty(shape, dtype) for name, (shape, dtype) in specs.items()}


def _take(nbytes: int) -> _Slot | None:
    global _pool  # noqa: PLW0603  one for each worker process
    if _pool is None or _pool[0] != os.getpid() or _pool[1].slot_bytes < nbytes:
        try:
            _pool = os.getpid(), _Pool(nbytes)
        except RuntimeError:  # no shared memory: torch's own way will say so
            return None
    return _pool[1].take()


def _layout(specs: Mapping[Any, Spec]) -> tuple[dict[Any, int], int]:
    """Return where in a slot each array begins, and how many bytes they need."""
    starts, at = {}, 0
    for name, (shape, dtype) in specs.items():
        starts[name] = at
        at += 0 if dtype.hasobject else -(-math.prod(shape) * dtype.itemsize // _ALIGN) * _ALIGN
    return starts, max(at, 1)


def _placed(memory: np.ndarray, start: int, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    if dtype.hasobject:
        return np.empty(shape, dtype)
    return memory[start : start + math.prod(shape) * dtype.itemsize].view(dtype).reshape(shape)


def slot_of(array: np.ndarray) -> Any:
    """Return the slot that an array lies in, or None."""
    owner = owner_of(array)
    return owner if isinstance(owner, _Slot) else None


def pack(values: list[Any], slot: Any) -> tuple[Any, ...]:
    """Return how a batch is made again in another process: the arguments of `unpack`."""
    begin = slot.pool.data_ptr() + slot.start
    parts = [_packed(value, begin, slot.nbytes) for value in values]
    # A pool is sent with the first batch only: to pass a descriptor the other process has to wait for a
    # thread of this one (measured: 4 ms), and messages of one worker arrive in order.
    pool = None if slot.key in _announced else slot.pool
    _announced.add(slot.key)
    # Set for the training process, which clears it; the worker may hold its own side for longer.
    slot.pool.numpy()[2 * slot.number + _TRAINER] = 1
    slot.sent = True
    return slot.key, pool, slot.number, slot.start, slot.nbytes, parts


def _packed(value: Any, begin: int, nbytes: int) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    at = value.data_ptr() - begin
    if 0 <= at < nbytes and value.is_contiguous() and value.numel():
        return _InSlot(at, tuple(value.shape), value.dtype)
    return _Small(value.numpy()) if value.nbytes < _SMALL_BYTES and value.dtype != torch.bfloat16 else value


@dataclass(frozen=True, slots=True)
class _InSlot:
    at: int
    shape: tuple[int, ...]
    dtype: torch.dtype


@dataclass(frozen=True, slots=True)
class _Small:
    array: np.ndarray


def unpack(key: Key, pool: torch.Tensor | None, number: int, start: int, nbytes: int, parts: list[Any]) -> list[Any]:
    """Return the values that `pack` was given, as views of the slot."""
    slot = _Slot(_known_pool(key, pool), key, number, start, nbytes, _TRAINER)
    memory = np.asarray(slot)
    return [_unpacked(part, memory) for part in parts]


def _known_pool(key: Key, pool: torch.Tensor | None) -> torch.Tensor:
    with _pools_lock:
        if pool is not None:
            for other in [other for other in list(_pools) if other[0] == key[0]]:
                _pools.pop(other, None)
            _forget_ended()
            _pools[key] = pool
        found = _pools.get(key)
    if found is None:
        raise TransportError(
            f"a batch of worker {key[0]} arrived without the first one that it sent: a batch is to be received by the "
            "process that started the worker, in the order in which it was sent"
        )
    return found


def _forget_ended() -> None:
    """Let go of the pools of workers that have ended: batches that are in use hold them, and nobody else has to."""
    for key in list(_pools):
        if not _is_running(key[0]):
            _pools.pop(key, None)


def _is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _unpacked(part: Any, memory: np.ndarray) -> Any:
    if isinstance(part, _Small):
        return torch.from_numpy(part.array)
    if not isinstance(part, _InSlot):
        return part
    nbytes = math.prod(part.shape) * part.dtype.itemsize
    # Over these bytes alone: torch.save writes all the memory that a tensor is a view of.
    return torch.from_numpy(memory[part.at : part.at + nbytes]).view(part.dtype).reshape(part.shape)
