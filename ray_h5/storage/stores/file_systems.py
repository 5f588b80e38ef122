"""Remote file systems of fsspec and pyarrow, as users pass them in `filesystem`: a plain adapter.

They have no request that names the state that it wants. So the state is asked for before and after each read.
"""

from __future__ import annotations

import contextlib
import os
import posixpath
import sys
from dataclasses import dataclass, field
from typing import Any, ClassVar

from pyarrow.fs import (
    FileInfo,
    FileSelector,
    FileSystem,
    FileType,
    FSSpecHandler,
    LocalFileSystem,
    PyFileSystem,
    SubTreeFileSystem,
)

from ray_h5.errors import OptionError, ReadFailedError
from ray_h5.storage.addresses import StoreAddress, check_listed, scheme_of, shown
from ray_h5.storage.byte_source import ObjectIdentity
from ray_h5.storage.stores.object_store import check_fork
from ray_h5.storage.stores.store_base import Found, InStore

_WHOLE, _PART = 200, 206
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


def _state(info: FileInfo | dict[str, Any]) -> ObjectIdentity:
    """Return the state of a file: its size, and its ETag; without one, the time of its last change."""
    if isinstance(info, FileInfo):
        return ObjectIdentity("", info.size, info.mtime_ns or 0)
    if etag := info.get("ETag") or info.get("etag"):
        return ObjectIdentity(str(etag), int(info["size"]))
    changed: Any = next((info[name] for name in _TIMES if info.get(name)), None)
    if hasattr(changed, "timestamp"):
        changed = changed.timestamp() * 1e9
    elif isinstance(changed, float):
        changed *= 1e9
    return ObjectIdentity("", int(info["size"]), round(changed) if isinstance(changed, (int, float)) else 0)


def _check_range(url: str, expect: ObjectIdentity, offset: int, nbytes: int, answer: Any) -> None:
    """Raise if a server says that it sends other bytes than those that were asked for."""
    if answer.status == _WHOLE and nbytes != expect.size:
        raise ReadFailedError(
            f"{shown(url)}: the server ignores ranges and sends the whole file. Copy the files to a store or server "
            "that answers range requests."
        )
    said, asked = answer.headers.get("Content-Range", ""), f"bytes {offset}-{offset + nbytes - 1}/"
    if answer.status == _PART and said not in {f"{asked}{expect.size}", f"{asked}*"}:
        raise ReadFailedError(
            f"{shown(url)}: the server sent another range than was asked for: expected {asked}{expect.size}, found "
            f"{said or 'none'}. Read from another server."
        )


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

    def address(self, url: str) -> StoreAddress:
        root, _, key = url.partition("://")[2].partition("/")
        return StoreAddress(self.protocol, root, key)

    def look(self, url: str) -> ObjectIdentity | None:
        filesystem, path = self._usable(), self._path(url)
        if isinstance(filesystem, FileSystem):
            info = filesystem.get_file_info(path)
            return _state(info) if info.type == FileType.File else None
        filesystem.invalidate_cache(posixpath.dirname(path))
        with contextlib.suppress(FileNotFoundError):
            info = filesystem.info(path)
            return _state(info) if info["type"] == "file" else None
        return None

    def entries(self, url: str, *, below: bool) -> tuple[list[Found], list[str]]:
        filesystem, folder = self._usable(), self._path(url).rstrip("/")
        if isinstance(filesystem, FileSystem):
            listed = filesystem.get_file_info(FileSelector(folder, allow_not_found=True, recursive=below))
            infos = [(info.path, info, info.type) for info in listed]
        else:
            filesystem.invalidate_cache(folder)
            try:
                named = (
                    filesystem.find(folder, detail=True).items()
                    if below
                    else [(info["name"], info) for info in filesystem.ls(folder, detail=True)]
                )
            except FileNotFoundError:
                named = []
            infos = [(str(filesystem._strip_protocol(name)), info, info["type"]) for name, info in named]
        files = {self.url(path): _state(info) for path, info, type_ in infos if type_ in {"file", FileType.File}}
        folders = [self.url(path) for path, _, type_ in infos if type_ in {"directory", FileType.Directory}]
        for name in (*files, *folders):
            check_listed(url, self.url(folder) + ("/" if folder else ""), name)
        return [Found(name, self.address(name).key, state) for name, state in files.items()], [
            self.address(name).key for name in folders
        ]

    def read(self, url: str, expect: ObjectIdentity, offset: int, nbytes: int) -> bytes:
        """Return bytes of a file in the state that it has."""
        filesystem, path = self._usable(), self._path(url)
        if isinstance(filesystem, FileSystem):
            with filesystem.open_input_file(path) as file:
                return file.read_at(nbytes, offset)
        more: dict[str, Any] = {}
        http = sys.modules.get("fsspec.implementations.http")
        if http is not None and isinstance(filesystem, http.HTTPFileSystem):
            # It takes whatever bytes come. aiohttp calls this with each answer, before its body is read.
            async def check(answer: Any) -> None:
                _check_range(url, expect, offset, nbytes, answer)

            more["raise_for_status"] = check
        return bytes(filesystem.cat_file(path, start=offset, end=offset + nbytes, **more))

    def _usable(self) -> Any:
        """Return the file system, if this process can use it."""
        if getattr(self.filesystem, "async_impl", False):  # its event loop is in a thread, which a fork does not have
            check_fork()
        return self.filesystem

    def _path(self, url: str) -> str:
        if self.protocol in {"http", "https"}:  # paths of these are URLs
            return url
        path = url.partition("://")[2]
        return path if isinstance(self.filesystem, FileSystem) else str(self.filesystem._strip_protocol(path))
