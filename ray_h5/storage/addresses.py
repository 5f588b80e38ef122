"""URLs of remote files: their parts, without anything secret."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from urllib.parse import quote, unquote, urlsplit, urlunsplit

from ray_h5.errors import OptionError, ReadFailedError
from ray_h5.messages import near_names

SCHEMES = {
    "s3": "s3", "s3a": "s3", "gs": "gs", "gcs": "gs", "az": "az", "azure": "az", "abfs": "az", "abfss": "az",
    "https": "https", "http": "https", "hf": "hf",
}  # fmt: skip
"""The kind of store for each scheme of a URL."""


_SCHEME = re.compile(r"^([A-Za-z][A-Za-z0-9+.-]*)://")
_ONE_SLASH = re.compile(r"^([A-Za-z][A-Za-z0-9+.-]*):/(?!/)")
_ANONYMOUS = "anonymous@"
_MAGIC = re.compile(r"[*?[]")
_USER = re.compile(r"^[^/@:]*(?::[^@]*)?@")
"""A user, or a key with its secret, in which there may be slashes."""

_SIGNATURE = re.compile(r"(?:sig|signature|token|credential)=", re.IGNORECASE)
"""A query of a presigned URL. Other queries may be parts of keys."""


def scheme_of(path: str) -> str:
    """Return the scheme of a URL, in lower case; "" if `path` is none."""
    match = _SCHEME.match(path)
    return match[1].lower() if match else ""


def is_url(path: str) -> bool:
    """Return whether a path names a file in a store, not one of the local file system."""
    return "://" in path and scheme_of(path) not in {"", "file", "local"}


def split_urls(paths: Iterable[str]) -> tuple[list[str], list[str]]:
    """Return the URLs of files in stores, and the other paths."""
    paths = list(paths)
    return [path for path in paths if is_url(path)], [path for path in paths if not is_url(path)]


def check_slashes(path: str) -> None:
    """Raise for a URL that has lost a slash: it would be a local path, such as ``./s3:/bucket``."""
    match = _ONE_SLASH.match(path)
    if match and match[1].lower() in SCHEMES and not os.path.lexists(path):
        scheme, rest = f"{match[1]}://", path[match.end() :]
        raise OptionError(
            f"{shown(scheme + rest)}: a URL begins with {scheme}. Pass it as a text: pathlib.Path takes one of the "
            "slashes away."
        )


@dataclass(frozen=True, slots=True)
class StoreAddress:
    """Where a remote file is.

    Attributes
    ----------
    kind : {"s3", "gs", "az", "https", "hf"}
        The kind of store.
    root : str
        The bucket; of ``https://``, scheme and host.
    key : str
        The name in it.
    anonymous : bool
        Whether the URL asks for requests without credentials, by ``anonymous@``.
    """

    kind: str
    root: str
    key: str
    anonymous: bool = False

    @classmethod
    def of(cls, url: str) -> StoreAddress:
        """Return the parts of a URL.

        Raises
        ------
        OptionError
            If it is no URL of a store.
        """
        scheme = scheme_of(url)
        if scheme not in SCHEMES:
            raise OptionError(
                f"{shown(url)}: expected a path, or a URL of {', '.join(f'{name}://' for name in SCHEMES)}, found "
                f"{scheme}://.{near_names(scheme, SCHEMES)} Or pass filesystem= a file system of fsspec or pyarrow."
            )
        rest = url[len(scheme) + 3 :]
        kind = SCHEMES[scheme]
        if kind == "https":
            host, _, key = rest.partition("/")
            return cls(kind, f"{scheme}://{host}", unquote(key))
        anonymous = rest.startswith(_ANONYMOUS)
        root, _, key = rest.removeprefix(_ANONYMOUS).partition("/")
        if ("@" in root and kind != "az") or (":" in root and "@" in rest):
            raise OptionError(
                f"{shown(url)}: a URL of {scheme}:// has no user and no password. Pass keys as storage_options="
                "{'access_key_id': ..., 'secret_access_key': ...}, or in the environment."
            )
        if not root:
            raise OptionError(f"{shown(url)}: expected a bucket after {scheme}://, such as {scheme}://bucket/run.h5")
        if _is_signed(key):
            raise OptionError(
                f"{shown(url)}: a URL of {scheme}:// has no signature. Pass a SAS token as storage_options="
                "{'sas_token': ...}, and a presigned URL as the https:// URL that it is."
            )
        return cls(kind, root, key, anonymous)

    def url(self, key: str) -> str:
        """Return the URL of another key of the same store."""
        if self.kind == "https":
            return f"{self.root}/{quote(key)}"
        return f"{self.kind}://{_ANONYMOUS if self.anonymous else ''}{self.root}/{key}"


def without_secrets(url: str) -> tuple[str, str]:
    """Return a URL without what may be secret, and the part before and after it that requests need.

    A URL of ``https://`` may have a user with a password, or a query with a signature (a presigned URL).
    """
    if SCHEMES.get(scheme_of(url)) != "https":
        return url, ""
    try:
        parts = urlsplit(url)
        _ = parts.port  # what is no number may be part of a password
    except ValueError:
        raise OptionError(
            f"{url.partition('://')[0]}://...: expected the URL of a file, such as https://host:8080/run.h5. In a "
            "password, write %2F for a slash, %23 for #, %3F for ?."
        ) from None
    host = parts.netloc.rpartition("@")[2]
    plain = urlunsplit((parts.scheme.lower(), host, parts.path, "", ""))
    return plain, url if (parts.query or host != parts.netloc) else ""


def shown(url: str) -> str:
    """Return a URL for messages, without what may be secret."""
    scheme, _, rest = url.partition("://")
    kind = SCHEMES.get(scheme_of(url))
    if kind == "https" or not scheme_of(url):
        return without_secrets(url)[0]
    is_container = kind == "az" and ":" not in rest.partition("@")[0]  # abfss://container@account
    if not rest.startswith(_ANONYMOUS) and not is_container:
        rest = _USER.sub("", rest)
    if _is_signed(rest):
        rest = rest.partition("?")[0]
    return f"{scheme}://{rest}"


def _is_signed(text: str) -> bool:
    """Return whether a part of a URL has a signature after a question mark."""
    # The names of files that links lead to come here: one pattern for all of it takes the square of their length.
    return any(_SIGNATURE.search(word.partition("?")[2]) for word in text.split())


def check_key(url: str, key: str) -> None:
    """Raise for a name that obstore would change, or cannot send."""
    parts = key.removesuffix("/").split("/")
    if key and ("" in parts or "." in parts or ".." in parts):
        raise OptionError(
            f"{shown(url)}: a name with an empty part, '.' or '..' between slashes cannot be read. Copy the object to "
            "another name."
        )
    if any(ord(character) < 32 or ord(character) == 127 for character in key):
        raise OptionError(f"{shown(url)!r}: a name with a NUL or another control character cannot be read")
    try:
        key.encode()
    except UnicodeEncodeError:
        raise OptionError(f"{shown(url)!r}: names of files in stores are UTF-8, and this one is not") from None


def check_listed(url: str, folder: str, key: str) -> None:
    """Raise for a key that a store lists in a folder, and that is not in it: the user has not asked for it."""
    if not key.startswith(folder):
        raise ReadFailedError(
            f"{shown(url)}: the store lists {key!r}, which is not in that folder. Nothing of the listing is used: read "
            "from another store, or name the files."
        )


def has_magic(text: str) -> bool:
    """Return whether a key is a glob."""
    return bool(_MAGIC.search(text))
