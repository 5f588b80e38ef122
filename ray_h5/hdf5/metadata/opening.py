"""Opens a file with libhdf5, and translates the errors of h5py to `RayH5Error`."""

from __future__ import annotations

import contextlib
import errno
import functools
import logging
import re
from collections.abc import Callable, Iterator
from functools import partial

import h5py

from ray_h5.errors import (
    CorruptChunkError,
    CorruptFileError,
    NotHDF5Error,
    RayH5Error,
    TransientIOError,
    TruncatedFileError,
    WriterActiveError,
)
from ray_h5.hdf5.metadata.file_formats import (
    HEAD_BYTES,
    SIGNATURE,
    family_of,
    head_of,
    seems_to_be,
    superblock_end,
)
from ray_h5.hdf5.remote.held_bytes import HeldBytes, open_held
from ray_h5.storage.local import check_regular_file
from ray_h5.storage.os_errors import NO_DESCRIPTOR_ERRNOS, TRANSIENT_ERRNOS, translate_os_error
from ray_h5.storage.storages import Storage

logger = logging.getLogger(__name__)

_FLAGS_VERSION = 3
"""From this version on, the superblock says whether a writer has the file open."""

_NO_LOCKING_ERRNOS = frozenset({errno.ENOLCK, errno.EOPNOTSUPP})


_TRUNCATED = re.compile(r"truncated file: eof = (\d+).*?stored_eof = (\d+)")


_OTHER_DRIVER = "driver should be used"


_ERRNO = re.compile(r"errno = (\d+)")


def open_h5(path: str, swmr: bool = False) -> h5py.File:
    """Open `path` for reading, for a short while.

    While libhdf5 has a file open, it holds a lock on it and refuses to open it in another mode in
    the same process. So the file is closed as soon as its metadata are read.

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
    check_regular_file(path)
    with _whole_superblock(path, lambda: head_of(path)), translated(path):
        try:
            return h5py.File(path, "r", swmr=swmr)
        except OSError as exc:
            if swmr and "SWMR read access flag not the same" in str(exc):
                # This process already has it open without SWMR, so nobody writes to it.
                return open_h5(path)
            if "flag values don't match" in str(exc):
                # This process already has it open with another locking mode.
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


def open_remote(path: str, held: HeldBytes, storage: Storage) -> h5py.File:
    """Open a remote file whose bytes are in memory, for a short while; errors as in `open_h5`.

    It raises `MissingBytes` if not enough of them are: see `replay`. `storage` has the file, and what lies beside it.
    """
    try:
        with _whole_superblock(path, lambda: held.read(0, HEAD_BYTES)), translated(path):
            file = open_held(held, path)
            _check_closed(path, held.read(0, HEAD_BYTES))
            return file
    except (NotHDF5Error, TruncatedFileError, CorruptFileError) as exc:
        may_be_part = not isinstance(exc, CorruptFileError) or _OTHER_DRIVER in str(exc)
        if may_be_part and (whole := family_of(path, partial(_remote_head, storage))):
            raise _part_of(path, whole) from exc
        if isinstance(exc, NotHDF5Error) and (found := seems_to_be(path, held.read(0, HEAD_BYTES))):
            raise NotHDF5Error(f"{exc}{found}") from exc
        raise


def _remote_head(storage: Storage, url: str) -> bytes:
    """Return the first bytes of a file; none if it cannot be read: the caller reports another error."""
    with contextlib.suppress(RayH5Error):
        source = storage.open(url, storage.check(url))
        head = bytearray(min(HEAD_BYTES, source.size))
        source.read_into(0, memoryview(head))
        return bytes(head)
    return b""


@contextlib.contextmanager
def _whole_superblock(path: str, head: Callable[[], bytes]) -> Iterator[None]:
    """Say that a file is cut short if it ends in its superblock: libhdf5 goes on with bytes that were never read."""
    try:
        yield
    except (CorruptFileError, TruncatedFileError) as exc:
        begins = head()
        if len(begins) < (least := superblock_end(begins)):
            raise TruncatedFileError(
                f"{path}: expected {least} bytes or more, found {len(begins)}. The file is cut short: copy it again."
            ) from exc
        raise


def _check_closed(path: str, head: bytes) -> None:
    """Raise if the writer of a file has not closed it. Of bytes in memory, libhdf5 does not look at that."""
    at = head.find(SIGNATURE)
    version, flags = head[at + 8 : at + 9], head[at + 11 : at + 12]
    if at >= 0 and flags and version[0] >= _FLAGS_VERSION and flags[0] & 1:
        raise WriterActiveError(
            f"{path}: its writer had not closed it when it was copied there, or died before. Copy it again when it is "
            "closed; if there is no writer, run `h5clear -s` on a copy of the file, and copy that."
        )


@contextlib.contextmanager
def translated(path: str, doing: str = "opening") -> Iterator[None]:
    """Raise errors of the operating system and of h5py as the `RayH5Error` that names them."""
    try:
        yield
    except RayH5Error:
        raise
    except (OSError, KeyError, RuntimeError, ValueError, TypeError) as exc:
        raise translate(exc, path, doing) from exc


def translate(exc: Exception, path: str, doing: str) -> RayH5Error:
    """Return the `RayH5Error` for an exception of the operating system or of h5py."""
    code = _errno(exc)
    return (
        _translate_h5py_error(exc, path, code)
        or translate_os_error(exc, path, doing, code)
        or CorruptFileError(f"{path}: {doing} failed, its metadata is damaged: {_one_line(exc)}")
    )


def _translate_h5py_error(exc: Exception, path: str, code: int | None) -> RayH5Error | None:
    """Return the `RayH5Error` for an error text of libhdf5; None if the text is not known here."""
    if isinstance(exc, (FileNotFoundError, PermissionError)):
        return None
    text = _one_line(exc)
    truncated = _TRUNCATED.search(text)
    if (truncated or "signature not found" in text or _OTHER_DRIVER in text) and (whole := family_of(path)):
        return _part_of(path, whole)
    if truncated:
        found, expected = truncated.groups()
        return TruncatedFileError(
            f"{path}: expected {expected} bytes, found {found}. The file is cut short: copy it again."
        )
    if "file signature not found" in text:
        return NotHDF5Error(f"{path}: expected an HDF5 file, found no HDF5 signature in it{seems_to_be(path)}")
    if code in {errno.EAGAIN, errno.EACCES} or "already open for write" in text or "consistency flags" in text:
        return WriterActiveError(
            f"{path}: open for writing elsewhere, or its writer died before closing it ({text}). Close the "
            "writer; if there is none, run `h5clear -s` on a copy of the file. What a writer in SWMR mode has flushed "
            "can be read while it writes, with RowReader(..., swmr=True)."
        )
    return None


def _part_of(path: str, whole: str) -> NotHDF5Error:
    return NotHDF5Error(
        f"{path}: expected a whole HDF5 file, found one part of several (libhdf5's family driver). Join them: "
        f"`h5repart -family_to_single {whole} joined.h5`, or open them all in Python with "
        f'h5py.File("{whole}", driver="family", memb_size=0), and copy what they hold into one file.'
    )


def _one_line(exc: Exception) -> str:
    return " ".join(str(exc).split())


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
    if code is None and (found := _ERRNO.search(str(exc))):
        # In a look-up, h5py raises a KeyError for errors of the operating system. Its text has the errno.
        code = int(found.group(1))
    return code
