"""Ids of files that are joined row by row: whether both name the same rows."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Sequence

import numpy as np

from ray_h5.columns.schema import ColumnSpec
from ray_h5.errors import RayH5Error, SchemaMismatchError, UnsupportedColumnError
from ray_h5.lru import first_time
from ray_h5.read.reader import FileReader
from ray_h5.scope import Scope
from ray_h5.storage.addresses import is_url

logger = logging.getLogger(__name__)

_MOST_PAIRS = 64
"""A file that is too many or too few shifts all pairs after it, so that some pairs show it."""

_MOST_ROWS = 1 << 16
"""Rows at the beginning and at the end of a file that are compared."""


def check_ids(paths: Sequence[str], scope: Scope, named: str) -> None:
    """Compare columns of one id a row that both files of a pair have; `named` is `zip_files` as the user writes it.

    They are columns of integers or text along the first axis. A warning says which row differs first. Files in stores
    are not asked.

    Raises
    ------
    SchemaMismatchError
        If a column has the same ids in both, each once, in another order.
    """
    pairs = [(path, scope.zipped[path]) for path in paths if path in scope.zipped]
    pairs = [pair for pair in pairs if not any(map(is_url, pair))]
    if not pairs or not scope.by_axis or scope.axes != "stored":
        return
    names = _of_both(*(_reader(path, scope) for path in pairs[0]))
    for number in np.unique(np.linspace(0, len(pairs) - 1, _MOST_PAIRS).astype(int)).tolist() if names else ():
        first, second = (_reader(path, scope) for path in pairs[number])
        for name in names:
            _compare(name, first, second, named)


def _reader(path: str, scope: Scope) -> FileReader:
    return FileReader(path, scope.group, 1, scope.allow_external)


def _of_both(first: FileReader, second: FileReader) -> list[str]:
    """Return the columns of one integer or text a row that two files have."""
    try:
        ids = [{*_ids(reader)} for reader in (first, second)]
    except RayH5Error:
        return []  # reading them reports it
    return sorted(ids[0] & ids[1])


def _ids(reader: FileReader) -> Iterator[str]:
    for name, layout in reader.layout.columns.items():
        with contextlib.suppress(UnsupportedColumnError):
            if ColumnSpec.of(layout).is_id:
                yield name


def _compare(name: str, first: FileReader, second: FileReader, named: str) -> None:
    try:
        count = first.column(name).num_rows
        if count != second.column(name).num_rows:
            return
        rows = np.unique(np.r_[: min(count, _MOST_ROWS), max(0, count - _MOST_ROWS) : count])
        one, other = (reader.read([name], rows)[name].reshape(-1) for reader in (first, second))
    except RayH5Error:
        return  # another file may lack it; what is read of it reports what is wrong
    differing = np.flatnonzero(one != other)
    if not len(differing):
        return
    at = int(differing[0])
    pair = [each[at : at + 1].tolist()[0] for each in (one, other)]
    shown = [value.decode("utf-8", "replace") if isinstance(value, bytes) else value for value in pair]
    said = (
        f"zip_files joins {first.path} and {second.path} row by row, and {name!r} differs: row {rows[at]} has "
        f"{shown[0]!r} and {shown[1]!r}"
    )
    ids = {*one.tolist()}
    if len(rows) == count and len(ids) == count and ids == {*other.tolist()}:
        raise SchemaMismatchError(
            f"{said}. Both have the same values in another order. To join equal ones, pass "
            f"sidecar=Sidecar({named}, on={name!r}) in the place of zip_files=; on='row_id' joins row by row."
        )
    if first_time("zip_files", name, first.path, second.path):
        logger.warning("%s; to join equal ones, pass sidecar=Sidecar(%s, on=%r) in its place", said, named, name)
