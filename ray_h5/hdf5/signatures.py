"""What a file is that libhdf5 does not open, from its first bytes."""

from __future__ import annotations

import os
import re

_HEAD_BYTES = 2048

_SEEMS: tuple[tuple[bytes, str], ...] = (
    (rb"CDF[\x01\x02\x05]", "a netCDF-3 file: convert it with `nccopy -k nc4 old.nc new.nc`, or xarray's to_netcdf()"),
    (rb"\x0e\x03\x13\x01", "an HDF4 file: convert it with `h4toh5`"),
    (rb"MATLAB 5\.0", "a MATLAB file older than 7.3: save it in MATLAB with save(..., '-v7.3')"),
    (rb"\x1f\x8b", "compressed by gzip: decompress it with `gunzip`"),
    (rb"PK(\x03\x04|\x05\x06)", "a zip archive, as those of numpy's savez (.npz) and of zipped Zarr are: unpack it"),
    (rb"\x93NUMPY", "a numpy file (.npy): load it with numpy.load(), and write it with h5py"),
    (rb"version https://git-lfs", "a pointer of Git LFS, not the file itself: fetch that with `git lfs pull`"),
    (rb"\s*<(!doctype\s+html|html)", "a web page (HTML), as a failed download leaves one: download the file again"),
)
"""How a file begins, as a regular expression that takes either case, and what it then seems to be."""

_MATLAB = b"MATLAB 7.3"
_FAMILY = b"NCSAfami"
"""In the first of its files it stands in a superblock of version 0 or 1, or in the extension behind a later one."""

_NUMBERED = re.compile(r"(.*?)([0-9]+)([^0-9]*?(?:\.[^.]*)?)", re.DOTALL)
"""A file name, parted around its last number; numbers in its extension do not count."""


def seems(path: str) -> str:
    """Return what a file that is not HDF5 seems to be, and what to do; nothing if that cannot be told."""
    head = _head(path)
    found = next((what for begins, what in _SEEMS if re.match(begins, head, re.IGNORECASE)), "")
    return f". It seems to be {found}." if found else ""


def family_of(path: str) -> str | None:
    """Return the pattern of the names of the files that `path` is one of, if libhdf5's family driver wrote them."""
    folder, name = os.path.split(path)
    if not (numbered := _NUMBERED.fullmatch(name)):
        return None
    before, digits, after = numbered.groups()
    for zero, form in (("0", "%d"), ("0" * len(digits), f"%0{len(digits)}d")):
        # Only the first of them has a signature, and it says so.
        if _FAMILY in _head(os.path.join(folder, before + zero + after)):
            return os.path.join(folder, before + form + after)
    return None


def is_of_matlab(path: str) -> bool:
    """Tell whether MATLAB wrote a file: it then says so in a user block of 512 bytes."""
    return _head(path).startswith(_MATLAB)


def _head(path: str) -> bytes:
    """Return how a file begins; nothing of one that cannot be read, which is not what was asked."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        return os.read(descriptor, _HEAD_BYTES)
    except OSError:
        return b""
    finally:
        os.close(descriptor)
