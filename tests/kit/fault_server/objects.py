"""Files of a folder as objects of buckets: identities, and pages of keys as S3 lists them."""

from __future__ import annotations

import base64
import os
import time
from dataclasses import dataclass
from email.utils import formatdate
from typing import TYPE_CHECKING
from urllib.parse import quote
from xml.sax.saxutils import escape

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

__all__ = ["Found", "bucket_exists", "error_body", "etag_of", "find", "list_page"]


@dataclass(frozen=True, slots=True)
class Found:
    """An object that was opened: its descriptor, which the caller closes, and its state."""

    fd: int
    size: int
    etag: str
    modified: float


def etag_of(stat: os.stat_result) -> str:
    """Return the ETag of a file: it changes when the file is written or replaced."""
    return f'"{stat.st_ino:x}-{stat.st_mtime_ns:x}-{stat.st_size:x}"'


def find(root: str, path: str) -> Found | None:
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
    return Found(fd, stat.st_size, etag_of(stat), stat.st_mtime)


def bucket_exists(root: str, path: str) -> bool:
    """Return whether the bucket of a path exists."""
    return os.path.isdir(os.path.join(root, path.strip("/").split("/")[0]))


def error_body(code: str, path: str) -> bytes:
    """Return an error in the words of S3."""
    text = f"<Error><Code>{escape(code)}</Code><Message>{escape(code)}</Message><Key>{escape(path)}</Key></Error>"
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{text}'.encode()


def list_page(root: str, bucket: str, query: Mapping[str, str], page_keys: int) -> bytes:
    """Return a page of ListObjectsV2: the keys that begin with a prefix, and the folders up to a delimiter."""
    prefix, delimiter = query.get("prefix", ""), query.get("delimiter", "")
    token = query.get("continuation-token")
    after = base64.urlsafe_b64decode(token).decode() if token else query.get("start-after", "")
    limit = min(page_keys, int(query.get("max-keys", page_keys)))
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
        entries.append(_folder(folder, url_encoded) if folder else _object(key, stat, url_encoded))
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


def _folder(key: str, url_encoded: bool) -> str:
    return f"<CommonPrefixes><Prefix>{_named(key, url_encoded)}</Prefix></CommonPrefixes>"


def _object(key: str, stat: os.stat_result, url_encoded: bool) -> str:
    return (
        f"<Contents><Key>{_named(key, url_encoded)}</Key><LastModified>{_iso(stat.st_mtime)}</LastModified>"
        f"<ETag>{escape(etag_of(stat), {chr(34): '&quot;'})}</ETag><Size>{stat.st_size}</Size>"
        "<StorageClass>STANDARD</StorageClass></Contents>"
    )


def _iso(seconds: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S.000Z", time.gmtime(seconds))


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


def http_date(seconds: float) -> str:
    """Return a time as HTTP writes it."""
    return formatdate(seconds, usegmt=True)
