"""The report of `ray-h5 inspect` as text."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Sequence

from ray_h5.hdf5.metadata.column import SINGLE_VALUE
from ray_h5.inspect.report import ColumnReport, Delivery, FileReport, Report, Unreadable
from ray_h5.inspect.similar_columns import leaves, merge_similar
from ray_h5.inspect.store_text import lines_of
from ray_h5.inspect.table import MAX_LINES, size, table
from ray_h5.messages import few, printable
from ray_h5.planning.likely_samples import likely_samples

_MAX_CHARS = 4000
_MAX_MEMBERS = 16

_INTERNAL = ("#refs#", "#subsystem#")
"""Groups that hold the targets of references in MATLAB's cells, structs and objects."""


def to_text(report: Report, columns: Sequence[str] = ()) -> str:
    """Return the report as text: a summary of several files, and the first file as a tree.

    Columns that are alike share a line, and a section has a bounded number of lines. Each of `columns` has a line.
    """
    return "\n".join(_lines(report, frozenset(name.strip("/") for name in columns)))


def _lines(report: Report, named: Collection[str]) -> Iterator[str]:
    first = report.files[0]
    if len(report.files) + len(report.unreadable) > 1:
        yield from _summary(report)
        yield ""
    columns = [each for each in first.columns if not _is_internal(each.name)]
    yield from _tree(first, columns, named)
    refused = [each for each in first.refused if not _is_internal(each.name)]
    yield from _single_values(refused)
    yield from _section("Cannot be read:", _refused(first.path, refused))
    yield from _section("Left out by read_h5 and H5Dataset:", _left_out(first.path, columns))
    yield from _section("Names of values:", _together([(each.name, _members(each)) for each in columns if each.enum]))
    advice = _together([(each.name, text) for each in columns for text in each.advice])
    yield from _section("Advice:", [*_samples(columns), *advice])
    if report.problem is not None:
        yield from _section("read_h5 refuses this:", [_said(report.problem, [file.path for file in report.files])])
    if report.delivery is not None:
        yield from _section("read_h5 makes of it:", list(_delivered(report.delivery)))
    if report.shuffle is not None:
        yield from _section("Shuffled:", [report.shuffle])
    if report.store is not None:
        yield from _section("In the store:", list(lines_of(report.store)))


def _summary(report: Report) -> Iterator[str]:
    names = {file.path: [(each.name, each.dtype, each.row_shape) for each in file.columns] for file in report.files}
    alike = sum(columns == names[report.files[0].path] for columns in names.values())
    stored = sum(file.file_bytes for file in report.files)
    yield f"{len(report.files)} files, {size(stored)}; {alike} have the columns of the first, which is shown below"
    listed = [f"{printable(each.name)}: {_said(each, [each.name])}" for each in report.unreadable]
    yield from _section(f"{len(report.unreadable)} files cannot be opened:", listed)


def _tree(file: FileReport, columns: Sequence[ColumnReport], named: Collection[str]) -> Iterator[str]:
    below = "" if file.group == "/" else f", below {printable(file.group)}"
    yield f"{printable(file.path)}: {size(file.file_bytes)}, {len(columns)} columns{below}"
    yield from table(columns, named)
    if internal := len(file.columns) - len(columns):
        yield (
            f"  {internal} more below {' and '.join(_INTERNAL)}, where MATLAB keeps what cells and structs refer to: "
            "name the columns wanted with columns=[...]"
        )


def _is_internal(name: str) -> bool:
    return name.split("/", 1)[0] in _INTERNAL


def _single_values(refused: Sequence[Unreadable]) -> Iterator[str]:
    names = [each.name for each in refused if each.message.endswith(SINGLE_VALUE)]
    if names:
        many = (
            "1 single value, which is no column"
            if len(names) == 1
            else f"{len(names)} single values, which are no columns"
        )
        yield f"{many}: {few([name for name, _ in leaves(merge_similar(dict.fromkeys(names)))])}"


def _refused(path: str, refused: Sequence[Unreadable]) -> list[str]:
    return _together(
        [
            (each.name, f"{each.error}: {_reason(path, each.name, each.message)}")
            for each in refused
            if not each.message.endswith(SINGLE_VALUE)
        ]
    )


def _left_out(path: str, columns: Sequence[ColumnReport]) -> list[str]:
    return _together([(each.name, _reason(path, each.name, each.left_out)) for each in columns if each.left_out])


def _samples(columns: Sequence[ColumnReport]) -> Iterator[str]:
    """Yield advice for samples that are groups or datasets of their own, and so become columns."""
    alike = likely_samples({each.name: (each.dtype, each.row_shape) for each in columns})
    if alike is not None:
        yield (
            f"{alike}. If each is a sample, write read_h5(paths, {alike.rows}); if each is an episode, add "
            "windows=ray_h5.Windows({...}): see docs/rows.md"
        )
    yield from _grids(columns)
    yield from _episodes(columns)
    yield from _weights(columns)


