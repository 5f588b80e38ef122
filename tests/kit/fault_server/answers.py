"""Which answer a request gets: a status, headers, and a body of bytes or of a part of a file.

Files of a folder are objects of buckets; their keys are listed in pages, as S3 lists them.
"""

from __future__ import annotations

import base64
import contextlib
import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from email.utils import formatdate, parsedate_to_datetime
from urllib.parse import quote
from xml.sax.saxutils import escape

from tests.kit.fault_server.faults import Fault, Request, Span

_CODES = {401: "InvalidAccessKeyId", 403: "AccessDenied", 429: "TooManyRequests", 500: "InternalError", 503: "SlowDown"}
_REASONS = {200: "OK", 206: "Partial Content", 304: "Not Modified", 404: "Not Found", 412: "Precondition Failed"}
_PAGE_KEYS = 1000


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
        lines = [
            f"HTTP/1.1 {self.status} {_REASONS.get(self.status, 'Status')}",
            f"Date: {formatdate(now, usegmt=True)}",
        ]
        lines += [f"{name}: {value}" for name, value in self.headers.items()]
        if "Transfer-Encoding" not in self.headers:
            lines.append(f"Content-Length: {self.nbytes}")
        return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")

    def close(self) -> None:
        """Close its file."""
        if self.fd is not None:
            os.close(self.fd)
            self.fd = None


def answer(root: str, request: Request, faults: Mapping[str, Fault], skew: float) -> Answer:
    """Return the answer to a request: the right one, with the faults that hit it."""
    if "status" in faults:
        return _failed(faults["status"], request.path)
    if "redirect" in faults:
        return Answer(faults["redirect"].status, {"Location": faults["redirect"].location + quote(request.path)})
    if request.method not in ("GET", "HEAD"):
        return _error(405, "MethodNotAllowed", request.path)
    bucket, _, key = request.path.strip("/").partition("/")
    if not key and (request.is_listing or request.method == "HEAD"):
        given = _of_bucket(root, bucket, request, is_any="any_prefix" in faults)
        if "endless" in faults:
            more = b"<IsTruncated>true</IsTruncated><NextContinuationToken>Lg==</NextContinuationToken>"
            given.body = given.body.replace(b"<IsTruncated>false</IsTruncated>", more)
        return given
    found = _find(root, request.path)
    if found is None:
        has_bucket = os.path.isdir(os.path.join(root, bucket))
        return _error(404, "NoSuchKey" if has_bucket else "NoSuchBucket", request.path)
    given = _of_object(found, request, faults, skew)
    if given.fd is None:
        os.close(found.fd)
    return given


def _of_bucket(root: str, bucket: str, request: Request, *, is_any: bool) -> Answer:
    if not os.path.isdir(os.path.join(root, bucket)):
        return _error(404, "NoSuchBucket", request.path)
    if request.method == "HEAD":
        return Answer(200, {"x-amz-bucket-region": "us-east-1"})
    query = {**request.query, "prefix": ""} if is_any else request.query
    return Answer(200, {"Content-Type": "application/xml"}, _list_page(root, bucket, query))


def _failed(fault: Fault, path: str) -> Answer:
    return _error(fault.status, fault.code or _CODES.get(fault.status, "InvalidRequest"), path)


def _error(status: int, code: str, path: str) -> Answer:
    text = f"<Error><Code>{escape(code)}</Code><Message>{escape(code)}</Message><Key>{escape(path)}</Key></Error>"
    body = f'<?xml version="1.0" encoding="UTF-8"?>\n{text}'.encode()
    return Answer(status, {"Content-Type": "application/xml"}, body)


def _of_object(found: _Found, request: Request, faults: Mapping[str, Fault], skew: float) -> Answer:
    etag = f'"new-{time.monotonic_ns():x}"' if "new_etag" in faults else found.etag
    etag = f"W/{etag}" if "weak_etag" in faults else etag
    refused = None if "ignore_if_match" in faults else _refusal(found, request, etag, skew)
    if refused is not None:
        return refused
    headers = {
        "Last-Modified": formatdate(found.modified + skew, usegmt=True),
        "Content-Type": "application/octet-stream",
    }
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
        refused = _error(416, "InvalidRange", request.path)
        refused.headers["Content-Range"] = f"bytes */{found.size}"
        return refused
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


def _refusal(found: _Found, request: Request, etag: str, skew: float) -> Answer | None:
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


