"""Tables beside the files, as users name them."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any, Literal, TypeAlias

import pyarrow as pa

from ray_h5.errors import OptionError, TableError
from ray_h5.options import as_bytes, as_integer, names_options, require
from ray_h5.storage.local import PathLike

InMemory: TypeAlias = Any
"""A DataFrame of pandas, or what Arrow takes for a table: ``pyarrow.Table``, a frame of polars."""

_PLACES = {"{stem}": r"([^/]*?)(\.[^./]*)?$", "{folder}": r"([^/]*)/[^/]*$"}
"""What stands in the path of a table for parts of the path of a file: its name without the ending, and its folder."""


@names_options
@dataclass(frozen=True, slots=True)
class Sidecar:
    """A table in CSV, Parquet or HDF5 beside the files. Its columns join the rows by a key, while planning.

    Predicates, `kfold` and weights may name its columns, and rows are delivered with them. By default these are the
    columns with one value a line, except the key; of Parquet, other columns stay unread unless they are named. Columns
    with an array a line are delivered if ``columns=[...]`` names them. Of HDF5, all columns are delivered, and values
    are read with the rows.

    Parameters
    ----------
    path : str, path-like, a sequence of them, or a table in memory
        The table: a file, or several with the same columns, also by a folder or a glob. Lines of CSV begin with a
        header. ``"{stem}.csv"`` is a table for each file: ``run_0.csv`` beside ``run_0.h5``, whose lines join the rows
        of this file alone; ``{folder}`` is the name of its folder. A table in memory is a `pandas.DataFrame`, a
        `pyarrow.Table` or another frame that Arrow takes.
    on : str or sequence of str
        The column of the files that has the key of each row. If the files have no such column, ``"path"`` is the file
        of a row, ``"group"`` its group (with ``rows=Groups(...)``), ``"row"`` its number in its file, and ``"row_id"``
        its number in all files, as `include_row_ids` delivers it. With windows, ``"step"`` is the number of its step in
        its file, as `include_steps` delivers it; ``"row"`` is that, too. Several names are a key of several parts.
        Paths and groups may be given by their last parts, and files without their ending.
    key : str or sequence of str, optional
        The column of the table that has the key of each line; by default it has the name `on`. A table without a column
        ``row_id``, ``row`` or ``step`` has a line for each row, in order; for each step of the file by the last two.
        Of HDF5, ``"row_id"`` is the number of a row in all files of the table, ``"row"`` in one, and ``"path"`` a file:
        ``on="image_idx", key="row_id"`` takes rows by number.
    missing : {"error", "null", "drop"}
        What happens to rows whose key is not in the table: an error, no values, or the rows are left out.
    match : {"whole", "tail"}
        Whether a text is the key of a row if it is equal, or the last parts of a path or group, or if the last parts
        that tell keys apart are equal: ``"tail"`` joins ``/home/me/train/a.h5`` of another machine and
        ``/data/train/a.h5``. Backslashes in the table are slashes.
    prefix : str
        Put before the names of the columns of the table: ``"labels/"``.
    types : mapping of str to str or dtype, optional
        Types of columns of CSV, by their names in the table: ``{"zip": str}`` keeps the text ``"00501"``. By default
        they follow from the values. Keys have the type that the files have.
    delimiter : str, optional
        What separates the fields of CSV. By default a comma, or a tab in ``.tsv``.
    names : sequence of str, optional
        The columns of CSV whose first line is no header.
    max_rows : int
        The most lines that the table may have.
    max_bytes : int or str
        The most bytes that the columns which are read may take in memory, such as ``"8GiB"``. A small file can hold
        much more: CSV may be compressed, and Parquet stores equal values once. A larger table is an error before it is
        taken into memory. HDF5 is not bounded: only keys, and what planning names, are held.

    Raises
    ------
    OptionError
        If an argument has a value that cannot be used.

    Examples
    --------
    >>> Sidecar("labels.csv", on="guid").missing
    'error'
    """

    path: PathLike | Sequence[PathLike] | InMemory
    _: KW_ONLY
    on: str | Sequence[str]
    key: str | Sequence[str] | None = None
    missing: Literal["error", "null", "drop"] = "error"
    match: Literal["whole", "tail"] = "whole"
    prefix: str = ""
    types: Mapping[str, Any] | None = None
    delimiter: str | None = None
    names: Sequence[str] | None = None
    max_rows: int = 50_000_000
    max_bytes: int | str = "2GiB"

    def __post_init__(self) -> None:
        if (table := _in_memory(self.path)) is not None:
            object.__setattr__(self, "path", table)
            self.check_no_csv("a table in memory")
        paths = [self.path] if isinstance(self.path, (str, os.PathLike)) else self.path
        paths = ["in memory"] if table is not None else paths
        if not (isinstance(paths, Sequence) and paths and all(isinstance(p, (str, os.PathLike)) and p for p in paths)):
            raise OptionError(
                f"Sidecar: path={self.path!r}: expected the path of a table, a list of them, or one table in memory, a "
                "DataFrame or a pyarrow.Table"
            )
        if self.is_by_file:
            require(len(self.paths) == 1, "Sidecar: path", self.path, "one path with {stem} or {folder}, and no other")
        object.__setattr__(self, "on", _names("on", self.on))
        object.__setattr__(self, "key", self.on if self.key is None else _names("key", self.key))
        option, keys = f"Sidecar: on={list(self.on)}, key", list(self.keys)
        require(len(self.on) == len(keys), option, keys, "a column of the table for each column of the files")
        is_known = self.missing in ("error", "null", "drop")
        require(is_known, "Sidecar: missing", self.missing, "'error', 'null' or 'drop'")
        require(self.match in ("whole", "tail"), "Sidecar: match", self.match, "'whole' or 'tail'")
        require(isinstance(self.prefix, str), "Sidecar: prefix", self.prefix, "a text, such as 'labels/'")
        is_mapping, expected = isinstance(self.types, (Mapping, type(None))), "{column: type}, such as {'zip': str}"
        require(is_mapping, "Sidecar: types", self.types, expected)
        is_one = self.delimiter is None or (isinstance(self.delimiter, str) and len(self.delimiter) == 1)
        require(is_one, "Sidecar: delimiter", self.delimiter, "one character, such as ';'")
        if self.names is not None:
            object.__setattr__(self, "names", _names("names", self.names))
        object.__setattr__(self, "max_rows", as_integer("Sidecar: max_rows", self.max_rows, 1))
        object.__setattr__(self, "max_bytes", as_bytes("Sidecar: max_bytes", self.max_bytes))

    def check_no_csv(self, table: str) -> None:
        """Raise an `OptionError` for options of CSV; `table` says what is none."""
        if of_csv := [name for name in ("types", "delimiter", "names") if getattr(self, name) is not None]:
            raise OptionError(f"Sidecar: {of_csv[0]}=: expected no options of CSV with {table}; leave it out")

    @property
    def paths(self) -> list[PathLike]:
        """Its paths; none of a table in memory."""
        if isinstance(self.path, pa.Table):
            return []
        return [self.path] if isinstance(self.path, (str, os.PathLike)) else list(self.path)

    @property
    def is_by_file(self) -> bool:
        """Whether each file has a table of its own."""
        return any(place in os.fspath(path) for path in self.paths for place in _PLACES)

    def path_for(self, file: str) -> str:
        """Return the path of the table of one file."""
        path, folder = os.fspath(self.paths[0]), file.rpartition("/")[0]
        for place, pattern in _PLACES.items():
            found = re.search(pattern, file)
            path = path.replace(place, found[1] if found else "")
        return path if path.startswith("/") or "://" in path else f"{folder}/{path}"

    @property
    def keys(self) -> tuple[str, ...]:
        """The columns of the table that make a key."""
        assert isinstance(self.key, tuple)
        return self.key

    @property
    def row_keys(self) -> tuple[str, ...]:
        """The columns of the files that make a key."""
        assert isinstance(self.on, tuple)
        return self.on


def as_sidecars(sidecar: Any) -> tuple[Sidecar, ...]:
    """Return the value of the argument `sidecar`."""
    if sidecar is None:
        return ()
    listed = [sidecar] if isinstance(sidecar, Sidecar) else sidecar
    if isinstance(listed, (list, tuple)) and all(isinstance(table, Sidecar) for table in listed):
        return tuple(listed)
    hint = f"; write Sidecar({os.fspath(sidecar)!r}, on=...)" if isinstance(sidecar, (str, os.PathLike)) else ""
    raise OptionError(f"sidecar={sidecar!r}: expected Sidecar(...), or a list of them{hint}")


def as_attrs(attrs: Any) -> dict[str, str]:
    """Return the value of the argument `attrs`: column -> attribute."""
    require(not isinstance(attrs, str), "attrs", attrs, f"a list of names; write attrs=[{attrs!r}]")
    try:
        by_column = dict(attrs) if isinstance(attrs, Mapping) else {name: name for name in attrs}
    except TypeError:
        raise OptionError(f"attrs={attrs!r}: expected names of attributes, or {{column: attribute}}") from None
    for name in [*by_column, *by_column.values()]:
        if not isinstance(name, str) or not name:
            raise OptionError(f"attrs: expected names of attributes, found {name!r}")
    return by_column


def _in_memory(value: Any) -> pa.Table | None:
    """Return a table in memory, in memory that nobody changes; None for paths."""
    if isinstance(value, (str, os.PathLike, list, tuple)):
        return None
    try:
        if hasattr(value, "iloc") and hasattr(value, "columns"):
            table = pa.Table.from_pandas(value.copy())  # an index with a name is a column
        elif isinstance(value, pa.Table) or hasattr(value, "__arrow_c_stream__"):
            table = pa.table(value)
        else:
            return None
    except (pa.ArrowException, TypeError, ValueError) as exc:
        raise TableError(
            f"Sidecar: the table in memory cannot be read as an Arrow table: {exc}. Give each column a name "
            "of its own and one type."
        ) from exc
    unnamed = [name for name in table.column_names if name.startswith("__index_level_")]
    return table.drop_columns(unnamed).replace_schema_metadata()


def _names(option: str, value: Any) -> tuple[str, ...]:
    names = (value,) if isinstance(value, str) else tuple(value) if isinstance(value, (list, tuple)) else ()
    if not names or not all(isinstance(name, str) and name for name in names) or len(set(names)) < len(names):
        raise OptionError(f"Sidecar: {option}={value!r}: expected the name of a column, or a list of names that differ")
    return names
