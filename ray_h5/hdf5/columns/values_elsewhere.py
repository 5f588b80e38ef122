"""Where the values of a column are, if they are in other files, as values that pickle and compare."""

from __future__ import annotations

import h5py
import numpy as np

from ray_h5.errors import MissingSourceError
from ray_h5.hdf5.columns.column import fill_of, is_plain
from ray_h5.hdf5.columns.value_types import Shared
from ray_h5.hdf5.columns.virtual_mappings import mappings_of
from ray_h5.hdf5.files.file_bytes import filename_of
from ray_h5.hdf5.files.links import Trail
from ray_h5.manifest.known_columns import Elsewhere, OtherColumn
from ray_h5.manifest.layout import ColumnLayout


def find_elsewhere(path: str, dataset: h5py.Dataset, layout: ColumnLayout, trail: Trail) -> Elsewhere:
    """Return where the values of a dataset are that was described as a column of the file `path`."""
    file = filename_of(dataset.file)
    # A link may lead to another file, and from there back to this one.
    if file != path or is_plain(dataset.id.get_create_plist()):
        return Elsewhere("link", (OtherColumn(file, dataset.name.strip("/")),))
    home, what = filename_of(dataset.file), f"virtual column {layout.name!r}"
    columns: dict[OtherColumn, int] = {}
    mappings = []

    def exists(file_name: str, name: str) -> bool:
        try:
            trail.source(dataset, file_name, name, what)
        except MissingSourceError:
            return False
        return True

    for mapping in mappings_of(dataset, layout.where, exists):
        file_name, name = mapping.names.file, mapping.names.dataset
        path = home if file_name == "." else trail.located(file_name, home, what)
        number = columns.setdefault(OtherColumn(path, name.strip("/")), len(columns))
        mappings.append((number, mapping.here, mapping.there))
    fill = None if layout.stored_dtype.hasobject else _fill(dataset, layout)
    return Elsewhere("virtual", tuple(columns), tuple(mappings), fill=fill)


def _fill(dataset: h5py.Dataset, layout: ColumnLayout) -> np.ndarray | None:
    values = Shared.of(dataset.file.id).value_type(dataset.id.get_type(), layout.where)
    return fill_of(dataset.id.get_create_plist(), values)
