"""What a read consists of: for each column, which dataset or datasets, which rows, and where they go."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from ray_h5.hdf5.reading.coalesce import Request
from ray_h5.hdf5.reading.grid_column import GridAddress
from ray_h5.hdf5.segments import Segments

Address: TypeAlias = str | GridAddress | Segments
"""What a column is made of: a dataset, a dataset whose leading axes are rows, or many datasets."""


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """A part of a read: rows of one column, and the array that they go to."""

    address: Address
    request: Request
    out: np.ndarray


def name_of(address: Address) -> str | None:
    """Return the dataset of a column; None for many."""
    if isinstance(address, Segments):
        return None
    return address if isinstance(address, str) else address.name
