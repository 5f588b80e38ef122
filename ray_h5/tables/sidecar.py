"""Tables beside the files, as users name them."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any, Literal

from ray_h5.errors import OptionError
from ray_h5.options import as_bytes, as_integer, names_options, require
from ray_h5.storage.local import PathLike


@names_options
@dataclass(frozen=True, slots=True)
class Sidecar:
    """A table in CSV or Parquet beside the files. Its columns join the rows by a key, while planning.

    Predicates, `kfold` and weights may name its columns, and rows are delivered with them. By default these are the
    columns with one value a line, except the key; of Parquet, other columns stay unread unless they are named. Columns
    with an array a line are delivered if ``columns=[...]`` names them.

    Parameters
    ----------
    path : str, path-like, or a sequence of them
        The table: a file, or several with the same columns, also by a folder or a glob. Lines of CSV begin with a
        header.
    on : str or sequence of str
        The column of the files that has the key of each row. If the files have no such column, ``"path"`` is the file
        of a row, ``"group"`` its group (with ``rows=Groups(...)``), ``"row"`` its number in its file, and ``"row_id"``
        its number in all files, as `include_row_ids` delivers it. With windows, ``"step"`` is the number of its step in
        its file, as `include_steps` delivers it; ``"row"`` is that, too. Several names are a key of several parts.
        Paths and groups may be given by their last parts, and files without their ending.
    key : str or sequence of str, optional
        The column of the table that has the key of each line; by default it has the name `on`. A table without a column
        ``row_id``, ``row`` or ``step`` has a line for each row, in order; for each step of the file by the last two.
    missing : {"error", "null", "drop"}
        What happens to rows whose key is not in the table: an error, no values, or the rows are left out.
    prefix : str
        Put before the names of the columns of the table: ``"labels/"``.
    types : mapping of str to str or dtype, optional
        Types of columns of CSV, by their names in the table: ``{"zip": str}`` keeps the text ``"00501"``. By default
        they follow from the values. Keys have the type that the files have.
    delimiter : str, optional
        What separates the fields of CSV. By default a comma, or a tab in ``.tsv``.
    max_rows : int
        The most lines that the table may have.
    max_bytes : int or str
        The most bytes that the columns which are read may take in memory, such as ``"8GiB"``. A small file can hold
        much more: CSV may be compressed, and Parquet stores equal values once. A larger table is an error before it is
        taken into memory.

    Raises
    ------
    OptionError
        If an argument has a value that cannot be used.

    Examples
    --------
    >>> Sidecar("labels.csv", on="guid").missing
    'error'
    """

    path: PathLike | Sequence[PathLike]
    _: KW_ONLY
    on: str | Sequence[str]
    key: str | Sequence[str] | None = None
    missing: Literal["error", "null", "drop"] = "error"
    prefix: str = ""
    types: Mapping[str, Any] | None = None
    delimiter: str | None = None
    max_rows: int = 50_000_000
    max_bytes: int | str = "2GiB"

    def __post_init__(self) -> None:
        paths = [self.path] if isinstance(self.path, (str, os.PathLike)) else self.path
        if not (isinstance(paths, Sequence) and paths and all(isinstance(p, (str, os.PathLike)) and p for p in paths)):
            raise OptionError(f"Sidecar: path={self.path!r}: expected the path of a table, or a list of them")
        object.__setattr__(self, "on", _names("on", self.on))
        object.__setattr__(self, "key", self.on if self.key is None else _names("key", self.key))
        option, keys = f"Sidecar: on={list(self.on)}, key", list(self.keys)
        require(len(self.on) == len(keys), option, keys, "a column of the table for each column of the files")
        is_known = self.missing in ("error", "null", "drop")
        require(is_known, "Sidecar: missing", self.missing, "'error', 'null' or 'drop'")
        require(isinstance(self.prefix, str), "Sidecar: prefix", self.prefix, "a text, such as 'labels/'")
        is_mapping, expected = isinstance(self.types, (Mapping, type(None))), "{column: type}, such as {'zip': str}"
        require(is_mapping, "Sidecar: types", self.types, expected)
        is_one = self.delimiter is None or (isinstance(self.delimiter, str) and len(self.delimiter) == 1)
        require(is_one, "Sidecar: delimiter", self.delimiter, "one character, such as ';'")
        object.__setattr__(self, "max_rows", as_integer("Sidecar: max_rows", self.max_rows, 1))
        object.__setattr__(self, "max_bytes", as_bytes("Sidecar: max_bytes", self.max_bytes))

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


def _names(option: str, value: Any) -> tuple[str, ...]:
    names = (value,) if isinstance(value, str) else tuple(value) if isinstance(value, (list, tuple)) else ()
    if not names or not all(isinstance(name, str) and name for name in names) or len(set(names)) < len(names):
        raise OptionError(f"Sidecar: {option}={value!r}: expected the name of a column, or a list of names that differ")
    return names
