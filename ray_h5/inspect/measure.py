"""What `ray-h5 inspect` measures: headers, what each column takes, and what `read_h5` makes of the files."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace

from ray_h5.codecs.filter_ids import describe_filter
from ray_h5.columns.schema import ColumnSpec
from ray_h5.errors import OptionError, RayH5Error, UnsupportedColumnError
from ray_h5.hdf5.files.opening import is_of_matlab
from ray_h5.index.file_opener import Scope
from ray_h5.index.file_options import FileOptions
from ray_h5.index.row_index import RowIndex
from ray_h5.inspect.advice import advice, faults_of, is_elsewhere
from ray_h5.inspect.report import ColumnReport, Delivery, FileReport, Report, Unreadable
from ray_h5.inspect.store_cost import OpenCost, opening, store_report
from ray_h5.likely_rows.suggestions import Suggestion, suggestions
from ray_h5.likely_rows.tree import FileTree, Seen
from ray_h5.manifest.layout import ColumnLayout, ColumnNotes, FileState
from ray_h5.order.block_layout import choose_block_rows
from ray_h5.order.draws.shuffle import Shuffle, as_shuffle
from ray_h5.order.draws.weights_and_class_balance import balance
from ray_h5.order.read_plan import make_plan
from ray_h5.order.shuffle_effect import shuffle_effect
from ray_h5.read.reader import RowReader
from ray_h5.rows.row_view import FileReader, RowView
from ray_h5.storage.byte_source import ObjectIdentity

_BY_COLUMN: dict[str, Callable[[str], Shuffle]] = {
    "balance": lambda names: Shuffle(weights=balance(names.split(","))),
    "weights": lambda name: Shuffle(weights=name),
    "by_length": lambda name: Shuffle(by_length=name),
}
"""Shuffles that are written with columns: ``balance:label``."""


def inspect_files(files: FileOptions, shuffle: str | None = None) -> Report:
    """Look at files: their headers, and how much each column takes. No row is read.

    Parameters
    ----------
    files : FileOptions
        The files. The report of each has all columns, also those that `read_h5` does not deliver.
    shuffle : str, optional
        Report what a shuffle costs: "auto", "rows", "chunks", "files"; "weights:" or "by_length:" and a column; or
        "balance:" and columns, with commas between.

    Raises
    ------
    RayH5Error
        If none of the files can be opened: the error of the first file.
    """
    reports: list[FileReport] = []
    errors: dict[str, RayH5Error] = {}
    costs: dict[str, OpenCost] = {}
    for path in files.paths:
        try:
            with opening(costs, path, files.scope.storage):
                reports.append(_inspect_file(path, files.scope, files.states.get(path)))
        except RayH5Error as exc:
            errors[path] = exc
    if not reports:
        raise errors[files.paths[0]]
    index, problem = None, None
    try:
        index = replace(files, paths=[report.path for report in reports]).plan()
    except RayH5Error as exc:
        problem = Unreadable.of("read_h5", exc)
    names = () if index is None else index.columns
    columns = [column for file in reports for column in file.columns if column.name in names]
    return Report(
        tuple(reports),
        tuple(Unreadable.of(path, error) for path, error in errors.items()),
        None if index is None else _delivery(index),
        problem,
        None if index is None or shuffle is None else _shuffled(index, shuffle),
        store_report(costs, index, sum(column.stored_bytes or column.real_bytes or 0 for column in columns)),
        _suggestions(files, reports),
    )


def _suggestions(files: FileOptions, reports: Sequence[FileReport]) -> tuple[Suggestion, ...]:
    """Return what rows of the first file probably are, unless the options say it."""
    if not files.scope.by_axis or files.scope.axes == "reversed":
        return ()
    first = reports[0]
    with _opened(first.path, files.scope, files.states.get(first.path)) as reader:
        tried = suggestions(_tree(first, reader, reports))
    return tuple(files.that_run(tried, [report.path for report in reports]))


def _tree(first: FileReport, reader: FileReader, reports: Sequence[FileReport]) -> FileTree:
    seen = _seen(first)
    datasets = {name: column for file in reports[::-1] for name, column in _seen(file).items()}
    if not isinstance(reader, RowReader):
        datasets = {name: seen[name] for name in reader.base.layout.columns if name in seen}
    return FileTree(
        seen,
        files=len(reports),
        rows_differ=len({max((column.rows for column in file.columns), default=0) for file in reports}) > 1,
        of_matlab=is_of_matlab(first.path),
        of_cf=tuple(column.name for column in first.columns if column.follows_cf),
        datasets=datasets,
        single_values=tuple({refused.name: None for file in reports for refused in file.refused if refused.is_single}),
        attributes_of=lambda path: _attributes(reader, path),
    )


def _seen(file: FileReport) -> dict[str, Seen]:
    return {col.name: Seen(col.dtype, (col.rows, *col.row_shape)) for col in file.columns if col.left_out is None}


def _attributes(reader: FileReader, path: str = "") -> tuple[str, ...]:
    try:
        return tuple(reader.base.attribute_names(path))
    except RayH5Error:  # what cannot be read has no rows, which is said
        return ()


def _opened(path: str, scope: Scope, listed: ObjectIdentity | None) -> FileReader:
    return scope.open(path, None if listed is None else FileState(listed))


def _inspect_file(path: str, scope: Scope, listed: ObjectIdentity | None) -> FileReport:
    with _opened(path, scope, listed) as reader:
        layout, referred = reader.layout, _referred(reader)
        # A reversed column is a dataset of the same name, whose chunks have other axes.
        whole = reader.base if scope.axes == "reversed" else reader
        datasets = whole.layout.columns
        stored = whole.stored_bytes([name for name in layout.columns if name in datasets])
        notes = reader.notes(list(layout.columns))
        columns = (
            *(
                _column(column, stored.get(name), notes[name], is_stored=scope.by_axis)
                for name, column in layout.columns.items()
            ),
            *(_column(column, None, ColumnNotes()) for column in referred),
        )
        left = {name: error for name, error in layout.refused.items() if not getattr(error, "is_encoded", False)}
        refused = tuple(Unreadable.of(name, error) for name, error in left.items())
        if isinstance(reader, RowReader):
            reader.manifest([name for name, column in layout.columns.items() if column.is_decoded])
        return FileReport(path, scope.group, layout.identity.size, columns, refused, _attributes(reader))


def _referred(reader: FileReader) -> list[ColumnLayout]:
    """Return the columns whose rows are what references lead to, such as cell arrays of MATLAB."""
    if not isinstance(reader, RowReader):
        return []
    view, encoded = RowView(reader, None, None), []
    for name, error in reader.layout.refused.items():
        if getattr(error, "is_encoded", False):
            with suppress(RayH5Error):  # read_h5 says why it leaves it out
                encoded.append(view.find([name])[name])
    return encoded


def _delivery(index: RowIndex) -> Delivery:
    specs, classes = index.outputs, {label.name: f" ({label})" for label in index.labels}
    row_bytes = sum(spec.row_bytes for spec in specs.values())
    block_rows = choose_block_rows(row_bytes, index.num_rows, None, None)
    columns = {name: f"{spec}{classes.get(name, '')}" for name, spec in specs.items()}
    return Delivery(columns, index.num_rows, row_bytes, block_rows, -(-index.num_rows // block_rows))


def _shuffled(index: RowIndex, unit: str) -> str:
    option, _, names = unit.partition(":")
    if option not in (_BY_COLUMN if names else ("auto", "rows", "chunks", "files")):
        by_column = ", ".join(f"{name}:label" for name in _BY_COLUMN)
        expected = f"expected auto, rows, chunks, files, or with a column {by_column}"
        raise OptionError(expected, option="shuffle", value=unit)
    shuffle = _BY_COLUMN[option](names) if names else as_shuffle(unit)
    plan = make_plan(index, list(index.columns.values()), shuffle=shuffle)
    return str(shuffle_effect(plan, index.chunk_group_rows) or "there are no rows to shuffle")


def _column(
    layout: ColumnLayout, stored_bytes: int | None, notes: ColumnNotes, *, is_stored: bool = True
) -> ColumnReport:
    """Return the report of a column; `is_stored` if its rows are those of a dataset, with its chunks."""
    own = layout if is_stored else replace(layout, chunk_shape=None)
    is_number, varies = layout.kind in {"number", "bool"}, layout.kind in {"ragged", "sparse"}
    real_bytes = layout.num_rows * (layout.item_bytes if varies else layout.row_bytes)
    value_bytes = layout.num_rows * (layout.row_bytes if is_number else layout.item_bytes or 8)
    return ColumnReport(
        name=layout.name,
        kind=layout.kind,
        dtype=_dtype(layout),
        rows=layout.num_rows,
        row_shape=layout.ragged_shape or layout.row_shape,
        storage=layout.storage if is_stored else "",
        chunk_shape=layout.chunk_shape,
        pipeline=tuple(describe_filter(step) for step in layout.pipeline.steps),
        stored_bytes=value_bytes if stored_bytes is None and is_stored else stored_bytes,
        real_bytes=None if layout.stored_dtype.hasobject and not varies else real_bytes,
        direct=layout.direct or (is_number and is_elsewhere(layout)),
        advice=tuple(advice(own, stored_bytes, notes)),
        enum=notes.enum,
        left_out=_left_out(layout),
        follows_cf=notes.follows_cf,
        is_slow=bool(faults_of(own)),
    )


def _dtype(layout: ColumnLayout) -> str:
    if layout.kind == "ragged":
        return str(layout.element)
    if layout.kind in {"number", "bool"}:
        return layout.dtype.name
    if layout.kind in {"sparse", "category", "optional"} and layout.element is not None:
        return f"{layout.kind} {'string' if layout.element.hasobject else layout.element}"
    return f"list of {layout.element}" if layout.element is not None else layout.kind


def _left_out(layout: ColumnLayout) -> str | None:
    try:
        ColumnSpec.of(layout)
    except UnsupportedColumnError as exc:
        return str(exc)
    return None
