"""Opens a file with libhdf5, and translates the errors of h5py to `RayH5Error`."""

from __future__ import annotations

import contextlib
import errno
import functools
import logging
import os
import re
from collections.abc import Iterator
from weakref import WeakValueDictionary

import h5py
import hdf5plugin  # importing it also registers its filters with libhdf5, for columns that h5py reads

from ray_h5.errors import (
    CorruptChunkError,
    CorruptFileError,
    NotHDF5Error,
    RayH5Error,
    TransientIOError,
    TruncatedFileError,
)
from ray_h5.hdf5.files.metadata_replay import HeldBytes, open_held
from ray_h5.hdf5.files.not_hdf5 import HEAD_BYTES, check_closed, error_of_library, head_of, seems_to_be
from ray_h5.hdf5.format import superblock_end
from ray_h5.per_process import PerProcess
from ray_h5.storage.local import check_regular_file
from ray_h5.storage.os_errors import NO_DESCRIPTOR_ERRNOS, TRANSIENT_ERRNOS, translate_os_error

logger = logging.getLogger(__name__)

# It leaves alone the plugins in HDF5_PLUGIN_PATH. `import netCDF4` sets that for child processes, to plugins which call
# a libhdf5 of their own: h5py cannot create datasets with its blosc.
_REGISTERED = hdf5plugin.get_config().registered_filters
hdf5plugin.register([name for name in hdf5plugin.FILTERS if _REGISTERED.get(name) == "unknown"])

_NO_LOCKING_ERRNOS = frozenset({errno.ENOLCK, errno.EOPNOTSUPP})


_ERRNO = re.compile(r"errno = (\d+)")


class _Opened:
    """An open file, and how many threads use it."""

    __slots__ = ("__weakref__", "identifier", "users")

    def __init__(self, identifier: h5py.h5f.FileID) -> None:
        self.identifier, self.users = identifier, 0


class _SharedFile(h5py.File):
    """A file that threads have open together; the last one closes it.

    libhdf5 notes in the type of an open dataset through which open file its texts are read. It renews this note for
    values that are texts or lists, but not for those that have fields or elements of these. If each thread opened the
    file by itself, and the first one closed it, the others would read through a file that is gone, and crash.
    """

    def __init__(self, opened: _Opened) -> None:
        super().__init__(opened.identifier)
        self._opened: _Opened | None = opened
        opened.users += 1

    def close(self) -> None:
        """Close the file, unless another thread uses it."""
        with h5py._objects.phil:
            opened, self._opened = self._opened, None
            if opened is not None:
                opened.users -= 1
                if not opened.users:
                    # Of a damaged file, libhdf5 may find out only now: what was not needed to read it.
                    with translated(self.filename, "closing"):
                        super().close()


_Key = tuple[int, int, bool]

# By device, inode and `swmr`. The lock of h5py guards it: of two locks, threads could each hold one and wait.
_open_now: PerProcess[WeakValueDictionary[_Key, _Opened]] = PerProcess(WeakValueDictionary)


def open_h5(path: str, swmr: bool = False) -> h5py.File:
    """Open `path` for reading, for a short while.

    While libhdf5 has a file open, it holds a lock on it and refuses to open it in another mode in
    the same process. So the file is closed as soon as its metadata are read. Threads that have it open at the same time
    share one open file.

    Parameters
    ----------
    path : str
        The file.
    swmr : bool
        Whether a writer in SWMR mode may have it open.

    Raises
    ------
    RayH5Error
        If it cannot be opened.
    """
    status = check_regular_file(path)
    with _whole_superblock(path), translated(path), h5py._objects.phil:
        opened = _open_now.value.get((status.st_dev, status.st_ino, swmr))
        if opened is None or not opened.users:
            opened = _Opened(_opened_somehow(path, swmr))
            status = os.fstat(opened.identifier.get_vfd_handle())
            _open_now.value[status.st_dev, status.st_ino, swmr] = opened
        return _SharedFile(opened)


def _opened_somehow(path: str, swmr: bool) -> h5py.h5f.FileID:
    """Open a file with the locks and in the mode that the file system and this process allow."""
    try:
        return _opened(path, swmr)
    except OSError as exc:
        if swmr and "SWMR read access flag not the same" in str(exc):
            # This process already has it open without SWMR, so nobody writes to it.
            return _opened_somehow(path, swmr=False)
        if "flag values don't match" in str(exc):
            # This process already has it open with another locking mode.
            return _open_either_way(path, swmr).id
        if _errno(exc) not in _NO_LOCKING_ERRNOS:
            raise
        _log_no_locks(path)
        return h5py.File(path, "r", locking=False, swmr=swmr).id


