"""Follows links to columns and to the sources of their values. No other module does."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from pathlib import Path
from typing import Any

import h5py

from ray_h5.errors import CorruptFileError, MissingSourceError, RayH5Error, UnknownColumnError, UnsupportedColumnError
from ray_h5.hdf5.files.external_policy import Access
from ray_h5.hdf5.files.opening import open_h5, translated
from ray_h5.hdf5.files.other_files import OtherFiles
from ray_h5.hdf5.format.file_bytes import FileBytes, filename_of
from ray_h5.hdf5.format.heap import DamagedHeapError, Heap
from ray_h5.hdf5.format.object_headers import (
    HEADER_BYTES,
    VIRTUAL,
    FormatError,
    MessageKind,
    address,
    number,
    object_header,
)
from ray_h5.hdf5.format.value_types import fields_of
from ray_h5.manifest.file_state import check_same
from ray_h5.messages import few, printable
from ray_h5.storage.byte_source import FileIdentity, Identity
from ray_h5.storage.local import identity_now, real_path_of

_MAX_LINKS = 32
"""Links that are followed to find one object. libhdf5 follows 16, but counts again in each path that a link names."""

_MAX_NAMES = 1 << 12
"""Names that are looked up to find one object, with those in the paths of links."""

_MAX_SHOWN = 200

Sources = dict[str, Identity | None]
"""Other files and their states; None for a missing one."""


Link = tuple[int, int]
"""The kind of a link (as in ``h5py.h5l``), and of a hard one the address that it leads to."""


@dataclass(slots=True)
class LinkedFiles:
    """The files that links led to.

    Attributes
    ----------
    states : dict
        Their states when they were first opened, by path. A path that leads to another file later is an error.
    opened : dict
        Those that are open, by path.
    """

    states: dict[str, Identity] = field(default_factory=dict)
    opened: dict[str, h5py.File] = field(default_factory=dict)


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
    home : list of FileBytes
        Those of the file that it begins in, once they are needed.
    """

    access: Access
    linked: LinkedFiles
    sources: Sources = field(default_factory=dict)
    others: OtherFiles | None = None
    home: list[FileBytes] = field(default_factory=list)

    @property
    def path(self) -> str:
        return self.access.path

    def branch(self) -> Trail:
        """Return a copy that continues on its own."""
        return self.with_sources(dict(self.sources))

    def with_sources(self, sources: Sources) -> Trail:
        """Return a trail that records the files which it leads to in `sources`."""
        return Trail(self.access, self.linked, sources, self.others, self.home)

    def follow(self, start: h5py.Group, path: str, where: str = "", counts: _Counts | None = None) -> Any:
        """Return what is at `path` below a group: a group, or the identifier of another object.

        An `h5py.Dataset` takes long to make; see `as_object`. `where` describes the place in messages.
        """
        here, counts = start, counts or _Counts()
        parts = [part for part in path.split("/") if part not in {"", "."}]
        for depth, part in enumerate(parts):
            name = stored_name(part)
            link = None if name is None else self.link(here, name)
            if link is None:
                where = where or f"below group {self.access.group!r}"
                raise UnknownColumnError(f"{self.path}: no {'/'.join(parts[: depth + 1])!r} {where}")
            here = self.take(here, part, path, link, counts)
            if not isinstance(here, h5py.Group) and depth < len(parts) - 1:
                column, below = "/".join(parts[: depth + 1]), parts[depth + 1 :]
                raise _no_group(self.path, here, column, below)
        return here

    def take(self, group: h5py.Group, name: str, path: str, link: Link, counts: _Counts | None = None) -> Any:
        """Return what the `link` of a name in a group leads to, as `follow` does; `path` is for messages."""
        counts = counts or _Counts()
        counts.names += 1
        if counts.names > _MAX_NAMES:
            raise CorruptFileError(
                f"{self.path}: {_cut(path)!r} leads through more than {_MAX_NAMES} groups, too many to follow"
            )
        if link[0] != h5py.h5l.TYPE_HARD:
            # libhdf5 is never asked to follow a link: it would open files that are not allowed.
            with translated(self.path, f"looking up {name!r}"):
                value = group.id.links.get_val(name.encode())
            file_name, target = ("", value) if isinstance(value, bytes) else value
            return self._follow_link(group, file_name, target, name, counts)
        with translated(self.path, f"opening {path!r}"):
            self.check_mappings(group, link[1], path)
            identifier = h5py.h5o.open(group.id, name.encode())
            return h5py.Group(identifier) if isinstance(identifier, h5py.h5g.GroupID) else identifier

    def hard_target(self, group: h5py.Group, name: bytes, path: str = "") -> Any:
        """Return the object that a hard link leads to; None if there is no such link, or it is of another kind."""
        # Of other kinds, it could lead to a file that is not allowed.
        info = group.id.links.get_info(name) if group.id.links.exists(name) else None
        if info is None or info.type != h5py.h5l.TYPE_HARD:
            return None
        self.check_mappings(group, info.u, path or name.decode(errors="backslashreplace"))
        return as_object(h5py.h5o.open(group.id, name))

    def check_mappings(self, group: h5py.Group, at: int, path: str) -> None:
        """Raise if an object is a virtual dataset whose mappings are damaged, given its address in the file of a group.

        libhdf5 (2.0) reads them when it opens the dataset. It walks through a damaged heap for ever, and takes memory
        for as many mappings as they claim to be.
        """
        # What leads to other files may lead back, too.
        if not self.home and not self.sources:
            self.home.append(FileBytes.of(group.file.id))
        read, end, widths = FileBytes.of(group.file.id) if self.sources else self.home[0]
        if VIRTUAL not in read(at, HEADER_BYTES):  # that of most objects
            return
        reason = ""
        try:
            bodies = [body for kind, _, body, _ in object_header(read, at, widths)[1] if kind == MessageKind.LAYOUT]
            stored = next((body for body in bodies if body.startswith(VIRTUAL)), b"")
            # It has no address if there is no mapping.
            if stored and (heap := address(stored, 2, widths.address)) is not None:
                item = number(stored, 2 + widths.address, 4)
                (mappings,) = Heap(read, end, widths.length).values([(None, heap, item)], 1)
                # A mapping takes more than a byte.
                reason = "they are cut short" if number(mappings, 1, widths.length) > len(mappings) else ""
        except DamagedHeapError as exc:
            reason = str(exc)
        except FormatError:
            return  # libhdf5 says what is wrong
        if reason:
            raise CorruptFileError(
                f"{self.path}: the mappings of virtual dataset {path!r} are damaged: {reason}. Restore the file from a "
                "copy."
            )

    def link(self, group: h5py.Group, name: bytes) -> Link | None:
        """Return what is known of the link that a group has by a name; None if it has none."""
        with translated(self.path, f"looking up {name.decode()!r}"):
            try:
                info = group.id.links.get_info(name)
            except (KeyError, RuntimeError, UnicodeDecodeError):
                # h5py decodes a text of libhdf5, which is gone if objects are freed at that moment.
                if group.id.links.exists(name):
                    raise
                return None
            return info.type, info.u

    def _follow_link(self, group: h5py.Group, file_name: str | bytes, target: bytes, name: str, counts: _Counts) -> Any:
        """Return what a link leads to, given the name of another file, empty for this one, and a path in it."""
        counts.links += 1
        if counts.links > _MAX_LINKS:
            raise MissingSourceError(f"{self.path}: link {name!r} leads through more than {_MAX_LINKS} links: a loop")
        try:
            path = target.decode()
        except UnicodeDecodeError:
            raise UnsupportedColumnError(
                f"{self.path}: link {name!r} leads to {target!r}, a name that is not UTF-8. Rename what it leads to "
                "with h5py, by move(), and write the link again."
            ) from None
        try:
            if not file_name:
                return self.follow(group.file if path.startswith("/") else group, path, counts=counts)
            where = f"external link {name!r}"
            file = self.open_other(self.located(os.fsdecode(file_name), filename_of(group.file), where), where)
            return self.follow(file["/"], path, counts=counts)
        except UnknownColumnError as exc:
            error = MissingSourceError(f"{self.path}: link {name!r} leads to {_cut(path)!r}, which does not exist")
            error.is_dangling = True
            raise error from exc
        except MissingSourceError as exc:  # of another file, or of links that lead to each other
            exc.is_dangling = True
            raise

    def open_other(self, path: str, where: str) -> h5py.File:
        """Return another file, open, and record it; raise if it is missing, or not the one that it was."""
        state = self.look_at(path, where)
        if path not in self.linked.opened and self.others is not None:
            self.linked.opened[path] = self.others.open(path)
        elif path not in self.linked.opened:
            # Another file may have its name by now: what was opened is checked.
            file = open_h5(path, self.access.swmr)
            try:
                descriptor = file.id.get_vfd_handle()
                if path != self.access.beside:
                    self.access.policy.admit(path, home=self.path, where=where, real=real_path_of(descriptor, path))
                state = FileIdentity.of(os.fstat(descriptor))
                leads = f"{self.path}: {where} leads to {printable(path)}"
                check_same(leads, self.linked.states.get(path, state), state, leads=True, swmr=self.access.swmr)
            except RayH5Error:
                file.close()
                raise
            self.linked.opened[path] = file
        self.sources[path] = self.linked.states.setdefault(path, state)
        return self.linked.opened[path]

    def located(self, name: str, source: str, where: str) -> str:
        """Return the path of the file that `source` links to by `name`; raise unless it may be read."""
        if self.others is not None:
            return self.others.located(name, source, where)
        self.access.policy.admit_name(name, home=self.path, where=where)
        absolute = os.path.isabs(name)
        tail = os.path.basename(name) if absolute else name
        # Where libhdf5 looks: next to the file by the name it was opened with, then in the current folder.
        places = [*([name] if absolute else []), os.path.join(os.path.dirname(os.path.abspath(source)), tail), tail]
        if Path(source).is_symlink():
            # Last: next to the file that a symbolic link leads to.
            places.append(os.path.join(os.path.dirname(os.path.realpath(source)), tail))
        # It takes the first place that exists. The missing ones before it are recorded too: a file that appears there
        # later would be read instead.
        absent = list(takewhile(lambda place: not os.path.exists(place), places))
        self.sources.update(dict.fromkeys(absent))
        path = (places[len(absent) :] or places)[0]
        self.access.policy.admit(path, home=self.path, where=where)
        return path

    def look_at(self, path: str, where: str) -> Identity:
        """Return the state of another file, and record it; raise if it is missing: libhdf5 would invent its values."""
        self.sources[path] = state = identity_now(path) if self.others is None else self.others.state(path)
        if state is None:
            raise MissingSourceError(f"{self.path}: {where} leads to {printable(path)}, which does not exist")
        return state

    def source(self, dataset: h5py.Dataset, file_name: str, name: str, where: str) -> h5py.Dataset:
        """Return the source dataset of a mapping of a virtual dataset."""
        file = dataset.file
        if file_name != ".":
            file = self.open_other(self.located(file_name, filename_of(file), where), where)
        leads = f"{self.path}: {where} leads to {name!r} of {printable(filename_of(file))}"
        try:
            target = self.follow(file["/"], name)
        except UnknownColumnError as exc:
            raise MissingSourceError(f"{leads}: {exc}") from exc
        if not isinstance(target, h5py.h5d.DatasetID):
            raise MissingSourceError(f"{leads}, which is a group")
        return h5py.Dataset(target, readonly=True)


