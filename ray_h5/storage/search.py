"""Folders and globs -> the files that they name: one search for disks and stores, over what lists a folder.

Symbolic links can give a file or a folder many names. A search takes each of them once, under the name that passes the
fewest links; of these, under the first in natural order. Two real paths are two files, also for hard links.
"""

from __future__ import annotations

import fnmatch
import heapq
import os
import posixpath
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, TypeAlias

from ray_h5.errors import OptionError
from ray_h5.options import DEFAULT_EXTENSIONS
from ray_h5.storage.addresses import has_magic
from ray_h5.storage.byte_source import ObjectIdentity
from ray_h5.storage.natural_order import natural_key

States = dict[str, ObjectIdentity | None]
"""The states of remote files by their URLs; None for each file of a disk, by its path."""


class Taken(NamedTuple):
    """The files that are taken of what a path names, and how many others are there, which end otherwise."""

    files: States
    other_endings: int = 0


class Entry(NamedTuple):
    """A file or folder: its path, the path without links, and its name in its folder. In a store, both are its URL."""

    path: str
    real: str
    name: str = ""
    is_folder: bool = True
    is_link: bool = False
    state: ObjectIdentity | None = None


ListFolder: TypeAlias = Callable[[Entry, str, bool], list[Entry]]
"""``list_folder(folder, part, below)`` returns what is in a folder, or only what a part of a glob names there. `below`
says whether what is in the folders below it is asked for next."""


class Endings:
    """Endings of the files to take from folders and globs, as the user writes them; None takes all files."""

    def __init__(self, extensions: Collection[str] | None) -> None:
        what = f"file_extensions={extensions!r}: expected"
        if isinstance(extensions, str):
            # Each letter would be an ending.
            raise OptionError(f"{what} a list of endings, found one; write file_extensions=[{extensions!r}]")
        is_list = isinstance(extensions, Collection) and len(extensions) > 0
        if extensions is not None and not (
            is_list and all(isinstance(ending, str) and ending.strip(".") for ending in extensions)
        ):
            raise OptionError(f"{what} at least one ending, such as 'h5', or None for all files")
        self._endings = None if extensions is None else {_normal(ending) for ending in extensions}
        self._are_usual = self._endings == {*map(_normal, DEFAULT_EXTENSIONS)}

    def take(self, path: str, part: str = "") -> bool:
        """Return whether a file is taken; `part` is that of a glob which it matches itself.

        ``*.nc`` says which ending is wanted, so that all it matches is taken. Endings that the user chose are more
        explicit.
        """
        if self._endings is None or path.lower().endswith(tuple(self._endings)):
            return True
        extension = posixpath.splitext(part)[1]
        return self._are_usual and len(extension) > 1 and not has_magic(extension)


def _normal(extension: str) -> str:
    return "." + extension.lstrip(".").lower()


def split_glob(parts: Sequence[str], path: str) -> tuple[Sequence[str], list[str]]:
    """Return the parts of a path above the first that is a glob, and from it on. A slash at the end means folders."""
    first = next((at for at, part in enumerate(parts) if has_magic(part)), len(parts))
    below = list(parts[first:])
    return parts[:first], [*below, "**"] if below and path.endswith("/") else below


def search(list_folder: ListFolder, top: Entry, parts: Sequence[str], endings: Endings) -> Taken:
    """Return the files below a folder that a glob matches, and those in the folders that it matches; [] matches all."""
    matched, folders = _matches(list_folder, top, parts) if parts else ([], [top])
    below = [file for _, inside in _descend(list_folder, folders) for file in _files(inside)]
    files = {file.path: file for file in matched if endings.take(file.path, parts[-1])}
    files |= {file.path: file for file in below if endings.take(file.path)}
    num_others = len({file.path for file in (*matched, *below)} - files.keys())
    names: dict[str, list[Entry]] = {}
    for file in files.values():
        names.setdefault(file.real, []).append(file)
    each_once = (same[0] if len(same) == 1 else min(same, key=_by_links) for same in names.values())
    return Taken({file.path: file.state for file in each_once}, num_others)


def _matches(list_folder: ListFolder, top: Entry, parts: Sequence[str]) -> tuple[list[Entry], list[Entry]]:
    """Return the files that a glob matches, and the folders."""
    level: list[tuple[Entry, list[Entry] | None]] = [(top, None)]
    matched: list[Entry] = []
    for part in parts:
        if part == "**":  # any number of folders, of which each is searched once
            level = [*_descend(list_folder, [folder for folder, _ in level])]
            matched = [file for _, inside in level for file in _files(inside or [])]
            continue
        takes = re.compile(fnmatch.translate(part)).match
        listed = (
            inside if inside is not None and has_magic(part) else list_folder(folder, part, len(parts) > 1)
            for folder, inside in level
        )
        matched = [entry for inside in listed for entry in inside if takes(entry.name) and _is_shown(entry, part)]
        level = [(entry, None) for entry in matched if entry.is_folder]
    if parts[-1] == "**":
        return matched, []
    is_glob = has_magic(parts[-1])
    return [entry for entry in matched if not entry.is_folder], [
        folder for folder, _ in level if not (is_glob and _leads_up(folder))
    ]


def _descend(list_folder: ListFolder, tops: Iterable[Entry]) -> Iterator[tuple[Entry, list[Entry]]]:
    """Yield each folder from `tops` down once, with what is in it.

    Folders are compared by real path: on some mounts inodes are not unique, and a folder would be lost. A
    folder that is reached through a link is searched after all that pass fewer links.
    """
    seen: set[str] = set()
    waiting = [(*_by_links(top), top) for top in tops]
    heapq.heapify(waiting)
    while waiting:
        links, _, folder = heapq.heappop(waiting)
        if folder.real in seen:
            continue
        seen.add(folder.real)
        inside = list_folder(folder, "", True)
        yield folder, inside
        for entry in inside:
            if entry.is_folder and _is_shown(entry) and not _leads_up(entry):
                heapq.heappush(waiting, (links + entry.is_link, natural_key(entry.path), entry))


def _files(inside: Iterable[Entry]) -> list[Entry]:
    return [entry for entry in inside if not entry.is_folder and _is_shown(entry)]


def _is_shown(entry: Entry, part: str = "") -> bool:
    """Return whether an entry is not hidden, or a part of a glob says that hidden ones are meant."""
    return not entry.name.startswith(".") or part.startswith(".")


def _leads_up(folder: Entry) -> bool:
    """Return whether a folder is a link to one that contains it. To follow it could search a whole disk."""
    if not folder.is_link:
        return False
    parent = os.path.realpath(os.path.dirname(folder.path))
    return os.path.commonpath([folder.real, parent]) == folder.real


def _by_links(entry: Entry) -> tuple[int, str]:
    """Return how many links a path passes, and what sorts those that pass as many."""
    path = Path(entry.path)
    links = 0 if entry.path == entry.real else sum(parent.is_symlink() for parent in (path, *path.parents))
    return links, natural_key(entry.path)
