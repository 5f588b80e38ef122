"""Paths of the local file system as a user writes them -> the files: folders that are searched, and globs.

Symbolic links can give a file or a folder many names. A search takes each of them once, under the name that passes the
fewest links; of these, under the first in natural order. Two real paths are two files, also for hard links.
"""

from __future__ import annotations

import difflib
import functools
import glob
import itertools
import logging
import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote_to_bytes

from ray_h5.errors import NotReadableError, OptionError
from ray_h5.messages import few
from ray_h5.storage.local import Listed, absolute_path
from ray_h5.storage.natural_order import natural_key
from ray_h5.storage.search import Endings, Taken

logger = logging.getLogger(__name__)

_MAX_COMPARED = 5000
_SCHEME = re.compile(r"^([A-Za-z][A-Za-z0-9+.-]*)://")


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
        what = "a glob that matches nothing" if glob.has_magic(path) else ""
        notes = (what, _near_path(path), "" if os.path.isabs(path) else f"looked in {Path.cwd()}")
        return f"{path} ({', '.join(filter(None, notes))})" if any(notes) else path

    def _find(self, path: str) -> Taken | None:
        if os.path.isdir(path):
            try:
                os.scandir(path).close()
            except OSError as exc:
                raise NotReadableError(
                    f"{path}: this folder cannot be listed: {exc.strerror}; ask for the right to read it"
                ) from exc
            return self._taken([], list(_walk([path])), path)
        if os.path.lexists(path):
            return Taken({absolute_path(path): None})
        matched, below = _matches(path) if glob.has_magic(path) else ([], [])
        return self._taken(matched, below, path) if matched or below else None

    def _taken(self, matched: list[Listed], below: list[Listed], pattern: str) -> Taken:
        files = {file.path: file for file in (*matched, *below)}
        names = self.endings.take([file.path for file in matched], [file.path for file in below], pattern)
        taken = dict.fromkeys(map(absolute_path, _each_once(files[name] for name in names)))
        return Taken({**taken}, len(matched) + len(below) - len(names))


def _spellings(text: str) -> list[str]:
    """Return the paths that a user may mean, most likely first: %41 in a URI may be an escape, or part of the name."""
    if "\0" in text:
        raise OptionError(f"{text!r}: a path cannot contain a NUL character")
    scheme = _SCHEME.match(text)
    if scheme:
        text = text[scheme.end() :]
        if scheme[1].lower() == "file" and text.startswith("localhost/"):  # RFC 8089: the host may be named
            text = text.removeprefix("localhost")
    is_escaped = scheme is not None and scheme[1].lower() == "file" and "%" in text
    unescaped = [os.fsdecode(unquote_to_bytes(os.fsencode(text)))] if is_escaped else []
    return [os.path.expanduser(spelling) for spelling in (text, *unescaped)]


def _walk(folders: Iterable[str]) -> Iterator[Listed]:
    """Yield the files in some folders and below them, except hidden ones."""
    for folder, files in _descend(folders):
        for file in files:
            yield _listed(file, folder.real)


def _matches(pattern: str) -> tuple[list[Listed], list[Listed]]:
    """Return the files that a glob matches, and the files in the folders that it matches."""
    real = functools.cache(os.path.realpath)  # most files share few folders
    files: list[Listed] = []
    folders: list[str] = []
    for path in _matching_paths(pattern):
        if not os.path.isdir(path):
            parent, name = os.path.split(path)
            files.append(Listed(path, real(path) if Path(path).is_symlink() else os.path.join(real(parent), name)))
        elif not (glob.has_magic(os.path.basename(pattern)) and _leads_up(path)):
            folders.append(path)
    return files, list(_walk(folders))


def _each_once(files: Iterable[Listed]) -> list[str]:
    """Return one path of each file; see the module for which one."""
    paths: dict[str, list[str]] = {}
    for file in files:
        paths.setdefault(file.real, []).append(file.path)
    return [path[0] if len(path) == 1 else min(path, key=_by_links) for path in paths.values()]


