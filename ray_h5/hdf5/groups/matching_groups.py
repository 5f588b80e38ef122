"""Groups, or datasets, that match a pattern -> a table of them. A file may have 10^5 of them."""

from __future__ import annotations

import contextlib
import fnmatch
import itertools
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from glob import escape
from typing import Any, TypeAlias

import h5py
import numpy as np

from ray_h5.errors import (
    MissingGroupError,
    MissingSourceError,
    RayH5Error,
    SchemaMismatchError,
    UnknownColumnError,
    UnsupportedColumnError,
)
from ray_h5.globs import is_at_or_below, is_glob, texts_of
from ray_h5.hdf5.files.links import Link, Trail, as_object, stored_name
from ray_h5.hdf5.files.opening import translated
from ray_h5.hdf5.format.file_bytes import ObjectId, address_of, widths_of
from ray_h5.hdf5.format.value_types import are_references
from ray_h5.hdf5.groups.column_of_groups import GroupColumn, check_places, is_empty_of_matlab
from ray_h5.hdf5.groups.references import addresses_of, leads_nowhere, named, targets_of
from ray_h5.hdf5.tree.attributes import GroupAttribute, TextGuard, text_attribute
from ray_h5.hdf5.tree.encodings import encoding_of
from ray_h5.hdf5.tree.tree import FROM_ROOT, H5Tree, Root, in_both
from ray_h5.hdf5.tree.walker import OF_MATLAB, Found, hard_links, names_in, not_utf8, walk
from ray_h5.likely_rows.alike import pattern_of
from ray_h5.likely_rows.arguments import made
from ray_h5.likely_rows.suggestions import Suggestion
from ray_h5.manifest.joined_arrays import ENDS, LACKS, GroupTable, JoinedArray, Paths, Texts
from ray_h5.messages import few, near_names
from ray_h5.storage.natural_order import natural_key

_MAX_DEPTH = 32
"""Depth of groups below a matching group, or of a pattern."""

_ADVICE = (
    "Write the levels of the pattern one by one, without '**', choose the groups of each level with a narrower "
    "pattern, and name columns with columns=[...]."
)

_CACHE_BYTES = 1 << 20
_NAME_BYTES = 16
"""The size of libhdf5's cache of metadata: a part of its own, and a part for each name."""

_MAX_CACHE_BYTES = 128 << 20
"""libhdf5 refuses a larger one. Its own default is 32 MiB at most."""

_PROBED_NAMES = 1000

MATLAB_CLASS = "MATLAB_class"
"""An attribute that MATLAB writes: what values are."""


@dataclass(frozen=True, slots=True)
class GroupPattern:
    """Which groups, or datasets, are rows.

    Attributes
    ----------
    pattern : str, tuple of str, or tuple of (str, str)
        A glob over paths in the file: ``*`` stands for any text in one name, ``**`` for any number of groups. Or
        several. Or a dataset of references: what each entry refers to is a row. Or columns, each with a glob of its
        datasets: those of a row have the same text for each ``*``.
    order : {"name", "creation"}
        Their order: by name, where ``demo_2`` is before ``demo_10``, or by the time when they were made.
    attrs : tuple of str
        Attributes that are read.
    name : str
        The column of datasets that match the pattern themselves.
    missing : {"error", "null", "never"}
        Whether a group may lack a column that others have; if never, no option changes that.
    follows : bool
        Whether `name` is a dataset below each group, and rows are the datasets that its references lead to.
    exclude : tuple of str
        Globs of what is no row, and of groups in which nothing is one.
    """

    pattern: str | tuple[str, ...] | tuple[tuple[str, str], ...]
    order: str = "name"
    attrs: tuple[str, ...] = ()
    name: str = "value"
    missing: str = "error"
    follows: bool = False
    exclude: tuple[str, ...] = ()

    @property
    def globs(self) -> tuple[str, ...]:
        """Globs of which each matches rows; () with `columns`."""
        if isinstance(self.pattern, str):
            return (self.pattern,)
        return tuple(glob for glob in self.pattern if isinstance(glob, str))

    @property
    def columns(self) -> tuple[tuple[str, str], ...]:
        """Columns, each with a glob of its datasets; () with `globs`."""
        return tuple(pair for pair in self.pattern if not isinstance(pair, str))

    @property
    def said(self) -> str:
        """The pattern as a user writes it."""
        return repr(dict(self.columns) or (self.pattern if isinstance(self.pattern, str) else [*self.globs]))

    def excludes(self, path: str) -> bool:
        """Return whether what has a path is no row, and nothing below it is one."""
        return any(is_at_or_below(path, glob) for glob in self.exclude)

    def or_null(self, what: str) -> str:
        """Return the end of a sentence about the option by which groups may lack columns, if there is one."""
        return f"; or pass missing='null' to Groups{what}." if self.missing == "error" else "."


