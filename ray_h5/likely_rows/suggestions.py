"""What a row of a file probably is, and the exact options that read it so: the one place that guesses.

`ray-h5 inspect`, warnings and errors print these.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from typing import Any, NamedTuple

from ray_h5.likely_rows.alike import Alike, likely_samples, pattern_of
from ray_h5.likely_rows.arguments import Arguments, Made, made, written
from ray_h5.likely_rows.shapes import (
    along_last_axis,
    block_of,
    is_bag,
    is_image,
    is_of_few_numbers,
    is_one_array,
    main_columns,
    time_axis,
)
from ray_h5.likely_rows.tree import FileTree, Seen
from ray_h5.likely_rows.usual_names import (
    BOUNDS,
    COUNT_FIELDS,
    COUNTS,
    END_FIELDS,
    ENDS,
    EPISODE_LENGTHS,
    EPISODE_STARTS,
    EPISODES,
    EVENTS,
    FLAGS,
    OFFSETS,
    START_FIELDS,
    STARTS,
    TARGETS,
    last,
    words,
)
from ray_h5.messages import counted, few
from ray_h5.storage.natural_order import natural_key

FEW = 3
MAX_COPIED = 40
"""Names that are listed, and columns of a call."""
_MANY_FILES = 8
"""This many files with one square array each are no chance."""
_MAX_ALIKE, WINDOW, UNPADDED = 2, range(16), "leave the steps of '{}_is_pad' out of the loss"


@dataclass(frozen=True, slots=True)
class Suggestion:
    """What rows probably are.

    Attributes
    ----------
    found : str
        What was seen.
    when : str
        When the options are right: ``if each is a sample``. Empty if there are no options.
    arguments : mapping of str to object
        The arguments of `read_h5`.
    is_surprise : bool
        Whether what is read without them is probably not what is meant.
    more : str
        What else there is to say.
    samples : Alike, optional
        The groups or datasets that the options make rows of.
    paths : str
        What files a call of `read_h5` names.
    """

    found: str
    when: str = ""
    arguments: Arguments = field(default_factory=dict)
    is_surprise: bool = False
    more: str = ""
    samples: Alike | None = None
    paths: str = "paths"

    @property
    def options(self) -> str:
        """The arguments as they are written."""
        return written(self.arguments)

    def beside_others(self, names: Iterable[str]) -> Suggestion | None:
        """Return it for files in which other groups or datasets are beside the samples; None if it is the same."""
        alike = None if self.samples is None else self.samples.beside_others(names)
        return (
            None if alike is None else replace(self, arguments=alike.arguments, more=alike.without_pattern or self.more)
        )

    @property
    def as_call(self) -> str:
        """A sentence with a call, for a report."""
        said = f". {_capital(self.when)}, write read_h5({self.paths}, {self.options})" if self.options else ""
        pages = {"axes": "files", "missing": "files", "sidecar": "tables"}
        page = f": see docs/{next((pages[name] for name in self.arguments if name in pages), 'rows')}.md"
        return f"{self.found}{said}" + (f"; {self.more}" if self.more else "") + (page if self.options else "")

    @property
    def as_advice(self) -> str:
        """Sentences with options, for a message of whatever was called."""
        said = f" {_capital(self.when)}, pass {self.options}." if self.options else ""
        return f"{self.found}.{said}" + (f" {_capital(self.more)}." if self.more else "")


def _capital(sentence: str) -> str:
    return sentence[:1].upper() + sentence[1:]


def suggestions(tree: FileTree) -> list[Suggestion]:
    """Return what rows of a file probably are, the likeliest first; nothing if they are as they are read."""
    if not tree.columns:
        return [*_single_values(tree)]
    likely = likely_samples(tree.whole)
    if pairs := [*side_by_side(likely)]:
        return pairs
    of_groups = [*islice(_ragged_of_groups(likely, tree), FEW)]
    rules: list[Callable[[FileTree], Iterator[Suggestion]]] = [_sparse, _other_axes, _ragged]
    if of_groups:
        rules.remove(_ragged)
    # A short last axis of each of several files is more likely channels than rows.
    is_few = tree.files > 1 and not tree.of_matlab and is_of_few_numbers(tree.columns)
    rules.insert(1 if is_few else len(rules), partial(_files, likely))
    rules += [partial(_main, likely), _episodes]
    others = (suggestion for rule in rules for suggestion in islice(rule(tree), FEW))
    listed = [*of_groups, *samples(tree, likely), *others]
    whole = {"rows": made("Files")}
    if len(tree.lengths) > 1 and not any(suggestion.arguments == whole for suggestion in listed):
        said = f"first axes of {counted(len(tree.lengths), 'length')}"
        listed.append(Suggestion(said, "if each file is one sample, a bag of features or a volume", whole))
    return listed


def _single_values(tree: FileTree) -> Iterator[Suggestion]:
    """Yield single values that are samples, such as encoded images under their names."""
    # Values of one type that differ in length, as images do.
    columns = {name: Seen("", (length,)) for length, name in enumerate(tree.single_values, start=1)}
    for alike in likely_samples(columns)[:1]:
        said = str(alike).replace(" columns alike", " single values alike")
        more = "encoded images are decoded by ray_h5.DecodeImage('value')"
        keyed = made("Groups", alike.pattern, **{**alike.arguments["rows"].options, "key": "name"})
        yield Suggestion(said, "if each is a sample", {**alike.arguments, "rows": keyed}, True, more)


def _sparse(tree: FileTree) -> Iterator[Suggestion]:
    """Yield sparse matrices that nothing says to be some."""
    ends = [name.removesuffix("/indptr") for name in tree.columns if name.endswith("/indptr")]
    groups = sorted(end for end in ends if {f"{end}/data", f"{end}/indices"} <= tree.columns.keys())
    if not groups:
        return
    group, said = groups[0], f"{few(list(map(repr, groups)), FEW)} holds a sparse matrix"
    rows, options = tree.columns[f"{group}/indptr"].rows - 1, dict[str, Any]()
    if f"{group}/shape" not in tree.columns and not tree.is_sparse(group):
        # Names of the other axis, such as those of genes.
        parts = {f"{group}/{index}" for index in ("data", "indices", "indptr")}
        lengths = {
            column.rows
            for name, column in tree.columns.items()
            if len(column.shape) == 1 and column.rows != rows and name not in parts and column.is_text
        }
        if len(lengths) != 1:
            more = f"it has no shape, and nothing says how many columns there are: csr({group!r}, shape=({rows}, ...))"
            yield Suggestion(said, is_surprise=True, more=more)
            return
        options = {"shape": (rows if tree.files < 2 else None, lengths.pop())}
    beside = [name for name, column in tree.columns.items() if column.rows == rows]
    yield Suggestion(said, "for its rows", {"columns": [made("csr", group, **options), *beside]}, True)


def _other_axes(tree: FileTree) -> Iterator[Suggestion]:
    """Yield the grid of columns whose second axis is time; and the last axis as rows, where columns share it alone."""
    if (of_time := time_axis(tree.columns)) is not None:
        name, time = of_time
        said = f"{name} of {tree.columns[name].shape}: the second axis is as long as {time!r}"
        yield Suggestion(said, "if each of its steps is a sample", {"rows": made("Grid", 2)})
    along_last = along_last_axis(tree.columns, any_of=tree.of_matlab) if len(tree.lengths) > 1 else None
    if along_last is not None:
        rows, names = along_last
        columns = {"columns": sorted(names)} if len(names) < len(tree.columns) else {}
        said = f"{few(names, FEW)}: the last axes have one length, {rows}, and the first ones several"
        said = "MATLAB wrote this file, and its axes are reversed in HDF5. " * tree.of_matlab + said
        yield Suggestion(said, "if rows lie along the last axis", {"axes": "reversed", **columns}, True)


def _ragged(tree: FileTree) -> Iterator[Suggestion]:
    """Yield columns of varying length whose bounds are beside them.

    Whether the rows are all of the values is for the caller to find out: only reading shows it.
    """
    if any(_sparse(tree)):
        return
    columns, when = tree.columns, "for these rows"
    # NWB writes the ends of the rows of a column beside it.
    ends_of = {
        name: columns[f"{name}_index"].rows
        for name in columns
        if f"{name}_index" in columns and _is_integer(columns[f"{name}_index"], 1) and not name.endswith("_index")
    }
    if ends_of:  # those of one group that have as many rows as the largest one
        first = max(ends_of, key=lambda name: columns[name].values)
        group, rows = _group(first), ends_of[first]
        indexed = [name for name in ends_of if _group(name) == group and ends_of[name] == rows]
        taken = {*indexed, *(f"{name}_index" for name in indexed)}
        plain = [name for name in columns if name not in taken and (_group(name), columns[name].rows) == (group, rows)]
        said = f"{first}_index has the end of each row of {first}, of {counted(columns[first].rows, 'value')}"
        listed = [*(made("ragged", name, ends=f"{name}_index") for name in indexed), *plain]
        yield Suggestion(said, when, {"columns": listed}, True)
        return
    known, places = [*_bounds(columns)], _Places(columns)
    of_bounds = {name for bounds in known for name in bounds.names}
    tables = [*_tables_of_bounds(columns)]
    in_tables = [(table, name) for table in tables for name in places.of_table(table)]
    if in_tables:  # those of the table with the most values say how many rows there are
        rows = max(in_tables, key=lambda pair: columns[pair[1]].values)[0].rows
        alike = [(table, name) for table, name in in_tables if table.rows == rows]
        listed = [made("ragged", name, **table.options) for table, name in alike]
        indexes = {table.names[0] for table in tables}
        plain = sorted({*places.by_rows[rows]} - indexes - {name for _, name in alike})
        said = f"{few([*dict.fromkeys(table.names[0] for table, _ in alike)], FEW)}: "
        said += f"these say where each of {counted(rows, 'row')} is in longer tables"
        yield Suggestion(said, when, {"columns": [*listed, *plain]}, True)
    for bounds in known:
        content = places.values_of(bounds, is_alone=len(known) == 1)
        if not content:
            continue
        length, names = main_columns(content)
        beside = sorted({*places.by_rows[bounds.rows]} - of_bounds, key=repr)
        rows_of = counted(bounds.rows, "row")
        said = f"{' and '.join(bounds.names)}: these may say where each of {rows_of} is among {length} values"
        # Of starts with counts nothing but the values says whether they count from 1: the call that reads the files is
        # the one that is shown.
        for base in ({}, {"base": 1}) if {"starts", "counts"} <= bounds.options.keys() else ({},):
            ragged = [made("ragged", name, **bounds.options, **base) for name in sorted(names)]
            yield Suggestion(said, when, {"columns": [*ragged, *beside]}, True)


def _ragged_of_groups(likely: Sequence[Alike], tree: FileTree) -> Iterator[Suggestion]:
    """Yield the rows of groups that are alike, one group after the other, where bounds lie beside longer columns.

    ``BEAM0000/rx_sample_start_index`` is about ``BEAM0000/rxwaveform``, as in each other beam.
    """
    for alike in likely:
        group = f"{alike.paths[0]}/"
        first = {name[len(group) :]: seen for name, seen in tree.columns.items() if name.startswith(group)}
        if not alike.are_groups or not alike.pattern or alike.exclude or not first:
            continue
        for suggestion in islice(_ragged(FileTree(first, files=tree.files)), FEW):
            columns = {}
            for column in suggestion.arguments["columns"]:
                name = column if isinstance(column, str) else column.values[0]
                columns[name] = made("joined", _of_each(column, alike.pattern))
            said = f"{alike.pattern}, {counted(len(alike.paths), 'group')} alike: {suggestion.found} of the first"
            yield replace(suggestion, found=said, when="for the rows of all groups", arguments={"columns": columns})


def _of_each(column: Any, pattern: str) -> Any:
    """Return what is made of columns of a group as made of those of each group."""
    if isinstance(column, str):
        return f"{pattern}/{column}"
    if not isinstance(column, Made):
        return column
    options = {name: _of_each(option, pattern) for name, option in column.options.items()}
    return replace(column, values=(_of_each(column.values[0], pattern), *column.values[1:]), options=options)


_FRAMES = (
    "if the files of a folder follow each other in time, add windows=ray_h5.Windows({{{!r}: range(-3, 1)}}, "
    "episode='folder')"
)


def _files(likely: Sequence[Alike], tree: FileTree) -> Iterator[Suggestion]:
    """Yield files as rows, and blocks of volumes."""
    several, said, surprise, more = tree.files > 1, "", True, ""
    blocks = block_of(tree.columns, differ=several and tree.rows_differ)
    if tree.files >= _MANY_FILES and not tree.rows_differ and is_one_array(tree.columns):
        said = f"{counted(tree.files, 'file')} of one array with equal axes: each looks like one image or volume"
        more = _FRAMES.format(_of_steps(tree.columns))
    elif several and is_image(tree.columns):
        said = "each file looks like one image, whose lines are no samples"
        more = _FRAMES.format(_of_steps(tree.columns))
    elif several and tree.rows_differ and is_bag(tree.columns):
        said = "each file looks like one bag of features, whose rows are parts of a sample"
    elif several and blocks:
        said = "each file looks like one volume, whose planes are no samples"
    elif several and len(tree.lengths) > 1 and not likely:
        said = "the columns have first axes of several lengths"
    elif several and tree.shapes_differ and not likely:
        said, surprise = "rows differ in shape from file to file", False  # planning says so, too
    elif several and tree.single_values and not likely:
        said, surprise = "each file has single values beside its columns", False
    if said:
        yield Suggestion(said, "if each file is a sample", {"rows": made("Files")}, surprise, more)
    if blocks:
        name = next(iter(blocks))
        said = f"{name} of {tree.columns[name].shape} looks like a volume"
        yield Suggestion(said, "if blocks of it are samples", {"rows": made("Patches", blocks)}, True)


def _main(likely: Sequence[Alike], tree: FileTree) -> Iterator[Suggestion]:
    """Yield the columns of one length that have the most values, where lengths differ."""
    if len(tree.lengths) < 2 or any(_sparse(tree)):
        return
    rows, names = main_columns(tree.columns)
    if len(names) <= MAX_COPIED and not likely:
        said = f"{few(sorted(names), FEW)}: they agree on {counted(rows, 'row')}, and have the most values"
        yield Suggestion(said, "for these rows", {"columns": sorted(names)})


def _episodes(tree: FileTree) -> Iterator[Suggestion]:
    """Yield windows of rows that are steps of episodes; and the decoding of columns that are stored as netCDF says."""
    step = _of_steps(tree.columns)
    steps = tree.columns[step].rows
    numbers = {name: column.rows for name, column in tree.columns.items() if len(column.shape) == 1}
    # Of each episode there is one value, or of each step.
    of_episodes = {"episode_ends": ENDS, "episode_lengths": EPISODE_LENGTHS, "episode_starts": EPISODE_STARTS}
    episode_names = [
        (sorted(name for name, rows in numbers.items() if last(name) in known and rows < steps), option)
        for option, known in of_episodes.items()
    ]
    of_steps = {name for name, rows in numbers.items() if rows == steps}
    episode_names.append((sorted(name for name in of_steps if last(name) in EPISODES), "episode"))
    nothing: tuple[list[str], dict[str, Any]] = ([], {})
    columns, given = next(((names, {option: names[0]}) for names, option in episode_names if names), nothing)
    if not columns:
        columns = [name for name in numbers if last(name) in FLAGS and "/" not in name and name in of_steps]
        given = {"episode_flags": columns}
    if columns:
        others = sorted(name for name, column in tree.columns.items() if column.rows == steps)
        chosen = {"columns": others} if len(tree.lengths) > 1 and len(others) <= MAX_COPIED else {}
        said = f"{', '.join(columns)}: rows may be steps of episodes"
        windows = {"windows": made("Windows", {step: WINDOW}, **given), **chosen}
        yield Suggestion(said, "for windows of an episode", windows, more=UNPADDED.format(step))
    others = [name for name, column in tree.columns.items() if column.rows == steps and last(name) not in EVENTS]
    if others and (events := sorted(name for name in of_steps if last(name) in EVENTS)):
        is_few = len(tree.lengths) > 1 and len(others) < MAX_COPIED
        chosen = {"columns": sorted([events[0], *others])} if is_few else {}
        said = f"{events[0]}: rows may be entries of events"
        yield Suggestion(said, "for a row an event", {"rows": made("Groups", by=events[0]), **chosen})
    if tree.of_cf:
        said = f"{few(tree.of_cf, FEW)}: stored as packed numbers or times, as the CF conventions say"
        yield Suggestion(said, "for their values", {"decode_cf": True})


# Groups and datasets that are samples: each a row, or what has one name a row ---------------------


def side_by_side(likely: Sequence[Alike]) -> Iterator[Suggestion]:
    """Yield datasets that have the same names in several groups, such as images and their masks."""
    alike = [samples_alike for samples_alike in likely if not samples_alike.are_groups]
    by_names: dict[tuple[str, frozenset[str]], list[str]] = {}
    names_by_parent: dict[str, list[str]] = {}
    for parent, _, name in (path.rpartition("/") for samples_alike in alike for path in samples_alike.paths):
        names_by_parent.setdefault(parent, []).append(name)
    for parent, listed in names_by_parent.items():
        by_names.setdefault((parent.rpartition("/")[0], frozenset(listed)), []).append(parent)
    for (_, names), parents in by_names.items():
        # Groups of another kind, such as classes, have other samples under the same names.
        are_targets = [bool(TARGETS & {*words(last(parent)), last(parent)}) for parent in parents]
        if len(parents) < 2 or all(are_targets) or not any(are_targets):
            continue
        pattern = pattern_of(names)
        first = min(names, key=natural_key)
        said = f"{few([f'{parent}/{first}' for parent in parents])}: {len(names)} names, each in {len(parents)} groups"
        patterns = {parent.rpartition("/")[2]: f"{parent}/{pattern}" for parent in parents}
        rows = made("Groups", patterns, key="name")
        yield Suggestion(said, "if what has one name is one sample", {"rows": rows}, True)


def samples(tree: FileTree, likely: Sequence[Alike] | None = None) -> Iterator[Suggestion]:
    """Yield groups or datasets that are samples: those that are `likely`."""
    shown: list[Alike] = []
    for alike in likely_samples(tree.whole) if likely is None else likely:
        is_seen = any({*alike.paths} <= {*other.paths} for other in shown)
        if is_seen or len(shown) >= _MAX_ALIKE:
            continue
        shown.append(alike)
        columns = {**tree.columns, **tree.whole}
        group = f"{alike.paths[0]}/"
        first = {name[len(group) :]: column for name, column in columns.items() if name.startswith(group)}
        step, more = _of_steps(first) if alike.are_groups else "value", []
        if time_axis(first) is None:  # otherwise steps are along another axis than the first
            windows = written({"windows": _windows_of_steps(first, step)})
            more.append(f"if each is an episode, add {windows}, and {UNPADDED.format(step)}")
        own, above = _attributes(tree, alike.paths[0])
        if names := [*own, *above]:
            attrs = [*own[:1], *above[:1]]
            more.append(f"attributes of each, such as {few(names, FEW)}, are columns with attrs={attrs} in Groups(...)")
        if left := _left_out(columns, alike):
            more.append(f"this leaves out {few(left, FEW)}")
        said = alike.without_pattern or "; ".join(more)
        yield Suggestion(str(alike), "if each is a sample", alike.arguments, True, said, alike)


def _attributes(tree: FileTree, path: str) -> tuple[list[str], list[str]]:
    """Return the attributes of a sample, and those of the group that has it, such as the event of a waveform."""
    if tree.attributes_of is None:
        return [], []
    group, _, _ = path.rpartition("/")
    return list(tree.attributes_of(path)), [f"../{name}" for name in (tree.attributes_of(group) if group else [])]


def _windows_of_steps(columns: Mapping[str, Seen], step: str) -> Made:
    """Return windows of an episode: T + 1 observations beside T actions have one after each step."""
    steps = columns[step].rows if step in columns else 0
    longer = [name for name, column in columns.items() if steps and column.rows == steps + 1]
    if not longer or len(longer) > MAX_COPIED:
        return made("Windows", {step: WINDOW})
    return made("Windows", {step: WINDOW, **{name: [0, 1] for name in longer}}, episode_length="min")


def _left_out(columns: Iterable[str], alike: Alike) -> list[str]:
    """Return groups, or datasets, beside those that are alike."""
    depth, own = alike.paths[0].count("/"), {*alike.paths}
    parents = {path.rpartition("/")[0] for path in own}
    deep = (name.split("/") for name in columns)
    near = {"/".join(parts[: depth + 1]) for parts in deep if (len(parts) > depth + 1) == alike.are_groups}
    return sorted((path for path in near - own if path.rpartition("/")[0] in parents), key=natural_key)


def _of_steps(columns: Mapping[str, Seen]) -> str:
    """Return the column of which windows are most likely wanted: actions, or else the first one of arrays."""
    arrays = [name for name, column in columns.items() if len(column.shape) > 1]
    actions = [name for name in columns if last(name).startswith("action")]
    return next(iter([*actions, *arrays, *columns]), "actions")


# Rows of varying length that lie one after the other, and the integers that say where each of them is -------------


class _Bounds(NamedTuple):
    """Datasets with the bounds of each row, the options that name them, and how many rows there are."""

    names: tuple[str, ...]
    options: dict[str, Any]
    rows: int


class _Places:
    """Columns by their group, by their source and by their number of rows."""

    def __init__(self, columns: Mapping[str, Seen]) -> None:
        self._columns = columns
        self._by_group: defaultdict[str, list[str]] = defaultdict(list)
        self._by_source: defaultdict[str, list[str]] = defaultdict(list)
        self.by_rows: defaultdict[int, list[str]] = defaultdict(list)
        for name, seen in columns.items():
            self._by_group[_group(name)].append(name)
            self._by_source[_group(name).partition("/")[2]].append(name)
            self.by_rows[seen.rows].append(name)

    def of_table(self, table: _Bounds) -> list[str]:
        """Return the columns that a table of bounds is about: those beside it, or the one of its own name.

        ``hits/_indices`` is about ``hits/time``, and ``__I3Index__/Pulses`` about ``Pulses``.
        """
        (name,) = table.names
        if (same := name.partition("/")[2]) in self._columns:
            return [same]
        content = {other: self._columns[other] for other in self._by_group[_group(name)] if other != name}
        content = {other: seen for other, seen in content.items() if seen.rows != table.rows and not seen.fields}
        return sorted(main_columns(content)[1]) if content else []

    def values_of(self, bounds: _Bounds, *, is_alone: bool) -> dict[str, Seen]:
        """Return the columns in which bounds may say where rows are: those of their own group, or of their own source.

        ``INDEX/camera/first`` is about ``INSTRUMENT/camera/image``. Only without other bounds may values be anywhere.
        """
        own = _group(bounds.names[0])
        source = own.partition("/")[2]
        of_source = self._by_source[source] if source else []
        for names in (self._by_group[own], of_source, self._columns if is_alone else []):
            longer = {name: self._columns[name] for name in names if name not in bounds.names}
            longer = {name: seen for name, seen in longer.items() if seen.rows > bounds.rows + 1}
            if longer:
                return longer
        return {}


def _tables_of_bounds(columns: Mapping[str, Seen]) -> Iterator[_Bounds]:
    """Yield tables of which two fields say where the values of each row are, as KM3NeT and IceCube write them."""
    for name, column in columns.items():
        named = {field.lower(): field for field in column.fields}
        starts = [field for low, field in named.items() if low in START_FIELDS]
        for option, known in (("ends", END_FIELDS), ("counts", COUNT_FIELDS)):
            if others := [field for low, field in named.items() if low in known]:
                if len(starts) == len(others) == 1:
                    said = {"starts": f"{name}/{starts[0]}", option: f"{name}/{others[0]}"}
                    yield _Bounds((name,), said, column.rows)
                break


def _bounds(columns: Mapping[str, Seen]) -> Iterator[_Bounds]:
    counts: defaultdict[tuple[str, int], list[str]] = defaultdict(list)
    for name, column in columns.items():
        if COUNTS & {*words(name.rpartition("/")[2])} and _is_integer(column, 1):
            counts[_group(name), column.rows].append(name)
    for name, column in columns.items():
        said = {*words(name.rpartition("/")[2])}
        if said & OFFSETS and _is_integer(column, 1):
            yield _Bounds((name,), {"offsets": name}, column.rows - 1)
        # Further columns say what the rows are of, or are of other arrays: (start, stop, patient) of HiRID.
        if said & BOUNDS and _is_integer(column, 2) and (column.shape[1] or 0) > 1:
            bounds = name if column.shape[1] == 2 else made("part", name, {0: [0, 1]})
            yield _Bounds((name,), {"bounds": bounds}, column.rows)
        if said & COUNTS and _is_integer(column, 2):
            yield _Bounds((name,), {"counts": made("part", name, {0: [0]})}, column.rows)
        if said >= {"to", "idx"} and _is_integer(column, 1):  # where each millisecond begins
            yield _Bounds((name,), {"starts": name}, column.rows)
        if said & STARTS and _is_integer(column, 1):
            for other in counts[_group(name), column.rows][:FEW]:
                yield _Bounds((name, other), {"starts": name, "counts": other}, column.rows)


def _group(name: str) -> str:
    return name.rpartition("/")[0]


def _is_integer(seen: Seen, axes: int) -> bool:
    return len(seen.shape) == axes and seen.dtype.lstrip("<>|=")[:1] in {"i", "u"}
