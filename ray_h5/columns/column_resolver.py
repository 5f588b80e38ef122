"""The columns of one file: what their names mean, and which units of them the file, or each of its groups, has."""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np

from ray_h5.columns.conventions.cf_columns import CF_ATTRIBUTES, cf_values
from ray_h5.columns.conventions.coded_columns import categories_of_each, category, optional
from ray_h5.columns.conventions.matlab_columns import (
    referred_values,
    reversed_axes,
    reversed_groups,
    reversed_values,
    texts_of_letters,
)
from ray_h5.columns.conventions.tables_of_programs import OF_ROWS, awkward_lists, listed_names, pandas_values
from ray_h5.columns.derived_columns import (
    ColumnKey,
    ColumnLike,
    Csr,
    Cut,
    Fields,
    JoinedColumn,
    MadeColumn,
    Positions,
    Ragged,
    RowPart,
    joined_in,
)
from ray_h5.columns.ragged.bounds import Bounds, as_said, bounds_in, check_bounds
from ray_h5.columns.ragged.csr_groups import (
    SPARSE,
    SparseRows,
    checked_encoding,
    dense_ranges,
    positions_of_names,
    width_of,
)
from ray_h5.columns.ragged.range_columns import OfParts, PickedRows, Ranges, axes_of_entries
from ray_h5.columns.row_table import RowTable
from ray_h5.columns.stored_values import Stored, stored_fields
from ray_h5.columns.values import Decoded, Taken, Values, read_units
from ray_h5.errors import (
    CorruptFileError,
    MissingGroupError,
    SchemaMismatchError,
    UnknownColumnError,
    UnsupportedColumnError,
)
from ray_h5.globs import is_glob
from ray_h5.hdf5.groups.column_of_groups import MATLAB_EMPTY
from ray_h5.hdf5.groups.matching_groups import MATLAB_CLASS, GroupPattern
from ray_h5.hdf5.tree.tree import lost_fields
from ray_h5.manifest.file_table import digest_of
from ray_h5.manifest.indices import Along, Indices
from ray_h5.manifest.joined_arrays import GroupTable, JoinedArray, JoinedValues, Paths
from ray_h5.manifest.layout import ColumnLayout, Encoding, Form
from ray_h5.manifest.partition import Partition
from ray_h5.messages import near_names
from ray_h5.read.reader import FileReader

_OF_MATLAB = (MATLAB_CLASS, MATLAB_EMPTY)

_COMPOUND_CATEGORIES = "uns/{}_categories"
"""Where AnnData before 0.7 has the categories of a field of ``obs``."""

_PARTS_OF = {"category": ("codes", "categories"), "optional": ("values", "mask")}
"""The datasets of an encoded column, and those that decode it."""

_COLUMNS = {*SPARSE, "category", "optional", "references", "ragged"}
"""What encodes a column."""

_OPTIONS_OF_BOUNDS = (
    "The options of ragged() say what such numbers are: offsets=, ends=, bounds=, counts=, starts=, with base=1 where "
    "they count from 1, inclusive=True where an end is the last value. If they are right, the file is wrong about rows."
)

Source: TypeAlias = ColumnLayout | JoinedArray
"""A dataset of a file, or those of one name, of which each group has one."""


@dataclass(frozen=True, slots=True, eq=False)
class Parts:
    """The units of a column that a file has, or each of its groups: those of a group follow those of the one before.

    Attributes
    ----------
    values : Values
        The values of all units.
    starts, lengths : numpy.ndarray
        int64: the first unit, and the number of units, of each part.
    chunk_rows : int
        Units that are best read together.
    joined : JoinedValues, optional
        The datasets, if each part has a whole one.
    """

    values: Values
    starts: np.ndarray
    lengths: np.ndarray
    chunk_rows: int = 1
    joined: JoinedValues | None = None

    @classmethod
    def whole(cls, values: Values, joined: JoinedValues) -> Parts:
        """Return parts of which each is a whole dataset."""
        chunk_rows = max(layout.chunk_rows for layout in joined.layouts)
        return cls(values, joined.units.firsts, joined.lengths, chunk_rows, joined)

    @property
    def is_single(self) -> bool:
        """Whether each part has a single value, and no axis."""
        return self.joined is not None and are_single_values(self.joined)

    def read(self, reader: FileReader) -> list[np.ndarray]:
        """Return the values of each part, without axes of one."""
        units = read_units(reader, self.values, int(self.lengths.sum()))
        units = units.reshape(len(units)) if all(length == 1 for length in units.shape[1:]) else units
        return np.split(units, self.starts[1:])


