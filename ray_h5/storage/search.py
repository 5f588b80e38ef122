"""Folders and globs -> the files that they name: one search for disks and stores, over what lists a folder.

Symbolic links can give a file or a folder many names. A search takes each of them once, under the name that passes the
fewest links; of these, under the first in natural order. Two real paths are two files, also for hard links.
"""

from __future__ import annotations

import contextlib
import difflib
import fnmatch
import heapq
import logging
import os
import posixpath
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple, TypeAlias
from urllib.parse import unquote_to_bytes

from ray_h5.errors import NotFoundError, NotReadableError, OptionError
from ray_h5.messages import few, near_names
from ray_h5.options import DEFAULT_EXTENSIONS, require
from ray_h5.storage.addresses import has_magic, scheme_of, shown, without_secrets
from ray_h5.storage.byte_source import ObjectIdentity
from ray_h5.storage.local import absolute_path
from ray_h5.storage.natural_order import natural_key
from ray_h5.storage.request_pool import each_waiting
from ray_h5.storage.stores.store_base import Found, InStore
from ray_h5.storage.write_notes import (
    HIDDEN,
    Notes,
    is_hidden_of_write,
    notes_in_store,
    notes_on_disk,
    settled,
    uncounted,
)

logger = logging.getLogger(__name__)

_MAX_COMPARED = 5000

States = dict[str, ObjectIdentity | None]
"""The states of remote files by their URLs; None for each file of a disk, by its path."""


class FilesOfPath(NamedTuple):
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
        option, is_list = "file_extensions", isinstance(extensions, Collection) and len(extensions) > 0
        # Each letter of a text would be an ending.
        expected = f"a list of endings, found one; write {option}=[{extensions!r}]"
        require(not isinstance(extensions, str), option, extensions, expected)
        is_right = is_list and all(isinstance(ending, str) and ending.strip(".") for ending in extensions or ())
        expected = "at least one ending, such as 'h5', or None for all files"
        require(extensions is None or is_right, option, extensions, expected)
        endings = {"." + ending.lstrip(".").lower() for ending in extensions or ()}
        self._endings = None if extensions is None else tuple(endings)
        self._are_usual = endings == {f".{ending}" for ending in DEFAULT_EXTENSIONS}

    def take(self, path: str, part: str = "") -> bool:
        """Return whether a file is taken; `part` is that of a glob which it matches itself.

        ``*.nc`` says which ending is wanted, so that all it matches is taken. Endings that the user chose are more
        explicit.
        """
        if self._endings is None or path.lower().endswith(self._endings):
            return True
        extension = posixpath.splitext(part)[1]
        return self._are_usual and len(extension) > 1 and not has_magic(extension)


def _split_glob(parts: Sequence[str], path: str) -> tuple[Sequence[str], list[str]]:
    """Return the parts of a path above the first that is a glob, and from it on. A slash at the end means folders."""
    first = next((at for at, part in enumerate(parts) if has_magic(part)), len(parts))
    below = list(parts[first:])
    return parts[:first], [*below, "**"] if below and path.endswith("/") else below


def _search(list_folder: ListFolder, top: Entry, parts: Sequence[str], endings: Endings) -> FilesOfPath:
    """Return the files below a folder that a glob matches, and those in the folders that it matches; [] matches all."""
    matched, folders = _matches(list_folder, top, parts) if parts else ([], [top])
    below = [file for _, inside in _descend(list_folder, folders) for file in _files(inside)]
    files = {file.path: file for file in matched if endings.take(file.path, parts[-1])}
    files |= {file.path: file for file in below if endings.take(file.path)}
    num_others = len({file.path for file in (*matched, *below)} - files.keys())
    each_once: dict[str, Entry] = {}
    for file in files.values():
        same = each_once.setdefault(file.real, file)
        if same is not file:
            each_once[file.real] = min(same, file, key=_by_links)
    return FilesOfPath({file.path: file.state for file in each_once.values()}, num_others)


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


# On a disk -----------------------------------------------------------------------------------------


