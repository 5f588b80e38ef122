"""Bytes of remote files on a local disk, shared by the processes of a node.

A file of the cache holds one state of one remote file: a record for each block of 16 KiB, and then the blocks at their
offsets, with holes where nothing is cached::

    | record 0 | record 1 | ... to a page ||  block 0  |  (hole)  |  block 2  | ...
      crc, 1     0, 0

A block counts only if its record has the CRC of the file's name, its number and its bytes. So readers need no lock;
and a crash, a full disk or another process that writes meanwhile leaves a block that is fetched again, never a wrong
one.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import logging
import os
import re
import threading
import time
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from ray_h5.errors import OptionError
from ray_h5.per_process import PerProcess
from ray_h5.storage.byte_source import Span
from ray_h5.storage.local import LocalFile, write_at

logger = logging.getLogger(__name__)

BLOCK_BYTES = 16 << 10
"""Small, because a row that is read alone is fetched with the rest of its first and its last block."""

_FOLDER = "ray_h5-cache-3"
"""The folder in the user's folder. Nothing outside it is ever removed. Another format gets another number."""

_NAMES = re.compile(r"[0-9a-f]{32}-[0-9a-f]{32}")
_RECORD_BYTES, _PAGE_BYTES = 8, 4096
_IS_THERE = np.uint64(1 << 32)
"""What a record has beside the CRC, if its block is there."""

_TOUCH_S = 1.0
_COUNT_AGAIN_S, _COUNTED_PARTS = 60.0, 100
"""A process counts what the cache takes after so many seconds, and after it has written such a part of all of it."""

_FULL_PAUSE_S, _ERROR_PAUSE_S = 1.0, 60.0
"""How long nothing is written after the cache was full, and after the disk failed."""


