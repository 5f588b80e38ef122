"""Groups or datasets that are alike: each a sample or an episode, rather than a column.

Rows lie along the first axis of a dataset. With a group or a dataset for each sample, that axis is often time. Whether
what is alike is samples is a guess, made from names, types, lengths and neighbours.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ray_h5.likely_rows.patterns import pattern_of
from ray_h5.likely_rows.tree import Seen, nested
from ray_h5.likely_rows.words import AXES, PARTS, SAMPLES, SPLITS, words
from ray_h5.messages import printable
from ray_h5.storage.local import natural_key

_MANY = 32
"""This many that are alike may be samples, whatever they are called; there are fewer leads or cameras."""

_NAMED_GROUPS = 5
"""This many groups with the same columns may be samples with names of their own, such as patients or molecules."""

_SHORT = 2
"""Letters of a name such as x1, V6 or u10, which says nothing of what is counted."""

_ID_DIGITS = 5
"""Digits of a number that is an id or a time, and counts nothing of one sample."""

_MANY_OF_SERIES = 2
"""A series is more than one in so many of what is alike."""

_MAX_NAME = 60

_ACCESSION = r"[OPQ]\d[A-Z\d]{3}\d|[A-NR-Z]\d([A-Z][A-Z\d]{2}\d){1,2}"
"""Names of proteins in UniProt, such as P04637."""


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
    is_exact : bool
        Whether the pattern matches nothing else.
    """

    paths: tuple[str, ...]
    are_groups: bool
    pattern: str
    columns: tuple[str, ...] = ()
    is_exact: bool = True

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
        return f"{where}{_short(first)} ... {_short(last)}: {len(self.paths)} {what} alike"


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


def likely_samples(columns: Mapping[str, Seen], others: Iterable[str] = ()) -> list[Alike]:
    """Return the groups or datasets that are likely samples, the likeliest first.

    Parameters
    ----------
    columns : mapping of str to Seen
        The columns.
    others : iterable of str
        Names of what is no column, which a pattern should not match.
    """
    levels = _levels(nested(columns))
    for name in others:
        *above, last = name.split("/")
        if len(above) < len(levels):
            levels[len(above)].append(_Node((*above, last), False, {}))
    found: dict[tuple[str, ...], tuple[int, int, Alike]] = {}
    for depth, level in enumerate(levels):
        here = [each for each in level if each.is_group or each.seen is not None]
        for members in (*_of_equal_columns(here), *_of_one_mark(here)):
            if not _are_samples(members, here):
                continue
            alike = _alike(members, level)
            covered = sum(len(each.holds) or 1 for each in members)
            found.setdefault(alike.paths, (covered, depth, alike))
    # A level that has all columns of the one above is what repeats; otherwise the one with more columns is.
    return [alike for _, _, alike in sorted(found.values(), key=lambda each: (-each[0], -each[1]))]


def _levels(tree: Mapping[str, Any]) -> list[list[_Node]]:
    """Return the groups and datasets of each depth."""
    levels: list[list[_Node]] = []

    def walk(nodes: Mapping[str, Any], above: tuple[str, ...]) -> dict[str, tuple[str, int]]:
        if len(levels) <= len(above):
            levels.append([])
        level, held = levels[len(above)], {}
        for key, node in nodes.items():
            if isinstance(node, dict):
                path = (*above, key[:-1])
                below = walk(node, path)
                level.append(_Node(path, True, below))
                held.update({f"{key}{name}": like for name, like in below.items()})
            else:
                held[key] = (node.dtype, len(node.shape))
                level.append(_Node((*above, key), False, {}, node))
        return held

    walk(tree, ())
    return levels


def _of_equal_columns(level: Sequence[_Node]) -> Iterator[list[_Node]]:
    """Yield groups with the same columns, and datasets of one type and number of axes; first those of like names."""
    by_names: dict[Hashable, list[_Node]] = {}
    by_columns: dict[Hashable, list[_Node]] = {}
    for each in level:
        like: Hashable = frozenset(each.holds.items())
        if each.seen is not None:
            # Images of one size in a group; recordings may differ in length, and in how many stations they have.
            like = each.seen.dtype, len(each.seen.shape)
        by_names.setdefault((each.is_group, like, each.mark), []).append(each)
        by_columns.setdefault((each.is_group, like), []).append(each)
    yield from (members for members in by_names.values() if len(members) > 1)
    for members in by_columns.values():
        # A series of numbered datasets in one group, and others elsewhere that are like them: the series is alike.
        series = (each for each in by_names.values() if _MANY_OF_SERIES * len(each) > len(members) > len(each) > 1)
        if len(members) > 1 and not any(_is_series(each, members) for each in series):
            yield members


