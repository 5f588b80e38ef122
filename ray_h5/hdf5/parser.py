"""Open a file safely and describe it; the only place that follows links."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import h5py

from ray_h5.errors import (
    CodecUnavailableError,
    CorruptFileError,
    ExternalDataError,
    MissingSourceError,
    RayH5Error,
    TransientIOError,
    UnknownColumnError,
    UnsupportedColumnError,
)
from ray_h5.hdf5.external import ExternalPolicy, numbered_names
from ray_h5.hdf5.headers import describe_column
from ray_h5.hdf5.layout import ColumnLayout, FileIdentity
from ray_h5.hdf5.opening import open_h5, translated
from ray_h5.hdf5.rows import few, near_names

_MAX_LINK_HOPS = 32

_MAX_NAMES = 1 << 18
"""A few hundred links can give more paths to one dataset than there is time for."""


@dataclass
class H5Tree:
    """The columns of one open file: finds them, follows their links, describes them.

    Parameters
    ----------
    file : h5py.File
        The open file; it belongs to the tree from now on.
    path : str
        Its path.
    group : str
        The group that column names are relative to.
    policy : ExternalPolicy
        Where links, virtual datasets and external storage may lead.
    swmr : bool
        Whether the files that links lead to may be open in a writer in SWMR mode.
    """

    file: h5py.File
    path: str
    group: str
    policy: ExternalPolicy
    swmr: bool = False
    _linked_files: dict[str, h5py.File] = field(default_factory=dict)
    _sources: dict[str, FileIdentity] = field(default_factory=dict)

    def dataset(self, name: str) -> h5py.Dataset:
        """Return the dataset of column `name`."""
        found = self._follow(self._root(), name, hops=0)
        if not isinstance(found, h5py.Dataset):
            raise UnsupportedColumnError(f"{self.path}: {name!r} is a group, not a column; its columns are below it")
        return found

    def column(self, name: str) -> ColumnLayout:
        """Describe column `name`, after a look at every file that its values come from."""
        self._sources = {}
        return self._describe(name, self.dataset(name))

    def columns(self) -> Iterator[tuple[str, ColumnLayout | RayH5Error]]:
        """Describe every dataset, in file order; of what cannot be read, and of a link that leads nowhere, say why."""
        self._sources = {}
        with translated(self.path, "listing its columns"):
            root = self._root()
            for name, found in self._walk(root, "", frozenset({_address(root)})):
                try:
                    yield name, self._describe(name, found) if found is not None else self.column(name)
                except TransientIOError:
                    raise
                except (MissingSourceError, ExternalDataError, CodecUnavailableError) as exc:
                    dot = "" if str(exc).endswith(".") else "."
                    yield name, type(exc)(f"{exc}{dot} columns=[...] without {name!r} reads the others.")
                except RayH5Error as exc:
                    yield name, exc

    def _describe(self, name: str, dataset: h5py.Dataset) -> ColumnLayout:
        with translated(self.path, f"reading the header of column {name!r}"):
            self._trace(dataset, f"column {name!r}", hops=0)
            at_home = not self._sources or dataset.file == self.file
            sources = tuple(self._sources.items())
            return describe_column(dataset, name, path=self.path, at_home=at_home, sources=sources)

    def close(self) -> None:
        """Close the file and those that links led to."""
        for file in [self.file, *self._linked_files.values()]:
            file.close()

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

    def _walk(self, group: h5py.Group, prefix: str, above: frozenset[Any]) -> Iterator[tuple[str, h5py.Dataset | None]]:
        """Yield the datasets below `group` and None for each link that leads nowhere; `_sources` are those of each."""
        sources = self._sources
        for name in group:
            if not isinstance(name, str):
                continue
            path, self._sources = prefix + name, dict(sources)
            try:
                found = self._follow(group, name, hops=0)
            except TransientIOError:
                raise
            except RayH5Error:
                yield path, None  # `column` raises it again, with the name
                continue
            if isinstance(found, h5py.Dataset):
                yield path, found
            elif isinstance(found, h5py.Group) and (address := _address(found)) not in above:
                # A group that is its own ancestor is a loop; one that is reached twice is an alias.
                yield from self._walk(found, path + "/", above | {address})

    def _follow(self, start: h5py.Group, path: str, hops: int, where: str = "") -> Any:
        here = start
        parts = [part for part in path.split("/") if part not in {"", "."}]
        for depth, part in enumerate(parts):
            link = self._link(here, part, parts[:depth], where or f"below group {self.group!r}")
            if link is None:
                with translated(self.path, f"opening {path!r}"):
                    here = here[part]
            else:
                here = self._follow_link(here, link, part, hops)
            if not isinstance(here, h5py.Group) and depth < len(parts) - 1:
                column, below = "/".join(parts[: depth + 1]), parts[depth + 1 :]
                raise UnknownColumnError(f"{self.path}: {column!r} {_no_group(here, column, below)}")
        return here

    def _link(self, group: h5py.Group, name: str, above: Sequence[str], where: str) -> Any:
        """Return a soft or external link; None for a hard one."""
        with translated(self.path, f"looking up {name!r}"):
            if not group.id.links.exists(name.encode()):
                raise UnknownColumnError(f"{self.path}: no {'/'.join([*above, name])!r} {where}")
            if group.id.links.get_info(name.encode()).type == h5py.h5l.TYPE_HARD:
                return None
            # getlink answers from the link itself and opens nothing behind it.
            return group.get(name, getlink=True)

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
        path = self.policy.admit(name, source=source, home=self.path, where=where)
        if path not in self._linked_files:
            self._linked_files[path] = open_h5(path, self.swmr)
        self._sources[path] = FileIdentity.of(os.stat(path))
        return self._linked_files[path]

    def _trace(self, dataset: h5py.Dataset, where: str, hops: int) -> None:
        """Look at each file that the values of a dataset come from, however many steps away."""
        if dataset.is_virtual:
            for each in dataset.virtual_sources():
                names = numbered_names(each.file_name, each.dset_name)
                for number, (file_name, name) in enumerate(names):
                    try:
                        self._trace_virtual(dataset, file_name, name, f"virtual dataset of {where}", hops)
                    except MissingSourceError:
                        if number == 0:
                            raise
                        break
        for file_name, _, _ in dataset.external or ():
            what, name = f"external storage of {where}", os.fsdecode(file_name)
            if not os.path.isabs(name):
                # What is looked at here might not be what another process reads.
                raise ExternalDataError(
                    f"{self.path}: {what} is in {name!r}, a relative name, which libhdf5 looks up in the current "
                    "folder of each process. Write the column again with an absolute name, or into the file."
                )
            path = self.policy.admit(name, source=dataset.file.filename, home=self.path, where=what)
            self._sources[path] = FileIdentity.of(os.stat(path))

    def _trace_virtual(self, dataset: h5py.Dataset, file_name: str, name: str, where: str, hops: int) -> None:
        if hops >= _MAX_LINK_HOPS:
            raise MissingSourceError(f"{self.path}: {where} leads through more than {_MAX_LINK_HOPS} files: a loop")
        here = dataset.file
        file = here if file_name == "." else self._open_linked(file_name, here.filename, where)
        try:
            found = self._follow(file["/"], name, hops + 1)
        except UnknownColumnError as exc:
            raise MissingSourceError(f"{self.path}: {where} leads to {name!r} of {file.filename}: {exc}") from exc
        if not isinstance(found, h5py.Dataset):
            raise MissingSourceError(f"{self.path}: {where} leads to {name!r} of {file.filename}, which is a group")
        self._trace(found, where, hops + 1)


def describe(tree: H5Tree) -> tuple[dict[str, ColumnLayout], dict[str, RayH5Error]]:
    """Describe every column of a tree: those that can be read, and why the others cannot."""
    columns: dict[str, ColumnLayout] = {}
    refused: dict[str, RayH5Error] = {}
    for count, (name, found) in enumerate(tree.columns()):
        if count >= _MAX_NAMES:
            raise CorruptFileError(f"{tree.path}: more than {_MAX_NAMES} names below group {tree.group!r}")
        if isinstance(found, ColumnLayout):
            columns[name] = found
        else:
            refused[name] = found
    return columns, refused


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


def _address(group: h5py.Group) -> tuple[int, int]:
    info = h5py.h5o.get_info(group.id)
    return info.fileno, info.addr
