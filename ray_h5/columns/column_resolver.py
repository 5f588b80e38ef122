"""The columns of a file, each made of one or several datasets: sparse matrices, categories, packed numbers."""

from __future__ import annotations

import contextlib
import copy
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np

from ray_h5.columns.columns import Columns, Parts
from ray_h5.columns.conventions.anndata_columns import OF_ROWS, check_tables, listed_names
from ray_h5.columns.conventions.cf_columns import CF_ATTRIBUTES, cf_values
from ray_h5.columns.conventions.coded_columns import category, optional
from ray_h5.columns.conventions.matlab_columns import referred_values, reversed_values
from ray_h5.columns.conventions.pandas_columns import pandas_values
from ray_h5.columns.derived_columns import Csr, Fields, JoinedColumn, MadeColumn, Ragged
from ray_h5.columns.ragged.bounds import Bounds, bounds_in, episodes_key
from ray_h5.columns.ragged.csr_groups import checked_encoding
from ray_h5.columns.ragged.range_columns import SparseRows
from ray_h5.columns.row_table import Listing, RowTable
from ray_h5.columns.stored_values import Stored, stored_fields
from ray_h5.columns.values import Values
from ray_h5.errors import RayH5Error, SchemaMismatchError, UnknownColumnError, UnsupportedColumnError
from ray_h5.hdf5.groups.matching_groups import GroupPattern
from ray_h5.hdf5.tree.tree import lost_fields
from ray_h5.likely_rows.alike import pattern_of
from ray_h5.manifest.joined_arrays import GroupTable, JoinedArray, Paths, Texts
from ray_h5.manifest.layout import ColumnLayout, Encoding, FileLayout, Form
from ray_h5.messages import near_names
from ray_h5.read.length_errors import groups_with
from ray_h5.read.reader import RowReader

_CLASS = "MATLAB_class"
_EMPTY = "MATLAB_empty"
"""Attribute that MATLAB writes: what values are."""

THE_FILE = Paths(Texts.of([b""]))
"""The paths of a file that is one part."""

_COMPOUND_CATEGORIES = "uns/{}_categories"
"""Where AnnData before 0.7 has the categories of a field of ``obs``."""


