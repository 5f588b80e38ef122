"""Rows of a plan, read from its files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np

from ray_h5.hdf5.buffers import empty
from ray_h5.hdf5.checks.changed_files import check_state
from ray_h5.hdf5.reading.jobs import ReadStats
from ray_h5.planning.epoch.plan import ReadPlan
from ray_h5.planning.index.file_table import FileTable


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
    """

    row_ids: np.ndarray
    arrays: Mapping[str, np.ndarray]
    stats: ReadStats = field(default_factory=ReadStats)


def read_rows(plan: ReadPlan, row_ids: np.ndarray) -> BlockRows:
    """Read rows in the order given: a pure function, with the same result at each call.

    Raises
    ------
    StaleIndexError, MissingSourceError
        If a file, or a source of its columns or of the selection, changed since the plan was made.
    """
    arrays = {each.name: empty((len(row_ids), *each.row_shape), each.dtype) for each in plan.columns}
    stats = ReadStats()
    for file, places in by_file(plan.files, row_ids) if arrays or plan.selection is not None else ():
        if not arrays:
            check_state(
                plan.files.path(file), plan.state(file)
            )  # nothing is read of it, but its values may decide the selection
            continue
        with plan.open(file) as reader:
            reader.read_into(arrays, row_ids[places] - plan.files.starts[file], places, **plan.read_options)
            stats.add(reader.stats)
    return BlockRows(row_ids, arrays, stats)


def by_file(files: FileTable, row_ids: np.ndarray) -> list[tuple[int, np.ndarray]]:
    """Return the files of some rows, ascending; and for each the places of its rows in `row_ids`, ascending too."""
    of = files.files_of(row_ids)
    order = np.argsort(of, kind="stable")
    of = of[order]
    cuts = [0, *(np.flatnonzero(of[1:] != of[:-1]) + 1).tolist(), len(of)]
    return [(int(of[start]), order[start:stop]) for start, stop in pairwise(cuts) if stop > start]
