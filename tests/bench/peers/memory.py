"""The memory of a process and of all processes that it starts."""

from __future__ import annotations

import os
import re
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["PeakMemory"]

_INTERVAL_S = 0.3
_HELD = re.compile(r"^Pss_(?:Anon|Shmem): *(\d+) kB", re.MULTILINE)
"""What the kernel cannot drop: not the pages of files that are mapped."""


class PeakMemory:
    """Watches the processes of a session while it is entered; `nbytes` is the most that they held, 0 if unknown.

    Parameters
    ----------
    session
        The number of the session: of the process that leads it.
    """

    def __init__(self, session: int) -> None:
        self._session = session
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self.nbytes = 0

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.set()
        self._thread.join()

    def _watch(self) -> None:
        ends = False
        while not ends:
            ends = self._ends.wait(_INTERVAL_S)  # a short turn is looked at once, at its end
            self.nbytes = max(self.nbytes, sum(map(_held, _processes(self._session))))


def _processes(session: int) -> list[int]:
    if not os.path.isdir("/proc/self"):
        return []
    found = []
    for each in filter(str.isdigit, os.listdir("/proc")):
        try:
            if os.getsid(int(each)) == session:
                found.append(int(each))
        except OSError:
            continue  # it has ended
    return found


def _held(process: int) -> int:
    try:
        with open(f"/proc/{process}/smaps_rollup") as file:
            return 1024 * sum(map(int, _HELD.findall(file.read())))
    except OSError:
        return 0  # it has ended
