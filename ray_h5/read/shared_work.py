"""Threads take turns at some work, and one that waits for its turn helps with the work of another one."""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Sequence

from ray_h5.read.jobs import ReadStats, TableJob, Worker

_PATIENCE_S = 1.0
"""How long a thread waits while nothing is done: a file may be on a mount that does not answer."""


class Turns:
    """Tables of jobs that run one after the other, each by all threads that have come.

    What one turn leaves in memory, the next one finds there. No thread waits for ever: one that has waited in vain does
    its work alone.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._is_taken, self._helpers = False, 0
        self._parts: deque[tuple[TableJob, Worker]] = deque()
        self._failed: list[TableJob] = []
        self._stats, self._hinted = ReadStats(), 0

    def begin(self) -> bool:
        """Wait for a turn, and help meanwhile; False if nothing was done for a while. Else, `end` must be called."""
        while True:
            with self._changed:
                if not self._is_taken:
                    self._is_taken = True
                    self._stats, self._hinted = ReadStats(), 0
                    return True
                part = self._parts.popleft() if self._parts else None
                if part is None:
                    if not self._changed.wait(_PATIENCE_S):
                        return False
                    continue
                self._helpers += 1
            self._help(*part)

    def _help(self, part: TableJob, worker: Worker) -> None:
        """Run a part of the work of another thread."""
        mine, hinted = Worker(worker.times), None
        try:
            with contextlib.suppress(Exception):  # its own thread runs it again, and raises the error
                hinted = part.run_alone(mine)
        finally:
            with self._changed:
                self._helpers -= 1
                self._stats.add(mine.stats)
                self._hinted = max(self._hinted, hinted or 0)
                self._failed += [part] if hinted is None else []
                self._changed.notify_all()

    def run(self, parts: Sequence[TableJob], worker: Worker) -> int:
        """Run the parts of a table in this thread, and in those that wait; return up to which job hints were given."""
        if len(parts) == 1:
            return parts[0].run_alone(worker)
        with self._changed:
            self._parts.extend((part, worker) for part in parts)
            self._changed.notify_all()
        hinted = 0
        while (part := self._next()) is not None:
            hinted = max(hinted, part.run_alone(worker))
        worker.stats.add(self._stats)
        return max(hinted, self._hinted)

    def _next(self) -> TableJob | None:
        """Return a part that nobody has begun, or one that failed elsewhere; None when all are done."""
        with self._changed:
            while True:
                if self._parts:
                    return self._parts.popleft()[0]
                if self._failed:
                    return self._failed.pop()
                if not self._helpers:
                    return None
                self._changed.wait()

    def end(self) -> None:
        """Let the next thread have its turn."""
        with self._changed:
            self._parts.clear()
            try:
                while self._helpers:  # they write into arrays of this thread
                    self._changed.wait()
            finally:
                self._failed.clear()
                self._is_taken = False
                self._changed.notify_all()
