"""Notes that writes leave in a folder: which files there do not count, while one dataset takes the place of another.

Files get their names one by one, and readers list the folder at any time. A note makes it one step: it lists the new
files until all of them have their names, and from then on the old ones, until they are removed::

    folder/part-0-0.h5                     counts
    folder/part-1-0.h5                     does not: the note lists it
    folder/.ray_h5-0123456789ab/note.json  of one write, with all that it needs

What a reader may not count, it leaves out. So it sees one dataset or the other, also if the write was killed.
"""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import os
import re
import stat
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TypeAlias, TypeVar

from ray_h5.errors import CorruptFileError, NotFoundError, ReadFailedError, StaleIndexError, WriterActiveError
from ray_h5.lru import first_time
from ray_h5.messages import counted
from ray_h5.storage.stores.store_base import InStore

logger = logging.getLogger(__name__)

T = TypeVar("T")

HIDDEN = ".ray_h5-"
"""How the hidden folder of a write begins; 12 digits follow."""

NOTE = "note.json"

_HIDDEN_NAME = re.compile(rf"{re.escape(HIDDEN)}[0-9a-f]{{12}}")
_MOST_BYTES = 256 << 20
_TRIES = 20
_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC

FileStamp: TypeAlias = "list[int] | None"
"""Size and time of the last change of a file on a disk, which stay when it is renamed; None in a store."""

Notes: TypeAlias = "dict[str, WriteNote | None]"
"""The note of each hidden folder, by its path or URL; None for a write that has not begun to give names."""


@dataclass(frozen=True, slots=True)
class WriteNote:
    """Which files of a folder do not count.

    Attributes
    ----------
    files : mapping of str to list of int, or None
        Their names, and which files have to be there under these: others count.
    is_committed : bool
        Whether these are the old files. Anyone may remove them then. New ones belong to a write that may be running.
    """

    files: Mapping[str, FileStamp]
    is_committed: bool

    def as_bytes(self) -> bytes:
        """Return what a note holds."""
        return json.dumps({"files": dict(self.files), "is_committed": self.is_committed}).encode()

    @classmethod
    def of(cls, data: bytes, path: str) -> WriteNote:
        """Return the note with some bytes.

        Raises
        ------
        CorruptFileError
            If it is none. Without it, nobody knows which of the files belong together.
        """
        with contextlib.suppress(ValueError, TypeError, KeyError, AttributeError, RecursionError):
            given = json.loads(data)
            files = {name: None if stamp is None else [*map(int, stamp)] for name, stamp in given["files"].items()}
            # Names are removed by the next write: none may lead out of the folder.
            if not any("/" in name or name.startswith(".") for name in files):
                return cls(files, given["is_committed"] is True)
        raise CorruptFileError(
            f"{path}: expected a list of files that do not count, as a write leaves it that was interrupted; it is "
            "damaged. Look which files of the folder belong together, and remove this one."
        )


def is_hidden_of_write(name: str) -> bool:
    """Return whether a folder is called as the hidden one of a write."""
    return name.startswith(HIDDEN) and _HIDDEN_NAME.fullmatch(name) is not None


def stamp_of(path: str) -> FileStamp:
    """Return what a file on a disk is known by; None if there is none."""
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        found = os.stat(path, follow_symlinks=False)
        return [found.st_size, found.st_mtime_ns]
    return None


def _is_meant(path: str, stamp: FileStamp) -> bool:
    """Return whether a file, or what is under its name, is the one of a note; nobody can read what cannot be seen."""
    try:
        return stamp is None or stamp_of(path) == stamp
    except OSError:
        return True


def notes_on_disk(hidden: Iterable[str]) -> Notes:
    """Return the notes in some hidden folders of a disk."""
    return {path: _read_on_disk(os.path.join(path, NOTE)) for path in hidden}


def _read_on_disk(path: str) -> WriteNote | None:
    try:
        descriptor = os.open(path, _FLAGS)
    except (FileNotFoundError, NotADirectoryError, PermissionError):  # the files of that write have its mode
        return None
    except OSError as exc:
        if exc.errno == errno.ELOOP:  # a link is none of ours
            return None
        # Without the note, two datasets would be one.
        raise ReadFailedError(f"{path}: reading the note of a write failed: {exc.strerror}") from exc
    with open(descriptor, "rb") as file:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            return None
        return WriteNote.of(file.read() if found.st_size <= _MOST_BYTES else b"", path)


def notes_in_store(storage: InStore, hidden: Iterable[str]) -> Notes:
    """Return the notes in some hidden folders of a store."""
    notes: Notes = {}
    for url in hidden:
        state = storage.identity(note := f"{url}/{NOTE}")
        is_readable = state is not None and 0 < state.size <= _MOST_BYTES
        data = bytes(storage.open(note, state).get(0, state.size)) if state is not None and is_readable else b""
        notes[url] = None if state is None else WriteNote.of(data, note)
    return notes


def settled(folder: str, list_once: Callable[[], T], notes_of: Callable[[T], Notes]) -> tuple[T, Notes]:
    """Return a listing, and the notes that held while it was made.

    A note changes while a write gives names, so it is read before and after. Without a hidden folder, one listing does.

    Raises
    ------
    WriterActiveError
        If the notes change each time.
    """
    # A listing of old names under a note that says that the old ones do not count any more would be empty.
    before: Notes = {}
    for _ in range(_TRIES):
        listed = list_once()
        try:
            notes = notes_of(listed)
        except (NotFoundError, StaleIndexError):  # one in a store, between the requests for its state and its bytes
            continue
        if notes == before:
            return listed, notes
        before = notes
    raise WriterActiveError(f"{folder}: writes give names to files there all the time. Read it when they have ended.")


def uncounted(notes: Notes, *, own: str = "") -> set[str]:
    """Return the paths or URLs of the files that do not count by the notes, except the one in the hidden folder `own`.

    A warning says so: the write may have died.
    """
    found: set[str] = set()
    for hidden, note in notes.items():
        if note is None or hidden == own:
            continue
        folder = hidden.rpartition("/")[0]
        places = {f"{folder}/{name}": stamp for name, stamp in note.files.items()}
        left_out = [place for place, stamp in places.items() if _is_meant(place, stamp)]
        found.update(left_out)
        if left_out and first_time("uncounted", hidden):
            which = "that it replaces" if note.is_committed else "of it, which is not complete"
            logger.warning(
                "%s: a write gives names to files, or was interrupted: %s %s do not count. Once no write is running, "
                "the next write_h5 to this folder removes what is left on a disk; in a store, remove these and %s/",
                folder,
                counted(len(left_out), "file"),
                which,
                hidden,
            )
    return found
