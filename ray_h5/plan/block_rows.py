"""Rows of a plan as they were read, and which file has which of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from ray_h5.manifest.file_table import FileTable
from ray_h5.manifest.row_requests import by_part
from ray_h5.read.jobs import ReadStats


@dataclass(frozen=True, slots=True, eq=False)
class BlockRows:
    """The rows of one block, as arrays.

    Attributes
    ----------
    row_ids : numpy.ndarray
        int64.
    arrays : mapping of str to numpy.ndarray
        The columns.
    stats : ReadStats
        The cost of reading a block that keeps nothing.
    key_numbers : numpy.ndarray, optional
        int64: with windows, the numbers of the steps.
    """

    row_ids: np.ndarray
    arrays: Mapping[str, np.ndarray]
    stats: ReadStats = field(default_factory=ReadStats)
    key_numbers: np.ndarray | None = None

    @property
    def numbers(self) -> np.ndarray:
        """int64: the numbers that row keys are made from."""
        return self.row_ids if self.key_numbers is None else self.key_numbers


def by_file(files: FileTable, row_ids: np.ndarray) -> list[tuple[int, np.ndarray]]:
    """Return the files of some rows, ascending; and for each the places of its rows in `row_ids`, ascending too."""
    return by_part(files.files_of(row_ids))
