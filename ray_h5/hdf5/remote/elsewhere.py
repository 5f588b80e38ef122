"""Where the values of a column are, if they are in other files of the store, as values that pickle and compare."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

import h5py
import numpy as np

from ray_h5.errors import UnsupportedColumnError
from ray_h5.hdf5.layout import ColumnLayout
from ray_h5.hdf5.metadata.column import fill_of, is_plain
from ray_h5.hdf5.metadata.value_types import Shared
from ray_h5.hdf5.remote.held_bytes import filename_of
from ray_h5.hdf5.remote.mappings import Selection, mappings_of

if TYPE_CHECKING:
    from ray_h5.hdf5.remote.known_columns import KnownColumn
    from ray_h5.hdf5.remote.other_files import OtherFiles

How = Literal["link", "virtual", "external"]


@dataclass(frozen=True, slots=True)
class OtherColumn:
    """A dataset that values come from.

    Attributes
    ----------
    path, name : str
        Its file, and its path in it.
    known : KnownColumn, optional
        What is known of it, so that libhdf5 need not be asked.
    """

    path: str
    name: str
    known: KnownColumn | None = None


@dataclass(frozen=True, slots=True)
class RawPart:
    """A part of the values of external storage: bytes of a file that is not HDF5."""

    path: str
    offset: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class Elsewhere:
    """Where the values of a column are.

    Attributes
    ----------
    how : str
        ``"link"``: in the dataset that a link leads to; ``"virtual"``: in those of a virtual dataset; ``"external"``:
        in raw files.
    columns : tuple of OtherColumn
        The datasets, each once; one for a link.
    mappings : tuple of (int, Selection, Selection or None)
        Of a virtual dataset: the number of a dataset, what is selected here, and there (None for all of it).
    raw : tuple of RawPart
        The raw files, in the order of the values.
    fill : numpy.ndarray, optional
        0-d: the value of rows that no mapping has; None for values of varying length.
    """

    how: How
    columns: tuple[OtherColumn, ...] = ()
    mappings: tuple[tuple[int, Selection, Selection | None], ...] = ()
    raw: tuple[RawPart, ...] = ()
    fill: np.ndarray | None = None

    @classmethod
    def of(cls, path: str, dataset: h5py.Dataset, layout: ColumnLayout, others: OtherFiles) -> Elsewhere:
        """Return where the values of a dataset are that was described as a column of the file `path`."""
        file = filename_of(dataset.file)
        # A link may lead to another file, and from there back to this one.
        if file != path or is_plain(dataset.id.get_create_plist()):
            return cls("link", (OtherColumn(file, dataset.name.strip("/")),))
        if dataset.is_virtual:
            return _virtual(dataset, layout, others)
        return _external(dataset, layout, others)

    def with_known(self, known: list[KnownColumn | None]) -> Elsewhere:
        """Return the same with what is known of each dataset."""
        return replace(
            self, columns=tuple(replace(each, known=of) for each, of in zip(self.columns, known, strict=True))
        )


def _virtual(dataset: h5py.Dataset, layout: ColumnLayout, others: OtherFiles) -> Elsewhere:
    home, what = filename_of(dataset.file), f"virtual column {layout.name!r}"
    columns: dict[OtherColumn, int] = {}
    mappings = []
    for mapping in mappings_of(dataset, layout.where):
        path = home if mapping.file == "." else others.located(mapping.file, home, what)
        number = columns.setdefault(OtherColumn(path, mapping.dataset.strip("/")), len(columns))
        mappings.append((number, mapping.here, mapping.there))
    fill = None if layout.stored_dtype.hasobject else _fill(dataset, layout)
    return Elsewhere("virtual", tuple(columns), tuple(mappings), fill=fill)


def _external(dataset: h5py.Dataset, layout: ColumnLayout, others: OtherFiles) -> Elsewhere:
    if layout.stored_dtype.hasobject or layout.odd_type or layout.lost_fields:
        raise UnsupportedColumnError(
            f"{layout.where} has values of {layout.odd_type or layout.dtype} in raw files, which are not read in a "
            "file in a store. Copy them into the file with h5repack."
        )
    home, left, raw = filename_of(dataset.file), layout.num_rows * layout.row_bytes, []
    for name, offset, size in dataset.external or ():
        nbytes = min(size, left)
        left -= nbytes
        if nbytes:
            path = others.located(os.fsdecode(name), home, f"external column {layout.name!r}")
            raw.append(RawPart(path, int(offset), int(nbytes)))
    return Elsewhere("external", raw=tuple(raw), fill=_fill(dataset, layout))


def _fill(dataset: h5py.Dataset, layout: ColumnLayout) -> np.ndarray:
    values = Shared.of(dataset).value_type(dataset.id.get_type(), layout.where)
    return fill_of(dataset.id.get_create_plist(), values)
