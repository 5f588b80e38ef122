"""Which answer a request gets: a status, headers, and a body of bytes or of a part of a file."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING
from urllib.parse import quote

from tests.kit.fault_server.objects import Found, bucket_exists, error_body, find, http_date, list_page

if TYPE_CHECKING:
    from tests.kit.fault_server.faults import Fault
    from tests.kit.fault_server.requests import Request, Span

__all__ = ["Answer", "answer"]

_CODES = {401: "InvalidAccessKeyId", 403: "AccessDenied", 429: "TooManyRequests", 500: "InternalError", 503: "SlowDown"}
_REASONS = {200: "OK", 206: "Partial Content", 304: "Not Modified", 404: "Not Found", 412: "Precondition Failed"}


@dataclass(slots=True)
class Answer:
    """An answer. Its body is `body`, or the bytes of `span` of the file `fd`, which is closed with it."""

    status: int
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    fd: int | None = None
    span: Span = (0, 0)

    @property
    def nbytes(self) -> int:
        """The length of the body."""
        return len(self.body) if self.fd is None else self.span[1] - self.span[0]

    def head(self, now: float) -> bytes:
        """Return the status line and the headers."""
        lines = [f"HTTP/1.1 {self.status} {_REASONS.get(self.status, 'Status')}", f"Date: {http_date(now)}"]
        lines += [f"{name}: {value}" for name, value in self.headers.items()]
        if "Transfer-Encoding" not in self.headers:
            lines.append(f"Content-Length: {self.nbytes}")
        return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")

    def close(self) -> None:
        """Close its file."""
        if self.fd is not None:
            os.close(self.fd)
            self.fd = None


def answer(root: str, request: Request, faults: Mapping[str, Fault], page_keys: int, skew: float) -> Answer:
    """Return the answer to a request: the right one, with the faults that hit it."""
    if "status" in faults:
        return _failed(faults["status"], request.path)
    if "redirect" in faults:
        return Answer(faults["redirect"].status, {"Location": faults["redirect"].location + quote(request.path)})
    if request.method not in ("GET", "HEAD"):
        return _error(405, "MethodNotAllowed", request.path)
    bucket, _, key = request.path.strip("/").partition("/")
    if not key and (request.is_listing or request.method == "HEAD"):
        return _of_bucket(root, bucket, request, page_keys, is_any="any_prefix" in faults)
    found = find(root, request.path)
    if found is None:
        return _error(404, "NoSuchKey" if bucket_exists(root, request.path) else "NoSuchBucket", request.path)
    given = _of_object(found, request, faults, skew)
    if given.fd is None:
        os.close(found.fd)
    return given


def _of_bucket(root: str, bucket: str, request: Request, page_keys: int, *, is_any: bool) -> Answer:
    if not bucket_exists(root, bucket):
        return _error(404, "NoSuchBucket", request.path)
    if request.method == "HEAD":
        return Answer(200, {"x-amz-bucket-region": "us-east-1"})
    query = {**request.query, "prefix": ""} if is_any else request.query
    return Answer(200, {"Content-Type": "application/xml"}, list_page(root, bucket, query, page_keys))


def _failed(fault: Fault, path: str) -> Answer:
    return _error(fault.status, fault.code or _CODES.get(fault.status, "InvalidRequest"), path)


def _error(status: int, code: str, path: str) -> Answer:
    return Answer(status, {"Content-Type": "application/xml"}, error_body(code, path))


def _of_object(found: Found, request: Request, faults: Mapping[str, Fault], skew: float) -> Answer:
    etag = f'"new-{time.monotonic_ns():x}"' if "new_etag" in faults else found.etag
    etag = f"W/{etag}" if "weak_etag" in faults else etag
    refused = None if "ignore_if_match" in faults else _refusal(found, request, etag, skew)
    if refused is not None:
        return refused
    headers = {"Last-Modified": http_date(found.modified + skew), "Content-Type": "application/octet-stream"}
    if "no_etag" not in faults:
        headers["ETag"] = etag
    span = None if "ignore_range" in faults else request.span(found.size)
    if "ignore_range" not in faults:
        headers["Accept-Ranges"] = "bytes"
    if "chunked" in faults:
        headers["Transfer-Encoding"] = "chunked"
    if span is None:
        return Answer(200, headers, fd=found.fd, span=(0, found.size))
    if span[0] >= max(found.size, 1) or span[0] >= span[1]:
        return Answer(416, {"Content-Range": f"bytes */{found.size}"}, error_body("InvalidRange", request.path))
    span = _moved(span, found.size, faults)
    headers["Content-Range"] = f"bytes {span[0]}-{span[1] - 1}/{found.size}"
    return Answer(206, headers, fd=found.fd, span=span)


def _moved(span: Span, size: int, faults: Mapping[str, Fault]) -> Span:
    first, end = span
    if "short" in faults:
        end = first + max(1, int((end - first) * faults["short"].at))
    if "wrong_range" in faults:  # one byte later where there is one, as a proxy with an off-by-one does
        return (first + 1, min(end + 1, size)) if first + 1 < size else (first - 1, end)
    return first, end


def _refusal(found: Found, request: Request, etag: str, skew: float) -> Answer | None:
    def one_of(header: str) -> bool:
        return request.headers[header] == "*" or etag in [each.strip() for each in request.headers[header].split(",")]

    # RFC 9110: If-Match compares strongly, so a weak ETag never matches.
    if "if-match" in request.headers and (etag.startswith("W/") or not one_of("if-match")):
        return _error(412, "PreconditionFailed", request.path)
    if "if-none-match" in request.headers and one_of("if-none-match"):
        return Answer(304, {"ETag": etag})
    with contextlib.suppress(ValueError):
        since = request.headers.get("if-unmodified-since")
        if since and int(found.modified + skew) > parsedate_to_datetime(since).timestamp():
            return _error(412, "PreconditionFailed", request.path)
    return None
