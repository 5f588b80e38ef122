"""Requests of HTTP/1.1 as they arrive, and as they stay in the log."""

from __future__ import annotations

import re
import time
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, BinaryIO
from urllib.parse import parse_qsl, unquote

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["Request", "Span", "read_request"]

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
    connection
        Number of the connection that it came through.
    at
        ``time.monotonic()`` when it arrived.
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
    connection: int
    at: float = field(default_factory=time.monotonic)
    status: int = 0
    nbytes: int = 0
    faults: tuple[str, ...] = ()

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

    def as_json(self) -> dict[str, Any]:
        """Return the fields as values of JSON."""
        return asdict(self)


def read_request(stream: BinaryIO, connection: int) -> Request | None:
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
    return Request(line[0], unquote(path), dict(parse_qsl(query, keep_blank_values=True)), headers, connection)
