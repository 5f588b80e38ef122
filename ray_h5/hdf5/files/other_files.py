"""The other files in the store that a remote file refers to: their names, their states, and the files once opened."""

from __future__ import annotations

import os
import re
import threading
import weakref
from collections.abc import Callable, Container, Iterable
from dataclasses import replace
from typing import Any, cast

import h5py

from ray_h5.errors import ExternalDataError, MissingSourceError, OptionError
from ray_h5.hdf5.files.external_policy import Access
from ray_h5.hdf5.files.metadata_replay import HeldBytes, ask_later
from ray_h5.hdf5.files.opening import open_remote
from ray_h5.manifest.file_state import SourceStates
from ray_h5.messages import printable
from ray_h5.storage.addresses import is_url, shown, without_secrets
from ray_h5.storage.byte_source import Identity
from ray_h5.storage.request_pool import each_waiting
from ray_h5.storage.stores.store_base import InStore

_COPY = (
    "Copy the values into the file (`h5repack`, or h5py's copy() with expand_external=True); or put both files into one"
    " folder of the store, and write the link again with a relative name."
)
_DRIVE = re.compile(r"[A-Za-z]:[\\/]")


class OtherFiles:
    """Other files that one remote file, or those that it leads to, refer to.

    The state of each is asked for once, or is that of a plan. Each request for its bytes says which state it wants.

    Parameters
    ----------
    first : OpenFile
        The file that was opened first. It may always be read.
    opens : callable
        Opens another file, given how, its state, and these files.
    """

    def __init__(self, first: Any, opens: Callable[[Access, Identity, OtherFiles], Any]) -> None:
        self._opens = opens
        self._first = weakref.ref(first)
        self._access, self._identity, self.home = first.access, first.identity, first.access.path
        self._storage = cast("InStore", first.access.storage)
        self._states: dict[str, Identity | None] = {}
        self._files: dict[tuple[str, str], Any] = {}
        self._lock = threading.RLock()

    @property
    def cached_bytes(self) -> int:
        """Bytes that the files hold in memory."""
        return sum(file.cached_bytes for file in list(self._files.values()))

    def located(self, name: str, source: str, where: str) -> str:
        """Return the URL of a file that `source` refers to by `name`; raise unless it may be read."""
        url = self._url_of(name, source, f"{self.home}: {where} leads to")
        self._access.policy.admit_remote(url, home=self.home, where=where, storage=self._storage)
        return url

    def _url_of(self, name: str, source: str, begin: str) -> str:
        """Return the URL of a name in the file `source`; `begin` begins messages.

        Raises
        ------
        ExternalDataError
            If it is a local path, of another store, or above the top of the store.
        MissingSourceError
            If no file of a store can have that name.
        """
        here = self._storage.address(source)
        parts = here.key.split("/")[:-1]
        if is_url(name):
            try:
                there = self._storage.address(without_secrets(name)[0])
            except OptionError:
                there = None
            if there is None or (there.kind, there.root) != (here.kind, here.root):
                raise ExternalDataError(
                    f"{begin} {printable(shown(name))}, which is not in {here.url('')}. A file in a store leads to "
                    f"files of the same bucket or host only. {_COPY}"
                )
            parts = there.key.split("/")
            if not {"", ".", ".."}.isdisjoint(parts):
                raise ExternalDataError(
                    f"{begin} {printable(shown(name))}, a URL with an empty part, '.' or '..' in it. Write the link "
                    "again with the URL without them, or with a relative name."
                )
        elif os.path.isabs(name) or "://" in name or _DRIVE.match(name) or name.startswith("\\\\"):
            raise ExternalDataError(
                f"{begin} {printable(name)}, a path of a local disk. A file in a store leads to files of the same "
                f"store only. {_COPY}"
            )
        else:
            for part in name.split("/"):
                if part == ".." and not parts:
                    raise ExternalDataError(
                        f"{begin} {printable(name)}, which is above the top of {here.url('')}. Write the link again "
                        "with a name below it."
                    )
                if part == "..":
                    parts.pop()
                elif part not in {"", "."}:
                    parts.append(part)
        key = "/".join(parts)
        try:
            key.encode()
        except UnicodeEncodeError:
            raise MissingSourceError(
                f"{begin} {printable(name)!r}, a name that is not UTF-8, which no file in a store has"
            ) from None
        if not key:
            raise MissingSourceError(f"{begin} {printable(name)!r}, which is a folder")
        return here.url(key)

    def state(self, url: str) -> Identity | None:
        """Return the state of a file; None if it does not exist."""
        if url == self.home:
            return self._identity
        if url not in self._states:
            ask_later((id(self), url), lambda: self._states.update({url: self._storage.identity(url)}))
        return self._states[url]

    def expect(self, sources: SourceStates) -> None:
        """Take the states of a plan for those of files that were not looked at."""
        for url, state in sources:
            if url != self.home:
                self._states.setdefault(url, state)

    def are_current(self, planned: Iterable[SourceStates] | None = None) -> bool:
        """Return whether all files that were looked at have the same states now; or those of a plan, if it is given."""
        if planned is not None:
            states = {**self._states, self.home: self._identity}
            return all(states.get(url, state) == state for source in planned for url, state in source)
        urls = list(self._states)
        return each_waiting(self._storage.identity, urls) == [self._states[url] for url in urls]

    def opened(self, urls: Container[str]) -> list[Any]:
        """Return those of some files that were opened."""
        return [file for (url, _), file in dict(self._files).items() if url in urls]

    @property
    def held(self) -> list[HeldBytes]:
        """What is in memory of each file."""
        return [file.held for file in list(self._files.values())]

    def open(self, url: str) -> h5py.File:
        """Open a file with libhdf5, of bytes in memory."""
        return open_remote(url, self.file(url).held)

    def file(self, url: str, group: str = "/") -> Any:
        """Return a file, opened with a group."""
        access = replace(self._access, path=url, group=group, beside="")
        if (first := self._first()) is not None and first.access == access:
            return first
        with self._lock:
            if (url, group) not in self._files:
                # It may be named by an index on disk.
                if url != self._access.beside:
                    self._access.policy.admit_remote(url, home=self.home, where="a column", storage=self._storage)
                if (state := self.state(url)) is None:
                    raise MissingSourceError(f"{self.home}: a column leads to {url}, which does not exist")
                same = [file for file in (first, *self._files.values()) if file is not None and file.access.path == url]
                self._files[url, group] = opened = self._opens(access, state, self)
                opened.held = (*same, opened)[0].held
            return self._files[url, group]
