"""What a row of a file probably is, and the exact options that read it so: the one place that guesses.

`ray-h5 inspect`, warnings and errors print these.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase

from ray_h5.likely_rows.alike import Alike, likely_samples
from ray_h5.likely_rows.ranges import ragged_columns
from ray_h5.likely_rows.shapes import (
    after_ones,
    along_last_axis,
    block_of,
    frames_of_sleap,
    is_bag,
    is_image,
    main_columns,
    time_axis,
)
from ray_h5.likely_rows.tree import FileTree, Seen
from ray_h5.likely_rows.words import ENDS, EPISODES, FLAGS, MASKS, PIECES, SPLITS, last, words
from ray_h5.messages import counted, few

_FEW = 3
_MAX_COPIED = 40
_MAX_ALIKE = 2
_WINDOW = "range(0, 16)"


@dataclass(frozen=True, slots=True)
class Suggestion:
    """What rows probably are.

    Attributes
    ----------
    found : str
        What was seen.
    when : str
        When the options are right: ``if each is a sample``. Empty if there are no options.
    options : str
        The arguments of `read_h5`, as they are written.
    is_surprise : bool
        Whether what is read without them is probably not what is meant.
    more : str
        What else there is to say.
    """

    found: str
    when: str = ""
    options: str = ""
    is_surprise: bool = False
    more: str = ""

    @property
    def as_call(self) -> str:
        """A sentence with a call, for a report."""
        said = f". {_capital(self.when)}, write read_h5(paths, {self.options})" if self.options else ""
        more = f"; {self.more}" if self.more else ""
        return f"{self.found}{said}{more}" + (": see docs/rows.md" if self.options else "")

    @property
    def as_advice(self) -> str:
        """Sentences with options, for a message of whatever was called."""
        said = f" {_capital(self.when)}, pass {self.options}." if self.options else ""
        return f"{self.found}.{said}" + (f" {_capital(self.more)}." if self.more else "")


def suggestions(tree: FileTree) -> list[Suggestion]:
    """Return what rows of a file probably are, the likeliest first; nothing if they are as they are read."""
    if not tree.columns:
        return [*_single_values(tree)]
    if _is_model(tree.columns):
        said = "this looks like the weights of a Keras model; they are no rows of samples"
        return [Suggestion(said, is_surprise=True)]
    rules = (
        _pieces,
        _splits,
        _samples,
        _sparse,
        _times,
        _of_one_row,
        _reversed,
        _ragged,
        _files,
        _volumes,
        _main,
        _episodes,
        _cf,
    )
    return [each for rule in rules for each in rule(tree)]


def _single_values(tree: FileTree) -> Iterator[Suggestion]:
    """Yield single values that are samples, such as encoded images under their names."""
    if not tree.single_values:
        return
    # Values of one type that differ in length, as images do.
    columns = {name: Seen("", (length,)) for length, name in enumerate(tree.others, start=1)}
    for alike in likely_samples(columns)[:1]:
        said = str(alike).replace(" columns alike", " single values alike")
        more = "encoded images are decoded by ray_h5.DecodeImage('value')"
        yield Suggestion(said, "if each is a sample", f"{alike.options[:-1]}, key='name')", True, more)


def _is_model(columns: Mapping[str, Seen]) -> bool:
    """Return whether columns are the weights of a model, as versions of Keras name them."""
    names = list(columns)
    layers = [name.split("/") for name in names]
    twice = [len(each) > 2 and each[-3] == each[-2] for each in layers]
    return (
        any("/vars/" in f"/{name}/" or name.endswith(("kernel:0", "bias:0")) for name in names)
        or all(each[0] == "model_weights" for each in layers)
        or (all(twice) and len(twice) > 1)
    )


def _pieces(tree: FileTree) -> Iterator[Suggestion]:
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


def _splits(tree: FileTree) -> Iterator[Suggestion]:
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


def _samples(tree: FileTree) -> Iterator[Suggestion]:
    """Yield groups or datasets that are samples."""
    shown: list[Alike] = []
    for alike in likely_samples(tree.whole, tree.others):
        if len(shown) >= _MAX_ALIKE or any({*alike.paths} <= {*each.paths} for each in shown):
            continue
        if shown and not alike.is_exact:
            continue
        shown.append(alike)
        first = _below(tree.columns, alike.paths[0])
        step = _of_steps(first) if alike.are_groups else "value"
        more = f"if each is an episode, add windows=ray_h5.Windows({{{step!r}: {_WINDOW}}})"
        if names := [] if tree.attributes_of is None else list(tree.attributes_of(alike.paths[0])):
            more += (
                f"; attributes of each, such as {few(names, _FEW)}, are columns with attrs={names[:1]} in Groups(...)"
            )
        yield Suggestion(str(alike), "if each is a sample", alike.options, True, more)
        if len(shown) == 1:
            yield from _end_to_end(tree, alike)
        if blocks := _blocks_of_all(tree.columns, alike):
            options = f"rows=ray_h5.Patches({blocks!r}, groups={alike.pattern!r})"
            yield Suggestion(f"{alike}, which look like volumes", "if blocks of each are samples", options)


def _end_to_end(tree: FileTree, alike: Alike) -> Iterator[Suggestion]:
    """Yield the rows of all groups, one after the other, if each group has some: the images of a client."""
    first, final = (_below(tree.columns, path) for path in alike.paths[:: len(alike.paths) - 1])
    rows, last_rows = {each.rows for each in first.values()}, {each.rows for each in final.values()}
    names = alike.columns or sorted(first)
    likes = [{name: (each.dtype, each.shape[1:]) for name, each in some.items()} for some in (first, final)]
    is_alike = all(name in likes[1] and likes[0].get(name) == likes[1][name] for name in names)
    if len(rows) == len(last_rows) == 1 and rows != last_rows and is_alike and len(names) <= _MAX_COPIED:
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


def _sparse(tree: FileTree) -> Iterator[Suggestion]:
    """Yield sparse matrices that nothing says to be some."""
    ends = [name.removesuffix("/indptr") for name in tree.columns if name.endswith("/indptr")]
    groups = sorted(each for each in ends if {f"{each}/data", f"{each}/indices"} <= tree.columns.keys())
    if groups:
        rows = tree.columns[f"{groups[0]}/indptr"].rows - 1
        beside = [repr(name) for name, each in tree.columns.items() if each.rows == rows]
        columns = ", ".join([f"ray_h5.csr({groups[0]!r})", *beside])
        said = f"{few(list(map(repr, groups)), _FEW)} holds a sparse matrix"
        yield Suggestion(said, "for its rows", f"columns=[{columns}]", True)


def _times(tree: FileTree) -> Iterator[Suggestion]:
    """Yield the grid of columns with an axis of time after the first axis."""
    found = time_axis(tree.columns)
    if found is not None:
        name, time = found
        said = f"{name} of {tree.columns[name].shape}: the second axis is as long as {time!r}"
        yield Suggestion(said, "if each of its steps is a sample", "rows=ray_h5.Grid(2)")


def _of_one_row(tree: FileTree) -> Iterator[Suggestion]:
    """Yield blocks or a grid of columns whose first axes have the length one, as of microscopes and satellites."""
    found = after_ones(tree.columns)
    if found is None or tree.files > 1:
        return
    name, ones, block = found
    shape, alone = tree.columns[name].shape, tree.lengths == {1}
    said = f"{name} of {shape} has {shape[0]} row"
    if block:
        options = f"rows=ray_h5.Patches({ {name: block}!r}, axes={ {name: tuple(range(ones, ones + len(block)))}!r})"
        is_labelled = any(len(each.shape) == 1 for each in tree.columns.values())
        yield Suggestion(said, "if blocks of it are samples", options, alone and not is_labelled)
    elif not alone:
        beside = [each for each, seen in tree.columns.items() if seen.shape[: ones + 1] in {shape[: ones + 1], (1,)}]
        columns = f"columns={sorted(beside)!r}" if len(beside) <= _MAX_COPIED else f"columns=[{name!r}]"
        yield Suggestion(said, "if its lines are samples", f"rows=ray_h5.Grid({ones + 1}), {columns}", True)


def _reversed(tree: FileTree) -> Iterator[Suggestion]:
    """Yield the last axis as rows, where columns share it and not the first."""
    if len(tree.lengths) < 2:
        return
    found = frames_of_sleap(tree.columns) or along_last_axis(tree.columns, any_of=tree.of_matlab)
    if found is not None:
        rows, names = found
        some = len(names) < len(tree.columns)
        columns = f", columns={sorted(names)!r}" if some else ""
        said = f"{few(names, _FEW)}: the last axes have one length, {rows}, and the first ones several"
        yield Suggestion(said, "if rows lie along the last axis", f"axes='reversed'{columns}", True)


def _ragged(tree: FileTree) -> Iterator[Suggestion]:
    """Yield columns of varying length whose bounds are beside them."""
    found = None if any(_sparse(tree)) else ragged_columns(tree.columns)
    if found is not None:
        said, columns = found
        yield Suggestion(said, "for these rows", f"columns=[{', '.join(columns)}]", True)


def _files(tree: FileTree) -> Iterator[Suggestion]:
    """Yield files as rows."""
    columns, several = tree.columns, tree.files > 1
    surprise = True
    if several and is_image(columns):
        said = "each file looks like one image, whose lines are no samples"
    elif several and tree.rows_differ and is_bag(columns):
        said = "each file looks like one bag of features, whose rows are parts of a sample"
    elif several and block_of(columns, differ=tree.rows_differ):
        said = "each file looks like one volume, whose planes are no samples"
    elif several and len(tree.lengths) > 1 and not likely_samples(tree.whole):
        said = "the columns have first axes of several lengths"
    elif several and tree.single_values and not likely_samples(tree.whole):
        said, surprise = "each file has single values beside its columns", False
    else:
        return
    yield Suggestion(said, "if each file is a sample", "rows=ray_h5.Files()", surprise)


def _volumes(tree: FileTree) -> Iterator[Suggestion]:
    """Yield blocks of volumes."""
    shapes = block_of(tree.columns, differ=tree.files > 1 and tree.rows_differ)
    if shapes:
        name = next(iter(shapes))
        said = f"{name} of {tree.columns[name].shape} looks like a volume"
        yield Suggestion(said, "if blocks of it are samples", f"rows=ray_h5.Patches({shapes!r})", True)


def _main(tree: FileTree) -> Iterator[Suggestion]:
    """Yield the columns of one length that have the most values, where lengths differ."""
    if len(tree.lengths) < 2 or any(_sparse(tree)):
        return
    rows, names = main_columns(tree.columns)
    if len(names) <= _MAX_COPIED and not likely_samples(tree.whole):
        yield Suggestion(
            f"{few(sorted(names), _FEW)}: of {counted(rows, 'row')}, these have the most values",
            "for these rows", f"columns={sorted(names)!r}",
        )  # fmt: skip


def _episodes(tree: FileTree) -> Iterator[Suggestion]:
    """Yield windows of rows that are steps of episodes."""
    names = {name for name, each in tree.columns.items() if len(each.shape) == 1}
    flags = [name for name in names if last(name) in FLAGS and "/" not in name]
    ends = sorted(name for name in names if last(name) in ENDS)
    numbers = sorted(name for name in names if last(name) in EPISODES)
    if ends:
        columns, option = ends, f"episode_ends={ends[0]!r}"
    elif numbers:
        columns, option = numbers, f"episode={numbers[0]!r}"
    elif flags:
        columns = [name for name in tree.columns if name in flags]
        option = f"episode_flags={columns!r}"
    else:
        return
    step = _of_steps(tree.columns)
    others = sorted(name for name, each in tree.columns.items() if each.rows == tree.columns[step].rows)
    chosen = f", columns={others!r}" if len(tree.lengths) > 1 and len(others) <= _MAX_COPIED else ""
    yield Suggestion(
        f"{', '.join(columns)}: rows may be steps of episodes", "for windows of an episode",
        f"windows=ray_h5.Windows({{{step!r}: {_WINDOW}}}, {option}){chosen}",
    )  # fmt: skip


def _cf(tree: FileTree) -> Iterator[Suggestion]:
    """Yield the decoding of columns that are stored as netCDF says."""
    if tree.of_cf:
        said = f"{few(tree.of_cf, _FEW)}: stored as packed numbers or times, as the CF conventions say"
        yield Suggestion(said, "for their values", "decode_cf=True")


def _of_steps(columns: Mapping[str, Seen]) -> str:
    """Return the column of which windows are most likely wanted: actions, or else the first one of arrays."""
    arrays = [name for name, each in columns.items() if len(each.shape) > 1]
    actions = [name for name in columns if last(name).startswith("action")]
    return next(iter([*actions, *arrays, *columns]), "actions")


def _capital(sentence: str) -> str:
    return sentence[:1].upper() + sentence[1:]
