"""Ids of files that are joined row by row: whether both name the same rows."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import TypeAlias, cast

import numpy as np

from ray_h5.columns.schema import ColumnSpec
from ray_h5.errors import RayH5Error, SchemaMismatchError, UnsupportedColumnError
from ray_h5.hdf5.files.external_policy import Access, ExternalPolicy
from ray_h5.index.facts.file_facts import Question
from ray_h5.index.row_index import RowIndex, build_index
from ray_h5.index.scan_files import Lookup, read_ahead
from ray_h5.lru import first_time
from ray_h5.read.reader import FileReader
from ray_h5.scope import Scope
from ray_h5.storage.addresses import is_url
from ray_h5.storage.byte_source import ObjectIdentity

logger = logging.getLogger(__name__)

_MOST_PAIRS = 64
"""A file that is too many or too few shifts all pairs after it, so that some pairs show it."""

_MOST_ROWS = 1 << 16
"""Rows at the beginning and at the end of a file that are compared."""


_MOST_PAIRS_IN_STORES, _MOST_ROWS_IN_STORES = 4, 1 << 20
"""Their ids are values of an index: a folder of index files keeps them, so that they are fetched once."""

_Ids: TypeAlias = Callable[[str, str], tuple[np.ndarray, np.ndarray, int]]
"""Returns some rows of a column of a file, its values there, and how many rows there are."""


def check_ids(index: RowIndex, named: str) -> None:
    """Compare columns of one id a row that both files of a pair have; `named` is `zip_files` as the user writes it.

    They are columns of integers or text along the first axis. A warning says which row differs first.

    Raises
    ------
    SchemaMismatchError
        If a column has the same ids in both, each once, in another order.
    """
    scope = index.scope
    pairs = [(path, scope.zipped[path]) for path in index.files.all_paths() if path in scope.zipped]
    if not pairs or not scope.by_axis or scope.axes != "stored":
        return
    names, ids = list[str](), cast("_Ids", partial(_from_file, scope))
    in_stores = any(is_url(path) for pair in pairs for path in pair)
    with contextlib.suppress(RayH5Error):  # reading them reports it
        if in_stores:
            # The others are in no listing: their states are those in which the columns were found.
            others = {path: state for path, state in index.sources_of(index.columns).of_files() if is_url(path)}
            states = {**cast("dict[str, ObjectIdentity]", others), **index.lookup.states}
            alone = replace(scope, zipped={}, columns=())
            lookup = replace(index.lookup, scope=alone, spread=read_ahead, states=states)
            ids = partial(_from_index, lookup)
            facts = lookup.ask(pairs[0], Question(None))
            names = _of_both(*({name: one.columns[name].spec for name in one.listing or one.columns} for one in facts))
        else:
            names = _of_both(*(_specs(_reader(scope, path)) for path in pairs[0]))
    count = _MOST_PAIRS_IN_STORES if in_stores else _MOST_PAIRS
    for number in np.unique(np.linspace(0, len(pairs) - 1, count).astype(int)).tolist() if names else ():
        for name in names:
            _compare(name, pairs[number], ids, named)


def _reader(scope: Scope, path: str) -> FileReader:
    return FileReader(Access(path, scope.group, ExternalPolicy.of(scope.allow_external)))


def _from_file(scope: Scope, path: str, name: str) -> tuple[np.ndarray, np.ndarray, int]:
    reader = _reader(scope, path)
    count = reader.column(name).num_rows
    rows = np.unique(np.r_[: min(count, _MOST_ROWS), max(0, count - _MOST_ROWS) : count])
    return rows, reader.read([name], rows)[name].reshape(-1), count


def _from_index(lookup: Lookup, path: str, name: str) -> tuple[np.ndarray, np.ndarray, int]:
    index = build_index([path], [name], lookup)
    if not index.columns[name].is_id or index.num_rows > _MOST_ROWS_IN_STORES:
        return np.empty(0, np.int64), np.empty(0, np.int64), 0
    return index.every_row(), index.values([name], stored=True)[name].to_numpy(), index.num_rows


def _of_both(first: Mapping[str, ColumnSpec], second: Mapping[str, ColumnSpec]) -> list[str]:
    """Return the columns of one integer or text a row that two files have."""
    return sorted(name for name in first.keys() & second.keys() if first[name].is_id and second[name].is_id)


def _specs(reader: FileReader) -> dict[str, ColumnSpec]:
    specs = {}
    for name, layout in reader.layout.columns.items():
        with contextlib.suppress(UnsupportedColumnError):
            specs[name] = ColumnSpec.of(layout)
    return specs


def _compare(name: str, pair: tuple[str, str], ids: _Ids, named: str) -> None:
    try:
        (rows, one, count), (_, other, others) = (ids(path, name) for path in pair)
    except RayH5Error:
        return  # another file may lack it; what is read of it reports what is wrong
    if count != others or not len(differing := np.flatnonzero(one != other)):
        return
    at = int(differing[0])
    found = [each[at : at + 1].tolist()[0] for each in (one, other)]
    shown = [value.decode("utf-8", "replace") if isinstance(value, bytes) else value for value in found]
    said = (
        f"zip_files joins {pair[0]} and {pair[1]} row by row, and {name!r} differs: row {rows[at]} has "
        f"{shown[0]!r} and {shown[1]!r}"
    )
    values = {*one.tolist()}
    if len(rows) == count and len(values) == count and values == {*other.tolist()}:
        raise SchemaMismatchError(
            f"{said}. Both have the same values in another order. To join equal ones, pass "
            f"sidecar=Sidecar({named}, on={name!r}) in the place of zip_files=; on='row_id' joins row by row."
        )
    if first_time("zip_files", name, *pair):
        logger.warning("%s; to join equal ones, pass sidecar=Sidecar(%s, on=%r) in its place", said, named, name)
