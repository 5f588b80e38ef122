"""Warnings about what files hold that a reader may not expect: each once a process and set of files."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial

import numpy as np

from ray_h5.errors import RayH5Error
from ray_h5.globs import texts_of
from ray_h5.index.file_options import FileOptions
from ray_h5.index.row_index import RowIndex
from ray_h5.likely_rows.shapes import block_of
from ray_h5.likely_rows.suggestions import suggestions
from ray_h5.likely_rows.tree import FileTree, Seen
from ray_h5.lru import not_asked
from ray_h5.messages import counted, few, printable
from ray_h5.rows.frames_option import Frames
from ray_h5.rows.windows_option import IS_PAD
from ray_h5.storage.storage_of_path import storage_of

logger = logging.getLogger(__name__)

_MAX_COLUMNS = 256
"""To look at the attributes of a column takes about as long as to open it."""

_MAX_LISTED = 5

_MAX_GROUPS = 100_000
"""To compare the names of groups with a glob takes a microsecond each."""

_MAX_FILES, _MAX_REMOTE = 32, 2
"""Files whose variables are compared, spread evenly: to read the names of one takes some milliseconds, and requests in
a store."""

_MAX_COPIED, _MAX_NAMED = 8, 40


def warn_of_surprises(index: RowIndex, files: FileOptions) -> None:
    """Warn of columns that are likely samples, unless they were named; and of values that have to be converted."""
    notices: dict[str, Callable[[RowIndex], str]] = {}
    scope, source = index.scope, files.source
    if source.names is None and scope.by_axis and not index.tables:
        notices["of rows"] = partial(_of_rows, files)
    notices |= {"of no rows": _of_no_rows, "of patterns": _of_patterns, "of shapes": _of_shapes}
    notices["of packing"] = _of_packing
    if len(index.files) > 1 and ("X" in index.columns or any(name.startswith("layers/") for name in index.columns)):
        notices["of names"] = _of_names
    if source.names is not None and scope.windows is not None:
        notices["of padding"] = _of_padding
    rows = repr((source.rows, source.windows))  # other patterns may match nothing
    for name in not_asked([*notices], scope.group, rows, *index.columns, *index.files.all_paths()):
        try:
            message = notices[name](index)
        except RayH5Error as exc:
            logger.debug("%s", exc)  # a file that cannot be read is reported where it is read
            continue
        if message:
            logger.warning("%s", message)


def _of_no_rows(index: RowIndex) -> str:
    """Return what to say of files without rows, unless that is what the user asks for."""
    rows = index.scope.rows
    if index.scope.windows is not None or isinstance(rows, Frames) or getattr(rows, "where_any", None) is not None:
        return ""
    empty = [index.files.path(number) for number in np.flatnonzero(index.files.rows.lengths == 0).tolist()]
    return f"{len(empty)} of {len(index.files)} files have no rows: {few(empty)}" if empty else ""


def _of_padding(index: RowIndex) -> str:
    """Return what to say of windows with padding, of which no column says which steps are padding."""
    windows = index.scope.windows
    if windows is None or windows.at is not None or not windows.marks_padding:
        return ""
    marked = {column.offsets for column in windows.every if column.name + IS_PAD in index.names}
    before, after = (pad != "drop" for pad in windows.pad)
    unmarked = [
        column.name
        for column in windows.every
        if column.name in index.names and column.offsets not in marked
        if (before and min(column.offsets) < 0) or (after and max(column.offsets) > 0)
    ]
    if not unmarked:
        return ""
    return (
        f"{index.files.path(0)}: windows of {few(unmarked)} are padded at the ends of episodes, and columns=[...] "
        f"leaves out {few([name + IS_PAD for name in unmarked])}, which says which steps are padding. Name it too, to "
        "leave these steps out of the loss; or pass pad='drop'."
    )


def _of_rows(files: FileOptions, index: RowIndex) -> str:
    """Return what to say of columns whose rows are probably no samples."""
    # Most files have a few columns that differ, in no groups. One with a value a row, such as a label, says that rows
    # are samples.
    likes = {(spec.dtype.str, spec.row_shape) for spec in index.columns.values()}
    is_plain = len(likes) == len(index.columns) and not any("/" in name for name in index.columns)
    is_labelled = any(not spec.row_shape and not spec.type.ragged_shape for spec in index.columns.values())
    if is_plain and (is_labelled or (len(index.files) == 1 and index.num_rows > 1)):
        return ""
    surprises = (suggestion for suggestion in suggestions(_tree(index)) if suggestion.is_surprise)
    said = next(files.that_run(surprises, [index.files.path(0), index.files.path(len(index.files) - 1)]), None)
    if said is None:
        return ""
    without = "Without it, first" if said.arguments else "First"
    return (
        f"{index.files.path(0)}: {said.as_advice} {without} axes are read as {counted(index.num_rows, 'row')}; "
        "docs/rows.md says more. If that is right, name the columns with columns=[...], and this is not said."
    )


def _tree(index: RowIndex) -> FileTree:
    rows = index.files.rows.lengths
    shapes = {name: (int(rows[0]), *(spec.type.shape)) for name, spec in index.columns.items()}
    seen = {name: Seen(spec.dtype.str, shapes[name]) for name, spec in index.columns.items()}
    return FileTree(seen, files=len(index.files), rows_differ=len(np.unique(rows)) > 1)


def _of_patterns(index: RowIndex) -> str:
    """Return what to say of globs of groups that match nothing in any file, beside others that match."""
    rows = index.scope.rows
    globs = getattr(rows, "pattern", getattr(rows, "groups", None))
    if not isinstance(globs, tuple) or index.num_rows > _MAX_GROUPS:
        return ""
    left = [glob for glob in globs if "**" not in glob.split("/")]
    for table in index.tables:
        for name in table.groups.names if table is not None and table.groups is not None else ():
            left = [glob for glob in left if glob.strip("/") != name and texts_of(name, glob) is None]
            if not left:
                return ""
    but = f", without what exclude={[*exclude]} matches" if (exclude := getattr(rows, "exclude", ())) else ""
    return f"nothing in any file matches {few(left)}, of the patterns {[*globs]}{but}" if left else ""


def _of_shapes(index: RowIndex) -> str:
    ragged = {
        name: spec for name, spec in index.columns.items() if spec.kind == "ragged" and None in spec.type.ragged_shape
    }
    names = [name for name, spec in ragged.items() if spec.name in index.varying]
    if not names:
        return ""
    spec, listed = index.columns[names[0]], ", ".join(map(repr, names[:_MAX_LISTED]))
    shown = " x ".join("?" if n is None else str(n) for n in spec.type.ragged_shape)
    if index.scope.rows is not None or index.scope.windows is not None:
        rows = ""
    else:  # files of other shapes may have other rows
        blocks = block_of(_tree(index).columns, differ=True)
        of_blocks = f"; for blocks of one shape, pass rows=ray_h5.Patches({blocks!r})" if blocks else ""
        rows = f" If each file is a sample, such as a volume, pass rows=ray_h5.Files(){of_blocks}."
    return (
        f"{index.files.path(0)}: rows of {listed} differ in shape from file to file: {names[0]!r} has rows of {shown}. "
        f"Each row is an array of its own, and batches are lists: pass pad=True to pad them.{rows} If all files should "
        "agree, leave out those that differ."
    )


def _of_packing(index: RowIndex) -> str:
    names = [name for name, spec in index.columns.items() if spec.kind == "number"][:_MAX_COLUMNS]
    by_file = []
    for file in sorted({0, len(index.files) - 1}):
        with index.open(file) as reader:
            by_file.append(reader.notes(names))
    said = {name: text for name in names if (text := by_file[0][name].conversion or by_file[-1][name].conversion)}
    if not said:
        return ""
    differ = any(by_file[0][name].conversion != by_file[-1][name].conversion for name in said)
    listed = "; ".join([f"{printable(name)}: {text}" for name, text in said.items()][:_MAX_LISTED])
    listed += f"; and {len(said) - _MAX_LISTED} more columns" if len(said) > _MAX_LISTED else ""
    return (
        f"{index.files.path(0)}: values are delivered as stored, without applying the attributes of their columns. For "
        f"the values that these mean, pass decode_cf=True; or, with values as they are, {listed}."
        + (" The attributes differ from file to file: ray-h5 inspect shows those of each." if differ else "")
    )


# AnnData files whose variables have other names, or another order: the same position means another gene.


def _of_names(index: RowIndex) -> str:
    """Return what to say of matrices whose columns mean other variables in some of the files."""
    named = {
        made.name
        for made in index.scope.columns
        if getattr(made, "names", None) is not None
        or bool(getattr(made, "axes", ()))
        or bool(getattr(made, "take", ()))
    }
    # A matrix of observations and variables, unless the user says which variables are read, by name or by position.
    of_variables = (
        name
        for name, spec in index.columns.items()
        if (name == "X" or name.startswith("layers/")) and name not in named
        if spec.kind == "sparse" or (spec.kind == "number" and len(spec.row_shape) == 1)
    )
    if (matrix := next(of_variables, None)) is None:
        return ""
    is_fetched = storage_of(index.files.path(0), index.scope.storage).is_fetched
    count = min(len(index.files), _MAX_REMOTE if is_fetched else _MAX_FILES)
    files = sorted({*np.linspace(0, len(index.files) - 1, count).astype(int).tolist()})
    first = _names_of_variables(index, files[0])
    if first is None:
        return ""
    name, texts = first
    shared, other = texts, ""
    for file in files[1:]:
        variables = _names_of_variables(index, file)
        if variables is None or variables[1] == texts:
            continue
        other = other or index.files.path(file)
        here = {*variables[1]}
        shared = [text for text in shared if text in here]
    if not other:
        return ""
    shared = [*dict.fromkeys(shared)]
    said = (
        f"{index.files.path(0)}: the positions of a row of {matrix!r} are variables of other names, or in another "
        f"order, in {other} ({name!r}). Rows are delivered as stored. "
    )
    if not shared:
        return f"{said}They have no names in common: read the files by themselves."
    names = repr(shared) if len(shared) <= _MAX_COPIED else "genes"
    is_sparse = index.columns[matrix].kind == "sparse"
    chosen = f"ray_h5.csr({matrix!r}, take={names}" if is_sparse else f"ray_h5.part({matrix!r}, {{0: {names}}}"
    others = [repr(column) for column in index.columns if column != matrix]
    listed = ", ".join([f"{chosen}, names={name!r})", *(others if len(others) < _MAX_NAMED else [])])
    what = f" where genes is a list of names; {len(shared)} are in all: {few(shared, 3)}." if names == "genes" else ""
    return f"{said}To read the same ones in one order, pass columns=[{listed}]{',' if what else '.'}{what}"


def _names_of_variables(index: RowIndex, file: int) -> tuple[str, list[str]] | None:
    """Return the dataset that has the names of variables, and these; None for files that have none."""
    with index.open(file) as opened:
        reader = opened.base
        encoding = reader.encoding("var") if reader.form == "anndata" else None
        if encoding is None or not encoding.index:
            return None
        name = f"var/{encoding.index}"
        text_encoding = reader.encoding(name)  # as pandas 3 has texts: values, and which of them are missing
        path = name if text_encoding is None else text_encoding.values
        values = reader.read([path])[path].tolist()
    return name, [
        value.decode("utf-8", "surrogateescape") if isinstance(value, bytes) else str(value) for value in values
    ]
