"""AnnData files whose variables have other names, or another order: the same position means another gene."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ray_h5.index.row_index import RowIndex
from ray_h5.manifest.layout import FileState
from ray_h5.messages import few
from ray_h5.storage.storage_of_path import storage_of

_MAX_FILES, _MAX_REMOTE = 32, 2
"""Files that are compared, spread evenly: to read the names of one takes some milliseconds, and requests in a store."""

_MAX_COPIED = 8
_MAX_COLUMNS = 40


def differing_names(index: RowIndex) -> str:
    """Return what to say of matrices whose columns mean other variables in some of the files."""
    matrix = _matrix(index)
    if matrix is None or len(index.files) < 2:
        return ""
    is_fetched = storage_of(index.files.path(0), index.scope.storage).is_fetched
    count = min(len(index.files), _MAX_REMOTE if is_fetched else _MAX_FILES)
    files = sorted({*np.linspace(0, len(index.files) - 1, count).astype(int).tolist()})
    first = _names(index, files[0])
    if first is None:
        return ""
    name, texts = first
    shared, other = dict.fromkeys(texts), ""
    for file in files[1:]:
        found = _names(index, file)
        if found is None or found[1] == texts:
            continue
        other = other or index.files.path(file)
        here = {*found[1]}
        shared = {each: None for each in shared if each in here}
    if not other:
        return ""
    return (
        f"{index.files.path(0)}: the positions of a row of {matrix!r} are variables of other names, or in another "
        f"order, in {other} ({name!r}). Rows are delivered as stored. {_advice(index, matrix, name, list(shared))}"
    )


def _matrix(index: RowIndex) -> str | None:
    """Return the matrix of observations and variables that is read without the names of variables; None if none is."""
    named = {each.name for each in index.scope.columns if _has_names(each)}
    for name, spec in index.columns.items():
        is_matrix = spec.kind == "sparse" or (spec.kind == "number" and len(spec.row_shape) == 1)
        if (name == "X" or name.startswith("layers/")) and is_matrix and name not in named:
            return name
    return None


def _has_names(made: object) -> bool:
    """Return whether a user says which variables are read, by name or by position."""
    return (
        getattr(made, "names", None) is not None or bool(getattr(made, "axes", ())) or bool(getattr(made, "take", ()))
    )


def _names(index: RowIndex, file: int) -> tuple[str, list[str]] | None:
    """Return the dataset that has the names of variables, and these; None for files that have none."""
    path, state = index.files.path(file), FileState(index.files.identity(file))
    known = index.known[file] if index.known else None
    with index.scope.reader(path, state, known) as reader:
        encoding = reader.encoding("var") if reader.form == "anndata" else None
        if encoding is None or not encoding.index:
            return None
        name = f"var/{encoding.index}"
        found = reader.encoding(name)  # as pandas 3 has texts: values, and which of them are missing
        path = name if found is None else found.values
        values = reader.read([path])[path].tolist()
    return name, [each.decode("utf-8", "surrogateescape") if isinstance(each, bytes) else str(each) for each in values]


def _advice(index: RowIndex, matrix: str, name: str, shared: Sequence[str]) -> str:
    if not shared:
        return "They have no names in common: read the files by themselves."
    names = repr(list(shared)) if len(shared) <= _MAX_COPIED else "genes"
    is_sparse = index.columns[matrix].kind == "sparse"
    chosen = f"ray_h5.csr({matrix!r}, take={names}" if is_sparse else f"ray_h5.part({matrix!r}, {{0: {names}}}"
    others = [repr(each) for each in index.columns if each != matrix]
    listed = ", ".join([f"{chosen}, names={name!r})", *(others if len(others) < _MAX_COLUMNS else [])])
    what = f" where genes is a list of names; {len(shared)} are in all: {few(shared, 3)}." if names == "genes" else ""
    return f"To read the same ones in one order, pass columns=[{listed}]{',' if what else '.'}{what}"
