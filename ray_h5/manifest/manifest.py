"""What is known of a file: what it says about its values; of a remote one all that reads ask for but data."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from ray_h5.manifest.layout import LAYOUT_BYTES

if TYPE_CHECKING:
    from ray_h5.manifest.known_columns import KnownColumn
    from ray_h5.manifest.layout import Encoding, Form

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
