"""The one walk through the groups of a file: what their links lead to, without loops and without end."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import TypeAlias

import h5py

from ray_h5.errors import CorruptFileError, RayH5Error, TransientIOError, UnsupportedColumnError
from ray_h5.hdf5.files.links import Trail, links_in
from ray_h5.hdf5.files.opening import translated
from ray_h5.hdf5.format.file_bytes import ObjectId, address_of, gather
from ray_h5.messages import printable
from ray_h5.storage.byte_source import MissingBytes

OF_MATLAB = ("#refs#", "#subsystem#")
"""Groups at the root of a file with what the cells, structs and objects of MATLAB refer to: they are listed nowhere."""

_MOST_NAMES, _LEAST_NAMES, _BYTES_A_NAME = 1 << 19, 1 << 13, 32
"""Names that are listed, in any file and in a small one; and bytes of a file for which there may be one more.

A name takes more bytes. A few dozen links can make any number of names for the same groups.
"""

_MOST_DEPTH = 1 << 11
"""Depth of nested groups. The memory for a path through them grows with the square of its length."""

_HARD, _MOST_DEPTH_OF_HARD = h5py.h5l.TYPE_HARD, 32
"""How deep groups are whose hard links alone are followed."""

_MOST_CHARACTERS = 1 << 26
"""Characters of all names together: each name contains the names of the groups above it."""

Found: TypeAlias = h5py.Group | h5py.h5d.DatasetID | RayH5Error
"""What a link leads to, or why it leads nowhere."""


@dataclass(slots=True)
class Bounds:
    """Counts what is listed of a file, and of those that it leads to; raises if that is more than they can hold.

    Attributes
    ----------
    path : str
        The file, for messages.
    file_bytes : callable
        Returns the sizes of the files together.
    where : str
        What is listed, for messages.
    advice : str
        What to do if it is too much.
    most_depth : int
        How deep groups may be nested.
    """

    path: str
    file_bytes: Callable[[], int]
    where: str
    advice: str
    most_depth: int = _MOST_DEPTH
    _most_names: int = 0
    _names: int = 0
    _characters: int = 0

    def count(self, prefix: str, depth: int, names: int) -> None:
        """Count the names in a group."""
        self._names += names
        self._characters += len(prefix) * names
        if self._names > self._most_names:  # a listing may open further files
            self._most_names = min(_MOST_NAMES, _LEAST_NAMES + self.file_bytes() // _BYTES_A_NAME)
        for count, most, what in (
            (depth, self.most_depth, "nested groups"),
            (self._names, self._most_names, "names"),
            (self._characters, _MOST_CHARACTERS, "characters of names"),
        ):
            if count > most:
                raise CorruptFileError(
                    f"{self.path}: more than {most} {what} below {self.where}, too many to list: a link leads back to "
                    f"a group above it, or many links to the same groups. {self.advice}"
                )


def walk(
    root: h5py.Group,
    trail: Trail,
    bounds: Bounds,
    above: Collection[ObjectId] = (),
    enters: Callable[[str, h5py.Group], bool] = lambda *_: True,
) -> Iterator[tuple[str, Found, Trail]]:
    """Yield what is below a group with its name and the trail to it: each group before what is in it.

    A group that is its own ancestor, or one of those `above`, is not listed again: a loop. One that is reached twice is
    listed twice. `enters` is given the name of a group and the group, and returns whether it is listed. If bytes of a
    remote file are missed, it goes on, to miss those of other objects too, and raises `MissingBytes` at the end.
    """
    # A loop and no recursion: a file can nest groups deeper than Python's stack. A dict finds ancestors.
    levels, missed = {address_of(root.id): listed(root, "", trail, bounds)}, False
    while levels:
        for name, item, to_it in next(reversed(levels.values())):
            if isinstance(item, MissingBytes):
                missed = True
                continue
            yield name, item, to_it
            if not isinstance(item, h5py.Group) or (address := address_of(item.id)) in levels or address in above:
                continue
            if enters(name, item):
                levels[address] = listed(item, f"{name}/", to_it, bounds)
                break  # list this group first; its parent continues where its iterator is
        else:
            levels.popitem()
    if missed:
        raise MissingBytes


def listed(
    group: h5py.Group, prefix: str, trail: Trail, bounds: Bounds
) -> Iterator[tuple[str, Found | MissingBytes, Trail]]:
    """Yield the groups and datasets that the links in a group lead to, or the errors of these links."""
    links = list(names_in(group))
    bounds.count(prefix, prefix.count("/") + 1, len(links))
    for name, kind, address in links:
        to_it = trail.branch()
        try:
            if isinstance(name, str):
                item = to_it.take(group, name, shown := prefix + name, (kind, address))
            else:
                shown = prefix + printable(name.decode(errors="backslashreplace"))
                item = not_utf8(group, name, to_it)
        except TransientIOError:
            raise  # the whole listing is repeated
        except (RayH5Error, MissingBytes) as exc:
            item = exc  # concerns this name alone
        if isinstance(item, (h5py.Group, h5py.h5d.DatasetID, RayH5Error, MissingBytes)):
            yield shown, item, to_it


def hard_links(starts: Iterable[tuple[h5py.Group, str]], trail: Trail) -> Iterator[tuple[str, int, h5py.Group]]:
    """Yield the hard links below some groups, which have prefixes: the name, the address that it leads to, its group.

    The links of upper groups are first, those of one group in the order of names; a group is listed once. Nothing but
    groups stays open.
    """
    todo, seen = deque((group, prefix, 0) for group, prefix in starts), set[int]()
    while todo:
        group, prefix, depth = todo.popleft()
        if (here := address_of(group.id)[1]) in seen:
            continue
        seen.add(here)
        with translated(trail.path, f"listing group {'/' + prefix!r}"):
            links = sorted((name, at) for name, kind, at in links_in(group) if kind == _HARD and isinstance(name, str))
        yield from ((prefix + name, address, group) for name, address in links)
        if depth == _MOST_DEPTH_OF_HARD:
            continue
        hard = [(group, name, prefix + name, (_HARD, address)) for name, address in links]
        below = gather(lambda link: trail.take(*link), hard)
        pairs = zip(below, links, strict=True)
        todo.extend((item, f"{prefix}{name}/", depth + 1) for item, (name, _) in pairs if isinstance(item, h5py.Group))


def names_in(group: h5py.Group) -> Iterator[tuple[str | bytes, int, int]]:
    """Yield the links in a group, as `links_in` does, without what MATLAB refers to."""
    return (link for link in links_in(group) if link[0] not in OF_MATLAB or group.name != "/")


def not_utf8(group: h5py.Group, name: bytes, trail: Trail, *, columns: bool = True) -> UnsupportedColumnError | None:
    """Return the error of a column, link or group whose name is not UTF-8; None for an object that holds no columns.

    Without `columns`, the same of a link or group.
    """
    with translated(trail.path, f"looking up {name!r}"):
        item = trail.hard_target(group, name)
    if isinstance(item, h5py.Datatype) or (isinstance(item, h5py.Dataset) and not columns):
        return None
    what, cannot = "link", "it cannot be read"
    if item is not None:
        is_group = isinstance(item, h5py.Group)
        what, cannot = ("group", "no column below it can be read") if is_group else ("column", cannot)
    return UnsupportedColumnError(
        f"{trail.path}: {what} {name!r} of group {group.name!r} has a name that is not UTF-8, so {cannot}. Rename it "
        f"with h5py: file[{group.name!r}].move({name!r}, 'new name')."
    )
