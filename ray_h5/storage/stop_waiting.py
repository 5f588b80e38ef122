"""Ends the waits of threads for requests: after an error, Ctrl-C, or when the process ends."""

from __future__ import annotations

import threading
from concurrent.futures import thread  # noqa: F401  its function at exit is registered before ours
from queue import Empty, SimpleQueue
from typing import TypeVar

from ray_h5.errors import ReadFailedError
from ray_h5.per_process import PerProcess

Answer = TypeVar("Answer")

_LOOK_S = 0.05
"""How often a thread that waits looks whether it is stopped."""


class Stop:
    """Ends the waits of some threads for their requests: each raises an error.

    Parameters
    ----------
    outer : Stop, optional
        What ends the waits of the thread that started these.
    """

    def __init__(self, outer: Stop | None = None) -> None:
        self.outer = outer
        self._is_set = False

    def enter(self) -> None:
        """Let this stop end the waits of the calling thread."""
        stops.inner = self

    def set(self) -> None:
        """End the waits."""
        self._is_set = True

    def check(self) -> None:
        """Raise if this, or an outer one, is set."""
        if self._is_set:
            raise ReadFailedError("reading was stopped")
        if self.outer is not None:
            self.outer.check()


class _Stops(threading.local):
    inner: Stop | None = None


stops = _Stops()
"""What ends the waits of the calling thread."""

_exit = PerProcess(Stop)

# When a process ends, Python waits for threads of pools; these wait for requests that may hang. The last function that
# is registered is called first, and those of concurrent.futures are registered by its import.
threading._register_atexit(  # type: ignore[attr-defined]
    lambda: _exit.value.set()  # noqa: PLW0108  a forked process has another one
)


def wait_for(answers: SimpleQueue[Answer]) -> Answer:
    """Return the next answer; raise once a stop of this thread, or the end of the process, ends the wait."""
    while True:
        for stop in (stops.inner, _exit.value):
            if stop is not None:
                stop.check()
        try:
            return answers.get(timeout=_LOOK_S)
        except Empty:
            pass
