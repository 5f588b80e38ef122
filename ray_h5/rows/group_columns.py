"""Rows that are groups."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np

from ray_h5.columns.columns import Columns, Parts, is_single
from ray_h5.columns.conventions.cf_columns import CF_ATTRIBUTES, attributes_of_text, cf_of_groups, text_of_attributes
from ray_h5.columns.conventions.coded_columns import Category, Optional, check_codes
from ray_h5.columns.derived_columns import Csr, Fields, Ragged
from ray_h5.columns.ragged.bounds import rows_key
from ray_h5.columns.row_table import Listing, RowTable
from ray_h5.columns.stored_values import Stored, stored_fields
from ray_h5.columns.values import Values
from ray_h5.errors import (
    CorruptFileError,
    OptionError,
    RayH5Error,
    SchemaMismatchError,
    UnknownColumnError,
    UnsupportedColumnError,
)
from ray_h5.manifest.joined_arrays import GroupTable, JoinedArray, Paths, Texts
from ray_h5.manifest.layout import EncodingKind
from ray_h5.messages import near_names
from ray_h5.rows.row_kind_options import Groups

_PARTS: dict[EncodingKind, tuple[str, str]] = {"category": ("codes", "categories"), "optional": ("values", "mask")}
"""The datasets of an encoded column: its codes or values, and what says what they mean."""

_SPARSE = {"csr", "csc", "compressed"}
_MATRIX = {"data", "indices", "indptr", "shape"}
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
        super().__init__(of_file.reader, of_file.made.values(), table, decode_cf=of_file.decode_cf)
        self._pattern = kind.in_file
        self._of_steps = of_steps
        self.own = [*([] if kind.key is None else [kind.key]), *kind.attrs]
        self._groups = None if table is None else table.groups
        self._values_of: dict[str, Values] = {}
        self._sparse: set[str] = set()
        self._refused: dict[str, RayH5Error] = {}
        self._listed = False

    @property
    def groups(self) -> Paths:
        return self.known.names

    def table(self, **others: Any) -> RowTable:
        return RowTable(self.known, bounds=self.bounds, **others)

    @property
    def known(self) -> GroupTable:
        """What is known of the groups."""
        if self._groups is None:
            self.listing()
        assert self._groups is not None
        return self._groups

    def listing(self) -> Listing:
        if not self._listed:
            table, refused = self.reader.group_table(self._pattern)
            if doubles := [name for name in self.own if name in table.columns]:
                raise OptionError(
                    f"{self.path}: {doubles[0]!r} is a dataset of the groups {self._pattern.said}, and "
                    "a name in key= or attrs= of Groups. Choose another key, or leave out the attribute."
                )
            self._groups, self._refused, self._listed = table, dict(refused), True
            parts = (name.rpartition("/") for name in table.columns)
            for name in dict.fromkeys(parent for parent, _, part in parts if parent and part in _FIRST_PARTS):
                self._encode(name)
        names = [*self.own, *(name for name in self.known.columns if not self._is_part(name)), *self._sparse]
        return Listing(tuple(dict.fromkeys(names)), self._refused)

    def prepare(self, names: Iterable[str]) -> None:
        names = [part for name in names for part in self._datasets_of(name)]
        known = set() if self._groups is None else {*self._groups.columns}
        absent = [name for name in names if name not in known and name not in self.own]
        if self._listed or (self._groups is not None and not absent):
            return
        table, _ = self.reader.group_table(self._pattern, absent)
        if self._groups is not None:
            table = replace(self._groups, columns={**self._groups.columns, **table.columns})
        self._groups = table
        for name in absent:
            if name not in table.columns:
                self._encode(name)
            if name not in self.known.columns and name not in self._sparse:
                self._add_field(name)

    def _datasets_of(self, name: str) -> list[str]:
        """Return the datasets that a column is read from, as far as its name says so."""
        made = self._range(name)
        if made is None:
            return [self.dataset_of(name)]
        return (
            [made.content] if isinstance(made, Ragged) else [f"{made.group}/{index}" for index in ("indices", "data")]
        )

    def _encode(self, name: str) -> None:
        """Make a column of the datasets of an encoded member of each group, if the groups have one of that name.

        Its values or codes get the name of the member; `_encoded` recognizes them by their paths.
        """
        groups = self.known.names
        at = self._first_with(name)
        first = self._encoding(f"{groups[at]}/{name}")
        if first is None or first.kind not in _PARTS:
            if first is not None and first.kind in _SPARSE and self._of_steps:
                self._sparse.add(name)
                self.prepare([name])
            elif first is not None and first.kind in _SPARSE:
                self._refused[name] = UnsupportedColumnError(
                    f"{self.path}: {name!r} in group {groups[at]!r} is a sparse matrix: a row of Groups would "
                    "be rows of rows. Leave rows= out and pass group= of one group, to read the rows in it."
                )
            return
        parts = [f"{name}/{part}" for part in _PARTS[first.kind]]
        self.prepare(parts)
        columns = self.known.columns
        for group in np.flatnonzero(columns[parts[0]].is_there).tolist():
            other = first if group == at else self._encoding(f"{groups[group]}/{name}")
            if other is None or other.kind != first.kind:
                said = "nothing" if other is None else other.said
                raise SchemaMismatchError(
                    f"{self.path}: column {name!r}: expected {first.said}, as in group {groups[at]!r}, found "
                    f"{said} in {groups[group]!r}. Choose groups that agree with the pattern, or leave the column "
                    "out with columns=[...]."
                )
        self._groups = replace(self.known, columns={**columns, name: replace(columns[parts[0]], name=name)})

    def _first_with(self, name: str) -> int:
        """Return the first group that has an encoded member of this name; 0 if all groups have the same members."""
        if self._pattern.missing == "error":
            return 0
        parts = [f"{name}/{part}" for part in _FIRST_PARTS]
        columns = self.known.columns
        if not self._listed:
            columns = self.reader.group_table(self._pattern, parts)[0].columns
        return min((int(np.argmax(columns[part].is_there)) for part in parts if part in columns), default=0)

    def _add_field(self, name: str) -> None:
        """Make a column of a field of the compound values of each group, if the groups have such a dataset.

        It has the paths of the dataset, by which `_fields` recognizes it.
        """
        parts = name.strip("/").split("/")
        for count in range(len(parts) - 1, 0, -1):
            table, _ = self.reader.group_table(self._pattern, [dataset := "/".join(parts[:count])])
            joined = table.columns.get(dataset)
            if joined is not None and joined.dtype.names is not None:
                self._groups = replace(self.known, columns={**self.known.columns, name: replace(joined, name=name)})
                return

    def _fields(self, name: str, joined: JoinedArray) -> Values | None:
        """Return fields of compound values; None for other values."""
        made = self.whole(name)
        if isinstance(made, Fields):
            return stored_fields(joined, made.names, name)
        dataset, path = joined.paths.below.strip("/"), self.dataset_of(name).strip("/")
        if joined.dtype.names is None or not path.startswith(f"{dataset}/"):
            return None
        return stored_fields(joined, (path[len(dataset) + 1 :],), name, is_one=True)

    def _is_part(self, name: str) -> bool:
        """Return whether a column is a part of an encoded one."""
        parent, _, last = name.rpartition("/")
        if parent in self._sparse:
            return last in _MATRIX
        return parent in self.known.columns and any(last in parts for parts in _PARTS.values())

    def _encoded(self, name: str, joined: JoinedArray) -> Values | None:
        """Return the values of an encoded column; None for a plain one."""
        member = self.dataset_of(name)
        for kind, (first, second) in _PARTS.items():
            if not joined.paths.below.endswith(f"/{member}/{first}"):
                continue
            path, values, other = self.path, Stored.of(joined), self.known.columns[f"{member}/{second}"]
            if kind == "optional":
                differ = np.flatnonzero((other.shapes != joined.shapes).any(axis=1))
                if len(differ) or other.unit.dtype.kind not in "biu":
                    at = int(differ[0]) if len(differ) else 0
                    raise CorruptFileError(
                        f"{path}: column {name!r}, group {self.known.names[at]!r}: expected as many values as entries "
                        f"of its mask, found {joined.shapes[at]} and {other.unit.dtype} {other.shapes[at]}"
                    )
                return Optional(values, name, Stored.of(other), path)
            check_codes(path, name, values, other.unit)
            return Category(values, name, other, path)
        return None

    def _values(self, name: str, joined: JoinedArray) -> Values:
        if name not in self._values_of:
            values = self._fields(name, joined) or self._encoded(name, joined)
            self._values_of[name] = values or self._decoded(joined)
        return self._values_of[name]

    def _decoded(self, joined: JoinedArray) -> Values:
        """Return the values of datasets; the attributes of each say what its values mean."""
        stored = Stored.of(joined)
        if not self.decode_cf:
            return stored
        if not len(there := np.flatnonzero(joined.is_there)):
            return stored
        key = f"decode_cf {joined.paths[int(there[0])]}"
        if (texts := self.known.attributes.get(key)) is None:
            texts = self._attribute_texts(joined)
            self._groups = replace(self.known, attributes={**self.known.attributes, key: texts})
        assert isinstance(texts, Texts)
        alike: dict[bytes, int] = {}
        firsts = np.flatnonzero(np.diff(texts.ends, prepend=0))
        classes = np.array([alike.setdefault(texts[group], len(alike)) for group in firsts.tolist()], np.int64)
        class_of = np.zeros(len(joined), np.int64)
        class_of[there] = classes[np.searchsorted(firsts, there, side="right") - 1]
        return cf_of_groups(stored, [attributes_of_text(text) for text in alike], class_of)

    def _attribute_texts(self, joined: JoinedArray) -> Texts:
        """Return the attributes of each dataset as a text; an empty one stands for those of the dataset before."""
        texts, last = [b""] * len(joined), b""
        for group in np.flatnonzero(joined.is_there).tolist():
            text = text_of_attributes(self.reader.values_of_attributes(joined.paths[group], CF_ATTRIBUTES))
            if text != last:
                texts[group] = last = text
        return Texts.of(texts)

    def datasets(self, name: str) -> tuple[Values, JoinedArray]:
        joined = self.joined(name)
        return self._values(name, joined), joined

    def joined(self, name: str) -> JoinedArray:
        """Return the datasets of a column; raise `UnknownColumnError` if there are none."""
        self.prepare([name])
        known = self.known.columns
        dataset, known_column = self.dataset_of(name), known.get(name)
        if (
            dataset != name
            and dataset in known
            and (known_column is None or known_column.paths is not known[dataset].paths)
        ):
            # A column of another name has the paths of its dataset, as one of a field.
            self._groups = replace(self.known, columns={**known, name: replace(known[dataset], name=name)})
        if name in self.known.columns:
            return self.known.columns[name]
        if dataset in self._refused:
            raise self._refused[dataset]
        names = self.listing().names
        raise UnknownColumnError(
            f"{self.path}: no {dataset!r} in the groups {self._pattern.said}.{near_names(dataset, names)}"
            f"{self._hint_of(dataset)}"
        )

    def _hint_of(self, name: str) -> str:
        """Return a sentence for an attribute of groups; or a dataset of the file, such as a mask of robomimic."""
        with suppress(RayH5Error):
            if name in self.reader.attribute_names(self.known.names[0]):
                return f" {name!r} is an attribute: pass attrs=[{name!r}] to Groups."
            if name in self.reader.find([name], missing_ok=True):
                return f" It is a dataset of the file: if it names rows, write where(**{{{name!r}: row_mask()}})."
        return ""

    def has(self, name: str) -> bool:
        self.prepare([name])
        if name not in self.known.columns:
            return False
        try:
            self._values(name, self.joined(name))
        except UnknownColumnError:
            return False  # a dataset above has no such field
        return True

    def parts(self, name: str) -> Parts:
        if (made := self._range(name)) is not None:
            others = made.rows if isinstance(made, Csr) else made
            names = [] if rows_key(made.name) in self.bounds else [*others.given.values()]
            self.prepare([*names, *self._datasets_of(made.name)])
            values = self.of_units(made.name, self.csr(made) if isinstance(made, Csr) else self.ragged(made))
            rows = self.bounds[rows_key(made.name)]
            return Parts(values, rows.starts, rows.stops - rows.starts, values.array.chunk_rows)
        joined = self.joined(name)
        chunk_rows = max(layout.chunk_rows for layout in joined.layouts)
        return Parts(
            self._units(name, joined), joined.starts[:-1], joined.lengths, chunk_rows, joined, is_single(joined)
        )

    def attributes_of(self, name: str, attributes: Sequence[str]) -> list[Mapping[str, Any]]:
        joined, nothing = self.joined(name), dict[str, Any]()
        there = zip(joined.paths, joined.is_there.tolist(), strict=True)
        return [self.reader.values_of_attributes(path, attributes) if is_there else nothing
                for path, is_there in there]  # fmt: skip

    def is_range(self, name: str) -> bool:
        return self._range(name) is not None

    def _range(self, name: str) -> Ragged | Csr | None:
        """Return how a column whose rows are ranges in each group is made; None for other columns."""
        made = self.whole(name)
        if isinstance(made, (Ragged, Csr)):
            return made
        # A table that is known has the rows of matrices alone beside those that the user describes.
        dataset = self.dataset_of(name)
        is_sparse = not isinstance(made, Fields) and (dataset in self._sparse or rows_key(name) in self.bounds)
        return Csr(dataset, called="" if dataset == name else name) if is_sparse else None

    def _stored_parts(self, name: str) -> Parts:
        joined = self.joined(name)
        return Parts(Stored.of(joined), joined.starts[:-1], joined.lengths)

    def _plain_parts(self, name: str) -> Parts:
        joined = self.joined(name)
        if joined.unit_shape is None:
            raise UnsupportedColumnError(
                f"{self.path}: the values of {name!r} have other shapes in other groups, such as "
                f"{joined.layouts[0].row_shape} and {joined.layouts[1].row_shape}. Choose groups that agree with the "
                "pattern, or leave the column out."
            )
        if not joined.is_there.all():
            lacking = self.known.names[int(np.argmin(joined.is_there))]
            raise SchemaMismatchError(
                f"{self.path}: group {lacking!r} lacks {name!r}, which says where rows are or holds their "
                "values. Choose groups that have it with the pattern, or leave the column out."
            )
        return Parts(self._values(name, joined), joined.starts[:-1], joined.lengths)

    def _units(self, name: str, joined: JoinedArray) -> Values:
        """Return the values of units, or the parts of them that the user asks for."""
        values = self.of_units(name, self._values(name, joined))
        if joined.unit_shape is None and (made := self.part(name)) is not None:
            raise UnsupportedColumnError(
                f"{self.path}: column {name!r}: {made}: steps of groups differ in shape, such as "
                f"{joined.layouts[0].row_shape} and {joined.layouts[1].row_shape}. Choose groups that agree with "
                "the pattern, or take the part in a transform."
            )
        return values
