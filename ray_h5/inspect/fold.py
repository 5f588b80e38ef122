"""Columns that are alike, told as one: a file may have thousands, in groups that differ by a number."""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ray_h5.errors import printable
from ray_h5.planning.paths import natural_key

_ENOUGH = 6
"""Fewer are shown one by one: each may mean something of its own."""

_MAX_NAME = 100

_MAX_DEPTH = 32
"""Groups one in the other that are told apart; what lies deeper goes by the rest of its name."""


@dataclass(frozen=True, slots=True)
class Node:
    """A column or a group; or several beside each other that are alike.

    Attributes
    ----------
    siblings : tuple of str
        Their names, without the groups above.
    columns : tuple of str
        The whole names of the columns that a leaf stands for; none for a group.
    below : tuple of Node
        What is in the group.
    key : hashable
        What nodes that are alike have in common.
    """

    siblings: tuple[str, ...]
    columns: tuple[str, ...]
    below: tuple[Node, ...]
    key: Hashable

    @property
    def name(self) -> str:
        """Its name, or the first and the last of its names."""
        names = sorted(self.siblings, key=natural_key)
        return _short(names[0]) if len(names) == 1 else f"{_short(names[0])} ... {_short(names[-1])}"

    @property
    def label(self) -> str:
        """Its name, and how many it stands for."""
        many = f" ({len(self.siblings)} {'groups' if self.below else 'columns'} alike)"
        return self.name + ("/" if self.below else "") + (many if len(self.siblings) > 1 else "")

    def walk(self, above: tuple[Node, ...] = ()) -> Iterator[tuple[tuple[Node, ...], Node]]:
        """Yield each node from this one on, after those above it."""
        yield above, self
        for node in self.below:
            yield from node.walk((*above, self))


def fold(keys: Mapping[str, Hashable], *, any_name: bool = False) -> list[Node]:
    """Return columns as a tree, in which nodes that are alike are one.

    Parameters
    ----------
    keys : mapping of str to hashable
        By the name of each column: what columns have in common that are alike.
    any_name : bool
        Fold also columns whose names differ by more than a number, as groups always are.
    """
    tree: dict[str, Any] = {}
    for name in keys:
        *groups, last = name.split("/", _MAX_DEPTH)
        here = tree
        for group in groups:
            here = here.setdefault(group, {})
        here[last] = name
    return _nodes(tree, keys, any_name)


def leaves(nodes: Sequence[Node]) -> Iterator[tuple[str, Node]]:
    """Yield what stands for columns, each with its whole name, such as ``demo_0 ... demo_9/x``."""
    for top in nodes:
        for above, node in top.walk():
            if node.columns:
                yield "/".join(each.name for each in (*above, node)), node


def _nodes(tree: Mapping[str, Any], keys: Mapping[str, Hashable], any_name: bool) -> list[Node]:
    nodes = []
    for name, found in tree.items():
        if isinstance(found, str):
            nodes.append(Node((name,), (found,), (), keys[found]))
        else:
            below = tuple(_nodes(found, keys, any_name))
            nodes.append(Node((name,), (), below, tuple((_mark(each), each.key) for each in below)))
    nodes = _joined(nodes, lambda node: (_mark(node, one=False), bool(node.below), node.key))
    return _joined(nodes, lambda node: (bool(node.below), node.key) if any_name or node.below else id(node))


def _joined(nodes: Sequence[Node], alike: Callable[[Node], Hashable]) -> list[Node]:
    """Return nodes, those that are alike as one in the place of the first, if they are enough."""
    marks = [alike(node) for node in nodes]
    groups: dict[Hashable, list[Node]] = {}
    for mark, node in zip(marks, nodes, strict=True):
        groups.setdefault(mark, []).append(node)
    joined = {
        mark: _one(group)
        for mark, group in groups.items()
        if len(group) > 1 and sum(len(node.siblings) for node in group) >= _ENOUGH
    }
    found = []
    for mark, node in zip(marks, nodes, strict=True):
        if mark not in joined:
            found.append(node)
        elif node is groups[mark][0]:
            found.append(joined[mark])
    return found


def _one(nodes: Sequence[Node]) -> Node:
    return Node(
        siblings=tuple(dict.fromkeys(name for node in nodes for name in node.siblings)),
        columns=tuple(name for node in nodes for name in node.columns),
        below=tuple(map(_one, zip(*(node.below for node in nodes), strict=True))),
        key=nodes[0].key,
    )


def _mark(node: Node, *, one: bool = True) -> str:
    """Return what tells the names of a node from others; of a single name with `one`, that name."""
    if one and len(node.siblings) == 1:
        return node.siblings[0]
    numbered = {re.sub("[0-9]+", "#", name) for name in node.siblings}
    return numbered.pop() if len(numbered) == 1 else "*"


def _short(name: str) -> str:
    name = printable(name)
    return name if len(name) <= _MAX_NAME else f"{name[: _MAX_NAME - 3]}..."