def find_on_disk(path: str, root: str, endings: Endings) -> FilesOfPath | None:
    """Return what a file, folder or glob names; None if it does not exist. Relative paths start from `root`."""
    for spelling in _spellings(path):
        spelt = os.path.join(root, spelling)
        is_folder = os.path.isdir(spelt)
        if is_folder:
            try:
                os.scandir(spelt).close()
            except OSError as exc:
                raise NotReadableError(
                    f"{spelt}: this folder cannot be listed: {exc.strerror}; ask for the right to read it"
                ) from exc
        elif os.path.lexists(spelt):
            return FilesOfPath({absolute_path(spelt): None})
        above, parts = ([spelt], []) if is_folder else _split_glob(Path(spelt).parts, spelt)
        top = os.path.join("", *above)
        if os.path.isdir(top or "."):
            taken = _search(_entries_on_disk, Entry(absolute_path(top), os.path.realpath(top)), parts, endings)
            if is_folder or any(taken):
                return taken
    return None


def note_on_disk(path: str, root: str) -> str:
    """Return a path that does not exist, and what to say about it: entries of the deepest folder that exists."""
    path = os.path.join(root, _spellings(path)[0])
    notes = ["a glob that matches nothing"] if has_magic(path) else []
    folder, name = os.path.split(path.rstrip("/"))
    missing = ""
    while folder and folder != "/" and not os.path.isdir(folder):
        missing = folder
        folder, name = os.path.split(folder)
    entries: list[str] | None = None
    with contextlib.suppress(OSError):
        entries = os.listdir(folder or ".")
    if entries is not None and has_magic(name):
        notes += [f"{folder or '.'!r} has {few(sorted(entries), 3)}"] if entries and not missing else []
    elif entries is not None:
        near = difflib.get_close_matches(name, entries[:_MAX_COMPARED], n=3, cutoff=0.6)
        meant = " or ".join(repr(os.path.join(folder, candidate)) for candidate in near)
        hints = [f"there is no {missing!r}" if missing else "", f"did you mean {meant}?" if meant else ""]
        notes += ["; ".join(filter(None, hints))] if any(hints) else []
    notes += [] if os.path.isabs(path) else [f"looked in {Path.cwd()}"]
    return f"{path} ({', '.join(notes)})" if notes else path


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


def _entries_on_disk(folder: Entry, part: str, below: bool) -> list[Entry]:  # noqa: ARG001  each folder is listed by itself
    """Return what is in a folder, or what a part of a glob that is a name leads to."""
    if part and not has_magic(part):  # to look costs less than to list; and it may be ..
        path = os.path.join(folder.path, part)
        entry = Entry(absolute_path(path), os.path.realpath(path), part, os.path.isdir(path), Path(path).is_symlink())
        return [entry] if os.path.lexists(path) else []
    inside, notes = settled(folder.path, partial(_scan, folder), _notes_among)
    left_out = uncounted(notes)
    return [entry for entry in inside if entry.path not in left_out] if left_out else inside


def _notes_among(inside: Iterable[Entry]) -> Notes:
    return notes_on_disk(e.path for e in inside if is_hidden_of_write(e.name) and e.is_folder and not e.is_link)


def _scan(folder: Entry) -> list[Entry]:
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


# In stores -----------------------------------------------------------------------------------------


