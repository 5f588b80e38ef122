"""The columns of a file, each made of one or several datasets: sparse matrices, categories, packed numbers."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from functools import cached_property
from typing import TYPE_CHECKING, Any

from ray_h5.columns.conventions.cf_columns import CF_ATTRIBUTES, cf_values
from ray_h5.columns.conventions.coded_columns import category, optional
from ray_h5.columns.conventions.listed_names import OF_ROWS, check_tables, listed_names
from ray_h5.columns.conventions.pandas_columns import pandas_values
from ray_h5.columns.conventions.referred_columns import referred_values
from ray_h5.columns.conventions.reversed_columns import reversed_values
from ray_h5.columns.end_to_end import joined_values
from ray_h5.columns.made_columns import Csr, Fields, JoinedColumn, MadeColumn, Ragged
from ray_h5.columns.ragged.bounds import Bounds, ChunkedBy, bounds_of_pairs, episodes_key, pairs_of
from ray_h5.columns.ragged.csr_groups import checked_encoding
from ray_h5.columns.ragged.ranges import Parts, Ranges, rows_of_awkward, rows_of_csr
from ray_h5.columns.row_parts import Described
from ray_h5.columns.row_table import Listing, RowTable
from ray_h5.columns.stored_values import Stored, stored_fields
from ray_h5.columns.values import Values
from ray_h5.errors import RayH5Error, SchemaMismatchError, UnknownColumnError, UnsupportedColumnError
from ray_h5.hdf5.columns.column import SINGLE_VALUE
from ray_h5.hdf5.groups.groups import GroupPattern
from ray_h5.hdf5.tree.tree import lost_fields
from ray_h5.manifest.layout import ColumnLayout, Encoding, FileLayout, Form
from ray_h5.messages import near_names
from ray_h5.read.reader import RowReader

if TYPE_CHECKING:
    from ray_h5.manifest.joined_arrays import GroupTable, JoinedArray

_CLASS = "MATLAB_class"
_EMPTY = "MATLAB_empty"
"""Attribute that MATLAB writes: what values are."""

_COMPOUND_CATEGORIES = "uns/{}_categories"
"""Where AnnData before 0.7 has the categories of a field of ``obs``."""


class FileColumns:
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
    looks_first : bool
        Whether each name is asked what it encodes, also in a file that does not say that it is of such a kind.
    """

    def __init__(
        self,
        reader: RowReader,
        columns: Iterable[MadeColumn] = (),
        table: RowTable | None = None,
        *,
        decode_cf: bool = False,
        is_reversed: bool = False,
        looks_first: bool = True,
    ) -> None:
        self._reader = reader
        self._is_reversed = is_reversed
        self.decode_cf = decode_cf
        self._looks_first = looks_first
        self.described = Described(reader, columns, self._values_of_dataset)
        self.bounds: dict[str, Bounds] = {} if table is None else dict(table.bounds)
        self.chunked: dict[str, ChunkedBy] = {} if table is None else dict(table.chunked_by)
        self.joined: dict[str, GroupTable] = {} if table is None else dict(table.joined)
        self._listed: Listing | None = None
        self._layout: FileLayout | None = None
        self._known: dict[str, Values] = {}
        self._singles: dict[str, Stored | None] = {}
        self._bytes: dict[str, JoinedArray] = {}

    @cached_property
    def _form(self) -> Form:
        return self._reader.form

    @cached_property
    def _ranges(self) -> Ranges:
        def parts_of(name: str) -> Parts:
            return Parts.of_file(self._values_of_dataset(name))

        return Ranges(self._reader, None, parts_of, self.bounds, self.values)

    def table(self, **others: Any) -> RowTable:
        """Return what was found out so far, with what a row kind knows."""
        return RowTable(bounds=self.bounds, chunked_by=self.chunked, joined=self.joined, **others)

    # Which columns there are ----------------------------------------------------------------------

    def listing(self) -> Listing:
        if self._listed is None:
            if self._form == "loom" and not self._is_reversed:
                raise _of_loom(self._reader.path)
            self._layout = self._reader.layout
            names = self._names()
            if self._form == "anndata":
                check_tables(self._reader, names)
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
            return [*self._reader.layout.columns, *self._reader.layout.refused]
        return listed_names(self._reader, self._form, self._encoding)

    def _is_column(self, name: str, refused: dict[str, Exception]) -> bool:
        try:
            self.values(name)
        except (UnsupportedColumnError, UnknownColumnError) as exc:
            refused[name] = exc
            return False
        refused.pop(name, None)
        return True

    def _encoding(self, name: str) -> Encoding | None:
        try:
            return self._reader.encoding(name)
        except RayH5Error:
            return None  # reading it as a dataset reports what is wrong

    def single(self, name: str) -> Stored | None:
        """Return a dataset that has a single value, as one unit; None if it has axes, or does not exist.

        Raises
        ------
        UnsupportedColumnError
            If the value is no number or text.
        """
        if name not in self._singles:
            self._singles[name] = self._single(self.described.dataset_of(name))
        found = self._singles[name]
        if found is not None and found.array.kind not in {"number", "bool", "string"}:
            raise UnsupportedColumnError(
                f"{found.array.where} holds a single {found.array.kind} value; expected a number or text"
            )
        return found

    def bytes_of(self, name: str) -> JoinedArray | None:
        """Return a single opaque value as the array of its bytes; None if it is none."""
        return None if self.single(name) is not None else self._bytes.get(self.described.dataset_of(name))

    def _single(self, name: str) -> Stored | None:
        if self._layout is not None and name in self._layout.columns:
            return None
        error = None if self._layout is None else self._layout.refused.get(name)
        if error is None:
            try:
                self._reader.find([name], missing_ok=True)
            except UnsupportedColumnError as exc:
                error = exc
        if error is None or not is_single(error) or any(each in name for each in "*?["):
            return None
        joined = self._reader.single(name)
        if joined is not None and not joined.single:
            self._bytes[name] = joined
            return None
        return None if joined is None else Stored.of(joined)

    # What a column is made of ---------------------------------------------------------------------

    def values(self, name: str) -> Values:
        """Return the values of a column; raise `UnknownColumnError` if there is none."""
        if name not in self._known:
            self._known[name] = self._values(name)
        return self._known[name]

    def _values(self, name: str) -> Values:
        if self._form == "loom" and not self._is_reversed:
            raise _of_loom(self._reader.path)
        column, name = name, self.described.dataset_of(name)
        if self._is_reversed:
            if (encoding := self._encoding(name.strip("/"))) is not None and encoding.kind == "references":
                return self._referred(name)
            layout = self._dataset(name)
            if len(layout.shape) == 1:
                if self._reader.values_of_attributes(name, [_EMPTY]):
                    raise UnsupportedColumnError(
                        f"{layout.where} is an empty array of MATLAB: the file holds its shape, and it has no rows"
                    )
                return Stored.of(layout)
            return reversed_values(layout, str(self._reader.values_of_attributes(name, [_CLASS]).get(_CLASS, "")))
        made = self.described.whole(column)
        if isinstance(made, Ragged):
            return self._ragged(made)
        if isinstance(made, JoinedColumn):
            return joined_values(self._reader, made, self._datasets, is_known=made.name in self.joined)
        if isinstance(made, Fields):
            return stored_fields(self._dataset(made.dataset), made.names, made.name)
        if isinstance(made, Csr):
            return self._csr(made)
        found = self._values_of_dataset(name)
        if column != name and name in self.chunked:
            self.chunked[column] = self.chunked[name]
        return found

    def by_column(self, said: dict[str, tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
        """Return what is said of datasets, also for the columns of these that have names of their own."""
        return {
            **{name: said[made.dataset] for name, made in self.described.made.items() if made.dataset in said},
            **said,
        }

    def _values_of_dataset(self, name: str) -> Values:
        """Return the values of a column that the user names, and nothing more."""
        if not self._looks_first and not self._form:
            listed = None if self._layout is None else self._layout.columns.get(name)
            if listed is not None and not listed.sources and not self._reader.learns:
                return self._decoded(listed)
            if (found := self._plain(name)) is not None:
                return found
        plain = name.strip("/")
        encoding = self._encoding(plain)
        if self._form == "pandas" and not self._can_find(plain) and (found := self._in_pandas(plain)) is not None:
            return found
        if encoding is None and ("/" in plain or self._form == "anndata") and not self._can_find(plain):
            return self._field(name)
        if encoding is None:
            return self._decoded(self._dataset(name))
        return self._encoded(name, encoding)

    def _plain(self, name: str) -> Values | None:
        """Return the values of a dataset; None if there is none of that name."""
        try:
            found = self._reader.find([name], missing_ok=True)
        except UnsupportedColumnError as exc:
            if not exc.is_encoded:
                raise
            return None
        return self._decoded(found[name]) if found else None

    def _decoded(self, layout: ColumnLayout) -> Values:
        stored = Stored.of(layout)
        if not self.decode_cf:
            return stored
        return cf_values(stored, self._reader.values_of_attributes(layout.name, CF_ATTRIBUTES)) or stored

    def _can_find(self, name: str) -> bool:
        try:
            return bool(self._reader.find([name], missing_ok=True))
        except RayH5Error as exc:
            # A field is no dataset. What else is there reports the error when it is read.
            return not (isinstance(exc, UnsupportedColumnError) and exc.is_encoded)

    def _in_pandas(self, name: str) -> Values | None:
        """Return a column of a table of pandas; None for other names."""
        parts = name.split("/")
        for count in range(len(parts)):
            found = self._encoding(frame := "/".join(parts[:count]))
            if found is not None and found.kind == "pandas":
                return pandas_values(self._reader, found, frame, "/".join(parts[count:]))
        return None

    def _encoded(self, name: str, encoding: Encoding) -> Values:
        if encoding.kind in {"csr", "csc", "compressed"}:
            return self._csr(Csr(name.strip("/")))
        if encoding.kind in {"category", "optional"}:
            stored = Stored.of(self._dataset(encoding.values))
            if encoding.kind == "category":
                return category(self._reader, name, stored, encoding.other)
            return optional(self._reader, name, stored, encoding.other)
        if encoding.kind == "references":
            return self._referred(name)
        if encoding.kind == "ragged":
            return self._ragged(rows_of_awkward(self._reader.path, name.strip("/"), encoding))
        has_columns = encoding.kind in {"frame", "pandas"} or encoding.said in {"dict", "raw", "anndata"}
        what = "a group, not a column; its columns are below it" if has_columns else "no column of rows"
        raise UnsupportedColumnError(f"{self._reader.path}: {name!r} ({encoding.said}) is {what}")

    def _ragged(self, made: Ragged) -> Values:
        values = self._values_of_dataset if made.content in self.described.made else self.values
        found = self._ranges.ragged(made, Parts.of_file(values(made.content)))
        self.chunked[made.name] = ChunkedBy(made.bounds_key, found.content.array.chunk_rows)
        return found

    def _csr(self, made: Csr) -> Values:
        checked_encoding(self._reader.path, made, made.group, self._reader.encoding(made.group))
        parts = (Stored.of(self._reader.column(f"{made.group}/{each}")) for each in ("indices", "data"))
        found = self._ranges.csr(made, *map(Parts.of_file, parts))
        chunk_rows = max(found.indices.array.chunk_rows, found.data.array.chunk_rows)
        self.chunked[made.name] = ChunkedBy(rows_of_csr(made).bounds_key, chunk_rows)
        return found

    def _datasets(self, name: str, pattern: str) -> GroupTable:
        """Return the datasets that a column consists of."""
        if name not in self.joined:
            table, refused = self._reader.group_table(GroupPattern(pattern, name=name), [])
            if name in refused:
                raise refused[name]
            self.joined[name] = table
        return self.joined[name]

    def _referred(self, name: str) -> Values:
        """Return the values that references lead to."""
        try:
            table = self._datasets(name, name.strip("/"))
        except SchemaMismatchError as exc:
            raise UnsupportedColumnError(*exc.args) from None
        return referred_values(self._reader.path, name, table, is_reversed=self._is_reversed)

    def _dataset(self, name: str) -> ColumnLayout:
        return self._reader.find([name])[name]

    def _compound(self, path: str) -> tuple[ColumnLayout, str] | None:
        """Return the dataset of compound values that a path leads through, and the rest of the path: its field."""
        parts = path.split("/")
        for count in range(len(parts) - 1, 0, -1):
            with contextlib.suppress(UnsupportedColumnError):  # a group
                found = self._reader.find([name := "/".join(parts[:count])], missing_ok=True)
                if name in found:
                    return found[name], "/".join(parts[count:])
        return None

    def _field(self, name: str) -> Values:
        """Return a field of compound values."""
        found = self._compound(name.strip("/"))
        if self._form == "anndata":
            return self._field_of_anndata(name, found)
        if found is None or found[0].dtype.names is None:
            return self._decoded(self._find_field(name))  # raises, with near names
        for lost, error in lost_fields(found[0]):
            if f"{name.strip('/')}/".startswith(f"{lost}/"):
                raise error
        return stored_fields(found[0], (found[1],), name, is_one=True)

    def _find_field(self, name: str) -> ColumnLayout:
        """Raise the error of a field whose dataset cannot be read: that of the dataset."""
        try:
            return self._dataset(name)
        except UnsupportedColumnError as exc:
            parent = name.rpartition("/")[0]
            if exc.is_encoded and parent:
                self._find_field(parent)
            raise

    def _field_of_anndata(self, name: str, found: tuple[ColumnLayout, str] | None) -> Values:
        """Return a field of a table as AnnData before 0.7 wrote it: of ``obs``, it may have codes of categories."""
        parent = name.strip("/").rpartition("/")[0]
        if found is None or found[0].dtype.names is None:
            of_rows = parent.split("/", maxsplit=1)[0] in {"", *OF_ROWS}
            known = self._names() if of_rows else [*self._reader.layout.columns]
            raise UnknownColumnError(f"{self._reader.path}: no {name!r}.{near_names(name, known)}")
        layout, field = found
        stored = stored_fields(layout, (field,), name, is_one=True)
        if layout.name.strip("/") not in OF_ROWS:
            return stored
        if stored.array.row_shape or stored.dtype.kind not in "biufSO":
            raise UnsupportedColumnError(
                f"{self._reader.path}: field {field!r} of {parent!r} holds {stored.dtype}; expected one number or text"
            )
        categories = _COMPOUND_CATEGORIES.format(field)
        if stored.dtype.kind in "iu" and self._reader.find([categories], missing_ok=True):
            return category(self._reader, name, stored, categories)
        return stored

    def episode_bounds(self, name: str) -> Bounds:
        """Return where episodes begin and end, as pairs say."""
        if (key := episodes_key(name)) not in self.bounds:
            where = f"{self._reader.path}: {name!r}"
            (pairs,) = Parts.of_file(self._values_of_dataset(name)).read(self._reader)
            self.bounds[key] = bounds_of_pairs(*pairs_of(pairs, where), where)
        return self.bounds[key]


def is_single(error: Exception) -> bool:
    """Return whether a column is refused because it has a single value."""
    return str(error).endswith(SINGLE_VALUE)


def _of_loom(path: str) -> UnsupportedColumnError:
    return UnsupportedColumnError(
        f"{path} is a loom file: its matrix has genes along the first axis and cells along the last. Pass "
        "axes='reversed' to read cells as rows."
    )