def links_in(group: h5py.Group) -> Iterator[tuple[str | bytes, int, int]]:
    """Yield name, kind (as in ``h5py.h5l``) and address of the links in a group, in the order of ``iter(group)``.

    A hard link has the address of what it leads to; that of another one means nothing.
    h5py asks a list of properties of the group for the order, which takes six times as long as the names.
    """
    links: list[tuple[bytes, int, bool, int, int]] = []
    # h5py passes one object again and again.
    group.id.links.iterate(
        lambda name, link: links.append((name, link.type, link.corder_valid, link.corder, int(link.u))), info=True
    )
    if all(is_tracked for _, _, is_tracked, _, _ in links):
        links.sort(key=lambda link: link[3])
    for name, kind, _, _, at in links:
        try:
            yield name.decode(), kind, at
        except UnicodeDecodeError:
            yield name, kind, at


def stored_name(name: str) -> bytes | None:
    """Return a name as a file stores it; None if no file can: libhdf5 would stop reading at a NUL."""
    try:
        return None if "\0" in name else name.encode()
    except UnicodeEncodeError:
        return None


def as_object(item: Any) -> Any:
    """Return the object of an identifier; a group is one already, or becomes one."""
    if isinstance(item, h5py.h5d.DatasetID):
        return h5py.Dataset(item, readonly=True)
    if isinstance(item, h5py.h5t.TypeID):
        return h5py.Datatype(item)
    return h5py.Group(item) if isinstance(item, h5py.h5g.GroupID) else item