class StoreSearch:
    """Finds the files in stores that URLs name. Each folder is listed once.

    Parameters
    ----------
    urls : sequence of str
        All URLs of the user: the states of those that look like files are asked for side by side.
    storage : InStore
        Where they are.
    endings : Endings
        Those of files that are taken from folders and globs.
    """

    def __init__(self, urls: Sequence[str], storage: InStore, endings: Endings) -> None:
        self._storage, self._endings = storage, endings
        self._inside: dict[str, list[Entry]] = {}
        self._whole: set[str] = set()  # folders of which all that is below them is listed
        self._files: dict[str, Entry] = {}
        plain = dict.fromkeys(without_secrets(url)[0] for url in urls)
        self._named = self._states([url for url in plain if self._is_file_name(url)])

    def find(self, path: str) -> FilesOfPath | None:
        """Return what a file, folder or glob names; None if it does not exist."""
        url = without_secrets(path)[0]
        state, refused = self._named.get(url), None
        may_be_file = not has_magic(url) and not url.endswith("/")
        if state is None:
            try:
                taken = self._folder_or_glob(url)
            except NotReadableError as exc:
                if not may_be_file:
                    raise
                taken, refused = None, exc  # who may not list may read
            if taken is not None or not may_be_file or url in self._named:
                return taken
            state = self._states([url])[url]
        if state is None and refused is not None:
            raise refused
        return None if state is None else FilesOfPath({url: state})

    def note(self, path: str) -> str:
        """Return a URL of what does not exist, and what to say about it: names near it."""
        path, note = shown(path), ""
        address = self._storage.address(path)
        if has_magic(path):
            note = "a glob that matches nothing"
        elif address.kind != "https":
            folder = address.url(address.key.rpartition("/")[0]).removesuffix("/")
            try:
                inside = self._entries(Entry(folder, folder), "", False)
                note = near_names(path, [entry.path for entry in inside]).strip() if inside else "the folder is empty"
            except (NotFoundError, OptionError, OSError):
                pass
        return f"{path} ({note})" if note else path

    def _states(self, urls: Sequence[str]) -> States:
        """Return the states of files; None for what does not exist."""
        return dict(zip(urls, each_waiting(self._storage.identity, urls), strict=True))

    def _is_file_name(self, url: str) -> bool:
        """Return whether a URL names one file by all appearances, so that nothing has to be listed."""
        address = self._storage.address(url)
        is_file = not address.key.endswith("/") if address.kind == "https" else posixpath.splitext(address.key)[1]
        return bool(address.key and is_file) and address.kind != "hf" and not has_magic(address.key)

    def _folder_or_glob(self, url: str) -> FilesOfPath | None:
        address = self._storage.address(url)
        if address.kind == "https":
            # As it is written: %5B in the URL is a bracket in the name of a file.
            written = url.partition("://")[2].partition("/")[2].partition("?")[0]
            if has_magic(written) or not address.key or address.key.endswith("/"):
                raise OptionError(
                    f"{shown(url)}: a server of https:// does not list its files, so folders and globs cannot be read. "
                    "Name the files one by one, or use s3://, gs:// or az:// if it is a store."
                )
            return None
        above, parts = _split_glob(address.key.rstrip("/").split("/"), url)
        top = address.url("/".join(above)).removesuffix("/")
        taken = _search(self._entries, Entry(top, top), parts, self._endings)
        if parts and (named := self._files.get(address.url(address.key))) is not None:
            taken = FilesOfPath({named.path: named.state})  # a name that looks like a glob
        # The listing of the Hub has other states than the hosts that it redirects to.
        states = self._states([*taken.files]) if address.kind == "hf" else taken.files
        existing: States = {name: state for name, state in states.items() if state is not None}
        return FilesOfPath(existing, taken.other_endings) if any(taken) else None

    def _entries(self, folder: Entry, part: str, below: bool) -> list[Entry]:  # noqa: ARG002  all of a folder is listed
        """Return what is in a folder. All that is below it is listed together, if that is asked for next."""
        top = folder.path
        if top in self._whole or (top in self._inside and not below):
            return self._inside[top]
        begin = len(self._storage.address(f"{top}/").key)

        def notes_among(listed: tuple[list[Found], list[str]]) -> Notes:
            keys = {key[begin:] for key in (*(file.key for file in listed[0]), *listed[1]) if HIDDEN in key}
            parts = [key.split("/") for key in keys]
            hidden = {tuple(p[: at + 1]) for p in parts for at, name in enumerate(p) if is_hidden_of_write(name)}
            return notes_in_store(self._storage, [f"{top}/{'/'.join(names)}" for names in sorted(hidden)])

        (files, folders), notes = settled(top, lambda: self._storage.list(f"{top}/", below=below), notes_among)
        left_out = uncounted(notes)
        inside: dict[str, list[Entry]] = {top: [_folder(f"{top}/{key[begin:]}") for key in folders]}
        for file in files:
            *parents, name = file.key[begin:].split("/")
            place = top
            for parent in parents:
                above, place = place, f"{place}/{parent}"
                if place not in inside:
                    inside[place] = []
                    inside[above].append(_folder(place))
            if f"{place}/{name}" in left_out:
                continue
            if name or not file.key:  # not what some programs write for a folder
                self._files[f"{place}/{name}"] = entry = Entry(file.url, file.url, name, False, False, file.identity)
                inside[place].append(entry)
        self._inside |= inside
        if below:
            self._whole |= inside.keys()
        return inside[top]


def _folder(path: str) -> Entry:
    return Entry(path, path, posixpath.basename(path))
