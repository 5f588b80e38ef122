"""Follows links to columns and to the sources of their values. No other module does."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import TYPE_CHECKING, Any

import h5py

from ray_h5.errors import CorruptFileError, MissingSourceError, UnknownColumnError, UnsupportedColumnError
from ray_h5.hdf5.metadata.access import Access, places_of
from ray_h5.hdf5.metadata.opening import open_h5, translated
from ray_h5.hdf5.remote.held_bytes import filename_of
from ray_h5.messages import few, printable
from ray_h5.storage.addresses import is_url
from ray_h5.storage.byte_source import FileIdentity, Identity
from ray_h5.storage.local import identity_now

if TYPE_CHECKING:
    from ray_h5.hdf5.remote.other_files import OtherFiles

_MAX_LINKS = 32
"""Links that are followed to find one object. libhdf5 follows 16, but counts again in each path that a link names."""

_MAX_NAMES = 1 << 12
"""Names that are looked up to find one object, with those in the paths of links."""

_MAX_SHOWN = 200

LinkedFiles = dict[str, tuple[h5py.File, Identity]]
"""The files that links led to, open, by path."""

Sources = dict[str, Identity | None]
"""Other files and their states; None for a missing one."""


@dataclass(slots=True)
class _Counts:
    """How many links were followed, and names looked up, on the way to one object."""

    links: int = 0
    names: int = 0


@dataclass(frozen=True, slots=True)
class Trail:
    """Follows links and records each other file that they lead to.

    Attributes
    ----------
    access : Access
        How the first file is opened.
    linked : LinkedFiles
        Shared by all trails of the first file. Its `H5Tree` closes them.
    sources : Sources
        The files that it has led to so far, with missing ones.
    others : OtherFiles, optional
        The other files in the store of a remote file; None for a local one.
    """

    access: Access
    linked: LinkedFiles
    sources: Sources = field(default_factory=dict)
    others: OtherFiles | None = None

    @property
    def path(self) -> str:
        return self.access.path

    def branch(self) -> Trail:
        """Return a copy that continues on its own."""
        return self.with_sources(dict(self.sources))

    def with_sources(self, sources: Sources) -> Trail:
        """Return a trail that records the files which it leads to in `sources`."""
        return Trail(self.access, self.linked, sources, self.others)

    def follow(self, start: h5py.Group, path: str, where: str = "") -> Any:
        """Return the object at `path` below a group; `where` describes the place in messages."""
        return self._follow(start, path, _Counts(), where)

    def take(self, group: h5py.Group, name: str, path: str) -> Any:
        """Return the object that the existing link `name` of `group` leads to; `path` is for messages."""
        return self._take(group, name, path, _Counts())

    def _follow(self, start: h5py.Group, path: str, counts: _Counts, where: str = "") -> Any:
        here = start
        parts = [part for part in path.split("/") if part not in {"", "."}]
        for depth, part in enumerate(parts):
            name = stored_name(part)
            with translated(self.path, f"looking up {part!r}"):
                if name is None or not here.id.links.exists(name):
                    where = where or f"below group {self.access.group!r}"
                    raise UnknownColumnError(f"{self.path}: no {'/'.join(parts[: depth + 1])!r} {where}")
            here = self._take(here, part, path, counts)
            if not isinstance(here, h5py.Group) and depth < len(parts) - 1:
                column, below = "/".join(parts[: depth + 1]), parts[depth + 1 :]
                raise UnknownColumnError(f"{self.path}: {column!r} {_no_group(here, column, below)}")
        return here

    def _take(self, group: h5py.Group, name: str, path: str, counts: _Counts) -> Any:
        counts.names += 1
        if counts.names > _MAX_NAMES:
            raise CorruptFileError(
                f"{self.path}: {_cut(path)!r} leads through more than {_MAX_NAMES} groups, too many to follow"
            )
        with translated(self.path, f"looking up {name!r}"):
            is_hard = group.id.links.get_info(name.encode()).type == h5py.h5l.TYPE_HARD
            # getlink reads the link alone. It does not open the target.
            link = None if is_hard else group.get(name, getlink=True)
        if link is not None:
            self._check_name(group, name)  # h5py would raise UnicodeDecodeError
            return self._follow_link(group, link, name, counts)
        with translated(self.path, f"opening {path!r}"):
            return open_object(group, name.encode())

    def _check_name(self, group: h5py.Group, name: str) -> None:
        with translated(self.path, f"looking up {name!r}"):
            found = group.id.links.get_val(name.encode())
        path = found if isinstance(found, bytes) else found[-1]
        try:
            path.decode()
        except UnicodeDecodeError:
            raise UnsupportedColumnError(
                f"{self.path}: link {name!r} leads to {path!r}, a name that is not UTF-8. Rename what it leads to "
                "with h5py, by move(), and write the link again."
            ) from None

    def _follow_link(self, group: h5py.Group, link: Any, name: str, counts: _Counts) -> Any:
        counts.links += 1
        if counts.links > _MAX_LINKS:
            raise MissingSourceError(f"{self.path}: link {name!r} leads through more than {_MAX_LINKS} links: a loop")
        try:
            # libhdf5 is never asked to follow a link: it would open files that are not allowed.
            if isinstance(link, h5py.SoftLink):
                start = group.file if link.path.startswith("/") else group
                return self._follow(start, link.path, counts)
            file = self._open_linked(link.filename, filename_of(group.file), f"external link {name!r}")
            return self._follow(file["/"], link.path, counts)
        except UnknownColumnError as exc:
            raise MissingSourceError(
                f"{self.path}: link {name!r} leads to {_cut(link.path)!r}, which does not exist"
            ) from exc

    def _open_linked(self, name: str, source: str, where: str) -> h5py.File:
        path = self.located(name, source, where)
        state = self.look_at(path, where)
        if path not in self.linked:
            if self.others is not None:
                self.linked[path] = self.others.open(path), state
            else:
                opened = open_h5(path, self.access.swmr)
                # The identity of the open file: another file may have its name by now.
                self.linked[path] = opened, FileIdentity.of(os.fstat(opened.id.get_vfd_handle()))
        file, self.sources[path] = self.linked[path]
        return file

    def located(self, name: str, source: str, where: str) -> str:
        """Return the path of the file that `source` links to by `name`; raise unless it may be read."""
        if self.others is not None:
            return self.others.located(name, source, where)
        if is_url(name):
            self.access.policy.admit(name, home=self.path, where=where)  # never
        # libhdf5 takes the first place that exists. The missing ones before it are recorded too: a file that appears
        # there later would be read instead.
        places = places_of(name, source)
        absent = list(takewhile(lambda place: not os.path.exists(place), places))
        self.sources.update(dict.fromkeys(absent))
        path = (places[len(absent) :] or places)[0]
        self.access.policy.admit(path, home=self.path, where=where)
        return path

    def look_at(self, path: str, where: str) -> Identity:
        """Return the state of another file, and record it; raise if it is missing: libhdf5 would invent its values."""
        self.sources[path] = found = identity_now(path) if self.others is None else self.others.state(path)
        if found is None:
            raise MissingSourceError(f"{self.path}: {where} leads to {printable(path)}, which does not exist")
        return found

    def source(
        self, dataset: h5py.Dataset, file_name: str, name: str, where: str = "a virtual dataset"
    ) -> h5py.Dataset:
        """Return the source dataset of a mapping of a virtual dataset."""
        here = dataset.file
        file = here if file_name == "." else self._open_linked(file_name, filename_of(here), where)
        leads = f"{self.path}: {where} leads to {name!r} of {printable(filename_of(file))}"
        try:
            found = self.follow(file["/"], name)
        except UnknownColumnError as exc:
            raise MissingSourceError(f"{leads}: {exc}") from exc
        if not isinstance(found, h5py.Dataset):
            raise MissingSourceError(f"{leads}, which is a group")
        return found


def stored_name(name: str) -> bytes | None:
    """Return a name as a file stores it; None if no file can: libhdf5 would stop reading at a NUL."""
    try:
        return None if "\0" in name else name.encode()
    except UnicodeEncodeError:
        return None


def open_object(group: h5py.Group, name: bytes) -> h5py.Group | h5py.Dataset | h5py.Datatype:
    """Return the object of a hard link."""
    # Like h5py's group[name], which also asks whether the file is open for writing, each time.
    found = h5py.h5o.open(group.id, name)
    if isinstance(found, h5py.h5d.DatasetID):
        return h5py.Dataset(found, readonly=True)
    return h5py.Group(found) if isinstance(found, h5py.h5g.GroupID) else h5py.Datatype(found)


def _no_group(found: Any, column: str, below: Sequence[str]) -> str:
    """Return the message for an object that is not a group. For compound values it says how to read a field."""
    if not isinstance(found, h5py.Dataset) or found.id.get_type().get_class() != h5py.h5t.COMPOUND:
        return "is not a group"
    type_id = found.id.get_type()
    fields = [type_id.get_member_name(i).decode(errors="replace") for i in range(type_id.get_nmembers())]
    field = "".join(f"[{each!r}]" for each in below)
    return (
        f"is no group, but a column of compound values, whose fields are {few(fields)}. Read the column, and take the "
        f"field from what is read: RowReader.read([{column!r}])[{column!r}]{field}"
    )


def _cut(path: str) -> str:
    return path if len(path) <= _MAX_SHOWN else f"{path[:_MAX_SHOWN]}..."
