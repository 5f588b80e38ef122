"""Open a file with libhdf5, and say in our own words what goes wrong."""

from __future__ import annotations

import contextlib
import errno
import functools
import logging
import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path

import h5py

from ray_h5.errors import (
    CorruptChunkError,
    CorruptFileError,
    NotFoundError,
    NotHDF5Error,
    NotReadableError,
    OptionError,
    RayH5Error,
    ReadFailedError,
    TransientIOError,
    TruncatedFileError,
    WriterActiveError,
)
from ray_h5.hdf5.signatures import family_of, seems

logger = logging.getLogger(__name__)

TRANSIENT_ERRNOS = frozenset({errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.EINTR})
"""Errors that network file systems give for a while and then give no more."""

_NO_SUCH_FILE_ERRNOS = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG, errno.ELOOP})
_NO_DESCRIPTOR_ERRNOS = frozenset({errno.EMFILE, errno.ENFILE})
_NO_LOCKING_ERRNOS = frozenset({errno.ENOLCK, errno.EOPNOTSUPP})
_TRUNCATED = re.compile(r"truncated file: eof = (\d+).*?stored_eof = (\d+)")
_ERRNO = re.compile(r"errno = (\d+)")


def absolute_path(path: str) -> str:
    """Return a path that leads to the same place from any current folder.

    A ``..`` is taken out by its letters where that leads there, and not behind a symbolic link, where it may not.
    """
    plain = os.path.abspath(path)
    if os.pardir not in Path(path).parts or os.path.realpath(path) == os.path.realpath(plain):
        return plain
    folder, name = os.path.split(path)
    return os.path.join(os.path.realpath(folder), name) if name != os.pardir else os.path.realpath(path)


def open_h5(path: str, swmr: bool = False) -> h5py.File:
    """Open `path` for reading, for a short while.

    As long as libhdf5 has a file open it keeps a lock on it, and refuses to open it in another
    mode in the same process. So the file is closed again as soon as its metadata are read.

    Parameters
    ----------
    path : str
        The file.
    swmr : bool
        Whether a writer in SWMR mode may have it open.

    Raises
    ------
    RayH5Error
        The leaf that names the trouble.
    """
    check_regular_file(path)
    with translated(path):
        try:
            return h5py.File(path, "r", swmr=swmr)
        except OSError as exc:
            if swmr and "SWMR read access flag not the same" in str(exc):
                # This process has it open already, without; nobody writes to it then.
                return open_h5(path)
            if "flag values don't match" in str(exc):
                # This process has it open already, with another locking mode.
                return _open_either_way(path, swmr)
            if _errno(exc) not in _NO_LOCKING_ERRNOS:
                raise
            _log_no_locks(path)
            return h5py.File(path, "r", locking=False, swmr=swmr)


@functools.lru_cache(maxsize=1024)  # once a file
def _log_no_locks(path: str) -> None:
    logger.info("%s: the file system has no locks; opened without", path)


def _open_either_way(path: str, swmr: bool) -> h5py.File:
    try:
        return h5py.File(path, "r", locking=False, swmr=swmr)
    except OSError:
        try:
            return h5py.File(path, "r", locking=True, swmr=swmr)
        except OSError:
            return h5py.File(path, "r", locking="best-effort", swmr=swmr)


def check_regular_file(path: str) -> os.stat_result:
    """Return ``os.stat(path)``, or raise what keeps `path` from being a readable HDF5 file."""
    if "\0" in path:
        raise OptionError(f"{path!r}: a path cannot contain a NUL character")
    with translated(path):
        found = os.stat(path)
    if not stat.S_ISREG(found.st_mode):
        raise NotHDF5Error(f"{path}: expected a file, found {_file_type(found.st_mode)}")
    if found.st_size == 0:
        raise NotHDF5Error(f"{path}: expected an HDF5 file, found an empty one (0 bytes)")
    return found