class BlockCache:
    """The cache of a folder in this process: how large it is, and what makes room when it is full.

    When it is full, files that no process used since this one began make room, the least recently used ones first.
    Otherwise it keeps what it has: in an order with each row once, what was just read is needed last. Processes do
    not lock it. Each counts its bytes now and then; while many write, it may exceed its size by a few percent.

    Parameters
    ----------
    parent : str
        The folder of the user, in which it has one of its own.
    max_bytes : int
        The most bytes that it takes of the disk.

    Raises
    ------
    OptionError
        If the folder cannot be made or written to, or others may write to it.
    """

    def __init__(self, parent: str, max_bytes: int) -> None:
        self._parent, self._max_bytes = parent, max_bytes
        self.folder = _made_folder(parent)
        self._since = time.time() - 0.02  # the clock of a file system may be so late
        self._lock = threading.Lock()
        self._paused_until = self._counted_at = float("-inf")
        self._free = 0

    @property
    def may_write(self) -> bool:
        """Whether what is fetched now may be written: the cache is not full, and the disk did not fail."""
        return time.monotonic() >= self._paused_until

    def room(self, count: int, further_bytes: int) -> int:
        """Return how many of so many blocks may be written, after files that nobody uses were removed."""
        if not os.path.isdir(self.folder):  # somebody removed it
            _made_folder(self._parent)
        now, wanted = time.monotonic(), further_bytes + count * BLOCK_BYTES
        with self._lock:
            if not self.may_write:
                return 0
            if wanted > self._free or now - self._counted_at > _COUNT_AGAIN_S:
                # A part of what is free: other processes write, too.
                part = max(wanted, self._max_bytes // _COUNTED_PARTS)
                self._free, self._counted_at = min(self._made_free(wanted), part), now
            free = min(count, max(0, self._free - further_bytes) // BLOCK_BYTES)
            self._free -= (further_bytes + free * BLOCK_BYTES) if free else 0
            if free < count:
                self._paused_until = now + _FULL_PAUSE_S
            return free

    def _made_free(self, wanted: int) -> int:
        """Return how many bytes are free. If they are too few, files go that nobody used since this process began."""
        files = []  # that caches made: others may lie there, and stay
        with os.scandir(self.folder) as entries:
            for entry in entries:
                with contextlib.suppress(FileNotFoundError):  # another process removed it
                    if _NAMES.fullmatch(entry.name) and entry.is_file(follow_symlinks=False):
                        stat = entry.stat()
                        files.append((stat.st_mtime, stat.st_blocks * 512, entry.path))
        now = time.time()  # the clock may have been set back
        free = self._max_bytes - sum(nbytes for _, nbytes, _ in files)
        for used_at, nbytes, path in sorted(files):
            if free < wanted and not min(self._since, now) <= used_at <= now + _ERROR_PAUSE_S:
                free += nbytes
                Path(path).unlink(missing_ok=True)
        return free

    def fail(self, doing: str, exc: Exception) -> None:
        """Write nothing for a minute, and warn once: many threads may fail at the same time."""
        if time.monotonic() >= self._paused_until - _ERROR_PAUSE_S / 2:
            message = "cache_dir=%r: %s failed: %s. Rows come from the store instead"
            logger.warning(message, self._parent, doing, getattr(exc, "strerror", None) or exc)
        self._paused_until = time.monotonic() + _ERROR_PAUSE_S


class CachedFile:
    """Gets ranges of one state of a remote file from a disk, and the rest from where it is; that stays on the disk.

    Any thread may use it.

    Parameters
    ----------
    cache : BlockCache
        Where its blocks stay.
    get : callable
        Returns the bytes at an offset, of a size, from where the file is.
    place, state : str
        What distinguishes the file from all others: its store and its URL; and its state: its ETag.
    size : int
        Its size in bytes.
    """

    def __init__(
        self, cache: BlockCache, get: Callable[[int, int], memoryview], place: str, state: str, size: int
    ) -> None:
        hashes = [hashlib.sha256(text.encode()).hexdigest()[:32] for text in (place, f"{state} {size}")]
        self.path = os.path.join(cache.folder, "-".join(hashes))
        self._get, self._cache, self._size = get, cache, size
        self._record_bytes = -(-_RECORD_BYTES * -(-size // BLOCK_BYTES) // _PAGE_BYTES) * _PAGE_BYTES
        # A file that was moved has bytes of another one: CRCs begin with the name.
        self._seed = zlib.crc32("-".join(hashes).encode())
        self._file: LocalFile | None = None
        self._looked_at = 0.0
        self._lock = threading.Lock()

    def has(self, spans: Sequence[Span]) -> list[bool]:
        """Return for byte ranges whether each seems to be on the disk: it is checked when it is read."""
        with contextlib.suppress(OSError):  # a read warns
            if (file := self._opened()) is not None:
                blocks = (_blocks(offset, min(nbytes, self._size - offset)) for offset, nbytes in spans)
                return [bool(_records(file, *block).all()) for block in blocks]
        return [False for _ in spans]

    def get(self, offset: int, nbytes: int) -> memoryview:
        """Return the bytes at `offset`: without a request if all are on the disk, otherwise by one."""
        if nbytes <= 0 or offset + nbytes > self._size:
            return self._get(offset, nbytes)  # it names the error
        first, end = _blocks(offset, nbytes)
        begin = first * BLOCK_BYTES
        # Blocks that are not right mean nothing.
        blocks, is_right = np.zeros(min(end * BLOCK_BYTES, self._size) - begin, np.uint8), np.zeros(end - first, bool)
        try:
            if (file := self._opened()) is not None and (records := _records(file, first, end)).any():
                file.read_most(self._record_bytes + begin, blocks.data)
                is_right = self._new_records(first, blocks.data) == records
        except OSError as exc:
            self._cache.fail("reading", exc)
        missing = first + np.flatnonzero(~is_right)
        if len(missing):
            start, stop = int(missing[0]) * BLOCK_BYTES, min((int(missing[-1]) + 1) * BLOCK_BYTES, self._size)
            writes = self._cache.may_write
            if not writes:  # the rest of the blocks is of no use
                start, stop = max(start, offset), min(stop, offset + nbytes)
            fetched = self._get(start, stop - start)
            if writes:
                self._write(int(missing[0]), fetched)
            blocks[start - begin : stop - begin] = np.frombuffer(fetched, np.uint8)
        return blocks.data[offset - begin : offset - begin + nbytes]

    def _write(self, first: int, data: memoryview) -> None:
        """Write blocks, as many as there is room for, and then their records. It raises nothing: rows can be read."""
        try:
            count = self._cache.room(-(-len(data) // BLOCK_BYTES), 0 if self._opened() else self._record_bytes)
            if not count or (file := self._opened(makes=True)) is None:
                return  # the cache is full, or somebody removes the folder
            data = data[: count * BLOCK_BYTES]
            write_at(file.descriptor, data, self._record_bytes + first * BLOCK_BYTES)
            write_at(file.descriptor, memoryview(self._new_records(first, data).tobytes()), first * _RECORD_BYTES)
        except (OSError, OptionError) as exc:
            self._cache.fail("writing", exc)

    def _new_records(self, first: int, data: memoryview) -> np.ndarray:
        """Return the record of each block of `data`, which begins with the block of number `first`."""
        # A block that was moved in its file has bytes of another one: CRCs go on with the number.
        pieces = (data[at : at + BLOCK_BYTES] for at in range(0, len(data), BLOCK_BYTES))
        seeds = (zlib.crc32(number.to_bytes(8, "little"), self._seed) for number in itertools.count(first))
        crcs = [zlib.crc32(piece, seed) for piece, seed in zip(pieces, seeds, strict=False)]
        return np.array(crcs, "<u8") | _IS_THERE

    def _opened(self, makes: bool = False) -> LocalFile | None:
        """Return the open file; None if there is none. From time to time it is touched, and opened again if removed."""
        if self._file is not None and time.monotonic() - self._looked_at < _TOUCH_S:
            return self._file
        with self._lock:
            if self._file is not None and not os.fstat(self._file.descriptor).st_nlink:
                self._file = None  # others may still read from it: it is closed after the last of them
            if self._file is None:
                flags = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | (os.O_CREAT if makes else 0)
                with contextlib.suppress(FileNotFoundError):
                    self._file = LocalFile(self.path, os.open(self.path, flags, 0o600))
            if self._file is not None:
                os.utime(self._file.descriptor)  # files that nobody uses are removed first
            self._looked_at = time.monotonic()
            return self._file


_caches: PerProcess[dict[tuple[str, int], BlockCache]] = PerProcess(dict)


def cache_for(parent: str, max_bytes: int) -> BlockCache:
    """Return the one cache of this process in a folder, of a size."""
    caches, options = _caches.value, (parent, max_bytes)
    return caches.get(options) or caches.setdefault(options, BlockCache(*options))


def _made_folder(parent: str) -> str:
    folder = os.path.join(parent, _FOLDER)
    try:
        Path(parent).mkdir(parents=True, exist_ok=True)
        Path(folder).mkdir(mode=0o700, exist_ok=True)
        stat = os.lstat(folder)
    except OSError as exc:
        raise OptionError(f"cache_dir={parent!r}: the folder cannot be made: {exc.strerror}") from exc
    # It has bytes of private files, and what is in it is delivered as their bytes.
    if stat.st_uid != os.getuid() or Path(folder).is_symlink() or stat.st_mode & 0o022:
        raise OptionError(
            f"cache_dir={parent!r}: other users may write to {folder}, and so change rows. Remove it, or give each "
            "user another cache_dir"
        )
    if not os.access(folder, os.R_OK | os.W_OK | os.X_OK):
        raise OptionError(f"cache_dir={parent!r}: this process may not write to {folder}")
    return folder


def _blocks(offset: int, nbytes: int) -> tuple[int, int]:
    """Return the first block of a byte range, and the one after its last."""
    return offset // BLOCK_BYTES, -(-(offset + nbytes) // BLOCK_BYTES)


def _records(file: LocalFile, first: int, end: int) -> np.ndarray:
    """Return the records of some blocks; 0 for those that are not there."""
    records = np.zeros(end - first, "<u8")
    file.read_most(first * _RECORD_BYTES, records.view(np.uint8).data)
    return records
