"""Which storage has a file: the local file system, or a store."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

from ray_h5.errors import OptionError
from ray_h5.storage.addresses import check_slashes, is_url, without_secrets
from ray_h5.storage.local import LOCAL, LocalStorage, absolute_path
from ray_h5.storage.stores.store_base import InStore

__all__ = ["InStore", "Storage", "storage_for", "storage_of", "whole_path"]

Storage: TypeAlias = LocalStorage | InStore
"""Where files are. It is a value that can be pickled: connections belong to a process."""


def storage_for(options: object, paths: Iterable[str], filesystem: object = None) -> Storage:
    """Return where files are: what `storage_options` say, if one of them is in a store.

    `filesystem` is a remote one, if any.

    Raises
    ------
    OptionError
        If the options are not for these files.
    """
    if filesystem is not None:
        if options:
            raise OptionError(
                "storage_options, cache_dir: filesystem= has options of its own, and no cache here; pass one of them"
            )
        from ray_h5.storage.stores.file_systems import FileSystemStorage  # few need it

        return FileSystemStorage.of(filesystem)
    paths = list(paths)
    for path in paths:
        check_slashes(path)
    urls = [path for path in paths if is_url(path)]
    if not urls:
        if options:
            raise OptionError(
                "storage_options, cache_dir, cache_bytes: they are for files in stores, such as s3://bucket/run.h5; "
                "found none"
            )
        return LOCAL
    from ray_h5.storage.stores.object_store import ObjectStorage
    from ray_h5.storage.stores.options import StoreOptions

    return ObjectStorage(StoreOptions.of(options, urls))


def storage_of(path: str, remote: Storage) -> Storage:
    """Return the storage that has a file; `remote` is that of files with a URL."""
    return remote if remote is LOCAL or is_url(path) else LOCAL


def whole_path(path: str) -> str:
    """Return a path that leads to the same file from any current folder, in any process, and holds no secret."""
    return without_secrets(path)[0] if is_url(path) else absolute_path(path)
