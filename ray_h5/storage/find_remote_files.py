"""URLs as a user writes them -> the files in stores, with their states: a listing has both."""

from __future__ import annotations

import fnmatch
import posixpath
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache

from ray_h5.errors import NotFoundError, NotReadableError, OptionError
from ray_h5.messages import near_names
from ray_h5.storage.addresses import Address, has_magic, shown, without_secrets
from ray_h5.storage.byte_source import ObjectIdentity
from ray_h5.storage.fetching import fetching_threads
from ray_h5.storage.storage_of_path import RemoteStorage, Storage
from ray_h5.storage.stores.object_store import Found

States = dict[str, ObjectIdentity]
"""The states of files, by their URLs."""

_THREADS = 32


@dataclass(slots=True)
class RemoteFiles:
    """Finds the files that URLs name. Each folder is listed once.

    Attributes
    ----------
    storage : RemoteStorage
        Where they are.
    """

    storage: RemoteStorage
    _listed: dict[tuple[str, bool], tuple[list[Found], list[str]]] = field(default_factory=dict)

    def named(self, urls: Sequence[str]) -> dict[str, ObjectIdentity | None]:
        """Return the states of files that are named themselves; None for what does not exist."""
        return self._states([url for url in urls if _is_file_name(self.storage.address(url))])

    def _states(self, urls: Sequence[str]) -> dict[str, ObjectIdentity | None]:
        if len(urls) < 2:
            return {url: self.identity(url) for url in urls}
        with fetching_threads(min(_THREADS, len(urls)), "ray_h5_look") as pool:
            return dict(zip(urls, pool.map(self.identity, urls), strict=True))

    def identity(self, url: str) -> ObjectIdentity | None:
        """Return the state of a file; None if it does not exist."""
        found = self.storage.identity(url)
        return found if isinstance(found, ObjectIdentity) else None

    def candidates(self, url: str, by_glob: bool) -> tuple[States, States] | None:
        """Return the files that are taken with any ending, and the others; None if there is nothing.

        Parameters
        ----------
        url : str
            A folder, or a glob, or a file whose name does not look like one.
        by_glob : bool
            Whether a glob that ends in an extension takes what it matches.
        """
        address = self.storage.address(url)
        if address.kind == "https":
            # As it is written: %5B in the URL is a bracket in the name of a file.
            written = url.partition("://")[2].partition("/")[2].partition("?")[0]
            if has_magic(written) or not address.key or address.key.endswith("/"):
                raise OptionError(
                    f"{shown(url)}: a server of https:// does not list its files, so folders and globs cannot be read. "
                    "Name the files one by one, or use s3://, gs:// or az:// if it is a store."
                )
            return None
        if address.kind == "hf":
            return self._with_states(self._listed_files(address, by_glob))
        return self._listed_files(address, by_glob)

    def _with_states(self, found: tuple[States, States] | None) -> tuple[States, States] | None:
        """Return files with the states that they have where the Hub redirects to: its listing has others."""
        states = self._states([*found[0], *found[1]] if found else [])
        if found is None:
            return None
        named, others = ({url: state for url in part if (state := states[url])} for part in found)
        return named, others

    def _listed_files(self, address: Address, by_glob: bool) -> tuple[States, States] | None:
        if has_magic(address.key):
            return self._matches(address, by_glob)
        folder = address.url(address.key.rstrip("/") + "/" if address.key else "")
        found = _shown_files(self._files(folder, below=True)[0], self.storage.address(folder).key)
        return ({}, found) if found else None

    def _matches(self, address: Address, by_glob: bool) -> tuple[States, States] | None:
        parts = address.key.split("/")
        first = next(number for number, part in enumerate(parts) if has_magic(part))
        folder = "".join(part + "/" for part in parts[:first])
        deep = first < len(parts) - 1
        files, folders = self._files(address.url(folder), below=deep)
        if not deep:
            for name in folders:
                if _matches_parts(name.split("/")[first:], parts[first:]):
                    files = [*files, *self._files(address.url(name + "/"), below=True)[0]]
        literal = {each.url: each.identity for each in files if each.key == address.key}
        if literal:
            return literal, {}
        named: States = {}
        below: States = {}
        for each in files:
            rest = each.key.split("/")[first:]
            if each.key.endswith("/") or _is_hidden(rest):
                continue
            if _matches_parts(rest, parts[first:]):
                named[each.url] = each.identity
            elif any(_matches_parts(rest[:count], parts[first:]) for count in range(1, len(rest))):
                below[each.url] = each.identity
        if not named and not below:
            return None
        extension = posixpath.splitext(parts[-1])[1]
        takes_all = by_glob and len(extension) > 1 and not has_magic(extension)
        return (named, below) if takes_all else ({}, {**named, **below})

    def _files(self, folder: str, *, below: bool) -> tuple[list[Found], list[str]]:
        key = folder, below
        if key not in self._listed:
            self._listed[key] = self.storage.list(folder, below=below)
        return self._listed[key]

    def note(self, url: str) -> str:
        """Return what to say about a file that does not exist: names near it."""
        address = self.storage.address(url)
        if address.kind == "https":
            return ""
        folder = address.key.rpartition("/")[0]
        try:
            files, folders = self._files(address.url(folder + "/" if folder else ""), below=False)
        except (NotFoundError, OptionError, OSError):
            return ""
        names = [address.url(each.key) for each in files] + [address.url(each) for each in folders]
        return near_names(url, names).strip() if names else "the folder is empty"


