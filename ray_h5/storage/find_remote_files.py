"""URLs as a user writes them -> the files in stores, with their states: a listing has both."""

from __future__ import annotations

import fnmatch
import posixpath
import re
from collections.abc import Callable, Sequence
from functools import cache

from ray_h5.errors import NotFoundError, NotReadableError, OptionError
from ray_h5.messages import near_names
from ray_h5.storage.addresses import Address, has_magic, shown, without_secrets
from ray_h5.storage.byte_source import ObjectIdentity
from ray_h5.storage.request_pool import each_waiting
from ray_h5.storage.search import Endings, States, Taken
from ray_h5.storage.storage_of_path import Storage
from ray_h5.storage.stores.store_base import Found, InStore


class RemoteSearch:
    """Finds the files in stores that URLs name. Each folder is listed once.

    Parameters
    ----------
    urls : sequence of str
        All URLs of the user: the states of those that look like files are asked for side by side.
    storage : Storage
        Where they are.
    endings : Endings
        Those of files that are taken from folders and globs.
    """

    def __init__(self, urls: Sequence[str], storage: Storage, endings: Endings) -> None:
        if not isinstance(storage, InStore):
            raise OptionError(f"{shown(urls[0])}: expected a path of the local file system, found a URL")
        self._storage, self._endings = storage, endings
        self._listed: dict[tuple[str, bool], tuple[list[Found], list[str]]] = {}
        plain = dict.fromkeys(without_secrets(url)[0] for url in urls)
        self._named = self._states([url for url in plain if _is_file_name(storage.address(url))])

    def find(self, path: str) -> Taken | None:
        """Return what a file, folder or glob names; None if it does not exist."""
        url = without_secrets(path)[0]
        state = self._named.get(url)
        if state is not None:
            return Taken({url: state})
        may_be_file = not has_magic(url) and not url.endswith("/")
        refused = None
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
        return None if state is None else Taken({url: state})

    def note(self, path: str) -> str:
        """Return a URL of what does not exist, and what to say about it: names near it."""
        path = shown(path)
        if has_magic(path):
            return f"{path} (a glob that matches nothing)"
        note = self._near_names(path)
        return f"{path} ({note})" if note else path

    def _states(self, urls: Sequence[str]) -> States:
        """Return the states of files; None for what does not exist."""
        return dict(zip(urls, each_waiting(self._state, urls), strict=True))

    def _state(self, url: str) -> ObjectIdentity | None:
        state = self._storage.identity(url)
        return state if isinstance(state, ObjectIdentity) else None

    def _folder_or_glob(self, url: str) -> Taken | None:
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
        named, below, pattern = self._matches(address)
        files = named | below
        if not files:
            return None
        taken = [pattern] if pattern in files else self._endings.take(named, below, pattern)
        # The listing of the Hub has other states than the hosts that it redirects to.
        states = self._states(taken) if address.kind == "hf" else files
        existing: States = {name: state for name in taken if (state := states[name]) is not None}
        return Taken(existing, len(files) - len(taken))

    def _matches(self, address: Address) -> tuple[States, States, str]:
        """Return the files that a glob matches, those in the folders that it matches, and the glob as a URL.

        A folder is a glob without parts that match names: all is below it.
        """
        is_glob = has_magic(address.key)
        key = address.key if is_glob else address.key.rstrip("/")
        parts = key.split("/") if key else []
        first = next((number for number, part in enumerate(parts) if has_magic(part)), len(parts))
        above, pattern = "".join(part + "/" for part in parts[:first]), parts[first:]
        deep = len(pattern) != 1
        files, folders = self._files(address.url(above), below=deep)
        if not deep:
            for name in folders:
                if _matches_parts(name[len(above) :].split("/"), pattern):
                    files = [*files, *self._files(address.url(name + "/"), below=True)[0]]
        literal = {file.url: file.identity for file in files if file.key == address.key}
        if literal:
            return {**literal}, {}, next(iter(literal))
        named: States = {}
        below: States = {}
        for file in files:
            rest = file.key[len(above) :]
            if _is_hidden(rest):
                continue
            names = rest.split("/")
            if _matches_parts(names, pattern):
                named[file.url] = file.identity
            elif any(_matches_parts(names[:count], pattern) for count in range(len(names))):
                below[file.url] = file.identity
        return named, below, address.key if is_glob else ""

    def _files(self, folder: str, *, below: bool) -> tuple[list[Found], list[str]]:
        key = folder, below
        if key not in self._listed:
            self._listed[key] = self._storage.list(folder, below=below)
        return self._listed[key]

    def _near_names(self, url: str) -> str:
        address = self._storage.address(url)
        if address.kind == "https":
            return ""
        folder = address.key.rpartition("/")[0]
        try:
            files, folders = self._files(address.url(folder + "/" if folder else ""), below=False)
        except (NotFoundError, OptionError, OSError):
            return ""
        names = [address.url(key) for key in (*(file.key for file in files), *folders)]
        return near_names(url, names).strip() if names else "the folder is empty"


def _is_file_name(address: Address) -> bool:
    """Return whether a URL names one file by all appearances, so that nothing has to be listed."""
    if address.kind == "https":
        return bool(address.key) and not has_magic(address.key) and not address.key.endswith("/")
    return not has_magic(address.key) and address.kind != "hf" and bool(posixpath.splitext(address.key)[1])


def _is_hidden(key: str) -> bool:
    """Return whether a key is one of a hidden file, or of a folder."""
    return key.endswith("/") or any(part.startswith(".") for part in key.split("/"))


def _matches_parts(parts: Sequence[str], pattern: Sequence[str]) -> bool:
    """Return whether the parts of a key match those of a glob; ``**`` matches any number of them."""
    if not pattern:
        return not parts
    if pattern == ["**"]:
        return bool(parts)
    if pattern[0] == "**":
        return any(_matches_parts(parts[count:], pattern[1:]) for count in range(len(parts) + 1))
    return bool(parts) and _matcher(pattern[0])(parts[0]) is not None and _matches_parts(parts[1:], pattern[1:])


@cache
def _matcher(pattern: str) -> Callable[[str], object]:
    return re.compile(fnmatch.translate(pattern)).match
