"""The columns of a file, each made of one or several datasets: sparse matrices, categories, packed numbers."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ray_h5.columns.column_resolver import Columns, Source
from ray_h5.columns.conventions.cf_columns import attributes_of_text, text_of_attributes
from ray_h5.columns.conventions.tables_of_programs import check_tables, listed_names
from ray_h5.columns.derived_columns import MadeColumn, joined_below
from ray_h5.columns.row_table import Listing, RowTable
from ray_h5.columns.values import Values
from ray_h5.errors import RayH5Error, UnknownColumnError, UnsupportedColumnError
from ray_h5.hdf5.groups.matching_groups import GroupPattern
from ray_h5.likely_rows.alike import pattern_of
from ray_h5.likely_rows.length_errors import groups_with
from ray_h5.manifest.joined_arrays import GroupTable, JoinedArray, JoinedValues, Paths, Texts
from ray_h5.manifest.layout import ColumnLayout, Encoding, FileLayout, Form
from ray_h5.per_process import cached_property
from ray_h5.read.reader import FileReader

THE_FILE = Paths(Texts.of([b""]))
"""The paths of a file that is one part."""


class FileColumns(Columns):
    """The columns of one file. Each has one value for each index of its first axis."""

    def __init__(
        self, reader: FileReader, columns: Iterable[MadeColumn] = (), table: RowTable | None = None, **options: bool
    ) -> None:
        super().__init__(reader, columns, table, **options)
        self._listed: Listing | None = None
        self._layout: FileLayout[ColumnLayout] | None = None
        self._singles: dict[str, JoinedArray | None] = {}
        whole = None if table is None else table.groups
        self.as_arrays: dict[str, JoinedValues] = {} if whole is None else dict(whole.made)

    @cached_property
    def form(self) -> Form:
        """The kind of file; raises for one whose rows lie along another axis."""
        if (form := self.reader.form) == "loom" and not self.is_reversed:
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
            form, self._layout = self.form, self.reader.layout
            names = listed_names(self.reader, form, self.encoding)
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

    def single(self, name: str) -> Values | None:
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
        return self.decoded(joined)

    def _without_axes(self, name: str) -> JoinedArray | None:
        """Return a dataset with a single value; of an opaque value, the array of its bytes. None if it has axes."""
        if (dataset := self.dataset_of(name)) not in self._singles:
            error = None if self._layout is None else self._layout.refused.get(dataset)
            if error is None and (self._layout is None or dataset not in self._layout.columns):
                try:
                    self.reader.find([dataset], missing_ok=True)
                except UnsupportedColumnError as exc:
                    error = exc
            is_one = error is not None and is_of_single_value(error) and not {*"*?["} & {*dataset}
            self._singles[dataset] = self.reader.single(dataset) if is_one else None
        return self._singles[dataset]

    # The one part that a file is ------------------------------------------------------------------

    def joined(self, values: Values) -> JoinedValues:
        array = values.array
        return JoinedValues(array.name, THE_FILE, (array,), np.zeros(1, np.int32), np.array([array.shape], np.int64))

    def datasets(self, name: str) -> tuple[Values, JoinedValues]:
        single, one = self.single(name), self._without_axes(name)
        values, joined = super().datasets(name) if one is None else (self.decoded(one), one)
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
        columns.made = {name: joined_below(made, group) for name, made in self.made.items()}
        columns._values, columns._singles = {}, {}
        return columns

    def group_table(self, pattern: GroupPattern, names: Sequence[str]) -> GroupTable:
        """Return the groups that match a pattern, or a pattern of each column, and have datasets of these names."""
        return self.reader.group_table(replace(pattern, missing="never"), names)[0]

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
        if (self.form or is_fetched) and self.encoding(path) is not None:
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
        is_read = not self.is_reversed or encoding is None or encoding.kind == "references"
        return encoding if is_read else None

    def attributes(self, source: Source, names: Sequence[str]) -> tuple[Sequence[Mapping[str, Any]], np.ndarray]:
        paths = [source.name] if isinstance(source, ColumnLayout) else source.paths
        texts = [text_of_attributes(self.reader.values_of_attributes(path, names)) for path in paths]
        said, class_of = np.unique(texts, return_inverse=True)
        return [attributes_of_text(text) for text in said], class_of


def is_of_single_value(error: Exception) -> bool:
    """Return whether a column is refused because it has a single value."""
    return getattr(error, "has_rows", True) is None