def read_group_table(
    tree: H5Tree, pattern: GroupPattern, columns: Sequence[str] | None, file_bytes: int
) -> tuple[GroupTable, dict[str, RayH5Error]]:
    """Return the groups that match a pattern, and the errors of columns that cannot be read.

    Parameters
    ----------
    tree : H5Tree
        The open file.
    pattern : GroupPattern
        Which groups.
    columns : sequence of str, optional
        The columns that are looked at; None for all.
    file_bytes : int
        Size of the file.

    Raises
    ------
    UnknownColumnError
        If nothing matches.
    SchemaMismatchError
        If the groups have other columns, or a column has other dtypes or numbers of axes, or an attribute is missing.
    """
    wanted = None if columns is None else frozenset(columns)
    with translated(tree.path, f"listing the groups {pattern.said}"):
        walks = [_Walk(tree, root, pattern, wanted, file_bytes) for root in tree.roots()]
        if pattern.columns:
            table = _side_by_side(walks, pattern)
        else:
            one, is_one = walks[0], len(walks) == 1 or pattern.follows  # references are of one file
            made = one.followed if pattern.follows else one.table_of
            table = made(one.rows()) if is_one else _by_name(walks, pattern)
    for one in walks:
        own = {name: joined for name, joined in table.columns.items() if joined.layouts[0].sources == one.sources}
        check_places(one.path, replace(table, columns=own), one.file_bytes)
    return table, {name: error for walk in walks for name, error in walk.refused.items()}


def read_single(tree: H5Tree, name: str, file_bytes: int) -> JoinedArray | None:
    """Return a dataset with a single value as a joined array of one dataset; None if it cannot be one.

    An opaque value is the array of its bytes. It is the column of `read_group_table` for the pattern `name`, without
    the search for what matches.
    """
    pattern = GroupPattern(name.strip("/"), name=name)
    with translated(tree.path, f"opening {name!r}"):
        dataset, trail = tree.find(name)
        if name.startswith(FROM_ROOT) or trail.sources or are_references(dataset.get_type()):
            return read_group_table(tree, pattern, None, file_bytes)[0].columns.get(name)
        column = GroupColumn(tree.path, name, tree.widths)
        try:
            column.add(name.strip("/"), dataset)
        except UnsupportedColumnError:
            return None
    joined = column.joined(paths := Paths.of([name.strip("/")]))
    check_places(tree.path, GroupTable(paths, {name: joined}, {}), file_bytes)
    return joined


@contextlib.contextmanager
def _bounded_cache(file: h5py.File, names: Sequence[str]) -> Iterator[None]:
    """Keep libhdf5 from holding the headers of all objects: each is looked at once.

    Its cache counts bytes in the file, which take ten times as much memory: with its default size, 10^5 datasets with
    10 attributes took 100 MB more, and as much time (measured).
    """
    # In the oldest format, the names in a group are one entry of the cache, which every look-up needs.
    nbytes = min(_CACHE_BYTES + sum(map(len, names)) + _NAME_BYTES * len(names), _MAX_CACHE_BYTES)
    config = file.id.get_mdc_config()
    bounded = file.id.get_mdc_config()
    bounded.set_initial_size, bounded.initial_size = True, nbytes
    bounded.min_size = bounded.max_size = nbytes
    bounded.incr_mode = bounded.decr_mode = bounded.flash_incr_mode = 0
    file.id.set_mdc_config(bounded)
    try:
        yield
    finally:
        file.id.set_mdc_config(config)


_Parent: TypeAlias = tuple[h5py.Group, Trail]
"""A group in which names match, and the trail to it."""

_Rows: TypeAlias = Sequence[tuple[str, _Parent | None]]
"""The paths of what is rows, each with the group that has its last name; None for one that the file lacks."""


