"""A file of the cache: one state of one remote file.

It holds a head, a record for each block of 16 KiB, and the blocks at their offsets, with holes where nothing is cached.
A record holds the CRC of its block, and a block counts only if its bytes have that CRC. So readers need no lock; and a
crash, a full disk or another process that writes meanwhile leaves a block that is fetched again, never a wrong one.
"""

from __future__ import annotations

import contextlib
import os
import struct
import threading
import time
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np

from ray_h5.storage.local import read_at

__all__ = ["BLOCK_BYTES", "BlockFile", "Descriptor", "crcs_of", "dataset_of", "on_disk", "runs"]

BLOCK_BYTES = 16 << 10
"""Small, because a row that is read alone is fetched with the rest of its first and its last block."""

_HEAD = struct.Struct("<8sIIQ104sQ")
_DATASET_AT = 128
_MAGIC = b"rayh5blk"
_HEAD_BYTES = 4096
_RECORD = np.dtype([("crc", "<u4"), ("is_there", "<u4")])
"""Older versions wrote 1 or 2 for a block that is there."""

_PAGE_BYTES = 4096
_TOUCH_S = 1.0
_FAR_APART = 1 << 10
"""Blocks for each byte range: the records of so many are read as fast as those of one."""


class BlockFile:
    """The cached bytes of one state of one remote file; any thread may use it. Its methods raise OSError.

    Parameters
    ----------
    path : str
        The file on the disk. It is opened when first needed.
    size : int
        Bytes of the remote file.
    dataset : int
        A number of the dataset that reads it. The file remembers the last one.
    """

    def __init__(self, path: str, size: int, dataset: int) -> None:
        self.path, self.size = path, size
        self.num_blocks = -(-size // BLOCK_BYTES)
        # With the name: a file that was moved has bytes of another one, which are right by their CRCs.
        self._head = _HEAD.pack(_MAGIC, BLOCK_BYTES, 2, size, os.fsencode(os.path.basename(path)), dataset)
        self._data_at = on_disk(_HEAD_BYTES + _RECORD.itemsize * self.num_blocks)
        self._descriptor: Descriptor | None = None
        self._looked_at = 0.0
        self._lock = threading.Lock()

    def read(self, first: int, end: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the bytes of some blocks, and which of the blocks are right; the bytes of others mean nothing."""
        buffer = np.empty(self._end_of(end) - first * BLOCK_BYTES, np.uint8)
        is_right = np.zeros(end - first, bool)
        opened = self._opened()
        if opened is None:
            return buffer, is_right
        records = _records(opened, first, end)
        for start, stop in runs(records["is_there"] != 0):
            part = memoryview(buffer.data)[start * BLOCK_BYTES : stop * BLOCK_BYTES]
            if _read_all(opened.fd, part, self._data_at + (first + start) * BLOCK_BYTES) == len(part):
                is_right[start:stop] = crcs_of(part) == records["crc"][start:stop]
        return buffer, is_right

    def are_there(self, first: int, end: int) -> np.ndarray:
        """Return which blocks have a record."""
        opened = self._opened()
        return np.zeros(end - first, bool) if opened is None else _records(opened, first, end)["is_there"] != 0

    def has(self, offsets: np.ndarray, sizes: np.ndarray) -> np.ndarray:
        """Return for byte ranges, whose offsets ascend, whether all of their blocks have a record."""
        firsts, ends = offsets // BLOCK_BYTES, np.minimum(-(-(offsets + sizes) // BLOCK_BYTES), self.num_blocks)
        if not len(firsts):
            return np.zeros(0, bool)
        begin, end = int(firsts[0]), int(ends.max())
        if end - begin > _FAR_APART * len(firsts):
            return np.array([self.are_there(*span).all() for span in zip(firsts.tolist(), ends.tolist(), strict=True)])
        missing = np.concatenate([[0], np.cumsum(~self.are_there(begin, end))])
        return missing[ends - begin] == missing[firsts - begin]

    def head_bytes(self) -> int:
        """Return how many bytes `make` takes: none if the file is there."""
        return 0 if self._opened(looks=True) is not None else self._data_at

    def make(self) -> None:
        """Make the file if it is not there. The lock of the cache is held."""
        if self._opened() is not None:
            return
        temporary = Path(f"{self.path}.new")
        temporary.unlink(missing_ok=True)  # a crash left it: who makes a file has the lock
        made = Descriptor(os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
        try:
            os.pwrite(made.fd, self._head, 0)
            os.ftruncate(made.fd, self._data_at + self.size)
            temporary.replace(self.path)
        except OSError:
            with contextlib.suppress(OSError):
                temporary.unlink()
            raise
        with self._lock:
            self._descriptor, self._looked_at = made, time.monotonic()

    def store(self, first: int, data: memoryview, crcs: np.ndarray) -> None:
        """Write blocks, and then their records. The lock of the cache is held."""
        opened = self._opened()
        assert opened is not None
        _write_all(opened.fd, data, self._data_at + first * BLOCK_BYTES)
        records = np.empty(len(crcs), _RECORD)
        records["crc"], records["is_there"] = crcs, 1
        _write_all(opened.fd, memoryview(records.tobytes()), _HEAD_BYTES + first * _RECORD.itemsize)

    def _end_of(self, block: int) -> int:
        return min(block * BLOCK_BYTES, self.size)

    def _opened(self, looks: bool = False) -> Descriptor | None:
        """Return the open file; None if there is none. From time to time it is touched, and opened again if removed."""
        opened = self._descriptor
        if opened is not None and not looks and time.monotonic() - self._looked_at < _TOUCH_S:
            return opened
        with self._lock:
            if self._descriptor is not None and not os.fstat(self._descriptor.fd).st_nlink:
                self._descriptor = None  # others may still read from it: it is closed after the last of them
            if self._descriptor is None:
                self._descriptor = self._open()
            if self._descriptor is not None:
                # Files that no dataset uses are removed first.
                os.utime(self._descriptor.fd)
            self._looked_at = time.monotonic()
            return self._descriptor

    def _open(self) -> Descriptor | None:
        try:
            opened = Descriptor(os.open(self.path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW))
        except FileNotFoundError:
            return None
        head = os.pread(opened.fd, _DATASET_AT, 0)
        if head != self._head[:_DATASET_AT] or os.fstat(opened.fd).st_size != self._data_at + self.size:
            return None
        os.pwrite(opened.fd, self._head, 0)
        return opened


class Descriptor:
    """A descriptor that is closed when the last thread that uses it is done."""

    def __init__(self, fd: int) -> None:
        self.fd = fd

    def __del__(self, close: Callable[[int], None] = os.close) -> None:
        try:  # noqa: SIM105  contextlib may be cleared when the process exits
            close(self.fd)
        except OSError:
            pass  # nothing is lost: a block counts only if its CRC is right


def crcs_of(data: memoryview) -> np.ndarray:
    """Return the CRC of each block of `data`, which begins with a block."""
    return np.array([zlib.crc32(data[at : at + BLOCK_BYTES]) for at in range(0, len(data), BLOCK_BYTES)], np.uint32)


def runs(wanted: np.ndarray) -> list[tuple[int, int]]:
    """Return the first and the end of each run of true values."""
    edges = np.flatnonzero(np.diff(np.concatenate([[0], wanted.astype(np.int8), [0]])))
    return [(int(start), int(end)) for start, end in edges.reshape(-1, 2)]


def on_disk(nbytes: int) -> int:
    """Return how many bytes of a disk some bytes take."""
    return -(-nbytes // _PAGE_BYTES) * _PAGE_BYTES


def dataset_of(path: str) -> int | None:
    """Return the dataset that used a file of the cache last; None if it is no such file."""
    with open(path, "rb") as file:
        head = file.read(_HEAD.size)
    return int(_HEAD.unpack(head)[5]) if len(head) == _HEAD.size else None


def _records(opened: Descriptor, first: int, end: int) -> np.ndarray:
    found = np.zeros(end - first, _RECORD)
    _read_all(opened.fd, memoryview(found.view(np.uint8).data), _HEAD_BYTES + first * _RECORD.itemsize)
    return found


def _read_all(fd: int, buffer: memoryview, offset: int) -> int:
    done = 0
    while done < len(buffer) and (more := read_at(fd, buffer[done:], offset + done)):
        done += more
    return done


def _write_all(fd: int, data: memoryview, offset: int) -> None:
    done = 0
    while done < len(data):
        done += os.pwrite(fd, data[done:], offset + done)
