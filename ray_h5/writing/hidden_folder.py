"""A hidden folder with the files of a write that are not complete. Its process holds a lock in it.

Where files cannot be locked, the folder itself is the lock: who makes it has it, and nobody knows whether a write that
left one died.

The place that is written to may be one that other users can write to. So the folder is made new, or is one that this
user's writes left; it is used through its descriptor, which nobody can exchange for a link; and only files with names
that writes give are removed.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import secrets
import time
from collections.abc import Collection, Iterator
from pathlib import Path

from ray_h5.errors import OutputExistsError
from ray_h5.storage.write_notes import NOTE

JOURNAL = "journal.json"

_LOCK = "lock"
_NAMES = re.compile(rf"{_LOCK}|{re.escape(JOURNAL)}|{re.escape(NOTE)}|.+\.[0-9a-f]{{8}}\.tmp", re.DOTALL)
_NO_LOCKS = frozenset({errno.ENOSYS, errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EINVAL})
_WAITS, _WAIT_S = 50, 0.01
_FOLDER_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


@contextlib.contextmanager
def folder_locked(path: str) -> Iterator[None]:
    """Wait for the lock of a folder itself, and hold it; without one on a disk that has no locks."""
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        try:
            fcntl.flock(folder, fcntl.LOCK_EX)
        except OSError as exc:
            if exc.errno not in _NO_LOCKS:
                raise
        yield
    finally:
        os.close(folder)


class HiddenFolder:
    """A folder that this user makes, locks and removes.

    ::

        state      lock      another write
        made       free      may take it for a moment, and lets go: `take` tries again
        held       held      leaves it alone
        dead       free      takes it, and removes what its note lists, and then the folder
        removed    unlinked  that has opened the lock before finds no such name, and begins again

    Parameters
    ----------
    path : str
        The folder.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self._folder = self._lock = -1

    @property
    def is_held(self) -> bool:
        """Whether this process has taken it."""
        return self._lock >= 0

    def take(self, *, make: bool = True) -> None:
        """Lock the folder; make it, or take one that a write of this user left when it died.

        Raises
        ------
        OutputExistsError
            If a write that is running has it, or something has its name that no write of this user made.
        FileNotFoundError
            If there is none, and `make` is False.
        """
        waits = _WAITS if make else 0
        while not self.is_held:
            is_new = False
            if make:
                with contextlib.suppress(FileExistsError):
                    Path(self.path).mkdir(parents=True)
                    is_new = True
            with contextlib.ExitStack() as opened:
                try:
                    folder = os.open(self.path, _FOLDER_FLAGS)
                    opened.callback(os.close, folder)
                    self._check_ours(folder, is_new)
                    lock = os.open(_LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=folder)
                    opened.callback(os.close, lock)
                    self._lock_or_raise(lock, is_new)
                    is_there = os.path.samestat(os.fstat(lock), os.lstat(os.path.join(self.path, _LOCK)))
                except NotADirectoryError:
                    raise self._not_ours("what is there is a link or a file") from None
                except FileNotFoundError:  # the write that had it has ended meanwhile, and removed it
                    if not make:
                        raise
                    continue
                except BlockingIOError:
                    # A write that begins takes what others left, and for a moment also what one just made.
                    if not waits:
                        raise OutputExistsError(
                            f"{self.path}: another write has it. Wait, or write elsewhere."
                        ) from None
                    waits -= 1
                    time.sleep(_WAIT_S)
                    continue
                if is_there:
                    self._folder, self._lock = folder, lock
                    opened.pop_all()

    def _lock_or_raise(self, lock: int, is_new: bool) -> None:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as exc:
            if exc.errno not in _NO_LOCKS:
                raise
            if not is_new:
                raise OutputExistsError(
                    f"{self.path}: another write has it, or died: this disk has no locks ({exc.strerror}), so nobody "
                    "knows. If no write is running there, remove it; or write elsewhere."
                ) from None

    def _check_ours(self, folder: int, is_new: bool) -> None:
        """Raise unless a write of this user made the folder, and all that is in it."""
        if not is_new and not _is_own(folder):
            raise self._not_ours("it belongs to another user")
        if foreign := [name for name in os.listdir(folder) if not _NAMES.fullmatch(name)]:
            raise self._not_ours(f"it has {foreign[0]!r}")

    def _not_ours(self, why: str) -> OutputExistsError:
        return OutputExistsError(
            f"{self.path}: expected a folder that a write of this user made and left, but {why}. Nothing was changed. "
            "Look at it and remove it, or write elsewhere."
        )

    def clear(self, keep: Collection[str] = ()) -> None:
        """Remove the files of the write, except some."""
        for name in os.listdir(self._folder):
            if name not in keep and name != _LOCK and _NAMES.fullmatch(name):
                with contextlib.suppress(OSError):
                    os.unlink(name, dir_fd=self._folder)

    def remove(self) -> None:
        """Remove the folder, if this process has it. A kill meanwhile leaves one that the next write removes."""
        if self.is_held:
            self.clear()
            with contextlib.suppress(OSError):
                os.unlink(_LOCK, dir_fd=self._folder)  # the last one: a folder without it is empty
                Path(self.path).rmdir()
            self.release()

    def release(self) -> None:
        """Let go of the lock."""
        if self.is_held:
            os.close(self._lock)
            os.close(self._folder)
            self._folder = self._lock = -1


def temporary_name(name: str) -> str:
    """Return a new name for a file that is not complete."""
    return f"{name}.{secrets.token_hex(4)}.tmp"


def _is_own(folder: int) -> bool:
    """Return whether a folder belongs to this user: to whom files belong that this process makes there.

    Some mounts say that files belong to another user than that of the process, such as NFS for root.
    """
    owner = os.fstat(folder).st_uid
    if owner == os.geteuid():
        return True
    name = temporary_name("owner")
    try:
        probe = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600, dir_fd=folder)
    except OSError:
        return False
    try:
        return os.fstat(probe).st_uid == owner
    finally:
        os.close(probe)
        os.unlink(name, dir_fd=folder)
