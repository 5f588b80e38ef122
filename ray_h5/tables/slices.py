"""Keys that name a part of a dataset, as the tables of SeisBench have them: ``bucket0$5,:3,:6000``."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ray_h5.errors import SchemaMismatchError
from ray_h5.tables.column_types import is_text
from ray_h5.tables.keys import RowKeys, lines_of
from ray_h5.tables.sidecar import Sidecar
from ray_h5.tables.table_files import Table

_SLICE = r"^(?P<name>[^$]+)\$(?P<row>[0-9]{1,18})(?P<crop>,[^$]*)?$"
_LAST_STOP = r"^.*[,:](?P<stop>[0-9]{1,18})$"
_MAX_SHOWN = 10
_MAX_LABELS = 3
LENGTH = "_length"


@dataclass(frozen=True, slots=True, eq=False)
class Slices:
    """Keys of a table that name parts of datasets.

    Attributes
    ----------
    sidecar : Sidecar
        The table.
    table : Table
        Its lines.
    names : pyarrow.Array
        For each line, the dataset.
    rows : pyarrow.Array
        For each line, the row of the dataset.
    stops : pyarrow.Array
        For each line, where the last axis ends; null where it is not cut.
    """

    sidecar: Sidecar
    table: Table
    names: pa.Array
    rows: pa.Array
    stops: pa.Array

    def columns_of(self, columns: Iterable[str]) -> list[str]:
        """Return the columns that are named. The table may leave out the groups that they are in."""
        names = {*self.names.unique().to_pylist()}
        return [column for column in columns if any(part in names for part in _ends(column))]

    def lines(self, column: str, num_rows: int) -> np.ndarray:
        """Return the line of each row of a column: integers, -1 where the table has none."""
        names = {*self.names.unique().to_pylist()}
        name = next(part for part in _ends(column) if part in names)
        parts = [RowKeys("dataset", pa.repeat(name, num_rows)), RowKeys("row", pa.array(np.arange(num_rows)))]
        return lines_of(parts, [self.names, self.rows], (*self.sidecar.keys, "row"), self.table.name)

    def one_by_one(self, path: str, group: str, columns: Sequence[str]) -> SchemaMismatchError:
        """Return the error for a file whose datasets must be read one by one; it prints the calls."""
        key, on = self.sidecar.keys[0], self.sidecar.row_keys[0]
        more = "" if key == on else f", key={key!r}"
        opened = repr(path) if group.strip("/") == "" else f"{path!r}, group={group!r}"
        table = f"sidecar=ray_h5.Sidecar({self.table.name!r}, on={on!r}{more})"
        labels = [self.sidecar.prefix + name for name in self.table.types if name != key][:_MAX_LABELS]
        calls = [
            f"  ray_h5.read_h5({opened}, columns={[column, column + LENGTH, *labels]!r}, {table})" for column in columns
        ]
        shown = calls[:_MAX_SHOWN] + ([f"  and {len(calls) - _MAX_SHOWN} more"] if len(calls) > _MAX_SHOWN else [])
        head = (
            f"{self.table.name}: the keys {key!r}, such as {self.table.column(key)[0].as_py()!r}, are rows of "
            f"{len(columns)} datasets, which do not share rows. Read them one at a time, with the columns of the table "
            "that you need, and join what is read by ds.union(...), or by ConcatDataset of H5Datasets:"
        )
        return SchemaMismatchError("\n".join([head, *shown]))


def slices_of(sidecar: Sidecar, table: Table) -> Slices | None:
    """Return the keys of a table that name parts of datasets; None if they are other keys."""
    if len(sidecar.keys) != 1 or sidecar.keys[0] not in table.types:
        return None
    keys = table.column(sidecar.keys[0]).combine_chunks()
    if not len(keys) or not is_text(keys.type) or not pc.all(pc.match_substring_regex(keys[:1], _SLICE)).as_py():
        return None
    matches = pc.extract_regex(keys, _SLICE)
    if matches.null_count:
        return None
    names, rows, crop = (matches.field(name) for name in ("name", "row", "crop"))
    stops = pc.extract_regex(crop, _LAST_STOP)
    stop = pc.struct_field(stops, "stop").cast(pa.int64())
    return Slices(sidecar, table, names, rows.cast(pa.int64()), stop)


def _ends(path: str) -> list[str]:
    parts = path.split("/")
    return ["/".join(parts[at:]) for at in range(len(parts))]
