"""Where the values of a column are, if they are in other files, as values that pickle and compare."""

from __future__ import annotations

from typing import Protocol

import h5py
import numpy as np

from ray_h5.errors import UnsupportedColumnError
from ray_h5.hdf5.columns.column import fill_of, is_plain
from ray_h5.hdf5.columns.remote_mappings import mappings_of
from ray_h5.hdf5.columns.value_types import Shared
from ray_h5.hdf5.files.file_bytes import filename_of
from ray_h5.manifest.known_columns import Elsewhere, OtherColumn
from ray_h5.manifest.layout import ColumnLayout


class Locates(Protocol):
    """Says where other files are."""

    def located(self, name: str, source: str, where: str) -> str:
        """Return the path of a file that `source` refers to by `name`; raise unless it may be read."""


def find_elsewhere(path: str, dataset: h5py.Dataset, layout: ColumnLayout, others: Locates) -> Elsewhere:
    """Return where the values of a dataset are that was described as a column of the file `path`."""
    file = filename_of(dataset.file)
    # A link may lead to another file, and from there back to this one.
    if file != path or is_plain(dataset.id.get_create_plist()):
        return Elsewhere("link", (OtherColumn(file, dataset.name.strip("/")),))
    if not dataset.is_virtual:
        raise UnsupportedColumnError(f"{layout.where} is in raw files, which only h5py reads")
    home, what = filename_of(dataset.file), f"virtual column {layout.name!r}"
    columns: dict[OtherColumn, int] = {}
    mappings = []
    for mapping in mappings_of(dataset, layout.where):
        path = home if mapping.file == "." else others.located(mapping.file, home, what)
        number = columns.setdefault(OtherColumn(path, mapping.dataset.strip("/")), len(columns))
        mappings.append((number, mapping.here, mapping.there))
    fill = None if layout.stored_dtype.hasobject else _fill(dataset, layout)
    return Elsewhere("virtual", tuple(columns), tuple(mappings), fill=fill)


def _fill(dataset: h5py.Dataset, layout: ColumnLayout) -> np.ndarray | None:
    values = Shared.of(dataset.file.id).value_type(dataset.id.get_type(), layout.where)
    return fill_of(dataset.id.get_create_plist(), values)
