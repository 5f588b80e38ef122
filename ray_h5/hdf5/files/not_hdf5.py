"""Files that libhdf5 does not open, or should not: which format they have, and the errors that say so."""

from __future__ import annotations

import errno
import os
import re

from ray_h5.errors import NotHDF5Error, RayH5Error, StaleIndexError, TruncatedFileError, WriterActiveError
from ray_h5.hdf5.format import SIGNATURE

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


def head_of(path: str) -> bytes:
    """Return the first bytes of a file; none if it cannot be read: the caller reports another error."""
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


def seems_to_be(path: str, head: bytes | None = None) -> str:
    """Return which format a file has that is not HDF5, and what to do; "" if the format is not known.

    `head` is the beginning of a file that cannot be opened by its path.
    """
    head = head_of(path) if head is None else head
    kind = next((what for begins, what in _OTHER_FORMATS if re.match(begins, head, re.IGNORECASE)), "")
    return f". It seems to be {kind}." if kind else ""


def is_of_matlab(path: str, head: bytes | None = None) -> bool:
    """Return whether MATLAB wrote a file: its user block of 512 bytes begins with MATLAB's name.

    `head` is the beginning of a file that cannot be opened by its path.
    """
    return (head_of(path) if head is None else head).startswith(_MATLAB)


def error_of_library(exc: Exception, text: str, path: str, code: int | None) -> RayH5Error | None:
    """Return the `RayH5Error` for an exception of h5py with an error text of libhdf5; None if it is not known here."""
    if isinstance(exc, (FileNotFoundError, PermissionError)):
        return None
    truncated = _TRUNCATED.search(text)
    if _OTHER_DRIVER in text or _FAMILY in head_of(path):
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
        return NotHDF5Error(f"{path}: expected an HDF5 file, found no HDF5 signature in it{seems_to_be(path)}")
    if "st_dev fields changed" in text:
        return StaleIndexError(f"{path}: another file got this name while it was opened. Wait until that is over.")
    if code in {errno.EAGAIN, errno.EACCES} or "already open for write" in text or "consistency flags" in text:
        return WriterActiveError(
            f"{path}: open for writing elsewhere, or its writer died before closing it ({text}). Close the "
            "writer; if there is none, run `h5clear -s` on a copy of the file. What a writer in SWMR mode has flushed "
            "can be read while it writes, with RowReader(..., swmr=True)."
        )
    return None


def check_closed(path: str, head: bytes) -> None:
    """Raise if the writer of a file has not closed it. Of bytes in memory, libhdf5 does not look at that."""
    at = head.find(SIGNATURE)
    version, flags = head[at + 8 : at + 9], head[at + 11 : at + 12]
    if at >= 0 and flags and version[0] >= _FLAGS_VERSION and flags[0] & 1:
        raise WriterActiveError(
            f"{path}: its writer had not closed it when it was copied there, or died before. Copy it again when it is "
            "closed; if there is no writer, run `h5clear -s` on a copy of the file, and copy that."
        )
