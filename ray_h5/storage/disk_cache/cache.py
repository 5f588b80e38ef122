"""The cache of a folder: how large it is, and what makes room when it is full."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ray_h5.errors import OptionError
from ray_h5.fork import PerProcess
from ray_h5.storage.disk_cache.block_file import BLOCK_BYTES, BlockFile, crcs_of, dataset_of, on_disk, runs

__all__ = ["CacheOptions", "DiskCache", "cache_for"]

logger = logging.getLogger(__name__)

_FOLDER = "ray_h5-cache-1"
"""The folder in the user's folder. Nothing outside it is ever removed. Another format gets another number."""

_PAUSE_S = 60.0
_COUNT_AGAIN_S = 5.0
_LOCK_S = 10.0
_FULL_S = 1.0
"""While nothing can be removed, nobody looks for it all the time."""

_LONG_UNUSED_S = 7 * 86400.0


@dataclass(frozen=True, slots=True)
class CacheOptions:
    """A cache on a disk.

    Attributes
    ----------
    folder : str
        The user's folder.
    max_bytes : int
        The most that the cache takes of the disk.
    dataset : str
        What the user calls these files, such as their globs. When the disk is full, files that no dataset reads any
        more make room.
    """

    folder: str
    max_bytes: int
    dataset: str = ""