class _Walk:
    """What matches in one file: that of the tree, or the one beside it."""

    def __init__(
        self, tree: H5Tree, root: Root, pattern: GroupPattern, wanted: frozenset[str] | None, file_bytes: int
    ) -> None:
        self._tree = tree
        self.root, self._trail, self.sources = root
        self._widths = widths_of(self.root.file.id) if self.sources else tree.widths
        self._pattern = pattern
        self._wanted = wanted
        # Of each group; no listing has other names.
        self._asked = [path for path in sorted(wanted or ()) if {"", "."}.isdisjoint(path.split("/"))]
        self.path = self._trail.path
        self.file_bytes = next((state.size for _, state in self.sources if state is not None), file_bytes)
        self._builders: dict[str, GroupColumn] = {}
        self._bounds = tree.bounds(f"the groups {pattern.said}", _ADVICE, most_depth=_MAX_DEPTH)
        self._above: dict[str, frozenset[ObjectId]] = {}  # the groups above what has a path that begins so
        self._made: dict[str, int] = {}
        self._refers = False
        self._group_above: tuple[str | None, Any] = None, None
        self._said: list[bytes] = []
        self._class = b""  # the first of them that is one
        self._guard = TextGuard(self.root.file)
        self.refused: dict[str, RayH5Error] = {}

    # Which groups match -------------------------------------------------------------------

    def rows(self) -> _Rows:
        """Return what matches a glob, in the order of rows; what a dataset of references refers to, if it is one."""
        globs = self._pattern.globs
        if len(globs) == 1 and (referred := self._referred(self._parts(globs[0]))) is not None:
            return referred
        matches = self.matching()
        if not matches:
            raise self.nothing(self._pattern)
        if self._pattern.order == "name":
            names = sorted(matches, key=natural_key)
        else:  # one glob finds them in this order
            names = [*matches] if len(globs) == 1 else sorted(matches, key=self._links_made)
        return [(name, matches[name]) for name in names]

    def matching(self) -> dict[str, _Parent]:
        """Return the paths that match a glob, once each, with the group that has its last name."""
        matches = dict[str, _Parent]()
        for glob in self._pattern.globs:  # a path with signs of globs is that of an object, if nothing else matches
            matches.update(self.matches(glob) or self.matches(escape(glob)))
        return matches

    def _links_made(self, path: str) -> list[int]:
        """Return when each link of a path was made, as its number in its group; 0 where a group does not record it."""
        ends = itertools.accumulate(path.split("/"), lambda above, name: f"{above}/{name}")
        return [self._made.get(end, 0) for end in ends]

    def matches(self, pattern: str) -> list[tuple[str, _Parent]]:
        """Return the paths that match one glob, each with the group that has its last name; '**' may find one twice."""
        return [*self._matches(self.root, self._trail, "", self._parts(pattern), frozenset())]

    def _parts(self, pattern: str) -> list[str]:
        given_parts = [part for part in pattern.split("/") if part]
        parts = [part for i, part in enumerate(given_parts) if part != "**" or given_parts[i - 1 : i] != ["**"]]
        if len(parts) > _MAX_DEPTH:
            raise UnknownColumnError(f"{self.path}: a pattern of {len(parts)} levels; expected at most {_MAX_DEPTH}")
        return parts

    def _matches(
        self, group: h5py.Group, trail: Trail, prefix: str, parts: Sequence[str], above: frozenset[ObjectId]
    ) -> Iterator[tuple[str, _Parent]]:
        """Yield the paths that match, each with the group that has its last name. A loop back `above` matches none."""
        part, rest, here = parts[0], parts[1:], (group, trail)
        is_deep = part == "**"
        above = self._above[prefix] = above | {address_of(group.id)}
        if is_deep and rest:
            yield from self._matches(group, trail, prefix, rest, above)
        for name, link in self._links(group, part, trail, prefix, groups_only=is_deep or bool(rest)):
            if self._pattern.order == "creation" and len(self._pattern.globs) > 1:
                made = group.id.links.get_info(name.encode())
                self._made[prefix + name] = made.corder if made.corder_valid else 0
            if not rest and (not is_glob(part) or (not is_deep and link[0] == h5py.h5l.TYPE_HARD)):
                yield prefix + name, here
                continue
            to_it = trail.branch()
            below = to_it.take(group, name, prefix + name, link)
            is_group = isinstance(below, h5py.Group)
            if is_group and is_glob(part) and address_of(below.id) in above:
                continue
            if not rest and (is_group or not is_deep):
                yield prefix + name, here
            if is_group and (rest or is_deep):
                yield from self._matches(below, to_it, f"{prefix}{name}/", parts if is_deep else rest, above)

    def _links(
        self, group: h5py.Group, part: str, trail: Trail, prefix: str, *, groups_only: bool
    ) -> list[tuple[str, Link]]:
        """Return the links in a group that match a part of the pattern."""
        if not is_glob(part):
            stored = None if self._excludes(prefix + part) else stored_name(part)
            one = None if stored is None else trail.link(group, stored)
            return [] if one is None else [(part, one)]
        if (
            self._pattern.order == "creation"
            and not group.id.get_create_plist().get_link_creation_order() & h5py.h5p.CRT_ORDER_TRACKED
        ):
            raise UnsupportedColumnError(
                f"{self.path}: group {'/' + prefix.strip('/')!r} does not record the order in which its members "
                "were made. Use order='name'."
            )
        links, matching, (file, _) = list(names_in(group)), list[tuple[str, Link]](), address_of(group.id)
        self._bounds.count(prefix, prefix.count("/"), len(links))
        for name, kind, address in links:
            # Bytes that are not UTF-8 are surrogates, as in paths of Python.
            text = name if isinstance(name, str) else name.decode(errors="surrogateescape")
            is_above = kind == h5py.h5l.TYPE_HARD and (file, address) in self._above[prefix]
            if not fnmatch.fnmatchcase(text, part) or is_above or self._excludes(prefix + text):
                continue
            if isinstance(name, str):
                matching.append((name, (kind, address)))
            elif (error := not_utf8(group, name, trail, columns=not groups_only)) is not None:
                raise error
        return matching

    def _excludes(self, path: str) -> bool:
        """Return whether nothing at or below a path is a row. Datasets side by side are excluded by rows."""
        return bool(self._pattern.exclude) and not self._pattern.columns and self._pattern.excludes(path)

    def _referred(self, parts: Sequence[str]) -> _Rows | None:
        """Return what a dataset of references refers to, in its order; None if the pattern names no such dataset."""
        if any(map(is_glob, parts)):
            return None
        trail, name = self._trail.branch(), "/".join(parts)
        try:
            dataset = trail.follow(self.root, name)
        except UnknownColumnError:
            return None  # reported for the pattern
        if not isinstance(dataset, h5py.h5d.DatasetID) or trail.sources or not are_references(dataset.get_type()):
            return None
        self._refers, targets = True, targets_of(self._tree, name, as_object(dataset), self.file_bytes)
        if not targets:
            raise UnsupportedColumnError(f"{self.path}: column {name!r} has no references, and so no rows")
        return [(path, (group, trail)) for path, group in targets]

    def nothing(self, pattern: GroupPattern, column: str = "") -> MissingGroupError:
        """Return the error for a pattern that matches nothing. It has a glob for names that differ in a number."""
        globs = [glob for name, glob in pattern.columns if column in ("", name)] or pattern.globs
        names: dict[str, list[str]] = {}
        below = (name for name, _, _ in hard_links([(self.root, "")], self._trail))
        for name in itertools.islice((name for name in below if name.split("/")[0] not in OF_MATLAB), _PROBED_NAMES):
            names.setdefault(re.sub(r"\d+", "#", name), []).append(name)
        near = near_names(globs[0], [pattern_of(alike) for alike in names.values()])
        if pattern.exclude:
            near = f" What exclude={[*pattern.exclude]} matches is left out; choose narrower globs there."
        return MissingGroupError(
            f"{self.path}: nothing matches the pattern {repr(globs[0]) if column else pattern.said} below group "
            f"{self._tree.group!r}.{near}"
        )

    # What is in them ----------------------------------------------------------------------

    def are_datasets(self, rows: _Rows) -> bool:
        """Return whether these paths are of datasets, as the first one says."""
        path, parent = next((path, parent) for path, parent in rows if parent is not None)
        return isinstance(self._open(parent, path), h5py.h5d.DatasetID)

    def _open(self, parent: _Parent, path: str, *, datasets: bool | None = None) -> Any:
        """Return the identifier of what a link leads to; raise if it is in another file, or not of the kind wanted."""
        group, trail = parent
        name = path.rpartition("/")[2]
        link = group.id.links.get_info(name.encode())
        if not trail.sources and link.type == h5py.h5l.TYPE_HARD:
            trail.check_mappings(group, link.u, path)
            opened = h5py.h5o.open(group.id, name.encode())
        else:
            to_it = trail.branch()
            try:
                item = to_it.take(group, name, path, (link.type, link.u))
            except MissingSourceError:
                self._tree.sought.update(to_it.sources)
                raise
            self._check_here(path, to_it)
            opened = item.id if isinstance(item, h5py.Group) else item
        if datasets is None:
            return opened
        if isinstance(opened, h5py.h5d.DatasetID) != datasets or isinstance(opened, h5py.h5t.TypeID):
            raise SchemaMismatchError(
                f"{self.path}: the pattern {self._pattern.said} matches groups and datasets, such as {path!r}. "
                "Choose one kind with a narrower pattern."
            )
        return opened

    def _check_here(self, path: str, trail: Trail) -> None:
        if trail.sources:
            raise UnsupportedColumnError(
                f"{self.path}: {path!r} leads to another file, {few(list(trail.sources))}. Groups in other files "
                "cannot be rows: read those files themselves."
            )

    def _above_row(self, path: str, levels: int) -> Any:
        """Return the identifier of a group above what is a row; None above the group that names are relative to."""
        parts = path.split("/")
        if levels > len(parts):
            return None
        if self._group_above[0] != (above := "/".join(parts[:-levels])):
            found = self._trail.branch().follow(self.root, above) if above else self.root
            self._group_above = above, found.id if isinstance(found, h5py.Group) else found
        return self._group_above[1]

    def table_of(self, rows: _Rows) -> GroupTable:
        """Return the table of some rows."""
        names, may_lack = [name for name, _ in rows], self._pattern.missing == "null"
        attrs = () if self.sources else self._pattern.attrs
        with _bounded_cache(self.root.file, names):
            how = {"missing_ok": may_lack, "several_ok": True}
            attributes = [GroupAttribute(self.path, name, self._guard, **how) for name in attrs]
            datasets = self.are_datasets(rows)
            for number, (name, parent) in enumerate(rows):
                if parent is None:
                    self._check_complete(name, number)
                    for attribute in attributes:
                        attribute.add_missing()
                    continue
                opened = self._open(parent, name, datasets=datasets)
                if datasets and self._refers:
                    self._add_referred(name, opened, number)
                elif datasets:
                    self._add(self._pattern.name, name, opened, number)
                else:
                    self._add_group(name, opened, number)
                for attribute in attributes:
                    attribute.add(name, opened, partial(self._above_row, name))
        paths = Paths.of(names)
        columns = {
            name: builder.joined(Paths(paths.groups, "" if datasets else f"/{name}"))
            for name, builder in self._builders.items()
            if name not in self.refused
        }
        attributes_by_name = {name: of for attribute in attributes for name, of in attribute.values().items()}
        if any(self._said):
            attributes_by_name[MATLAB_CLASS] = Texts.of(self._said)
        return GroupTable(paths, columns, attributes_by_name)

    def followed(self, rows: _Rows) -> GroupTable:
        """Return the single values that a dataset of each group is, or refers to; and where those of a group end."""
        column, paths, lacks = self._pattern.name, list[str](), np.zeros(len(rows), bool)
        ends, entries = np.zeros(len(rows), np.int64), list[list[int] | None]()
        builder = self._builders[column] = GroupColumn(self.path, column, self._widths)
        with _bounded_cache(self.root.file, [name for name, _ in rows]):
            for number, (name, _) in enumerate(rows):
                dataset = self._below(rows[number])
                lacks[number] = dataset is None
                if dataset is None or is_empty_of_matlab(dataset):
                    entries.append([])
                elif are_references(dataset.get_type()):
                    path = f"{name}/{column}"
                    entries.append(addresses_of(self._tree, path, as_object(dataset), self.file_bytes))
                else:
                    entries.append(None)  # the value itself
            # One pass over the file for the references of all groups.
            targets = named(self._tree, {address for of_row in entries for address in of_row or ()})
            for number, ((name, _), of_row) in enumerate(zip(rows, entries, strict=True)):
                if of_row is None:
                    self._add_value(f"{name}/{column}", self._below(rows[number]), number)
                    paths.append(f"{name}/{column}")
                for address in of_row or ():
                    if address not in targets:
                        raise leads_nowhere(f"{self.path}: column {column!r}, row {number}", address, column)
                    path, group = targets[address]
                    self._add_value(path, self._open((group, self._trail), path), number)
                    paths.append(path)
                ends[number] = len(paths)
        if not paths:
            raise UnsupportedColumnError(f"{self.path}: column {column!r} has no values in any group, and so no type")
        values = {column: builder.joined(made := Paths.of(paths))}
        return GroupTable(made, values, {ENDS + column: ends, LACKS + column: lacks})

    def _below(self, row: tuple[str, _Parent | None]) -> h5py.h5d.DatasetID | None:
        """Return the dataset of references, or of a value, below a group; None if the group may lack it."""
        (name, parent), column, trail = row, self._pattern.name, self._trail.branch()
        try:
            found = None if parent is None else self._open(parent, name, datasets=False)
            dataset = None if found is None else trail.follow(h5py.Group(found), column)
        except UnknownColumnError:
            dataset = None
        if trail.sources or isinstance(dataset, h5py.Group):
            what = "is a group" if not trail.sources else "leads to another file"
            raise UnsupportedColumnError(
                f"{self.path}: {f'{name}/{column}'!r} {what}; expected a dataset, as in other groups"
            )
        if dataset is None and self._pattern.missing != "null":
            raise self._differs(f"{name!r} lacks {column}")
        return dataset

    def _add_value(self, path: str, dataset: Any, number: int) -> None:
        """Add a dataset that is one of the values of a group."""
        if is_dataset := isinstance(dataset, h5py.h5d.DatasetID):
            self._check_referred(path, dataset, number)
        if not is_dataset or math.prod(dataset.shape) != 1 or self._said[-1] == b"char":
            what = f"an array of shape {dataset.shape}" if is_dataset else "a group"
            what = "a text of MATLAB (char)" if is_dataset and self._said[-1] == b"char" else what
            raise UnsupportedColumnError(
                f"{self.path}: column {self._pattern.name!r}, row {number}: {path!r} is {what}; expected a single "
                "value, as a row joins those that its references lead to. Read other columns with columns=[...]."
            )
        self._builders[self._pattern.name].add(path, dataset)

    def joined(
        self, column: str, pattern: str, rows: Sequence[tuple[str, Mapping[str, tuple[str, _Parent]]]]
    ) -> JoinedArray | None:
        """Return the datasets of a column in rows; None if they are not wanted, or cannot be read."""
        if self._wanted is not None and column not in self._wanted:
            return None
        builder = self._builders[column] = GroupColumn(self.path, column, self._widths, self.sources)
        paths = [by_column[column][0] if column in by_column else "" for _, by_column in rows]
        with _bounded_cache(self.root.file, paths):
            for number, (path, (_, by_column)) in enumerate(zip(paths, rows, strict=True)):
                if path:
                    self._add(column, path, self._open(by_column[column][1], path, datasets=True), number)
                elif self._pattern.missing == "null":
                    builder.add_missing(1)
                else:
                    raise SchemaMismatchError(
                        f"{self.path}: {few([path for path, _ in by_column.values()])}: no dataset {pattern!r} has "
                        f"this name, and a row has one of each pattern of {self._pattern.said}. Choose patterns of "
                        f"datasets that are all there{self._pattern.or_null(f', and {column} is None')}"
                    )
        return None if column in self.refused else builder.joined(Paths.of(paths))

    def _add_referred(self, path: str, dataset: h5py.h5d.DatasetID, number: int) -> None:
        """Add a dataset that an entry refers to. MATLAB says of each what it holds, and which ones are empty."""
        name = self._pattern.name
        if not number:
            self._builders[name] = GroupColumn(self.path, name, self._widths)
        is_empty = is_empty_of_matlab(dataset) and name not in self.refused
        self._check_referred(path, dataset, number, is_empty=is_empty)
        if is_empty:
            self._builders[name].add_empty()
        else:
            self._add(name, path, dataset, number)

    def _check_referred(self, path: str, dataset: h5py.h5d.DatasetID, number: int, *, is_empty: bool = False) -> None:
        """Raise unless a dataset that an entry refers to holds what those before it do; note what that is."""
        where = f"{self.path}: column {self._pattern.name!r}, row {number}"
        if are_references(dataset.get_type()):
            raise UnsupportedColumnError(
                f"{where}: {path!r} has references itself, such as a cell array in a cell array: a row would be a list "
                f"of arrays. Read the arrays of one row as rows, by its own name: columns=[{path!r}]"
            )
        said = b"" if is_empty else text_attribute(h5py.Dataset(dataset, readonly=True), MATLAB_CLASS).encode()
        self._class = self._class or said
        if not is_empty and self._class != said:
            raise UnsupportedColumnError(
                f"{where}: {path!r} holds {said.decode() or 'values of no class'}, and rows before it hold "
                f"{self._class.decode()}: no column of one type"
            )
        self._said.append(said)

    def _add_group(self, name: str, group: h5py.h5g.GroupID, number: int) -> None:
        """Add the datasets below a group that is a row."""
        row, count = h5py.Group(group), 0
        above = self._above.get("".join(name.rpartition("/")[:2]), frozenset())
        listed = walk(row, self._trail, self._bounds, above) if self._wanted is None else self._named(row)
        for path, item, trail in listed:
            if isinstance(item, RayH5Error):
                self._tree.sought.update(trail.sources)
                if not isinstance(item, UnsupportedColumnError) and not getattr(item, "is_dangling", False):
                    raise item
                self.refuse(path, item)
                continue
            self._check_here(path, trail)
            if isinstance(item, h5py.h5d.DatasetID):
                if path not in self.refused and are_references(type_id := item.get_type()):
                    self.refused[path] = _refers(f"{self.path}: column {path!r}")
                elif path not in self.refused:
                    self._add(path, f"{name}/{path}", item, number, type_id)
                count += 1
            elif self._wanted is not None and not self._tree.access.beside:
                with contextlib.suppress(RayH5Error):  # raised where the column is asked for
                    found = encoding_of(item, f"{name}/{path}", trail, self._tree.group, self._guard)
                    self._tree.encodings[f"{name}/{path}"] = found
        if not count and self._wanted is None:
            raise UnsupportedColumnError(
                f"{self.path}: group {name!r} has no dataset. Choose groups that have some with the pattern."
            )
        self._check_complete(name, number)

    def _named(self, row: h5py.Group) -> Iterator[tuple[str, Found, Trail]]:
        """Yield what the columns that are asked for by name are below a group; not those that it lacks."""
        for path in self._asked:
            trail = self._trail.branch()
            try:
                yield path, trail.follow(row, path), trail
            except UnknownColumnError:
                continue
            except (MissingSourceError, UnsupportedColumnError) as exc:
                if not getattr(exc, "is_encoded", False):  # a field of compound values
                    yield path, exc, trail

    def _add(
        self,
        column: str,
        path: str,
        dataset: h5py.h5d.DatasetID,
        number: int,
        type_id: h5py.h5t.TypeID | None = None,
    ) -> None:
        if column in self.refused:
            return
        builder = self._builders.get(column)
        if builder is None:
            if number and self._pattern.missing != "null":
                raise self._differs(f"the groups before {path!r} lack {column}")
            builder = self._builders[column] = GroupColumn(self.path, column, self._widths, self.sources)
            builder.add_missing(number)
        try:
            builder.add(path, dataset, type_id)
        except UnsupportedColumnError as exc:
            exc.is_encoded = False  # references of datasets that are rows are not followed
            self.refuse(column, exc)

    def _check_complete(self, group: str, number: int) -> None:
        missing = [name for name, built in self._builders.items() if len(built) <= number and name not in self.refused]
        if missing and self._pattern.missing != "null":
            raise self._differs(f"{group!r} lacks {few(missing)}")
        for column in missing:
            self._builders[column].add_missing(1)

    def _differs(self, what: str) -> SchemaMismatchError:
        error = SchemaMismatchError(
            f"{self.path}: the groups {self._pattern.said} have different columns: {what}. Choose columns "
            "that all of them have with columns=[...], or groups that agree with the pattern"
            + self._pattern.or_null(", and values are None where a group lacks a column")
        )
        if any("**" in glob.split("/") for glob in self._pattern.globs):
            error.suggestions = tuple(self._each_dataset())
        return error

    def _each_dataset(self) -> Iterator[Suggestion]:
        """Yield a pattern for the datasets, if they are all of one depth: '**' matches groups, of every depth."""
        below = itertools.islice(hard_links([(self.root, "")], self._trail), _PROBED_NAMES)
        names = [name for name, _, group in below if isinstance(group.get(name.rpartition("/")[2]), h5py.Dataset)]
        if len({name.count("/") for name in names}) == 1:
            said = "'**' matches groups of every depth, and no dataset"
            rows = made("Groups", pattern_of(names))
            yield Suggestion(said, "if each dataset is a sample", {"rows": rows})

    def refuse(self, column: str, error: RayH5Error) -> None:
        """Leave out a column; raise the error of one that is asked for by its name."""
        if self._wanted is not None and column in self._wanted:
            raise error
        self.refused[column] = error