_TIMES = {"t", "time", "times", "timestamp", "timestamps"}
_ENDS = {"episode_ends", "episode_end"}
_EPISODES = {"episode_id", "episode_index", "episode", "traj_id", "trajectory_id"}


def _grids(columns: Sequence[ColumnReport]) -> Iterator[str]:
    """Yield advice for columns with an axis of time after the first axis."""
    times = {each.rows: each.name for each in columns if not each.row_shape and _last(each.name) in _TIMES}
    for each in columns:
        if each.row_shape and (time := times.get(each.row_shape[0] or -1)) is not None and each.rows not in times:
            yield (
                f"{each.name} of {(each.rows, *each.row_shape)}: the second axis is as long as {time!r}. If each of "
                "its steps is a sample, write read_h5(paths, rows=ray_h5.Grid(2)): see docs/rows.md"
            )
            return


def _episodes(columns: Sequence[ColumnReport]) -> Iterator[str]:
    """Yield advice for rows that are steps of episodes."""
    for each in columns:
        option = "episode_ends" if _last(each.name) in _ENDS else "episode" if _last(each.name) in _EPISODES else ""
        if option and not each.row_shape:
            yield (
                f"{each.name}: rows may be steps of episodes. For windows of an episode, write read_h5(paths, "
                f"windows=ray_h5.Windows({{{_of_steps(columns)!r}: range(0, 16)}}, {option}={each.name!r})): see "
                "docs/rows.md"
            )
            return


def _of_steps(columns: Sequence[ColumnReport]) -> str:
    """Return the column of which windows are most likely wanted: actions, or else the first one of arrays."""
    names = [each.name for each in columns if each.kind == "number" and each.row_shape]
    actions = [name for name in names if _last(name).startswith("action")]
    return next(iter([*actions, *names]), "actions")


def _weights(columns: Sequence[ColumnReport]) -> Iterator[str]:
    """Yield a note about the weights of a Keras model."""
    if any("/vars/" in f"/{each.name}/" or each.name.endswith(("kernel:0", "bias:0")) for each in columns):
        yield "this looks like the weights of a Keras model; they are no rows of samples"


def _last(name: str) -> str:
    return name.rsplit("/", 1)[-1].lower()


def _members(column: ColumnReport) -> str:
    return few([f"{name}={value}" for name, value in column.enum.items()], _MAX_MEMBERS)


def _reason(path: str, name: str, message: str) -> str:
    """Return a message without the file and column that it begins with: the line names them already."""
    return message.removeprefix(f"{path}: ").removeprefix(f"column {name!r} ")


def _together(said: Iterable[tuple[str, str]]) -> list[str]:
    """Return one line for all columns with the same text; for columns that are alike, numbers in it may differ."""
    found: dict[str, dict[str, str]] = {}
    for name, text in said:
        pattern = re.sub("[0-9]+", "#", text.replace(repr(name), "#"))
        found.setdefault(pattern, {})[name] = text
    lines: dict[str, list[str]] = {}
    for texts in found.values():
        for label, node in leaves(merge_similar(dict.fromkeys(texts))):
            differ = len({texts[name] for name in node.columns}) > 1
            text = texts[node.columns[0]] + (" (Said of the first; the others are alike.)" if differ else "")
            lines.setdefault(text, []).append(label)
    return [f"{few(labels)}: {text}" for text, labels in lines.items()]


def _delivered(delivery: Delivery) -> Iterator[str]:
    yield f"{delivery.rows} rows of {size(delivery.row_bytes)}, in {delivery.blocks} blocks of {delivery.block_rows}"
    found = list(leaves(merge_similar(delivery.columns)))
    if len(found) > MAX_LINES:
        found = list(leaves(merge_similar(delivery.columns, any_name=True)))
    shown = [_delivered_as(name, node.columns, delivery) for name, node in found[:MAX_LINES]]
    more = sum(len(node.columns) for _, node in found[MAX_LINES:])
    yield ", ".join(shown) + (f", and {more} more" if more else "")


def _delivered_as(name: str, columns: Sequence[str], delivery: Delivery) -> str:
    many = f" ({len(columns)} columns)" if len(columns) > 1 else ""
    return f"{name}: {delivery.columns[columns[0]]}{many}"


def _said(trouble: Unreadable, paths: Iterable[str]) -> str:
    message = trouble.message
    for path in paths:
        message = message.replace(path, printable(path))
    return f"{trouble.error}: {message}"


def _section(title: str, lines: Sequence[str]) -> Iterator[str]:
    if not lines:
        return
    yield title
    # Messages may have several lines, and names any character.
    parts = [printable(part) for line in lines for part in line.split("\n")]
    yield from (f"  {_cut(part)}" for part in parts[:MAX_LINES])
    if len(parts) > MAX_LINES:
        yield f"  and {len(parts) - MAX_LINES} more"


def _cut(line: str) -> str:
    return line if len(line) <= _MAX_CHARS else f"{line[:_MAX_CHARS]} ... and {len(line) - _MAX_CHARS} characters more"
