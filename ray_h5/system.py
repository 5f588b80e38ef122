"""Calls of the operating system that Linux has and others lack, such as macOS: here alone, with what is done instead.

``fcntl``, ``os.pread``, hard links and ``fork`` are on all systems that this package runs on. The compiled loop asks
for ``posix_fadvise`` when it is compiled. Windows lacks more, and is refused when the package is imported.
"""

from __future__ import annotations

import contextlib
import os
import resource
import sys
import tempfile
import time
from pathlib import Path

PROCESS = "/proc/self"
"""What Linux shows of this process."""


def read_at(fd: int, buffer: bytearray | memoryview, offset: int) -> int:
    """Fill a buffer from an offset of an open file, as far as one call does; return how many bytes it got."""
    if hasattr(os, "preadv"):
        return os.preadv(fd, [buffer], offset)
    data = os.pread(fd, len(buffer), offset)  # macOS before 11: one copy more
    memoryview(buffer)[: len(data)] = data
    return len(data)


def path_of_descriptor(descriptor: int) -> str | None:
    """Return the path without symbolic links of an open file; None where the system does not say."""
    try:
        return str(Path(PROCESS, "fd", str(descriptor)).readlink())
    except OSError:
        return None


def waits_of_thread() -> int:
    """Return how often this thread waited for something so far; more each time where the system does not say."""
    of_thread = getattr(resource, "RUSAGE_THREAD", None)
    return time.monotonic_ns() if of_thread is None else resource.getrusage(of_thread).ru_nvcsw


def resident_bytes() -> int:
    """Return the resident memory of this process; the most that it ever had where the system does not say."""
    try:
        with open(f"{PROCESS}/statm", encoding="ascii") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return most if sys.platform == "darwin" else most * 1024


def max_open_files() -> int | None:
    """Return how many files this process may have open; None if that is not limited."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return None if limit == resource.RLIM_INFINITY else limit


def nameless_file() -> int:
    """Return the descriptor of a new file without a name: in memory where the system has such, else on a disk."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create("ray_h5")
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


def move_to_cpu(number: int) -> None:
    """Move this thread to one of the CPUs that it may use; it may go on to any other. Nothing where that is no call."""
    if hasattr(os, "sched_setaffinity"):
        with contextlib.suppress(OSError):
            allowed = sorted(os.sched_getaffinity(0))
            os.sched_setaffinity(0, {allowed[number % len(allowed)]})
            os.sched_setaffinity(0, allowed)
