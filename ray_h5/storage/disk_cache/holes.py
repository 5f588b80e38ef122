"""Gives a part of a file back to the disk: it is a hole afterwards, and reads as zeros."""

from __future__ import annotations

import ctypes
import errno
import os
from functools import cache

__all__ = ["punch"]

_KEEP_SIZE, _PUNCH_HOLE = 1, 2
"""Flags of Linux's fallocate."""


def punch(fd: int, offset: int, nbytes: int) -> int:
    """Make a hole, and return how many bytes of the disk it gave back.

    Raises
    ------
    OSError
        If this system, or the file system, cannot do that: EOPNOTSUPP.
    """
    before = os.fstat(fd).st_blocks
    if _fallocate()(fd, _KEEP_SIZE | _PUNCH_HOLE, offset, nbytes):
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return max(0, before - os.fstat(fd).st_blocks) * 512


@cache
def _fallocate() -> ctypes._NamedFuncPointer:
    # Python has posix_fallocate alone, which makes no holes. The name with 64 is that of 32-bit systems, too.
    library = ctypes.CDLL(None, use_errno=True)
    for name in ("fallocate64", "fallocate"):
        if hasattr(library, name):
            found = getattr(library, name)
            found.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]
            return found
    raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))
