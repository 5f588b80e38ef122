"""URLs as a user writes them -> the files in stores, with their states: a listing has both."""

from __future__ import annotations

import posixpath
from collections.abc import Sequence

from ray_h5.errors import NotFoundError, NotReadableError, OptionError
from ray_h5.messages import near_names
from ray_h5.storage.addresses import has_magic, shown, without_secrets
from ray_h5.storage.request_pool import each_waiting
from ray_h5.storage.search import Endings, Entry, States, Taken, search, split_glob
from ray_h5.storage.storage_of_path import Storage
from ray_h5.storage.stores.store_base import InStore


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
        self._inside: dict[str, list[Entry]] = {}
        self._whole: set[str] = set()  # folders of which all that is below them is listed
        self._files: dict[str, Entry] = {}
        plain = dict.fromkeys(without_secrets(url)[0] for url in urls)
        self._named = self._states([url for url in plain if self._is_file_name(url)])

    def find(self, path: str) -> Taken | None:
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
        return None if state is None else Taken({url: state})

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
        above, parts = split_glob(address.key.rstrip("/").split("/"), url)
        top = address.url("/".join(above)).removesuffix("/")
        taken = search(self._entries, Entry(top, top), parts, self._endings)
        if parts and (named := self._files.get(address.url(address.key))) is not None:
            taken = Taken({named.path: named.state})  # a name that looks like a glob
        # The listing of the Hub has other states than the hosts that it redirects to.
        states = self._states([*taken.files]) if address.kind == "hf" else taken.files
        existing: States = {name: state for name, state in states.items() if state is not None}
        return Taken(existing, taken.other_endings) if any(taken) else None

    def _entries(self, folder: Entry, part: str, below: bool) -> list[Entry]:  # noqa: ARG002  all of a folder is listed
        """Return what is in a folder. All that is below it is listed together, if that is asked for next."""
        top = folder.path
        if top in self._whole or (top in self._inside and not below):
            return self._inside[top]
        files, folders = self._storage.list(f"{top}/", below=below)
        begin = len(self._storage.address(f"{top}/").key)
        inside: dict[str, list[Entry]] = {top: [_folder(f"{top}/{key[begin:]}") for key in folders]}
        for file in files:
            *parents, name = file.key[begin:].split("/")
            place = top
            for parent in parents:
                above, place = place, f"{place}/{parent}"
                if place not in inside:
                    inside[place] = []
                    inside[above].append(_folder(place))
            if name or not file.key:  # not what some programs write for a folder
                self._files[f"{place}/{name}"] = entry = Entry(file.url, file.url, name, False, False, file.identity)
                inside[place].append(entry)
        self._inside |= inside
        if below:
            self._whole |= inside.keys()
        return inside[top]


def _folder(path: str) -> Entry:
    return Entry(path, path, posixpath.basename(path))