def _by_name(walks: Sequence[_Walk], pattern: GroupPattern) -> GroupTable:
    """Return the groups of two files, those of one name as one row, with the datasets of both.

    Datasets are those of the file that has some.
    """
    with_datasets = [one for one in walks if (matches := one.matching()) and one.are_datasets([*matches.items()])]
    if len(with_datasets) > 1:
        glob = next((glob for glob in pattern.globs if all(one.matches(glob) for one in walks)), pattern.globs[0])
        raise _in_two_files(glob, "datasets, which would be one column,", walks)
    if with_datasets:
        return with_datasets[0].table_of(with_datasets[0].rows())
    one, other = walks
    by_name = [dict(one.rows()), dict(other.rows())]
    names = [*{**by_name[0], **by_name[1]}]
    alone = [name for name in names if name not in by_name[0] or name not in by_name[1]]
    if alone and pattern.missing != "null":
        lacks, has = (other, one) if alone[0] in by_name[0] else (one, other)
        raise SchemaMismatchError(
            f"{lacks.path}: no group {alone[0]!r}, which {has.path} has; {len(alone)} names are in one of both alone. "
            "Choose groups that both have with the pattern"
            + pattern.or_null(", and values are None where a file lacks a group")
        )
    if alone and pattern.order == "name":
        names.sort(key=natural_key)
    first, second = (
        of.table_of([(name, rows.get(name)) for name in names]) for of, rows in zip(walks, by_name, strict=True)
    )
    for name in sorted(first.columns.keys() & second.columns.keys()):
        one.refuse(name, in_both(one.path, name, other.path))
        del first.columns[name], second.columns[name]
    return first.merged(second)


