"""Requests as they arrive, and as they stay in the log; faults that a server makes, and which requests they hit."""

from __future__ import annotations

import random
import re
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import BinaryIO
from urllib.parse import parse_qsl, unquote

Span = tuple[int, int]
"""First byte, and the byte after the last one."""


@dataclass(slots=True)
class Request:
    """One request, and how it was answered. A request that still runs is in the log, too.

    Parameters
    ----------
    method
        ``"GET"`` or ``"HEAD"``.
    path
        The decoded path, such as ``"/bucket/folder/a.h5"``.
    query
        The decoded parameters.
    headers
        By name in lower case.
    status
        Status of the answer; 0 if there was none.
    nbytes
        Bytes of the body that were sent.
    faults
        The kinds of the faults that hit it.
    """

    method: str
    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    status: int = 0
    nbytes: int = 0
    faults: tuple[str, ...] = ()

    @classmethod
    def read(cls, stream: BinaryIO) -> Request | None:
        """Return the next request of a connection; None at its end."""
        line = stream.readline(65536).decode("latin-1").split()
        if len(line) < 2:
            return None
        headers: dict[str, str] = {}
        while (text := stream.readline(65536).decode("latin-1")) not in ("\r\n", "\n", ""):
            name, _, value = text.partition(":")
            headers[name.strip().lower()] = value.strip()
        stream.read(int(headers.get("content-length", 0)))
        path, _, query = line[1].partition("?")
        return cls(line[0], unquote(path), dict(parse_qsl(query, keep_blank_values=True)), headers)

    @property
    def range(self) -> str | None:
        """The ``Range`` header, such as ``"bytes=0-99"``."""
        return self.headers.get("range")

    @property
    def if_match(self) -> str | None:
        """The ``If-Match`` header."""
        return self.headers.get("if-match")

    @property
    def is_listing(self) -> bool:
        """Whether it asks for keys rather than for an object."""
        return "list-type" in self.query

    def span(self, size: int) -> Span | None:
        """Return the bytes that it asks for, of an object of some size; None without a range."""
        found = re.fullmatch(r"bytes=(\d*)-(\d*)", self.range or "")
        if found is None or not any(found.groups()):
            return None
        first, last = found.groups()
        if not first:
            return max(0, size - int(last)), size
        return int(first), min(size, int(last) + 1) if last else size


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
    "endless": "says that there are more keys, with the same token each time",
    "any_prefix": "lists keys whatever prefix is asked for",
    "redirect": "answers `status`, and that the path is at `location`, such as http://localhost:80",
    "chunked": "sends the body in chunks, without Content-Length",
}
"""What each kind of fault does."""


@dataclass(slots=True)
class Fault:
    """A fault, the requests that it hits, and how often it met them.

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
    met: int = 0
    hits: int = 0

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"kind={self.kind!r}: expected one of {', '.join(KINDS)}")

    def concerns(self, request: Request) -> bool:
        """Return whether a request is one of those that it can hit."""
        method = "LIST" if request.is_listing else request.method
        return self.method in (None, method) and fnmatchcase(request.path, self.path)

    def draw(self, draws: random.Random) -> bool:
        """Return whether it hits the next request."""
        self.met += 1
        if self.met <= self.after or (self.times is not None and self.hits >= self.times):
            return False
        hit = self.share >= 1 or draws.random() < self.share
        self.hits += hit
        return hit


class Faults:
    """The faults of a server. Any thread may use it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._random = random.Random(0)
        self._faults: list[Fault] = []

    def add(self, fault: Fault) -> None:
        """Make a fault from now on."""
        with self._lock:
            self._faults.append(fault)

    def clear(self) -> None:
        """Make none from now on."""
        with self._lock:
            self._faults = []

    def hitting(self, request: Request) -> dict[str, Fault]:
        """Return the faults that hit a request, by kind; of two of a kind, the first."""
        hitting: dict[str, Fault] = {}
        with self._lock:
            for fault in self._faults:
                if fault.kind not in hitting and fault.concerns(request) and fault.draw(self._random):
                    hitting[fault.kind] = fault
        return hitting
