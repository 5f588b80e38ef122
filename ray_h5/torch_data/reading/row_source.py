"""Rows of many files by selected index: `H5Dataset` and its subclasses read with it."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np

from ray_h5.fork import PerProcess
from ray_h5.hdf5.checks.changed_files import check_state
from ray_h5.hdf5.file_reads import FileRead, Later, run_joint, run_reads
from ray_h5.hdf5.open_files import MAX_INDEX_BYTES
from ray_h5.hdf5.reading.ahead import ReadAhead, ReadTimes
from ray_h5.lru import LRU
from ray_h5.options import as_integer
from ray_h5.planning.epoch.coming import ComingRows
from ray_h5.planning.epoch.following import Following
from ray_h5.planning.epoch.order import Order
from ray_h5.planning.epoch.plan import ReadPlan
from ray_h5.planning.epoch.reading import by_file
from ray_h5.planning.rows.view import FileReader
from ray_h5.storage.addresses import is_url
from ray_h5.storage.byte_source import Identity
from ray_h5.torch_data.reading.row_cache import RowCache, check_file, columns_that_fit, is_unchanged, worker_share
from ray_h5.torch_data.reading.shared_memory import new_arrays

KEPT_BYTES_A_FILE = 128 << 20
MOST_KEPT_BYTES = 512 << 20
"""Default bounds of the rows in memory: for each file the size that people give its chunk cache; and for all files."""

_MAX_READERS = 32
_MAX_REMOTE_READERS = 1024
_MAX_TOGETHER = 256
_MAX_STATES = 4096
_MAX_HINTED = 64
_SMALL_ROW_BYTES = 4 << 10
_WHOLE_FILE_AFTER = 8
"""To find a smaller row costs more than to read it: all of a file are read at once, after one in 8 was asked for."""


class RowSource:
    """Reads rows of a plan, given by their indices among the selected rows.

    It can be pickled and forked. The other process opens the files again, and has a row cache of its own.

    Parameters
    ----------
    plan : ReadPlan
        Which rows and columns.
    kept_bytes : int, optional
        Bound of the rows that stay in memory, for all workers of a loader together. The columns with the
        smallest rows stay, all that fit with all their rows. By default 128 MiB a file, and at most 512 MiB.
    """

    def __init__(self, plan: ReadPlan, kept_bytes: int | None = None) -> None:
        self.plan = plan
        self._kept_bytes = None if kept_bytes is None else as_integer("kept_bytes", kept_bytes, 0)
        # An open file in a store needs no descriptor, only memory for what is known of it.
        self._readers: LRU[FileReader] = (
            LRU(_MAX_REMOTE_READERS, MAX_INDEX_BYTES, self._index_bytes) if self.is_remote else LRU(_MAX_READERS)
        )
        self._states: LRU[tuple[str, Identity]] = LRU(_MAX_STATES)
        self._source_states: LRU[tuple[str, Identity | None]] = LRU(_MAX_STATES)
        self._times = ReadTimes()
        self._coming = threading.local()
        # How many byte ranges the storage was told of, of rows that are read next.
        self._hinted: LRU[int] = LRU(_MAX_HINTED)
        self._cached = PerProcess(lambda: _CachedRows(len(plan.files)))
        self._following: PerProcess[Following | None] = PerProcess(lambda: None)

    def _index_bytes(self, reader: FileReader) -> int:
        return reader.base.known_bytes

    @property
    def num_rows(self) -> int:
        return self.plan.num_rows

    @property
    def is_remote(self) -> bool:
        """Whether any file is in a store."""
        return len(self.plan.files.etags) > 0

    @property
    def keeps_all(self) -> bool:
        """Whether every row stays in memory after it was read."""
        small, large = self._row_caches()
        return len(small.columns) + len(large.columns) == len(self.plan.of_files)

    def is_held(self, indices: np.ndarray) -> np.ndarray:
        """Return, as bools, which rows lie in memory with all their columns."""
        row_ids = self.plan.row_ids(indices)
        found = np.full(len(row_ids), self.keeps_all)
        for cache in self._row_caches():
            if cache.columns and found.any():
                found &= cache.is_held[row_ids]
        return found

    def new_batch(self, count: int) -> dict[str, np.ndarray]:
        """Return an array for `count` rows of each column."""
        return new_arrays({each.name: ((count, *each.row_shape), each.dtype) for each in self.plan.columns})

    def read_into(self, out: Mapping[str, np.ndarray], indices: np.ndarray, places: np.ndarray | None = None) -> None:
        """Read rows into ``out[column][places]``, each file by one call.

        Parameters
        ----------
        out : mapping of str to numpy.ndarray
            Arrays of the columns of the plan.
        indices : numpy.ndarray
            int64: selected indices, in any order.
        places : numpy.ndarray, optional
            int64: where each row goes; by default row i goes to place i.

        Raises
        ------
        StaleIndexError, MissingSourceError
            If a file, or another that columns or the selection come from, changed since the dataset was made.
        """
        small, large = self._row_caches()
        row_ids = self.plan.row_ids(indices)
        touched = self._check_files(row_ids)
        out = self._read_joined(out, row_ids, places)
        cached = small.columns | large.columns
        rest = {name: array for name, array in out.items() if name not in cached}
        if rest:
            self._read_files(rest, row_ids, np.arange(len(row_ids)) if places is None else places)
        if small.columns:
            self._read_whole_files(small, touched)
        for cache in (small, large):
            if cache.columns:
                cache.read_through({name: out[name] for name in cache.columns}, row_ids, places, self._read_files)

    def _read_joined(
        self, out: Mapping[str, np.ndarray], row_ids: np.ndarray, places: np.ndarray | None
    ) -> Mapping[str, np.ndarray]:
        """Fill the columns of tables beside the files, and return the arrays of the other columns."""
        joined = self.plan.joined
        if joined is None:
            return out
        for name in joined.specs.keys() & out.keys():
            out[name][slice(None) if places is None else places] = joined.array(name, self.plan.files, row_ids)
        return {name: array for name, array in out.items() if name not in joined.specs}

    def will_read(self, indices: np.ndarray) -> None:
        """Take the hint that these rows are read after those which this thread reads next.

        If reads wait, the storage is told of the first of them at the end of that read.
        """
        self._coming.rows = indices

    def follow(self, order: Order) -> ComingRows | None:
        """Let a cache on a disk know in which order rows are read: what is returned is told how far it is.

        Returns
        -------
        ComingRows
            None if there is no such cache.
        """
        if not self.is_remote:
            return None
        following = self._following.value
        if following is None or following.coming.order != order:
            following = self._following.value = Following.of(self.plan, order)
        return None if following is None else following.coming

    def _later(self) -> tuple[bytes, Later]:
        """Return the reads of the rows that come next, and a key for them; without reads if there are none."""
        indices = self._coming.__dict__.pop("rows", None)
        if indices is None or not self._times.is_cold or self.is_remote:
            return b"", Later()
        indices = indices[~self.is_held(indices)]
        small, large = self._row_caches()
        rest = [
            each for each in self.plan.of_files if each.name not in small.columns and each.name not in large.columns
        ]
        # Where some columns stay in memory, most of their rows are there.
        columns = rest or self.plan.of_files
        # Nothing is read into these arrays: their memory is never touched.
        out = {each.name: np.empty((len(indices), *each.row_shape), each.dtype) for each in columns}
        row_ids = self.plan.row_ids(indices)
        parts = by_file(self.plan.files, row_ids)
        return row_ids.tobytes(), Later(self._planned_reads(parts, out, row_ids, np.arange(len(indices))))

    def check_unchanged(self, indices: np.ndarray) -> None:
        """Raise unless the files of some rows are as they were; errors as in `read_into`."""
        self._check_files(self.plan.row_ids(indices))

    def close(self) -> None:
        """Let go of all files and of the rows in memory. The next read opens the files again."""
        for each in (self._readers, self._states, self._source_states):
            each.clear()
        self._cached.renew()
        self._following.renew()

    def _row_caches(self) -> tuple[RowCache, RowCache]:
        """Return the caches of the columns with small and with large rows."""
        cached = self._cached.value
        with cached.lock:
            # Not earlier than at the first read: only then is it known whether this is a loader worker.
            if cached.row_caches is None:
                cached.row_caches = self._new_row_caches()
            return cached.row_caches

    def _new_row_caches(self) -> tuple[RowCache, RowCache]:
        files = self.plan.files
        max_bytes = self._kept_bytes
        if max_bytes is None:
            max_bytes = min(KEPT_BYTES_A_FILE * len(files), MOST_KEPT_BYTES)
        specs = {each.name: each for each in self.plan.of_files if each.kind not in {"list", "ragged", "sparse"}}
        row_bytes = {name: spec.row_bytes for name, spec in specs.items()}
        small: dict[str, Any] = {}
        large: dict[str, Any] = {}
        for name in columns_that_fit(row_bytes, files.num_rows, worker_share(max_bytes)):
            (large if row_bytes[name] > _SMALL_ROW_BYTES else small)[name] = specs[name].row_shape, specs[name].dtype
        return RowCache(small, files.num_rows if small else 0), RowCache(large, files.num_rows if large else 0)

    def _check_files(self, row_ids: np.ndarray) -> list[tuple[int, int]]:
        """Make sure that files are unchanged, whether they will be read or not; return each with its number of rows."""
        files = self.plan.files
        touched = [(file, len(places)) for file, places in by_file(files, row_ids)]
        for file, _ in touched:
            if files.is_remote(file):
                continue  # each read says which state it wants; rows in memory are of that state
            state = self._states.get(file)
            if state is None:
                state = files.path(file), files.identity(file)
                self._states.put(file, state)
            check_file(*state)
        if self.plan.sources.columns:
            self._check_sources([file for file, _ in touched])
        return touched

    def _check_sources(self, touched: list[int]) -> None:
        """Look once at each file that columns of the touched files come from."""
        sources = self.plan.sources
        for number in sources.of_files(np.array(touched, np.int64)).tolist():
            state = self._source_states.get(number)
            if state is None:
                state = sources.source(number)
                self._source_states.put(number, state)
            # Each read of a remote file says which state it wants.
            if not is_url(state[0]) and not is_unchanged(*state):
                for file in touched:
                    check_state(self.plan.files.path(file), self.plan.state(file), self.plan.scope.storage)

    def _read_whole_files(self, small: RowCache, touched: list[tuple[int, int]]) -> None:
        """Read all small rows of the files of which enough were asked for."""
        cached, starts = self._cached.value, self.plan.files.starts
        remote: list[int] = []
        for file, count in touched:
            if file in cached.whole_files:
                continue
            cached.asked[file] += count
            if cached.asked[file] * _WHOLE_FILE_AFTER < int(starts[file + 1] - starts[file]):
                continue
            if self.plan.files.is_remote(file):
                remote.append(file)
            else:
                self._read_whole(small, [file])
        # Together: one after the other, each would wait for its first byte.
        for first in range(0, len(remote), _MAX_TOGETHER):
            self._read_whole(small, remote[first : first + _MAX_TOGETHER])

    def _read_whole(self, small: RowCache, files: list[int]) -> None:
        """Read all small rows of files, which ascend, into the cache."""
        cached, starts = self._cached.value, self.plan.files.starts
        found: list[tuple[np.ndarray, dict[str, np.ndarray], FileRead]] = []
        with contextlib.ExitStack() as locks:
            for file in files:
                locks.enter_context(cached.filling.setdefault(file, threading.Lock()))
                start = int(starts[file])
                rows = self._selected(start, int(starts[file + 1]))
                rows = rows[~small.is_held[start + rows]]
                if len(rows):
                    # Into memory of their own first: another thread may copy held rows meanwhile, and must never see
                    # a row that is incomplete.
                    parts = {name: np.empty((len(rows), *a.shape[1:]), a.dtype) for name, a in small.columns.items()}
                    read = self._reader(file).planned(parts, rows, **self.plan.read_options)
                    found.append((start + rows, parts, read))
            reads = [read for _, _, read in found]
            if len(reads) > 1:
                run_joint(reads, reads[0].reader.base.threads)
            for read in reads if len(reads) == 1 else ():
                read.run(ReadAhead(self._times))
            for row_ids, parts, _ in found:
                small.add(row_ids, parts)
            cached.whole_files.update(files)

    def _selected(self, start: int, stop: int) -> np.ndarray:
        """Return the selected rows of the file that has these row ids. The others may hold what cannot be cast."""
        selection = self.plan.selection
        if selection is None:
            return np.arange(stop - start)
        return selection[slice(*np.searchsorted(selection, [start, stop]))] - start

    def _read_files(self, out: Mapping[str, np.ndarray], row_ids: np.ndarray, places: np.ndarray) -> None:
        # The reader looks at the state of each file before and after.
        key, later = self._later()
        given = self._given(row_ids)
        parts = by_file(self.plan.files, row_ids)
        remote = [self.plan.files.is_remote(file) for file, _ in parts]
        reads = self._planned_reads(parts, out, row_ids, places)
        run_reads(reads, self._times, remote=remote, given=given, later=later)
        if (following := self._following.value) is not None:
            following.tell([file for file, _ in parts], self._reader)
        if later.given:
            self._hinted.put(key, later.given)

    def _given(self, row_ids: np.ndarray) -> int:
        """Return how many byte ranges of rows the storage was told of, and forget it."""
        key = row_ids.tobytes() if len(self._hinted) else b""
        given = self._hinted.get(key)
        if given is None:
            return 0
        self._hinted.drop(key, given)
        return given

    def _planned_reads(
        self,
        parts: list[tuple[int, np.ndarray]],
        out: Mapping[str, np.ndarray],
        row_ids: np.ndarray,
        places: np.ndarray,
    ) -> list[Callable[[], FileRead]]:
        """Return what plans the read of each file; `parts` is what `by_file` returns for the rows."""
        starts = self.plan.files.starts
        return [partial(self._planned, file, out, row_ids[here] - starts[file], places[here]) for file, here in parts]

    def _planned(self, file: int, out: Mapping[str, np.ndarray], rows: np.ndarray, places: np.ndarray) -> FileRead:
        return self._reader(file).planned(out, rows, places, **self.plan.read_options)

    def _reader(self, file: int) -> FileReader:
        reader = self._readers.get(file)
        if reader is not None:
            return reader
        # Not under the lock of the LRU: the file may be on a mount that does not answer, and other files are to be
        # read meanwhile. If two threads open a file at once, both read with the first one's reader.
        opened = self.plan.open(file)
        return self._readers.update(file, lambda known: known or opened)

    def __reduce__(self) -> tuple[Any, ...]:
        return RowSource, (self.plan, self._kept_bytes)


class _CachedRows:
    """The rows that one process holds, and what it needs to decide when to read a whole file."""

    def __init__(self, num_files: int) -> None:
        self.lock = threading.Lock()
        self.row_caches: tuple[RowCache, RowCache] | None = None
        self.asked = np.zeros(num_files, np.int64)
        self.filling: dict[int, threading.Lock] = {}
        self.whole_files: set[int] = set()
