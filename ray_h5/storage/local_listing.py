"""Files of the local file system: folders that are searched, and globs.

Symbolic links can give a file or a folder many names. A search takes each of them once, under the name that passes the
fewest links; of these, under the first in natural order. Two real paths are two files, also for hard links.
"""

from __future__ import annotations

import functools
import glob
import itertools
import logging
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from ray_h5.storage.local import Listed, natural_key

logger = logging.getLogger(__name__)


def walk(folders: Iterable[str]) -> Iterator[Listed]:
    """Yield the files in some folders and below them, except hidden ones."""
    for folder, files in _descend(folders):
        for file in files:
            yield _listed(file, folder.real)


def matches(pattern: str) -> tuple[list[Listed], list[Listed]]:
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
    return files, list(walk(folders))


def each_once(files: Iterable[Listed]) -> list[str]:
    """Return one path of each file; see the module for which one."""
    paths: dict[str, list[str]] = {}
    for file in files:
        paths.setdefault(file.real, []).append(file.path)
    return [each[0] if len(each) == 1 else min(each, key=_by_links) for each in paths.values()]


def _matching_paths(pattern: str) -> list[str]:
    # The standard library follows links that lead up at `**`, again and again. With two of them it would not end.
    parts = Path(pattern).parts
    if "**" not in parts:
        return glob.glob(pattern)
    at = parts.index("**")
    tops, below = glob.glob(str(Path(*parts[:at]))), parts[at + 1 :]
    if not below:
        return [file.path for file in walk(tops)]
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
    return sum(each.is_symlink() for each in (Path(path), *Path(path).parents))


def _by_links(path: str) -> tuple[int, str]:
    return _links(path), natural_key(path)
