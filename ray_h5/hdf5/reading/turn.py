"""The turn: threads of a process that each read small rows do so one after the other."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

from ray_h5.fork import PerProcess

_PATIENCE_S = 0.1
"""Longest wait for another thread. A list of short jobs takes a few milliseconds."""

_turn = PerProcess(threading.Lock)
_of_threads = PerProcess(threading.local)


class Turn:
    """Lets one thread of the process at a time run short jobs.

    A short job gives the interpreter's lock up for some microseconds, and Python hands it to another thread. To hand
    it to and fro costs more than the second thread gains: epochs of small compressed chunks took 1.2 times the time
    with two threads, and 1.4 times the CPU seconds (measured). So this is a lock that a thread keeps for all short
    jobs of a read; it gives it up early where reads wait. The threads of a loader keep it while they plan, too: two
    threads then take as long as one for such epochs, and not 1.2 times as long. It keeps no order and protects no data.
    """

    __slots__ = ("_held",)

    def __init__(self) -> None:
        self._held: threading.Lock | None = None

    @property
    def is_held(self) -> bool:
        return self._held is not None

    def take(self) -> None:
        """Wait for the turn."""
        lock = _turn.value
        if not (lock.acquire(blocking=False) or lock.acquire(timeout=_PATIENCE_S)):
            # The other thread may read from a mount that does not answer: from now on, threads wait for a new lock.
            lock = _turn.value = threading.Lock()
            lock.acquire()
        self._held = lock

    def give_up(self) -> None:
        """Let other threads go on, if this one has the turn."""
        if self._held is not None:
            self._held.release()
            self._held = None

    @contextlib.contextmanager
    def kept(self) -> Iterator[None]:
        """Take the turn, unless this thread has it, and give it up at the end."""
        if self.is_held:
            yield
            return
        self.take()
        try:
            yield
        finally:
            self.give_up()


def turn_of_this_thread() -> Turn:
    """Return the turn that this thread takes in all that it does."""
    mine = _of_threads.value
    if not hasattr(mine, "turn"):
        mine.turn = Turn()
    turn: Turn = mine.turn
    return turn
