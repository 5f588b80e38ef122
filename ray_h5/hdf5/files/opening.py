"""Opens a file with libhdf5, or says why not: which format it has, and what errors of h5py are as `RayH5Error`."""

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
    StaleIndexError,
    TransientIOError,
    TruncatedFileError,
    WriterActiveError,
)
from ray_h5.hdf5.files.metadata_replay import HeldBytes, open_held
from ray_h5.hdf5.format.object_headers import SIGNATURE, superblock_end
from ray_h5.lru import first_time
from ray_h5.per_process import PerProcess
from ray_h5.storage.local import NO_DESCRIPTOR_ERRNOS, TRANSIENT_ERRNOS, check_regular_file, translate_os_error

logger = logging.getLogger(__name__)

# It leaves alone the plugins in HDF5_PLUGIN_PATH. `import netCDF4` sets that for child processes, to plugins which call
# a libhdf5 of their own: h5py cannot create datasets with its blosc.
_REGISTERED = hdf5plugin.get_config().registered_filters
hdf5plugin.register([name for name in hdf5plugin.FILTERS if _REGISTERED.get(name) == "unknown"])

_NO_LOCKING_ERRNOS = frozenset({errno.ENOLCK, errno.EOPNOTSUPP})

_ERRNO = re.compile(r"errno = (\d+)")

HEAD_BYTES = 2048

_OTHER_DRIVER, _FAMILY = "driver should be used", b"NCSAfami"

_TRUNCATED = re.compile(r"truncated file: eof = (\d+).*?stored_eof = (\d+)")

_FLAGS_VERSION = 3
"""From this version on, the superblock says whether a writer has the file open."""

_OTHER_FORMATS: tuple[tuple[bytes, str], ...] = (
    (rb"CDF[\x01\x02\x05]", "a netCDF-3 file: convert it with `nccopy -k nc4 old.nc new.nc`, or xarray's to_netcdf()"),
    (rb"\x0e\x03\x13\x01", "an HDF4 file: convert it with `h4toh5`"),
    (rb"MATLAB 5\.0", "a MATLAB file older than 7.3: save it in MATLAB with save(..., '-v7.3')"),
    (rb"\x1f\x8b", "compressed by gzip: decompress it with `gunzip`"),
    (rb"PK(\x03\x04|\x05\x06)", "a zip archive, as those of numpy's savez (.npz) and of zipped Zarr are: unpack it"),
    (rb"\x93NUMPY", "a numpy file (.npy): load it with numpy.load(), and write it with h5py"),
    (rb"version https://git-lfs", "a pointer of Git LFS, not the file itself: fetch that with `git lfs pull`"),
    (rb"\s*<(!doctype\s+html|html)", "a web page (HTML), as a failed download leaves one: download the file again"),
    (rb"PAR1|[\w \"'./-]+[,;\t][ -~\t]*\r?\n", "a table: pass one of labels as sidecar=Sidecar('labels.csv', on=...)"),
)
"""How files of other formats begin (a regular expression, any case), and what to do with them."""

_MATLAB = b"MATLAB 7.3"


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
            opened = _Opened(_opened(path, swmr))
            status = os.fstat(opened.identifier.get_vfd_handle())
            _open_now.value[status.st_dev, status.st_ino, swmr] = opened
        return _SharedFile(opened)


def _opened(path: str, swmr: bool) -> h5py.h5f.FileID:
    """Open a file with the locks and in the mode that the file system and this process allow."""
    flags = h5py.h5f.ACC_RDONLY | (h5py.h5f.ACC_SWMR_READ if swmr else 0)
    try:
        # As h5py.File(path, "r", swmr=swmr) does, without making two property lists for each file.
        return h5py.h5f.open(os.fsencode(path), flags, fapl=_access_properties())
    except OSError as exc:
        if swmr and "SWMR read access flag not the same" in str(exc):
            # This process already has it open without SWMR, so nobody writes to it.
            return _opened(path, swmr=False)
        if "flag values don't match" in str(exc):
            # This process already has it open with another locking mode.
            for locking in (False, True):
                with contextlib.suppress(OSError):
                    return h5py.File(path, "r", locking=locking, swmr=swmr).id
            return h5py.File(path, "r", locking="best-effort", swmr=swmr).id
        if _errno(exc) not in _NO_LOCKING_ERRNOS:
            raise
        if first_time("no locks", path):
            logger.info("%s: the file system has no locks; opened without", path)
        return h5py.File(path, "r", locking=False, swmr=swmr).id


@functools.cache
def _access_properties() -> h5py.h5p.PropFAID:
    properties = h5py.h5p.create(h5py.h5p.FILE_ACCESS)
    properties.set_libver_bounds(h5py.h5f.LIBVER_EARLIEST, h5py.h5f.LIBVER_LATEST)
    return properties