def _matching_paths(pattern: str) -> list[str]:
    # The standard library follows links that lead up at `**`, again and again. With two of them it would not end.
    parts = Path(pattern).parts
    if "**" not in parts:
        return glob.glob(pattern)
    at = parts.index("**")
    tops, below = glob.glob(str(Path(*parts[:at]))), parts[at + 1 :]
    if not below:
        return [file.path for file in _walk(tops)]
    folders = (glob.escape(folder.path) for folder, _ in _descend(tops))
    return [path for folder in folders for path in _matching_paths(os.path.join(folder, *below))]


def _descend(tops: Iterable[str]) -> Iterator[tuple[Listed, list[os.DirEntry[str]]]]:
    """Yield each folder from `tops` down once, with its files.

    Folders are compared by real path: on some mounts inodes are not unique, and a folder would be lost. A
    folder that is reached through a link is searched after all that pass fewer links.
    """
    seen: set[str] = set()
    waiting: dict[int, list[str]] = {}
    for top in tops:
        waiting.setdefault(_links(top), []).append(top)
    while waiting:
        links = min(waiting)
        tops = sorted(waiting.pop(links), key=natural_key, reverse=True)
        stack = [Listed(top, os.path.realpath(top)) for top in tops]
        while stack:
            folder = stack.pop()
            if folder.real in seen:
                continue
            seen.add(folder.real)
            below, files = _entries(folder.path)
            yield folder, files
            for entry in below:
                if not entry.is_symlink():
                    stack.append(_listed(entry, folder.real))
                elif not _leads_up(entry.path):
                    waiting.setdefault(links + 1, []).append(entry.path)


def _entries(folder: str) -> tuple[list[os.DirEntry[str]], list[os.DirEntry[str]]]:
    """Return the folders and the files in a folder, except hidden ones."""
    try:
        with os.scandir(folder) as entries:
            shown = [entry for entry in entries if not entry.name.startswith(".")]
    except OSError as exc:
        # Many disks have such a folder at the top: lost+found.
        logger.warning("%s: this folder cannot be listed, and is left out: %s", folder, exc.strerror)
        return [], []
    # `DirEntry.is_dir` raises at a link in a circle; but without a link it needs no `stat`.
    are_folders = [os.path.isdir(entry) if entry.is_symlink() else entry.is_dir() for entry in shown]
    files = [entry for entry, is_folder in zip(shown, are_folders, strict=True) if not is_folder]
    return list(itertools.compress(shown, are_folders)), files


def _listed(entry: os.DirEntry[str], real_parent: str) -> Listed:
    # Without a link, the real path needs no system call.
    real = os.path.realpath(entry) if entry.is_symlink() else os.path.join(real_parent, entry.name)
    return Listed(entry.path, real)


def _leads_up(folder: str) -> bool:
    """Return whether a folder is a link to one that contains it. To follow it could search a whole disk."""
    if not Path(folder).is_symlink():
        return False
    target, parent = os.path.realpath(folder), os.path.realpath(os.path.dirname(folder))
    return os.path.commonpath([target, parent]) == target


def _links(path: str) -> int:
    """Return how many links a path passes."""
    return sum(parent.is_symlink() for parent in (Path(path), *Path(path).parents))


def _by_links(path: str) -> tuple[int, str]:
    return _links(path), natural_key(path)


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
    if glob.has_magic(name):
        return f"{folder or '.'!r} has {few(sorted(entries), 3)}" if entries and not notes else ""
    near = difflib.get_close_matches(name, entries[:_MAX_COMPARED], n=3, cutoff=0.6)
    notes += (
        [f"did you mean {' or '.join(repr(os.path.join(folder, candidate)) for candidate in near)}?"] if near else []
    )
    return "; ".join(notes)
