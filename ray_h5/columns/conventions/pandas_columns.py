"""Columns of tables that pandas wrote: fields, or columns of blocks, with times and categories."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import Any

import numpy as np

from ray_h5.columns.conventions.cf_columns import CF
from ray_h5.columns.conventions.coded_columns import Category
from ray_h5.columns.conventions.matlab_columns import Rearranged
from ray_h5.columns.stored_values import Stored, stored_fields
from ray_h5.columns.values import Values, reshaped
from ray_h5.errors import CorruptFileError, UnknownColumnError, UnsupportedColumnError
from ray_h5.manifest.layout import Encoding
from ray_h5.messages import near_names
from ray_h5.read.reader import RowReader

_UNITS = {"s": 1_000_000_000, "ms": 1_000_000, "us": 1_000, "ns": 1}


def _times(stored: Stored, said: str) -> CF:
    unit = said.partition("[")[2].partition("]")[0].partition(",")[0] or "ns"
    return CF(stored, "time", np.dtype("M8[ns]"), unit=_UNITS.get(unit, 1))


def pandas_values(reader: RowReader, encoding: Encoding, frame: str, name: str) -> Values:
    """Return the values of a column of a table of pandas.

    Parameters
    ----------
    reader : RowReader
        The file.
    encoding : Encoding
        What the group of the table says.
    frame, name : str
        The group, and the column in it.

    Raises
    ------
    UnknownColumnError, UnsupportedColumnError
        If there is no such column, or it holds Python objects.
    """
    known: dict[str, dict[str, Any]] = json.loads(encoding.text)
    column = f"{frame}/{name}".strip("/")
    where = f"{reader.path}: column {column!r}"
    if name not in known:
        raise UnknownColumnError(f"{reader.path}: no column {name!r} in the table {frame!r}.{near_names(name, known)}")
    said = known[name]
    layout = reader.column(said["dataset"])
    if not said["field"] and said["at"] is None:  # the index of a frame in the fixed format
        return _times(Stored.of(layout), said["dtype"])
    if not said["field"]:
        # Times of a time zone are in UTC.
        unit = re.fullmatch(r"datetime64(?:\[(s|ms|us|ns)(?:,.*)?\])?", said["dtype"])
        time = np.dtype(f"M8[{unit[1] or 'ns'}]") if unit is not None and layout.stored_dtype == np.int64 else None
        is_other = said["dtype"].startswith("datetime") and time is None
        if len(layout.shape) != 2 or layout.kind not in {"number", "bool"} or is_other:
            held = f"{said['dtype'] or layout.kind} values"
            held = "text or other objects, which pandas pickles" if layout.kind == "list" else held
            raise UnsupportedColumnError(
                f"{where} is in a block of pandas' fixed format that holds {held}; its "
                "numbers alone can be read. Write the frame with to_hdf(..., format='table')."
            )
        stored = replace(Stored.of(layout), taken=(np.array([said["at"]]),))
        one = replace(reshaped(stored.array), name=column)  # without the axis of the block
        return Rearranged(stored, one if time is None else replace(one, kind="time", stored_dtype=time))
    stored = stored_fields(layout, (said["field"],), column, is_one=True)
    if said["dtype"].startswith("datetime64"):
        return _times(stored, said["dtype"])
    if said["categories"]:
        if stored.dtype.kind not in "iu":
            raise CorruptFileError(f"{where}: expected integers as codes, found {stored.dtype}")
        table = said["categories"]
        values = reader.fact(table, lambda: np.ascontiguousarray(reader.read_whole(table)["values"]), of_file=True)
        return Category(stored, column, values, reader.path)
    return stored
