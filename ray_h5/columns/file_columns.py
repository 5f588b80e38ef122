"""The columns of a file, each made of one or several datasets: sparse matrices, categories, packed numbers."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from ray_h5.columns.conventions.cf_columns import CF_ATTRIBUTES, cf_values
from ray_h5.columns.conventions.coded_columns import Category, Optional
from ray_h5.columns.conventions.pandas_columns import names_in, pandas_values
from ray_h5.columns.conventions.reversed_columns import reversed_values
from ray_h5.columns.row_table import Listing, RowTable
from ray_h5.columns.stored_values import Stored, stored_fields
from ray_h5.columns.made_columns import Csr, Fields, JoinedColumn, MadeColumn, Ragged, RowPart
from ray_h5.columns.values import Values, read_all
from ray_h5.columns.varying.bounds import (
    Bounds,
    ChunkedBy,
    bounds_in,
    bounds_of_offsets,
    bounds_of_pairs,
    check_bounds,
    pairs_of,
)
from ray_h5.columns.varying.csr_groups import sparse_rows
from ray_h5.columns.varying.range_columns import RaggedRows, SparseRows
from ray_h5.errors import (
    CorruptFileError,
    MissingSourceError,
    RayH5Error,
    SchemaMismatchError,
    UnknownColumnError,
    UnsupportedColumnError,
)
from ray_h5.hdf5.columns.column import SINGLE_VALUE
from ray_h5.hdf5.groups.groups import GroupPattern
from ray_h5.manifest.layout import ColumnLayout, Encoding, FileLayout, Form
from ray_h5.messages import few, near_names
from ray_h5.read.reader import RowReader

if TYPE_CHECKING:
    from ray_h5.columns.varying.row_entries import RowEntries
    from ray_h5.manifest.joined_arrays import GroupTable, Segments

_OF_ROWS = ("layers", "obs", "obsm", "obsp")
"""The groups of an AnnData file whose members have a row for each observation."""

_HIDDEN = "__categories"
_CATEGORY_BYTES = 256
"""About what a category takes: its value, its name and its code, as objects of Python."""

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
        self._decode_cf = decode_cf
        self._looks_first = looks_first
        self._made = {each.name: each for each in columns}
        self.bounds: dict[str, Bounds] = {} if table is None else dict(table.bounds)
        self.chunked: dict[str, ChunkedBy] = {} if table is None else dict(table.chunked_by)
        self.joined: dict[str, GroupTable] = {} if table is None else dict(table.joined)
        self._listed: Listing | None = None
        self._layout: FileLayout | None = None
        self._known: dict[str, Values] = {}
        self._singles: dict[str, Stored | None] = {}

    @cached_property
    def _form(self) -> Form:
        return self._reader.form

    def table(self, **others: Any) -> RowTable:
        """Return what was found out so far, with what a row kind knows."""
        return RowTable(bounds=self.bounds, chunked_by=self.chunked, joined=self.joined, **others)

    # Which columns there are ----------------------------------------------------------------------

    def listing(self) -> Listing:
        if self._listed is None:
            if self._form == "loom" and not self._is_reversed:
                raise _of_loom(self._reader.path)
            self._layout = self._reader.layout
            names = self._names(self._layout)
            if self._form == "anndata" and (tables := self._tables()) and "X" not in names:
                raise _of_mudata(self._reader.path, tables)
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

    def _names(self, found: FileLayout) -> list[str]:
        """Return the names of what may be columns."""
        names = [*found.columns, *found.refused]
        if self._form == "10x":
            return ["matrix", "matrix/barcodes"]
        if self._form == "pandas":
            return self._of_pandas(names)
        if self._form == "loom":
            return [name for name in names if name.split("/")[0] in _OF_CELLS]
        if self._form == "ray_h5":
            return list(dict.fromkeys(map(self._encoded_above, names)))
        return self._of_observations(names) if self._form == "anndata" else names

    def _tables(self) -> list[str]:
        """Return the tables of a MuData file, each of which is as a file of AnnData."""
        paths = [path.split("/") for path in (*self._reader.layout.columns, *self._reader.layout.refused)]
        return list(dict.fromkeys(f"mod/{each[1]}" for each in paths if each[0] == "mod" and len(each) > 2))

    def _encoded_above(self, name: str) -> str:
        """Return the outermost group with a dataset that is encoded as a whole, such as a table; else the dataset."""
        parts = name.split("/")
        above = ("/".join(parts[:count]) for count in range(1, len(parts)))
        return next((each for each in above if self._encoding(each) is not None), name)

    def _of_pandas(self, datasets: Iterable[str]) -> list[str]:
        """Return the columns of tables of pandas in the place of their datasets."""
        names: dict[str, None] = {}
        frames: dict[str, Encoding | None] = {}
        for path in datasets:
            parts = path.split("/")
            above = ["/".join(parts[:count]) for count in range(len(parts) + 1)]
            for each in above:
                if each not in frames:
                    found = self._encoding(each)
                    frames[each] = found if found is not None and found.kind == "pandas" else None
            frame = next((each for each in above if frames[each] is not None), None)
            if frame is None or (found := frames[frame]) is None:
                names[path] = None
                continue
            names.update(dict.fromkeys(f"{frame}/{each}".strip("/") for each in names_in(found)))
        return list(names)

    def _in_pandas(self, name: str) -> Values | None:
        """Return a column of a table of pandas; None for other names."""
        parts = name.split("/")
        for count in range(len(parts)):
            found = self._encoding(frame := "/".join(parts[:count]))
            if found is not None and found.kind == "pandas":
                return pandas_values(self._reader, found, frame, "/".join(parts[count:]))
        return None

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
            self._singles[name] = self._single(self.dataset_of(name))
        found = self._singles[name]
        if found is not None and found.array.kind not in {"number", "bool", "string"}:
            raise UnsupportedColumnError(
                f"{found.array.where} holds a single {found.array.kind} value; expected a number or text"
            )
        return found

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
        segments = self._reader.single(name)
        return None if segments is None else Stored.of(segments)

    # What a column is made of ---------------------------------------------------------------------

    def values(self, name: str) -> Values:
        """Return the values of a column; raise `UnknownColumnError` if there is none."""
        if name not in self._known:
            self._known[name] = self._values(name)
        return self._known[name]

    def _values(self, name: str) -> Values:
        if self._form == "loom" and not self._is_reversed:
            raise _of_loom(self._reader.path)
        column, name = name, self.dataset_of(name)
        if self._is_reversed:
            if (encoding := self._encoding(name.strip("/"))) is not None and encoding.kind == "references":
                return self._referred(name)
            layout = self._dataset(name)
            if len(layout.shape) == 1:
                return Stored.of(layout)
            return reversed_values(layout, str(self._reader.values_of_attributes(name, [_CLASS]).get(_CLASS, "")))
        given = self._made.get(column.strip("/"))
        made = given.whole if isinstance(given, RowPart) else given
        if isinstance(made, Ragged):
            return self._ragged(made)
        if isinstance(made, JoinedColumn):
            return self._joined(made)
        if isinstance(made, Fields):
            return stored_fields(self._dataset(made.dataset), made.names, made.name)
        if isinstance(made, Csr):
            return self._csr(made, self._reader.encoding(made.group))
        found = self._values_of_dataset(name)
        if column != name and name in self.chunked:
            self.chunked[column] = self.chunked[name]
        return found

    def dataset_of(self, name: str) -> str:
        """Return the dataset, group or field that a column is of; of most, it has the name."""
        made = self._made.get(name.strip("/"))
        return name if made is None or isinstance(made, JoinedColumn) else made.dataset

    def by_column(self, said: dict[str, tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
        """Return what is said of datasets, also for the columns of these that have names of their own."""
        return {**{name: said[made.dataset] for name, made in self._made.items() if made.dataset in said}, **said}

    def _part(self, name: str) -> RowPart | None:
        made = self._made.get(name.strip("/"))
        return made if isinstance(made, RowPart) and not made.is_whole else None

    def part_of(self, name: str, values: Values) -> Values:
        """Return the part of units that the user asks for, by `part`; they are units of rows, or of steps."""
        if (made := self._part(name)) is None:
            return values
        from ray_h5.columns.row_parts import taken_of

        return taken_of(self._reader, made, values, self._values_of_dataset)

    def segment_part(self, name: str, whole: Values, segments: Segments) -> tuple[Values, RowEntries | None]:
        """Return the part of rows that the user asks for, of rows that are whole datasets."""
        if (made := self._part(name)) is None:
            return whole, None
        from ray_h5.columns.row_parts import segment_part

        return segment_part(self._reader, made, whole, segments, self._values_of_dataset)

    def block_part(
        self, name: str, array: ColumnLayout, cut: tuple[int, ...]
    ) -> tuple[tuple[np.ndarray | None, ...], RowEntries | None]:
        """Return the part of blocks that the user asks for: positions along each axis, and what is drawn."""
        if (made := self._part(name)) is None:
            return (), None
        from ray_h5.columns.row_parts import entries_of, taken_of_blocks

        taken = taken_of_blocks(self._reader, made, array, cut, self._values_of_dataset)
        return taken, None if made.random is None else entries_of(made, array.where)

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
        if not self._decode_cf:
            return stored
        return cf_values(stored, self._reader.values_of_attributes(layout.name, CF_ATTRIBUTES)) or stored

    def _can_find(self, name: str) -> bool:
        try:
            return bool(self._reader.find([name], missing_ok=True))
        except RayH5Error as exc:
            # A field is no dataset. What else is there reports the error when it is read.
            return not (isinstance(exc, UnsupportedColumnError) and exc.is_encoded)

    def _encoded(self, name: str, encoding: Encoding) -> Values:
        if encoding.kind in {"csr", "csc", "compressed"}:
            return self._csr(Csr(name.strip("/")), encoding)
        if encoding.kind == "category":
            return self._category(name, Stored.of(self._dataset(encoding.values)), encoding.other)
        if encoding.kind == "optional":
            values, mask = Stored.of(self._dataset(encoding.values)), Stored.of(self._dataset(encoding.other))
            self._check_mask(name, values, mask)
            return Optional(name, values, mask, self._reader.path)
        if encoding.kind == "references":
            return self._referred(name)
        if encoding.kind == "ragged":
            return self._awkward(name.strip("/"), encoding)
        has_columns = encoding.kind in {"frame", "pandas"} or encoding.said in {"dict", "raw", "anndata"}
        what = "a group, not a column; its columns are below it" if has_columns else "no column of rows"
        raise UnsupportedColumnError(f"{self._reader.path}: {name!r} ({encoding.said}) is {what}")

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
        from ray_h5.columns.conventions.referred_columns import referred_values

        try:
            table = self._datasets(name, name.strip("/"))
        except SchemaMismatchError as exc:
            raise UnsupportedColumnError(*exc.args) from None
        return referred_values(self._reader.path, name, table, is_reversed=self._is_reversed)

    def _joined(self, made: JoinedColumn) -> Values:
        """Return the values of several datasets, end to end."""
        if made.name not in self.joined and len(names := self._in_other_files(made)):
            from ray_h5.columns.end_to_end import end_to_end

            return end_to_end(self._reader, made, names)
        table = self._datasets(made.name, made.pattern)
        segments = table.columns.get(made.name)
        if segments is None:
            why = f"these are groups, such as {table.names[0]!r}, and not datasets"
            raise UnsupportedColumnError(f"{self._reader.path}: {made}: {why}")
        shape = segments.unit_shape
        if shape is None or segments.single:
            found = "single values" if segments.single else "rows of several shapes"
            raise UnsupportedColumnError(
                f"{self._reader.path}: {made}: the datasets have {found}; expected rows of one shape. For a row a "
                f"dataset, pass rows=ray_h5.Groups({made.pattern!r})."
            )
        layout = replace(segments.unit, name=made.name, shape=(int(segments.starts[-1]), *shape))
        return Stored(layout, segments, name=made.name)

    def _in_other_files(self, made: JoinedColumn) -> np.ndarray:
        """Return the names of datasets that a column consists of, if links to other files are among them."""

        def names() -> np.ndarray:
            try:
                self._datasets(made.name, made.pattern)
            except (UnsupportedColumnError, MissingSourceError) as exc:
                from ray_h5.columns.end_to_end import linked_datasets

                return linked_datasets(self._reader, made, exc)
            return np.empty(0, object)

        return self._reader.fact(f"{made}: datasets in other files", names)

    def _dataset(self, name: str) -> ColumnLayout:
        return self._reader.find([name])[name]

    def _check_mask(self, name: str, values: Stored, mask: Stored) -> None:
        if mask.layout.shape != values.layout.shape or mask.dtype.kind not in "biu":
            raise CorruptFileError(
                f"{self._reader.path}: column {name!r}: expected as many values as entries of its mask, found "
                f"{values.layout.shape} and {mask.dtype} {mask.layout.shape}"
            )

    def _category(self, name: str, codes: Stored, categories: str) -> Category:
        layout = self._dataset(categories)
        if layout.row_shape or layout.kind not in {"number", "bool", "string"}:
            raise UnsupportedColumnError(
                f"{layout.where} has {layout.kind} values of shape {layout.row_shape}; expected the categories of "
                f"{name!r}: one number or text for each"
            )
        if codes.dtype.kind not in "iu" or (codes.layout.row_shape and self._form == "anndata"):
            raise CorruptFileError(
                f"{self._reader.path}: column {name!r}: expected integers as codes, found {codes.dtype} of shape "
                f"{codes.layout.shape}"
            )
        values = self._reader.fact(
            categories, lambda: self._reader.read_whole(categories, _CATEGORY_BYTES), of_file=True
        )
        return Category(name, codes, values, self._reader.path)

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
        parent = name.strip("/").rpartition("/")[0]
        found = self._compound(name.strip("/"))
        if found is None or found[0].dtype.names is None:
            if self._form == "anndata":
                known = (
                    self._names(self._reader.layout)
                    if parent.split("/", maxsplit=1)[0] in {"", *_OF_ROWS}
                    else [*self._reader.layout.columns]
                )
                raise UnknownColumnError(f"{self._reader.path}: no {name!r}.{near_names(name, known)}")
            return self._decoded(self._dataset(name))  # raises, with near names
        layout, field = found
        stored = stored_fields(layout, (field,), name, is_one=True)
        categories = _COMPOUND_CATEGORIES.format(field)
        if layout.name.strip("/") in _OF_ROWS and self._form == "anndata":
            if stored.array.row_shape or stored.dtype.kind not in "biufSO":
                raise UnsupportedColumnError(
                    f"{self._reader.path}: field {field!r} of {parent!r} holds {stored.dtype}; expected one number or "
                    "text"
                )
            if stored.dtype.kind in "iu" and self._reader.find([categories], missing_ok=True):
                return self._category(name, stored, categories)
        return stored

    # Ranges ---------------------------------------------------------------------------------------

    def _ragged(self, made: Ragged) -> RaggedRows:
        content = self._content(made.content)
        key, bounds = self._bounds(made)
        check_bounds(bounds, made, content.array.num_rows, self._reader.path)
        self.chunked[made.name] = ChunkedBy(key, content.array.chunk_rows)
        return RaggedRows(made.name, content, bounds)

    def _bounds(self, made: Ragged) -> tuple[str, Bounds]:
        """Return where rows begin and end, and the key of that."""
        if made.offsets is not None and not made.base:
            return self._offsets(made.offsets)
        key = made.bounds_key
        if key in self.bounds:
            return key, self.bounds[key]
        where = f"{self._reader.path}: column {made.name!r}, {' and '.join(map(repr, made.given.values()))}"
        bounds = bounds_in({option: self._whole(name) for option, name in made.given.items()}, made, where)
        self.bounds[key] = bounds
        return key, bounds

    def _whole(self, name: str) -> np.ndarray:
        """Return all values of a dataset, or of a field of one."""
        return read_all(self._reader, self._values_of_dataset(name))

    def episode_bounds(self, name: str) -> Bounds:
        """Return where episodes begin and end, as pairs say."""
        if (key := f"episodes {name}") not in self.bounds:
            where = f"{self._reader.path}: {name!r}"
            self.bounds[key] = bounds_of_pairs(*pairs_of(self._whole(name), where), where)
        return self.bounds[key]

    def _content(self, name: str) -> Values:
        """Return the values of all rows of a ragged column: of a dataset, or of a field of one."""
        found = self.values(name) if name not in self._made else self._values_of_dataset(name)
        if isinstance(found, (RaggedRows, SparseRows)):
            raise UnsupportedColumnError(
                f"{self._reader.path}: ragged({name!r}): it has rows of varying length itself; expected a dataset"
            )
        return found

    def _offsets(self, name: str) -> tuple[str, Bounds]:
        if name not in self.bounds:
            layout = self._values_of_dataset(name).array
            if layout.row_shape or layout.dtype.kind not in "iu":
                raise UnsupportedColumnError(
                    f"{layout.where} has {layout.dtype} of shape {layout.shape}; expected integers along one axis, the "
                    "first value of each row and the end of the last one"
                )
            self.bounds[name] = bounds_of_offsets(self._whole(name), f"{self._reader.path}: {name!r}")
        return name, self.bounds[name]

    def _csr(self, made: Csr, encoding: Encoding | None) -> SparseRows:
        found, self.chunked[made.name] = sparse_rows(self._reader, made, encoding, self._offsets, self.values)
        return found

    def _awkward(self, name: str, encoding: Encoding) -> Values:
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
        self.chunked[name] = self.chunked.pop(made.name)
        return RaggedRows(name, found.content, found.bounds)


def is_single(error: Exception) -> bool:
    """Return whether a column is refused because it has a single value."""
    return str(error).endswith(SINGLE_VALUE)


_OF_CELLS = ("matrix", "layers", "col_attrs")
_CLASS = "MATLAB_class"


def _of_mudata(path: str, tables: list[str]) -> UnsupportedColumnError:
    return UnsupportedColumnError(
        f"{path} is a MuData file, of tables with rows of their own: {few(tables)}. Pass group={tables[0]!r} to read "
        "one of them, or name the columns with columns=[...]."
    )


def _of_loom(path: str) -> UnsupportedColumnError:
    return UnsupportedColumnError(
        f"{path} is a loom file: its matrix has genes along the first axis and cells along the last. Pass "
        "axes='reversed' to read cells as rows."
    )
