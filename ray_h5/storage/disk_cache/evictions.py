"""Which blocks of a full cache make room: those that the orders of this process need furthest ahead, or never.

In an order that has each row once an epoch, nothing may go for another row that comes once: each block is needed once
before the next epoch ends, so the blocks that are there when an epoch ends are all that the next one can find there,
whichever they are. To keep them is then the best that there is, and writes nothing. Room is made for what comes again
in this epoch, and of what comes neither in this epoch nor in the next.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import itertools
import os
import threading
import time
from collections import deque
from pathlib import Path
from typing import NamedTuple, Protocol
from weakref import WeakSet, WeakValueDictionary

import numpy as np

from ray_h5.fork import PerProcess
from ray_h5.storage.disk_cache.block_file import BLOCK_BYTES, ROWS, BlockFile, Descriptor

__all__ = ["LATER", "NEVER", "ORDERS", "Due", "Evictions", "RunningOrder", "evictions_of"]

LATER, NEVER = 2.0, float("inf")
"""Not in this epoch or the next one, as far as the order is known; in no epoch."""

ORDERS = "order-"
"""What the names of files begin with that say which orders are read: the process that reads one holds a lock."""

_MAX_VICTIMS = 1 << 14
_PAUSES = 10
"""To look for victims takes at most one tenth of the time."""

_ORDERS_S = 1.0


class Due(Protocol):
    """When the blocks of a file are needed next, by one order.

    A time is in epochs, from the beginning of the running one: below 1 is in this epoch, below 2 in the next one.
    """

    @property
    def progress(self) -> object:
        """What is equal as long as all times are equal."""

    def blocks(self, first: int, end: int) -> np.ndarray:
        """Return when some blocks are needed."""

    def room(self, first: int, end: int) -> np.ndarray:
        """Return when others have to be needed, or later, to make room for some blocks that were just read.

        A row counts if it lies in these blocks as a whole: at their edge may be a part of another one, which is of no
        use alone.
        """


class _Victims(NamedTuple):
    """Blocks of a file that lie side by side, and when the first of them is needed."""

    due: float
    file: BlockFile
    first: int
    end: int


class RunningOrder:
    """Says that an order is read, as long as this object exists: runs with other orders then evict nothing.

    Parameters
    ----------
    folder : str
        The folder of the cache.
    name : str
        What distinguishes the order from others.
    """

    def __init__(self, folder: str, name: str) -> None:
        self.path = os.path.join(folder, ORDERS + name)
        self._held = self._hold()

    def _hold(self) -> Descriptor:
        while True:
            held = Descriptor(os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600))
            fcntl.flock(held.fd, fcntl.LOCK_SH)
            # Another process may have removed it in between.
            if os.fstat(held.fd).st_nlink:
                return held


class Evictions:
    """What may go from the cache of a folder, by all orders of this process.

    Parameters
    ----------
    folder : str
        The folder.
    """

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._lock = threading.Lock()
        self._followed: dict[str, tuple[BlockFile, WeakSet[Due]]] = {}
        self._orders: WeakValueDictionary[str, RunningOrder] = WeakValueDictionary()
        self._victims: deque[_Victims] = deque()
        self._found_by: object = None
        self._rests_until = self._alone_until = 0.0
        self._works = True

    def running(self, name: str) -> RunningOrder:
        """Return what says that an order is read; the caller keeps it."""
        with self._lock:
            found = self._orders.get(name)
            if found is None:
                found = self._orders[name] = RunningOrder(self._folder, name)
            return found

    def follow(self, file: BlockFile, due: Due) -> None:
        """Take when the blocks of a file are needed, by one more order; it is forgotten with `due`."""
        with self._lock:
            self._followed.setdefault(file.path, (file, WeakSet()))[1].add(due)

    def admits(self, file: BlockFile, first: int, end: int) -> np.ndarray:
        """Return for blocks that were just read when others have to be needed to make room; `NEVER` if none do."""
        never = np.full(end - first, NEVER)
        with self._lock:
            furthest = self._victims[0].due if self._victims else 0.0
            found = np.minimum.reduce([never, *(each.room(first, end) for each in self._dues(file))])
        return np.where(found <= furthest, found, NEVER)

    def look(self) -> None:
        """Look for what may go, if nothing is left of what was found before. It takes a while; no lock is needed."""
        if not self._works or time.monotonic() < self._rests_until or not self._lock.acquire(blocking=False):
            return
        try:
            progress = [each.progress for path in list(self._followed) for each in self._dues_at(path)]
            if not progress or progress == self._found_by:
                return
            began = time.thread_time()
            self._victims = deque() if self._others_run() else deque(self._found())
            self._found_by = progress
            self._rests_until = time.monotonic() + _PAUSES * (time.thread_time() - began)
        finally:
            self._lock.release()

    def free(self, nbytes: int, due: float) -> int:
        """Make room, all of it or none, of blocks that are needed then or later; return how many bytes that gave.

        The lock of the cache is held.
        """
        freed, wanted = 0, -(-nbytes // BLOCK_BYTES)
        with self._lock:
            lasting = itertools.takewhile(lambda each: each.due >= due, self._victims)
            if not any(found >= wanted for found in itertools.accumulate(each.end - each.first for each in lasting)):
                return 0
            while freed < nbytes and self._victims and self._victims[0].due >= due:
                victims = self._victims.popleft()
                cut = max(victims.first, victims.end - -(-(nbytes - freed) // BLOCK_BYTES))
                if cut > victims.first:
                    self._victims.appendleft(victims._replace(end=cut))
                freed += self._drop(victims._replace(first=cut))
        return freed

    def _drop(self, victims: _Victims) -> int:
        now = self._blocks_due(victims.file, victims.first, victims.end)
        if now.min() < victims.due:
            return 0  # it was read since it was found, and comes earlier now
        try:
            return victims.file.drop(victims.first, victims.end)
        except OSError as exc:
            if exc.errno not in (errno.EOPNOTSUPP, errno.ENOSYS):
                raise
            self._works = False  # this file system makes no holes: the cache keeps what it has
            self._victims.clear()
            return 0

    def _found(self) -> list[_Victims]:
        """Return what may go, furthest first."""
        files: list[BlockFile] = []
        found: list[tuple[np.ndarray, np.ndarray]] = []
        for path, (file, _) in list(self._followed.items()):
            if not self._dues_at(path):
                del self._followed[path]
                continue
            with contextlib.suppress(OSError):
                due = np.where(file.kinds(0, file.num_blocks) == ROWS, self._blocks_due(file, 0, file.num_blocks), -1.0)
                files.append(file)
                found.append((due, np.flatnonzero(due >= 0)))
        if not found:
            return []
        number = np.repeat(np.arange(len(found)), [len(at) for _, at in found])
        block = np.concatenate([at for _, at in found])
        due = np.concatenate([due[at] for due, at in found])
        order = np.lexsort((block, number, -due))[:_MAX_VICTIMS]
        number, block, due = number[order], block[order], due[order]
        joined = (np.diff(number) == 0) & (np.diff(block) == 1) & (due[1:] == due[:-1])
        cuts = np.concatenate([[0], np.flatnonzero(~joined) + 1, [len(order)]]).tolist()
        return [
            _Victims(float(due[start]), files[number[start]], int(block[start]), int(block[stop - 1]) + 1)
            for start, stop in itertools.pairwise(cuts)
            if stop > start
        ]

    def _dues(self, file: BlockFile) -> list[Due]:
        return self._dues_at(file.path)

    def _dues_at(self, path: str) -> list[Due]:
        return list(self._followed[path][1]) if path in self._followed else []

    def _blocks_due(self, file: BlockFile, first: int, end: int) -> np.ndarray:
        never = np.full(end - first, NEVER)
        return np.asarray(np.minimum.reduce([never, *(each.blocks(first, end) for each in self._dues(file))]))

    def _others_run(self) -> bool:
        """Return whether other processes read other orders: nobody here knows what these need."""
        now = time.monotonic()
        if now < self._alone_until:
            return False
        mine = {each.path for each in self._orders.values()}
        with os.scandir(self._folder) as entries:
            others = [each.path for each in entries if each.name.startswith(ORDERS) and each.path not in mine]
        if any(_is_held(path) for path in others):
            return True
        self._alone_until = now + _ORDERS_S
        return False


def _is_held(path: str) -> bool:
    """Return whether a process reads an order; if none does, remove the file that says so."""
    try:
        file = Descriptor(os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW))
        fcntl.flock(file.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        Path(path).unlink(missing_ok=True)
    except FileNotFoundError:
        return False
    except OSError:
        return True
    return False


_known: PerProcess[dict[str, Evictions]] = PerProcess(dict)


def evictions_of(folder: str) -> Evictions:
    """Return the evictions of this process from a folder, whatever datasets it has there."""
    return _known.value.setdefault(folder, Evictions(folder))
