"""Files that are written completely, or not at all, and by one process at a time."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import secrets
import time
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

__all__ = ["lock_within", "written_whole"]


def lock_within(fd: int, seconds: float) -> None:
    """Lock an open file or folder against other processes; raise a TimeoutError if it stays locked for so long."""
    until = time.monotonic() + seconds
    while True:
        try:
            return fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > until:  # such as a process that was stopped by Ctrl-Z
                raise TimeoutError(errno.ETIMEDOUT, "another process holds its lock") from None
            time.sleep(0.001)


@contextlib.contextmanager
def written_whole(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """Yield a file to write to. It gets its name when it is complete; if writing fails, it is removed."""
    # A random name: other threads and hosts may write to the same folder.
    temporary = Path(f"{os.fspath(path)}.{secrets.token_hex(4)}.tmp")
    with open(temporary, "xb") as file:  # what has the name already is not ours, and stays
        try:
            yield file
            file.close()
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)
