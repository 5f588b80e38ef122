"""Groups or datasets that are alike: each a sample or an episode, rather than a column.

Rows lie along the first axis of a dataset. With a group or a dataset for each sample, that axis is often time. Whether
what is alike is samples is a guess, made from names, types, lengths and neighbours.
"""

from __future__ import annotations

import fnmatch
import glob
import re
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from ray_h5.likely_rows.tree import MAX_DEPTH, Seen
from ray_h5.likely_rows.usual_names import AXES, PARTS, SAMPLES, SPLITS, words
from ray_h5.messages import common_pattern, printable
from ray_h5.storage.natural_order import natural_key

_MANY = 32
"""This many that are alike may be samples, whatever they are called; there are fewer leads or cameras."""

_NAMED_GROUPS = 5
"""This many groups with the same columns may be samples with names of their own, such as patients or molecules."""

_FEW = 3
"""This many with ids as names may be samples, or recordings that differ in length."""

_SHORT = 2
"""Letters of a name such as x1, V6 or u10."""

_IDS = re.compile(r"\d{5,}|^[0-9a-f]{6,}$|^\d+$")
"""A long number, such as an id, a time or a hash, counts nothing of one sample."""

_MAX_NAME = 60


@dataclass(frozen=True, slots=True)
class Alike:
    """Groups or datasets that are likely samples.

    Attributes
    ----------
    paths : tuple of str
        Their paths, sorted.
    are_groups : bool
        Whether they are groups.
    pattern : str
        A glob that matches them alone, if there is one.
    columns : tuple of str
        The columns that all of them have, if some have others; otherwise empty.
    """

    paths: tuple[str, ...]
    are_groups: bool
    pattern: str
    columns: tuple[str, ...] = ()

    @property
    def options(self) -> str:
        """The arguments that make rows of them."""
        columns = f", columns={list(self.columns)!r}" if self.columns else ""
        return f"rows=ray_h5.Groups({self.pattern!r}){columns}"

    def __str__(self) -> str:
        parent, _, first = self.paths[0].rpartition("/")
        one_parent = all(path.rpartition("/")[0] == parent for path in self.paths)
        last = self.paths[-1].rpartition("/")[2] if one_parent else self.paths[-1]
        where = f"{printable(parent)}/" if parent else ""
        what = "groups" if self.are_groups else "columns"
        return f"{where}{short_name(first)} ... {short_name(last)}: {len(self.paths)} {what} alike"


@dataclass(slots=True)
class _Node:
    """A group or a dataset of the tree, and what it holds: columns below it, with their types and axes."""

    path: tuple[str, ...]
    is_group: bool
    holds: dict[str, tuple[str, int]]
    seen: Seen | None = None

    @property
    def name(self) -> str:
        return self.path[-1]

    @property
    def mark(self) -> str:
        return re.sub(r"\d+", "#", self.name)


def likely_samples(columns: Mapping[str, Seen]) -> list[Alike]:
    """Return the groups or datasets that are likely samples, the likeliest first."""
    repeats: dict[tuple[str, ...], tuple[int, int, Alike]] = {}
    for depth, level in enumerate(_levels(columns)):
        for members in _of_equal_columns(level):
            if not _are_samples(members, level):
                continue
            alike = _alike(members, level)
            covered = sum(len(member.holds) or 1 for member in members)
            repeats.setdefault(alike.paths, (covered, depth, alike))
    # A level that has all columns of the one above is what repeats; otherwise the one with more columns is.
    return [alike for _, _, alike in sorted(repeats.values(), key=lambda repeat: (-repeat[0], -repeat[1]))]


def _levels(columns: Mapping[str, Seen]) -> list[list[_Node]]:
    """Return the groups and datasets of each depth."""
    nodes: dict[tuple[bool, tuple[str, ...]], _Node] = {}
    for name, column in columns.items():
        path = tuple(name.split("/", MAX_DEPTH))
        nodes[False, path] = _Node(path, False, {}, column)
        for depth in range(1, len(path)):
            group = nodes.setdefault((True, path[:depth]), _Node(path[:depth], True, {}))
            group.holds["/".join(path[depth:])] = column.dtype, len(column.shape)
    levels: list[list[_Node]] = [[] for _ in range(max((len(path) for _, path in nodes), default=0))]
    for (_, path), node in nodes.items():
        levels[len(path) - 1].append(node)
    return levels


def _of_equal_columns(level: Sequence[_Node]) -> Iterator[list[_Node]]:
    """Yield groups with the same columns, and datasets of one type and number of axes; first those of like names."""
    by_names: dict[Hashable, list[_Node]] = {}
    by_columns: dict[Hashable, list[_Node]] = {}
    for node in level:
        like: Hashable = frozenset(node.holds.items())
        if node.seen is not None:
            # Images of one size in a group; recordings may differ in length, and in how many stations they have.
            like = node.seen.dtype, len(node.seen.shape)
        by_names.setdefault((node.is_group, like, node.mark), []).append(node)
        by_columns.setdefault((node.is_group, like), []).append(node)
    yield from (members for members in by_names.values() if len(members) > 1)
    for members in by_columns.values():
        # A series of numbered datasets in one group, and a few others elsewhere that are like them: it is alike.
        series = [member for member in members if member.seen is not None and member.mark != member.name]
        parents = {node.path[:-1] for node in series}
        at_home = sum(member.path[:-1] in parents for member in members)
        is_series = len(parents) == 1 and at_home == len(series) < len(members) < 2 * len(series)
        if len(members) > 1 and not is_series:
            yield members


