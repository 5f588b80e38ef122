"""Decoded chunks that stay in memory from one read to the next: rows share them that overlap, or are shorter."""

from __future__ import annotations

import contextlib
import itertools
import threading
import time
from collections import OrderedDict
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias
from weakref import WeakValueDictionary

import numpy as np

from ray_h5.buffers import empty
from ray_h5.per_process import PerProcess
from ray_h5.read.jobs import Worker
from ray_h5.read.native.job_table import IN_MEMORY, RAW, Field, JobTable
from ray_h5.read.native.library import compiled_loop

_BLOCK_BYTES, _LEAST_BLOCKS = 1 << 20, 16
"""Chunks that are decoded together lie in blocks of about so many bytes. At least so many blocks may be held."""

_ALIGNMENT = 64

_PATIENCE_S, _HELP_NS = 5.0, 200_000
"""How long a thread waits for its turn, and looks for jobs of others before it tries again."""


class _Column:
    """A column of a file in some state, while chunks of it are held."""

    __slots__ = ("__weakref__",)


Key: TypeAlias = "tuple[_Column, int, int, int, int]"
"""The column, and the offset, stored size, mask and decoded size of a chunk."""

_KEY_FIELDS = [Field.OFFSET, Field.SIZE, Field.MASK, Field.DECODED]


class HeldChunks:
    """The decoded chunks that were used last. Threads may share it; after a fork it is empty.

    A chunk that is needed by several threads of a pool at a time is decoded once: they take turns, and those that wait
    run jobs of the one whose turn it is.

    Parameters
    ----------
    max_bytes : int
        Bytes of all chunks.

    Attributes
    ----------
    max_bytes : int
        The bound that there is now; see `resize`.
    """

    def __init__(self, max_bytes: int = 0) -> None:
        self.max_bytes = max_bytes
        self._state = PerProcess(_State)

    @property
    def total_bytes(self) -> int:
        """Bytes of the chunks that are there."""
        return self._state.value.total_bytes

    def resize(self, max_bytes: int) -> None:
        """Change the bound, and drop chunks if they are more."""
        before, self.max_bytes = self.max_bytes, max_bytes  # first: what others add meanwhile is bounded so
        if max_bytes < before:
            self._state.value.hold([], max_bytes)

    def clear(self) -> None:
        """Drop all chunks."""
        self._state.renew()

    def run(self, table: JobTable, worker: Worker) -> None:
        """Run jobs, and have chunks of columns of open files stay."""
        state, max_bytes, jobs = self._state.value, self.max_bytes, table.jobs
        # Datasets of a damaged file may claim the same bytes, each in its way.
        of = [state.column((origin.file_key, origin.decoder.pipeline)) for origin in table.origins]
        columns, has_key = table.chunks[0], np.array([origin.file_key is not None for origin in table.origins], bool)
        # Chunks that are decoded into their places are needed once.
        is_decoded = (jobs[Field.PIPELINE] != RAW) & (jobs[Field.DESTINATION] == 0) & (jobs[Field.FILE] >= 0)
        at = np.flatnonzero(is_decoded & has_key[columns])
        chunks = jobs[_KEY_FIELDS][:, at].tolist()
        keys: list[Key] = list(zip((of[column] for column in columns[at].tolist()), *chunks, strict=True))
        if not keys:
            worker.run_table(table)
            return
        with _turn(state.turn):
            planned, new = _planned(table, at, keys, state, max_bytes)
            if new:
                worker.run_table(planned)
                state.hold(new, self.max_bytes)
                return
        worker.run_table(planned)


@contextlib.contextmanager
def _turn(lock: threading.Lock) -> Iterator[None]:
    """Wait for the turn of this thread, if it is in a pool, and run jobs of the others meanwhile.

    Nobody waits for ever: a file may be on a mount that does not answer.
    """
    loop, until = compiled_loop(), time.monotonic() + _PATIENCE_S
    if loop is None or loop.of_thread.value.pool is None:
        yield
        return
    while not (is_mine := lock.acquire(blocking=False)) and time.monotonic() < until:
        loop.help(_HELP_NS)
    try:
        yield
    finally:
        if is_mine:
            lock.release()


