"""What is known of a file: what it says about its values; of a remote one all that reads ask for but data."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np

from ray_h5.manifest.layout import LAYOUT_BYTES

if TYPE_CHECKING:
    from ray_h5.manifest.known_columns import KnownColumn


EncodingKind: TypeAlias = Literal[
    "csr", "csc", "compressed", "category", "optional", "frame", "ragged", "pandas", "references", "other"
]

Form: TypeAlias = Literal["", "anndata", "10x", "loom", "pandas", "ray_h5"]
"""What kind of file it is, as far as that decides what its rows are; empty for files of datasets."""


@dataclass(frozen=True, slots=True)
class Encoding:
    """What a group, or a dataset, encodes.

    Attributes
    ----------
    kind : str
        ``csr`` and ``csc``: a sparse matrix, compressed along its rows or its columns. ``compressed``: one that does
        not say which. ``category``: codes, and the values that they stand for. ``optional``: values, and a mask of
        those that are missing. ``frame``: a table. ``ragged``: an array of varying length. ``references``: what other
        objects hold. ``other``: something else.
    said : str
        What the file calls it, for messages.
    shape : tuple of int
        Shape of a sparse matrix; empty if it is in a dataset ``shape``.
    values : str
        Dataset, below the group that the file was opened with, of the codes or values.
    other : str
        That of the categories, or the mask.
    index : str
        Name of the index of a table.
    text : str
        The form of an awkward array, or the columns of a table of pandas, as JSON.
    """

    kind: EncodingKind
    said: str
    shape: tuple[int, ...] = ()
    values: str = ""
    other: str = ""
    index: str = ""
    text: str = ""


@dataclass(frozen=True, slots=True)
class ColumnNotes:
    """What the file says about the values of a column.

    Attributes
    ----------
    packing : mapping of str to str
        Attributes of the CF conventions that convert stored values to physical ones, such as ``scale_factor``.
    enum : mapping of str to int
        The names of the values, if they are an enum.
    bare_dimension : bool
        Whether it is a dimension of netCDF without coordinates. It has a length and no values.
    time : str
        What numbers count, if they are times: ``days since 2000-01-01``.
    """

    packing: Mapping[str, str] = field(default_factory=dict)
    enum: Mapping[str, int] = field(default_factory=dict)
    bare_dimension: bool = False
    time: str = ""

    @property
    def follows_cf(self) -> bool:
        """Whether stored values are others than the attributes mean."""
        return bool(self.packing or self.time)

    @property
    def conversion(self) -> str:
        """What to do with stored values to get the values that the attributes mean; empty if nothing."""
        packing = self.packing
        compute = "value"
        if "scale_factor" in packing:
            compute += f" * {packing['scale_factor']}"
        if "add_offset" in packing:
            compute += f" + {packing['add_offset']}"
        missing = list(dict.fromkeys(packing[name] for name in ("_FillValue", "missing_value") if name in packing))
        todo = [f"compute {compute}"] if compute != "value" else []
        todo += [f"take {' and '.join(missing)} for missing"] if missing else []
        todo += [f"count {self.time}"] if self.time else []
        return ", and ".join(todo)


_OBJECT_BYTES = 56
"""What a text takes, besides its bytes."""


@dataclass(frozen=True, slots=True)
class Manifest:
    """What was found out of a file in a store: another process that has it asks for data alone.

    Attributes
    ----------
    form : str, optional
        What kind of file it is; None if that is not known.
    listing : tuple of str, optional
        The columns that can be read, all of which are in `columns`; None if they are not known.
    columns : dict of str to KnownColumn
        Its datasets, by their paths.
    absent : dict of str to None
        Names of which there is no dataset.
    encodings : dict of str to Encoding or None
        What groups and datasets encode; None for a plain one.
    attributes : dict of str to dict
        The attributes of datasets that were asked for: an array of numbers, a text, or None for one that is missing.
    values : dict of str to numpy.ndarray
        What was computed from small datasets, such as the categories of a column.
    """

    form: Form | None = None
    listing: tuple[str, ...] | None = None
    columns: dict[str, KnownColumn] = field(default_factory=dict)
    absent: dict[str, None] = field(default_factory=dict)
    encodings: dict[str, Encoding | None] = field(default_factory=dict)
    attributes: dict[str, dict[str, np.ndarray | str | None]] = field(default_factory=dict)
    values: dict[str, np.ndarray] = field(default_factory=dict)

    def __bool__(self) -> bool:
        """Return whether anything is known."""
        nothing = self.form is None and self.listing is None
        return not nothing or any((self.columns, self.absent, self.encodings, self.attributes, self.values))

    def merged(self, found: Manifest) -> Manifest:
        """Return what is known here, and what was found since, of the same state of the file."""
        parts: dict[str, Any] = {each.name: getattr(self, each.name) for each in fields(self)}
        for name, mine in parts.items():
            if (other := getattr(found, name)) is not None:
                parts[name] = {**mine, **other} if isinstance(other, dict) else other
        lost = {name: each for name, each in self.columns.items() if each.is_whole}
        parts["columns"] = {**parts["columns"], **{n: k for n, k in lost.items() if not parts["columns"][n].is_whole}}
        parts["attributes"] = {n: {**self.attributes.get(n, {}), **each} for n, each in parts["attributes"].items()}
        return Manifest(**parts)

    @property
    def size(self) -> tuple[int, ...]:
        """How much is known: it does not become less."""
        return (
            (self.form is not None) + (self.listing is not None),
            sum(1 + each.is_whole for each in self.columns.values()),
            len(self.absent) + len(self.encodings) + len(self.values) + sum(map(len, self.attributes.values())),
        )

    def holds(self, other: Manifest) -> bool:
        """Return whether all that another manifest of the same state of the file knows is here too."""
        return self.merged(other).size == self.size

    def without(self, names: Collection[str]) -> Manifest:
        """Return the same without some datasets."""
        return replace(self, columns={name: each for name, each in self.columns.items() if name not in names})

    @property
    def nbytes(self) -> int:
        """Bytes in memory, about."""
        packed = sum(len(index.data) for each in self.columns.values() for index in each.indexes)
        texts = (len(text) + _OBJECT_BYTES for each in self.values.values() if each.dtype.hasobject for text in each)
        arrays = sum(each.nbytes for each in self.values.values()) + sum(texts)
        return len(self.columns) * LAYOUT_BYTES + packed + arrays