# Files as objects --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Found:
    """An object that was opened: its descriptor, which the caller closes, and its state."""

    fd: int
    size: int
    etag: str
    modified: float


def _etag_of(stat: os.stat_result) -> str:
    """Return the ETag of a file: it changes when the file is written or replaced."""
    return f'"{stat.st_ino:x}-{stat.st_mtime_ns:x}-{stat.st_size:x}"'


def _find(root: str, path: str) -> _Found | None:
    """Open the file of a path such as ``"/bucket/key"``; None if there is none."""
    if ".." in path.split("/") or "\0" in path or path.endswith("/"):
        return None
    try:
        fd = os.open(root + path, os.O_RDONLY | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        return None
    stat = os.fstat(fd)
    if not os.path.isfile(root + path):
        os.close(fd)
        return None
    return _Found(fd, stat.st_size, _etag_of(stat), stat.st_mtime)


def _list_page(root: str, bucket: str, query: Mapping[str, str]) -> bytes:
    """Return a page of ListObjectsV2: the keys that begin with a prefix, and the folders up to a delimiter."""
    prefix, delimiter = query.get("prefix", ""), query.get("delimiter", "")
    token = query.get("continuation-token")
    after = base64.urlsafe_b64decode(token).decode() if token else query.get("start-after", "")
    limit = min(_PAGE_KEYS, int(query.get("max-keys", _PAGE_KEYS)))
    url_encoded = query.get("encoding-type") == "url"
    entries: list[str] = []
    last, folder, is_cut = "", "", False
    for key, stat in _keys(os.path.join(root, bucket), prefix):
        if key.encode() <= after.encode() or (delimiter and after.endswith(delimiter) and key.startswith(after)):
            continue
        cut = key.find(delimiter, len(prefix)) if delimiter else -1
        if cut >= 0 and key[: cut + len(delimiter)] == folder:
            continue
        if len(entries) == limit:
            is_cut = True
            break
        folder = key[: cut + len(delimiter)] if cut >= 0 else ""
        last = folder or key
        prefixes = f"<CommonPrefixes><Prefix>{_named(folder, url_encoded)}</Prefix></CommonPrefixes>"
        entries.append(prefixes if folder else _object(key, stat, url_encoded))
    return _page(bucket, prefix, entries, limit, last if is_cut else None, url_encoded)


def _keys(folder: str, prefix: str) -> Iterator[tuple[str, os.stat_result]]:
    found = []
    top = os.path.join(folder, os.path.dirname(prefix))
    for path, _, files in os.walk(top):
        found += [os.path.relpath(os.path.join(path, name), folder) for name in files]
    # S3 orders keys by their bytes.
    for key in sorted((key for key in found if key.startswith(prefix)), key=str.encode):
        try:
            yield key, os.stat(os.path.join(folder, key))
        except FileNotFoundError:
            continue  # it was removed meanwhile


def _named(key: str, url_encoded: bool) -> str:
    return quote(key) if url_encoded else escape(key)


def _object(key: str, stat: os.stat_result, url_encoded: bool) -> str:
    modified = time.strftime("%Y-%m-%dT%H:%M:%S.000Z", time.gmtime(stat.st_mtime))
    return (
        f"<Contents><Key>{_named(key, url_encoded)}</Key><LastModified>{modified}</LastModified>"
        f"<ETag>{escape(_etag_of(stat), {chr(34): '&quot;'})}</ETag><Size>{stat.st_size}</Size>"
        "<StorageClass>STANDARD</StorageClass></Contents>"
    )


def _page(bucket: str, prefix: str, entries: list[str], limit: int, last: str | None, url_encoded: bool) -> bytes:
    more = ""
    if last is not None:
        token = base64.urlsafe_b64encode(last.encode()).decode()
        more = f"<NextContinuationToken>{token}</NextContinuationToken>"
    encoding = "<EncodingType>url</EncodingType>" if url_encoded else ""
    return (
        '<?xml version="1.0" encoding="UTF-8"?>\n'
        '<ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">'
        f"<Name>{escape(bucket)}</Name><Prefix>{_named(prefix, url_encoded)}</Prefix>"
        f"<KeyCount>{len(entries)}</KeyCount><MaxKeys>{limit}</MaxKeys>{encoding}"
        f"<IsTruncated>{'true' if last is not None else 'false'}</IsTruncated>"
        f"{more}{''.join(entries)}</ListBucketResult>"
    ).encode()