class FileColumns(Columns):
    """The columns of one file. Each has one value for each index of its first axis.

    Parameters
    ----------
    reader : RowReader
        The open file.
    columns : sequence of MadeColumn
        The columns that the user described.
    table : RowTable, optional
        What is known of the rows.
    decode_cf, is_reversed : bool
        As the user says.
    """

    def __init__(
        self,
        reader: RowReader,
        columns: Iterable[MadeColumn] = (),
        table: RowTable | None = None,
        *,
        decode_cf: bool = False,
        is_reversed: bool = False,
    ) -> None:
        super().__init__(reader, columns, table, decode_cf=decode_cf)
        self._is_reversed = is_reversed
        self.many: dict[str, GroupTable] = {} if table is None else dict(table.joined)
        self._listed: Listing | None = None
        self._layout: FileLayout | None = None
        self._known: dict[str, Values] = {}
        self._without_axes: dict[str, JoinedArray | None] = {}
        whole = None if table is None else table.groups
        self.as_arrays: dict[str, JoinedArray] = {} if whole is None else dict(whole.columns)

    @cached_property
    def _form(self) -> Form:
        return self.reader.form

    def table(self, **others: Any) -> RowTable:
        return RowTable(bounds=self.bounds, chunked_by=self.chunked, joined=self.many, **others)

    # Which columns there are ----------------------------------------------------------------------

    def listing(self) -> Listing:
        if self._listed is None:
            if self._form == "loom" and not self._is_reversed:
                raise _of_loom(self.path)
            self._layout = self.reader.layout
            names = self._names()
            if self._form == "anndata":
                check_tables(self.reader, names)
            refused: dict[str, Exception] = dict(self._layout.refused)
            chosen = []
            for name in names:
                error = refused.get(name)
                is_encoded = isinstance(error, UnsupportedColumnError) and error.is_encoded
                if (error is not None and not is_encoded) or not self._is_column(name, refused):
                    continue
                chosen.append(name)
            own = set(names)
            self._listed = Listing(tuple(chosen), {name: exc for name, exc in refused.items() if name in own})
        return self._listed

    def _names(self) -> list[str]:
        """Return the names of what may be columns."""
        if not self._form:
            return [*self.reader.layout.columns, *self.reader.layout.refused]
        return listed_names(self.reader, self._form, self._encoding)

    def _is_column(self, name: str, refused: dict[str, Exception]) -> bool:
        try:
            self.values(name)
        except (UnsupportedColumnError, UnknownColumnError) as exc:
            refused[name] = exc
            return False
        refused.pop(name, None)
        return True

    def single(self, name: str) -> Stored | None:
        """Return a dataset that has a single value, as one unit; None if it has axes, or does not exist.

        Raises
        ------
        UnsupportedColumnError
            If the value is no number or text.
        """
        joined = self._dataset_without_axes(name)
        if joined is None or not joined.single:
            return None
        if (unit := joined.unit).kind not in {"number", "bool", "string"}:
            raise UnsupportedColumnError(f"{unit.where} holds a single {unit.kind} value; expected a number or text")
        return Stored.of(joined)

    def bytes_of(self, name: str) -> JoinedArray | None:
        """Return a single opaque value as the array of its bytes; None if it is none."""
        joined = self._dataset_without_axes(name)
        return None if joined is None or joined.single else joined

    def _dataset_without_axes(self, name: str) -> JoinedArray | None:
        if (dataset := self.dataset_of(name)) not in self._without_axes:
            self._without_axes[dataset] = self._single(dataset)
        return self._without_axes[dataset]

    def _single(self, name: str) -> JoinedArray | None:
        if self._layout is not None and name in self._layout.columns:
            return None
        error = None if self._layout is None else self._layout.refused.get(name)
        if error is None:
            try:
                self.reader.find([name], missing_ok=True)
            except UnsupportedColumnError as exc:
                error = exc
        if error is None or not is_single(error) or any(character in name for character in "*?["):
            return None
        return self.reader.single(name)

    # The one part that a file is ------------------------------------------------------------------

    def parts(self, name: str) -> Parts:
        if (single := self.single(name)) is not None:
            return Parts.of_file(single, is_single=True)
        return Parts.of_file(self.of_units(name, self.values(name)))

    def datasets(self, name: str) -> tuple[Values, JoinedArray]:
        single = self.single(name)
        joined = self.bytes_of(name) if single is None else single.address
        if isinstance(joined, JoinedArray):
            if single is None:
                self.as_arrays[name] = joined
            return single or Stored.of(joined), joined
        values = self.values(name)
        return values, self._one(name, values.array)

    def _one(self, name: str, array: ColumnLayout) -> JoinedArray:
        """Return a column as a joined array of one dataset."""
        if name not in self.as_arrays:
            shapes, none = np.array([array.shape], np.int64), np.array([-1])
            self.as_arrays[name] = JoinedArray(name, THE_FILE, (array,), np.zeros(1, np.int32), shapes, none)
        return self.as_arrays[name]

    def has(self, name: str) -> bool:
        try:
            return self.single(name) is not None or bool(self.reader.find([name], missing_ok=True))
        except UnsupportedColumnError:
            return False

    def groups_with(self, name: str) -> tuple[list[str], str]:
        """Return the groups of the file that have a column of this name below them, and a pattern of them."""
        known = self.listing().names
        groups = groups_with(name, known)
        return groups, pattern_of(groups) if groups else ""

    def below(self, group: str, paths: Mapping[str, str]) -> FileColumns:
        """Return the columns of one group of the file; `paths` are the datasets of names that are not below it."""
        columns = copy.copy(self)
        columns.path_of = lambda name: paths.get(name.strip("/")) or f"{group}/{name.strip('/')}".strip("/")
        columns._known, columns._without_axes = {}, {}
        return columns

    def group_table(self, pattern: str | Mapping[str, str], names: Sequence[str]) -> GroupTable:
        """Return the groups that match a pattern, or a pattern of each column, and have datasets of these names."""
        patterns = pattern if isinstance(pattern, str) else tuple(pattern.items())
        return self.reader.group_table(GroupPattern(patterns, missing="never"), names)[0]

    # What a column is made of ---------------------------------------------------------------------

    def values(self, name: str) -> Values:
        """Return the values of a column; raise `UnknownColumnError` if there is none."""
        if name not in self._known:
            self._known[name] = self._values(name)
        return self._known[name]

    def _values(self, name: str) -> Values:
        if self._form == "loom" and not self._is_reversed:
            raise _of_loom(self.path)
        column, name = name, self.dataset_of(name)
        if self._is_reversed:
            if (encoding := self._encoding(name.strip("/"))) is not None and encoding.kind == "references":
                return self._referred(name)
            layout = self._dataset(name)
            if len(layout.shape) == 1:
                if self.reader.values_of_attributes(name, [_EMPTY]):
                    raise UnsupportedColumnError(
                        f"{layout.where} is an empty array of MATLAB: the file holds its shape, and it has no rows"
                    )
                return Stored.of(layout)
            return reversed_values(layout, str(self.reader.values_of_attributes(name, [_CLASS]).get(_CLASS, "")))
        made = self.whole(column)
        if isinstance(made, Ragged):
            return self.ragged(made)
        if isinstance(made, JoinedColumn):
            return self._end_to_end(made)
        if isinstance(made, Fields):
            return stored_fields(self._dataset(name), made.names, made.name)
        if isinstance(made, Csr):
            return self.csr(made)
        values = self._named(name)
        if column != name and name in self.chunked:
            self.chunked[column] = self.chunked[name]
        return values

    def _named(self, name: str) -> Values:
        """Return the values of a column that the user names, and nothing more."""
        if not self._form and not self.reader.is_fetched:  # a plan knows what names encode, and no dataset of those
            listed = None if self._layout is None else self._layout.columns.get(name)
            if listed is None or listed.sources:
                listed = self._find(name)
            if listed is not None:
                return self._decoded(listed)
        plain = name.strip("/")
        encoding = self._encoding(plain)
        if self._form == "pandas" and not self._can_find(plain) and (in_pandas := self._in_pandas(plain)) is not None:
            return in_pandas
        if encoding is None and ("/" in plain or self._form == "anndata") and not self._can_find(plain):
            return self._field(name)
        if encoding is None:
            return self._decoded(self._dataset(name))
        return self._encoded(name, encoding)

    def _find(self, name: str) -> ColumnLayout | None:
        """Return a dataset; None if there is none of that name, or what there is encodes something."""
        try:
            return self.reader.find([name], missing_ok=True).get(name)
        except UnsupportedColumnError as exc:
            if not exc.is_encoded:
                raise
            return None

    def _decoded(self, layout: ColumnLayout) -> Values:
        stored = Stored.of(layout)
        if not self.decode_cf:
            return stored
        return cf_values(stored, self.reader.values_of_attributes(layout.name, CF_ATTRIBUTES)) or stored

    def _can_find(self, name: str) -> bool:
        try:
            return self._find(name) is not None
        except RayH5Error:
            return True  # it reports the error when it is read

    def _in_pandas(self, name: str) -> Values | None:
        """Return a column of a table of pandas; None for other names."""
        parts = name.split("/")
        for count in range(len(parts)):
            encoding = self._encoding(frame := "/".join(parts[:count]))
            if encoding is not None and encoding.kind == "pandas":
                return pandas_values(self.reader, encoding, frame, "/".join(parts[count:]))
        return None

    def _encoded(self, name: str, encoding: Encoding) -> Values:
        if encoding.kind in {"csr", "csc", "compressed"}:
            return self.csr(Csr(name.strip("/")))
        if encoding.kind in {"category", "optional"}:
            stored = Stored.of(self._dataset(encoding.values))
            if encoding.kind == "category":
                return category(self.reader, name, stored, encoding.other)
            return optional(self.reader, name, stored, encoding.other)
        if encoding.kind == "references":
            return self._referred(name)
        if encoding.kind == "ragged":
            return self.ragged(_of_awkward(self.path, name.strip("/"), encoding))
        has_columns = encoding.kind in {"frame", "pandas"} or encoding.said in {"dict", "raw", "anndata"}
        what = "a group, not a column; its columns are below it" if has_columns else "no column of rows"
        raise UnsupportedColumnError(f"{self.path}: {name!r} ({encoding.said}) is {what}")

    def csr(self, made: Csr) -> SparseRows:
        checked_encoding(self.path, made, made.group, self.reader.encoding(made.group))
        return super().csr(made)

    def _plain_parts(self, name: str) -> Parts:
        return Parts.of_file(self._named(name))

    def _datasets(self, name: str, pattern: str) -> GroupTable:
        """Return the datasets that a column consists of."""
        if name not in self.many:
            table, refused = self.reader.group_table(GroupPattern(pattern, name=name), [])
            if name in refused:
                raise refused[name]
            self.many[name] = table
        return self.many[name]

    def _end_to_end(self, made: JoinedColumn) -> Values:
        """Return the values of the datasets that match a pattern, one after the other."""
        table = self._datasets(made.name, made.pattern)
        joined, what = table.columns.get(made.name), f"groups, such as {table.names[0]!r}"
        if joined is not None and not joined.single and (shape := joined.unit_shape) is not None:
            layout = replace(joined.unit, name=made.name, shape=(int(joined.starts[-1]), *shape))
            return Stored(layout, joined, name=made.name)
        if joined is not None:
            what = "datasets with single values" if joined.single else "datasets with rows of several shapes"
        raise UnsupportedColumnError(
            f"{self.path}: {made}: these are {what}; expected datasets with rows of one shape. For a row a dataset, "
            f"pass rows=ray_h5.Groups({made.pattern!r})."
        )

    def _referred(self, name: str) -> Values:
        """Return the values that references lead to."""
        try:
            table = self._datasets(name, name.strip("/"))
        except SchemaMismatchError as exc:
            raise UnsupportedColumnError(*exc.args) from None
        return referred_values(self.path, name, table, is_reversed=self._is_reversed)

    def _dataset(self, name: str) -> ColumnLayout:
        return self.reader.find([name])[name]

    def _compound(self, path: str) -> tuple[ColumnLayout, str] | None:
        """Return the dataset of compound values that a path leads through, and the rest of the path: its field."""
        parts = path.split("/")
        for count in range(len(parts) - 1, 0, -1):
            with contextlib.suppress(UnsupportedColumnError):
                if (located := self._find("/".join(parts[:count]))) is not None:
                    return located, "/".join(parts[count:])
        return None

    def _field(self, name: str) -> Values:
        """Return a field of compound values."""
        compound = self._compound(name.strip("/"))
        if self._form == "anndata":
            return self._field_of_anndata(name, compound)
        if compound is None or compound[0].dtype.names is None:
            return self._decoded(self._find_field(name))  # raises, with near names
        for lost, error in lost_fields(compound[0]):
            if f"{name.strip('/')}/".startswith(f"{lost}/"):
                raise error
        return stored_fields(compound[0], (compound[1],), name, is_one=True)

    def _find_field(self, name: str) -> ColumnLayout:
        """Raise the error of a field whose dataset cannot be read: that of the dataset."""
        try:
            return self._dataset(name)
        except UnsupportedColumnError as exc:
            parent = name.rpartition("/")[0]
            if exc.is_encoded and parent:
                self._find_field(parent)
            raise

    def _field_of_anndata(self, name: str, compound: tuple[ColumnLayout, str] | None) -> Values:
        """Return a field of a table as AnnData before 0.7 wrote it: of ``obs``, it may have codes of categories."""
        parent = name.strip("/").rpartition("/")[0]
        if compound is None or compound[0].dtype.names is None:
            of_rows = parent.split("/", maxsplit=1)[0] in {"", *OF_ROWS}
            known = self._names() if of_rows else [*self.reader.layout.columns]
            raise UnknownColumnError(f"{self.path}: no {name!r}.{near_names(name, known)}")
        layout, field = compound
        stored = stored_fields(layout, (field,), name, is_one=True)
        if layout.name.strip("/") not in OF_ROWS:
            return stored
        if stored.array.row_shape or stored.dtype.kind not in "biufSO":
            raise UnsupportedColumnError(
                f"{self.path}: field {field!r} of {parent!r} holds {stored.dtype}; expected one number or text"
            )
        categories = _COMPOUND_CATEGORIES.format(field)
        if stored.dtype.kind in "iu" and self.reader.find([categories], missing_ok=True):
            return category(self.reader, name, stored, categories)
        return stored

    def episode_bounds(self, name: str) -> Bounds:
        """Return where episodes begin and end, as pairs say."""
        if (key := episodes_key(name)) not in self.bounds:
            (pairs,) = self._plain_parts(name).read(self.reader)
            self.bounds[key] = bounds_in({"bounds": pairs}, f"{self.path}: {name!r}")
        return self.bounds[key]


def _of_awkward(path: str, name: str, encoding: Encoding) -> Ragged:
    """Return the column that an array of awkward with one level of lists is; `path` is the file."""
    with contextlib.suppress(ValueError, KeyError, TypeError, RecursionError):
        form: Any = json.loads(encoding.text)
        if form["class"] == "ListOffsetArray" and form["content"]["class"] == "NumpyArray":
            content, offsets = f"{form['content']['form_key']}", f"{form['form_key']}"
            return Ragged(f"{name}/{content}-data", f"{name}/{offsets}-offsets", called=name)
    raise UnsupportedColumnError(
        f"{path}: {name!r} is an awkward array of another form than one level of lists of numbers. Write it as such "
        "arrays, or leave it out with columns=[...]."
    )


def is_single(error: Exception) -> bool:
    """Return whether a column is refused because it has a single value."""
    return getattr(error, "has_rows", True) is None


def _of_loom(path: str) -> UnsupportedColumnError:
    return UnsupportedColumnError(
        f"{path} is a loom file: its matrix has genes along the first axis and cells along the last. Pass "
        "axes='reversed' to read cells as rows."
    )
