"""When bytes leave a server whose streams have a limit, and that has one itself."""

from __future__ import annotations

import threading
import time

__all__ = ["Pace", "Stream"]

_PIECE_BYTES = 1 << 20


class Pace:
    """Limits of a server, in bytes a second. They may be changed while it runs.

    Parameters
    ----------
    rate
        Limit of one stream; None for no limit.
    total
        Limit of all streams together; None for no limit.
    """

    def __init__(self, rate: float | None, total: float | None) -> None:
        self.rate = rate
        self.total = total
        self._lock = threading.Lock()
        self._free_at = 0.0

    def stream(self, rate: float | None = None) -> Stream:
        """Return the pace of one body; `rate` is a limit of its own."""
        return Stream(self, rate or self.rate)

    def reserve(self, nbytes: int) -> float:
        """Return when the last of some bytes may leave, as far as the limit of all streams goes."""
        if self.total is None:
            return 0.0
        with self._lock:
            self._free_at = max(self._free_at, time.monotonic()) + nbytes / self.total
            return self._free_at


class Stream:
    """The pace of one body. Each piece leaves at the time at which its last byte would."""

    def __init__(self, pace: Pace, rate: float | None) -> None:
        self._pace = pace
        self._rate = rate
        self._begin = time.monotonic()
        self._sent = 0

    @property
    def is_limited(self) -> bool:
        """Whether bytes ever wait."""
        return self._rate is not None or self._pace.total is not None

    def piece(self, left: int) -> int:
        """Return how many of the bytes that are left are sent next."""
        if self._rate is None:
            return min(left, 4 * _PIECE_BYTES)
        # A slow stream sends about ten pieces a second.
        return min(left, _PIECE_BYTES, max(1, int(self._rate / 10)))

    def wait(self, nbytes: int) -> None:
        """Wait until these bytes may leave."""
        self._sent += nbytes
        due = self._pace.reserve(nbytes)
        if self._rate is not None:
            due = max(due, self._begin + self._sent / self._rate)
        if (seconds := due - time.monotonic()) > 0:
            time.sleep(seconds)
