"""What a read consists of: for each column, which dataset or datasets, which rows, and where they go."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from ray_h5.errors import CastError
from ray_h5.hdf5.layout import ColumnLayout
from ray_h5.hdf5.reading.casting import Casting, LostValue, as_casting, cast_error, checked
from ray_h5.hdf5.reading.coalesce import Request
from ray_h5.hdf5.reading.grid_column import GridAddress
from ray_h5.hdf5.reading.last_axis import LastAxis
from ray_h5.hdf5.reading.run_request import RunRequest
from ray_h5.hdf5.segments import Segments

Address: TypeAlias = str | GridAddress | LastAxis | Segments
"""What a column is made of: a dataset, one whose leading axes or whose last axis are rows, or many datasets."""


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """A part of a read: rows of one column, and the array that they go to."""

    address: Address
    request: Request | RunRequest
    out: np.ndarray


def name_of(address: Address) -> str | None:
    """Return the dataset of a column; None for many."""
    if isinstance(address, Segments):
        return None
    return address if isinstance(address, str) else address.name


def outputs(
    out: Mapping[str, np.ndarray], layouts: Mapping[str, ColumnLayout], casting: Casting | Mapping[str, Casting]
) -> dict[str, np.ndarray]:
    """Return arrays that raise for values which they cannot hold, as far as `casting` says so."""
    if not isinstance(casting, Mapping):
        casting = dict.fromkeys(out, as_casting(casting))
    return {
        name: checked(name, array, layouts[name].dtype, casting.get(name, "checked")) for name, array in out.items()
    }


def lost_in(path: str, found: LostValue, parts: Sequence[Part]) -> CastError:
    """Return the error for a value that its array cannot hold: where it is in the file, and what to do."""
    part = next(part for part in parts if getattr(part.out, "column", None) == found.column)
    listed = part.request.listed()
    row = int(listed.rows[listed.places == found.place][0])
    where = f"{path}: column {found.column!r}, row {row}"
    if isinstance(part.address, Segments):
        segment = int(part.address.segments_of(np.array([row]))[0])
        where = f"{path}: dataset {part.address.paths[segment]!r}, index {row - int(part.address.starts[segment])}"
    return cast_error(where, found.value, part.out.dtype)
