"""Files of the local file system, and of mounted ones."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from ray_h5.errors import (
    NotFoundError,
    NotHDF5Error,
    NotReadableError,
    OptionError,
    RayH5Error,
    ReadFailedError,
    StaleIndexError,
    TransientIOError,
    TruncatedFileError,
)
from ray_h5.options import require
from ray_h5.storage.addresses import check_slashes, is_url, shown
from ray_h5.storage.byte_source import Buffer, ByteSource, FileIdentity, Identity
from ray_h5.system import path_of_descriptor, read_at

PathLike = str | os.PathLike[str]

TRANSIENT_ERRNOS = frozenset({errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.EINTR})
"""Errors of network file systems that may pass."""

NO_DESCRIPTOR_ERRNOS = frozenset({errno.EMFILE, errno.ENFILE})

_NO_SUCH_FILE_ERRNOS = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG, errno.ELOOP})


def translate_os_error(exc: Exception, path: str, doing: str, code: int | None) -> RayH5Error | None:
    """Return the `RayH5Error` for an error of the operating system; None if it is none.

    Parameters
    ----------
    exc : Exception
        What was raised. h5py raises other types than OSError, too, for errors of the operating system.
    path : str
        The file.
    doing : str
        What failed, such as ``"opening"``.
    code : int, optional
        The errno, if there is one.
    """
    text = " ".join(str(exc).split())
    if isinstance(exc, FileNotFoundError) or code in _NO_SUCH_FILE_ERRNOS:
        return NotFoundError(f"{path}: no such file ({text})")
    if isinstance(exc, PermissionError):
        return NotReadableError(f"{path}: this process may not read it ({text})")
    if code in TRANSIENT_ERRNOS:
        return TransientIOError(f"{path}: {doing} failed: {text}")
    if code in NO_DESCRIPTOR_ERRNOS:
        return ReadFailedError(
            f"{path}: {doing} failed, this process may have no more files open ({text}). Raise the limit "
            "(`ulimit -n`), or close what it holds: each RowReader in use is one."
        )
    if isinstance(exc, OSError) and exc.errno is not None:
        return ReadFailedError(f"{path}: {doing} failed: {text}")
    return None


def os_error(exc: OSError, path: str, doing: str) -> RayH5Error:
    """Return the `RayH5Error` for an error that the operating system raised."""
    return translate_os_error(exc, path, doing, exc.errno) or ReadFailedError(f"{path}: {doing} failed: {exc}")


@contextlib.contextmanager
def translated_os_errors(path: str, doing: str = "opening") -> Iterator[None]:
    """Raise errors of the operating system as the `RayH5Error` that names them."""
    try:
        yield
    except RayH5Error:
        raise
    except OSError as exc:
        raise os_error(exc, path, doing) from exc
    except ValueError as exc:  # a name that no file can have, such as one with a NUL
        raise NotFoundError(f"{path!r}: no such file ({exc})") from exc


def write_at(fd: int, data: Buffer, offset: int) -> None:
    """Write all of a buffer at an offset of an open file."""
    done = 0
    while done < len(data):
        done += os.pwrite(fd, data[done:], offset + done)


class LocalFile(ByteSource):
    """An open file, read with ``pread``: no lock, no shared position, no mmap.

    If a mapped file is truncated meanwhile, SIGBUS kills the process. ``pread`` returns fewer bytes
    instead, which is an error with a name.

    Parameters
    ----------
    path : str
        Name for messages.
    fd : int
        An open descriptor. This object owns it and closes it.
    """

    def __init__(self, path: str, fd: int) -> None:
        self.path = path
        self._fd = fd

    @classmethod
    def open(cls, path: str) -> LocalFile:
        """Open a file for reading."""
        with translated_os_errors(path):
            return cls(path, os.open(path, os.O_RDONLY | os.O_CLOEXEC))

    @property
    def descriptor(self) -> int:
        """The open descriptor, for code that reads many ranges by one call."""
        return self._fd

    def read_into(self, offset: int, buffer: Buffer) -> None:
        """Fill `buffer` with the bytes that begin at `offset`."""
        done = self.read_most(offset, buffer)
        if done < len(buffer):
            raise TruncatedFileError(
                f"{self.path}: expected {len(buffer)} bytes at offset {offset}, found {done}; the file "
                f"now has {os.fstat(self._fd).st_size} bytes. It is cut short: copy it again."
            )

    def read_most(self, offset: int, buffer: Buffer) -> int:
        """Fill `buffer` as far as the file has bytes from `offset`; return how many these are."""
        try:  # not a context manager: reads of small rows would take longer by a tenth
            done = read_at(self._fd, buffer, offset)
            while done < len(buffer) and (more := read_at(self._fd, buffer[done:], offset + done)):
                done += more  # pread may return fewer bytes than asked for
        except OSError as exc:
            raise os_error(exc, self.path, f"reading {len(buffer)} bytes at offset {offset}") from exc
        return done

    @property
    def size(self) -> int:
        return os.fstat(self._fd).st_size

    def identity(self) -> FileIdentity:
        """Return the state that the file has now."""
        return FileIdentity.of(os.fstat(self._fd))

    def __del__(self, close: Callable[[int], None] = os.close) -> None:
        # `close` is bound here: when the process exits, this module may be cleared before the last file is.
        try:  # noqa: SIM105  contextlib may be cleared too
            close(self._fd)
        except OSError:
            pass  # a daemon closes all descriptors of its process; a file that was only read loses nothing


@dataclass(frozen=True, slots=True)
class LocalStorage:
    """The local file system, and mounted ones.

    Attributes
    ----------
    place : str
        What says which store a URL is of, without secrets; empty for a disk.
    opened_at_once : int
        How many files are opened side by side: in a store, each opening waits for requests.
    kept_open : int
        How many files a dataset keeps open: a file in a store needs no descriptor, only memory.
    call_bytes : int
        Bytes that a call of a loader reads at least, so that many requests are in flight; 0 for a disk.
    is_fetched : bool
        Whether files are read by requests, which take long. If not, a path is one that other libraries open.
    """

    place: ClassVar[str] = ""
    opened_at_once: ClassVar[int] = 1
    kept_open: ClassVar[int] = 32
    call_bytes: ClassVar[int] = 0
    is_fetched: ClassVar[bool] = False

    def seen(self, path: str, planned: Identity | None) -> FileIdentity | None:  # noqa: ARG002  it may be another one
        """Return the state that a file has now; None if it does not exist."""
        return identity_now(path)

    def identity(self, path: str) -> FileIdentity | None:
        """Return the state that a file has now; None if it does not exist."""
        return identity_now(path)

    def check(self, path: str) -> FileIdentity:
        """Return the state of a file; raise the error that says why it cannot be a readable HDF5 file."""
        return FileIdentity.of(check_regular_file(path))

    def open(self, path: str, expect: Any) -> LocalFile:  # noqa: ARG002  the caller compares the open file
        """Return the bytes of a file."""
        return LocalFile.open(path)


LOCAL = LocalStorage()


def identity_now(path: str) -> FileIdentity | None:
    """Return the state that a file has now; None if it does not exist."""
    try:  # not a context manager: each read looks at all files that its columns come from
        return FileIdentity.of(os.stat(path))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError):
        with translated_os_errors(path, "looking at it"):
            raise


def real_path_of(descriptor: int, path: str) -> str:
    """Return the path without symbolic links of an open file, which was opened by the name `path`."""
    status = os.fstat(descriptor)
    known = path_of_descriptor(descriptor)
    if known is not None:
        return known if status.st_nlink else known.removesuffix(" (deleted)")
    real = os.path.realpath(path)
    with translated_os_errors(path, "looking at it"):
        if os.path.samestat(os.lstat(real), status):
            return real
    raise StaleIndexError(f"{path}: another file got this name while it was opened. Wait until that is over.")


def check_regular_file(path: str) -> os.stat_result:
    """Return ``os.stat(path)``; raise the error that says why `path` cannot be a readable HDF5 file."""
    if "\0" in path:
        raise OptionError(f"{path!r}: a path cannot contain a NUL character")
    with translated_os_errors(path):
        status = os.stat(path)
    if not stat.S_ISREG(status.st_mode):
        types = {stat.S_IFDIR: "a directory", stat.S_IFIFO: "a pipe", stat.S_IFSOCK: "a socket"}
        raise NotHDF5Error(f"{path}: expected a file, found {types.get(stat.S_IFMT(status.st_mode), 'a device')}")
    if status.st_size == 0:
        raise NotHDF5Error(f"{path}: expected an HDF5 file, found an empty one (0 bytes)")
    return status


def local_folder(option: str, folder: object) -> str:
    """Return the absolute path of a folder that an option names.

    Raises
    ------
    OptionError
        If it is no path, an empty one, or a URL.
    """
    if not isinstance(folder, (str, os.PathLike)):
        raise OptionError(f"{option}={folder!r}: expected a folder, such as '/nvme'")
    path = os.fsdecode(folder)
    # An empty path is the current folder; more often it is a variable that was not set.
    if not path:
        raise OptionError(f"{option}='': expected a folder; '.' is the current one")
    require("://" not in path, option, path, "a folder of the local file system, found a URL")
    check_slashes(path)
    return os.path.abspath(os.path.expanduser(path))


def absolute_path(path: str) -> str:
    """Return a path that leads to the same file from any current folder.

    ``a/../b`` becomes ``b``, unless ``a`` is a symbolic link: ``..`` is then the parent of the folder it leads to.

    Raises
    ------
    OptionError
        If it is a URL.
    """
    if is_url(path):
        raise OptionError(f"{shown(path)}: expected a path of the local file system, found a URL")
    plain = os.path.abspath(path)
    if os.pardir not in path or os.pardir not in Path(path).parts or os.path.realpath(path) == os.path.realpath(plain):
        return plain
    folder, name = os.path.split(path)
    return os.path.join(os.path.realpath(folder), name) if name != os.pardir else os.path.realpath(path)
