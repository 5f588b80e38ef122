"""Tables that other programs write: which names are columns (AnnData, MuData, 10x, loom, pandas); pandas' values."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import cache, lru_cache
from typing import Any, TypeAlias

import numpy as np

from ray_h5.columns.conventions.cf_columns import CF
from ray_h5.columns.conventions.coded_columns import of_categories
from ray_h5.columns.conventions.matlab_columns import rearranged
from ray_h5.columns.derived_columns import Ragged
from ray_h5.columns.stored_values import Stored, stored_fields
from ray_h5.columns.values import Values
from ray_h5.errors import CorruptFileError, UnknownColumnError, UnsupportedColumnError
from ray_h5.manifest.indices import Along
from ray_h5.manifest.layout import Encoding, Form
from ray_h5.manifest.value_type import Kind
from ray_h5.messages import few, near_names
from ray_h5.read.reader import FileReader

EncodingOf: TypeAlias = "Callable[[str], Encoding | None]"
"""Returns what a group, or a dataset, encodes."""

OF_ROWS = ("layers", "obs", "obsm", "obsp")
"""The groups of an AnnData file whose members have a row for each observation."""

_OF_FORM = {"10x": {"matrix"}, "anndata": {"X", "raw", "raw.X", "var", "varm", "varp", "uns", *OF_ROWS}}
"""The groups of such a file. The other columns are those of a plain file that is read with it."""

_OF_CELLS = ("matrix", "layers", "col_attrs")
"""The groups of a loom file whose members have a row for each cell."""

_HIDDEN = "__categories"
_in_table: Callable[[str], dict[str, dict[str, Any]]] = lru_cache(maxsize=8)(json.loads)
"""The columns of a table of pandas by name. They are asked for one by one, and there may be thousands."""
_PANDAS_UNITS = {"s": 1_000_000_000, "ms": 1_000_000, "us": 1_000, "ns": 1}


def listed_names(reader: FileReader, form: Form, encoding: EncodingOf) -> list[str]:
    """Return the names of what may be columns of a file; `form` is the kind of file."""
    names = _paths(reader)
    plain = [name for name in names if reader.zip_file and name.split("/")[0] not in _OF_FORM.get(form, {})]
    if form == "10x":
        return ["matrix", "matrix/barcodes", *plain]
    if form == "pandas":
        return _of_pandas(names, encoding)
    if form == "loom":
        return [name for name in names if name.split("/")[0] in _OF_CELLS]
    if form == "ray_h5":  # in place of a dataset, the outermost group that is encoded as a whole, such as a table
        encoded = (next((path for path in _above(name) if path and encoding(path)), name) for name in names)
        return list(dict.fromkeys(encoded))
    if form == "anndata":
        listed = (member for name in _of_observations(reader, names) for member in _members(name, names, encoding))
        return [*listed, *plain]
    return names


def check_tables(reader: FileReader, names: Iterable[str]) -> None:
    """Raise for a MuData file, which has several tables, each as a file of AnnData; `names` are its columns."""
    paths = [path.split("/") for path in _paths(reader)]
    tables = list(dict.fromkeys(f"mod/{path[1]}" for path in paths if path[0] == "mod" and len(path) > 2))
    if tables and "X" not in names:
        raise UnsupportedColumnError(
            f"{reader.path} is a MuData file, of tables with rows of their own: {few(tables)}. Pass "
            f"group={tables[0]!r} to read one of them, or name the columns with columns=[...]."
        )


def _paths(reader: FileReader) -> list[str]:
    return [*reader.layout.columns, *reader.layout.refused]


def _above(path: str) -> list[str]:
    """Return the groups that a path leads through, from the root on."""
    parts = path.split("/")
    return ["/".join(parts[:count]) for count in range(len(parts))]


def _of_pandas(datasets: Iterable[str], encoding: EncodingOf) -> list[str]:
    """Return the columns of tables of pandas in the place of their datasets."""
    names: dict[str, None] = {}
    known = cache(encoding)
    for path in datasets:
        frames = ((group, known(group)) for group in [*_above(path), path])
        frame, encoded = next((pair for pair in frames if pair[1] and pair[1].kind == "pandas"), ("", None))
        columns = [path] if encoded is None else [f"{frame}/{name}".strip("/") for name in _in_table(encoded.text)]
        names.update(dict.fromkeys(columns))
    return list(names)


def _of_observations(reader: FileReader, datasets: Iterable[str]) -> list[str]:
    """Return what a file of AnnData has for each observation: datasets, and groups that encode a column or a table."""
    names: dict[str, None] = {}
    for path in datasets:
        first, *rest = path.split("/")
        if first in {"X", "raw.X"}:
            names[first] = None
        elif first == "raw" and rest[:1] == ["X"]:
            names["raw/X"] = None
        elif first in OF_ROWS and rest and rest[0] != _HIDDEN:
            names[f"{first}/{rest[0]}"] = None
        elif first in OF_ROWS and not rest:  # compound values, as AnnData before 0.7 wrote tables
            fields = reader.find([first])[first].dtype.names or ()
            names.update(dict.fromkeys(f"{first}/{field}" for field in fields))
    return list(names)


def _members(name: str, paths: Iterable[str], encoding: EncodingOf) -> list[str]:
    """Return the columns of a table; other names as they are."""
    frame = encoding(name)
    if frame is None or frame.kind != "frame":
        return [name]
    below = dict.fromkeys(path[len(name) + 1 :].split("/")[0] for path in paths if path.startswith(f"{name}/"))
    return [f"{name}/{column}" for column in below if column != _HIDDEN]


def _times(stored: Stored, said: str) -> Values:
    unit = said.partition("[")[2].partition("]")[0].partition(",")[0] or "ns"
    return CF("time", np.dtype("M8[ns]"), unit=_PANDAS_UNITS.get(unit, 1)).of(stored)


def pandas_values(reader: FileReader, encoding: Encoding, frame: str, name: str) -> Values:
    """Return the values of a column of a table of pandas.

    Parameters
    ----------
    reader : FileReader
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
    known, column = _in_table(encoding.text), f"{frame}/{name}".strip("/")
    where = f"{reader.path}: column {column!r}"
    if name not in known:
        raise UnknownColumnError(f"{reader.path}: no column {name!r} in the table {frame!r}.{near_names(name, known)}")
    said = known[name]
    layout = reader.column(said["dataset"])
    if not said["field"] and said["at"] is None:  # the index of a frame in the fixed format, or a level of it
        table = said["categories"]
        if said["dtype"] == "no":
            raise UnsupportedColumnError(
                f"{where} is the index of pandas' fixed format, or a level of it: it holds something else than numbers "
                "and text (or times, of one level). Write the frame with to_hdf(..., format='table')."
            )
        stored = Stored.of(layout)
        if table:
            values = reader.fact(table, lambda: reader.read_whole(table), of_file=True)
            return of_categories(stored, column, values, reader.path)
        return _times(stored, said["dtype"]) if said["dtype"] else stored
    if not said["field"]:
        # Times of a time zone are in UTC.
        unit = re.fullmatch(r"datetime64(?:\[(s|ms|us|ns)(?:,.*)?\])?", said["dtype"])
        time = np.dtype(f"M8[{unit[1] or 'ns'}]") if unit is not None and layout.stored_dtype == np.int64 else None
        is_other = said["dtype"] == "no" or (said["dtype"].startswith("datetime") and time is None)
        if len(layout.shape) != 2 or layout.kind not in {"number", "bool"} or is_other:
            held = f"{said['dtype'] or layout.kind} values"
            held = "text or other objects, which pandas pickles" if layout.kind == "list" else held
            raise UnsupportedColumnError(
                f"{where} is in a block of pandas' fixed format that holds {held}; its "
                "numbers alone can be read. Write the frame with to_hdf(..., format='table')."
            )
        kind: Kind = layout.kind if time is None else "time"
        stored = replace(Stored.of(layout), taken=(Along.range(said["at"], 1),))  # along the axis of the block
        return rearranged(stored, kind, layout.stored_dtype if time is None else time, lambda _: (), column)
    stored = stored_fields(Stored.of(layout), (said["field"],), column, is_one=True)
    if said["dtype"].startswith("datetime64"):
        return _times(stored, said["dtype"])
    if said["categories"]:
        if stored.dtype.kind not in "iu":
            raise CorruptFileError(f"{where}: expected integers as codes, found {stored.dtype}")
        table = said["categories"]
        values = reader.fact(table, lambda: np.ascontiguousarray(reader.read_whole(table)["values"]), of_file=True)
        return of_categories(stored, column, values, reader.path)
    return stored


def awkward_lists(path: str, group: str, encoding: Encoding, name: str) -> Ragged:
    """Return the column that an array of awkward with one level of lists is; `path` is that of the file."""
    with contextlib.suppress(ValueError, KeyError, TypeError, RecursionError):
        form: Any = json.loads(encoding.text)
        if form["class"] == "ListOffsetArray" and form["content"]["class"] == "NumpyArray":
            content, offsets = f"{form['content']['form_key']}", f"{form['form_key']}"
            return Ragged(f"{group}/{content}-data", f"{group}/{offsets}-offsets", called=name)
    raise UnsupportedColumnError(
        f"{path}: {group!r} is an awkward array of another form than one level of lists of numbers. Write it as such "
        "arrays, or leave it out with columns=[...]."
    )
