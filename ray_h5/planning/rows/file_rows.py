"""Rows along the first axis, of files whose columns are made of several datasets: sparse matrices, categories."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable
from typing import Any

import numpy as np

from ray_h5.errors import CorruptFileError, RayH5Error, UnknownColumnError, UnsupportedColumnError
from ray_h5.hdf5.layout import ColumnLayout
from ray_h5.hdf5.metadata.encodings import Encoding
from ray_h5.hdf5.reader import RowReader
from ray_h5.messages import near_names
from ray_h5.planning.rows.bounds import Bounds, ChunkedBy, bounds_of_counts, bounds_of_offsets, check_inside
from ray_h5.planning.rows.cf_columns import CF_ATTRIBUTES, cf_column
from ray_h5.planning.rows.coded_columns import CategoryColumn, FieldColumn, OptionalColumn, PlainColumn, Stored
from ray_h5.planning.rows.column_kinds import Csr, Ragged, RangeColumn
from ray_h5.planning.rows.csr_column import csr_column
from ray_h5.planning.rows.range_columns import CsrColumn, RaggedColumn
from ray_h5.planning.rows.reversed_columns import reversed_column
from ray_h5.planning.rows.space import Column, Listing, RowTable

_OF_ROWS = ("layers", "obs", "obsm", "obsp")
"""The groups of an AnnData file whose members have a row for each observation."""

_HIDDEN = "__categories"
_COMPOUND_CATEGORIES = "uns/{}_categories"
"""Where AnnData before 0.7 has the categories of a field of ``obs``."""


class FileRows:
    """One file whose rows lie along the first axis of its columns, each of which may be made of several datasets.

    Parameters
    ----------
    reader : RowReader
        The open file.
    columns : sequence of Ragged or Csr
        The columns that the user described.
    table : RowTable, optional
        What is known of the rows.
    """

    def __init__(
        self,
        reader: RowReader,
        columns: Iterable[RangeColumn],
        table: RowTable | None,
        *,
        decode_cf: bool = False,
        is_reversed: bool = False,
    ) -> None:
        self._reader = reader
        self._is_reversed = is_reversed
        self._decode_cf = decode_cf
        self._made = {each.name: each for each in columns}
        self._bounds: dict[str, Bounds] = {} if table is None else dict(table.bounds)
        self._chunked: dict[str, ChunkedBy] = {} if table is None else dict(table.chunked_by)
        self._listed: Listing | None = None

    @property
    def num_rows(self) -> int:
        return 0  # each column has its own number; they are compared where they are read together

    @property
    def table(self) -> RowTable:
        return RowTable(bounds=self._bounds, chunked_by=self._chunked)

    def prepare(self, names: Iterable[str]) -> None:
        """Do nothing: the reader describes columns one by one."""

    def episode_names(self) -> np.ndarray:
        return np.empty(0, object)

    # Which columns there are ----------------------------------------------------------------------

    def listing(self) -> Listing:
        if self._listed is None:
            if self._reader.form == "loom" and not self._is_reversed:
                raise _of_loom(self._reader.path)
            names = self._names()
            refused: dict[str, Exception] = dict(self._reader.layout.refused)
            chosen = []
            for name in names:
                if name in refused or not self._is_column(name, refused):
                    continue
                chosen.append(name)
            own = set(names)
            self._listed = Listing(tuple(chosen), {name: exc for name, exc in refused.items() if name in own})
        return self._listed

    def _names(self) -> list[str]:
        """Return the names of what may be columns."""
        found = self._reader.layout
        names = [*found.columns, *found.refused]
        if self._reader.form == "10x":
            return ["matrix", "matrix/barcodes"]
        if self._reader.form == "loom":
            return [name for name in names if name.split("/")[0] in _OF_CELLS]
        return self._of_observations(names) if self._reader.form == "anndata" else names

    def _of_observations(self, datasets: Iterable[str]) -> list[str]:
        """Return what a file of AnnData has for each observation."""
        names: dict[str, None] = {}
        for path in datasets:
            first, *rest = path.split("/")
            if first == "X":
                names["X"] = None
            elif first == "raw" and rest[:1] == ["X"]:
                names["raw/X"] = None
            elif first == "raw.X":
                names["raw.X"] = None
            elif first in _OF_ROWS and rest and rest[0] != _HIDDEN:
                names[f"{first}/{rest[0]}"] = None
            elif first in _OF_ROWS and not rest:
                names.update(dict.fromkeys(self._fields(first)))
        return [each for name in names for each in self._members(name)]

    def _members(self, name: str) -> list[str]:
        """Return the columns of a table; other names as they are."""
        encoding = self._encoding(name)
        if encoding is None or encoding.kind != "frame":
            return [name]
        below = [each[len(name) + 1 :] for each in (*self._reader.layout.columns, *self._reader.layout.refused)
                 if each.startswith(f"{name}/")]  # fmt: skip
        return [f"{name}/{each}" for each in dict.fromkeys(each.split("/")[0] for each in below) if each != _HIDDEN]

    def _fields(self, name: str) -> list[str]:
        """Return the fields of a dataset of compound values, as AnnData before 0.7 wrote tables."""
        layout = self._reader.find([name])[name]
        return [] if layout.dtype.names is None else [f"{name}/{field}" for field in layout.dtype.names]

    def _is_column(self, name: str, refused: dict[str, Exception]) -> bool:
        try:
            self.column(name)
        except (UnsupportedColumnError, UnknownColumnError) as exc:
            refused[name] = exc
            return False
        return True

    def _encoding(self, name: str) -> Encoding | None:
        try:
            return self._reader.encoding(name)
        except RayH5Error:
            return None  # reading it as a dataset reports what is wrong

    # What a column is made of ---------------------------------------------------------------------

    def column(self, name: str) -> Column:
        if self._reader.form == "loom" and not self._is_reversed:
            raise _of_loom(self._reader.path)
        if self._is_reversed:
            layout = self._reader.find([name])[name]
            if len(layout.shape) == 1:
                return PlainColumn(layout)
            return reversed_column(layout, str(self._reader.values_of_attributes(name, [_CLASS]).get(_CLASS, "")))
        made = self._made.get(name.strip("/"))
        if isinstance(made, Ragged):
            return self._ragged(made)
        if isinstance(made, Csr):
            return self._csr(made, self._reader.encoding(made.group))
        plain = name.strip("/")
        parent, _, field = plain.rpartition("/")
        encoding = self._encoding(plain)
        if encoding is None and parent and not self._can_find(plain):
            return self._field(name, parent, field)
        if encoding is None:
            layout = self._reader.find([name])[name]
            decoded = self._decode_cf and cf_column(layout, self._reader.values_of_attributes(name, CF_ATTRIBUTES))
            return decoded or PlainColumn(layout)
        return self._encoded(name, encoding)

    def _can_find(self, name: str) -> bool:
        try:
            return bool(self._reader.find([name], missing_ok=True))
        except RayH5Error:
            return True  # it is there, and reading it reports the error

    def _encoded(self, name: str, encoding: Encoding) -> Column:
        if encoding.kind in {"csr", "csc", "compressed"}:
            return self._csr(Csr(name.strip("/")), encoding)
        if encoding.kind == "category":
            return self._category(name, Stored(self._dataset(encoding.values)), encoding.other)
        if encoding.kind == "optional":
            values, mask = Stored(self._dataset(encoding.values)), Stored(self._dataset(encoding.other))
            self._check_mask(name, values, mask)
            return OptionalColumn(name, values, mask, self._reader.path)
        if encoding.kind == "ragged":
            return self._awkward(name.strip("/"), encoding)
        has_columns = encoding.kind == "frame" or encoding.said in {"dict", "raw", "anndata"}
        what = "a group, not a column; its columns are below it" if has_columns else "no column of rows"
        raise UnsupportedColumnError(f"{self._reader.path}: {name!r} ({encoding.said}) is {what}")

    def _dataset(self, name: str) -> ColumnLayout:
        return self._reader.find([name])[name]

    def _check_mask(self, name: str, values: Stored, mask: Stored) -> None:
        if mask.layout.shape != values.layout.shape or mask.dtype.kind not in "biu" or len(values.layout.shape) != 1:
            raise CorruptFileError(
                f"{self._reader.path}: column {name!r}: expected as many values as entries of its mask, found "
                f"{values.layout.shape} and {mask.dtype} {mask.layout.shape}"
            )

    def _category(self, name: str, codes: Stored, categories: str) -> CategoryColumn:
        layout = self._dataset(categories)
        if layout.row_shape or layout.kind not in {"number", "bool", "string"}:
            raise UnsupportedColumnError(
                f"{layout.where} has {layout.kind} values of shape {layout.row_shape}; expected the categories of "
                f"{name!r}: one number or text for each"
            )
        if codes.dtype.kind not in "iu" or codes.layout.row_shape:
            raise CorruptFileError(
                f"{self._reader.path}: column {name!r}: expected integers as codes, found {codes.dtype} of shape "
                f"{codes.layout.shape}"
            )
        return CategoryColumn(name, codes, self._reader.read([categories])[categories], self._reader.path)

    def _field(self, name: str, parent: str, field: str) -> Column:
        """Return a field of compound values, as AnnData before 0.7 wrote tables."""
        found: dict[str, ColumnLayout] = {}
        with contextlib.suppress(UnsupportedColumnError):  # a group
            found = self._reader.find([parent], missing_ok=True)
        names = found[parent].dtype.names if parent in found else None
        if self._reader.form == "anndata" and names is None:
            known = self._names() if parent.split("/", maxsplit=1)[0] in _OF_ROWS else list(self._reader.layout.columns)
            raise UnknownColumnError(f"{self._reader.path}: no {name!r}.{near_names(name, known)}")
        if names is None:
            return PlainColumn(self._reader.find([name])[name])  # raises, with near names
        if field not in names:
            raise UnknownColumnError(
                f"{self._reader.path}: no field {field!r} in {parent!r}.{near_names(field, list(names))}"
            )
        stored, categories = Stored(found[parent], field), _COMPOUND_CATEGORIES.format(field)
        if stored.dtype.shape or stored.dtype.kind not in "biufSO":
            raise UnsupportedColumnError(
                f"{self._reader.path}: field {field!r} of {parent!r} holds {stored.dtype}; expected one number or text"
            )
        if stored.dtype.kind in "iu" and self._reader.find([categories], missing_ok=True):
            return self._category(name, stored, categories)
        return FieldColumn(name, stored)

    # Ranges ---------------------------------------------------------------------------------------

    def _ragged(self, made: Ragged) -> RaggedColumn:
        where = f"{self._reader.path}: column {made.name!r}"
        stored = self._dataset(made.content)
        if made.offsets is not None:
            key, bounds = self._offsets(made.offsets)
        else:
            assert made.starts is not None
            assert made.counts is not None
            key = f"{made.starts}\n{made.counts}"
            if key not in self._bounds:
                found = self._reader.read([made.starts])[made.starts], self._reader.read([made.counts])[made.counts]
                self._bounds[key] = bounds_of_counts(*found, f"{where}, {made.starts!r} and {made.counts!r}")
            bounds = self._bounds[key]
        check_inside(bounds, stored.num_rows, where, made.content)
        self._chunked[made.name] = ChunkedBy(key, stored.chunk_rows)
        return RaggedColumn(made.name, made.content, stored, bounds)

    def _offsets(self, name: str) -> tuple[str, Bounds]:
        if name not in self._bounds:
            layout = self._dataset(name)
            if layout.row_shape or layout.dtype.kind not in "iu":
                raise UnsupportedColumnError(
                    f"{layout.where} has {layout.dtype} of shape {layout.shape}; expected integers along one axis, the "
                    "first value of each row and the end of the last one"
                )
            self._bounds[name] = bounds_of_offsets(self._reader.read([name])[name], f"{self._reader.path}: {name!r}")
        return name, self._bounds[name]

    def _csr(self, made: Csr, encoding: Encoding | None) -> CsrColumn:
        found, self._chunked[made.group] = csr_column(self._reader, made, encoding, self._offsets, self.column)
        return found

    def _awkward(self, name: str, encoding: Encoding) -> Column:
        """Return an array of awkward with one level of lists."""
        keys: list[str] = []
        with contextlib.suppress(ValueError, KeyError, TypeError, RecursionError):
            form: Any = json.loads(encoding.text)
            if form["class"] == "ListOffsetArray" and form["content"]["class"] == "NumpyArray":
                keys = [f"{form['form_key']}", f"{form['content']['form_key']}"]
        if not keys:
            raise UnsupportedColumnError(
                f"{self._reader.path}: {name!r} is an awkward array of another form than one level of lists of "
                "numbers. Write it as such arrays, or leave it out with columns=[...]."
            )
        made = Ragged(f"{name}/{keys[1]}-data", f"{name}/{keys[0]}-offsets")
        found = self._ragged(made)
        self._chunked[name] = self._chunked.pop(made.name)
        return RaggedColumn(name, found.content, found.stored, found.bounds)


_OF_CELLS = ("matrix", "layers", "col_attrs")
_CLASS = "MATLAB_class"


def _of_loom(path: str) -> UnsupportedColumnError:
    return UnsupportedColumnError(
        f"{path} is a loom file: its matrix has genes along the first axis and cells along the last. Pass "
        "axes='reversed' to read cells as rows."
    )
