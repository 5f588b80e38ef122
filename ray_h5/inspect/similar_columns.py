"""Merge columns that are alike into one entry: a file may have thousands, in groups whose names differ by a number."""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ray_h5.likely_rows.alike import short_name
from ray_h5.likely_rows.tree import nested
from ray_h5.storage.natural_order import natural_key

# Fewer are shown one by one, as each may have a meaning of its own.
_MIN_MERGED = 6


@dataclass(frozen=True, slots=True)
class ColumnNode:
    """A column or a group; or several in one group that are alike."""

    siblings: tuple[str, ...]
    """Names, without the groups above."""
    columns: tuple[str, ...]
    """The full names of the columns of a leaf; empty for a group."""
    below: tuple[ColumnNode, ...]
    """The nodes in a group."""
    key: Hashable
    """Equal for nodes that are alike."""

    @property
    def name(self) -> str:
        """The name, or the first and the last of several names."""
        names = sorted(self.siblings, key=natural_key)
        return short_name(names[0]) if len(names) == 1 else f"{short_name(names[0])} ... {short_name(names[-1])}"

    @property
    def label(self) -> str:
        """The name, and the number of siblings."""
        many = f" ({len(self.siblings)} {'groups' if self.below else 'columns'} alike)"
        return self.name + ("/" if self.below else "") + (many if len(self.siblings) > 1 else "")


def merge_similar(keys: Mapping[str, Hashable], most: int | None = None) -> list[ColumnNode]:
    """Return columns as a tree in which nodes that are alike are merged; the keys of columns that are alike are equal.

    If there are more than `most` nodes, columns whose names differ by more than a number are merged, too. Groups always
    are.
    """
    tree = nested({name: name for name in keys})
    nodes = _nodes(tree, keys, any_name=False)
    return nodes if most is None or len(list(walk(nodes))) <= most else _nodes(tree, keys, any_name=True)


def walk(
    nodes: Iterable[ColumnNode], above: tuple[ColumnNode, ...] = ()
) -> Iterator[tuple[tuple[ColumnNode, ...], ColumnNode]]:
    """Yield nodes and all nodes below them, each with the nodes above it."""
    for node in nodes:
        yield above, node
        yield from walk(node.below, (*above, node))


def leaves(nodes: Sequence[ColumnNode]) -> Iterator[tuple[str, ColumnNode]]:
    """Yield the nodes of columns, each with its full name, such as ``demo_0 ... demo_9/x``."""
    for above, node in walk(nodes):
        if node.columns:
            yield "/".join(node_above.name for node_above in (*above, node)), node


def _nodes(tree: Mapping[str, Any], keys: Mapping[str, Hashable], *, any_name: bool) -> list[ColumnNode]:
    nodes = []
    for name, subtree in tree.items():
        if isinstance(subtree, str):
            nodes.append(ColumnNode((name,), (subtree,), (), keys[subtree]))
        else:
            below = tuple(_nodes(subtree, keys, any_name=any_name))
            nodes.append(ColumnNode((name[:-1],), (), below, tuple((_mark(node), node.key) for node in below)))
    # First nodes whose names differ by a number, such as lead_1 and lead_2; then groups of any names, such as patients.
    nodes = _joined(nodes, lambda node: (_mark(node, one=False), bool(node.below), node.key))
    return _joined(nodes, lambda node: (bool(node.below), node.key) if any_name or node.below else id(node))


def _joined(nodes: Sequence[ColumnNode], alike: Callable[[ColumnNode], Hashable]) -> list[ColumnNode]:
    """Return nodes, with those that are alike merged at the place of the first, if there are enough of them."""
    marks = [alike(node) for node in nodes]
    by_mark: dict[Hashable, list[ColumnNode]] = {}
    for mark, node in zip(marks, nodes, strict=True):
        by_mark.setdefault(mark, []).append(node)
    joined = {
        mark: _merged(similar)
        for mark, similar in by_mark.items()
        if len(similar) > 1 and sum(len(node.siblings) for node in similar) >= _MIN_MERGED
    }
    pairs = zip(marks, nodes, strict=True)
    return [joined.get(mark, node) for mark, node in pairs if mark not in joined or node is by_mark[mark][0]]


def _merged(nodes: Sequence[ColumnNode]) -> ColumnNode:
    return ColumnNode(
        siblings=tuple(dict.fromkeys(name for node in nodes for name in node.siblings)),
        columns=tuple(name for node in nodes for name in node.columns),
        below=tuple(map(_merged, zip(*(node.below for node in nodes), strict=True))),
        key=nodes[0].key,
    )


def _mark(node: ColumnNode, *, one: bool = True) -> str:
    """Return a pattern of the names of a node, with # for numbers; of a single name with `one`, that name."""
    if one and len(node.siblings) == 1:
        return node.siblings[0]
    # "*" stands for names that differ by more than a number.
    numbered = {re.sub("[0-9]+", "#", name) for name in node.siblings}
    return numbered.pop() if len(numbered) == 1 else "*"
