"""The bytes of a file that libhdf5 writes."""

from __future__ import annotations

import io
import os
from typing import Any

from ray_h5.storage.local import read_at, write_at

_MOST_KEPT_BYTES = 64 << 20
_METADATA_BYTES = 64 << 10


class DiskFile(io.RawIOBase):
    """A new file, as h5py takes it. libhdf5 does not see that a write failed.

    If one fails while libhdf5 writes metadata, as on a full disk, it cannot close the file any more, and the process
    crashes when it tries. So what cannot be written stays in memory, and is read from there, until libhdf5 has closed
    the file; `error` says why the file is of no use.

    Parameters
    ----------
    path : str
        The file. There must be none.
    """

    _fd = -1

    def __init__(self, path: str) -> None:
        self.error: OSError | None = None
        """Once there is one, nothing more is written to the disk."""
        self._path = path
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        self._at = self._size = 0
        self._kept: list[tuple[int, bytes]] = []
        self._kept_bytes = 0

    def write(self, data: Any) -> int:
        """Write at the current offset; after an error, keep it in memory."""
        if self.error is None:
            try:
                write_at(self._fd, data, self._at)
            except OSError as exc:
                self.error = exc
        if self.error is not None:
            if self._kept_bytes > _MOST_KEPT_BYTES and len(data) > _METADATA_BYTES:
                raise self.error  # values: libhdf5 can fail to write those
            self._kept.append((self._at, bytes(data)))
            self._kept_bytes += len(data)
        self._at += len(data)
        self._size = max(self._size, self._at)
        return len(data)

    def readinto(self, buffer: Any) -> int:
        """Fill a buffer from the current offset; with zeros past the end."""
        done, buffer = 0, memoryview(buffer)  # a slice of a bytearray would be a copy
        while done < len(buffer) and (more := read_at(self._fd, buffer[done:], self._at + done)):
            done += more
        buffer[done:] = bytes(len(buffer) - done)
        end = self._at + len(buffer)
        for start, data in self._kept:
            first, stop = max(start, self._at), min(start + len(data), end)
            if first < stop:
                buffer[first - self._at : stop - self._at] = data[first - start : stop - start]
        self._at = end
        return len(buffer)

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Set the current offset."""
        self._at = offset + {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._size}[whence]
        return self._at

    def truncate(self, size: int | None = None) -> int:
        """Set the size."""
        size = self._at if size is None else size
        if self.error is None:
            try:
                os.ftruncate(self._fd, size)
            except OSError as exc:
                self.error = exc
        self._size = size
        return size

    def close(self) -> None:
        """Close the file, after libhdf5 did."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __repr__(self) -> str:
        return self._path  # h5py takes it for the name of the file
