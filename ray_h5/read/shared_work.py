"""Threads take turns at some work, and one that waits for its turn helps with the work of another one."""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Sequence

from ray_h5.read.jobs import ReadStats, TableJob, Worker

_PATIENCE_S = 5.0
"""How long a thread waits while nothing is done: a file may be on a mount that does not answer."""


class Turns:
    """Tables of jobs that run one after the other, each by all threads that have come.

    What one turn leaves in memory, the next one finds there. No thread waits for ever: one that has waited in vain does
    its work alone.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._owner: object = None
        self._parts: deque[tuple[TableJob, Worker]] = deque()
        self._begun: dict[object, tuple[TableJob, Worker]] = {}
        self._failed: list[TableJob] = []
        self._stats = ReadStats()

    def begin(self, mine: object) -> bool:
        """Wait for a turn, and help meanwhile; False if nothing was done for a while.

        `end` must be called with the same object in any case. An interrupt may come at any time.
        """
        while True:
            with self._changed:
                if self._owner is None:
                    self._stats = ReadStats()
                    self._owner = mine
                    return True
                if not self._parts and not self._changed.wait(_PATIENCE_S):
                    return False
            self._help(mine)

    def _help(self, mine: object) -> None:
        """Run a part of the work of another thread, if there is one."""
        worker, is_done = None, False
        try:
            with self._changed:
                if not self._parts:
                    return
                self._begun[mine] = self._parts[0]
                part, of_other = self._parts.popleft()
            worker = Worker(of_other.times)
            with contextlib.suppress(Exception):  # its own thread runs it again, and raises the error
                part.run_alone(worker)
                is_done = True
        finally:
            with self._changed:
                if (begun := self._begun.pop(mine, None)) is not None:
                    self._failed += [] if is_done else [begun[0]]
                    self._stats.add(ReadStats() if worker is None else worker.stats)
                    self._changed.notify_all()

    def run(self, parts: Sequence[TableJob], worker: Worker) -> None:
        """Run the parts of a table in this thread, and in those that wait."""
        if len(parts) == 1:
            parts[0].run_alone(worker)
            return
        with self._changed:
            self._parts.extend((part, worker) for part in parts)
            self._changed.notify_all()
        while (part := self._next()) is not None:
            part.run_alone(worker)
        worker.stats.add(self._stats)

    def _next(self) -> TableJob | None:
        """Return a part that nobody has begun, or one that failed elsewhere; None when all are done."""
        with self._changed:
            while True:
                if self._parts:
                    return self._parts.popleft()[0]
                if self._failed:
                    return self._failed.pop()
                if not self._begun:
                    return None
                self._changed.wait()

    def end(self, mine: object) -> None:
        """Let the next thread have its turn, if this one has it."""
        with self._changed:
            if self._owner is not mine:
                return
            self._parts.clear()
            try:
                while self._begun:  # they write into arrays of this thread
                    self._changed.wait()
            finally:
                self._failed.clear()
                self._owner = None
                self._changed.notify_all()
