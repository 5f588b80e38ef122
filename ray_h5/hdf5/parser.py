"""The columns below a group of an open file: listed, found by name, described."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

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
from ray_h5.hdf5.external import Access
from ray_h5.hdf5.groups import Descent, Level
from ray_h5.hdf5.headers import describe_column
from ray_h5.hdf5.layout import ColumnLayout
from ray_h5.hdf5.links import LinkedFiles, Sources, Trail
from ray_h5.hdf5.opening import translated
from ray_h5.hdf5.rows import near_names

_MAX_NAMES = 1 << 18
"""A few dozen links can give more paths to a dataset, or to a group without any, than there is time for."""


@dataclass
class H5Tree:
    """The columns of one open file: finds them, by the links that lead to them, and describes them.

    Parameters
    ----------
    file : h5py.File
        The open file; it belongs to the tree from now on.
    access : Access
        How it is looked at.

    Attributes
    ----------
    sought : Sources
        Files on the way to groups, and to columns that cannot be read, also those that are not there: when one of them
        changes, there may be other columns that can be read.
    """

    file: h5py.File
    access: Access
    sought: Sources = field(default_factory=dict)
    _linked: LinkedFiles = field(default_factory=dict)
    _entered: tuple[h5py.Group, Trail] | None = None

    @property
    def path(self) -> str:
        return self.access.path

    @property
    def group(self) -> str:
        return self.access.group

    def dataset(self, name: str) -> h5py.Dataset:
        """Return the dataset of column `name`."""
        return self._find(name)[0]

    def source(self, dataset: h5py.Dataset, file_name: str, name: str) -> h5py.Dataset:
        """Return the dataset that a mapping of a virtual one leads to."""
        return Trail(self.access, self._linked).source(dataset, file_name, name)

    def column(self, name: str) -> ColumnLayout:
        """Describe column `name`, after a look at every file that its values come from."""
        return self._describe(name, *self._find(name))

    def columns(self) -> Iterator[tuple[str, ColumnLayout | RayH5Error]]:
        """Describe every dataset, in file order; of what cannot be read, and of a link that leads nowhere, say why."""
        with translated(self.path, "listing its columns"):
            root, to_root = self._enter()
            self.sought.update(to_root.sources)
            for name, found, trail in self._walk(root, to_root):
                described = found if isinstance(found, RayH5Error) else self._described(name, found, trail)
                if isinstance(described, RayH5Error):
                    self.sought.update(trail.sources)
                yield name, _advised(name, described)

    def _find(self, name: str) -> tuple[h5py.Dataset, Trail]:
        root, to_root = self._enter()
        trail = to_root.branch()
        found = trail.follow(root, name)
        if not isinstance(found, h5py.Dataset):
            raise UnsupportedColumnError(f"{self.path}: {name!r} is a group, not a column; its columns are below it")
        return found, trail

    def _described(self, name: str, dataset: h5py.Dataset, trail: Trail) -> ColumnLayout | RayH5Error:
        try:
            return self._describe(name, dataset, trail)
        except TransientIOError:
            raise
        except RayH5Error as exc:
            return exc

    def _describe(self, name: str, dataset: h5py.Dataset, trail: Trail) -> ColumnLayout:
        with translated(self.path, f"reading the header of column {name!r}"):
            trail.trace(dataset, f"column {name!r}")
            at_home = not trail.sources or dataset.file == self.file
            sources = tuple(trail.sources.items())
            return describe_column(dataset, name, path=self.path, at_home=at_home, sources=sources)

    def close(self) -> None:
        """Close the file and those that links led to."""
        for file in [self.file, *(linked for linked, _ in self._linked.values())]:
            file.close()

    def _enter(self) -> tuple[h5py.Group, Trail]:
        """Return the group, and the trail to it."""
        if self._entered is None:
            trail = Trail(self.access, self._linked)
            self._entered = self._root(trail), trail
        return self._entered

    def _root(self, trail: Trail) -> h5py.Group:
        with translated(self.path, f"opening group {self.group!r}"):
            try:
                root = trail.follow(self.file["/"], self.group, where="in the file")
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

    def _walk(self, root: h5py.Group, trail: Trail) -> Iterator[tuple[str, h5py.Dataset | RayH5Error, Trail]]:
        """Yield the datasets below `root`, and why a link leads nowhere, with the trail to each."""
        way = Descent(_level(root, "", trail))
        groups = 0
        while way:
            for name, found, to_it in _listed(way.last):
                if not isinstance(found, h5py.Group):
                    way.last.holds = True
                    yield name, found, to_it
                    continue
                groups += 1
                self.sought.update(to_it.sources)
                self.check_count(groups, "groups")
                if way.enter(_level(found, name + "/", to_it)):
                    break
            else:
                way.leave()

    def check_count(self, count: int, what: str) -> None:
        """Raise if there are more `what` than there is time for."""
        if count > _MAX_NAMES:
            raise CorruptFileError(
                f"{self.path}: more than {_MAX_NAMES} {what} below group {self.group!r}, too many to list. If "
                "the file is as it should be, name the columns to read, or choose a group that has fewer with group=."
            )


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


def _level(group: h5py.Group, prefix: str, trail: Trail) -> Level:
    info = h5py.h5o.get_info(group.id)
    return Level(group, iter(group), prefix, (info.fileno, info.addr), trail)


def _listed(level: Level) -> Iterator[tuple[str, h5py.Group | h5py.Dataset | RayH5Error, Trail]]:
    """Yield what the next links of a group lead to, as far as it can hold columns."""
    for name in level.names:
        if not isinstance(name, str):
            continue
        path, trail = level.prefix + name, level.trail.branch()
        try:
            found = trail.take(level.group, name, path)
        except TransientIOError:
            raise
        except RayH5Error as exc:
            found = exc
        if isinstance(found, (h5py.Group, h5py.Dataset, RayH5Error)):
            yield path, found, trail


def _advised(name: str, found: ColumnLayout | RayH5Error) -> ColumnLayout | RayH5Error:
    """Add to what keeps one column from being read, and not the others, how to read those."""
    if not isinstance(found, (MissingSourceError, ExternalDataError, CodecUnavailableError)):
        return found
    dot = "" if str(found).endswith(".") else "."
    return type(found)(f"{found}{dot} columns=[...] without {name!r} reads the others.")
