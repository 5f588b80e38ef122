"""A channel: batches from a worker process over a pipe, with shared memory that the receiver acknowledges.

A batch is pickled by torch's own functions, so that all that torch sends between processes arrives as it would there:
subclasses, gradients, sparse and nested tensors. Only the memory of tensors and arrays takes another way. What lies in
the slot that the rows were read into stays there. All else follows the places and the pickled bytes in what is left of
this slot, in another slot, or in memory of its own if there is none, as a training loop keeps all batches::

    slot A     | rows, as they were read |
    slot B     | where memory is, in A or B | pickled bytes | memory made beside the rows |
    pipe       | new pools, A, B |          a few bytes: a worker never waits until its message is taken

Slot B is the rest of A where there is room. A descriptor follows the first message that names its pool through the pipe
itself: the kernel closes it if the message is never taken.
"""

from __future__ import annotations

import io
import pickle
import socket
from collections.abc import Callable
from contextlib import closing
from multiprocessing.connection import Connection
from multiprocessing.reduction import ForkingPickler
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.multiprocessing.reductions import reduce_storage, reduce_tensor

from ray_h5.torch_data.batches.shared_memory import (
    RECEIVER,
    Pool,
    PoolKey,
    Slot,
    aligned,
    bytes_of,
    is_plain,
    worker_memory,
)
from ray_h5.torch_data.batches.tensors import Listed, Sample

MOST_WAITING = 64
"""Messages that a pipe holds, also on macOS, before a worker has to wait."""

_IN_ROWS, _IN_REST = 0, 1
_PLACE_BYTES = 24
"""Of three integers: in which of both slots, where, and how many bytes."""


class _Message(NamedTuple):
    """What goes through the pipe for a batch.

    Attributes
    ----------
    pools : list of (key, slot_bytes, count)
        Those that the receiver does not have. As many descriptors follow.
    rows, rest : tuple of (key, number)
        Slots A and B; A is that of B if nothing lies in the slot that the rows were read into.
    start, num_places, nbytes : int
        Where the places begin in B, how many they are, and how many pickled bytes follow them.
    """

    pools: list[tuple[PoolKey, int, int]]
    rows: tuple[PoolKey, int]
    rest: tuple[PoolKey, int]
    start: int
    num_places: int
    nbytes: int


