"""What leads to a column and to the sources of its values: the only place that follows links."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any

import h5py

from ray_h5.errors import CorruptFileError, MissingSourceError, TruncatedFileError, UnknownColumnError
from ray_h5.hdf5.external import Access, identity_now, places_of
from ray_h5.hdf5.layout import FileIdentity
from ray_h5.hdf5.mappings import Mapping
from ray_h5.hdf5.opening import open_h5, translated
from ray_h5.hdf5.rows import few

_MAX_LINK_HOPS = 32
_MAX_NUMBERED = 1 << 20

LinkedFiles = dict[str, tuple[h5py.File, FileIdentity]]
"""The files that links led to, open, by path."""

Sources = dict[str, FileIdentity | None]
"""Files outside, and their states; None for one that is not there."""


@dataclass(frozen=True, slots=True)
class Trail:
    """Follows links, from one group or column on, and notes each file outside that they lead to.

    Attributes
    ----------
    access : Access
        How the file that it begins in is looked at.
    linked : LinkedFiles
        Shared by all trails of that file, which closes them.
    sources : Sources
        The files that it has led to so far, also those that it could not go on from.
    """

    access: Access
    linked: LinkedFiles
    sources: Sources = field(default_factory=dict)

    @property
    def path(self) -> str:
        return self.access.path

    def branch(self) -> Trail:
        """Return one that goes on from here by itself."""
        return Trail(self.access, self.linked, dict(self.sources))

    def follow(self, start: h5py.Group, path: str, hops: int = 0, where: str = "") -> Any:
        """Return what is at `path` below a group; `where` says in messages where that is."""
        here = start
        parts = [part for part in path.split("/") if part not in {"", "."}]
        for depth, part in enumerate(parts):
            name = _stored_name(part)
            with translated(self.path, f"looking up {part!r}"):
                if name is None or not here.id.links.exists(name):
                    where = where or f"below group {self.access.group!r}"
                    raise UnknownColumnError(f"{self.path}: no {'/'.join(parts[: depth + 1])!r} {where}")
            here = self.take(here, part, path, hops)
            if not isinstance(here, h5py.Group) and depth < len(parts) - 1:
                column, below = "/".join(parts[: depth + 1]), parts[depth + 1 :]
                raise UnknownColumnError(f"{self.path}: {column!r} {_no_group(here, column, below)}")
        return here

    def take(self, group: h5py.Group, name: str, path: str, hops: int = 0) -> Any:
        """Return what the link `name` of `group`, which has it, leads to; `path` is for messages."""
        with translated(self.path, f"looking up {name!r}"):
            is_hard = group.id.links.get_info(name.encode()).type == h5py.h5l.TYPE_HARD
            # getlink answers from the link itself and opens nothing behind it.
            link = None if is_hard else group.get(name, getlink=True)
        if link is not None:
            return self._follow_link(group, link, name, hops)
        with translated(self.path, f"opening {path!r}"):
            return _open(group, name)

    def _follow_link(self, group: h5py.Group, link: Any, name: str, hops: int) -> Any:
        if hops >= _MAX_LINK_HOPS:
            raise MissingSourceError(
                f"{self.path}: link {name!r} leads through more than {_MAX_LINK_HOPS} links: a loop"
            )
        try:
            if isinstance(link, h5py.SoftLink):
                start = group.file if link.path.startswith("/") else group
                return self.follow(start, link.path, hops + 1)
            file = self._open_linked(link.filename, group.file.filename, f"external link {name!r}")
            return self.follow(file["/"], link.path, hops + 1)
        except UnknownColumnError as exc:
            raise MissingSourceError(
                f"{self.path}: link {name!r} leads to {link.path!r}, which does not exist"
            ) from exc

    def _open_linked(self, name: str, source: str, where: str) -> h5py.File:
        places = places_of(name, source)
        absent = list(takewhile(lambda place: not os.path.exists(place), places))
        self.sources.update(dict.fromkeys(absent))
        path = (places[len(absent) :] or places)[0]
        self.access.policy.admit(path, home=self.path, where=where)
        self._look_at(path, where)
        if path not in self.linked:
            opened = open_h5(path, self.access.swmr)
            # Of what was opened: by its name there may be another one by now.
            self.linked[path] = opened, FileIdentity.of(os.fstat(opened.id.get_vfd_handle()))
        file, self.sources[path] = self.linked[path]
        return file

    def _look_at(self, path: str, where: str) -> FileIdentity:
        """Return the state of a file outside, and note it, even if there is none: libhdf5 would make up its values."""
        self.sources[path] = found = identity_now(path)
        if found is None:
            raise MissingSourceError(f"{self.path}: {where} leads to {path}, which does not exist")
        return found

    def trace(self, dataset: h5py.Dataset, where: str, hops: int = 0) -> None:
        """Look at each file that the values of a dataset come from, however many steps away."""
        if dataset.is_virtual:
            for mapping in Mapping.all_of(dataset):
                self._trace_mapping(dataset, mapping, f"virtual dataset of {where}", hops)
        left = (dataset.size or 0) * dataset.id.get_type().get_size()
        for file_name, offset, size in dataset.external or ():
            what, path = f"external storage of {where}", os.fsdecode(file_name)
            self.access.policy.admit(path, home=self.path, where=what)
            needed = min(size, left)
            left -= needed
            # libhdf5 would make zeros of what is not there.
            if needed and (found := self._look_at(path, what).size) < offset + needed:
                raise TruncatedFileError(
                    f"{self.path}: {what} is in {path}, {needed} bytes from byte {offset} on: expected "
                    f"{offset + needed} bytes or more, found {found}. The file is cut short: copy it again."
                )

    def _trace_mapping(self, dataset: h5py.Dataset, mapping: Mapping, where: str, hops: int) -> None:
        if hops >= _MAX_LINK_HOPS:
            raise MissingSourceError(f"{self.path}: {where} leads through more than {_MAX_LINK_HOPS} files: a loop")
        for number in range(_MAX_NUMBERED if mapping.is_numbered else 1):
            try:
                source = self.source(dataset, *mapping.numbered(number), where, hops)
            except MissingSourceError:
                if number == 0:
                    raise
                return
            if mapping.source_ndim not in {None, source.ndim}:
                # libhdf5 (2.0) may crash then.
                raise CorruptFileError(
                    f"{self.path}: {where} selects from {source.name!r} of {source.file.filename} as if it had "
                    f"{mapping.source_ndim} axes, found {source.ndim}. Write the virtual dataset again for its source."
                )
            self.trace(source, where, hops + 1)

    def source(
        self, dataset: h5py.Dataset, file_name: str, name: str, where: str = "a virtual dataset", hops: int = 0
    ) -> h5py.Dataset:
        """Return the dataset that a mapping of a virtual one leads to."""
        here = dataset.file
        file = here if file_name == "." else self._open_linked(file_name, here.filename, where)
        try:
            found = self.follow(file["/"], name, hops + 1)
        except UnknownColumnError as exc:
            raise MissingSourceError(f"{self.path}: {where} leads to {name!r} of {file.filename}: {exc}") from exc
        if not isinstance(found, h5py.Dataset):
            raise MissingSourceError(f"{self.path}: {where} leads to {name!r} of {file.filename}, which is a group")
        return found


def _stored_name(name: str) -> bytes | None:
    """Return a name as it is in a file, or None if it cannot be in any: libhdf5 would read up to the NUL."""
    try:
        return None if "\0" in name else name.encode()
    except UnicodeEncodeError:
        return None


def _open(group: h5py.Group, name: str) -> h5py.Group | h5py.Dataset | h5py.Datatype:
    # As h5py does, which besides asks of each anew whether its file is open for writing.
    found = h5py.h5o.open(group.id, name.encode())
    if isinstance(found, h5py.h5d.DatasetID):
        return h5py.Dataset(found, readonly=True)
    return h5py.Group(found) if isinstance(found, h5py.h5g.GroupID) else h5py.Datatype(found)


def _no_group(found: Any, column: str, below: Sequence[str]) -> str:
    """Say that what was found is no group; if it has fields, how to get at one."""
    if not isinstance(found, h5py.Dataset) or found.id.get_type().get_class() != h5py.h5t.COMPOUND:
        return "is not a group"
    type_id = found.id.get_type()
    fields = [type_id.get_member_name(i).decode(errors="replace") for i in range(type_id.get_nmembers())]
    field = "".join(f"[{each!r}]" for each in below)
    return (
        f"is no group, but a column of compound values, whose fields are {few(fields)}. Read the column, and take the "
        f"field from what is read: RowReader.read([{column!r}])[{column!r}]{field}"
    )
