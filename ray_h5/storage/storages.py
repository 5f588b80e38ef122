"""Which storage has a file: the local file system, or a store."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol

from ray_h5.errors import OptionError
from ray_h5.storage.addresses import is_url, without_secrets
from ray_h5.storage.byte_source import ByteSource, Identity
from ray_h5.storage.local import LOCAL, absolute_path
from ray_h5.storage.object_store import ObjectStorage
from ray_h5.storage.store_options import StoreOptions


class Storage(Protocol):
    """Where files are. It is a value that can be pickled: connections belong to a process."""

    def identity(self, path: str) -> Identity | None:
        """Return the state that a file has now; None if it does not exist."""

    def check(self, path: str) -> Identity:
        """Return the state of a file that exists and is not empty; raise the error that says what it is."""

    def open(self, path: str, expect: Any) -> ByteSource:
        """Return the bytes of a file that is expected to have a state."""


def storage_for(options: object, paths: Iterable[str]) -> Storage:
    """Return where files are: what `storage_options` say, if one of them is in a store.

    Raises
    ------
    OptionError
        If the options are not for these files.
    """
    urls = [path for path in paths if is_url(path)]
    if not urls:
        if options:
            raise OptionError("storage_options: they are for files in stores, such as s3://bucket/run.h5; found none")
        return LOCAL
    return ObjectStorage(StoreOptions.of(options, urls))


def storage_of(path: str, remote: Storage) -> Storage:
    """Return the storage that has a file; `remote` is that of files with a URL."""
    return remote if is_url(path) else LOCAL


def whole_path(path: str) -> str:
    """Return a path that leads to the same file from any current folder, in any process, and holds no secret."""
    return without_secrets(path)[0] if is_url(path) else absolute_path(path)
