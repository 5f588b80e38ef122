"""Groups or datasets that are alike: each a sample or an episode, rather than a column.

Rows lie along the first axis of a dataset. With a group or a dataset for each sample, that axis is often time. Whether
what is alike is samples is a guess, made from names, types, lengths and neighbours.
"""

from __future__ import annotations

import fnmatch
import glob
import re
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ray_h5.globs import is_at_or_below
from ray_h5.likely_rows.arguments import made
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

_CODE = re.compile(r"(?=(?:\D*\d){2})[A-Za-z0-9.:-]{5,}")
"""An id of a protein, a gene or a station: letters and several digits."""

_MAX_NAME = 60

_MOST_TRIED = 8
"""Classes of groups or datasets that get a pattern: to compare it takes a pass over all names."""


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
        A glob that matches them alone; ``""`` if there is none.
    columns : tuple of str
        The columns that all of them have, if some have others; otherwise empty.
    beside : str
        Something else that globs may match, such as a group of metadata.
    exclude : tuple of str
        Globs of what the pattern matches beside them; with a pattern that no narrower one replaces.
    """

    paths: tuple[str, ...]
    are_groups: bool
    pattern: str
    columns: tuple[str, ...] = ()
    beside: str = ""
    exclude: tuple[str, ...] = ()

    def beside_others(self, names: Iterable[str]) -> Alike | None:
        """Return these with a pattern that leaves out other groups or datasets, if it matches one; None if not."""
        own, depth = {tuple(path.split("/")) for path in self.paths}, self.paths[0].count("/") + 1
        others = dict.fromkeys(tuple(name.split("/")[:depth]) for name in names)
        matches = re.compile(fnmatch.translate(self.pattern)).match
        beside = {path: "/".join(path) for path in others if path not in own}
        known = {name for name in beside.values() if any(is_at_or_below(name, one) for one in self.exclude)}
        foreign = [path for path, name in beside.items() if name not in known and matches(name)]
        if not (self.pattern and foreign):
            return None
        pattern, exclude = _apart(self.pattern, sorted(own), foreign)
        return replace(self, pattern=pattern, exclude=(*self.exclude, *exclude), beside=beside[foreign[0]])

    @property
    def arguments(self) -> dict[str, Any]:
        """The arguments of `read_h5` that make rows of them; none without a pattern."""
        if not self.pattern:
            return {}
        globs = self.exclude[0] if len(self.exclude) == 1 else [*self.exclude]
        rows = made("Groups", self.pattern, **({"exclude": globs} if globs else {}))
        return {"rows": rows, **({"columns": [*self.columns]} if self.columns else {})}

    @property
    def without_pattern(self) -> str:
        """Why no pattern is given, as a part of a sentence; empty if there is one."""
        return "" if self.pattern else f"no pattern of Groups(...) has these alone: {self.beside!r} is beside them"

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

    @property
    def length(self) -> int | None:
        """Of a dataset that is no axis, such as times: how many rows it has."""
        return None if self.seen is None or {*words(self.name)} & AXES else self.seen.shape[0]


class _Level:
    """The groups and datasets of one depth, and what those of a group have together: each is counted once."""

    def __init__(self) -> None:
        self.nodes: list[_Node] = []
        self.children: Counter[tuple[str, ...]] = Counter()
        self.lengths: defaultdict[tuple[str, ...], Counter[int | None]] = defaultdict(Counter)

    def add(self, node: _Node) -> None:
        """Add a group or a dataset."""
        self.nodes.append(node)
        self.children[node.path[:-1]] += 1
        if (length := node.length) is not None:
            self.lengths[node.path[:-1]][length] += 1


def likely_samples(columns: Mapping[str, Seen]) -> list[Alike]:
    """Return the groups or datasets that are likely samples, the likeliest first. Its time is linear in the columns."""
    found: dict[tuple[tuple[str, ...], ...], tuple[int, int, list[_Node]]] = {}
    levels = _levels(columns)
    for depth, level in enumerate(levels):
        for members in _of_equal_columns(level.nodes):
            if _are_samples(members, level):
                covered = sum(len(member.holds) or 1 for member in members)
                found.setdefault(tuple(sorted(member.path for member in members)), (covered, depth, members))
    # A level that has all columns of the one above is what repeats; otherwise the one with more columns is.
    likeliest = sorted(found.values(), key=lambda one: (-one[0], -one[1]))[:_MOST_TRIED]
    repeats = [_alike(members, levels[depth]) for _, depth, members in likeliest]
    return [*{alike.paths: alike for alike in reversed(repeats)}.values()][::-1]


def _levels(columns: Mapping[str, Seen]) -> list[_Level]:
    """Return the groups and datasets of each depth."""
    nodes: dict[tuple[bool, tuple[str, ...]], _Node] = {}
    for name, column in columns.items():
        path = tuple(name.split("/", MAX_DEPTH))
        nodes[False, path] = _Node(path, False, {}, column)
        for depth in range(1, len(path)):
            group = nodes.setdefault((True, path[:depth]), _Node(path[:depth], True, {}))
            group.holds["/".join(path[depth:])] = column.dtype, len(column.shape)
    levels = [_Level() for _ in range(max((len(path) for _, path in nodes), default=0))]
    for (_, path), node in nodes.items():
        levels[len(path) - 1].add(node)
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


def _alike(members: list[_Node], level: _Level) -> Alike:
    is_group, own = members[0].is_group, {member.path for member in members}
    pattern = pattern_of("/".join(path) for path in own)
    matches = re.compile(fnmatch.translate(pattern)).match
    others = [node for node in level.nodes if node.path not in own and matches("/".join(node.path))]
    # Groups that the pattern matches too are rows as well, if their names are like these; or, where names are words, if
    # they have most columns. A group beside numbered samples, such as `metadata`, is none of them.
    marks, common = {member.mark for member in members}, _common(members)
    are_words = len(marks) == len(members)
    more = [
        node
        for node in others
        if is_group
        and node.is_group
        and (shared := sum(node.holds.get(name) == members[0].holds.get(name) for name in common))
        and (node.mark in marks or (are_words and 2 * shared >= len(common)))
    ]
    members, own = [*members, *more], own | {node.path for node in more}
    foreign = [node.path for node in others if node.path not in own]
    pattern, exclude = _apart(pattern, sorted(own), foreign) if foreign else (pattern, ())
    columns = _common(members) if any(member.holds != members[0].holds for member in members) else ()
    listed = sorted(("/".join(path) for path in own), key=natural_key)
    beside = "/".join(foreign[0]) if foreign else ""
    return Alike(tuple(listed), is_group, pattern, tuple(columns), beside, exclude)


def _apart(
    pattern: str, own: Sequence[tuple[str, ...]], foreign: Sequence[tuple[str, ...]]
) -> tuple[str, tuple[str, ...]]:
    """Return a glob for paths, and those of what it matches beside them; ``""`` if no such globs tell them apart."""
    if narrower := _narrower(own, foreign):
        return narrower, ()
    names = ["/".join(path) for path in foreign]
    for globs in ((pattern_of(names),), tuple(map(glob.escape, names))):
        if len(globs) <= _FEW and not any(is_at_or_below("/".join(path), one) for path in own for one in globs):
            return pattern, globs
    return "", ()


def _narrower(own: Sequence[tuple[str, ...]], foreign: Sequence[tuple[str, ...]]) -> str:
    """Return a glob for paths that matches none of the `foreign` ones, by the first letter of the last names that vary.

    ``""`` if there is none.
    """
    levels = [level for level, names in enumerate(zip(*own, strict=True)) if len({*names}) > 1]
    begin, _, end = common_pattern(sorted({path[levels[-1]] for path in own})).rpartition("*")
    firsts = {path[levels[-1]][len(begin) : len(begin) + 1] for path in own}
    others = {path[levels[-1]][len(begin) : len(begin) + 1] for path in foreign}
    signs = ["[0-9]" if all(first.isdigit() for first in firsts) else ""]
    signs.append(f"[!{''.join(sorted(others))}]" if all(map(str.isalnum, others)) and not firsts & others else "")
    parts = pattern_of("/".join(path) for path in own).split("/")
    for sign in filter(None, signs):
        parts[levels[-1]] = f"{glob.escape(begin)}{sign}*{glob.escape(end)}"
        matches = re.compile(fnmatch.translate("/".join(parts))).match
        if all(matches("/".join(path)) for path in own) and not any(matches("/".join(path)) for path in foreign):
            return "/".join(parts)
    return ""


# Whether they are samples --------------------------------------------------------------------------


def _are_samples(members: Sequence[_Node], level: _Level) -> bool:
    """Return whether groups or datasets that are alike are samples."""
    by_parent: dict[tuple[str, ...], list[_Node]] = {}
    for member in members:
        by_parent.setdefault(member.path[:-1], []).append(member)
    if any(member.name in SPLITS for member in members):
        return False
    if len(by_parent) > 1 and _names_vary(by_parent, level):
        return True
    siblings = max(by_parent.values(), key=len)
    names = [sibling.name for sibling in siblings]
    if len(names) < 2:
        return False
    if not members[0].is_group:
        return _are_datasets(siblings, names, level)
    said, is_counted = _said(names), all(map(_has_number, names)) and (_one_mark(names) or not _are_short(names))
    return len(names) >= _MANY or not said or (not said & PARTS and len(names) >= (2 if is_counted else _NAMED_GROUPS))


def _names_vary(by_parent: Mapping[tuple[str, ...], Sequence[_Node]], level: _Level) -> bool:
    """Return whether groups hold nothing but these, under other names in each: parts of a sample keep their names."""
    names = [{node.name for node in nodes} for nodes in by_parent.values()]
    parents, own = {parent[-1] for parent in by_parent if parent}, set().union(*names)
    is_counted = all(map(_has_number, parents)) or all(map(_has_number, own)) or len(by_parent) >= _NAMED_GROUPS
    is_whole = all(level.children[parent] == len(nodes) for parent, nodes in by_parent.items())
    return is_whole and any(name != names[0] for name in names) and is_counted and not _said(parents | own) & PARTS


def _are_datasets(siblings: Sequence[_Node], names: Sequence[str], level: _Level) -> bool:
    """Return whether datasets of one type are samples, and not columns: as their names and lengths say.

    ===========================  ===================================================================
    samples                      ``trace_1``, ``trace_2``
                                 many vectors under ids, such as proteins
                                 bags of vectors of one width, alone in their group: (5, 3), (9, 3)
    columns                      ``x1``, ``x2``
                                 what has a label beside it: (100, 3), (100, 3), and label (100,)
    ===========================  ===================================================================
    """
    said, parent = _said(names), siblings[0].path[:-1]
    if _one_mark(names) and not said & PARTS and (said & SAMPLES or not said):
        return True
    shapes = [sibling.seen.shape for sibling in siblings if sibling.seen is not None]
    lengths, widths = {shape[0] for shape in shapes}, {shape[1:] for shape in shapes}
    if len(lengths) == len(widths) == 1:
        # A column that is no axis, such as a label, has a value for each row: the rows are samples already.
        own, length = Counter(sibling.length for sibling in siblings), lengths.pop()
        return _are_of_one_shape(names, len(shapes[0]), has_rows=level.lengths[parent][length] > own[length])
    if len(widths) == 1 and len(shapes[0]) > 1 and level.children[parent] == len(siblings):
        return not _names_axis(said) and len(names) >= (_FEW if _are_ids(names) else _NAMED_GROUPS)
    return _are_many(names)


def _are_of_one_shape(names: Sequence[str], axes: int, *, has_rows: bool) -> bool:
    """Return whether datasets of one shape are samples; `has_rows` says that a label is beside them."""
    said, is_short = _said(names), _one_mark(names) and _are_short(names)
    if _one_mark(names) and len(names) < _MANY:
        return not (said & PARTS or is_short or has_rows)
    if axes > 1 and not has_rows:
        return _are_many(names)
    # Numbers under ids are columns of a table, such as genes, or a vector a sample, such as proteins: nothing says
    # which, so the message names both. A label beside them, and names that are words, say that they are columns.
    are_codes = all(_IDS.search(name) or _CODE.fullmatch(name) for name in names)
    return len(names) >= _MANY and are_codes and not (has_rows or _names_axis(said) or is_short)


def _are_many(names: Sequence[str]) -> bool:
    return len(names) >= _MANY or (not _said(names) & PARTS and len(names) >= _FEW and _are_ids(names))


def _names_axis(said: set[str]) -> bool:
    """Return whether a word is that of an axis or a part; a letter in an id is none."""
    return any(len(word) > 1 for word in said & PARTS)


def _are_ids(names: Sequence[str]) -> bool:
    return all(map(_IDS.search, names))


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
