"""What is known of a file: what it says about its values; of a remote one all that reads ask for but data."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from ray_h5.manifest.layout import LAYOUT_BYTES
from ray_h5.merged_facts import Facts

if TYPE_CHECKING:
    from ray_h5.manifest.known_columns import KnownColumn
    from ray_h5.manifest.layout import Encoding, Form

_OBJECT_BYTES = 56
"""What a text takes, besides its bytes."""


@dataclass(frozen=True, slots=True)
class Manifest(Facts):
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
        return self is not NOTHING_KNOWN and self != NOTHING_KNOWN

    def copy(self) -> Manifest:
        """Return the same in mappings of its own, which may be added to."""
        return Manifest().merged(self)

    def without(self, names: Collection[str]) -> Manifest:
        """Return the same without some datasets."""
        return replace(self, columns={name: column for name, column in self.columns.items() if name not in names})

    @property
    def nbytes(self) -> int:
        """Bytes in memory, about."""
        columns, values = [*self.columns.values()], [*self.values.values()]  # other threads add to them
        if not (columns or values):
            return 0
        packed = sum(len(index.data) for column in columns for index in column.indexes)
        texts = (len(text) + _OBJECT_BYTES for array in values if array.dtype.hasobject for text in array)
        return len(columns) * LAYOUT_BYTES + packed + sum(array.nbytes for array in values) + sum(texts)


NOTHING_KNOWN = Manifest()
"""What is known of each local file. All of them share it, so it is copied before anything is added."""
