"""What a user writes for files of the local file system -> the files: names, folders and globs."""

from __future__ import annotations

import difflib
import logging
import os
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote_to_bytes

from ray_h5.errors import NotReadableError, OptionError
from ray_h5.messages import few
from ray_h5.storage.addresses import has_magic, scheme_of
from ray_h5.storage.local import absolute_path
from ray_h5.storage.search import Endings, Entry, Taken, search, split_glob

logger = logging.getLogger(__name__)

_MAX_COMPARED = 5000


@dataclass(frozen=True, slots=True)
class LocalSearch:
    """Finds the files that paths of the local file system name.

    Attributes
    ----------
    endings : Endings
        Those of files that are taken from folders and globs.
    root : str
        The folder that relative paths start from; an empty text for the current one.
    """

    endings: Endings
    root: str

    def find(self, path: str) -> Taken | None:
        """Return what a file, folder or glob names; None if it does not exist."""
        spelt = (os.path.join(self.root, spelling) for spelling in _spellings(path))
        return next((taken for taken in map(self._find, spelt) if taken is not None), None)

    def note(self, path: str) -> str:
        """Return a path that does not exist, and what to say about it."""
        path = os.path.join(self.root, _spellings(path)[0])
        what = "a glob that matches nothing" if has_magic(path) else ""
        notes = (what, _near_path(path), "" if os.path.isabs(path) else f"looked in {Path.cwd()}")
        return f"{path} ({', '.join(filter(None, notes))})" if any(notes) else path

    def _find(self, path: str) -> Taken | None:
        is_folder = os.path.isdir(path)
        if is_folder:
            try:
                os.scandir(path).close()
            except OSError as exc:
                raise NotReadableError(
                    f"{path}: this folder cannot be listed: {exc.strerror}; ask for the right to read it"
                ) from exc
        elif os.path.lexists(path):
            return Taken({absolute_path(path): None})
        above, parts = ([path], []) if is_folder else split_glob(Path(path).parts, path)
        top = os.path.join("", *above)
        if not os.path.isdir(top or "."):
            return None
        taken = search(_entries, Entry(absolute_path(top), os.path.realpath(top)), parts, self.endings)
        return taken if is_folder or any(taken) else None


def _spellings(text: str) -> list[str]:
    """Return the paths that a user may mean, most likely first: %41 in a URI may be an escape, or part of the name."""
    if "\0" in text:
        raise OptionError(f"{text!r}: a path cannot contain a NUL character")
    if scheme := scheme_of(text):
        text = text[len(scheme) + 3 :]
    if scheme == "file" and text.startswith("localhost/"):  # RFC 8089: the host may be named
        text = text.removeprefix("localhost")
    is_escaped = scheme == "file" and "%" in text
    unescaped = [os.fsdecode(unquote_to_bytes(os.fsencode(text)))] if is_escaped else []
    return [os.path.expanduser(spelling) for spelling in (text, *unescaped)]


def _entries(folder: Entry, part: str, below: bool) -> list[Entry]:  # noqa: ARG001  each folder is listed by itself
    """Return what is in a folder, or what a part of a glob that is a name leads to."""
    if part and not has_magic(part):  # to look costs less than to list; and it may be ..
        path = os.path.join(folder.path, part)
        entry = Entry(absolute_path(path), os.path.realpath(path), part, os.path.isdir(path), Path(path).is_symlink())
        return [entry] if os.path.lexists(path) else []
    try:
        with os.scandir(folder.path) as scanned:
            inside = [(entry, entry.is_symlink()) for entry in scanned]
    except OSError as exc:
        # Many disks have such a folder at the top: lost+found.
        logger.warning("%s: this folder cannot be listed, and is left out: %s", folder.path, exc.strerror)
        return []
    # Without a link, neither the kind nor the real path needs a system call. `DirEntry.is_dir` raises at a link in a
    # circle.
    return [
        Entry(entry.path, os.path.realpath(entry), entry.name, os.path.isdir(entry), True)
        if is_link
        else Entry(entry.path, os.path.join(folder.real, entry.name), entry.name, entry.is_dir())
        for entry, is_link in inside
    ]


def _near_path(path: str) -> str:
    """Return which paths a user may mean instead: entries of the deepest folder that exists."""
    folder, name = os.path.split(path.rstrip("/"))
    notes = []
    while folder and folder != "/" and not os.path.isdir(folder):
        notes = [f"there is no {folder!r}"]
        folder, name = os.path.split(folder)
    try:
        entries = os.listdir(folder or ".")
    except OSError:
        return ""
    if has_magic(name):
        return f"{folder or '.'!r} has {few(sorted(entries), 3)}" if entries and not notes else ""
    near = difflib.get_close_matches(name, entries[:_MAX_COMPARED], n=3, cutoff=0.6)
    notes += (
        [f"did you mean {' or '.join(repr(os.path.join(folder, candidate)) for candidate in near)}?"] if near else []
    )
    return "; ".join(notes)