def _common(members: Sequence[_Node]) -> list[str]:
    """Return the columns that all groups have."""
    shared = dict(members[0].holds)
    for member in members[1:]:
        shared = {name: like for name, like in shared.items() if member.holds.get(name) == like}
    return sorted(shared)


def _alike(members: Sequence[_Node], level: Sequence[_Node]) -> Alike:
    is_group = members[0].is_group
    own = {"/".join(member.path) for member in members}
    pattern = pattern_of(own)
    paths = [("/".join(node.path), node) for node in level]
    others = [node for path, node in paths if path not in own and fnmatch.fnmatchcase(path, pattern)]
    # Groups that the pattern matches too are rows as well, if they have columns in common.
    together = [*members, *others]
    if is_group and all(node.is_group for node in others) and _common(together):
        members = together
    columns = _common(members) if any(member.holds != members[0].holds for member in members) else ()
    listed = sorted(("/".join(member.path) for member in members), key=natural_key)
    return Alike(tuple(listed), is_group, pattern, tuple(columns))


# Whether they are samples --------------------------------------------------------------------------


def _are_samples(members: Sequence[_Node], level: Sequence[_Node]) -> bool:
    """Return whether groups or datasets that are alike are samples."""
    by_parent: dict[tuple[str, ...], list[_Node]] = {}
    for member in members:
        by_parent.setdefault(member.path[:-1], []).append(member)
    if any(member.name in SPLITS for member in members):
        return False
    if len(by_parent) > 1 and _names_vary(by_parent, level):
        return True
    siblings = max(by_parent.values(), key=len)
    parent, names = siblings[0].path[:-1], [sibling.name for sibling in siblings]
    others = [node for node in level if node.path[:-1] == parent and node.name not in {*names}]
    if len(names) < 2:
        return False
    if not members[0].is_group:
        return _are_datasets(siblings, names, others)
    said, is_counted = _said(names), all(map(_has_number, names)) and (_one_mark(names) or not _are_short(names))
    return len(names) >= _MANY or not said or (not said & PARTS and len(names) >= (2 if is_counted else _NAMED_GROUPS))


def _names_vary(by_parent: Mapping[tuple[str, ...], Sequence[_Node]], level: Sequence[_Node]) -> bool:
    """Return whether groups hold nothing but these, under other names in each: parts of a sample keep their names."""
    children = Counter(node.path[:-1] for node in level)
    names = [{node.name for node in nodes} for nodes in by_parent.values()]
    parents, own = {parent[-1] for parent in by_parent if parent}, set().union(*names)
    is_counted = all(map(_has_number, parents)) or all(map(_has_number, own)) or len(by_parent) >= _NAMED_GROUPS
    is_whole = all(children[parent] == len(nodes) for parent, nodes in by_parent.items())
    return is_whole and any(name != names[0] for name in names) and is_counted and not _said(parents | own) & PARTS


def _are_datasets(siblings: Sequence[_Node], names: Sequence[str], others: Sequence[_Node]) -> bool:
    """Return whether datasets of one type are samples, and not columns: as their names and lengths say."""
    shapes = [sibling.seen.shape for sibling in siblings if sibling.seen is not None]
    lengths, said, many = {shape[0] for shape in shapes}, _said(names), len(names) >= _MANY
    is_shared = len({shape[1:] for shape in shapes}) == len(lengths) == 1
    # A column that is no axis, such as a label, has a value for each row: the rows are samples already.
    no_axes = [node.seen for node in others if node.seen is not None and not {*words(node.name)} & AXES]
    has_rows = any(seen.shape[0] in lengths for seen in no_axes)
    if _one_mark(names):
        if not said & PARTS and (said & SAMPLES or not said):
            return True
        if is_shared and not many:
            return not said & PARTS and not _are_short(names) and not has_rows
    if is_shared and (has_rows or len(shapes[0]) == 1):
        return False
    are_ids = all(_IDS.search(name) for name in names)
    if len(lengths) > 1 and len({shape[1:] for shape in shapes}) == 1 and len(shapes[0]) > 1 and not others:
        # Bags of vectors of one width, alone in their group; a letter in an id of a video is no axis.
        is_part = any(len(word) > 1 for word in said & PARTS)
        return not is_part and len(names) >= (_FEW if are_ids else _NAMED_GROUPS)
    return many or (not said & PARTS and len(names) >= _FEW and are_ids)


def _said(names: Iterable[str]) -> set[str]:
    return {word for name in names for word in words(name)}


def _one_mark(names: Sequence[str]) -> bool:
    """Return whether names differ in a number."""
    return len({re.sub(r"\d+", "#", name) for name in names}) == 1


def _has_number(name: str) -> bool:
    return re.search(r"\d", name) is not None


def _are_short(names: Sequence[str]) -> bool:
    """Return whether names are such as x1, V6 or u10, which say nothing of what is counted."""
    return all(len("".join(words(name))) <= _SHORT for name in names)


def short_name(name: str) -> str:
    """Return a name that is printable and not too long."""
    name = printable(name)
    return name if len(name) <= _MAX_NAME else f"{name[: _MAX_NAME - 3]}..."


# Paths -> a glob that matches them ---------------------------------------------------------------


def pattern_of(paths: Iterable[str]) -> str:
    """Return a glob for paths of one depth."""
    globs = []
    for names in map(set, zip(*(path.split("/", MAX_DEPTH) for path in paths), strict=True)):
        begin, star, end = common_pattern(sorted(names)).rpartition("*") if len(names) > 1 else (*names, "", "")
        globs.append(f"{glob.escape(begin)}{star}{glob.escape(end)}")
    return "/".join(globs)