def _opened(path: str, swmr: bool) -> h5py.h5f.FileID:
    """Open a file as ``h5py.File(path, "r", swmr=swmr)`` does, without making two property lists for each file."""
    flags = h5py.h5f.ACC_RDONLY | (h5py.h5f.ACC_SWMR_READ if swmr else 0)
    return h5py.h5f.open(os.fsencode(path), flags, fapl=_access_properties())


@functools.cache
def _access_properties() -> h5py.h5p.PropFAID:
    properties = h5py.h5p.create(h5py.h5p.FILE_ACCESS)
    properties.set_libver_bounds(h5py.h5f.LIBVER_EARLIEST, h5py.h5f.LIBVER_LATEST)
    return properties


@functools.lru_cache(maxsize=1024)  # once a file
def _log_no_locks(path: str) -> None:
    logger.info("%s: the file system has no locks; opened without", path)


def _open_either_way(path: str, swmr: bool) -> h5py.File:
    for locking in (False, True):
        with contextlib.suppress(OSError):
            return h5py.File(path, "r", locking=locking, swmr=swmr)
    return h5py.File(path, "r", locking="best-effort", swmr=swmr)


def open_remote(path: str, held: HeldBytes) -> h5py.File:
    """Open a remote file whose bytes are in memory, for a short while; errors as in `open_h5`.

    It raises `MissingBytes` if not enough of them are: see `replay`.
    """
    try:
        with _whole_superblock(path, held), translated(path):
            file = open_held(held, path)
            check_closed(path, held.read(0, HEAD_BYTES))
            return file
    except NotHDF5Error as exc:
        if what_it_seems := seems_to_be(path, held.read(0, HEAD_BYTES)):
            raise NotHDF5Error(f"{exc}{what_it_seems}") from exc
        raise


@contextlib.contextmanager
def _whole_superblock(path: str, held: HeldBytes | None = None) -> Iterator[None]:
    """Say that a file is cut short if it ends in its superblock: libhdf5 goes on with bytes that were never read."""
    try:
        yield
    except (CorruptFileError, TruncatedFileError) as exc:
        begins = head_of(path) if held is None else held.read(0, HEAD_BYTES)
        if len(begins) < (least := superblock_end(begins)):
            raise TruncatedFileError(
                f"{path}: expected {least} bytes or more, found {len(begins)}. The file is cut short: copy it again."
            ) from exc
        raise


class translated:  # noqa: N801  a generator takes four times as long, and a file is described with a dozen
    """Raise errors of the operating system and of h5py as the `RayH5Error` that names them."""

    __slots__ = ("_doing", "_path")

    def __init__(self, path: str, doing: str = "opening") -> None:
        self._path, self._doing = path, doing

    def __enter__(self) -> None:
        """Do nothing."""

    def __exit__(self, kind: object, exc: BaseException | None, trace: object) -> None:
        if isinstance(exc, (OSError, KeyError, RuntimeError, ValueError, TypeError)) and not isinstance(
            exc, RayH5Error
        ):
            raise translate(exc, self._path, self._doing) from exc


def translate(exc: Exception, path: str, doing: str) -> RayH5Error:
    """Return the `RayH5Error` for an exception of the operating system or of h5py."""
    code, text = _errno(exc), " ".join(str(exc).split())
    return (
        error_of_library(exc, text, path, code)
        or translate_os_error(exc, path, doing, code)
        or CorruptFileError(f"{path}: {doing} failed, its metadata is damaged: {text}")
    )


def lacks_descriptors(exc: BaseException) -> bool:
    """Return whether an error says that this process may have no more files open."""
    causes = (exc, exc.__cause__)
    return any(cause is not None and _errno(cause) in NO_DESCRIPTOR_ERRNOS for cause in causes)


def is_transient(exc: BaseException, swmr: bool = False) -> bool:
    """Return whether an error may pass.

    With `swmr`, a file may look damaged for a moment: the writer has changed half of something.
    """
    if swmr and isinstance(exc, (CorruptChunkError, CorruptFileError, TruncatedFileError)):
        return True
    return isinstance(exc, TransientIOError) or _errno(exc) in TRANSIENT_ERRNOS


def _errno(exc: BaseException) -> int | None:
    code = getattr(exc, "errno", None)
    if code is None and (match := _ERRNO.search(str(exc))):
        # In a look-up, h5py raises a KeyError for errors of the operating system. Its text has the errno.
        code = int(match.group(1))
    return code