class Columns(ABC):
    """The columns of one file, of which the file is one part, or each of its groups is one.

    Parameters
    ----------
    reader : FileReader
        The open file.
    columns : iterable of MadeColumn
        The columns that the user described.
    table : RowTable, optional
        What is known of the rows.
    decode_cf : bool
        Whether attributes of datasets say what their values mean.
    is_reversed : bool
        Whether rows lie along the last axis.
    """

    def __init__(
        self,
        reader: FileReader,
        columns: Iterable[MadeColumn] = (),
        table: RowTable | None = None,
        *,
        decode_cf: bool = False,
        is_reversed: bool = False,
    ) -> None:
        self.reader = reader
        self.path = reader.path
        self.made = {column.name: column for column in columns}
        self.decode_cf = decode_cf
        self.is_reversed = is_reversed
        self.bounds: dict[Ragged, Bounds] = {} if table is None else dict(table.bounds)
        self.rows: dict[str | ColumnKey, Partition] = {} if table is None else dict(table.rows)
        self.chunked: dict[str, tuple[Ragged | None, int]] = {} if table is None else dict(table.chunked_by)
        self.many: dict[ColumnKey, GroupTable] = {} if table is None else dict(table.joined)
        self.path_of: Callable[[str], str] = lambda name: name
        self._values: dict[str, Values] = {}

    @property
    def groups(self) -> Paths | None:
        """The groups that are parts; None for a file as a whole."""
        return None

    @property
    def form(self) -> Form:
        """The kind of file, if it says what names are columns of; groups of it are plain."""
        return ""

    # What the parts say ---------------------------------------------------------------------------

    @abstractmethod
    def source(self, path: str) -> Source:
        """Return the datasets of a path; raise `UnknownColumnError` if there are none."""

    @abstractmethod
    def plain(self, path: str) -> Source | None:
        """Return the datasets of a path; None if there are none, or what there is encodes something."""

    @abstractmethod
    def encoding(self, path: str) -> Encoding | None:
        """Return what is encoded at a path, which is the same in each part; None if it is plain, or not there."""

    @abstractmethod
    def attributes(self, source: Source, names: Sequence[str]) -> tuple[Sequence[Mapping[str, Any]], np.ndarray]:
        """Return what attributes of these names say of datasets, and which of that each dataset has."""

    @abstractmethod
    def joined(self, values: Values) -> JoinedValues:
        """Return the datasets that have values, one of each part."""

    def is_range(self, name: str) -> bool:
        """Return whether the rows of a column are ranges in each group; those of a file are its values."""
        return self.groups is not None and are_ranges(self.values(name))

    def attributes_of(self, name: str, attributes: Sequence[str]) -> list[Mapping[str, Any]]:
        """Return for each part those attributes of a dataset that are short numbers or one text."""
        return [self.reader.values_of_attributes(self.dataset_below_field(name), attributes)]

    # What a name means ----------------------------------------------------------------------------

    def values(self, name: str) -> Values:
        """Return the values of a column; raise `UnknownColumnError` if there is none."""
        if name not in self._values:
            self._values[name] = self._described(name)
        return self._values[name]

    def has(self, name: str) -> bool:
        """Return whether there is a column that can be read."""
        try:
            return self.values(name) is not None
        except (UnknownColumnError, UnsupportedColumnError):
            return False

    def is_there(self, name: str) -> bool:
        """Return whether the user describes a column, or the parts have a dataset of its name or encode one."""
        try:
            return name.strip("/") in self.made or self.plain(name) is not None or self.encoding(name) is not None
        except UnsupportedColumnError:
            return True

    def datasets(self, name: str) -> tuple[Values, JoinedValues]:
        """Return the values of a column, and the datasets that have them, of which each part has a whole one."""
        values = self.values(name)
        return values, self.joined(values)

    def parts(self, name: str) -> Parts:
        """Return which units of a column each part has; raise `UnknownColumnError` if there is none."""
        values, joined = self.datasets(name)
        return Parts.whole(self.of_units(name, values), joined)

    def _described(self, name: str) -> Values:
        """Return the values of a column as the user describes it."""
        made, _ = self.whole(name), self.form  # which raises for a file whose rows lie along another axis
        if made is None or isinstance(made, str):
            return self.at(self.dataset_of(name), name)
        return self._made(made, made.name)

    def _made(self, made: MadeColumn, key: str | ColumnKey) -> Values:
        """Return the values of what is made, of all parts; `key` says whose rows are kept."""
        if isinstance(made, Ragged):
            return self.ragged(made, key)
        if isinstance(made, Csr):
            return self.csr(made, key)
        if isinstance(made, Fields):
            return self.fields(made, made.name)
        if isinstance(made, JoinedColumn):
            return self.end_to_end(made)
        return self.units_at(made).values

    def fields(self, made: Fields, name: str) -> Values:
        """Return some fields of compound values, which may be a field of others themselves."""
        path, names = self.path_of(made.compound), made.names
        above = None if self.plain(path) is not None else self._compound(path.strip("/"))
        if above is None:
            return stored_fields(self._compound_values(self.source(path)), names, name)
        source, field = above
        return stored_fields(self._compound_values(source), tuple(f"{field}/{below}" for below in names), name)

    def _compound_values(self, source: Source) -> Stored:
        """Return whole compound values, of which fields are taken."""
        if not self.is_reversed:
            return Stored.of(source)
        if isinstance(source, ColumnLayout):
            return reversed_axes(source)
        raise UnsupportedColumnError(
            f"{source.unit.where}: fields are not read with axes='reversed' and rows=Groups(...): leave axes= out, or "
            "rows= and pass group= of one group"
        )

    # Columns end to end -----------------------------------------------------------------------------

    def end_to_end(self, made: JoinedColumn) -> Values:
        """Return the rows of what matches a pattern, one after the other: of datasets, or of what is made of each."""
        table, field = self._matches(made)
        joined, first = table.columns.get(made.name), table.names[0]
        is_plain, what = isinstance(made.argument, str), ""
        if joined is not None and not self.is_reversed:
            if joined.single or joined.unit_shape is None:
                what = "datasets with single values" if joined.single else "datasets with rows of several shapes"
            elif (whole := self.of_datasets(made, made.argument, joined, field)) is not None:
                return texts_of_letters(whole.values) if isinstance(whole.values, Ranges) else whole.values
        elif is_plain and joined is None and not self._is_column(first):
            what = f"groups, such as {first!r}"
        if what:
            raise UnsupportedColumnError(
                f"{self.path}: {made}: these are {what}; expected datasets with rows of one shape. For a row a "
                f"dataset, pass rows=ray_h5.Groups({made.dataset!r})."
            )
        if is_plain and not field and (encoded := self._of_encoded(made, table)) is not None:
            return encoded
        # Each match is a column of its own, which is read as any other one: all that it is made of is of this match.
        # It takes an object and a read for each, so that many datasets are better one array, above and below.
        paths = [f"{path}/{field}" if field else path for path in table.names]
        parts = [self.units_at(made.of_match(path)).values for path in paths]
        if (matrix := self._of_matrices(made, table, parts)) is not None:
            return matrix
        letters = (texts_of_letters(part) if isinstance(part, Ranges) else part for part in parts)
        return OfParts.end_to_end(made.name, tuple(letters), paths)

    def _is_column(self, path: str) -> bool:
        """Return whether a path is that of a dataset, or of a group that encodes a column."""
        if (encoding := self.encoding(path)) is not None:
            return encoding.kind in _COLUMNS
        try:
            return self.plain(path) is not None
        except UnsupportedColumnError:
            return False

    def of_datasets(self, made: JoinedColumn, of: ColumnLike, joined: JoinedArray, field: str) -> Parts | None:
        """Fast path of `end_to_end` for what is made of datasets: one array, however many there are; and their units.

        None for what is made otherwise.
        """
        if isinstance(of, (RowPart, Ragged)):
            if (whole := self.of_datasets(made, of.argument, joined, field)) is None:
                return None
            if isinstance(of, Ragged):
                return self._of_ranges(made, of, whole, [*joined.paths], field)
            return replace(whole, values=self._part_of(of, whole.values), joined=None)
        stored = Stored.end_to_end(made.name, joined)
        values: Values | None = None
        if isinstance(of, Fields):
            names = tuple(f"{field}/{below}" if field else below for below in of.names)
            values = stored_fields(stored, names, made.name)
        elif isinstance(of, str):
            is_field = bool(field)
            values = (
                stored_fields(stored, (field,), made.name, is_one=True) if is_field else self.decoded(joined, stored)
            )
        return None if values is None else Parts.whole(values, joined)

    def _of_ranges(self, made: JoinedColumn, of: Ragged, content: Parts, paths: Sequence[str], field: str) -> Parts:
        """Return ranges of each match, given the values that they are of, those of one match after the other."""
        columns = (JoinedColumn(of, made.name).of_match(f"{path}/{field}" if field else path) for path in paths)
        ranges = [self.units_at(column).values for column in columns]
        bounds = [own.bounds for own in ranges if isinstance(own, Ranges)]
        rows = Partition.of(np.array([len(own) for own in bounds], np.int64))
        # Bounds count from the first value of their match; here, values of all matches are counted together.
        whole = Ranges(
            made.name, self.path, of_one_kind(content.values), Bounds.end_to_end(bounds, rows.spread(content.starts))
        )
        return Parts(whole, rows.firsts, rows.lengths)

    def _of_matrices(self, made: JoinedColumn, table: GroupTable, parts: Sequence[Values]) -> SparseRows | None:
        """Fast path of `end_to_end` for sparse matrices: one, whose entries are those of all; None for others."""
        matrices = [part for part in parts if isinstance(part, SparseRows)]
        if len(matrices) < len(parts) or len({(part.width, part.dense) for part in matrices}) > 1:
            return None
        found = [self._below_each(made, table, name) for name in ("indices", "data")]
        of_indices, of_data = found
        if of_indices is None or of_data is None:
            return None
        indices, data = (
            Stored.end_to_end(f"{made.name}/{name}", joined)
            for name, joined in (("indices", of_indices), ("data", of_data))
        )
        bounds = [part.bounds for part in matrices]
        firsts = np.repeat(of_indices.units.firsts, [len(own) for own in bounds])
        whole = replace(matrices[0], name=made.name, indices=indices, data=data)
        return replace(whole, bounds=Bounds.end_to_end(bounds, firsts))

    def _of_encoded(self, made: JoinedColumn, table: GroupTable) -> Decoded | None:
        """Fast path of `end_to_end` for categories and values with masks: two arrays, however many matches there are.

        None for what is encoded in another way, or in several.
        """
        if self.is_reversed or (first := self.encoding(table.names[0])) is None or first.kind not in _PARTS_OF:
            return None
        name, other = _PARTS_OF[first.kind]
        for path in table.names:
            encoding = self.encoding(path)
            if encoding is None or (encoding.kind, encoding.values) != (first.kind, f"{path}/{name}"):
                return None
        values, others = (self._below_each(made, table, part) for part in (name, other))
        if values is None or others is None or values.single or values.unit_shape is None or others.unit_shape is None:
            return None
        held = others if first.kind == "category" else values
        if len({"text" if layout.kind == "string" else layout.dtype for layout in held.layouts}) > 1:
            return None
        stored = Stored.end_to_end(made.name, values)
        decode = categories_of_each if first.kind == "category" else optional
        return decode(self.reader, made.name, stored, others)

    def _below_each(self, made: JoinedColumn, table: GroupTable, name: str) -> JoinedArray | None:
        """Return the datasets of one name that all matches have, in their order; None if these are no one array."""
        pattern = GroupPattern(f"{made.dataset}/{name}", name=made.name)
        try:
            joined = self._datasets(ColumnKey(name, made), pattern).columns.get(made.name)
        except (SchemaMismatchError, UnsupportedColumnError):  # they differ in dtype, or are read one by one
            return None
        # "m" comes before "m1", and "m1/data" before "m/data": values must be in the order of their matches.
        return None if joined is None or [*joined.paths] != [f"{path}/{name}" for path in table.names] else joined

    def _matches(self, made: JoinedColumn) -> tuple[GroupTable, str]:
        """Return what matches the pattern of datasets end to end, and the rest of it, if that is a field of them."""
        # A path leads into compound values as it does into groups: the longest beginning that matches is of datasets.
        parts, key = [part for part in made.dataset.split("/") if part], ColumnKey("datasets", made)
        for count in range(len(parts), 0, -1) if key not in self.many else ():
            pattern = "/".join(parts[:count])
            try:
                self._datasets(key, GroupPattern(pattern, name=made.name), are_encoded_ok=True)
            except MissingGroupError:
                if "**" in parts or not is_glob("/".join(parts[: count - 1])):
                    self._datasets(key, GroupPattern(made.dataset, name=made.name))  # raises for the whole pattern
                continue
            break
        table = self.many[key]
        levels = len(parts) if "**" in parts else table.names[0].count("/") + 1
        return table, "/".join(parts[levels:])

    def referred(self, path: str) -> Values:
        """Return the values of a column of references: what they refer to."""
        table = self._referred(ColumnKey("datasets", path.strip("/")), GroupPattern(path.strip("/"), name=path))
        return referred_values(self.path, path, table, is_reversed=self.is_reversed)

    def _referred(self, key: ColumnKey, pattern: GroupPattern) -> GroupTable:
        try:
            return self._datasets(key, pattern)
        except SchemaMismatchError as exc:
            raise UnsupportedColumnError(*exc.args) from None

    def _datasets(self, key: ColumnKey, pattern: GroupPattern, *, are_encoded_ok: bool = False) -> GroupTable:
        """Return the datasets that a column consists of. The key says which: a name may be that of others, too."""
        if key not in self.many:
            table, refused = self.reader.group_table(pattern, [])
            error = refused.get(pattern.name)
            if error is not None and not (are_encoded_ok and self.encoding(table.names[0]) is not None):
                raise error  # references alone are read one dataset after the other
            self.many[key] = table
        return self.many[key]

    def at(self, path: str, name: str = "", key: ColumnKey | None = None) -> Values:
        """Return the values of what is at a path; `name` is that of the column, if it has another one.

        `key` says whose rows are kept, if it is no column of its own.
        """
        if (source := self.plain(path)) is not None:
            return self.decoded(source)
        encoding = self.encoding(path)
        return self._field(path, name or path) if encoding is None else self._encoded(path, encoding, name or path, key)

    def decoded(self, source: Source, stored: Stored | None = None) -> Values:
        """Return the values of datasets, `stored` in some way; the attributes of each say what its values mean."""
        stored = Stored.of(source) if stored is None else stored
        if not self.is_reversed:
            return cf_values(stored, *self.attributes(source, CF_ATTRIBUTES)) if self.decode_cf else stored
        if isinstance(source, ColumnLayout):
            return reversed_values(source, self.reader.values_of_attributes(source.name, _OF_MATLAB))
        if source.single or source.shapes.shape[1] < 1:
            return stored
        return reversed_groups(source, *self.attributes(source, _OF_MATLAB))

    def _encoded(self, path: str, encoding: Encoding, name: str, key: ColumnKey | None) -> Values:
        """Return the values of what is encoded in several datasets."""
        group = path.strip("/")
        if encoding.kind in SPARSE:
            return self.csr(Csr(group), key or (group if group == name.strip("/") else name))
        if encoding.kind in {"category", "optional"}:
            stored, other = Stored.of(self.source(encoding.values)), self.source(encoding.other)
            decoder = category if encoding.kind == "category" else optional
            return decoder(self.reader, name, stored, other)
        if encoding.kind == "references":
            return self.referred(path)
        if encoding.kind == "ragged":
            return self.ragged(awkward_lists(self.path, group, encoding, name), key or name, by_file=True)
        has_columns = encoding.kind in {"frame", "pandas"} or encoding.said in {"dict", "raw", "anndata"}
        what = "a group, not a column; its columns are below it" if has_columns else "no column of rows"
        raise UnsupportedColumnError(f"{self.path}: {path!r} ({encoding.said}) is {what}")

    def _field(self, path: str, name: str) -> Values:
        """Return a field of compound values, or a column of a table, as the kind of file has it."""
        parts = path.strip("/").split("/")
        for count in range(len(parts)) if self.form == "pandas" else ():
            encoding = self.encoding(frame := "/".join(parts[:count]))
            if encoding is not None and encoding.kind == "pandas":
                return pandas_values(self.reader, encoding, frame, "/".join(parts[count:]))
        parent = "/".join(parts[:-1])
        if (compound := self._compound("/".join(parts))) is None:
            if self.form == "anndata":
                of_rows = parts[0] in OF_ROWS or not parent
                known = listed_names(self.reader, "anndata", self.encoding) if of_rows else self.reader.layout.columns
                raise UnknownColumnError(f"{self.path}: no {path!r}.{near_names(path, known)}")
            return self.decoded(self.source(path))  # raises, with near names
        source, field = compound
        for lost, error in lost_fields(Stored.of(source).layout):
            if f"{path.strip('/')}/".startswith(f"{lost}/"):
                raise error
        stored = stored_fields(self._compound_values(source), (field,), name, is_one=True)
        if self.form != "anndata" or parent not in OF_ROWS:
            return stored
        # AnnData before 0.7 wrote ``obs`` so. A field may have codes of categories.
        if stored.array.row_shape or stored.dtype.kind not in "biufSO":
            raise UnsupportedColumnError(
                f"{self.path}: field {field!r} of {parent!r} holds {stored.dtype}; expected one number or text"
            )
        categories = _COMPOUND_CATEGORIES.format(field)
        codes_for = self.reader.find([categories], missing_ok=True) if stored.dtype.kind in "iu" else {}
        return category(self.reader, name, stored, codes_for[categories]) if codes_for else stored

    def _compound(self, path: str) -> tuple[Source, str] | None:
        """Return the datasets of compound values that a path leads through, and the rest of the path: their field."""
        parts = path.split("/")
        for count in range(len(parts) - 1, 0, -1):
            with contextlib.suppress(UnsupportedColumnError):
                if (source := self.plain("/".join(parts[:count]))) is not None:
                    return (source, "/".join(parts[count:])) if source.dtype.names is not None else None
        return None

    # What the user describes ----------------------------------------------------------------------

    def whole(self, name: str) -> str | MadeColumn | None:
        """Return how a column is described, or the one that it is a part of; None for others."""
        column = self.made.get(name.strip("/"))
        return column.whole if isinstance(column, RowPart) else column

    def dataset_of(self, name: str) -> str:
        """Return the dataset, group or field that a column is of; of most, it has the name."""
        made = self.made.get(name.strip("/"))
        return self.path_of(name if made is None or joined_in(made) is not None else made.dataset)

    def dataset_below_field(self, name: str) -> str:
        """Return the dataset that a column is of: of a field of compound values, the one above it."""
        path = self.dataset_of(name).strip("/")
        compound = self._compound(path)
        return path if compound is None else path.removesuffix(f"/{compound[1]}")

    def part(self, name: str) -> RowPart | None:
        """Return the part that a column is; None for whole values."""
        made = self.made.get(name.strip("/"))
        return made if isinstance(made, RowPart) and not made.is_whole else None

    def of_units(self, name: str, values: Values) -> Values:
        """Return the parts of units that the user asks for; they are units of rows, or of steps.

        Ranges of letters are texts.
        """
        taken = self._part_of_units(name, values)
        return texts_of_letters(taken) if isinstance(taken, Ranges) and taken.joined is None else taken

    def _part_of_units(self, name: str, values: Values) -> Values:
        # The innermost part first. They are taken of what a row is, here: of a group that is a row, axis 0 is that of
        # units; in `units_at`, of the units that another column is made of.
        column = self.made.get(name.strip("/"))
        for part in column.parts if isinstance(column, RowPart) else ():
            values = self._part_of(part, values)
        return values

    def _part_of(self, made: RowPart, values: Values) -> Values:
        """Return a part of each unit of values: what it is taken of depends on them.

        ==========================  =====================================================
        columns end to end          each of them, as below
        rows of a sparse matrix     the columns of the matrix
        ranges, whole datasets      their bounds, along axis 0; units, along other axes
        arrays of varying length    whole arrays, once they are read
        others                      the axes of a unit
        ==========================  =====================================================
        """
        where = f"{self.path}: column {made.name!r}"
        if isinstance(values, OfParts) and values.units is not None:
            # Of each part: ranges take parts of their bounds then, and read no value that is not wanted.
            of_parts = (self._part_of(made, part) for part in values.parts)
            return replace(values, parts=tuple(map(of_one_kind, of_parts)))
        if isinstance(values, SparseRows):
            return self._part_of_matrix(made, values, where)
        if isinstance(values, Ranges):
            return self._part_of_ranges(made, values, where)
        if values.array.kind in {"list", "ragged"} and not values.array.row_shape:
            inner = {axis - 1: at for axis, at in made.axes if axis}
            self._check_axes(made, inner, axes := axes_of_entries(values.array), values, first_axis=1)
            return PickedRows(values, made.entries(where), self.positions(made, inner, axes, first_axis=1))
        if made.random is not None and not values.array.row_shape:
            raise UnsupportedColumnError(f"{where}: {made}: its rows have no axis to draw from")
        taken = self._taken(made, dict(made.axes), values)
        return taken if made.random is None else Taken(taken, entries=made.entries(where))

    def _part_of_matrix(self, made: RowPart, values: SparseRows, where: str) -> SparseRows:
        if [axis for axis, _ in made.axes] != [0] or made.random is not None:
            raise UnsupportedColumnError(f"{where} has rows of a sparse matrix, which have axis 0 alone; found {made}")
        at = self._along(f"part({made.name!r})", made, made.axes[0][1], values.delivered_width)
        return replace(values, at=at if values.at is None else values.at[at])

    def _part_of_ranges(self, made: RowPart, values: Ranges, where: str) -> Ranges:
        if (joined := values.joined) is not None and joined.single:
            raise UnsupportedColumnError(f"{where} has single values; {made} expects rows with axes")
        inner = {axis - 1: at for axis, at in made.axes if axis}  # the first axis is that of units
        if joined is not None and inner:
            self.check_one_shape(made.name, joined, f"and {made} takes the same of each", "take parts of axis 0")
        content = self._taken(made, inner, values.content, first_axis=1)
        return replace(values, content=content, entries=made.entries(where, values.entries))

    def _taken(self, made: RowPart, axes: dict[int, Positions], values: Values, first_axis: int = 0) -> Values:
        if not axes:
            return values
        self._check_axes(made, axes, values.array.row_shape, values, first_axis)
        return values.take(self.positions(made, axes, values.array.row_shape, first_axis))

    def _check_axes(
        self,
        made: RowPart,
        axes: Mapping[int, Positions],
        shape: tuple[int | None, ...],
        values: Values,
        first_axis: int = 0,
    ) -> None:
        """Raise unless values have the axes of a part; `shape` has those from `first_axis` on."""
        if axes and (max(axes) >= len(shape) or None in [shape[axis] for axis in axes]):
            is_varying = first_axis or values.array.kind in {"list", "ragged"}
            shown = f"rows of {values.array.kind} values" if is_varying else f"{shape}"
            raise UnsupportedColumnError(
                f"{values.array.where}: {made} takes axis {max(axes) + first_axis} of rows; expected rows with so "
                f"many axes, found {shown}"
            )

    def positions(
        self, made: RowPart, axes: dict[int, Positions], shape: tuple[int | None, ...], first_axis: int = 0
    ) -> Indices:
        """Return the indices along each axis of a shape; None for all."""
        taken: list[Along | None] = [None] * (max(axes, default=-1) + 1)
        for axis, at in axes.items():
            what = f"part({made.name!r}, {{{axis + first_axis}: ...}})"
            taken[axis] = Along.of(self._along(what, made, at, shape[axis] or 0))
        return tuple(taken)

    def _along(self, what: str, made: RowPart | Csr, at: Positions, length: int) -> np.ndarray:
        """Return the positions along an axis of this length, of which some may be named by another column.

        Raises
        ------
        UnknownColumnError, UnsupportedColumnError
            If there are no such positions or names.
        """
        if isinstance(at, Cut):
            return at.positions(length)
        reader = self.reader
        if made.names is None or not isinstance(at[0], str):
            positions = np.array(at, np.int64)
            if int(positions.max()) >= length:
                raise UnknownColumnError(
                    f"{self.path}: {what}: found position {positions.max()}; there are positions from 0 to {length - 1}"
                )
            return positions
        names = self.path_of(made.names)
        where = f"{self.path}: {what}, names={names!r}"
        key = (
            f"{what} {names} {at}" if reader.is_fetched else f"{at} in {names} of {length}: {type(self.in_file(names))}"
        )
        return reader.fact(
            key, lambda: positions_of_names(reader, where, at, length, self.in_file(names)), of_file=True
        )

    def in_file(self, path: str) -> Values:
        """Return the values of what is at a path of the file, also where its groups are parts."""
        return self.at(path)

    # Rows that are ranges -------------------------------------------------------------------------

    def ragged(self, made: Ragged, key: str | ColumnKey, *, by_file: bool = False) -> Ranges | Decoded:
        """Return the values of a column made by `ragged`; which rows each group has is known then, by name.

        `by_file` says that the file says what has the bounds, and not the user, who may name other datasets.
        """
        content = self.units_at(made.content)

        def check(own: Bounds, length: int, part: int) -> None:
            check_bounds(own, made, length, self.where(part))

        bounds = self._bounds(made, key, [content], check, "" if by_file else _OPTIONS_OF_BOUNDS)
        ranges = Ranges(made.name, self.path, content.values, bounds)
        if (array := content.values.array).kind != "sparse":
            return ranges
        if not array.type.dense:
            raise UnsupportedColumnError(
                f"{self.path}: {made}: ranges of rows of a sparse matrix are dense arrays; leave dense=False out, or "
                "read its entries as they are stored, such as ragged('X/data', offsets='X/indptr')"
            )
        return dense_ranges(ranges)

    def csr(self, made: Csr, key: str | ColumnKey) -> SparseRows:
        """Return the rows of a sparse matrix, of a file or of each group, one group after the other."""
        name, take = made.group, None
        if self.groups is None:
            checked_encoding(self.reader, made, name)
        indices, data = (self.units_at(f"{name}/{index}", is_stored=True) for index in ("indices", "data"))
        where, of_indices, of_data = f"{self.path}: sparse matrix {name!r}", indices.values.array, data.values.array
        if of_indices.row_shape or of_indices.dtype.kind not in "iu":
            raise CorruptFileError(
                f"{where}: indices are {of_indices.dtype} of shape {of_indices.shape}; expected integers"
            )
        if of_data.row_shape or of_data.kind not in {"number", "bool"}:
            raise UnsupportedColumnError(f"{where}: data are {of_data.kind} of shape {of_data.shape}; expected numbers")

        def check(bounds: Bounds, num_indices: int, part: int) -> None:
            first, end = (int(bounds.starts[0]), int(bounds.stops[-1])) if len(bounds) else (0, 0)
            num_values = int(data.lengths[part])
            if first or not num_indices == num_values >= end:
                raise CorruptFileError(
                    f"{self.path}: sparse matrix {self._path(part, name)!r}: indptr goes from {first} to {end}, and "
                    f"there are {num_indices} indices and {num_values} values; expected equal numbers, and all from 0"
                )

        bounds = self._bounds(made.rows, key, [indices, data], check)
        width = self._common_width(made, key, bounds)
        if made.take is not None:
            take = self._along(f"csr({name!r})", made, made.take, width)
        return SparseRows(name, indices.values, data.values, bounds, width, made.dense, take, self.path)

    def units_at(self, of: ColumnLike, *, is_stored: bool = False) -> Parts:
        """Return which units of a column each part has, however it is made: what columns are made of.

        Units are those of datasets, or rows that are made of these::

            part(ragged("x", offsets="o"), {0: [0]})      the first value of each range
                 ragged("x", offsets="o")                 ranges of the units of "x"
                        "x"                               units of a dataset of each part

        With `is_stored`, values are as they are stored, whatever their attributes say.
        """
        if isinstance(of, RowPart):
            whole = self.units_at(of.of)
            if of.is_whole:
                return whole
            return replace(whole, values=of_one_kind(self._part_of(of, whole.values)), joined=None)
        # Another maker, or the user, may make a column of the same dataset with other bounds: keys say how it is made.
        key, name = ColumnKey("units", of), of if isinstance(of, str) else repr(of)
        if isinstance(of, str):
            values = Stored.of(self.source(of)) if is_stored else self.at(of, key=key)
        else:
            values = self.fields(of, of.dataset) if isinstance(of, Fields) else self._made(of, key)
        is_made = are_ranges(values)
        if is_made and self.groups is not None:
            rows = self.rows[key]
            return Parts(values, rows.firsts, rows.lengths, values.array.chunk_rows)
        joined = self.joined(values)
        if not isinstance(of, str) or not is_made:
            self.check_one_shape(name, joined, "and rows are ranges of them")
            self.check_all_have(name, joined, "says where rows are or holds their values")
        return Parts.whole(values, joined)

    def check_one_shape(self, name: str, joined: JoinedValues, why: str, instead: str = "leave the column out") -> None:
        """Raise if groups differ in the shape of a value; `why` says what needs one shape, `instead` what to do."""
        if joined.unit_shape is None:
            raise UnsupportedColumnError(
                f"{self.path}: the values of column {name!r} have other shapes in other groups, such as "
                f"{joined.layouts[0].row_shape} and {joined.layouts[1].row_shape}, {why}. Choose groups that agree "
                f"with the pattern, or {instead}."
            )

    def check_all_have(self, name: str, joined: JoinedValues, why: str, instead: str = "leave the column out") -> None:
        """Raise if a group lacks a column; `why` says what the column has or does, `instead` what to do."""
        if self.groups is not None and not joined.is_there.all():
            raise SchemaMismatchError(
                f"{self.path}: group {self.groups[int(np.argmin(joined.is_there))]!r} lacks column {name!r}, which "
                f"{why}. Choose groups that have it with the pattern, or {instead}."
            )

    def where(self, part: int) -> str:
        """Return which part is meant, for the beginning of a message."""
        return self.path if self.groups is None else f"{self.path}: group {self.groups[part]!r}"

    def _path(self, part: int, name: str) -> str:
        return name if self.groups is None else f"{self.groups[part]}/{name}"

    def _bounds(
        self,
        made: Ragged,
        key: str | ColumnKey,
        contents: Sequence[Parts],
        check: Callable[[Bounds, int, int], None],
        advice: str = "",
    ) -> Bounds:
        """Return where the rows of a column begin and end in the units of its contents, those of all parts.

        Which of them each group has is known then, too. `check` raises for the bounds in a part of some length; with
        `advice`, what is wrong is an error of the options of the user.

        What is kept are places in a part: columns with the same bounds may have other content, with other lengths.
        """
        said, given, content = made.bounds_only, made.given, contents[0]
        if self.groups is None and isinstance(key, str):
            self.chunked[key] = said, max(part.chunk_rows for part in contents)
        if self.groups is None and said in self.bounds:
            with as_said(advice):
                check(self.bounds[said], int(content.lengths[0]), 0)
        elif said not in self.bounds or key not in self.rows:
            read = {option: self._read_bounds(dataset) for option, dataset in given.items()}
            datasets = " and ".join(map(repr, given.values()))
            of_parts = []
            for part, length in enumerate(content.lengths.tolist()):
                own = {option: values[part] for option, values in read.items()}
                where = f"{self.where(part)}: column {made.name!r}, {datasets}"
                with as_said(advice):
                    bounds = bounds_in(own, where, made.base, inclusive=made.inclusive, num_values=length)
                    check(bounds, length, part)
                of_parts.append(bounds)
            self.bounds[said] = Bounds.end_to_end(of_parts, np.zeros(1, np.int64))
            if self.groups is not None:
                self.rows[key] = Partition.of(np.array([len(bounds) for bounds in of_parts], np.int64))
        bounds = self.bounds[said]
        if self.groups is None:
            return bounds
        # Units of the content are counted through all groups: those of a group begin at another one in each column.
        firsts = self.rows[key].spread(content.starts)
        return Bounds(bounds.starts + firsts, bounds.stops + firsts)

    def _read_bounds(self, of: ColumnLike) -> list[np.ndarray]:
        """Return what says where rows begin or end in each part."""
        units = self.units_at(of)
        if units.values.array.kind in {"list", "ragged", "sparse"}:
            raise UnsupportedColumnError(
                f"{self.path}: {of!r} has rows of varying length itself; expected a dataset of bounds: an integer, or "
                "a pair of them, for each row"
            )
        return units.read(self.reader)

    def _common_width(self, made: Csr, key: str | ColumnKey, bounds: Bounds) -> int:
        """Return the length of a row of a sparse matrix, which is one in all groups."""
        reader, name, groups = self.reader, made.group, self.groups
        of_parts = [len(bounds)]
        if groups is not None:
            of_parts = self.rows[key].lengths.tolist()

        def widths() -> np.ndarray:
            of_each = (width_of(reader, made, self._path(part, name), count) for part, count in enumerate(of_parts))
            return np.fromiter(of_each, np.int64, len(of_parts))

        where = "" if groups is None else digest_of(groups.groups.data + groups.groups.ends.tobytes())
        of_groups = reader.fact(f"{name}: widths in {where}; {made.shape}", widths, of_file=True)
        if groups is not None and (differ := np.flatnonzero(of_groups != of_groups[0])).size:
            at = int(differ[0])
            raise SchemaMismatchError(
                f"{reader.path}: sparse matrix {name!r}: rows have length {of_groups[0]} in group {groups[0]!r}, and "
                f"{of_groups[at]} in {groups[at]!r}. Choose groups that agree with the pattern, or leave the column "
                "out."
            )
        return int(of_groups[0])


def are_ranges(values: Values) -> bool:
    """Return whether values are ranges of others, or rows of a sparse matrix, or made of such ranges."""
    return isinstance(values.values if isinstance(values, Decoded) else values, (Ranges, SparseRows))


def of_one_kind(values: Values) -> Values:
    """Return values that others are made of, whose kind does not depend on how long those of a file happen to be."""
    return replace(values, is_column=False) if isinstance(values, Ranges) else values


def are_single_values(joined: JoinedValues) -> bool:
    """Return whether each part has a single value of a column."""
    return joined.single or not joined.shapes.shape[1]
