"""Groups and datasets that belong together: samples, splits, and pieces with rows that follow each other."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from fnmatch import fnmatchcase

from ray_h5.likely_rows.alike import Alike, likely_samples
from ray_h5.likely_rows.patterns import pattern_of
from ray_h5.likely_rows.shapes import block_of
from ray_h5.likely_rows.suggestion import FEW, MAX_COPIED, Suggestion
from ray_h5.likely_rows.tree import FileTree, Seen
from ray_h5.likely_rows.words import MASKS, PIECES, SPLITS, TARGETS, last, words
from ray_h5.messages import few
from ray_h5.storage.local import natural_key

_MAX_ALIKE = 2
WINDOW = "range(0, 16)"


def pieces(tree: FileTree) -> Iterator[Suggestion]:
    """Yield datasets of one group that hold rows one after the other."""
    found: dict[tuple[str, object], dict[int, str]] = {}
    for name, each in tree.whole.items():
        if numbered := re.fullmatch(r"(.*\D)(\d+)", name):
            begin, number = numbered[1], int(numbered[2])
            found.setdefault((begin, (each.dtype, each.shape[1:])), {})[number] = name
    families = [(begin, names) for (begin, _), names in found.items() if len(names) > 1]
    globs = {begin: _glob_of(begin, {*names.values()}, tree.columns) for begin, names in families}
    for begin, names in families:
        lengths = {number: tree.columns[name].rows for number, name in names.items()}
        together = [begin]
        if len({*lengths.values()}) > 1:  # columns with as many rows in each piece, such as x0, y0, x1, y1
            alike = (
                other
                for other, others in families
                if other != begin and {number: tree.columns[name].rows for number, name in others.items()} == lengths
            )
            together += alike
        is_piece = PIECES & {*words(last(begin)), last(begin).strip("_")}
        first = tree.columns[min(names.values())]
        if len(together) > 1 or (len(first.shape) > 2 and (is_piece or _only_numbers_differ(tree, lengths))):
            whole = sum(lengths.values())
            pieces = {name for each, others in families if each in together for name in others.values()}
            beside = [name for name, each in tree.columns.items() if each.rows == whole and name not in pieces]
            columns = ", ".join([*(f"ray_h5.joined({globs[each]!r})" for each in together), *map(repr, beside)])
            ordered = [names[number] for number in sorted(names)]
            said = f"{ordered[0]} ... {ordered[-1]}: {len(names)} datasets with rows of one shape"
            yield Suggestion(said, "if their rows follow each other", f"columns=[{columns}]", True)
            return


def _glob_of(begin: str, names: Collection[str], columns: Iterable[str]) -> str:
    """Return a glob for names that differ in the number at their end, where it can, for no others."""
    others = any(fnmatchcase(each, begin + "*") and "/" not in each[len(begin) :] for each in {*columns} - {*names})
    return begin + ("[0-9]*" if others else "*")


def _only_numbers_differ(tree: FileTree, lengths: Mapping[int, int]) -> bool:
    """Return whether datasets differ in length and in a number, and nothing says that they are samples."""
    return len({*lengths.values()}) > 1 and not likely_samples(tree.whole, tree.others)


def side_by_side(tree: FileTree) -> Iterator[Suggestion]:
    """Yield datasets that have the same names in several groups, such as images and their masks."""
    alike = [each for each in likely_samples(tree.whole, tree.others) if not each.are_groups]
    by_names: dict[tuple[str, frozenset[str]], list[str]] = {}
    for parent, listed in _by_parent(path for each in alike for path in each.paths).items():
        by_names.setdefault((parent.rpartition("/")[0], frozenset(listed)), []).append(parent)
    for (_, names), parents in by_names.items():
        # Groups of another kind, such as classes, have other samples under the same names.
        are_targets = [bool(TARGETS & {*words(last(each)), last(each)}) for each in parents]
        if len(parents) < 2 or all(are_targets) or not any(are_targets):
            continue
        beside = {name for each in parents for name in _by_parent([*tree.columns, *tree.others])[each]}
        pattern, _ = pattern_of([(name,) for name in sorted(names)], [(name,) for name in sorted(beside - names)])
        first = min(names, key=natural_key)
        said = f"{few([f'{each}/{first}' for each in parents])}: {len(names)} names, each in {len(parents)} groups"
        patterns = {each.rpartition("/")[2]: f"{each}/{pattern}" for each in parents}
        options = f"rows=ray_h5.Groups({patterns!r}, key='name')"
        yield Suggestion(said, "if what has one name is one sample", options, True)


def _by_parent(paths: Iterable[str]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for parent, _, name in (path.rpartition("/") for path in paths):
        found.setdefault(parent, []).append(name)
    return found


def splits_of_one(tree: FileTree) -> Iterator[Suggestion]:
    """Yield groups, or columns, of the splits of a dataset."""
    by_group: dict[str, set[str]] = {}
    for name in tree.columns:
        first, _, rest = name.partition("/")
        by_group.setdefault(first, set()).add(rest)
    groups = [name for name in SPLITS if by_group.get(name, {""}) - {""}]
    if len(groups) > 1:
        said = f"{few(groups)}: these look like splits of one dataset"
        group = f"group={groups[0]!r}"
        below = replace(tree, columns=_below(tree.columns, groups[0]), others=())
        if all(by_group[name] == by_group[groups[0]] for name in groups):
            yield Suggestion(said, "for the rows of one", group, True)
        elif alike := likely_samples(below.columns):
            yield Suggestion(said, "for the samples of one", f"{group}, {alike[0].options}", True)
        return
    by_split = _columns_of_splits(tree)
    splits = [name for name in SPLITS if name in by_split]
    shared = set.intersection(*({*by_split[name]} for name in splits)) if splits else set()
    if len(splits) > 1 and shared and len(tree.lengths) > 1:
        names = sorted(by_split[splits[0]][name] for name in shared)
        said = f"{few(splits)}: these look like splits of one dataset"
        if len({tree.columns[name].rows for name in names}) == 1:
            yield Suggestion(said, "for the rows of one", f"columns={names!r}", True)
        elif all(re.fullmatch(rf"[^/]+/{splits[0]}", name) for name in names) and _are_alike(tree, names):
            # a group a class
            options = f"columns=[ray_h5.joined({'*/' + splits[0]!r}, name={splits[0]!r})]"
            yield Suggestion(said, "for the rows of one, of all groups", options, True)


def _are_alike(tree: FileTree, names: Iterable[str]) -> bool:
    return len({(tree.columns[name].dtype, tree.columns[name].shape[1:]) for name in names}) == 1


def _columns_of_splits(tree: FileTree) -> dict[str, dict[str, str]]:
    """Return columns by the split that they name, and by their names without it.

    Those of masks name samples, such as ``mask/train`` of robomimic, and hold none.
    """
    found: dict[str, dict[str, str]] = {}
    for name in tree.columns:
        end = last(name)
        if MASKS & {*words(name[: -len(end)].strip("/").rpartition("/")[2])}:
            continue
        for split in {*re.split(r"[_\-/]|(?=[A-Z])", end)} & {*SPLITS}:
            found.setdefault(split, {})[name[: -len(end)] + end.replace(split, "*", 1)] = name
    return found


def samples(tree: FileTree) -> Iterator[Suggestion]:
    """Yield groups or datasets that are samples."""
    shown: list[Alike] = []
    for alike in likely_samples(tree.whole, tree.others):
        if len(shown) >= _MAX_ALIKE or any({*alike.paths} <= {*each.paths} for each in shown):
            continue
        if shown and not alike.is_exact:
            continue
        shown.append(alike)
        first = _below(tree.columns, alike.paths[0])
        step = of_steps(first) if alike.are_groups else "value"
        more = f"if each is an episode, add windows=ray_h5.Windows({{{step!r}: {WINDOW}}})"
        if names := [] if tree.attributes_of is None else list(tree.attributes_of(alike.paths[0])):
            more += (
                f"; attributes of each, such as {few(names, FEW)}, are columns with attrs={names[:1]} in Groups(...)"
            )
        if left := _left_out(tree.columns, alike):
            more += f"; this leaves out {few(left, FEW)}"
        yield Suggestion(str(alike), "if each is a sample", alike.options, True, more)
        if len(shown) == 1:
            yield from _end_to_end(tree, alike)
        if blocks := _blocks_of_all(tree.columns, alike):
            options = f"rows=ray_h5.Patches({blocks!r}, groups={alike.pattern!r})"
            yield Suggestion(f"{alike}, which look like volumes", "if blocks of each are samples", options)


def _left_out(columns: Iterable[str], alike: Alike) -> list[str]:
    """Return groups, or datasets, beside those that are alike."""
    depth, own = alike.paths[0].count("/"), {*alike.paths}
    parents = {path.rpartition("/")[0] for path in own}
    deep = (name.split("/") for name in columns)
    near = {"/".join(parts[: depth + 1]) for parts in deep if (len(parts) > depth + 1) == alike.are_groups}
    return sorted((each for each in near - own if each.rpartition("/")[0] in parents), key=natural_key)


def _end_to_end(tree: FileTree, alike: Alike) -> Iterator[Suggestion]:
    """Yield the rows of all groups, one after the other, if each group has some: the images of a client."""
    first, final = (_below(tree.columns, path) for path in alike.paths[:: len(alike.paths) - 1])
    rows, last_rows = {each.rows for each in first.values()}, {each.rows for each in final.values()}
    names = alike.columns or sorted(first)
    likes = [{name: (each.dtype, each.shape[1:]) for name, each in some.items()} for some in (first, final)]
    is_alike = all(name in likes[1] and likes[0].get(name) == likes[1][name] for name in names)
    if len(rows) == len(last_rows) == 1 and rows != last_rows and is_alike and len(names) <= MAX_COPIED:
        columns = (f"ray_h5.joined({f'{alike.pattern}/{name}'!r}, name={name!r})" for name in names)
        yield Suggestion(
            f"{alike}, with rows in each", "for the rows of all of them", f"columns=[{', '.join(columns)}]"
        )


def _blocks_of_all(columns: Mapping[str, Seen], alike: Alike) -> dict[str, tuple[int, ...]]:
    """Return the arrays of groups that are volumes, and the shape of a block that fits into each of them."""
    found = [block_of(_below(columns, path), differ=True) for path in alike.paths] if alike.are_groups else [{}]
    if not all(found) or any(each.keys() != found[0].keys() for each in found):
        return {}
    return {name: tuple(map(min, zip(*(each[name] for each in found), strict=True))) for name in found[0]}


def _below(columns: Mapping[str, Seen], group: str) -> dict[str, Seen]:
    first = f"{group}/"
    return {name[len(first) :]: each for name, each in columns.items() if name.startswith(first)}


def of_steps(columns: Mapping[str, Seen]) -> str:
    """Return the column of which windows are most likely wanted: actions, or else the first one of arrays."""
    arrays = [name for name, each in columns.items() if len(each.shape) > 1]
    actions = [name for name in columns if last(name).startswith("action")]
    return next(iter([*actions, *arrays, *columns]), "actions")
