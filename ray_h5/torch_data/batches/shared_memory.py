"""Memory that a worker process shares with the process that gets its batches, and that is used again.

torch moves each tensor of each batch in a new piece of shared memory: it is allocated, filled, sent, mapped and freed.
The kernel clears every page of it, which costs as much as reading the rows (1 ms a MiB). Here a worker has one piece of
shared memory, a pool, with a few slots. A batch is read into a free slot, and the tensors of the receiver are views of
it. Two bytes at the head of the pool say which side uses a slot::

    worker  receiver
      0        0      free
      1        0      taken: rows are read into it, or a batch is made of them
      1        1      sent, and arrays of the worker are still views of it
      0        1      sent: it is on its way, or the receiver has views of it

The worker sets both bytes. It clears its own when its last view is gone. The receiver acknowledges a slot by clearing
the other one: when its last view is gone, or when it throws a message away. A training loop that keeps batches keeps
their slots. While none is free, a batch takes another path: memory of its own in a `channel`, and torch's path in a
`DataLoader` of torch.

The memory has no name, so nothing is left of it when the processes end, and no size of /dev/shm limits it.

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
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from multiprocessing.reduction import DupFd
from typing import Any

import numpy as np
import torch

from ray_h5.buffers import Spec
from ray_h5.errors import RayH5Error
from ray_h5.per_process import PerProcess
from ray_h5.system import nameless_file

SLOTS = 6
"""Two batches in transfer (DataLoader's prefetch factor), one in use, one being read, and two to spare."""

WORKER, RECEIVER = 0, 1
"""The sides of a slot."""

ALIGN = 64
_HEAD_BYTES = 4096
_IS_RECEIVED = _HEAD_BYTES - 1
"""The byte of the head that the receiver sets when it has mapped the memory."""

_ROOM_BYTES = 1 << 20
"""What is made beside the rows has room in their slot: twice their bytes, and this. Only pages that are used count."""

_SMALL_BYTES = 1 << 15
"""A tensor outside the slot that is smaller is copied into the message itself."""

PoolKey = tuple[int, str]
"""The process that made a pool, and a random name."""

_NUMPY_DTYPES = frozenset(torch.from_numpy(np.empty(0, code)).dtype for code in ("?", *"bBhHiIlLefdFD"))
_DTYPES = _NUMPY_DTYPES | {torch.bfloat16}
"""The dtypes of tensors that travel in slots of a `DataLoader` of torch."""


class TransportError(RayH5Error, RuntimeError):
    """A batch from a loader worker cannot be rebuilt from the message that arrived."""


@dataclass(slots=True, eq=False)
class Pool:
    """Slots, as one side sees them."""

    memory: np.ndarray
    key: PoolKey
    slot_bytes: int
    count: int
    fd: int = -1
    """The descriptor of the memory, on the side of the worker, until the receiver has it."""
    sent: set[int] = field(default_factory=set)
    """The slots whose batch was sent since they were taken."""
    filled: list[int] = field(default_factory=list)
    """Bytes of each slot that rows were read into since it was taken."""
    base: int = 0

    def __post_init__(self) -> None:
        self.base, self.filled = self.memory.ctypes.data + _HEAD_BYTES, [0] * self.count

    @classmethod
    def new(cls, nbytes: int, count: int) -> Pool:
        """Return the pool of this worker, whose slots have this size or more."""
        slot_bytes = -(-nbytes // _HEAD_BYTES) * _HEAD_BYTES
        fd = nameless_file()
        try:
            os.ftruncate(fd, _HEAD_BYTES + count * slot_bytes)
            return cls(_mapped(fd), (os.getpid(), secrets.token_hex(8)), slot_bytes, count, fd)
        except BaseException:
            os.close(fd)
            raise

    @classmethod
    def received(cls, fd: int, key: PoolKey, slot_bytes: int, count: int) -> Pool:
        """Return a pool of another process. The descriptor is closed: the mapping does not need it."""
        try:
            pool = cls(_mapped(fd), key, slot_bytes, count)
        finally:
            os.close(fd)
        pool.memory[_IS_RECEIVED] = 1
        return pool

    def __del__(self, close: Callable[[int], None] = os.close) -> None:
        if self.fd >= 0 and self.key[0] == os.getpid():
            close(self.fd)

    @property
    def is_received(self) -> bool:
        """Whether the receiver has mapped the memory."""
        return bool(self.memory[_IS_RECEIVED])

    def close_descriptor(self) -> None:
        """Close the descriptor, which the receiver has."""
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)

    def address(self, number: int) -> int:
        """Return where a slot begins."""
        return self.base + number * self.slot_bytes

    def bytes_of(self, number: int) -> np.ndarray:
        """Return the memory of a slot, for as long as it is used anyway."""
        start = _HEAD_BYTES + number * self.slot_bytes
        return self.memory[start : start + self.slot_bytes]

    def slot_at(self, address: int) -> int | None:
        """Return the slot that memory lies in, unless it is outside, or its slot was sent since it was taken."""
        number = (address - self.base) // self.slot_bytes
        return number if 0 <= number < self.count and number not in self.sent else None

    def mark(self, number: int, side: int, *, used: bool) -> None:
        """Note that a side uses a slot, or no longer does."""
        self.memory[2 * number + side] = used

    def mark_sent(self, number: int) -> None:
        """Note that a slot is sent: the receiver uses it, until it acknowledges that it does not."""
        self.mark(number, RECEIVER, used=True)
        self.sent.add(number)

    def take(self, nbytes: int) -> Slot | None:
        """Return a free slot to read `nbytes` of rows into, if there is one."""
        used = self.memory[: 2 * self.count].tobytes()
        number = next((number for number in range(self.count) if not any(used[2 * number : 2 * number + 2])), None)
        if number is None:
            return None
        self.mark(number, WORKER, used=True)
        self.sent.discard(number)
        self.filled[number] = nbytes
        return Slot(self, number, WORKER)


def _mapped(fd: int) -> np.ndarray:
    """Return the memory of a descriptor. The array does not keep the descriptor open, as an `mmap` would."""
    storage = torch.UntypedStorage.from_file(f"/dev/fd/{fd}", True, os.fstat(fd).st_size)
    return bytes_of(storage)


def bytes_of(storage: torch.UntypedStorage) -> np.ndarray:
    """Return the memory of a storage on the CPU."""
    array: np.ndarray = torch.empty(0, dtype=torch.uint8).set_(storage).numpy()
    return array


@dataclass(slots=True, eq=False)
class Slot:
    """One slot, as one side uses it. It is given back when this object dies in the process that made it."""

    pool: Pool
    number: int
    side: int
    process: int = field(default_factory=os.getpid)

    @property
    def __array_interface__(self) -> dict[str, Any]:
        # numpy keeps a reference to the object that has this: arrays keep the slot, and tensors keep arrays.
        address = self.pool.address(self.number), False
        return {"data": address, "shape": (self.pool.slot_bytes,), "typestr": "|u1", "version": 3}

    def __del__(self, at_exit: Callable[[], bool] = sys.is_finalizing) -> None:
        # At the exit of a process modules may be cleared already, and the other side sees that the process ended.
        # The copy of a slot that a fork made gives nothing back: the parent still uses the slot.
        if at_exit() or self.process != os.getpid():
            return
        self.pool.mark(self.number, self.side, used=False)
        if self.side == RECEIVER and not _is_running(self.pool.key[0]):
            _received.value.drop_ended()


class WorkerMemory:
    """The pool of this process, if it is a worker."""

    def __init__(self) -> None:
        self.pool: Pool | None = None

    def take(self, nbytes: int) -> Slot | None:
        """Return a free slot that holds `nbytes`, if there is one."""
        if self.pool is None or self.pool.slot_bytes < nbytes:
            try:
                self.pool = Pool.new(2 * nbytes + _ROOM_BYTES, SLOTS)
            except (OSError, RuntimeError):  # no memory is left; the other path raises the error that explains it
                return None
        return self.pool.take(nbytes)


worker_memory = PerProcess(WorkerMemory)


class _Received:
    """The pools of the workers of each `DataLoader` of torch in this process."""

    def __init__(self) -> None:
        self._pools: dict[PoolKey, Pool] = {}
        self._lock = threading.Lock()  # each loader that pins memory has a thread that receives batches

    def pool(self, key: PoolKey, memory: Any, slot_bytes: int) -> Pool:
        """Return the pool of a worker; its memory comes with each message until this process has it."""
        with self._lock:
            pool = self._pools.get(key)
            if pool is None:
                if memory is None:
                    raise TransportError(
                        f"a batch of worker {key[0]} arrived in a process that did not get the first ones of this "
                        "worker: all batches of a worker are to be received by one process"
                    )
                pool = Pool.received(memory.detach(), key, slot_bytes, SLOTS)
                for other in [other for other in list(self._pools) if other[0] == key[0]]:
                    self._pools.pop(other, None)  # the worker has a larger pool now
                self.drop_ended()
                self._pools[key] = pool
            return pool

    def drop_ended(self) -> None:
        """Drop the pools of workers that have ended. Batches that are still in use keep the memory."""
        for key in list(self._pools):
            if not _is_running(key[0]):
                self._pools.pop(key, None)


_received = PerProcess(_Received)


def new_shared(shape: tuple[int, ...], dtype: np.dtype) -> torch.Tensor:
    """Return an uninitialised tensor in shared memory of torch."""
    # torch's collate calls this too: `share_memory_` would fill private memory first and copy it.
    storage = torch.UntypedStorage._new_shared(max(math.prod(shape) * dtype.itemsize, 1))
    return torch.from_numpy(np.empty(0, dtype)).set_(storage, 0, shape)


def arrays_in_slot(specs: Mapping[Any, Spec]) -> dict[Any, np.ndarray] | None:
    """Return what `new_arrays` does, in a slot of this loader worker; None if none is free."""
    sizes = [0 if dtype.hasobject else math.prod(shape) * dtype.itemsize for shape, dtype in specs.values()]
    starts = [0, *aligned(sizes)]
    slot = worker_memory.value.take(max(starts[-1], 1))
    if slot is None:
        return None
    memory = np.asarray(slot)
    return {
        name: np.empty(shape, dtype) if dtype.hasobject else memory[start : start + size].view(dtype).reshape(shape)
        for (name, (shape, dtype)), start, size in zip(specs.items(), starts, sizes, strict=False)
    }


def aligned(sizes: list[int]) -> Iterator[int]:
    """Yield where each of some parts ends that follow each other, each of them aligned."""
    return itertools.accumulate(-(-size // ALIGN) * ALIGN for size in sizes)


def pack(values: list[Any]) -> tuple[Any, ...] | None:
    """Return the message that carries a batch of this worker of a torch `DataLoader`: the arguments of `unpack`.

    Only tensors of the type `torch.Tensor` itself, of dtypes and layouts that are known here, travel in the slot.
    torch's own functions send everything else. None if the batch lies in no slot, or in one that was sent before.
    """
    pool = worker_memory.value.pool
    if pool is None:
        return None
    numbers = (pool.slot_at(value.data_ptr()) for value in values if is_plain(value))
    number = next((number for number in numbers if number is not None), None)
    if number is None:
        return None
    parts = [_packed(value, pool.address(number), pool.slot_bytes) for value in values]
    # The memory is sent until the receiver has it: a message may be thrown away. To receive a descriptor the other
    # process has to wait for a thread of this one (measured: 4 ms).
    if pool.is_received:
        pool.close_descriptor()
    memory = None if pool.fd < 0 else DupFd(pool.fd)
    pool.mark_sent(number)
    return pool.key, memory, pool.slot_bytes, number, parts


def is_plain(value: Any) -> bool:
    """Return whether a value is a tensor that its bytes, dtype and shape make again."""
    return (
        type(value) is torch.Tensor
        and value.layout is torch.strided
        and value.dtype in _DTYPES
        and value.device.type == "cpu"
        and value.is_contiguous()
        and value.numel() > 0
        and not (value.requires_grad or value.is_nested or value.is_neg() or value.is_conj())
    )


def _packed(value: Any, begin: int, nbytes: int) -> Any:
    if not is_plain(value):
        return value
    start = value.data_ptr() - begin
    if 0 <= start < nbytes:
        return _Tensor(start, tuple(value.shape), value.dtype)
    is_small = value.nbytes < _SMALL_BYTES and value.dtype in _NUMPY_DTYPES
    return _Tensor(value.numpy()) if is_small else value


@dataclass(frozen=True, slots=True)
class _Tensor:
    """A tensor in a message: where it begins in the slot, or the values of a small one."""

    at: int | np.ndarray
    shape: tuple[int, ...] = ()
    dtype: torch.dtype = torch.uint8


def unpack(key: PoolKey, memory: Any, slot_bytes: int, number: int, parts: list[Any]) -> list[Any]:
    """Return the values that `pack` was given, as views of the slot."""
    in_slot = np.asarray(Slot(_received.value.pool(key, memory, slot_bytes), number, RECEIVER))

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
