"""The columns of a file, each made of one or several datasets: sparse matrices, categories, packed numbers."""

from __future__ import annotations

import contextlib
import copy
import json
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from ray_h5.columns.column_resolver import Columns, Source
from ray_h5.columns.conventions.cf_columns import CF_ATTRIBUTES
from ray_h5.columns.conventions.coded_columns import category
from ray_h5.columns.conventions.matlab_columns import referred_values, reversed_values
from ray_h5.columns.conventions.tables_of_programs import OF_ROWS, check_tables, listed_names, pandas_values
from ray_h5.columns.derived_columns import Csr, JoinedColumn, MadeColumn, Ragged
from ray_h5.columns.ragged.csr_groups import SPARSE, SparseRows, checked_encoding
from ray_h5.columns.row_table import Listing, RowTable
from ray_h5.columns.stored_values import Stored
from ray_h5.columns.values import Values
from ray_h5.errors import RayH5Error, SchemaMismatchError, UnknownColumnError, UnsupportedColumnError
from ray_h5.hdf5.groups.matching_groups import GroupPattern
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
    is_reversed : bool
        Whether rows lie along the last axis; the others are those of `Columns`.
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
        self._singles: dict[str, JoinedArray | None] = {}
        whole = None if table is None else table.groups
        self.as_arrays: dict[str, JoinedArray] = {} if whole is None else dict(whole.columns)

    @cached_property
    def _form(self) -> Form:
        """The kind of file; raises for one whose rows lie along another axis."""
        if (form := self.reader.form) == "loom" and not self._is_reversed:
            raise UnsupportedColumnError(
                f"{self.path} is a loom file: its matrix has genes along the first axis and cells along the last. Pass "
                "axes='reversed' to read cells as rows."
            )
        return form

    def table(self, **others: Any) -> RowTable:
        return RowTable(bounds=self.bounds, chunked_by=self.chunked, joined=self.many, **others)

    # Which columns there are ----------------------------------------------------------------------

    def listing(self) -> Listing:
        if self._listed is None:
            form, self._layout = self._form, self.reader.layout
            names = self._names()
            if form == "anndata":
                check_tables(self.reader, names)
            refused: dict[str, Exception] = dict(self._layout.refused)
            chosen = []
            for name in names:
                if not getattr(refused.get(name), "is_encoded", name not in refused):
                    continue
                try:
                    self.values(name)
                    chosen.append(name)
                except (UnsupportedColumnError, UnknownColumnError) as exc:
                    refused[name] = exc
            own = {*names} - {*chosen}
            self._listed = Listing(tuple(chosen), {name: exc for name, exc in refused.items() if name in own})
        return self._listed

    def _names(self) -> list[str]:
        """Return the names of what may be columns."""
        if not self._form:
            return [*self.reader.layout.columns, *self.reader.layout.refused]
        return listed_names(self.reader, self._form, self.encoding)

    def single(self, name: str) -> Stored | None:
        """Return a dataset that has a single value, as one unit; None if it has axes, or does not exist.

        Raises
        ------
        UnsupportedColumnError
            If the value is no number or text.
        """
        joined = self._without_axes(name)
        if joined is None or not joined.single:
            return None
        if (unit := joined.unit).kind not in {"number", "bool", "string"}:
            raise UnsupportedColumnError(f"{unit.where} holds a single {unit.kind} value; expected a number or text")
        return Stored.of(joined)

    def _without_axes(self, name: str) -> JoinedArray | None:
        """Return a dataset with a single value; of an opaque value, the array of its bytes. None if it has axes."""
        if (dataset := self.dataset_of(name)) not in self._singles:
            error = None if self._layout is None else self._layout.refused.get(dataset)
            if error is None and (self._layout is None or dataset not in self._layout.columns):
                try:
                    self.reader.find([dataset], missing_ok=True)
                except UnsupportedColumnError as exc:
                    error = exc
            is_one = error is not None and is_single(error) and not {*"*?["} & {*dataset}
            self._singles[dataset] = self.reader.single(dataset) if is_one else None
        return self._singles[dataset]

    # The one part that a file is ------------------------------------------------------------------

    def joined(self, values: Values) -> JoinedArray:
        array = values.array
        shapes, none = np.array([array.shape], np.int64), np.array([-1])
        return JoinedArray(array.name, THE_FILE, (array,), np.zeros(1, np.int32), shapes, none)

    def datasets(self, name: str) -> tuple[Values, JoinedArray]:
        single, one = self.single(name), self._without_axes(name)
        values, joined = super().datasets(name) if one is None else (Stored.of(one), one)
        if single is None:
            self.as_arrays[name] = joined
        return values, joined

    def has(self, name: str) -> bool:
        try:
            return self.single(name) is not None or self.plain(self.dataset_of(name)) is not None
        except UnsupportedColumnError:
            return False  # a single value that no column has

    def groups_with(self, name: str) -> tuple[list[str], str]:
        """Return the groups of the file that have a column of this name below them, and a pattern of them."""
        groups = groups_with(name, self.listing().names)
        return groups, pattern_of(groups) if groups else ""

    def below(self, group: str, paths: Mapping[str, str]) -> FileColumns:
        """Return the columns of one group of the file; `paths` are the datasets of names that are not below it."""
        columns = copy.copy(self)
        columns.path_of = lambda name: paths.get(name.strip("/")) or f"{group}/{name.strip('/')}".strip("/")
        columns._values, columns._singles = {}, {}
        return columns

    def group_table(self, pattern: str | Mapping[str, str], names: Sequence[str]) -> GroupTable:
        """Return the groups that match a pattern, or a pattern of each column, and have datasets of these names."""
        patterns = pattern if isinstance(pattern, str) else tuple(pattern.items())
        return self.reader.group_table(GroupPattern(patterns, missing="never"), names)[0]

    # What the file says ---------------------------------------------------------------------------

    def source(self, path: str) -> ColumnLayout:
        try:
            return self.reader.column(path)
        except UnsupportedColumnError as exc:
            parent = path.rpartition("/")[0]
            if exc.is_encoded and parent and self.encoding(path) is None:
                self.source(parent)  # of a field, the error of its dataset
            raise

    def plain(self, path: str) -> ColumnLayout | None:
        # A plan of a file in a store knows what names encode, and the datasets that were asked for.
        is_fetched = self.reader.is_fetched
        if (self._form or is_fetched) and self.encoding(path) is not None:
            return None
        listed = None if self._layout is None or is_fetched else self._layout.columns.get(path)
        if listed is not None and not listed.sources:
            return listed
        try:
            return self.reader.find([path], missing_ok=True).get(path)
        except UnsupportedColumnError as exc:
            if not exc.is_encoded:
                raise
            return None

    def encoding(self, path: str) -> Encoding | None:
        try:
            encoding = self.reader.encoding(path.strip("/"))
        except RayH5Error:
            return None  # reading it as a dataset reports what is wrong
        is_read = not self._is_reversed or encoding is None or encoding.kind == "references"
        return encoding if is_read else None

    def attributes(self, source: Source) -> tuple[list[Mapping[str, Any]], np.ndarray]:
        return [self.reader.values_of_attributes(source.name, CF_ATTRIBUTES)], np.zeros(1, np.int64)

    # What a name means ----------------------------------------------------------------------------

    def _described(self, name: str) -> Values:
        made, _ = self.whole(name), self._form
        if not isinstance(made, JoinedColumn):
            return super()._described(name)
        # The datasets that match a pattern, one after the other.
        table = self._datasets(made.name, made.pattern)
        joined, what = table.columns.get(made.name), f"groups, such as {table.names[0]!r}"
        if joined is not None and not joined.single and joined.unit_shape is not None:
            return Stored.end_to_end(made.name, joined)
        if joined is not None:
            what = "datasets with single values" if joined.single else "datasets with rows of several shapes"
        raise UnsupportedColumnError(
            f"{self.path}: {made}: these are {what}; expected datasets with rows of one shape. For a row a dataset, "
            f"pass rows=ray_h5.Groups({made.pattern!r})."
        )

    def _decoded(self, source: Source) -> Values:
        if not self._is_reversed or not isinstance(source, ColumnLayout):
            return super()._decoded(source)
        said = self.reader.values_of_attributes(source.name, [_CLASS, _EMPTY])
        if len(source.shape) > 1:
            return reversed_values(source, str(said.get(_CLASS, "")))
        if _EMPTY in said:
            raise UnsupportedColumnError(
                f"{source.where} is an empty array of MATLAB: the file holds its shape, and it has no rows"
            )
        return Stored.of(source)

    def _encoded(self, path: str, encoding: Encoding, name: str) -> Values:
        if encoding.kind in {"category", "optional", *SPARSE}:
            return super()._encoded(path, encoding, name)
        if encoding.kind == "references":
            try:
                table = self._datasets(path, path.strip("/"))
            except SchemaMismatchError as exc:
                raise UnsupportedColumnError(*exc.args) from None
            return referred_values(self.path, path, table, is_reversed=self._is_reversed)
        if encoding.kind == "ragged":
            return self.ragged(self._of_awkward(path.strip("/"), encoding, name))
        has_columns = encoding.kind in {"frame", "pandas"} or encoding.said in {"dict", "raw", "anndata"}
        what = "a group, not a column; its columns are below it" if has_columns else "no column of rows"
        raise UnsupportedColumnError(f"{self.path}: {path!r} ({encoding.said}) is {what}")

    def csr(self, made: Csr) -> SparseRows:
        checked_encoding(self.reader, made, made.group)
        return super().csr(made)

    def _datasets(self, name: str, pattern: str) -> GroupTable:
        """Return the datasets that a column consists of."""
        if name not in self.many:
            table, refused = self.reader.group_table(GroupPattern(pattern, name=name), [])
            if name in refused:
                raise refused[name]
            self.many[name] = table
        return self.many[name]

    def _of_awkward(self, group: str, encoding: Encoding, name: str) -> Ragged:
        """Return the column that an array of awkward with one level of lists is."""
        with contextlib.suppress(ValueError, KeyError, TypeError, RecursionError):
            form: Any = json.loads(encoding.text)
            if form["class"] == "ListOffsetArray" and form["content"]["class"] == "NumpyArray":
                content, offsets = f"{form['content']['form_key']}", f"{form['form_key']}"
                return Ragged(f"{group}/{content}-data", f"{group}/{offsets}-offsets", called=name)
        raise UnsupportedColumnError(
            f"{self.path}: {group!r} is an awkward array of another form than one level of lists of numbers. Write it "
            "as such arrays, or leave it out with columns=[...]."
        )

    def _field(self, path: str, name: str) -> Values:
        """Return a field of compound values, or a column of a table, as the kind of file has it."""
        if self._is_reversed:
            return self._decoded(self.source(path))
        parts = path.strip("/").split("/")
        for count in range(len(parts)) if self._form == "pandas" else ():
            encoding = self.encoding(frame := "/".join(parts[:count]))
            if encoding is not None and encoding.kind == "pandas":
                return pandas_values(self.reader, encoding, frame, "/".join(parts[count:]))
        parent = "/".join(parts[:-1])
        if self._form == "anndata" and self._compound("/".join(parts)) is None:
            of_rows = parts[0] in OF_ROWS or not parent
            known = self._names() if of_rows else [*self.reader.layout.columns]
            raise UnknownColumnError(f"{self.path}: no {path!r}.{near_names(path, known)}")
        stored = super()._field(path, name)
        if self._form != "anndata" or parent not in OF_ROWS or not isinstance(stored, Stored):
            return stored
        # AnnData before 0.7 wrote ``obs`` so. A field may have codes of categories.
        (field,) = stored.fields
        if stored.array.row_shape or stored.dtype.kind not in "biufSO":
            raise UnsupportedColumnError(
                f"{self.path}: field {field!r} of {parent!r} holds {stored.dtype}; expected one number or text"
            )
        categories = _COMPOUND_CATEGORIES.format(field)
        codes_for = self.reader.find([categories], missing_ok=True) if stored.dtype.kind in "iu" else {}
        return category(self.reader, name, stored, codes_for[categories]) if codes_for else stored


def is_single(error: Exception) -> bool:
    """Return whether a column is refused because it has a single value."""
    return getattr(error, "has_rows", True) is None
