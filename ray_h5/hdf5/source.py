"""Where bytes come from."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Protocol

from ray_h5.errors import TruncatedFileError
from ray_h5.hdf5.layout import FileIdentity
from ray_h5.hdf5.opening import translate

Buffer = memoryview
"""A writable, C-contiguous view of bytes."""


class ByteSource(Protocol):
    """Random access to the bytes of one file, from any thread."""

    def read_into(self, offset: int, buffer: Buffer) -> None:
        """Fill `buffer` with the bytes from `offset` on."""


class LocalFile:
    """A file of this machine, read with ``pread``: no lock, no shared position, no mmap.

    A mapped file that is truncated meanwhile kills the process with SIGBUS; ``pread`` comes back
    short, which is an error with a name.

    Parameters
    ----------
    path : str
        Name for messages.
    fd : int
        An open descriptor; it belongs to this object from now on.
    """

    def __init__(self, path: str, fd: int) -> None:
        self._path = path
        self._fd = fd

    def read_into(self, offset: int, buffer: Buffer) -> None:
        done = self._read(offset, buffer)
        while done < len(buffer):
            more = self._read(offset + done, buffer[done:])
            if more == 0:
                raise TruncatedFileError(
                    f"{self._path}: expected {len(buffer)} bytes at offset {offset}, found {done}; the file "
                    f"now has {os.fstat(self._fd).st_size} bytes. It is cut short: copy it again."
                )
            done += more

    def _read(self, offset: int, buffer: Buffer) -> int:
        try:
            return os.preadv(self._fd, [buffer], offset)
        except OSError as exc:
            raise translate(exc, self._path, f"reading {len(buffer)} bytes at offset {offset}") from exc

    def identity(self) -> FileIdentity:
        return FileIdentity.of(self.stat())

    def stat(self) -> os.stat_result:
        """Return ``os.fstat`` of the descriptor."""
        return os.fstat(self._fd)

    def __del__(self, close: Callable[[int], None] = os.close) -> None:
        # `close` is bound here, for at the exit of the process this module may be cleared before the last file goes.
        try:  # noqa: SIM105  contextlib may be cleared too
            close(self._fd)
        except OSError:
            pass  # closed by code that closes all descriptors, as that of a daemon; a file that was read loses nothing
