"""Names of other files in a remote file: which file of the same store each of them means."""

from __future__ import annotations

import os
import re

from ray_h5.errors import ExternalDataError, MissingSourceError, OptionError
from ray_h5.messages import printable
from ray_h5.storage.addresses import SCHEMES, Address, is_url, scheme_of, shown, without_secrets
from ray_h5.storage.stores.store_base import InStore

_COPY = (
    "Copy the values into the file (`h5repack`, or h5py's copy() with expand_external=True); or put both files into one"
    " folder of the store, and write the link again with a relative name."
)
_DRIVE = re.compile(r"[A-Za-z]:[\\/]")


def as_remote_root(url: str) -> str:
    """Return a URL that files may be below, without what is secret and without the slash at its end.

    Raises
    ------
    OptionError
        If no file can be below it.
    """
    plain = without_secrets(url)[0].rstrip("/")
    if scheme_of(plain) in SCHEMES:
        # s3a:// is s3://; and a bucket with a key and its secret is refused.
        address = Address.of(plain)
        key = address.key
        plain = address.url(key).rstrip("/")
    else:
        plain = shown(plain).rstrip("/")  # of a file system of fsspec
        key = plain.partition("://")[2].partition("/")[2]
    if key and any(part in {"", ".", ".."} for part in key.split("/")):
        raise OptionError(
            f"allow_external={shown(url)!r}: expected the URL of a folder, found an empty part, '.' or '..' in it"
        )
    return plain


def is_below(address: Address, root: Address) -> bool:
    """Return whether a file is in a folder of the same store, or in one below it."""
    folder = root.key.rstrip("/")
    same = (address.kind, address.root) == (root.kind, root.root)
    return same and (not folder or address.key == folder or address.key.startswith(folder + "/"))


def remote_name(name: str, source: str, *, home: str, where: str, storage: InStore) -> str:
    """Return the URL of the file that a remote file refers to.

    Parameters
    ----------
    name : str
        Its name there: relative to the folder of the file that has it, or a URL.
    source : str
        The file that has the name.
    home : str
        The file that was opened first, for messages.
    where : str
        The link or dataset that has the name, for messages.
    storage : InStore
        The store.

    Raises
    ------
    ExternalDataError
        If it is a local path, of another store, or above the top of the store.
    MissingSourceError
        If no file of a store can have that name.
    """
    begin, here = f"{home}: {where} leads to", storage.address(source)
    if is_url(name):
        return _same_store(name, here, begin, storage)
    if os.path.isabs(name) or "://" in name or _DRIVE.match(name) or name.startswith("\\\\"):
        raise ExternalDataError(
            f"{begin} {printable(name)}, a path of a local disk. A file in a store leads to files of the same store "
            f"only. {_COPY}"
        )
    parts = here.key.split("/")[:-1]
    for part in name.split("/"):
        if part == "..":
            if not parts:
                raise ExternalDataError(
                    f"{begin} {printable(name)}, which is above the top of {here.url('')}. Write the link again with "
                    "a name below it."
                )
            parts.pop()
        elif part not in {"", "."}:
            parts.append(part)
    return _url(here, "/".join(parts), name, begin)


def _same_store(name: str, here: Address, begin: str, storage: InStore) -> str:
    try:
        there = storage.address(without_secrets(name)[0])
    except OptionError:
        there = None
    if there is None or (there.kind, there.root) != (here.kind, here.root):
        raise ExternalDataError(
            f"{begin} {printable(shown(name))}, which is not in {here.url('')}. A file in a store leads to files of "
            f"the same bucket or host only. {_COPY}"
        )
    if any(part in {"", ".", ".."} for part in there.key.split("/")):
        raise ExternalDataError(
            f"{begin} {printable(shown(name))}, a URL with an empty part, '.' or '..' in it. Write the link again with "
            "the URL without them, or with a relative name."
        )
    return _url(here, there.key, name, begin)


def _url(here: Address, key: str, name: str, begin: str) -> str:
    try:
        key.encode()
    except UnicodeEncodeError:
        raise MissingSourceError(
            f"{begin} {printable(name)!r}, a name that is not UTF-8, which no file in a store has"
        ) from None
    if not key:
        raise MissingSourceError(f"{begin} {printable(name)!r}, which is a folder")
    return here.url(key)