def open_remote(path: str, held: HeldBytes) -> h5py.File:
    """Open a remote file whose bytes are in memory, for a short while; errors as in `open_h5`.

    It raises `MissingBytes` if not enough of them are: see `replay`.
    """
    with _whole_superblock(path, held), translated(path, held=held):
        file, head = open_held(held, path), held.read(0, HEAD_BYTES)
        # Of bytes in memory, libhdf5 does not look at whether the writer has closed the file.
        at = head.find(SIGNATURE)
        version, flags = head[at + 8 : at + 9], head[at + 11 : at + 12]
        if at >= 0 and flags and version[0] >= _FLAGS_VERSION and flags[0] & 1:
            raise WriterActiveError(
                f"{path}: its writer had not closed it when it was copied there, or died before. Copy it again when "
                "it is closed; if there is no writer, run `h5clear -s` on a copy of the file, and copy that."
            )
        return file


@contextlib.contextmanager
def _whole_superblock(path: str, held: HeldBytes | None = None) -> Iterator[None]:
    """Say that a file is cut short if it ends in its superblock: libhdf5 goes on with bytes that were never read."""
    try:
        yield
    except (CorruptFileError, TruncatedFileError) as exc:
        begins = _head_of(path, held)
        if len(begins) < (least := superblock_end(begins)):
            raise TruncatedFileError(
                f"{path}: expected {least} bytes or more, found {len(begins)}. The file is cut short: copy it again."
            ) from exc
        raise


class translated:  # noqa: N801  a generator takes four times as long, and a file is described with a dozen
    """Raise errors of the operating system and of h5py as the `RayH5Error` that names them."""

    __slots__ = ("_doing", "_held", "_path")

    def __init__(self, path: str, doing: str = "opening", held: HeldBytes | None = None) -> None:
        self._path, self._doing, self._held = path, doing, held

    def __enter__(self) -> None:
        """Do nothing."""

    def __exit__(self, kind: object, exc: BaseException | None, trace: object) -> None:
        kinds = OSError, KeyError, RuntimeError, ValueError, TypeError
        if isinstance(exc, kinds) and not (isinstance(exc, RayH5Error) or _is_own_key(exc)):
            code, text = _errno(exc), " ".join(str(exc).split())
            raise (
                _error_of_library(exc, text, self._path, code, self._held)
                or translate_os_error(exc, self._path, self._doing, code)
                or CorruptFileError(f"{self._path}: {self._doing} failed, its metadata is damaged: {text}")
            ) from exc


def _is_own_key(exc: BaseException) -> bool:
    """Return whether a key is missing in a dict of this package: that is no damage of the file."""
    trace = exc.__traceback__ if isinstance(exc, KeyError) else None
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return trace is not None and str(trace.tb_frame.f_globals.get("__name__", "")).split(".")[0] == "ray_h5"


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


# Files that libhdf5 does not open ---------------------------------------------------------


def _head_of(path: str, held: HeldBytes | None = None) -> bytes:
    """Return the first bytes of a file; none if it cannot be read: the caller reports another error."""
    if held is not None:
        return held.read(0, HEAD_BYTES)
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # a pipe would block for ever
    except OSError:
        return b""
    try:
        return os.read(descriptor, HEAD_BYTES)
    except OSError:
        return b""
    finally:
        os.close(descriptor)


def is_of_matlab(path: str, head: bytes | None = None) -> bool:
    """Return whether MATLAB wrote a file: its user block of 512 bytes begins with MATLAB's name.

    `head` is the beginning of a file that cannot be opened by its path.
    """
    return (_head_of(path) if head is None else head).startswith(_MATLAB)


def _error_of_library(
    exc: Exception, text: str, path: str, code: int | None, held: HeldBytes | None
) -> RayH5Error | None:
    """Return the `RayH5Error` for an exception of h5py with an error text of libhdf5; None if it is not known here."""
    if isinstance(exc, (FileNotFoundError, PermissionError)):
        return None
    truncated = _TRUNCATED.search(text)
    if _OTHER_DRIVER in text or _FAMILY in _head_of(path, held):
        return NotHDF5Error(
            f"{path}: expected a whole HDF5 file, found one part of several (libhdf5's family driver). Join them with "
            "`h5repart -family_to_single PATTERN joined.h5`, where PATTERN has %d for their numbers."
        )
    if truncated:
        size, expected = truncated.groups()
        return TruncatedFileError(
            f"{path}: expected {expected} bytes, found {size}. The file is cut short: copy it again."
        )
    if "file signature not found" in text:
        head = _head_of(path, held)
        kind = next((what for begins, what in _OTHER_FORMATS if re.match(begins, head, re.IGNORECASE)), "")
        seems = f". It seems to be {kind}." if kind else ""
        return NotHDF5Error(f"{path}: expected an HDF5 file, found no HDF5 signature in it{seems}")
    if "st_dev fields changed" in text:
        return StaleIndexError(f"{path}: another file got this name while it was opened. Wait until that is over.")
    if code in {errno.EAGAIN, errno.EACCES} or "already open for write" in text or "consistency flags" in text:
        return WriterActiveError(
            f"{path}: open for writing elsewhere, or its writer died before closing it ({text}). Close the "
            "writer; if there is none, run `h5clear -s` on a copy of the file. What a writer in SWMR mode has flushed "
            "can be read while it writes, with RowReader(..., swmr=True)."
        )
    return None
