"""Faults that a server makes, and which requests they hit."""

from __future__ import annotations

import random
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.kit.fault_server.requests import Request

__all__ = ["KINDS", "Fault", "Faults"]

KINDS: Mapping[str, str] = {
    "status": "answers `status`, with an error of S3 that has `code` in it, by default the usual one",
    "cut": "closes the connection after a share `at` of the body",
    "stall": "answers nothing for `seconds`, and closes the connection",
    "stall_body": "stops after a share `at` of the body for `seconds`, and closes the connection",
    "reset": "resets the connection after a share `at` of the body",
    "slow": "sends the body at `rate` bytes a second",
    "short": "says and sends a range that ends after a share `at` of what was asked for",
    "ignore_range": "answers 200 with the whole object",
    "wrong_range": "sends other bytes, and says so in Content-Range",
    "ignore_if_match": "answers whatever If-Match says",
    "flip": "flips a bit in the middle of the body",
    "no_etag": "leaves the ETag out",
    "weak_etag": "gives a weak ETag, which no If-Match matches",
    "new_etag": "gives another ETag, as if the object had been written again",
    "any_prefix": "lists keys whatever prefix is asked for",
    "redirect": "answers `status`, and that the path is at `location`, such as http://localhost:80",
    "chunked": "sends the body in chunks, without Content-Length",
}
"""What each kind of fault does."""


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault, and the requests that it hits.

    Parameters
    ----------
    kind
        One of `KINDS`.
    path
        A glob of paths, such as ``"/bucket/*.h5"``; ``*`` matches ``/``, too.
    method
        ``"GET"``, ``"HEAD"`` or ``"LIST"``; None for all.
    after
        How many of these requests pass before the first that it can hit.
    times
        How many it hits at most; None for no limit.
    share
        The probability that it hits one.
    status, code, at, seconds, rate, location
        See `KINDS`.
    """

    kind: str
    path: str = "*"
    method: str | None = None
    after: int = 0
    times: int | None = None
    share: float = 1.0
    status: int = 503
    code: str | None = None
    at: float = 0.5
    seconds: float = 30.0
    rate: float = 1e5
    location: str = ""

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"kind={self.kind!r}: expected one of {', '.join(KINDS)}")

    def concerns(self, request: Request) -> bool:
        """Return whether a request is one of those that it can hit."""
        method = "LIST" if request.is_listing else request.method
        return self.method in (None, method) and fnmatchcase(request.path, self.path)


class Faults:
    """The faults of a server, with how often they were met. Any thread may use it."""

    def __init__(self, seed: int) -> None:
        self._lock = threading.Lock()
        self._random = random.Random(seed)
        self._faults: list[Fault] = []
        self._met: dict[int, int] = {}
        self._hits: dict[int, int] = {}

    def add(self, fault: Fault) -> None:
        """Make a fault from now on."""
        with self._lock:
            self._faults.append(fault)

    def clear(self) -> None:
        """Make none from now on."""
        with self._lock:
            self._faults, self._met, self._hits = [], {}, {}

    def hitting(self, request: Request) -> dict[str, Fault]:
        """Return the faults that hit a request, by kind; of two of a kind, the first."""
        with self._lock:
            hitting: dict[str, Fault] = {}
            for number, fault in enumerate(self._faults):
                if fault.kind not in hitting and fault.concerns(request) and self._draw(number, fault):
                    hitting[fault.kind] = fault
            return hitting

    def _draw(self, number: int, fault: Fault) -> bool:
        met, hits = self._met.get(number, 0), self._hits.get(number, 0)
        self._met[number] = met + 1
        if met < fault.after or (fault.times is not None and hits >= fault.times):
            return False
        if fault.share < 1 and self._random.random() >= fault.share:
            return False
        self._hits[number] = hits + 1
        return True