class DiskCache:
    """The cache of a folder, for the files of one dataset in this process.

    When it is full, files of datasets that nobody reads any more make room. Otherwise it keeps what it has, and takes
    nothing new: in an order that has each row once an epoch, what was just read is needed last of all. So of a dataset
    twice as large as the cache, half is read from the disk in each epoch, and no order of removal could give more. (To
    remove what was used least recently would leave nothing that is needed.)

    Parameters
    ----------
    options : CacheOptions
        Where it is, and how large it may grow.

    Raises
    ------
    OptionError
        If the folder cannot be made or written to, or others may write to it.
    """

    def __init__(self, options: CacheOptions) -> None:
        self.options = options
        self._folder = _made_folder(options.folder)
        self._since = time.time()
        self._dataset = int.from_bytes(hashlib.sha256(options.dataset.encode()).digest()[:8], "little")
        self._lock: PerProcess[_Lock] = PerProcess(lambda: _Lock(os.path.join(self._folder, "lock")))
        self._paused_until = self._full_until = 0.0
        self._counted_at = float("-inf")

    def file(self, place: str, state: str, size: int) -> BlockFile:
        """Return the cached bytes of a remote file.

        Parameters
        ----------
        place : str
            What distinguishes the file from all others: its store and its URL.
        state : str
            What distinguishes its state from all others: its ETag.
        size : int
            Its size in bytes.
        """
        hashes = [hashlib.sha256(text.encode()).hexdigest()[:32] for text in (place, f"{state} {size}")]
        return BlockFile(os.path.join(self._folder, "-".join(hashes)), size, self._dataset)

    def read(self, file: BlockFile, first: int, end: int) -> tuple[np.ndarray, np.ndarray] | None:
        """Return what `BlockFile.read` does; None if the disk fails."""
        try:
            return file.read(first, end)
        except OSError as exc:
            self._warn("reading", exc)
            return None

    def write(self, file: BlockFile, first: int, data: memoryview) -> None:
        """Store blocks, as many as there is room for. It raises nothing: rows can be read without the disk."""
        if time.monotonic() < max(self._paused_until, self._full_until):
            return
        crcs = crcs_of(data)
        try:
            with self._lock.value.held():
                self._write(file, first, data, crcs)
        except OSError as exc:
            self._paused_until = time.monotonic() + _PAUSE_S
            self._counted_at = float("-inf")
            self._warn("writing", exc)

    def _warn(self, doing: str, exc: OSError) -> None:
        logger.warning(
            "cache_dir=%r: %s failed: %s. Rows come from the store instead", self.options.folder, doing, exc.strerror
        )

    def _write(self, file: BlockFile, first: int, data: memoryview, crcs: np.ndarray) -> None:
        missing = ~file.is_set(first, first + len(crcs))
        # A damaged block is set, too. It is written again.
        missing |= ~_right(file, first, crcs, missing)
        for start, end in runs(missing):
            part = data[start * BLOCK_BYTES : end * BLOCK_BYTES]
            head = file.head_bytes()
            if head:
                self._remove_other_states(file)
            room = self._make_room(head + on_disk(len(part))) - head
            if room < on_disk(len(part)):
                part = part[: max(0, room) // BLOCK_BYTES * BLOCK_BYTES]
                self._full_until = time.monotonic() + _FULL_S
            if not len(part):
                return
            # Counted before it is written: after a crash, the number is too large rather than too small.
            self._lock.value.used += head + on_disk(len(part))
            if head:
                file.make()
            file.store(first + start, part, crcs[start : start - (-len(part) // BLOCK_BYTES)])

    def _make_room(self, nbytes: int) -> int:
        """Return how many bytes may be written, after files that nobody reads were removed."""
        state = self._lock.value

        def fits() -> bool:
            return state.used + nbytes <= self.options.max_bytes

        now = time.monotonic()
        if self._counted_at == float("-inf") or (not fits() and now - self._counted_at > _COUNT_AGAIN_S):
            state.used = sum(_taken(entry) for entry in self._entries())
            self._counted_at = now
        if not fits():
            self._remove_unused(fits)
        return max(0, self.options.max_bytes - state.used)

    def _entries(self) -> list[os.DirEntry[str]]:
        with os.scandir(self._folder) as entries:
            return [entry for entry in entries if entry.name != "lock"]

    def _remove_other_states(self, file: BlockFile) -> None:
        """Remove what is cached of a file that was written again since."""
        url, _, state = os.path.basename(file.path).partition("-")
        for entry in self._entries():
            if entry.name.startswith(f"{url}-") and entry.name != f"{url}-{state}":
                self._remove(entry)

    def _remove_unused(self, fits: Callable[[], bool]) -> None:
        """Remove files that nobody used since this dataset is read; long unused ones first.

        Files of this dataset stay: their turn in the epoch may be later. But some may be gone from the store.
        """
        unused = []
        for entry in self._entries():
            with contextlib.suppress(FileNotFoundError):
                used_at = entry.stat().st_mtime
                is_old = used_at < self._since - _LONG_UNUSED_S
                if is_old or (used_at < self._since and dataset_of(entry.path) != self._dataset):
                    unused.append((used_at, entry))
        for _, entry in sorted(unused, key=lambda each: each[0]):
            if fits():
                return
            self._remove(entry)

    def _remove(self, entry: os.DirEntry[str]) -> None:
        nbytes = _taken(entry)
        Path(entry.path).unlink(missing_ok=True)
        self._lock.value.used = max(0, self._lock.value.used - nbytes)


class _Lock:
    """The lock between the processes of a cache, and the number of bytes that the cache takes."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._threads = threading.Lock()
        self._fd = -1

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        with self._threads:
            if self._fd < 0:
                self._fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            self._lock()  # a process that dies lets go of it
            try:
                yield
            finally:
                fcntl.flock(self._fd, fcntl.LOCK_UN)

    def _lock(self) -> None:
        until = time.monotonic() + _LOCK_S
        while True:
            try:
                return fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() > until:  # such as a process that was stopped by Ctrl-Z
                    raise OSError(errno.ETIMEDOUT, "another process holds its lock") from None
                time.sleep(0.001)

    @property
    def used(self) -> int:
        return int.from_bytes(os.pread(self._fd, 8, 0), "little")

    @used.setter
    def used(self, nbytes: int) -> None:
        os.pwrite(self._fd, nbytes.to_bytes(8, "little"), 0)


def cache_for(options: CacheOptions) -> DiskCache:
    """Return the cache of this process with some options."""
    caches = _caches.value
    if options not in caches:
        caches.setdefault(options, DiskCache(options))
    return caches[options]


_caches: PerProcess[dict[CacheOptions, DiskCache]] = PerProcess(dict)


def _right(file: BlockFile, first: int, crcs: np.ndarray, missing: np.ndarray) -> np.ndarray:
    """Return which blocks need not be written: those that are on the disk as they should be."""
    if missing.all():
        return ~missing
    _, is_right = file.read(first, first + len(crcs))
    return is_right


def _made_folder(given: str) -> str:
    folder = os.path.join(given, _FOLDER)
    try:
        Path(given).mkdir(parents=True, exist_ok=True)
        Path(folder).mkdir(mode=0o700, exist_ok=True)
        stat = os.lstat(folder)
    except OSError as exc:
        raise OptionError(f"cache_dir={given!r}: the folder cannot be made: {exc.strerror}") from exc
    # It has bytes of private files, and what is in it is delivered as their bytes.
    if stat.st_uid != os.getuid() or Path(folder).is_symlink() or stat.st_mode & 0o022:
        raise OptionError(
            f"cache_dir={given!r}: other users may write to {folder}, and so change rows. Remove it, or give each user "
            "another cache_dir"
        )
    if not os.access(folder, os.R_OK | os.W_OK | os.X_OK):
        raise OptionError(f"cache_dir={given!r}: this process may not write to {folder}")
    return folder


def _taken(entry: os.DirEntry[str]) -> int:
    try:
        return entry.stat().st_blocks * 512
    except FileNotFoundError:
        return 0  # another process removed it
