"""Rows that are whole contiguous datasets: a batch is a look-up of their places, and one call of the compiled loop."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from ray_h5.manifest.joined_arrays import NOT_WRITTEN, JoinedArray
from ray_h5.read.jobs import ReadStats
from ray_h5.read.native.job_table import BYTES_READ, NO_BOXES, NO_PIECES, RAW, REQUESTS, Field, JobTable
from ray_h5.read.native.library import compiled_loop
from ray_h5.read.native.run_tables import new_times, run_compiled

_MOST_BYTES = 1 << 20
_MOST_ROWS = 1 << 12
"""Larger rows are read in parts, and of many rows, those that lie one after the other are read together."""


@dataclass(frozen=True, slots=True, eq=False)
class WholeDatasets:
    """Columns of which row i is dataset i: datasets of one shape, stored as they are, in one file on a disk.

    Attributes
    ----------
    offsets : sequence of numpy.ndarray
        For each column, int64: where the dataset of each row begins.
    row_bytes : sequence of int
        For each column, the bytes of a row.
    times : numpy.ndarray
        How often reads waited; see `new_times`.
    """

    offsets: Sequence[np.ndarray]
    row_bytes: Sequence[int]
    times: np.ndarray = field(default_factory=new_times)

    @classmethod
    def of(cls, columns: Sequence[JoinedArray], out: Sequence[np.ndarray]) -> WholeDatasets | None:
        """Return columns that are read into arrays like `out`; None if some are no such columns."""
        sizes = [array.itemsize * int(np.prod(array.shape[1:])) for array in out]
        alike = all(_is_whole(*triple) for triple in zip(columns, out, sizes, strict=True))
        return cls([column.offsets for column in columns], sizes) if alike else None

    def read(self, descriptor: int | None, rows: np.ndarray, out: Sequence[np.ndarray]) -> ReadStats | None:
        """Fill C-contiguous arrays with rows, and return what that has cost.

        None if the compiled loop did not read all of them: another reader says why.
        """
        count = len(rows)
        if descriptor is None or not 0 < count <= _MOST_ROWS or compiled_loop() is None:
            return None
        jobs = np.zeros((len(Field), count * len(out)), np.int64)
        jobs[Field.FILE], jobs[Field.PIPELINE] = descriptor, RAW
        for number, (offsets, size, array) in enumerate(zip(self.offsets, self.row_bytes, out, strict=True)):
            part, begins = jobs[:, number * count : (number + 1) * count], offsets[rows]
            order = begins.argsort(kind="stable")  # ascending, as a disk reads them best
            part[Field.OFFSET], part[Field.SIZE], part[Field.DECODED] = begins[order], size, size
            part[Field.DESTINATION] = order * size + array.ctypes.data
        table = JobTable(jobs, NO_PIECES, NO_BOXES, (), out)
        done, counts = run_compiled(table, self.times)
        return ReadStats(int(counts[REQUESTS]), int(counts[BYTES_READ])) if done else None


def _is_whole(joined: JoinedArray, out: np.ndarray, size: int) -> bool:
    """Return whether each dataset has the bytes of a row of `out`, one after the other."""
    if len(joined.layouts) != 1 or joined.layouts[0].sources or not joined.is_there.all():
        return False
    layout = joined.layouts[0]
    return (
        layout.direct
        and layout.storage == "contiguous"
        and out.dtype == layout.stored_dtype
        and 0 < size <= _MOST_BYTES
        and bool((joined.lengths * layout.row_bytes == size).all())
        and bool((joined.offsets != NOT_WRITTEN).all())
    )