def _is_series(some: Sequence[_Node], members: Sequence[_Node]) -> bool:
    """Return whether some datasets are numbered in one group, and the other members are in other groups."""
    parents, own = {each.path[:-1] for each in some}, {each.path for each in some}
    others = [each for each in members if each.path not in own]
    return (
        some[0].seen is not None
        and some[0].mark != some[0].name
        and len(parents) == 1
        and own < {each.path for each in members}
        and all(each.path[:-1] not in parents and each.mark == each.name for each in others)
    )


def _of_one_mark(level: Sequence[_Node]) -> Iterator[list[_Node]]:
    """Yield groups whose names differ in a number, and that have some columns in common, not all."""
    found: dict[Hashable, list[_Node]] = {}
    for each in level:
        if each.is_group and each.mark != each.name:
            found.setdefault((each.path[:-1], each.mark), []).append(each)
    for members in found.values():
        if len(members) > 1 and any(each.holds != members[0].holds for each in members) and _common(members):
            yield members


def _common(members: Sequence[_Node]) -> list[str]:
    """Return the columns that all groups have."""
    shared = dict(members[0].holds)
    for each in members[1:]:
        shared = {name: like for name, like in shared.items() if each.holds.get(name) == like}
    return sorted(shared)


def _alike(members: Sequence[_Node], level: Sequence[_Node]) -> Alike:
    is_group = members[0].is_group
    own = {each.path for each in members}
    pattern, matched = pattern_of(sorted(own), [each.path for each in level if each.path not in own])
    others = [each for each in level if each.path in matched]
    # Groups that the pattern matches too are rows as well, if they have columns in common.
    together = [*members, *others]
    is_joined = is_group and all(each.is_group for each in others) and bool(_common(together))
    if others and is_joined:
        members = together
    columns = _common(members) if any(each.holds != members[0].holds for each in members) else ()
    paths = sorted(("/".join(each.path) for each in members), key=natural_key)
    return Alike(tuple(paths), is_group, pattern, tuple(columns), not others or is_joined)


# Whether they are samples --------------------------------------------------------------------------


def _are_samples(members: Sequence[_Node], level: Sequence[_Node]) -> bool:
    """Return whether groups or datasets that are alike are samples."""
    by_parent: dict[tuple[str, ...], list[_Node]] = {}
    for each in members:
        by_parent.setdefault(each.path[:-1], []).append(each)
    if any(each.name in SPLITS for each in members):
        return False
    if len(by_parent) > 1 and _names_vary(by_parent, level):
        return True
    siblings = max(by_parent.values(), key=len)
    if len(siblings) < 2:
        return False
    parent, names = siblings[0].path[:-1], [each.name for each in siblings]
    own = {*names}
    others = [each for each in level if each.path[:-1] == parent and each.name not in own]
    if members[0].is_group:
        return _are_groups_of_samples(siblings, names, others)
    return _are_datasets_of_samples(siblings, names, others)


def _names_vary(by_parent: Mapping[tuple[str, ...], Sequence[_Node]], level: Sequence[_Node]) -> bool:
    """Return whether groups hold nothing but these, under other names in each: parts of a sample keep their names."""
    children = Counter(each.path[:-1] for each in level)
    if any(children[parent] != len(nodes) for parent, nodes in by_parent.items()):
        return False
    names = [{each.name for each in nodes} for nodes in by_parent.values()]
    if all(each == names[0] for each in names):
        return False
    parents, own = [parent[-1] for parent in by_parent if parent], set().union(*names)
    counted = all(re.search(r"\d", name) for name in parents) or all(re.search(r"\d", name) for name in own)
    parts = any(PARTS & set(words(name)) for name in (*parents, *own))
    return (counted or len(by_parent) >= _NAMED_GROUPS) and not parts


