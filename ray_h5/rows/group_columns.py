"""Rows that are groups."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np

from ray_h5.columns.column_resolver import Columns, Parts, Source
from ray_h5.columns.conventions.cf_columns import attributes_of_text, text_of_attributes
from ray_h5.columns.derived_columns import (
    ColumnKey,
    ColumnLike,
    Csr,
    Fields,
    JoinedColumn,
    MadeColumn,
    Ragged,
    is_range,
    joined_in,
)
from ray_h5.columns.ragged.csr_groups import SPARSE
from ray_h5.columns.ragged.range_columns import OfParts
from ray_h5.columns.row_table import Listing, RowTable
from ray_h5.columns.stored_values import Stored, field_of
from ray_h5.columns.values import Decoded, Values, reshaped
from ray_h5.errors import RayH5Error, SchemaMismatchError, UnknownColumnError, UnsupportedColumnError
from ray_h5.lru import LRU
from ray_h5.manifest.joined_arrays import ENDS, LACKS, MISSING, GroupTable, JoinedArray, JoinedValues, Paths, Texts
from ray_h5.manifest.layout import Encoding, EncodingKind
from ray_h5.manifest.partition import Partition
from ray_h5.messages import near_names
from ray_h5.rows.row_kind_options import Groups

_PARTS: dict[EncodingKind, tuple[str, str]] = {"category": ("codes", "categories"), "optional": ("values", "mask")}
"""The datasets of an encoded column: its codes or values, and what says what they mean."""

_MOST_MADE = 1 << 10
"""Groups whose columns of several datasets are known to a reader at a time."""

_MATRIX = ("data", "indices", "indptr", "shape")
_FIRST_PARTS = ("codes", "values", "indptr")
"""Datasets by whose names members may be encoded."""


class GroupColumns(Columns):
    """The columns of the groups of one file that match a pattern.

    Parameters
    ----------
    of_file : Columns
        The columns of the file.
    kind : Groups
        Which groups.
    table : RowTable, optional
        What is known of the rows.
    of_steps : bool
        Whether rows are steps of groups, so that each group may have a sparse matrix.
    """

    def __init__(self, of_file: Columns, kind: Groups, table: RowTable | None, *, of_steps: bool) -> None:
        options = {"decode_cf": of_file.decode_cf, "is_reversed": of_file.is_reversed}
        super().__init__(of_file.reader, of_file.made.values(), table, **options)
        self._of_file = of_file
        self._pattern = kind.in_file
        self._of_steps = of_steps
        self.own = [*([] if kind.key is None else [kind.key]), *kind.attrs]
        # Datasets by their paths below a group; and columns of other names, with the datasets that they are read from.
        self._groups = None if table is None else table.groups
        self._absent: set[str] = set()
        self._refers: set[str] = set()  # columns that have references in some groups
        self._compared = set[str]() if self._groups is None else set(self._groups.columns)
        self._listing: Listing | None = None

    @property
    def groups(self) -> Paths:
        return self.known.names

    def table(self, **others: Any) -> RowTable:
        # A column that was not compared is not known: whoever asks for it compares it.
        known, columns = self._compared, self.known.columns.items()
        kept = {name: of for name, of in columns if name in known or of.name != name or of.is_there.all()}
        # Of each group: in a store, a reader is told all of it, and on a disk it finds it where it reads the group.
        of_groups = self._of_file.many if self.reader.is_fetched else {}
        table = replace(self.known, columns=kept)
        return RowTable(table, bounds=self.bounds, rows=self.rows, joined={**of_groups, **self.many}, **others)

    @property
    def known(self) -> GroupTable:
        """What is known of the groups."""
        if self._groups is None:
            self.listing()
        assert self._groups is not None
        return self._groups

    def listing(self) -> Listing:
        if self._listing is None:
            try:
                self._listing = self._listed()
            except RayH5Error:
                self._listing = None  # whoever asks again gets the error again, and no part of a listing
                raise
        return self._listing

    def _listed(self) -> Listing:
        table, errors = self.reader.group_table(self._pattern)
        self._groups, refused = table, dict[str, Exception](errors)
        self._listing, referred = Listing(tuple(table.columns), refused), list[str]()  # there are no other datasets
        for name in self._note_refused(errors):
            try:
                self.values(name)
                referred.append(name)
            except (UnknownColumnError, UnsupportedColumnError) as exc:
                refused[name] = exc
        # The encoded members of groups, matrices last, in place of the datasets that they are read from.
        above = (name.rpartition("/") for name in table.columns)
        encoded, matrices, parts = list[str](), list[str](), set[str]()
        for name in dict.fromkeys(parent for parent, _, part in above if parent and part in _FIRST_PARTS):
            try:
                self.plain(name)  # raises if other groups have a dataset of this name
                encoding = self.encoding(name)
            except (UnknownColumnError, UnsupportedColumnError) as exc:
                refused[name] = exc
                continue
            if encoding is not None:
                of_kind = _PARTS.get(encoding.kind, _MATRIX)
                (matrices if of_kind is _MATRIX else encoded).append(name)
                parts.update(f"{name}/{part}" for part in of_kind)
        names = [*self.own, *(name for name in table.columns if name not in parts), *referred, *encoded, *matrices]
        refused = {name: error for name, error in refused.items() if name not in referred}
        return Listing(tuple(dict.fromkeys(names)), refused)

    def _note_refused(self, errors: Mapping[str, RayH5Error]) -> list[str]:
        """Know which columns have references in groups, and return them."""
        names = [name for name, error in errors.items() if getattr(error, "is_encoded", False)]
        self._refers.update(names)
        return names

    def look_at(self, paths: Iterable[str]) -> None:
        """Find out about datasets, several at once."""
        known = set() if self._groups is None else self._groups.columns.keys() | self._groups.made.keys()
        unknown = [
            path for path in paths if path not in known and path not in self._absent and not self._has_references(path)
        ]
        if self._listing is not None or (self._groups is not None and not unknown):
            return
        table, errors = self.reader.group_table(self._pattern, unknown)
        self._note_refused(errors)
        self._absent.update(path for path in unknown if path not in table.columns)
        self._groups = table if self._groups is None else self._groups.merged(table)

    def paths_of(self, name: str) -> list[str]:
        """Return the datasets that a column is read from, as far as its name says so."""
        made = self.whole(name)
        if made is not None and not isinstance(made, str):
            return self._datasets_of(made, made.name)
        return [self.dataset_of(name)]

    def _datasets_of(self, of: ColumnLike, key: str | ColumnKey) -> list[str]:
        """Return the datasets that a column is made of; without those of bounds that are known, by `key`."""
        if isinstance(of, str):
            return [of]
        if isinstance(of, JoinedColumn):
            return []  # each group has its own
        if isinstance(of, Csr):
            content, of = [f"{of.group}/data", f"{of.group}/indices"], of.rows
        else:
            content = self._datasets_of(of.argument, ColumnKey("units", of.argument))
        bounds = of.given.values() if isinstance(of, Ragged) and key not in self.rows else ()
        return [*content, *(path for bound in bounds for path in self._datasets_of(bound, ColumnKey("units", bound)))]

    def in_file(self, path: str) -> Values:
        return self._of_file.in_file(path)

    # What the groups say --------------------------------------------------------------------------

    def whole(self, name: str) -> str | MadeColumn | None:
        made, path = super().whole(name), self.dataset_of(name)
        # A table that is known has the rows of matrices alone beside those that the user describes.
        is_matrix = not isinstance(made, (Ragged, Csr, Fields)) and name in self.rows
        return Csr(path, called="" if path == name else name) if is_matrix else made

    def source(self, path: str) -> JoinedArray:
        if (joined := self.plain(path)) is not None:
            return joined
        listing = self.listing()
        if path in listing.refused:
            raise listing.refused[path]
        hint = near_names(path, listing.names)
        with suppress(RayH5Error):  # an attribute of groups; or a dataset of the file, such as a mask of robomimic
            if path in self.reader.attribute_names(self.known.names[0]):
                hint += f" {path!r} is an attribute: pass attrs=[{path!r}] to Groups."
            elif path in self.reader.find([path], missing_ok=True):
                hint += f" It is a dataset of the file: if it names rows, write where(**{{{path!r}: row_mask()}})."
        raise UnknownColumnError(f"{self.path}: no {path!r} in the groups {self._pattern.said}.{hint}")

    def plain(self, path: str) -> JoinedArray | None:
        self.look_at([path])
        joined = self.known.columns.get(path)
        if joined is None or joined.name != path:
            return None
        if not (path in self._compared or joined.is_there.all()):
            self._check_others(path, joined)
            self._compared.add(path)
        return joined

    def _check_others(self, path: str, joined: JoinedArray) -> None:
        """Raise if a group that lacks a dataset has values of its name that are stored in another way."""
        lacks, at = ~joined.is_there, int(np.argmax(joined.is_there))
        for group in np.flatnonzero(self._members_of(path) & lacks).tolist():
            encoding = self._encoding_in(self.known.names[group], path)
            if encoding is not None and encoding.kind in {*_PARTS, *SPARSE}:
                raise self._differs(path, ("a dataset", at), (encoding.said, group))
        try:
            source, field = self._compound(path) or (joined, "")
            assert isinstance(source, JoinedArray)
            field_of(source.layouts[0].stored_dtype, field)
        except (KeyError, SchemaMismatchError):
            return  # there is no such field; or groups differ in what is above, which is another column
        if (others := np.flatnonzero(source.is_there & lacks)).size:
            raise self._differs(path, ("a dataset", at), (f"a field of {source.name!r}", int(others[0])))

    def _differs(self, path: str, expected: tuple[str, int], other: tuple[str, int]) -> SchemaMismatchError:
        """Return the error of a column that two groups store in two ways: how, and in which group."""
        groups = self.known.names
        return SchemaMismatchError(
            f"{self.path}: column {path!r}: expected {expected[0]}, as in group {groups[expected[1]]!r}, found "
            f"{other[0]} in {groups[other[1]]!r}. Choose groups that agree with the pattern, or leave the column "
            "out with columns=[...]."
        )

    def encoding(self, path: str) -> Encoding | None:
        """Return what a member of each group encodes; its parts are below it."""
        if self._has_references(path):
            return Encoding("references", "references")
        if self.is_reversed:
            return None
        if (known := self.known.columns.get(path)) is not None:  # it was compared in all groups
            kinds = (kind for kind, (part, _) in _PARTS.items() if known.name == f"{path}/{part}")
            return next((_encoding(kind, kind, path) for kind in kinds), None)
        groups, has_member = self.known.names, self._members_of(path)
        at = int(np.argmax(has_member))
        first = self._encoding_in(groups[at], path)
        if first is None or first.kind not in {*_PARTS, *SPARSE}:
            return None
        if first.kind in SPARSE and not self._of_steps:
            raise UnsupportedColumnError(
                f"{self.path}: {path!r} in group {groups[at]!r} is a sparse matrix: a row of Groups would "
                "be rows of rows. Leave rows= out and pass group= of one group, to read the rows in it."
            )
        self._look_at_parts(path, first, groups[at])
        if first.kind in SPARSE:
            return first
        encoding = _encoding(first.kind, first.said, path)
        joined = self.source(encoding.values)
        for group in np.flatnonzero(has_member).tolist():
            other = first if group == at else self._encoding_in(groups[group], path)
            # A group may have datasets of other columns alone.
            self._check_alike(path, (at, first), (group, other), may_lack=not joined.is_there[group])
        self._note(path, joined)
        return encoding

    def _look_at_parts(self, path: str, first: Encoding, group: str) -> None:
        """Look at the parts of all columns that were asked for, at once: each pass opens all groups."""
        others = {name: self._encoding_in(group, name) for name in sorted(self._absent - {path})}
        wanted: dict[str, Sequence[str]] = {name: _PARTS.get(of.kind, ()) for name, of in others.items() if of}
        wanted[path] = _PARTS.get(first.kind, _MATRIX[:3])
        self.look_at(f"{name}/{part}" for name, parts in wanted.items() for part in parts)

    def _check_alike(
        self, path: str, first: tuple[int, Encoding], other: tuple[int, Encoding | None], *, may_lack: bool
    ) -> None:
        """Raise unless a column is encoded in one group as in the first one, or not there, where it may lack."""
        (at, expected), (group, found) = first, other
        if (found is None and not may_lack) or (found is not None and found.kind != expected.kind):
            raise self._differs(path, (expected.said, at), ("nothing" if found is None else found.said, group))

    def _encoding_in(self, group: str, path: str) -> Encoding | None:
        with suppress(RayH5Error):  # reading it as a dataset reports what is wrong
            return self.reader.encoding(f"{group}/{path}")
        return None

    def _members_of(self, path: str) -> np.ndarray:
        """Return which groups may have an encoded member of this name: bool; all if groups have the same members."""
        if self._pattern.missing == "error":
            return np.ones(len(self.groups), bool)
        parts = [f"{path}/{part}" for part in _FIRST_PARTS]
        self.look_at(parts)
        there = [self.known.columns[part].is_there for part in parts if part in self.known.columns]
        return np.logical_or.reduce([np.zeros(len(self.groups), bool), *there])

    def _note(self, name: str, joined: JoinedValues) -> None:
        """Know the datasets that a column is read from by its name, too."""
        if self.known.values_of(name) is joined:
            return
        if isinstance(joined, JoinedArray):
            self._groups = replace(self.known, columns={**self.known.columns, name: joined})
        else:
            self._groups = replace(self.known, made={**self.known.made, name: joined})

    # References in groups -------------------------------------------------------------------------

    def _has_references(self, path: str) -> bool:
        return path in self._refers or _followed(path) in self.many

    def referred(self, path: str) -> Values:
        """Return the single values that a dataset of each group is, or refers to, one group after the other."""
        if self.is_reversed:
            raise UnsupportedColumnError(
                f"{self.path}: column {path!r} has references in each group {self._pattern.said}, such as cells of "
                "MATLAB; with axes='reversed' they are read along the first axis. Leave rows= out and pass group= of "
                "one group, or leave the column out with columns=[...]."
            )
        table = self._referred(_followed(path), replace(self._pattern, attrs=(), name=path, follows=True))
        joined = table.columns[path]
        self.check_one_shape(path, joined, "and a row joins several")
        return Stored.end_to_end(path, joined)

    def _of_groups(self, stored: JoinedArray) -> JoinedValues:
        """Return datasets, one a group, given those that columns are stored in: a group may refer to several."""
        table = self.many.get(_followed(stored.name))
        if table is None or table.columns[stored.name] is not stored:
            return stored
        ends, lacks = (np.asarray(table.attributes[what + stored.name]) for what in (ENDS, LACKS))
        counts, unit = np.diff(ends, prepend=0), stored.layouts[0].row_shape
        shapes = np.concatenate([counts[:, None], np.broadcast_to(np.array(unit, np.int64), (len(ends), len(unit)))], 1)
        groups = replace(self.groups, below=f"/{stored.name}")
        class_of = np.where(lacks, MISSING, 0).astype(np.int32)
        return JoinedValues(stored.name, groups, (stored.unit,), class_of, shapes)

    def attributes(self, source: Source, names: Sequence[str]) -> tuple[Sequence[Mapping[str, Any]], np.ndarray]:
        assert isinstance(source, JoinedArray)
        there = np.flatnonzero(source.is_there).tolist()
        key = f"{names[0]} {source.paths[there[0]] if there else ''}"
        if key not in self.known.attributes:
            texts, class_of = dict[bytes, int](), np.zeros(len(source), np.int64)
            if self.reader.is_fetched and self.is_reversed:  # datasets are read one by one, and a manifest has them
                self.reader.find([source.paths[group] for group in there])
            for group in there:
                text = text_of_attributes(self.reader.values_of_attributes(source.paths[group], names))
                class_of[group] = texts.setdefault(text, len(texts))
            known = self.known.attributes
            self._groups = replace(self.known, attributes={**known, key: Texts.of([*texts]), f"{key} of": class_of})
        said, of = (self.known.attributes[name] for name in (key, f"{key} of"))
        assert isinstance(said, Texts)
        assert isinstance(of, np.ndarray)
        return [attributes_of_text(text) for text in said], of

    # Columns end to end ---------------------------------------------------------------------------

    def end_to_end(self, made: JoinedColumn) -> Values:
        """Return the rows of what matches a pattern below each group, those of one after those of the one before."""
        key = ColumnKey("datasets", made, in_each_group=True)
        whole = self._datasets_end_to_end(made, key)
        if whole is None:
            return self._each_end_to_end(made, key)

        def part_of(units: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            return np.zeros(len(units), np.int64), units

        return OfParts(made.name, (whole,), part_of, joined=self._shapes_of(made, whole, self.rows[key]))

    def _datasets_end_to_end(self, made: JoinedColumn, key: ColumnKey) -> Values | None:
        """Fast path of `end_to_end` for datasets of groups of one pattern: one array, however many there are.

        None for what is read otherwise, or is wrong.
        """
        globs = self._pattern.globs
        is_known = key in self.many or key not in self.rows
        if self.is_reversed or is_range(made) or len(globs) != 1 or "**" in globs[0] or not is_known:
            return None
        pattern = replace(self._pattern, pattern=f"{globs[0]}/{made.dataset}", attrs=(), name=made.name)
        with suppress(RayH5Error):
            table = self._datasets(key, pattern)
            joined = table.columns.get(made.name)
            if joined is None or joined.single or joined.unit_shape is None or not joined.is_there.all():
                return None
            levels, known = globs[0].strip("/").count("/") + 1, {name: at for at, name in enumerate(self.groups)}
            above = ("/".join(path.split("/")[:levels]) for path in table.names)
            groups = np.array([known.get(group, -1) for group in above], np.int64)
            # Of each group in their order; what is wrong is reported where each group is looked at.
            if groups[0] == 0 and groups[-1] == len(known) - 1 and set(np.diff(groups).tolist()) <= {0, 1}:
                whole = self._of_file.of_datasets(made, made.argument, joined, "")
                if whole is None:
                    return None
                self.rows[key] = Partition.of(np.bincount(groups, joined.lengths, len(known)).astype(np.int64))
                return whole.values
        return None

    def _each_end_to_end(self, made: JoinedColumn, key: ColumnKey) -> Values:
        """Return what `end_to_end` does, of groups whose columns are made one by one, when they are read."""
        made_of: LRU[Values] = LRU(_MOST_MADE)

        def of(group: int) -> Values:
            if (values := made_of.get(group)) is None:
                values = self._of_file.end_to_end(made.below(self.groups[group]))
                made_of.put(group, values)
            return values

        parts = [of(group) for group in range(1 if key in self.rows else len(self.groups))]
        if key not in self.rows:
            whole = OfParts.end_to_end(made.name, tuple(parts), self.groups)
            assert whole.units is not None
            self.rows[key] = whole.units
        joined = self._shapes_of(made, parts[0], self.rows[key])
        return OfParts(made.name, (parts[0],), joined.units.local, of, joined=joined)

    def _shapes_of(self, made: JoinedColumn, values: Values, units: Partition) -> JoinedValues:
        """Return the shapes of what each group has of a column, as if it were a dataset of each."""
        layout = values.array
        unit = reshaped(replace(layout, num_rows=1), *layout.row_shape)
        widths = np.broadcast_to(np.array(layout.row_shape, np.int64), (len(units), len(layout.row_shape)))
        shapes = np.concatenate([units.lengths[:, None], widths], axis=1)
        paths = replace(self.groups, below=f"/{made.dataset}")
        return JoinedValues(made.dataset, paths, (unit,), np.zeros(len(units), np.int32), shapes)

    # Units of columns -----------------------------------------------------------------------------

    def joined(self, values: Values) -> JoinedValues:
        if isinstance(values, OfParts) and values.joined is not None:
            return values.joined
        whole = values.parts[0] if isinstance(values, OfParts) else values
        stored = whole.values if isinstance(whole, Decoded) else whole
        assert isinstance(stored, Stored)
        assert isinstance(stored.address, JoinedArray)
        return self._of_groups(stored.address)  # of encoded values, the codes or values

    def datasets(self, name: str) -> tuple[Values, JoinedValues]:
        values, joined = super().datasets(name)
        if not self._has_references(joined.name):
            self._note(name, joined)
        return values, joined

    def attributes_of(self, name: str, attributes: Sequence[str]) -> list[Mapping[str, Any]]:
        is_joined = joined_in(self.made.get(name.strip("/"), name)) is not None
        if is_joined or self.is_range(name) or self._has_references(self.dataset_of(name)):  # of several datasets
            return [{}] * len(self.groups)
        _, joined = self.datasets(name)
        there = zip(joined.paths, joined.is_there.tolist(), strict=True)
        return [self.reader.values_of_attributes(path, attributes) if is_there else {} for path, is_there in there]

    def parts(self, name: str) -> Parts:
        if self.is_range(name):
            values, rows = self.of_units(name, self.values(name)), self.rows[name.strip("/")]
            return Parts(values, rows.firsts, rows.lengths, values.array.chunk_rows)
        if (part := self.part(name)) is not None:
            _, joined = self.datasets(name)
            self.check_one_shape(name, joined, f"and {part} takes the same of each", "take the part in a transform")
        return super().parts(name)


def _followed(path: str) -> ColumnKey:
    """Return the key of the datasets that a column of each group refers to."""
    return ColumnKey("datasets", path, in_each_group=True)


def _encoding(kind: EncodingKind, said: str, path: str) -> Encoding:
    """Return what is encoded in datasets below a path."""
    return Encoding(kind, said, (), *(f"{path}/{part}" for part in _PARTS[kind]))
