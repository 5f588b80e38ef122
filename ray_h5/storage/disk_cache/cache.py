"""The cache of a folder: how large it is, and what makes room when it is full."""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import re
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ray_h5.errors import OptionError
from ray_h5.fork import PerProcess
from ray_h5.storage.disk_cache.cached_file import BLOCK_BYTES, BlockFile, crcs_of, dataset_of, on_disk, runs
from ray_h5.storage.disk_cache.lock import CacheLock

__all__ = ["CacheOptions", "DiskCache", "cache_for"]

logger = logging.getLogger(__name__)

_FOLDER = "ray_h5-cache-2"
"""The folder in the user's folder. Nothing outside it is ever removed. Another format gets another number."""

_NAMES = re.compile(r"[0-9a-f]{32}-[0-9a-f]{32}(\.new)?")
_PAUSE_S = 60.0
_COUNT_AGAIN_S = 5.0
_FULL_S = 1.0
"""While nothing can be removed, nobody looks for it all the time."""

_LONG_UNUSED_S = 7 * 86400.0
_AHEAD_S = 60.0
"""Files that were used later than this were used before the clock was set back."""


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

    When it is full, files that nobody reads any more make room, the least recently used ones first. Otherwise it
    keeps what it has. (To remove rows that were used least recently would leave nothing that is needed: in an order
    with each row once, what was just read is needed last.)

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
        self._lock: PerProcess[CacheLock] = PerProcess(lambda: CacheLock(os.path.join(self._folder, "lock")))
        self._warning = threading.Lock()
        self._warned: dict[str, float] = {}
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

    def has(self, file: BlockFile, offsets: np.ndarray, sizes: np.ndarray) -> np.ndarray:
        """Return what `BlockFile.has` does."""
        try:
            return file.has(offsets, sizes)
        except OSError:
            return np.zeros(len(offsets), bool)  # a read warns

    @property
    def has_room(self) -> bool:
        """Whether it is worth a try to `write` what is fetched now."""
        return time.monotonic() >= max(self._paused_until, self._full_until)

    def write(self, file: BlockFile, first: int, data: memoryview) -> None:
        """Store blocks, as many as there is room for. It raises nothing: rows can be read without the disk."""
        if time.monotonic() < self._paused_until:
            return
        with self._guarded():
            crcs = crcs_of(data)
            with self._lock.value.held():
                self._write(_Blocks(file, first, data, crcs))

    @contextlib.contextmanager
    def _guarded(self) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError:
            self._make_again()  # somebody removed the folder
        except OSError as exc:
            self._pause(exc)

    def _make_again(self) -> None:
        try:
            _made_folder(self.options.folder)
        except OptionError as exc:
            self._pause(OSError(0, exc.args[0]))

    def _pause(self, exc: OSError) -> None:
        self._paused_until = time.monotonic() + _PAUSE_S
        self._counted_at = float("-inf")
        self._warn("writing", exc)

    def _warn(self, doing: str, exc: OSError) -> None:
        """Warn once a minute at most: many threads may fail at the same time."""
        now = time.monotonic()
        with self._warning:
            is_new = now > self._warned.get(doing, float("-inf")) + _PAUSE_S / 2
            if is_new:
                self._warned[doing] = now
        if is_new:
            logger.warning(
                "cache_dir=%r: %s failed: %s. Rows come from the store instead",
                self.options.folder, doing, exc.strerror,
            )  # fmt: skip

    def _write(self, blocks: _Blocks) -> None:
        """Store what is missing."""
        for start, end in runs(blocks.missing()):
            if self._store(blocks.part(start, end)) < end - start:
                self._full_until = time.monotonic() + _FULL_S
                return

    def _store(self, blocks: _Blocks) -> int:
        """Store the first blocks of some, as many as there is room for, and return how many these are."""
        file, nbytes = blocks.file, on_disk(len(blocks.data))
        head = file.head_bytes()
        if head:
            self._remove_other_states(file)
        room = self._make_room(head + nbytes) - head
        if room < nbytes:
            blocks = blocks.part(0, max(0, room) // BLOCK_BYTES)
            if not len(blocks.data):
                return 0
        # Counted before it is written: after a crash, the number is too large rather than too small.
        self._lock.value.used += head + on_disk(len(blocks.data))
        if head:
            file.make()
        file.store(blocks.first, blocks.data, blocks.crcs)
        return len(blocks.crcs)

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
        """Return the files that caches made. Others may lie there, too, and stay."""
        with os.scandir(self._folder) as entries:
            return [each for each in entries if _NAMES.fullmatch(each.name) and each.is_file(follow_symlinks=False)]

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
        unused, now = [], time.time()
        since = min(self._since, now)  # the clock may have been set back
        for entry in self._entries():
            with contextlib.suppress(FileNotFoundError):
                used_at = entry.stat().st_mtime
                if used_at > now + _AHEAD_S:
                    used_at = 0.0  # who uses a file says so all the time
                is_old = used_at < since - _LONG_UNUSED_S
                if is_old or (used_at < since and dataset_of(entry.path) != self._dataset):
                    unused.append((used_at, entry))
        for _, entry in sorted(unused, key=lambda each: each[0]):
            if fits():
                return
            self._remove(entry)

    def _remove(self, entry: os.DirEntry[str]) -> None:
        nbytes = _taken(entry)
        Path(entry.path).unlink(missing_ok=True)
        self._lock.value.used = max(0, self._lock.value.used - nbytes)


def cache_for(options: CacheOptions) -> DiskCache:
    """Return the cache of this process with some options."""
    caches = _caches.value
    if options not in caches:
        caches.setdefault(options, DiskCache(options))
    return caches[options]


_caches: PerProcess[dict[CacheOptions, DiskCache]] = PerProcess(dict)


@dataclass(frozen=True, slots=True)
class _Blocks:
    """Blocks of a file that were fetched, and lie side by side."""

    file: BlockFile
    first: int
    data: memoryview
    crcs: np.ndarray

    @property
    def span(self) -> tuple[int, int]:
        return self.first, self.first + len(self.crcs)

    def part(self, start: int, end: int) -> _Blocks:
        data = self.data[start * BLOCK_BYTES : end * BLOCK_BYTES]
        return _Blocks(self.file, self.first + start, data, self.crcs[start:end])

    def missing(self) -> np.ndarray:
        """Return which of them are not on the disk as they should be: a damaged block is written again."""
        missing = ~self.file.are_there(*self.span)
        return missing if missing.all() else ~self.file.read(*self.span)[1]


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