def _are_groups_of_samples(siblings: Sequence[_Node], names: Sequence[str], others: Sequence[_Node]) -> bool:
    if len({each.mark for each in siblings}) == 1 and names[0] != siblings[0].mark:
        return _say_samples(names, are_groups=True, others=others)
    most = 2 if all(re.search(r"\d", name) for name in names) and not _short_names(names) else _NAMED_GROUPS
    return len(names) >= most and (len(names) >= _MANY or not any(PARTS & set(words(name)) for name in names))


def _are_datasets_of_samples(siblings: Sequence[_Node], names: Sequence[str], others: Sequence[_Node]) -> bool:
    shapes = [each.seen.shape for each in siblings if each.seen is not None]
    lengths = {shape[0] for shape in shapes}
    one_mark = len({each.mark for each in siblings}) == 1 and names[0] != siblings[0].mark
    is_shared = len({shape[1:] for shape in shapes}) == 1 and len(lengths) == 1
    if one_mark and is_shared and len(names) < _MANY:
        return _say_samples(names, are_groups=False, others=others)
    if one_mark and (_counted(names) in SAMPLES or SAMPLES & set(words(names[0]))) and not PARTS & set(words(names[0])):
        return True
    # A column that is no axis, such as a label, has a value for each row: the rows are samples already.
    if is_shared and any(
        each.seen is not None and each.seen.shape[:1] == shapes[0][:1] and not _is_axis(each.name) for each in others
    ):
        return False
    if is_shared and len(shapes[0]) == 1:
        are_ids = _are_accessions(names) or (_are_ids(names) and not any(words(name) for name in names))
        return are_ids and len(names) >= _MANY and not others
    # Bags of vectors of one width, alone in their group; a letter in an id of a video is no axis.
    is_part = any({word for word in PARTS if len(word) > 1} & set(words(name)) for name in names)
    if len(lengths) > 1 and len({shape[1:] for shape in shapes}) == 1 and len(shapes[0]) > 1 and not others:
        return not is_part and len(names) >= (3 if _are_ids(names) else _NAMED_GROUPS)
    if any(PARTS & set(words(name)) for name in names) and len(names) < _MANY:
        return False
    return len(names) >= (3 if _are_ids(names) or (len(lengths) > 1 and one_mark) else _MANY)


def _are_accessions(names: Iterable[str]) -> bool:
    return all(re.fullmatch(_ACCESSION, name) for name in names)


def _are_ids(names: Iterable[str]) -> bool:
    """Return whether each name has a long number, such as an id, a time or a hash."""
    found = (re.search(rf"\d{{{_ID_DIGITS},}}", each) or re.fullmatch(r"[0-9a-f]{6,}|\d+", each) for each in names)
    return all(found) or _are_accessions(names)


def _say_samples(names: Sequence[str], *, are_groups: bool, others: Sequence[_Node]) -> bool:
    """Return whether names that differ in a number are those of samples."""
    if len(names) >= _MANY:
        return True
    before, said = _counted(names), set(words(names[0]))
    if not said or before in SAMPLES:
        return True  # a number, or a date, alone
    if before in PARTS or said & PARTS:
        return False
    if said & SAMPLES or are_groups:
        return True
    # A column that is no axis, such as a label, has a value for each row: the rows are samples already.
    return len(before) > _SHORT and all(_is_axis(each.name) for each in others)


def _is_axis(name: str) -> bool:
    return bool(set(words(name)) & AXES)


def _counted(names: Sequence[str]) -> str:
    """Return the word before the first number that differs."""
    one, other = (re.split(r"(\d+)", name) for name in names[:2])
    at = next((i for i in range(1, len(one), 2) if one[i] != other[i]), 1)
    found = [word for part in one[:at:2] for word in words(part)]
    return found[-1] if found else ""


def _short_names(names: Sequence[str]) -> bool:
    return all(len("".join(words(name))) <= _SHORT for name in names)


def _short(name: str) -> str:
    name = printable(name)
    return name if len(name) <= _MAX_NAME else f"{name[: _MAX_NAME - 3]}..."
