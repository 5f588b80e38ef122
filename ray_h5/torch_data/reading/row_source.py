"""Rows of many files by rank: what every dataset here reads with."""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

import numpy as np

from ray_h5.hdf5.checks.changes import check_state
from ray_h5.hdf5.layout import FileIdentity
from ray_h5.hdf5.reader import RowReader
from ray_h5.options import as_integer
from ray_h5.planning.epoch.plan import ReadPlan
from ray_h5.planning.epoch.reading import by_file
from ray_h5.torch_data.reading.row_cache import RowCache, check_kept, fitting, is_as_kept, share_of
from ray_h5.torch_data.reading.shared_memory import new_arrays

KEPT_BYTES_A_FILE = 128 << 20
MOST_KEPT_BYTES = 512 << 20
"""What may stay in memory by default: for each file as much as people give its chunk cache, and at most for all."""

_MAX_READERS = 32
_MOST_STATES = 4096
_SMALL_ROW_BYTES = 4 << 10
_TOGETHER_AFTER = 8
"""Smaller rows cost more to find than to read: all of a file are read at once, after one in so many was asked for."""


class RowSource:
    """Reads rows of a plan, given by their ranks among the selected rows.

    It can be pickled and forked: the other process opens the files anew, and keeps its own rows.

    Parameters
    ----------
    plan : ReadPlan
        Which rows and columns.
    kept_bytes : int, optional
        Bound of the rows kept in memory, for all workers of a loader together: those columns whose
        rows are smallest, as many as fit with all their rows. By default 128 MiB a file, and at most
        512 MiB.
    """

    def __init__(self, plan: ReadPlan, kept_bytes: int | None = None) -> None:
        self.plan = plan
        self._kept_bytes = None if kept_bytes is None else as_integer("kept_bytes", kept_bytes, 0)
        self._begin()

    def _begin(self) -> None:
        self._pid = os.getpid()
        self._lock = threading.RLock()
        self._readers: OrderedDict[int, RowReader] = OrderedDict()
        self._small: RowCache | None = None
        self._large: RowCache | None = None
        self._asked = np.zeros(len(self.plan.files), np.int64)
        self._filling: dict[int, threading.Lock] = {}
        self._read_whole: set[int] = set()
        self._states: dict[int, tuple[str, FileIdentity]] = {}
        self._source_states: dict[int, tuple[str, FileIdentity | None]] = {}

    @property
    def num_rows(self) -> int:
        return self.plan.num_rows

    @property
    def keeps_all(self) -> bool:
        """Whether every row stays in memory once it was read."""
        small, large = self._kept()
        return len(small.columns) + len(large.columns) == len(self.plan.columns)

    def new_batch(self, count: int) -> dict[str, np.ndarray]:
        """Return an array for `count` rows of each column."""
        return new_arrays({each.name: ((count, *each.row_shape), each.dtype) for each in self.plan.columns})

    def read_into(self, out: Mapping[str, np.ndarray], ranks: np.ndarray, places: np.ndarray | None = None) -> None:
        """Read rows into ``out[column][places]``, each file by one call.

        Parameters
        ----------
        out : mapping of str to numpy.ndarray
            Arrays of the columns of the plan.
        ranks : numpy.ndarray
            int64, in any order.
        places : numpy.ndarray, optional
            int64: where each row goes; by default in the order given.

        Raises
        ------
        StaleIndexError, MissingSourceError
            If a file, or another that columns or the selection come from, is no longer as it was when the dataset was
            made.
        """
        small, large = self._kept()
        row_ids = self.plan.row_ids(ranks)
        touched = self._check_files(row_ids)
        kept = small.columns | large.columns
        rest = {name: array for name, array in out.items() if name not in kept}
        if rest:
            self._read_files(rest, row_ids, np.arange(len(row_ids)) if places is None else places)
        if small.columns:
            self._read_together(small, touched)
        for group in (small, large):
            if group.columns:
                group.read_through({name: out[name] for name in group.columns}, row_ids, places, self._read_files)

    def check_unchanged(self, ranks: np.ndarray) -> None:
        """Raise unless the files of some rows are as they were; errors as in `read_into`."""
        self._check_files(self.plan.row_ids(ranks))

    def close(self) -> None:
        """Let go of all files and kept rows; the next read opens the files again."""
        self._begin()

    def _kept(self) -> tuple[RowCache, RowCache]:
        if self._pid != os.getpid():
            self._begin()
        with self._lock:
            if self._small is None or self._large is None:
                self._small, self._large = self._choose()
            return self._small, self._large

    def _choose(self) -> tuple[RowCache, RowCache]:
        files = self.plan.files
        limit = self._kept_bytes
        if limit is None:
            limit = min(KEPT_BYTES_A_FILE * len(files), MOST_KEPT_BYTES)
        specs = {each.name: each for each in self.plan.columns if each.kind != "list"}
        chosen = fitting({name: spec.row_bytes for name, spec in specs.items()}, files.num_rows, share_of(limit))
        groups: tuple[dict[str, Any], dict[str, Any]] = ({}, {})
        for name in chosen:
            groups[specs[name].row_bytes > _SMALL_ROW_BYTES][name] = (specs[name].row_shape, specs[name].dtype)
        small, large = groups
        return RowCache(small, files.num_rows if small else 0), RowCache(large, files.num_rows if large else 0)

    def _check_files(self, row_ids: np.ndarray) -> list[tuple[int, int]]:
        """Make sure that the files are as they were, whether they are read or not; return them and their rows."""
        files = self.plan.files
        touched = [(file, len(places)) for file, places in by_file(files, row_ids)]
        for file, _ in touched:
            state = self._states.get(file)
            if state is None:
                if len(self._states) >= _MOST_STATES:
                    self._states.clear()  # another thread may be here too, and has what it found
                state = self._states[file] = files.path(file), files.identity(file)
            check_kept(*state)
        if self.plan.sources.columns:
            self._check_sources([file for file, _ in touched])
        return touched

    def _check_sources(self, touched: list[int]) -> None:
        """Look at each source once, however many of the files lead to it."""
        sources = self.plan.sources
        for number in sources.of_files(np.array(touched, np.int64)).tolist():
            source = self._source_states.get(number)
            if source is None:
                if len(self._source_states) >= _MOST_STATES:
                    self._source_states.clear()
                source = self._source_states[number] = sources.source(number)
            if not is_as_kept(*source):
                for file in touched:
                    check_state(self.plan.files.path(file), self.plan.state(file))

    def _read_together(self, small: RowCache, touched: list[tuple[int, int]]) -> None:
        starts = self.plan.files.starts
        for file, asked in touched:
            if file in self._read_whole:
                continue
            start, stop = int(starts[file]), int(starts[file + 1])
            self._asked[file] += asked
            if self._asked[file] * _TOGETHER_AFTER < stop - start:
                continue
            with self._filling.setdefault(file, threading.Lock()):
                rows = np.flatnonzero(~small.there[start:stop])
                if len(rows):
                    # Read to memory of their own first: another thread may copy kept rows meanwhile, and must
                    # never see one that is only half there.
                    parts = {name: np.empty((len(rows), *a.shape[1:]), a.dtype) for name, a in small.columns.items()}
                    self._reader(file).read_into(parts, rows)
                    small.add(start + rows, parts)
                self._read_whole.add(file)

    def _read_files(self, out: Mapping[str, np.ndarray], row_ids: np.ndarray, places: np.ndarray) -> None:
        starts = self.plan.files.starts
        for file, here in by_file(self.plan.files, row_ids):
            # Looks at the state of the file before and after.
            self._reader(file).read_into(out, row_ids[here] - starts[file], places[here])

    def _reader(self, file: int) -> RowReader:
        reader = self._readers.get(file)
        if reader is None:
            # Not under the lock: the file may be on a mount that does not answer, and others are to be read meanwhile.
            reader = self.plan.open(file)
        with self._lock:
            reader = self._readers.setdefault(file, reader)
            self._readers.move_to_end(file)
            while len(self._readers) > _MAX_READERS:
                self._readers.popitem(last=False)
        return reader

    def __reduce__(self) -> tuple[Any, ...]:
        return RowSource, (self.plan, self._kept_bytes)
