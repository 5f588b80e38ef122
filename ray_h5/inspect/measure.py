"""What `ray-h5 inspect` measures: headers, what each column takes, and what `read_h5` makes of the files."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

from ray_h5.codecs.filter_ids import UNCOMPRESSED, describe_filter
from ray_h5.codecs.pipeline import decodes
from ray_h5.columns.ragged.csr_groups import says_sparse
from ray_h5.columns.schema import ColumnSpec
from ray_h5.errors import OptionError, RayH5Error, UnsupportedColumnError
from ray_h5.hdf5.files.opening import is_of_matlab
from ray_h5.index.file_options import FileOptions
from ray_h5.index.row_index import RowIndex
from ray_h5.inspect.beside import sidecars
from ray_h5.inspect.report import ColumnReport, Delivery, FileReport, Report, Unreadable
from ray_h5.inspect.store_cost import OpenCost, opening, store_report
from ray_h5.likely_rows.suggestions import Suggestion, suggestions
from ray_h5.likely_rows.tree import FileTree, Seen, integer_fields
from ray_h5.manifest.chunk_index import ChunkGrid
from ray_h5.manifest.file_state import FileState
from ray_h5.manifest.layout import ColumnLayout, ColumnNotes, ValueArray
from ray_h5.messages import counted, few
from ray_h5.order.block_layout import MAX_BLOCK_BYTES, choose_block_rows
from ray_h5.order.draws.shuffle import Shuffle, as_shuffle, balance
from ray_h5.plan.read_plan import make_plan
from ray_h5.plan.shuffle_effect import shuffle_effect
from ray_h5.read.reader import FileReader
from ray_h5.rows.row_view import AnyReader, RowView
from ray_h5.storage.addresses import is_url
from ray_h5.writing.layouts import GOOD_BYTES, chunk_faults

_HUGE_BYTES = 256 << 20
_MOST_VALUES, _MOST_CHARACTERS = 64, 40
"""Of attributes of a file, and of the text of one."""

# A filter pipeline that saves less than the rest is not worth its decoding.
_SAVED = 0.98

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
                reports.append(_inspect_file(files, path))
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
        (*_suggestions(files, reports), *sidecars(replace(files, paths=[report.path for report in reports]))),
    )


def _suggestions(files: FileOptions, reports: Sequence[FileReport]) -> tuple[Suggestion, ...]:
    """Return what rows of the first file probably are, unless the options say it."""
    if not files.scope.by_axis or files.scope.axes == "reversed":
        return ()
    first, seen = reports[0], list(map(_seen, reports))
    datasets = {name: column for columns in seen[::-1] for name, column in columns.items()}
    rows = {max((column.rows for column in file.columns), default=0) for file in reports}
    with _opened(files, first.path) as reader:
        if not isinstance(reader, FileReader):
            datasets = {name: seen[0][name] for name in reader.base.layout.columns if name in seen[0]}
        tree = FileTree(
            seen[0],
            files=len(reports),
            rows_differ=len(rows) > 1,
            shapes_differ=any(len({file[name].shape[1:] for file in seen if name in file}) > 1 for name in seen[0]),
            of_matlab=is_of_matlab(first.path),
            of_cf=tuple(column.name for column in first.columns if column.follows_cf),
            datasets=datasets,
            single_values=tuple({column.name: None for file in reports for column in file.refused if column.is_single}),
            attributes_of=lambda path: _attributes(reader, path),
            is_sparse=lambda group: says_sparse(reader.base, group),
        )
        tried = [*suggestions(tree), *_lacking(seen)]
    return tuple(files.that_run(tried, [report.path for report in reports]))


def _lacking(seen: Sequence[Mapping[str, Seen]]) -> Iterator[Suggestion]:
    """Yield the option for columns that some files lack, where all have others."""
    every, common = {name for file in seen for name in file}, set.intersection(*map(set, seen))
    if common and every > common:
        count = sum(file.keys() < every for file in seen)
        lacked = few([repr(name) for name in sorted(every - common)], 3)
        found = f"{count} of {counted(len(seen), 'file')} lack columns that others have: {lacked}"
        yield Suggestion(found, "for None in their place", {"missing": "null"})


def _seen(file: FileReport) -> dict[str, Seen]:
    return {
        col.name: Seen(col.dtype, (col.rows, *col.row_shape), col.integer_fields)
        for col in file.columns
        if not col.left_out
    }


def _attributes(reader: AnyReader, path: str = "") -> tuple[str, ...]:
    try:
        return tuple(reader.base.attribute_names(path))
    except RayH5Error:  # what cannot be read has no rows, which is said
        return ()


def _values(reader: AnyReader, names: Sequence[str]) -> dict[str, str]:
    """Return the values of attributes with one value as text, shortened."""
    values: dict[str, str] = {}
    for name in names:
        with suppress(RayH5Error):
            (value,) = reader.base.attributes([name]).values()
            text = value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value.reshape(-1)[0])
            values[name] = text if len(text) <= _MOST_CHARACTERS else f"{text[:_MOST_CHARACTERS]}..."
    return values


def _opened(files: FileOptions, path: str) -> AnyReader:
    listed = files.states.get(path)
    return files.scope.open(path, None if listed is None else FileState(listed))


def _inspect_file(files: FileOptions, path: str) -> FileReport:
    scope = files.scope
    with _opened(files, path) as reader:
        layout, referred = reader.layout, _referred(reader)
        # A reversed column is a dataset of the same name, whose chunks have other axes.
        whole = reader.base if scope.axes == "reversed" else reader
        datasets = whole.layout.columns
        stored = whole.stored_bytes([name for name in layout.columns if name in datasets])
        notes = reader.notes(list(layout.columns))
        columns = [
            _column(column, stored.get(name), notes[name], is_stored=scope.by_axis)
            for name, column in layout.columns.items()
        ]
        columns += [_column(column, None, ColumnNotes()) for column in referred]
        left = {name: error for name, error in layout.refused.items() if not getattr(error, "is_encoded", False)}
        refused = tuple(Unreadable.of(name, error) for name, error in left.items())
        if isinstance(reader, FileReader):
            reader.manifest([name for name, column in reader.layout.columns.items() if column.is_decoded])
        names = _attributes(reader)
        # In a store, values may take further requests.
        values = {} if is_url(path) else _values(reader, names[:_MOST_VALUES])
        return FileReport(path, scope.group, layout.identity.size, tuple(columns), refused, names, values)


def _referred(reader: AnyReader) -> list[ValueArray]:
    """Return the columns whose rows are what references lead to, such as cell arrays of MATLAB."""
    if not isinstance(reader, FileReader):
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
    return str(shuffle_effect(plan) or "there are no rows to shuffle")


def _column(
    layout: ValueArray, stored_bytes: int | None, notes: ColumnNotes, *, is_stored: bool = True
) -> ColumnReport:
    """Return the report of a column; `is_stored` if its rows are those of a dataset, with its chunks."""
    own = layout if is_stored else replace(layout, chunk_shape=None)
    dataset = layout if isinstance(layout, ColumnLayout) else None
    is_number, varies = layout.kind in {"number", "bool"}, layout.kind in {"ragged", "sparse"}
    real_bytes = layout.num_rows * (layout.item_bytes if varies else layout.row_bytes)
    value_bytes = layout.num_rows * (layout.row_bytes if is_number else layout.item_bytes or 8)
    return ColumnReport(
        name=layout.name,
        kind=layout.kind,
        dtype=_dtype(layout),
        rows=layout.num_rows,
        row_shape=layout.type.shape,
        storage=dataset.storage if dataset is not None and is_stored else "",
        chunk_shape=layout.chunk_shape,
        pipeline=tuple(describe_filter(step) for step in layout.pipeline.steps),
        stored_bytes=value_bytes if stored_bytes is None and is_stored else stored_bytes,
        real_bytes=None if layout.dtype.hasobject and not varies else real_bytes,
        direct=layout.direct or (is_number and dataset is not None and is_elsewhere(dataset)),
        advice=tuple(advice(own, stored_bytes, notes)),
        enum=notes.enum,
        left_out=_left_out(layout),
        follows_cf=notes.follows_cf,
        is_slow=isinstance(own, ColumnLayout) and bool(faults_of(own)),
        integer_fields=integer_fields(layout.dtype),
    )


def _dtype(layout: ValueArray) -> str:
    if layout.kind == "ragged":
        return str(layout.element)
    if layout.kind in {"number", "bool"}:
        return layout.dtype.name
    if layout.kind in {"sparse", "category", "optional"} and layout.element is not None:
        return f"{layout.kind} {'string' if layout.element.hasobject else layout.element}"
    return f"list of {layout.element}" if layout.element is not None else layout.kind


def _left_out(layout: ValueArray) -> str | None:
    try:
        ColumnSpec.of(layout)
    except UnsupportedColumnError as exc:
        return str(exc)
    return None


_WRITTEN = frozenset({"chunked", "contiguous"})
"""Storage that takes bytes of the file once rows are written."""

# Advice: what makes the layout of a column slow to read, and how to write it instead ---------------------


def advice(layout: ValueArray, stored_bytes: int | None, notes: ColumnNotes) -> Iterator[str]:
    """Yield advice for a column, one text for each problem; nothing for a good layout.

    `stored_bytes` are those of its values in the file, if it is one dataset.
    """
    dataset = layout if isinstance(layout, ColumnLayout) else None
    if not layout.num_rows:
        return
    if notes.bare_dimension:
        yield (
            "is a dimension of netCDF without a coordinate: it has a length and no values. Leave it out with "
            "columns=[...]."
        )
    elif stored_bytes == 0 and layout.row_bytes and dataset is not None and dataset.storage in _WRITTEN:
        yield "was never written: all of its rows are the fill value."
    elif why := _why_slow(layout):
        yield f"libhdf5 takes part in reading it, because {why}: one thread at a time, and slower."
    if notes.conversion:
        applied = ", ".join([*notes.packing, *(["units"] if notes.time else [])])
        yield f"values are delivered as stored, without applying {applied}: {notes.conversion}."
    faults = {} if dataset is None else faults_of(dataset)
    yield from faults.values()
    real = 0 if layout.dtype.hasobject else layout.num_rows * layout.row_bytes
    is_compressed = any(step.id not in UNCOMPRESSED for step in layout.pipeline.steps)
    if "tiny" not in faults and stored_bytes and is_compressed and real and stored_bytes >= _SAVED * real:
        yield f"{layout.pipeline} makes {stored_bytes} bytes of {real}: it costs its decoding and saves nothing."


def _why_slow(layout: ValueArray) -> str:
    dataset = layout if isinstance(layout, ColumnLayout) else None
    if layout.kind not in {"number", "bool"} or (dataset is not None and is_elsewhere(dataset)):
        return ""
    if not decodes(layout.pipeline):
        return f"it went through {layout.pipeline}"
    if dataset is None:
        return ""
    if dataset.odd_type:
        return f"its type in the file is {dataset.odd_type}"
    return "" if dataset.is_decoded else f"its {dataset.storage} values have no address of their own in the file"


def is_elsewhere(layout: ColumnLayout) -> bool:
    """Return whether a column is read, without h5py, from other datasets: through a link, or as a virtual dataset."""
    return not layout.is_decoded and (is_url(layout.path) or not layout.user_block)


def faults_of(layout: ColumnLayout) -> dict[str, str]:
    """Return the faults of the chunks of a column, which a repack mends, and what they mean for it."""
    if layout.chunk_shape is None or not layout.num_rows:
        return {}
    grid, rows, nbytes = ChunkGrid.of(layout), layout.chunk_rows, layout.chunk_bytes
    chunks = -(-layout.num_rows // rows) * grid.per_row
    good_rows = counted(max(1, GOOD_BYTES // max(layout.row_bytes, 1)), "row")
    # Windows of a shuffle hold no more: each of them decodes the chunk again.
    by_chunks = "Shuffle by chunks, or w" if rows * layout.row_bytes <= MAX_BLOCK_BYTES else "W"
    texts = {
        "tiny": f"{chunks} chunks of {nbytes} bytes: each costs more to find than to read. Write it contiguous, or "
        f"with chunks of {good_rows}.",
        "large": f"a chunk holds {rows} rows, all of which are decoded for one: shuffled by rows, up to {rows} times "
        f"as much is decoded as is delivered. {by_chunks}rite chunks of {good_rows}.",
        "split": f"a row is spread over {grid.per_row} chunks. Write chunks of whole rows: (rows, "
        f"{', '.join(map(str, grid.shape[1:]))}).",
    }
    if nbytes > _HUGE_BYTES:
        texts["large"] = f"a chunk is {nbytes >> 20} MiB, and each thread that reads holds one. Write {good_rows} each."
    faults = chunk_faults(rows, nbytes, chunks, bool(layout.pipeline.steps), grid.per_row > 1)
    return {fault: texts[fault] for fault in faults}
