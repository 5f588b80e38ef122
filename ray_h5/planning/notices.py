"""Warnings about what files hold that a reader may not expect: each once a process and set of files."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence

from ray_h5.errors import RayH5Error
from ray_h5.hdf5.layout import FileState
from ray_h5.hdf5.metadata.attributes import ColumnNotes
from ray_h5.lru import LRU
from ray_h5.messages import printable
from ray_h5.planning.index.row_index import RowIndex
from ray_h5.planning.likely_samples import likely_samples

logger = logging.getLogger(__name__)

_MAX_SETS = 1024
_MAX_COLUMNS = 256
"""To look at the attributes of a column takes about as long as to open it."""

_MAX_LISTED = 5


_SAID: LRU[bool] = LRU(_MAX_SETS)


def warn_of_surprises(index: RowIndex, columns: Sequence[object] | None) -> None:
    """Warn of columns that are likely samples, unless they were named; and of values that have to be converted."""
    if columns is None and index.scope.by_axis and not index.tables:
        _once(index, _of_samples)
    _once(index, _of_packing)


def _once(index: RowIndex, notice: Callable[[RowIndex], str]) -> None:
    key = hash((notice.__name__, index.scope.group, *index.columns, *index.files.all_paths()))
    if key not in _SAID:
        _SAID.put(key, True)
        if message := notice(index):
            logger.warning("%s", message)


def _of_samples(index: RowIndex) -> str:
    columns = {name: (spec.dtype.str, spec.row_shape) for name, spec in index.columns.items()}
    alike = likely_samples(columns)
    if alike is None:
        return ""
    return (
        f"{index.files.path(0)}: {alike}. They are read as columns, and their first axes as {index.num_rows} rows. If "
        f"each is a sample or an episode of its own, pass {alike.rows}; docs/rows.md says more. If they are columns, "
        "name them with columns=[...], and this is not said."
    )


def _of_packing(index: RowIndex) -> str:
    names = [name for name, spec in index.columns.items() if spec.kind == "number"][:_MAX_COLUMNS]
    try:
        by_file = [_notes(index, file, names) for file in sorted({0, len(index.files) - 1})]
    except RayH5Error as exc:
        logger.debug("%s", exc)  # a file that cannot be read is reported where it is read
        return ""
    said = {name: text for name in names if (text := by_file[0][name].conversion or by_file[-1][name].conversion)}
    if not said:
        return ""
    differ = any(by_file[0][name].packing != by_file[-1][name].packing for name in said)
    listed = "; ".join([f"{printable(name)}: {text}" for name, text in said.items()][:_MAX_LISTED])
    listed += f"; and {len(said) - _MAX_LISTED} more columns" if len(said) > _MAX_LISTED else ""
    return (
        f"{index.files.path(0)}: values are delivered as stored, without applying the attributes of their columns. To "
        f"convert them, {listed}."
        + (" The attributes differ from file to file: ray-h5 inspect shows those of each." if differ else "")
        + " Do so in map_batches, or in the transform of a dataset."
    )


def _notes(index: RowIndex, file: int, names: Sequence[str]) -> Mapping[str, ColumnNotes]:
    if not index.files.is_remote(file):
        with index.scope.open(index.files.path(file)) as reader:
            return reader.notes(names)
    known = index.known[file] if index.known else {}
    state = FileState(index.files.identity(file))
    with index.scope.open(index.files.path(file), state, index.tables[file] if index.tables else None, known) as reader:
        return reader.notes(names)