@dataclass(slots=True, eq=False)
class _Block:
    """Chunks that lie one after the other, and are dropped together."""

    memory: np.ndarray
    keys: list[Key]


class _State:
    """What is held in a process."""

    def __init__(self) -> None:
        self.turn = threading.Lock()
        self.total_bytes = 0
        self._lock = threading.Lock()
        self._blocks: OrderedDict[_Block, None] = OrderedDict()
        self._places: dict[Key, tuple[_Block, int]] = {}
        self._columns: WeakValueDictionary[tuple[Hashable, ...], _Column] = WeakValueDictionary()

    def column(self, key: tuple[Hashable, ...]) -> _Column:
        """Return what stands for a column in the keys of its chunks."""
        column = self._columns.get(key)
        if column is None:
            with self._lock:
                column = self._columns.setdefault(key, _Column())
        return column

    def find(self, keys: Sequence[Key]) -> list[tuple[_Block, int] | None]:
        """Return for each key the block and the address of its chunk, if it is held; they count as used."""
        with self._lock:
            places = list(map(self._places.get, keys))
            for block in dict.fromkeys(place[0] for place in places if place is not None):
                self._blocks.move_to_end(block)
        return places

    def hold(self, new: Sequence[tuple[_Block, list[int]]], max_bytes: int) -> None:
        """Add blocks, with the addresses of their chunks, and drop those used least recently if they are too many."""
        with self._lock:
            for block, addresses in new:
                self._blocks[block] = None
                self.total_bytes += block.memory.nbytes
                self._places.update(zip(block.keys, ((block, address) for address in addresses), strict=True))
            while self.total_bytes > max_bytes:
                block, _ = self._blocks.popitem(last=False)
                self.total_bytes -= block.memory.nbytes
                for key in block.keys:
                    if self._places.get(key, (None, 0))[0] is block:
                        del self._places[key]


def _planned(
    table: JobTable, at: np.ndarray, keys: Sequence[Key], state: _State, max_bytes: int
) -> tuple[JobTable, list[tuple[_Block, list[int]]]]:
    """Return the work with the chunks that are held copied from there, and others decoded to where they can stay."""
    jobs = table.jobs
    places = state.find(keys)
    held = [place for place in places if place is not None]
    is_held = np.array([place is not None for place in places], bool)
    there = at[is_held]
    jobs[Field.FILE, there], jobs[Field.PIPELINE, there] = IN_MEMORY, RAW
    jobs[Field.OFFSET, there] = np.array([address for _, address in held], np.int64)
    jobs[Field.SIZE, there] = jobs[Field.DECODED, there]
    new = _new_blocks([key for key, place in zip(keys, places, strict=True) if place is None], max_bytes)
    decoded = [address for _, addresses in new for address in addresses]
    jobs[Field.DESTINATION, at[~is_held][: len(decoded)]] = decoded
    blocks = {block for block, _ in [*held, *new]}
    return replace(table, keeps=[*table.keeps, *(block.memory for block in blocks)]), new


def _new_blocks(keys: Sequence[Key], max_bytes: int) -> list[tuple[_Block, list[int]]]:
    """Return memory for the first of some chunks, as many as can be held, and their addresses."""
    sizes = -(-np.array([key[-1] for key in keys], np.int64) // _ALIGNMENT) * _ALIGNMENT
    ends = np.cumsum(sizes)
    count = int(np.searchsorted(ends, max_bytes, side="right"))
    block_bytes = max(1, min(_BLOCK_BYTES, max_bytes // _LEAST_BLOCKS))
    of = (ends - sizes)[:count] // block_bytes
    edges = [0, *(np.flatnonzero(np.diff(of)) + 1).tolist(), count] if count else []
    new = []
    for first, stop in itertools.pairwise(edges):
        begin = int(ends[first] - sizes[first])
        memory = empty((int(ends[stop - 1]) - begin,), np.dtype(np.uint8))
        addresses = (ends - sizes)[first:stop] + (memory.ctypes.data - begin)
        new.append((_Block(memory, list(keys[first:stop])), addresses.tolist()))
    return new
