"""Groups and datasets that are samples: each a row, or what has one name a row."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from ray_h5.likely_rows.alike import Alike, likely_samples
from ray_h5.likely_rows.patterns import pattern_of
from ray_h5.likely_rows.shapes import time_axis
from ray_h5.likely_rows.suggestion import FEW, Suggestion
from ray_h5.likely_rows.tree import FileTree, Seen
from ray_h5.likely_rows.usual_names import TARGETS, last, words
from ray_h5.messages import few
from ray_h5.storage.natural_order import natural_key

_MAX_ALIKE, WINDOW, UNPADDED = 2, "range(0, 16)", "leave the steps of '{}_is_pad' out of the loss"


def side_by_side(tree: FileTree) -> Iterator[Suggestion]:
    """Yield datasets that have the same names in several groups, such as images and their masks."""
    alike = [samples_alike for samples_alike in likely_samples(tree.whole, tree.others) if not samples_alike.are_groups]
    by_names: dict[tuple[str, frozenset[str]], list[str]] = {}
    for parent, listed in _by_parent(path for samples_alike in alike for path in samples_alike.paths).items():
        by_names.setdefault((parent.rpartition("/")[0], frozenset(listed)), []).append(parent)
    for (_, names), parents in by_names.items():
        # Groups of another kind, such as classes, have other samples under the same names.
        are_targets = [bool(TARGETS & {*words(last(parent)), last(parent)}) for parent in parents]
        if len(parents) < 2 or all(are_targets) or not any(are_targets):
            continue
        beside = {name for parent in parents for name in _by_parent([*tree.columns, *tree.others])[parent]}
        pattern, _ = pattern_of([(name,) for name in sorted(names)], [(name,) for name in sorted(beside - names)])
        first = min(names, key=natural_key)
        said = f"{few([f'{parent}/{first}' for parent in parents])}: {len(names)} names, each in {len(parents)} groups"
        patterns = {parent.rpartition("/")[2]: f"{parent}/{pattern}" for parent in parents}
        options = f"rows=ray_h5.Groups({patterns!r}, key='name')"
        yield Suggestion(said, "if what has one name is one sample", options, True)


def _by_parent(paths: Iterable[str]) -> dict[str, list[str]]:
    names_by_parent: dict[str, list[str]] = {}
    for parent, _, name in (path.rpartition("/") for path in paths):
        names_by_parent.setdefault(parent, []).append(name)
    return names_by_parent


def samples(tree: FileTree) -> Iterator[Suggestion]:
    """Yield groups or datasets that are samples."""
    shown: list[Alike] = []
    for alike in likely_samples(tree.whole, tree.others):
        is_seen = any({*alike.paths} <= {*other.paths} for other in shown)
        if is_seen or len(shown) >= _MAX_ALIKE or (shown and not alike.is_exact):
            continue
        shown.append(alike)
        first = _below(tree.columns, alike.paths[0])
        step, more = of_steps(first) if alike.are_groups else "value", []
        if time_axis(first) is None:  # otherwise steps are along another axis than the first
            windows = f"windows=ray_h5.Windows({{{step!r}: {WINDOW}}})"
            more.append(f"if each is an episode, add {windows}, and {UNPADDED.format(step)}")
        if names := [] if tree.attributes_of is None else list(tree.attributes_of(alike.paths[0])):
            more.append(
                f"attributes of each, such as {few(names, FEW)}, are columns with attrs={names[:1]} in Groups(...)"
            )
        if left := _left_out(tree.columns, alike):
            more.append(f"this leaves out {few(left, FEW)}")
        yield Suggestion(str(alike), "if each is a sample", alike.options, True, "; ".join(more))


def _left_out(columns: Iterable[str], alike: Alike) -> list[str]:
    """Return groups, or datasets, beside those that are alike."""
    depth, own = alike.paths[0].count("/"), {*alike.paths}
    parents = {path.rpartition("/")[0] for path in own}
    deep = (name.split("/") for name in columns)
    near = {"/".join(parts[: depth + 1]) for parts in deep if (len(parts) > depth + 1) == alike.are_groups}
    return sorted((path for path in near - own if path.rpartition("/")[0] in parents), key=natural_key)


def _below(columns: Mapping[str, Seen], group: str) -> dict[str, Seen]:
    first = f"{group}/"
    return {name[len(first) :]: column for name, column in columns.items() if name.startswith(first)}


def of_steps(columns: Mapping[str, Seen]) -> str:
    """Return the column of which windows are most likely wanted: actions, or else the first one of arrays."""
    arrays = [name for name, column in columns.items() if len(column.shape) > 1]
    actions = [name for name in columns if last(name).startswith("action")]
    return next(iter([*actions, *arrays, *columns]), "actions")
