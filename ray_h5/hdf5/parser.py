"""Open a file safely and describe it; the only place that follows links."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any

import h5py

from ray_h5.errors import (
    CodecUnavailableError,
    CorruptFileError,
    ExternalDataError,
    MissingSourceError,
    RayH5Error,
    TransientIOError,
    TruncatedFileError,
    UnknownColumnError,
    UnsupportedColumnError,
)
from ray_h5.hdf5.external import Access, identity_now, places_of
from ray_h5.hdf5.groups import Descent, Level, Sources
from ray_h5.hdf5.headers import describe_column
from ray_h5.hdf5.layout import ColumnLayout, FileIdentity
from ray_h5.hdf5.mappings import Mapping
from ray_h5.hdf5.opening import open_h5, translated
from ray_h5.hdf5.rows import few, near_names

_MAX_LINK_HOPS = 32

_MAX_NUMBERED = 1 << 20

_MAX_NAMES = 1 << 18
"""A few dozen links can give more paths to a dataset, or to a group without any, than there is time for."""


@dataclass
class H5Tree:
    """The columns of one open file: finds them, follows their links, describes them.

    Parameters
    ----------
    file : h5py.File
        The open file; it belongs to the tree from now on.
    access : Access
        How it is looked at.

    Attributes
    ----------
    sought : dict of str to FileIdentity or None
        The files that lead to columns which cannot be read, or would if they were there.
    """

    file: h5py.File
    access: Access
    sought: Sources = field(default_factory=dict)
    _linked_files: dict[str, tuple[h5py.File, FileIdentity]] = field(default_factory=dict)
    _sources: Sources = field(default_factory=dict)
    _entered: tuple[h5py.Group, Sources] | None = None

    @property
    def path(self) -> str:
        return self.access.path

    @property
    def group(self) -> str:
        return self.access.group

    def dataset(self, name: str) -> h5py.Dataset:
        """Return the dataset of column `name`."""
        found = self._follow(self._enter(), name, hops=0)
        if not isinstance(found, h5py.Dataset):
            raise UnsupportedColumnError(f"{self.path}: {name!r} is a group, not a column; its columns are below it")
        return found

    def column(self, name: str) -> ColumnLayout:
        """Describe column `name`, after a look at every file that its values come from."""
        return self._describe(name, self.dataset(name))

    def columns(self) -> Iterator[tuple[str, ColumnLayout | RayH5Error]]:
        """Describe every dataset, in file order; of what cannot be read, and of a link that leads nowhere, say why."""
        with translated(self.path, "listing its columns"):
            for name, found in self._walk(self._enter()):
                described = found if isinstance(found, RayH5Error) else self._described(name, found)
                if isinstance(described, RayH5Error):
                    self.sought.update(self._sources)
                yield name, _advised(name, described)

    def _described(self, name: str, dataset: h5py.Dataset) -> ColumnLayout | RayH5Error:
        try:
            return self._describe(name, dataset)
        except TransientIOError:
            raise
        except RayH5Error as exc:
            return exc

    def _describe(self, name: str, dataset: h5py.Dataset) -> ColumnLayout:
        with translated(self.path, f"reading the header of column {name!r}"):
            self._trace(dataset, f"column {name!r}", hops=0)
            at_home = not self._sources or dataset.file == self.file
            sources = tuple(self._sources.items())
            return describe_column(dataset, name, path=self.path, at_home=at_home, sources=sources)

    def close(self) -> None:
        """Close the file and those that links led to."""
        for file in [self.file, *(linked for linked, _ in self._linked_files.values())]:
            file.close()

    def _enter(self) -> h5py.Group:
        """Return the group; `_sources` are then the files that links on the way to it led to."""
        if self._entered is None:
            self._sources = {}
            self._entered = self._root(), self._sources
        root, sources = self._entered
        self._sources = dict(sources)
        return root

    def _root(self) -> h5py.Group:
        with translated(self.path, f"opening group {self.group!r}"):
            try:
                root = self._follow(self.file["/"], self.group, hops=0, where="in the file")
            except UnknownColumnError as exc:
                groups = self._groups()
                near = near_names(self.group.strip("/"), groups) if groups else ""
                raise UnknownColumnError(f"{exc}; group={self.group!r} names no group.{near}") from exc
        if not isinstance(root, h5py.Group):
            raise UnknownColumnError(f"{self.path}: group={self.group!r} is a dataset; name the group above it")
        return root

    def _groups(self) -> list[str]:
        """Return the names of the groups just below the root; links are left alone, wherever they lead."""
        root = self.file["/"]
        names = [name for name in root if isinstance(name, str)]
        at_home = [name for name in names if isinstance(root.get(name, getlink=True), h5py.HardLink)]
        return [name for name in at_home if root.get(name, getclass=True) is h5py.Group]

    def _walk(self, root: h5py.Group) -> Iterator[tuple[str, h5py.Dataset | RayH5Error]]:
        """Yield the datasets below `root`, and why a link leads nowhere; `_sources` are those of each."""
        way = Descent(_level(root, "", self._sources))
        groups = 0
        while way:
            for name, found in self._listed(way.last):
                if not isinstance(found, h5py.Group):
                    way.last.holds = True
                    yield name, found
                    continue
                groups += 1
                self.check_count(groups, "groups")
                if way.enter(_level(found, name + "/", self._sources)):
                    break
            else:
                way.leave()

    def _listed(self, level: Level) -> Iterator[tuple[str, h5py.Group | h5py.Dataset | RayH5Error]]:
        """Yield what the next links of a group lead to, as far as it can hold columns."""
        for name in level.names:
            if not isinstance(name, str):
                continue
            path, self._sources = level.prefix + name, dict(level.sources)
            found: Any
            try:
                found = self._take(level.group, name, path, hops=0)
            except TransientIOError:
                raise
            except RayH5Error as exc:
                found = exc
            if isinstance(found, (h5py.Group, h5py.Dataset, RayH5Error)):
                yield path, found

    def check_count(self, count: int, what: str) -> None:
        """Raise if there are more `what` than there is time for."""
        if count > _MAX_NAMES:
            raise CorruptFileError(
                f"{self.path}: more than {_MAX_NAMES} {what} below group {self.group!r}, too many to list. If "
                "the file is as it should be, name the columns to read, or choose a group that has fewer with group=."
            )

    def _follow(self, start: h5py.Group, path: str, hops: int, where: str = "") -> Any:
        here = start
        parts = [part for part in path.split("/") if part not in {"", "."}]
        for depth, part in enumerate(parts):
            name = _stored_name(part)
            with translated(self.path, f"looking up {part!r}"):
                if name is None or not here.id.links.exists(name):
                    where = where or f"below group {self.group!r}"
                    raise UnknownColumnError(f"{self.path}: no {'/'.join(parts[: depth + 1])!r} {where}")
            here = self._take(here, part, path, hops)
            if not isinstance(here, h5py.Group) and depth < len(parts) - 1:
                column, below = "/".join(parts[: depth + 1]), parts[depth + 1 :]
                raise UnknownColumnError(f"{self.path}: {column!r} {_no_group(here, column, below)}")
        return here

    def _take(self, group: h5py.Group, name: str, path: str, hops: int) -> Any:
        """Return what a link leads to that `group` is known to hold; `path` is for messages."""
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
                return self._follow(start, link.path, hops + 1)
            file = self._open_linked(link.filename, group.file.filename, f"external link {name!r}")
            return self._follow(file["/"], link.path, hops + 1)
        except UnknownColumnError as exc:
            raise MissingSourceError(
                f"{self.path}: link {name!r} leads to {link.path!r}, which does not exist"
            ) from exc

    def _open_linked(self, name: str, source: str, where: str) -> h5py.File:
        places = places_of(name, source)
        absent = list(takewhile(lambda place: not os.path.exists(place), places))
        self._sources.update(dict.fromkeys(absent))
        path = (places[len(absent) :] or places)[0]
        self.access.policy.admit(path, home=self.path, where=where)
        self._look_at(path, where)
        if path not in self._linked_files:
            opened = open_h5(path, self.access.swmr)
            # Of what was opened: by its name there may be another one by now.
            self._linked_files[path] = opened, FileIdentity.of(os.fstat(opened.id.get_vfd_handle()))
        file, self._sources[path] = self._linked_files[path]
        return file

    def _look_at(self, path: str, where: str) -> FileIdentity:
        """Return, and keep, the state of a file outside, also that it is not there, for which libhdf5 would fill in."""
        self._sources[path] = found = identity_now(path)
        if found is None:
            raise MissingSourceError(f"{self.path}: {where} leads to {path}, which does not exist")
        return found

    def _trace(self, dataset: h5py.Dataset, where: str, hops: int) -> None:
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
            self._trace(source, where, hops + 1)

    def source(
        self, dataset: h5py.Dataset, file_name: str, name: str, where: str = "a virtual dataset", hops: int = 0
    ) -> h5py.Dataset:
        """Return the dataset that a mapping of a virtual one leads to."""
        here = dataset.file
        file = here if file_name == "." else self._open_linked(file_name, here.filename, where)
        try:
            found = self._follow(file["/"], name, hops + 1)
        except UnknownColumnError as exc:
            raise MissingSourceError(f"{self.path}: {where} leads to {name!r} of {file.filename}: {exc}") from exc
        if not isinstance(found, h5py.Dataset):
            raise MissingSourceError(f"{self.path}: {where} leads to {name!r} of {file.filename}, which is a group")
        return found


def describe(tree: H5Tree) -> tuple[dict[str, ColumnLayout], dict[str, RayH5Error]]:
    """Describe every column of a tree: those that can be read, and why the others cannot."""
    columns: dict[str, ColumnLayout] = {}
    refused: dict[str, RayH5Error] = {}
    for count, (name, found) in enumerate(tree.columns(), 1):
        tree.check_count(count, "names")
        if isinstance(found, ColumnLayout):
            columns[name] = found
        else:
            refused[name] = found
    return columns, refused


def _level(group: h5py.Group, prefix: str, sources: Sources) -> Level:
    info = h5py.h5o.get_info(group.id)
    return Level(group, iter(group), prefix, (info.fileno, info.addr), sources)


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


def _advised(name: str, found: ColumnLayout | RayH5Error) -> ColumnLayout | RayH5Error:
    """Say of a column that cannot be had where it leads to that the others can."""
    if not isinstance(found, (MissingSourceError, ExternalDataError, CodecUnavailableError)):
        return found
    dot = "" if str(found).endswith(".") else "."
    return type(found)(f"{found}{dot} columns=[...] without {name!r} reads the others.")
