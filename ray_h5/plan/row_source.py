"""Rows of many files by selected index."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from ray_h5.buffers import Spec, empty
from ray_h5.errors import OptionError, RayH5Error, RowIndexError
from ray_h5.lru import LRU
from ray_h5.manifest.file_state import check_same, compare
from ray_h5.manifest.row_requests import by_part
from ray_h5.options import as_integer
from ray_h5.order.block_layout import MAX_BLOCK_BYTES
from ray_h5.order.epoch_order import split_draws
from ray_h5.per_process import PerProcess, cached_property
from ray_h5.plan.block_rows import BlockRows, by_file
from ray_h5.plan.read_plan import ReadPlan
from ray_h5.plan.row_cache import TABLE_BYTES, RowCache
from ray_h5.read.file_caches import MAX_INDEX_BYTES, max_open
from ray_h5.read.file_reads import run_reads
from ray_h5.read.held_chunks import HeldChunks
from ray_h5.read.jobs import ReadStats
from ray_h5.read.native.job_table import new_times
from ray_h5.read.open_file import forget
from ray_h5.read.read_parts import FileRead
from ray_h5.read.reader import FileReader
from ray_h5.storage.byte_source import Identity
from ray_h5.storage.local import LOCAL
from ray_h5.storage.storage_of_path import storage_of

if TYPE_CHECKING:
    from ray_h5.read.joint_columns import JointColumns
    from ray_h5.rows.row_view import AnyReader
    from ray_h5.storage.storage_of_path import Storage


KEPT_BYTES_A_FILE, MOST_KEPT_BYTES = 128 << 20, 512 << 20
"""Default bounds of the rows in memory: for each file the size that people give its chunk cache; and for all files."""

_SHARED_BYTES = MAX_BLOCK_BYTES
"""Decoded chunks that stay in memory during an epoch: the largest window of a shuffle that is chosen by default."""

MOST_FILES = 64
"""Files that are planned together at most: each has a descriptor."""

_MAX_STATES = 4096


def check_indices(indices: Any, length: int, where: str) -> np.ndarray:
    """Return indices that may be negative as int64 of ``range(length)``.

    Raises
    ------
    RowIndexError
        If one is not in ``range(-length, length)``.
    OptionError
        If they are no integers along one axis: a mask, or numbers with a fraction, would mean other samples.
    """
    if isinstance(indices, list) and indices and isinstance(indices[0], list):
        raise OptionError(
            f"{where}: expected one axis of indices, found lists of them. In a DataLoader, a sampler= yields numbers; "
            "pass a sampler of batches, as OrderBatchSampler, as batch_sampler= and leave batch_size out"
        )
    checked = np.asarray(indices)
    if checked.dtype.kind not in "iu" and checked.size:
        raise OptionError(
            f"{where}: expected integers for indices, found {checked.dtype}; for a mask, pass np.flatnonzero(mask)"
        )
    if checked.ndim != 1:
        # A DataLoader with a sampler of rows as its batch_sampler asks for "batches" that are single numbers.
        hint = ".ravel() makes one" if checked.ndim else "a batch_sampler= yields lists, as OrderBatchSampler; pass a "
        hint += "" if checked.ndim else "sampler of rows, as OrderSampler, as sampler="
        raise OptionError(f"{where}: expected one axis of indices, found shape {checked.shape}; {hint}")
    if not checked.size:
        return checked.astype(np.int64)
    # As Python integers: not every uint64 is an int64.
    least, most = int(checked.min()), int(checked.max())
    if least < -length or most >= length:
        wrong = next(index for index in checked.tolist() if not -length <= index < length)
        raise RowIndexError(f"{where}: index {wrong} is not among its {length} samples (0 to {length - 1})")
    checked = np.array(checked, np.int64, order="C")  # a copy: samples have row ids, and torch takes no negative steps
    return np.where(checked < 0, checked + length, checked) if least < 0 else checked


def alone() -> int:
    """Return 1: no other process reads the same rows."""
    return 1


class RowSource:
    """Reads rows of a plan, given by their indices among the selected rows.

    It can be pickled and forked. The other process opens the files again, and has a row cache of its own. Where chunks
    hold several rows, decoded ones stay in memory from batch to batch, up to 128 MiB; to the end of an epoch if
    `kept_bytes` is 0.

    Parameters
    ----------
    plan : ReadPlan
        Which rows and columns.
    kept_bytes : int, optional
        Bound of the rows that stay in memory, for all workers of a loader together. The columns with the
        smallest rows stay, all that fit with all their rows. By default 128 MiB a file, and at most 512 MiB, for all
        `ranks` together: each rank reads other rows in each epoch, and would hold all of them in the end.
    kept_rows : int
        How many rows of the other columns stay in memory, in each process: those read first.
    keeps : bool
        Whether rows, and chunks that hold several, may stay in memory; a block is read once, and keeps none.
    processes : callable
        Returns how many processes share `kept_bytes`. It is asked at the first read: only then is it known whether this
        is a worker of a `DataLoader`.
    """

    def __init__(
        self,
        plan: ReadPlan,
        kept_bytes: int | None = None,
        kept_rows: int = 0,
        *,
        keeps: bool = True,
        processes: Callable[[], int] = alone,
    ) -> None:
        self.plan, self._keeps, self._processes = plan, keeps, processes
        self.ranks = 1
        """How many ranks of this node read the same files; used at the first read."""
        self.is_closed = False
        """Whether its user has ended the reading for good."""
        self._kept_rows = kept_rows
        self._kept_bytes = None if kept_bytes is None else as_integer("kept_bytes", kept_bytes, 0)
        self._storage: Storage = plan.scope.storage if len(plan.files.etags) else LOCAL
        self.call_bytes = self._storage.call_bytes
        """Bytes that a loader asks for at once; see `Storage`."""
        # An open file in a store needs no descriptor, only memory for what is known of it.
        self._readers: LRU[AnyReader] = LRU(
            self._storage.kept_open, MAX_INDEX_BYTES, lambda reader: reader.base.known_bytes
        )
        self._states: LRU[tuple[str, Identity]] = LRU(_MAX_STATES)
        self._times = new_times()
        self._cached = PerProcess(_CachedRows)
        self._held, self._stats = HeldChunks(), ReadStats()
        self._kept_chunk_bytes, self._epochs, self._rows_read = 0, 0, 0
        sharing = bool(plan.of_files) + sum(bool(rows.names) for rows in plan.files_beside)
        own = None if self._kept_bytes is None else self._kept_bytes // max(1, sharing)
        self._beside = [
            RowSource(rows.plan, own, kept_rows, keeps=keeps, processes=processes) for rows in plan.files_beside
        ]
        """What reads rows of other files; they share `kept_bytes`."""
        self._own_bytes = own
        of_ranges = [spec for spec in plan.columns if spec.kind in {"sparse", "ragged"}]
        is_block = plan.scope.rows is not None and plan.scope.rows.is_block
        self.has_ranges = any(plan.chunk_rows.get(spec.name, 1) > 1 for spec in of_ranges)
        """Whether rows are ranges of longer arrays that are stored in chunks, such as those of a sparse matrix."""
        self.shares_chunks = is_block or plan.chunk_group_rows > 1
        """Whether chunks hold (parts of) several rows, so that a call that reads few rows decodes many for them."""
        # Rows that are far apart in the order share chunks that few bytes hold.
        varies = bool(of_ranges) or any(spec.kind == "list" for spec in plan.columns)
        self.holds_chunks = is_block or (varies and plan.files.num_rows * plan.row_bytes <= _SHARED_BYTES)
        """Whether decoded chunks stay in memory during an epoch."""

    @property
    def keeps_all(self) -> bool:
        """Whether every row stays in memory after it was read."""
        names = [column.name for column in self.plan.of_files]
        is_kept = all(source.keeps_all for source in self._beside)
        return is_kept and self.row_cache.keeps_all(names, self.plan.files.num_rows)

    @property
    def is_compiled(self) -> bool | None:
        """Whether the compiled loop does most of the work of a read; None before rows were read."""
        joints = dict(self._cached.value.joint)
        if not joints:
            return None
        if self.keeps_all:
            return False
        return all(joint is not None and len(joint.columns) == len(names) for names, joint in joints.items())

    @cached_property
    def is_drawn(self) -> bool:
        """Whether the values of rows are drawn, and differ from epoch to epoch."""
        return self.plan.is_drawn

    def checked(self, indices: Any, where: str = "RowSource") -> np.ndarray:
        """Return selected indices as int64, those from 0 on in their range; samplers give others of later draws.

        `where` is named in errors, which are those of `check_indices`.
        """
        num_rows = self.plan.num_rows
        if not self.is_drawn:
            return check_indices(indices, num_rows, where)
        values = np.asarray(indices)
        is_later = values < -num_rows
        checked = check_indices(np.where(is_later, 0, values), num_rows, where)
        return np.where(is_later, values, checked).astype(np.int64)

    def split(self, indices: np.ndarray) -> tuple[np.ndarray, np.ndarray | None]:
        """Return the row ids of selected indices; and their draws, if the values of rows are drawn."""
        if not self.is_drawn:
            return self.plan.row_ids(indices), None
        selected, draws = split_draws(indices, self.plan.num_rows)
        return self.plan.row_ids(selected), draws

    def num_held(self) -> int:
        """Return how many rows lie in memory with all their columns."""
        return self.row_cache.num_held([column.name for column in self.plan.of_files])

    def batch_specs(self, count: int) -> dict[str, Spec]:
        """Return shape and dtype of an array for `count` rows of each column."""
        return {column.name: ((count, *column.row_shape), column.dtype) for column in self.plan.columns}

    def new_arrays(self, count: int) -> dict[str, np.ndarray]:
        """Return uninitialised arrays for `count` rows of each column of the files."""
        return {column.name: empty((count, *column.row_shape), column.dtype) for column in self.plan.as_arrays}

    def read_into(self, out: Mapping[str, np.ndarray], indices: np.ndarray) -> None:
        """Read rows into arrays, row i at place i, each file by one call.

        Parameters
        ----------
        out : mapping of str to numpy.ndarray
            Arrays of the columns of the plan.
        indices : numpy.ndarray
            int64: selected indices, in any order.

        Raises
        ------
        StaleIndexError, MissingSourceError
            If a file, or another that columns or the selection come from, changed since the dataset was made.
        """
        row_ids, draws = self.split(indices)
        if not self._epochs:  # rows of an epoch that nobody said begins: at its end, nothing is to stay in memory
            self._bound_chunks()
            self._rows_read += len(row_ids)
            if self._kept_bytes == 0 and self._rows_read > self.plan.num_rows // self._processes():
                self._held.clear()
                self._rows_read = len(row_ids)
        self._read_checked(out, row_ids, draws)

    def block_rows(self, row_ids: np.ndarray, draws: np.ndarray | None = None) -> BlockRows:
        """Return rows in the order given: the same at each call.

        `draws` has the draw of each row, if their values are drawn; by default the first.
        """
        plan, arrays = self.plan, self.new_arrays(len(row_ids))
        if plan.scope.windows is None:
            steps = None
        else:  # where nothing is kept, they are looked up while a file is open
            steps = self.step_numbers(row_ids) if self._keeps else np.empty(len(row_ids), np.int64)
        if not (arrays or steps is not None or plan.selection is None):
            for file in plan.files_read(row_ids):
                # Nothing is read of it, but its values may decide the selection.
                plan.state(file).check_now(plan.files.path(file), plan.scope.storage)
        self._read_checked(arrays, row_ids, draws, None if self._keeps else steps)
        if not self._keeps:
            # Where nothing is kept, a reader has looked at its file; the others were opened without their state.
            for file in plan.files_read(row_ids) - {*plan.files.files_of(row_ids).tolist()}:
                plan.state(file).check_now(plan.files.path(file), plan.scope.storage)
        return BlockRows(row_ids, arrays, self._stats, steps)

    def columns_of(self, row_ids: np.ndarray) -> Mapping[str, np.ndarray]:
        """Return all columns of some rows of files that are beside others."""
        if not self._keeps:
            return self.block_rows(row_ids).arrays
        arrays = self.new_arrays(len(row_ids))
        self.read_into(arrays, row_ids)
        return arrays

    def _read_checked(
        self,
        out: Mapping[str, np.ndarray],
        row_ids: np.ndarray,
        draws: np.ndarray | None,
        steps: np.ndarray | None = None,
    ) -> None:
        plan, read = self.plan, partial(self._read_files, draws=draws, steps=steps)
        touched = sorted(plan.files_read(row_ids)) if self._keeps else []  # np.unique would import numpy.ma
        try:
            if plan.beside.columns:
                for name in plan.beside.columns.keys() & out.keys():
                    out[name][:] = plan.beside.array(name, plan.files, row_ids)
                out = {name: array for name, array in out.items() if name not in plan.beside.columns}
            for rows, source in zip(plan.files_beside, self._beside, strict=True):
                mine, source.ranks = {name: out[name] for name in rows.names if name in out}, self.ranks
                rows.fill(mine, plan.files, row_ids, source.columns_of)
                out = {name: array for name, array in out.items() if name not in mine}
            if self._keeps:
                self.row_cache.read_through(out, row_ids, read)
            else:
                read(out, row_ids, np.arange(len(row_ids)))
        finally:  # a file that changed before or meanwhile is another one now; that says more than what it led to
            self._check_files(touched)

    def step_numbers(self, row_ids: np.ndarray) -> np.ndarray | None:
        """Return the numbers of the steps that rows are, from which row keys are made: int64; None without windows."""
        plan = self.plan
        if plan.scope.windows is None:
            return None
        steps = np.empty(len(row_ids), np.int64)
        for file, here in by_file(plan.files, row_ids):
            steps[here] = self._steps_in(file, self._reader(file), row_ids[here])
        return steps

    def _steps_in(self, file: int, reader: AnyReader, row_ids: np.ndarray) -> np.ndarray:
        """Return the numbers of the steps that rows of a file are, among those of all files."""
        assert not isinstance(reader, FileReader)
        plan = self.plan
        return reader.step_numbers(row_ids - plan.files.starts[file]) + plan.steps.starts[file]

    @contextlib.contextmanager
    def sharing_chunks(self) -> Iterator[None]:
        """Keep decoded chunks in memory until the end of an epoch that threads read."""
        self._count_epochs(1)
        try:
            yield
        finally:
            self._count_epochs(-1)

    def _count_epochs(self, change: int) -> None:
        """Count an epoch that threads read, here and in the files beside: 1 where it begins, -1 where it ends."""
        self._epochs += change
        if change > 0:
            self._bound_chunks()
        else:
            self._held.resize(self._kept_chunk_bytes)
        for source in self._beside:
            source._count_epochs(change)

    def _bound_chunks(self) -> None:
        # Threads of a loader read a window of a shuffle at once. Others read one batch after the other.
        are_shared = self.holds_chunks or (self.plan.chunk_group_rows > 1 and not self._epochs)
        self._held.resize(max(self._kept_chunk_bytes, _SHARED_BYTES if are_shared else 0))

    def close(self) -> None:
        """Close all files and let go of the rows in memory. The next read opens the files again."""
        self._readers.clear()
        forget(self.plan.files.have)
        self._states.clear()
        self._held.clear()
        self._cached.renew()
        for source in self._beside:
            source.close()

    @property
    def row_cache(self) -> RowCache:
        """The rows that this process holds."""
        cached = self._cached.value
        with cached.lock:
            # Not earlier than at the first read: only then is it known whether this is a loader worker.
            if cached.row_cache is None:
                cached.row_cache = self._new_row_cache()
            return cached.row_cache

    def _new_row_cache(self) -> RowCache:
        num_rows, max_bytes = self.plan.files.num_rows, self._own_bytes
        if max_bytes is None:
            max_bytes = min(KEPT_BYTES_A_FILE * len(self.plan.files), MOST_KEPT_BYTES) // self.ranks
        max_bytes //= self._processes()
        if self.plan.is_drawn:  # a row has other values in each epoch
            self._kept_chunk_bytes = max_bytes
            self._bound_chunks()
            return RowCache({}, 0)
        if not self._kept_rows:
            num_rows = min(num_rows, max_bytes // (2 * TABLE_BYTES))  # rows after these are never held
            # All rows are held if their size is given. The table counts where it is more than a small part of that.
            max_bytes -= max(0, num_rows * TABLE_BYTES - max_bytes // 16)
        specs, bounds = self.plan.of_files, dict[str, int]()
        for spec in sorted(specs, key=lambda spec: spec.row_bytes):
            if spec.kind not in {"list", "ragged", "sparse"} and spec.row_bytes * num_rows <= max_bytes:
                max_bytes -= spec.row_bytes * num_rows  # all its rows stay
            else:
                bounds[spec.name] = self._kept_rows
        kept = [spec for spec in specs if bounds.get(spec.name, num_rows)]
        return RowCache({spec.name: (spec.row_shape, spec.dtype) for spec in kept}, num_rows, bounds)

    def _check_files(self, touched: list[int]) -> None:
        """Make sure that files are unchanged, whether rows of them were read or lay in memory."""
        plan = self.plan
        for file in touched:
            state = self._states.get(file)
            if state is None:
                state = plan.files.path(file), plan.files.identity(file)
                self._states.put(file, state)
            if (now := self._seen(*state)) not in (None, state[1]):
                check_same(*state, now)  # it returns if the ctime alone differs
                self._reader(file).base.opened.check_unchanged()  # it looks at its columns and chunks again
                self._cached.value.joint.clear()
                self._states.put(file, (state[0], now))
        # Once at each file that columns of the touched files come from.
        for path, expected in plan.sources.of_files(touched) if plan.sources.columns else ():
            if not compare(expected, self._seen(path, expected)).is_none:
                for file in touched:
                    plan.state(file).check_now(plan.files.path(file), plan.scope.storage)

    def _seen(self, path: str, expected: Identity | None) -> Any:
        """Return the state of a file; None if there is none.

        One that cannot be looked at raises no error here, but where it is opened, if it has to be.
        """
        try:
            return storage_of(path, self._storage).seen(path, expected)
        except OSError:
            return expected

    def _read_files(
        self,
        out: Mapping[str, np.ndarray],
        row_ids: np.ndarray,
        places: np.ndarray,
        draws: np.ndarray | None = None,
        steps: np.ndarray | None = None,
    ) -> None:
        files, rows = self.plan.files.rows.local(row_ids)
        done = self._read_together(out, files, rows, places) if self._storage is LOCAL and self._keeps else set()
        rest, options = {name: array for name, array in out.items() if name not in done}, self.plan.read_options

        def planned(file: int, here: np.ndarray) -> FileRead:
            drawn, reader = {} if draws is None else {"draws": draws[here]}, self._reader(file)
            if steps is not None:
                steps[here] = self._steps_in(file, reader, row_ids[here])
            read = reader.planned(rest, rows[here], places[here], **options, **drawn)
            read.held = self._held
            return read

        if rest or steps is not None:  # the reader looks at the state of each file before and after
            stats = run_reads([partial(planned, *part) for part in by_part(files)], self._times)
            if not self._keeps:  # one thread reads one block
                self._stats.add(stats)

    def _read_together(
        self, out: Mapping[str, np.ndarray], files: np.ndarray, rows: np.ndarray, places: np.ndarray
    ) -> set[str]:
        """Read the columns that are alike in all files: rows of all of them are planned at once; return their names.

        Fast path: batches of 64 rows of 4 files take half of the time in Python (CPU seconds). The others have to be
        read file by file; after an error, all of them: that reports it.
        """
        joint = self._joint_of(out, files)
        if joint is None or (joint.decodes_parts and self._held.max_bytes):
            return set()
        arrays = {name: out[name] for name in joint.columns}
        try:
            numbers = np.searchsorted(self._with_rows, files)
            cost = joint.read(arrays, np.array([numbers, rows, places], np.int64), self._times)
        except (OSError, RayH5Error):
            self._cached.value.joint.pop(tuple(out), None)
            return set()
        return set() if cost is None else set(arrays)

    def _joint_of(self, out: Mapping[str, np.ndarray], files: np.ndarray) -> JointColumns | None:
        """Return all files that have selected rows, read together.

        None if they are many, some are not open after the given ones are, or no column is alike in all of them.
        """
        names, joints = tuple(out), self._cached.value.joint
        if names not in joints:
            if len(self._with_rows) > min(MOST_FILES, max_open()):
                return joints.setdefault(names)
            try:
                # Each file is opened when its rows are read: one that does not answer holds up no other.
                for file in sorted({*files.tolist()}):  # np.unique would import numpy.ma
                    self._reader(file)
            except (OSError, RayH5Error):
                return None  # reading its rows reports it
            readers = [self._readers.get(file) for file in self._with_rows.tolist()]
            if None in readers:
                return None
            from ray_h5.read.joint_columns import JointColumns  # one file needs none of it

            plain = [reader.opened for reader in readers if isinstance(reader, FileReader)]
            joints[names] = JointColumns.of_files(plain, out) if len(plain) == len(readers) else None
        return joints[names]

    @cached_property
    def _with_rows(self) -> np.ndarray:
        """The numbers of the files that have selected rows."""
        files, selection = self.plan.files, self.plan.selection
        if selection is None:
            return np.flatnonzero(files.rows.lengths)
        return np.flatnonzero(np.bincount(files.files_of(selection), minlength=len(files)))

    def _reader(self, file: int) -> AnyReader:
        reader = self._readers.get(file)
        if reader is not None:
            return reader
        # Not under the lock of the LRU: the file may be on a mount that does not answer, and other files are to be
        # read meanwhile. If two threads open a file at once, both read with the first one's reader.
        opened = self.plan.open(file)
        return self._readers.update(file, lambda known: known or opened)

    def __reduce__(self) -> tuple[Any, ...]:
        made, arguments = (
            partial(RowSource, keeps=self._keeps, processes=self._processes),
            (self.plan, self._kept_bytes, self._kept_rows),
        )
        return made, arguments, {"ranks": self.ranks, "is_closed": self.is_closed}


def read_rows(plan: ReadPlan, row_ids: np.ndarray, draws: np.ndarray | None = None) -> BlockRows:
    """Read rows in the order given, once, and keep none: the same at each call; see `RowSource.block_rows`.

    Raises
    ------
    StaleIndexError, MissingSourceError
        If a file, or a source of its columns or of the selection, changed since the plan was made.
    """
    return RowSource(plan, 0, keeps=False).block_rows(row_ids, draws)


class _CachedRows:
    """The rows that one process holds."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.row_cache: RowCache | None = None
        # By the columns that are read; None where these are not read together.
        self.joint: dict[tuple[str, ...], JointColumns | None] = {}
