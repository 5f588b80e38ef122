"""The lock between the processes of a cache."""

from __future__ import annotations

import contextlib
import fcntl
import os
import threading
import time
from collections.abc import Iterator

from ray_h5.atomic import lock_within

__all__ = ["CacheLock"]

_LOCK_S = 10.0


class CacheLock:
    """The lock between the processes of a cache, and the number of bytes that the cache takes."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._threads = threading.Lock()
        self._fd = -1
        self._held_elsewhere_until = 0.0

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        with self._threads:
            if self._fd >= 0 and not os.fstat(self._fd).st_nlink:
                os.close(self._fd)  # somebody removed the folder
                self._fd = -1
            if self._fd < 0:
                self._fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            self._lock()  # a process that dies lets go of it
            try:
                yield
            finally:
                fcntl.flock(self._fd, fcntl.LOCK_UN)

    def _lock(self) -> None:
        # Many threads may wait, one after the other: all of them together wait as long as one.
        waits = time.monotonic() >= self._held_elsewhere_until
        try:
            lock_within(self._fd, _LOCK_S if waits else 0.0)
        except TimeoutError:
            if waits:
                self._held_elsewhere_until = time.monotonic() + _LOCK_S
            raise

    @property
    def used(self) -> int:
        return int.from_bytes(os.pread(self._fd, 8, 0), "little")

    @used.setter
    def used(self, nbytes: int) -> None:
        os.pwrite(self._fd, nbytes.to_bytes(8, "little"), 0)