def _side_by_side(walks: Sequence[_Walk], kind: GroupPattern) -> GroupTable:
    """Return a row for each text that the stars of several patterns stand for, with a dataset of each pattern.

    Each pattern matches in one file. Two columns of one pattern are of one file each.
    """
    datasets: dict[tuple[str, ...], dict[str, tuple[str, _Parent]]] = {}
    names: dict[tuple[str, ...], str] = {}
    walk_of: dict[str, _Walk] = {}
    patterns = kind.columns
    for column, pattern in patterns:
        matching = [(one, matches) for one in walks if (matches := one.matches(pattern))]
        alike = [name for name, other in patterns if other == pattern]
        if not matching:
            raise walks[0].nothing(kind, column)
        if len(matching) > 1 and len(alike) != len(matching):
            raise _in_two_files(pattern, f"datasets of column {column!r}", walks)
        walk_of[column], matches = matching[alike.index(column) if len(matching) > 1 else 0]
        parts = [part for part in pattern.split("/") if part]
        places = [place for place, part in enumerate(parts) if is_glob(part)]
        for path, parent in matches:
            levels, key = path.split("/"), tuple(texts_of(path, pattern) or ())
            datasets.setdefault(key, {})[column] = path, parent
            names.setdefault(key, "/".join(levels[place] for place in places))
    # A row is excluded as a whole: one without its mask would be an error.
    keys = [
        key for key, of in datasets.items() if not any(map(kind.excludes, [names[key], *(p for p, _ in of.values())]))
    ]
    if not keys:
        raise walks[0].nothing(kind)
    rows = [(names[key], datasets[key]) for key in sorted(keys, key=lambda key: natural_key(names[key]))]
    made = {column: walk_of[column].joined(column, pattern, rows) for column, pattern in patterns}
    columns = {column: joined for column, joined in made.items() if joined is not None}
    return GroupTable(Paths.of([name for name, _ in rows]), columns, {})


def _refers(where: str) -> UnsupportedColumnError:
    """Return the error of a column that has references in groups; whoever asks for it follows them."""
    error = UnsupportedColumnError(f"{where} has references to other objects in groups")
    error.is_encoded = True
    return error


def _in_two_files(pattern: str, what: str, walks: Sequence[_Walk]) -> SchemaMismatchError:
    both = {"x": pattern, "y": pattern}
    return SchemaMismatchError(
        f"the pattern {pattern!r} matches {what} in {walks[0].path} and in {walks[1].path}. Choose a pattern that "
        f"matches in one of them; or name the column of each file: rows=Groups({both!r}); the first is of the first."
    )
