"""Remote file systems of fsspec and pyarrow, as users pass them in `filesystem`: a plain adapter.

They have no request that names the state that it wants. So the state is asked for before and after each read.
"""

from __future__ import annotations

import os
import posixpath
from dataclasses import dataclass, field
from typing import Any, ClassVar

from pyarrow.fs import (
    FileSelector,
    FileSystem,
    FileType,
    FSSpecHandler,
    LocalFileSystem,
    PyFileSystem,
    SubTreeFileSystem,
)

from ray_h5.errors import OptionError
from ray_h5.storage.addresses import Address, check_listed, scheme_of
from ray_h5.storage.byte_source import ObjectIdentity
from ray_h5.storage.stores.object_store import check_fork
from ray_h5.storage.stores.store_base import Found, InStore

_TIMES = ("LastModified", "last_modified", "mtime", "updated", "created")


def local_root(filesystem: Any) -> str:
    """Return the folder that relative paths start from; an empty path for the current folder."""
    if filesystem is None or isinstance(filesystem, LocalFileSystem):
        return ""
    if isinstance(filesystem, SubTreeFileSystem):
        return _below(local_root(filesystem.base_fs), filesystem.base_path)
    if isinstance(filesystem, PyFileSystem) and isinstance(filesystem.handler, FSSpecHandler):
        return local_root(filesystem.handler.fs)
    protocols = getattr(filesystem, "protocol", ())  # of fsspec: a name, or a tuple of names
    protocols = [protocols] if isinstance(protocols, str) else protocols
    if "file" in protocols:
        return ""
    if "dir" in protocols:
        return _below(local_root(filesystem.fs), filesystem.path)
    raise OptionError(f"filesystem={filesystem!r}: expected a local one, or a file system of fsspec or pyarrow")


def remote_filesystem(filesystem: Any) -> Any:
    """Return a file system of fsspec or pyarrow that is not local; None for another one."""
    if isinstance(filesystem, type):
        name = filesystem.__name__
        raise OptionError(f"filesystem={name}: expected a file system, found a class; write {name}(...)")
    if filesystem is None or not (isinstance(filesystem, FileSystem) or hasattr(filesystem, "cat_file")):
        return None
    try:
        local_root(filesystem)
    except OptionError:
        return filesystem
    return None


def _below(root: str, folder: str) -> str:
    return os.path.join(root, folder.lstrip("/")) if root else folder


class _Arrow:
    """The calls of a pyarrow file system that are needed."""

    def __init__(self, filesystem: FileSystem) -> None:
        self._fs = filesystem

    def info(self, path: str) -> ObjectIdentity | None:
        entry = self._fs.get_file_info(path)
        return _identity("", entry.size, entry.mtime_ns) if entry.type == FileType.File else None

    def list(self, path: str, *, below: bool) -> tuple[dict[str, ObjectIdentity], list[str]]:
        infos = self._fs.get_file_info(FileSelector(path, allow_not_found=True, recursive=below))
        files = {info.path: _identity("", info.size, info.mtime_ns) for info in infos if info.type == FileType.File}
        return files, [info.path for info in infos if info.type == FileType.Directory]

    def read_at(self, path: str, offset: int, nbytes: int) -> bytes:
        with self._fs.open_input_file(path) as file:
            return file.read_at(nbytes, offset)


class _FSSpec:
    """The calls of an fsspec file system that are needed."""

    def __init__(self, filesystem: Any) -> None:
        self._fs = filesystem

    def info(self, path: str) -> ObjectIdentity | None:
        self._fs.invalidate_cache(posixpath.dirname(path))
        try:
            entry = self._fs.info(path)
        except FileNotFoundError:
            return None
        return _state(entry) if entry["type"] == "file" else None

    def list(self, path: str, *, below: bool) -> tuple[dict[str, ObjectIdentity], list[str]]:
        self._fs.invalidate_cache(path)
        try:
            infos = (
                self._fs.find(path, detail=True)
                if below
                else {info["name"]: info for info in self._fs.ls(path, detail=True)}
            )
        except FileNotFoundError:
            return {}, []
        files = {name: _state(info) for name, info in infos.items() if info["type"] == "file"}
        return files, [name for name, info in infos.items() if info["type"] == "directory"]

    def read_at(self, path: str, offset: int, nbytes: int) -> bytes:
        return bytes(self._fs.cat_file(path, start=offset, end=offset + nbytes))


