"""Rows of a plan, read from its files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from ray_h5.buffers import empty
from ray_h5.manifest.file_table import FileTable
from ray_h5.manifest.row_requests import by_part
from ray_h5.plan.read_plan import ReadPlan
from ray_h5.read.file_reads import run_reads
from ray_h5.read.jobs import ReadStats
from ray_h5.read.read_parts import FileRead
from ray_h5.read.reader import FileReader


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
        The cost of reading them.
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


def read_rows(plan: ReadPlan, row_ids: np.ndarray, draws: np.ndarray | None = None) -> BlockRows:
    """Read rows in the order given: a pure function, with the same result at each call.

    `draws` has the draw of each row, if their values are drawn; by default the first.

    Raises
    ------
    StaleIndexError, MissingSourceError
        If a file, or a source of its columns or of the selection, changed since the plan was made.
    """
    every = {column.name: empty((len(row_ids), *column.row_shape), column.dtype) for column in plan.as_arrays}
    for rows in plan.files_beside:
        mine = {name: every[name] for name in rows.names if name in every}
        rows.fill(mine, plan.files, row_ids, partial(_columns_of, rows.only(mine)))
    arrays = {column.name: every[column.name] for column in plan.of_files}
    keys = None if plan.scope.windows is None else np.empty(len(row_ids), np.int64)
    if not arrays and keys is None:
        for file, _ in by_file(plan.files, row_ids) if plan.selection is not None else ():
            # Nothing is read of it, but its values may decide the selection.
            plan.state(file).check_now(plan.files.path(file), plan.scope.storage)
        return BlockRows(row_ids, every)

    def planned(file: int, places: np.ndarray) -> FileRead:
        reader, rows = plan.open(file), row_ids[places] - plan.files.starts[file]
        if keys is not None and not isinstance(reader, FileReader):
            keys[places] = reader.step_numbers(rows) + plan.steps.starts[file]
        drawn = {} if draws is None else {"draws": draws[places]}
        return reader.planned(arrays, rows, places, **plan.read_options, **drawn)

    own = by_file(plan.files, row_ids)
    stats = run_reads([partial(planned, *part) for part in own])
    # The others were opened without the state that the plan has of them.
    for file in plan.files_read(row_ids) - {number for number, _ in own}:
        plan.state(file).check_now(plan.files.path(file), plan.scope.storage)
    return BlockRows(row_ids, every, stats, keys)


def _columns_of(plan: ReadPlan, row_ids: np.ndarray) -> Mapping[str, np.ndarray]:
    return read_rows(plan, row_ids).arrays


def by_file(files: FileTable, row_ids: np.ndarray) -> list[tuple[int, np.ndarray]]:
    """Return the files of some rows, ascending; and for each the places of its rows in `row_ids`, ascending too."""
    return by_part(files.files_of(row_ids))