def _no_group(path: str, target: Any, column: str, below: Sequence[str]) -> RayH5Error:
    """Return the error for an object that is not a group. A field of compound values is a column, but no dataset."""
    what, type_id = column, target.get_type() if isinstance(target, h5py.h5d.DatasetID) else None
    for name in below:
        if type_id is not None and type_id.get_class() == h5py.h5t.ARRAY:
            type_id = type_id.get_super()
        if type_id is None or type_id.get_class() != h5py.h5t.COMPOUND:
            return UnknownColumnError(f"{path}: {what!r} is not a group")
        fields = {stored.decode(errors="replace"): field for stored, _, field in fields_of(type_id)}
        if name not in fields:
            return UnknownColumnError(
                f"{path}: {what!r} is no group, but a column of compound values, whose fields are {few([*fields])}"
            )
        what, type_id = f"{what}/{name}", fields[name]
    field = "".join(f"[{name!r}]" for name in below)
    error = UnsupportedColumnError(
        f"{path}: {what!r} is a field of compound values, and no dataset. read_h5, H5Dataset and loader read it as a "
        f"column; with RowReader, it is RowReader.read([{column!r}])[{column!r}]{field}"
    )
    error.is_encoded = True
    return error


def _cut(path: str) -> str:
    return path if len(path) <= _MAX_SHOWN else f"{path[:_MAX_SHOWN]}..."