def _state(info: dict[str, Any]) -> ObjectIdentity:
    etag = info.get("ETag") or info.get("etag") or ""
    return _identity(str(etag), info["size"], next((info[name] for name in _TIMES if info.get(name)), None))


def _identity(etag: str, size: Any, changed: Any) -> ObjectIdentity:
    if etag:
        return ObjectIdentity(etag, int(size))
    if hasattr(changed, "timestamp"):
        changed = changed.timestamp() * 1e9
    elif isinstance(changed, float):
        changed *= 1e9
    return ObjectIdentity("", int(size), round(changed) if isinstance(changed, (int, float)) else 0)


@dataclass(frozen=True, slots=True)
class FileSystemStorage(InStore):
    """Files of a remote file system.

    Attributes
    ----------
    filesystem : object
        As the user passed it. It is pickled by its own means.
    protocol : str
        Its name, which begins the URLs of its files.
    """

    reads_notice_changes: ClassVar[bool] = False
    filesystem: Any = field(repr=False, hash=False)  # those of pyarrow have no hash
    protocol: str

    @classmethod
    def of(cls, filesystem: Any) -> FileSystemStorage:
        """Return the storage for a file system of fsspec or pyarrow."""
        if isinstance(filesystem, PyFileSystem) and isinstance(filesystem.handler, FSSpecHandler):
            filesystem = filesystem.handler.fs
        name = filesystem.type_name if isinstance(filesystem, FileSystem) else filesystem.protocol
        return cls(filesystem, str(name if isinstance(name, str) else name[0]).replace("::", "."))

    @property
    def place(self) -> str:
        return self.protocol

    def url(self, path: str) -> str:
        """Return the URL that stands for a path of the file system."""
        return path if scheme_of(path) else f"{self.protocol}://{path.lstrip('/')}"

    def address(self, url: str) -> Address:
        root, _, key = url.partition("://")[2].partition("/")
        return Address(self.protocol, root, key)

    def look(self, url: str) -> ObjectIdentity | None:
        return self._calls.info(self._path(url))

    def entries(self, url: str, *, below: bool) -> tuple[list[Found], list[str]]:
        folder = self._path(url).rstrip("/")
        listed, folders = self._calls.list(folder, below=below)
        files = {self.url(self._named(path)): state for path, state in listed.items()}
        others = [self.url(self._named(path)) for path in folders]
        for name in (*files, *others):
            check_listed(url, self.url(folder) + ("/" if folder else ""), name)
        there = [Found(name, self.address(name).key, state) for name, state in files.items()]
        return there, [self.address(name).key for name in others]

    def read(self, url: str, expect: ObjectIdentity, offset: int, nbytes: int) -> bytes:  # noqa: ARG002
        """Return bytes of a file in the state that it has."""
        return self._calls.read_at(self._path(url), offset, nbytes)

    @property
    def _calls(self) -> _Arrow | _FSSpec:
        if getattr(self.filesystem, "async_impl", False):  # its event loop is in a thread, which a fork does not have
            check_fork()
        return _Arrow(self.filesystem) if isinstance(self.filesystem, FileSystem) else _FSSpec(self.filesystem)

    def _named(self, path: str) -> str:
        return path if isinstance(self.filesystem, FileSystem) else str(self.filesystem._strip_protocol(path))

    def _path(self, url: str) -> str:
        if self.protocol in {"http", "https"}:  # paths of these are URLs
            return url
        path = url.partition("://")[2]
        return path if isinstance(self.filesystem, FileSystem) else str(self.filesystem._strip_protocol(path))
