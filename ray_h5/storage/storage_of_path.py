"""Which storage has a file: the local file system, or a store."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from ray_h5.errors import OptionError
from ray_h5.storage.addresses import Address, check_slashes, is_url, without_secrets
from ray_h5.storage.byte_source import ByteSource, Identity
from ray_h5.storage.local import LOCAL, absolute_path

if TYPE_CHECKING:
    from ray_h5.storage.stores.object_store import Found


class Storage(Protocol):
    """Where files are. It is a value that can be pickled: connections belong to a process."""

    @property
    def place(self) -> str:
        """What says which store a URL is of, without secrets; empty for a disk."""

    @property
    def opened_at_once(self) -> int:
        """How many files are opened side by side: in a store, each opening waits for requests."""

    @property
    def kept_open(self) -> int:
        """How many files a dataset keeps open: a file in a store needs no descriptor, only memory."""

    @property
    def call_bytes(self) -> int:
        """Bytes that a call of a loader reads at least, so that many requests are in flight; 0 for a disk."""

    @property
    def is_fetched(self) -> bool:
        """Whether files are read by requests, which take long. If not, a path is one that other libraries open."""

    @property
    def has_writers(self) -> bool:
        """Whether a program may add rows to a file while it is read."""

    def seen(self, path: str, planned: Identity | None) -> Identity | None:
        """Return the state of a file to compare with a plan: the one it has now, unless each read says which it wants.

        None if it does not exist.
        """

    def identity(self, path: str) -> Identity | None:
        """Return the state that a file has now; None if it does not exist."""

    def check(self, path: str) -> Identity:
        """Return the state of a file that exists and is not empty; raise the error that says what it is."""

    def open(self, path: str, expect: Any) -> ByteSource:
        """Return the bytes of a file that is expected to have a state."""

    def real_path(self, path: str) -> str:
        """Return the one name that a file has under all of its names."""


@runtime_checkable
class RemoteStorage(Storage, Protocol):
    """A storage of files with URLs, which are listed."""

    def address(self, url: str) -> Address:
        """Return the parts of a URL."""

    def list(self, url: str, *, below: bool) -> tuple[list[Found], list[str]]:
        """Return the files in a folder, and the keys of the folders in it; with `below`, all files below it."""


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