@dataclass(slots=True)
class RemoteSearch:
    """The files in stores that were taken so far.

    Attributes
    ----------
    finder : RemoteFiles
        Finds them.
    named : dict
        The states of URLs that look like files; None for what does not exist.
    ends_well : callable
        Returns whether a file that is not named itself is taken.
    taken : dict
        The states of the files that are taken, by URL.
    missing : list of str
        What does not exist.
    other_endings : int
        Files that are there and end otherwise.
    """

    finder: RemoteFiles
    named: dict[str, ObjectIdentity | None]
    ends_well: Callable[[str], bool]
    taken: States = field(default_factory=dict)
    missing: list[str] = field(default_factory=list)
    other_endings: int = 0

    @classmethod
    def of(cls, urls: Sequence[str], storage: Storage, by_glob: bool, ends_well: Callable[[str], bool]) -> RemoteSearch:
        """Return a search for the files that URLs name."""
        if not isinstance(storage, RemoteStorage):
            raise OptionError(f"{shown(urls[0])}: expected a path of the local file system, found a URL")
        finder = RemoteFiles(storage)
        named = finder.named(list(dict.fromkeys(without_secrets(url)[0] for url in urls)))
        search = cls(finder, named, ends_well)
        for url in urls:
            search._take(url, by_glob)
        return search

    def _take(self, given: str, by_glob: bool) -> None:
        found = self._files(given, by_glob)
        if found is None:
            self.missing.append(shown(given))
            return
        named, others = found
        taken = {**named, **{url: state for url, state in others.items() if self.ends_well(url)}}
        self.taken.update(taken)
        self.other_endings += len(named) + len(others) - len(taken)

    def _files(self, given: str, by_glob: bool) -> tuple[States, States] | None:
        """Return what `RemoteFiles.candidates` does, of files that are named too."""
        url = without_secrets(given)[0]
        state = self.named.get(url)
        if state is not None:
            return {url: state}, {}
        may_be_file = not has_magic(url) and not url.endswith("/")
        refused = None
        try:
            found = self.finder.candidates(url, by_glob)
        except NotReadableError as exc:
            if not may_be_file:
                raise
            found, refused = None, exc  # who may not list may read
        if found is not None or not may_be_file or url in self.named:
            return found
        state = self.finder.identity(url)
        if state is None and refused is not None:
            raise refused
        return None if state is None else ({url: state}, {})

    def note(self, path: str) -> str:
        """Return a missing file of a store, and what to say about it."""
        if has_magic(path):
            return f"{path} (a glob that matches nothing)"
        note = self.finder.note(path)
        return f"{path} ({note})" if note else path


def _is_file_name(address: Address) -> bool:
    """Return whether a URL names one file by all appearances, so that nothing has to be listed."""
    if address.kind == "https":
        return bool(address.key) and not has_magic(address.key) and not address.key.endswith("/")
    return not has_magic(address.key) and address.kind != "hf" and bool(posixpath.splitext(address.key)[1])


def _shown_files(files: Sequence[Found], folder: str) -> States:
    return {
        each.url: each.identity
        for each in files
        if not each.key.endswith("/") and not _is_hidden(each.key[len(folder) :].split("/"))
    }


def _is_hidden(parts: Sequence[str]) -> bool:
    return any(part.startswith(".") for part in parts)


def _matches_parts(parts: Sequence[str], pattern: Sequence[str]) -> bool:
    """Return whether the parts of a key match those of a glob; ``**`` matches any number of them."""
    if not pattern:
        return not parts
    if pattern[0] == "**":
        return (
            any(_matches_parts(parts[count:], pattern[1:]) for count in range(len(parts) + 1))
            if pattern[1:]
            else (bool(parts))
        )
    return bool(parts) and _matcher(pattern[0])(parts[0]) is not None and _matches_parts(parts[1:], pattern[1:])


@cache
def _matcher(pattern: str) -> Callable[[str], object]:
    return re.compile(fnmatch.translate(pattern)).match