class Sender:
    """The end of a worker."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def send(self, value: Any) -> None:
        """Send a value.

        Raises
        ------
        Exception
            What pickling raises. Nothing is sent then.
        OSError
            If the other end is closed, or no memory is left.
        """
        stream, buffers = io.BytesIO(), list[pickle.PickleBuffer]()
        _Pickler(stream, buffers.append).dump(value)
        memories = [np.asarray(buffer.raw()) for buffer in buffers]
        addresses = [memory.__array_interface__["data"][0] for memory in memories]
        rows = _rows_of(addresses)
        begin, end = (0, 0) if rows is None else (rows[0].address(rows[1]), rows[0].address(rows[1] + 1))
        copied, of_memory = list[np.ndarray](), dict[tuple[int, int], int]()
        for address, memory in zip(addresses, memories, strict=True):
            if not begin <= address < end and (address, memory.nbytes) not in of_memory:
                of_memory[address, memory.nbytes] = len(copied)  # several tensors may be views of it
                copied.append(memory)
        # Places and pickled bytes come first, so that one message finds all that follows them.
        head = len(memories) * _PLACE_BYTES, stream.tell()
        starts = [*aligned([sum(head), *(memory.nbytes for memory in copied)])]
        slot, (pool, number), start = _room(rows, starts[-1])
        places = np.array(
            [
                (_IN_ROWS, address - begin, memory.nbytes)
                if begin <= address < end
                else (_IN_REST, start + starts[of_memory[address, memory.nbytes]], memory.nbytes)
                for address, memory in zip(addresses, memories, strict=True)
            ],
            np.int64,
        )
        rest = pool.bytes_of(number)[start:]
        contents = [places.reshape(-1).view("u1"), np.frombuffer(stream.getbuffer(), "u1"), *copied]
        for at, part in zip([0, head[0], *starts], contents, strict=False):
            rest[at : at + len(part)] = part
        self._send(rows or (pool, number), (pool, number), start, len(places), head[1])
        del slot  # the worker does not use it any more; the receiver does

    def _send(self, rows: tuple[Pool, int], rest: tuple[Pool, int], start: int, num_places: int, nbytes: int) -> None:
        used = {pool.key: pool for pool, _ in (rows, rest)}
        new = [pool for pool in used.values() if pool.fd >= 0]
        # Before the message is sent: from then on the receiver may acknowledge the slots at any time.
        for pool, number in (rows, rest):
            pool.mark_sent(number)
        message = _Message(
            [(pool.key, pool.slot_bytes, pool.count) for pool in new],
            (rows[0].key, rows[1]),
            (rest[0].key, rest[1]),
            start,
            num_places,
            nbytes,
        )
        self._connection.send_bytes(pickle.dumps(tuple(message)))
        # One byte goes with each descriptor. The receiver reads exactly the message before it: the kernel would close a
        # descriptor whose byte is read by anything else.
        for pool in new:
            with closing(socket.fromfd(self._connection.fileno(), socket.AF_UNIX, socket.SOCK_STREAM)) as pipe:
                socket.send_fds(pipe, [b"\0"], [pool.fd])
            pool.close_descriptor()

    def send_end(self) -> None:
        """Say that no batch comes of the tasks before: the receiver left them."""
        self._connection.send_bytes(pickle.dumps(None))


def _rows_of(addresses: list[int]) -> tuple[Pool, int] | None:
    """Return the slot that rows were read into, in which some of the memory lies."""
    pool = worker_memory.value.pool
    if pool is None:
        return None
    number = next((number for number in map(pool.slot_at, addresses) if number is not None), None)
    return None if number is None else (pool, number)


def _room(rows: tuple[Pool, int] | None, nbytes: int) -> tuple[Slot | None, tuple[Pool, int], int]:
    """Return what keeps slot B until the message is sent, the slot, and where `nbytes` have room in it."""
    if rows is not None:
        pool, number = rows
        (start,) = aligned([pool.filled[number]])
        if start + nbytes <= pool.slot_bytes:
            return None, rows, start
    slot = worker_memory.value.take(nbytes) or Pool.new(nbytes, 1).take(nbytes)
    assert slot is not None  # the only slot of a new pool
    return slot, (slot.pool, slot.number), 0


class _Pickler(ForkingPickler):
    """Pickles as torch does for other processes, and leaves the memory of tensors and arrays out."""

    def __init__(self, stream: io.BytesIO, callback: Callable[[pickle.PickleBuffer], object]) -> None:
        super().__init__(stream, 5, True, callback)
        self.dispatch_table = {**self.dispatch_table, **_REDUCERS}


def _reduced_storage(storage: torch.UntypedStorage) -> Any:
    if storage.device.type != "cpu" or not storage.nbytes():
        return reduce_storage(storage)
    memory: Any = bytes_of(storage)
    return _storage_over, (pickle.PickleBuffer(memory),)


def _storage_over(memory: np.ndarray) -> torch.UntypedStorage:
    return torch.from_numpy(memory).untyped_storage()


def _reduced_tensor(tensor: torch.Tensor) -> Any:
    """Reduce a tensor as torch does; in a third of the time if it is all of its memory."""
    if not is_plain(tensor) or tensor.untyped_storage().nbytes() != tensor.nbytes:
        return reduce_tensor(tensor)
    memory = tensor.reshape(-1).view(torch.uint8).numpy()
    return _tensor_over, (pickle.PickleBuffer(memory), tensor.dtype, tuple(tensor.shape))


def _tensor_over(memory: np.ndarray, dtype: torch.dtype, shape: tuple[int, ...]) -> torch.Tensor:
    return torch.from_numpy(memory).view(dtype).reshape(shape)


def _reduced_array(array: np.ndarray) -> Any:
    return array.__reduce_ex__(5 if array.flags.writeable else 4)  # an array that is pickled as usual can be changed


_REDUCERS: dict[type, Callable[[Any], Any]] = {
    torch.Tensor: _reduced_tensor,
    torch.UntypedStorage: _reduced_storage,
    np.ndarray: _reduced_array,
    Sample: Sample.__reduce__,  # not the functions for a `DataLoader` of torch
    Listed: Listed.__reduce__,
}


class Receiver:
    """The end of the process that asks for batches."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._pools: dict[PoolKey, Pool] = {}

    def receive(self) -> Received | None:
        """Return the next batch, or None for `Sender.send_end`.

        Raises
        ------
        EOFError, OSError
            If the other end is closed.
        """
        content = pickle.loads(self._connection.recv_bytes())  # noqa: S301  from our own worker
        if content is None:
            return None
        message = _Message(*content)
        for key, slot_bytes, count in message.pools:
            with closing(socket.fromfd(self._connection.fileno(), socket.AF_UNIX, socket.SOCK_STREAM)) as pipe:
                _, descriptors, *_ = socket.recv_fds(pipe, 1, 1)
            if not descriptors:
                raise EOFError
            self._pools[key] = Pool.received(descriptors[0], key, slot_bytes, count)
        rest = self._slot(message.rest)
        rows = rest if message.rows == message.rest else self._slot(message.rows)
        # A pool of one slot is used once, and a worker sends no older pool after a larger one.
        last = {rest.pool.key: rest.pool} if rest.pool.count > 1 else self._pools
        self._pools = {key: pool for key, pool in last.items() if pool.count > 1}
        return Received(message, rows, rest)

    def _slot(self, place: tuple[PoolKey, int]) -> Slot:
        key, number = place
        return Slot(self._pools[key], number, RECEIVER)


class Received:
    """A batch in shared memory. Its slots are acknowledged when this object and all views of them are gone."""

    def __init__(self, message: _Message, rows: Slot, rest: Slot) -> None:
        self._message = message
        self._rows = np.asarray(rows)
        self._rest = self._rows if rest is rows else np.asarray(rest)

    def value(self) -> Any:
        """Return the batch, whose tensors and arrays are views of the slots."""
        message, rest = self._message, self._rest
        after = message.start + _PLACE_BYTES * message.num_places
        places = rest[message.start : after].view(np.int64).reshape(-1, 3).tolist()
        memories = [(self._rows, rest)[where][start : start + nbytes] for where, start, nbytes in places]
        pickled: Any = rest[after : after + message.nbytes]
        return pickle.loads(pickled, buffers=memories)  # noqa: S301  of our own worker