@contextlib.contextmanager
def translated(path: str, doing: str = "opening") -> Iterator[None]:
    """Turn what the operating system and h5py raise into the `RayH5Error` that names it."""
    try:
        yield
    except RayH5Error:
        raise
    except (OSError, KeyError, RuntimeError, ValueError, TypeError) as exc:
        raise translate(exc, path, doing) from exc


def translate(exc: Exception, path: str, doing: str) -> RayH5Error:
    """Return the `RayH5Error` that names what an exception of the operating system or of h5py says."""
    text = " ".join(str(exc).split())
    code = _errno(exc)
    if isinstance(exc, FileNotFoundError) or code in _NO_SUCH_FILE_ERRNOS:
        return NotFoundError(f"{path}: no such file ({text})")
    if isinstance(exc, PermissionError):
        return NotReadableError(f"{path}: this process may not read it ({text})")
    truncated = _TRUNCATED.search(text)
    if (truncated or "signature not found" in text or "driver should be used" in text) and (whole := family_of(path)):
        return NotHDF5Error(
            f"{path}: expected a whole HDF5 file, found one part of several (libhdf5's family driver). Join them: "
            f"`h5repart -family_to_single {whole} joined.h5`, or open them all in Python with "
            f'h5py.File("{whole}", driver="family", memb_size=0), and copy what they hold into one file.'
        )
    if truncated:
        found, expected = truncated.groups()
        return TruncatedFileError(
            f"{path}: expected {expected} bytes, found {found}. The file is cut short: copy it again."
        )
    if "file signature not found" in text:
        return NotHDF5Error(f"{path}: expected an HDF5 file, found no HDF5 signature in it{seems(path)}")
    if code in {errno.EAGAIN, errno.EACCES} or "already open for write" in text or "consistency flags" in text:
        return WriterActiveError(
            f"{path}: open for writing elsewhere, or its writer died before closing it ({text}). Close the "
            "writer; if there is none, run `h5clear -s` on a copy of the file. What a writer in SWMR mode has flushed "
            "can be read while it writes, with RowReader(..., swmr=True)."
        )
    if code in TRANSIENT_ERRNOS:
        return TransientIOError(f"{path}: {doing} failed: {text}")
    if code in _NO_DESCRIPTOR_ERRNOS:
        return ReadFailedError(
            f"{path}: {doing} failed, this process may have no more files open ({text}). Raise the limit "
            "(`ulimit -n`), or close what it holds: each RowReader in use is one."
        )
    if isinstance(exc, OSError) and exc.errno is not None:
        return ReadFailedError(f"{path}: {doing} failed: {text}")
    return CorruptFileError(f"{path}: {doing} failed, its metadata is damaged: {text}")


def lacks_descriptors(exc: BaseException) -> bool:
    """Tell whether an error is that this process may have no more files open."""
    causes = (exc, exc.__cause__)
    return any(cause is not None and _errno(cause) in _NO_DESCRIPTOR_ERRNOS for cause in causes)


def is_transient(exc: BaseException, swmr: bool = False) -> bool:
    """Tell whether an error is one that may pass.

    With `swmr`, what a writer is just changing may look damaged: half of it is old, half is new.
    """
    if swmr and isinstance(exc, (CorruptChunkError, CorruptFileError, TruncatedFileError)):
        return True
    return isinstance(exc, TransientIOError) or _errno(exc) in TRANSIENT_ERRNOS


def _errno(exc: BaseException) -> int | None:
    code = getattr(exc, "errno", None)
    if code is None and (found := _ERRNO.search(str(exc))):
        # Inside a look-up h5py reports an operating system error as a KeyError that only quotes it.
        code = int(found.group(1))
    return code


def _file_type(mode: int) -> str:
    names = {stat.S_IFDIR: "a directory", stat.S_IFIFO: "a pipe", stat.S_IFSOCK: "a socket"}
    return names.get(stat.S_IFMT(mode), "a device")
