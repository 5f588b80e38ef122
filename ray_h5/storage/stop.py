"""Ends the waits of threads for requests: after an error, Ctrl-C, or when the process ends."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from concurrent.futures import thread  # noqa: F401  its function at exit is registered before ours
from queue import SimpleQueue
from typing import Any

from ray_h5.errors import ReadFailedError
from ray_h5.fork import PerProcess


class Stop:
    """Ends the waits of some threads for their requests: each raises an error.

    Parameters
    ----------
    outer : Stop, optional
        What ends the waits of the thread that started these.
    """

    def __init__(self, outer: Stop | None = None) -> None:
        self.outer = outer
        self._lock = threading.Lock()
        self._waiting: set[SimpleQueue[Any]] = set()
        self._is_set = False

    def enter(self) -> None:
        """Let this stop end the waits of the calling thread."""
        stops.inner = self

    def set(self) -> None:
        """End the waits."""
        with self._lock:
            self._is_set = True
            for answers in self._waiting:
                answers.put(_STOPPED)

    @contextlib.contextmanager
    def ending(self, answers: SimpleQueue[Any]) -> Iterator[None]:
        """End the wait for some answers, if it is set meanwhile."""
        with self._lock:
            self._waiting.add(answers)
            if self._is_set:
                answers.put(_STOPPED)
        try:
            yield
        finally:
            with self._lock:
                self._waiting.discard(answers)


class _Stops(threading.local):
    inner: Stop | None = None


stops = _Stops()
"""What ends the waits of the calling thread."""

_STOPPED = -1, ReadFailedError("reading was stopped")
_exit = PerProcess(Stop)


def _stop_at_exit() -> None:
    _exit.value.set()


# When a process ends, Python waits for threads of pools; these wait for requests that may hang. The last function that
# is registered is called first, and those of concurrent.futures are registered by its import.
threading._register_atexit(_stop_at_exit)  # type: ignore[attr-defined]


@contextlib.contextmanager
def stoppable(answers: SimpleQueue[Any]) -> Iterator[None]:
    """Let a stop of the calling thread, or the end of the process, end the wait for some answers."""
    with contextlib.ExitStack() as stack:
        stop: Stop | None = stops.inner
        while stop is not None:
            stack.enter_context(stop.ending(answers))
            stop = stop.outer
        stack.enter_context(_exit.value.ending(answers))
        yield
