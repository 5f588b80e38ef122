"""What there is to say of files, as frozen values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from ray_h5.errors import RayH5Error, UnsupportedColumnError
from ray_h5.hdf5.layout import ColumnLayout
from ray_h5.hdf5.metadata.attributes import ColumnNotes
from ray_h5.inspect.advice import advice
from ray_h5.planning.epoch.blocks import choose_block_rows
from ray_h5.planning.epoch.cost import shuffle_effect
from ray_h5.planning.epoch.plan import make_plan
from ray_h5.planning.epoch.shuffle import as_shuffle
from ray_h5.planning.files import FileOptions
from ray_h5.planning.index.file_facts import Scope
from ray_h5.planning.index.row_index import RowIndex
from ray_h5.planning.schema import ColumnSpec


@dataclass(frozen=True, slots=True)
class ColumnReport:
    """One column of one file.

    Attributes
    ----------
    name, kind, dtype : str
        Its name, what a value is, and the dtype that a read delivers.
    rows : int
        Length of its first axis.
    row_shape : tuple of int
        Shape of a row.
    storage : str
        Layout class of the dataset.
    chunk_shape : tuple of int, optional
        Shape of a chunk, if chunked.
    pipeline : tuple of str
        The filters that a chunk went through, with their levels.
    stored_bytes : int
        What it takes in the file. Of values of varying length, only where they are is counted.
    real_bytes : int, optional
        What it takes in memory; None where only reading would tell.
    direct : bool
        Whether it is decoded without libhdf5 and its lock.
    advice : tuple of str
        What about its layout will hurt, and what to do; and what its values mean that are not what they seem.
    enum : mapping of str to int
        The names of values, of an enum.
    left_out : str, optional
        Why `read_h5` and `H5Dataset` leave it out, which `RowReader` reads.
    """

    name: str
    kind: str
    dtype: str
    rows: int
    row_shape: tuple[int, ...]
    storage: str
    chunk_shape: tuple[int, ...] | None
    pipeline: tuple[str, ...]
    stored_bytes: int
    real_bytes: int | None
    direct: bool
    advice: tuple[str, ...] = ()
    enum: Mapping[str, int] = field(default_factory=dict)
    left_out: str | None = None

    @classmethod
    def of(cls, layout: ColumnLayout, stored_bytes: int, notes: ColumnNotes) -> ColumnReport:
        return cls(
            name=layout.name,
            kind=layout.kind,
            dtype=_dtype(layout),
            rows=layout.num_rows,
            row_shape=layout.row_shape,
            storage=layout.storage,
            chunk_shape=layout.chunk_shape,
            pipeline=tuple(step.described for step in layout.pipeline.steps),
            stored_bytes=stored_bytes,
            real_bytes=None if layout.stored_dtype.hasobject else layout.num_rows * layout.row_bytes,
            direct=layout.direct,
            advice=advice(layout, stored_bytes, notes),
            enum=notes.enum,
            left_out=_left_out(layout),
        )


@dataclass(frozen=True, slots=True)
class Trouble:
    """Something that cannot be read, and why: a column, or a file."""

    name: str
    error: str
    message: str

    @classmethod
    def of(cls, name: str, error: Exception) -> Trouble:
        return cls(name, type(error).__name__, str(error))


@dataclass(frozen=True, slots=True)
class FileReport:
    """One file: what can be read, and what cannot."""

    path: str
    group: str
    file_bytes: int
    columns: tuple[ColumnReport, ...]
    refused: tuple[Trouble, ...]


@dataclass(frozen=True, slots=True)
class Delivery:
    """What `read_h5` makes of the files, given no options but `columns`: columns, and rows cut into blocks."""

    columns: Mapping[str, str]
    rows: int
    row_bytes: int
    block_rows: int
    blocks: int


@dataclass(frozen=True, slots=True)
class Report:
    """What there is to say of files.

    Attributes
    ----------
    files : tuple of FileReport
        Those that can be opened.
    unreadable : tuple of Trouble
        Those that cannot.
    delivery : Delivery, optional
        What `read_h5` makes of `files`; None if it refuses them.
    problem : Trouble, optional
        Why it does.
    shuffle : str, optional
        What shuffling would cost, if that was asked.
    """

    files: tuple[FileReport, ...]
    unreadable: tuple[Trouble, ...]
    delivery: Delivery | None
    problem: Trouble | None
    shuffle: str | None = None

    @property
    def ok(self) -> bool:
        """Whether `read_h5` takes all files as they are."""
        return not self.unreadable and self.problem is None


def inspect_files(
    files: FileOptions,
    shuffle: str | None = None,
    columns: Sequence[str] | None = None,
) -> Report:
    """Look at files: their headers, and how much each column takes. No row is read.

    Parameters
    ----------
    files : FileOptions
        The files.
    shuffle : {"auto", "rows", "chunks", "files"}, optional
        Say what shuffling by this unit would cost.
    columns : sequence of str, optional
        As for `read_h5`: what it delivers. Each file is shown whole all the same.

    Raises
    ------
    RayH5Error
        If none of the files can be opened: what is wrong with the first.
    """
    reports: list[FileReport] = []
    errors: dict[str, RayH5Error] = {}
    for path in files.paths:
        try:
            reports.append(_inspect_file(path, files.scope))
        except RayH5Error as exc:
            errors[path] = exc
    if not reports:
        raise errors[files.paths[0]]
    unreadable = tuple(Trouble.of(path, error) for path, error in errors.items())
    report = Report(tuple(reports), unreadable, None, None)
    try:
        index = replace(files, paths=[each.path for each in reports]).index(columns)
    except RayH5Error as exc:
        return replace(report, problem=Trouble.of("read_h5", exc))
    text = None if shuffle is None else _shuffled(index, shuffle)
    return replace(report, delivery=_delivery(index), shuffle=text)


def to_dict(report: Report) -> dict[str, Any]:
    """Return the report as what JSON has."""
    return {"ok": report.ok, **asdict(report)}


def _inspect_file(path: str, scope: Scope) -> FileReport:
    with scope.open(path) as reader:
        layout = reader.layout
        stored = reader.stored_bytes(list(layout.columns))
        notes = reader.notes(list(layout.columns))
        columns = tuple(ColumnReport.of(each, stored[name], notes[name]) for name, each in layout.columns.items())
        refused = tuple(Trouble.of(name, error) for name, error in layout.refused.items())
        return FileReport(path, scope.group, layout.identity.size, columns, refused)


def _delivery(index: RowIndex) -> Delivery:
    row_bytes = sum(spec.row_bytes for spec in index.columns.values())
    block_rows = choose_block_rows(row_bytes, index.num_rows, None, None)
    columns = {name: str(spec) for name, spec in index.columns.items()}
    return Delivery(columns, index.num_rows, row_bytes, block_rows, -(-index.num_rows // block_rows))


def _shuffled(index: RowIndex, unit: str) -> str:
    plan = make_plan(index, list(index.columns.values()), shuffle=as_shuffle(unit))
    return str(shuffle_effect(plan, index.chunk_group_rows) or "there are no rows to shuffle")


def _dtype(layout: ColumnLayout) -> str:
    if layout.kind in {"number", "bool"}:
        return layout.dtype.name
    return f"list of {layout.element}" if layout.element is not None else layout.kind


def _left_out(layout: ColumnLayout) -> str | None:
    try:
        ColumnSpec.of(layout)
    except UnsupportedColumnError as exc:
        return str(exc)
    return None
