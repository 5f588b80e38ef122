"""`H5Datasource`: answers the questions of Ray Data from the row index and the plan."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Collection, Iterable, Sequence
from operator import methodcaller
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import pyarrow.compute as pc
import ray
from ray.data import DataContext, Dataset, Datasource
from ray.data.datasource import ReadTask
from ray.data.expressions import Expr

from ray_h5.columns.schema import ColumnSpec
from ray_h5.errors import OptionError, UnknownColumnError
from ray_h5.index.file_options import FileOptions
from ray_h5.index.file_warnings import warn_of_surprises
from ray_h5.loading.origin_columns import check_planned, origins_of, place_values
from ray_h5.lru import LRU, first_time
from ray_h5.messages import ensure_handler, no_column
from ray_h5.options import takes_options_of
from ray_h5.order.block_layout import choose_block_rows
from ray_h5.order.draws.shuffle import UnusableRowsError
from ray_h5.plan.blocks import start_of
from ray_h5.plan.read_plan import ReadPlan, make_plan, steps_plan
from ray_h5.plan.shuffle_effect import describe
from ray_h5.predicates.evaluate import as_expression, check_names, check_there, fingerprint
from ray_h5.predicates.virtual_names import in_words
from ray_h5.ray_data.arguments import ShuffleLike, as_shuffle, as_tail
from ray_h5.ray_data.arrow.blocks import schema_of
from ray_h5.ray_data.arrow.nullable_tensors import NullableTensorType
from ray_h5.ray_data.epochs import Epochs
from ray_h5.ray_data.quiet import turn_down_logs
from ray_h5.ray_data.ray_expressions import column_names
from ray_h5.ray_data.ray_internals import datasources, operators, with_datasources
from ray_h5.ray_data.tasks import in_tasks, read_tasks, task_of_nothing
from ray_h5.source import Source, SourceOptions
from ray_h5.storage.byte_source import IN_FLIGHT_BYTES
from ray_h5.storage.find_files import PathLike
from ray_h5.storage.storage_of_path import Storage

if TYPE_CHECKING:
    from typing_extensions import Unpack


logger = logging.getLogger(__name__)


Key: TypeAlias = "tuple[bytes | None, tuple[str, ...]]"
"""What identifies a plan: the fingerprint of the predicate, empty without one, None if it has none; and the columns."""

_MAX_PLANS = 4


class PlanCache:
    """The last few plans of one datasource, shared by all datasources that Ray derives from it.

    A process that a trainer or a splitter sends the dataset to gets the plans with it, and does not plan again.
    """

    def __init__(self, plans: Iterable[tuple[Key, ReadPlan]] = ()) -> None:
        self._plans: LRU[tuple[Key, ReadPlan]] = LRU(_MAX_PLANS)
        self._references: LRU[ray.ObjectRef[ReadPlan]] = LRU(_MAX_PLANS)
        self._described: LRU[bool] = LRU(_MAX_PLANS)
        for key, plan in plans:
            self._plans.put(key, (key, plan))

    def get(self, key: Key, make: Callable[[], ReadPlan]) -> ReadPlan:
        """Return a plan; call `make` if it is not in the cache, or if its predicate has no fingerprint."""
        if key[0] is None:
            return make()
        known = self._plans.get(key)
        if known is None:
            known = key, make()
            self._plans.put(key, known)
        return known[1]

    def describe(self, key: Key, plan: ReadPlan) -> None:
        """Say once what is read: to find it out takes a second for many selected rows."""
        if logger.isEnabledFor(logging.INFO) and (key[0] is None or self._described.get(key) is None):
            self._described.put(key, True)
            if first_time("reading", said := describe(plan)):  # another datasource may read the same
                logger.info("reading %s", said)

    def reference(self, key: Key, plan: ReadPlan) -> ray.ObjectRef[ReadPlan]:
        """Return a reference to a plan in Ray's object store, where it is put once a session."""
        # After `ray.shutdown` and `ray.init` it is another store. The worker id of a driver is made from its job id,
        # and each new cluster numbers its jobs from 1: the node tells them apart.
        context = ray.get_runtime_context() if ray.is_initialized() else None
        place = None if context is None else (context.get_node_id(), context.get_worker_id()), key
        stored = None if key[0] is None else self._references.get(place)
        if stored is None:
            stored = ray.put(plan)
            self._references.put(place, stored)
        return stored

    def __reduce__(self) -> tuple[Any, ...]:
        # Without references, which are valid in this process, or in its cluster, alone.
        return PlanCache, (self._plans.values(),)


@takes_options_of(Source)
class H5Datasource(Datasource):
    """HDF5 files as a datasource of Ray Data; `ray_h5.read_h5` makes one and reads it.

    Planning happens in the process that makes the object: it collects row counts and schema at once, and the small
    columns of a predicate when the predicate is first planned. Tasks receive the plan by reference.

    Parameters
    ----------
    **options
        The options of `ray_h5.source.Source`.
    shuffle : bool, str, Shuffle or FileShuffleConfig, optional
        The order of an epoch; None keeps the order of the files.
    tail, tail_rows
        As for `read_h5`.
    include_paths, include_row_ids, include_row_keys, include_steps, include_padding : bool
        Add the column `path`, `row_id`, `row_key`, `step`, `is_padding`, as in `read_h5`.
    block_rows, num_blocks : int, optional
        Rows of a block, or the number of blocks. By default blocks are made by their size in bytes.
    threads : int
        Threads that read and decode in one task.

    Raises
    ------
    RayH5Error
        If planning finds a file that cannot be read; see the classes of `ray_h5.errors`.
    """

    def __init__(
        self,
        paths: PathLike | Sequence[PathLike],
        *,
        shuffle: ShuffleLike = None,
        tail: Literal["keep", "drop", "pad"] = "keep",
        tail_rows: int | None = None,
        include_paths: bool = False,
        include_row_ids: bool = False,
        include_row_keys: bool = False,
        include_steps: bool = False,
        include_padding: bool = False,
        block_rows: int | None = None,
        num_blocks: int | None = None,
        threads: int = 1,
        **options: Unpack[SourceOptions],
    ) -> None:
        super().__init__()
        # Ray's base class leaves this attribute to its subclasses.
        self._projection_map: dict[str, str] | None = None
        ensure_handler()  # before a seed is drawn, which is a message
        self._shuffle, self._tail = as_shuffle(shuffle), as_tail(tail, tail_rows)
        self._block_size = (block_rows, num_blocks)
        choose_block_rows(1, 1, *self._block_size)  # raises here for options that cannot be used
        files = FileOptions.of(paths, threads=threads, **options)
        self._local_only = files.local_only
        self._index = files.index(spread=in_tasks)
        warn_of_surprises(self._index, files)
        self._delivered = self._index.delivered
        self._columns = self._index.outputs
        asked = include_paths, include_row_ids, include_row_keys, include_steps, include_padding or tail == "pad"
        self._added = origins_of(asked, self._columns, self._index)
        self.names: tuple[str, ...] = (*self._columns, *self._added)
        """The columns that are delivered, in order."""
        self._predicate: pc.Expression | None = None
        self._predicate_specs: dict[str, ColumnSpec] = {}
        self._plans = PlanCache()
        self._steps_of: tuple[str, ...] = ()
        self.epochs = Epochs()

    def reference(self) -> ray.ObjectRef[ReadPlan]:
        """Return the plan in Ray's object store, where it is put once."""
        return self._plans.reference(self._key, self.plan())

    def inputs(self) -> tuple[list[str], Storage]:
        """Return the paths and URLs of all files, also those that links lead to; and where those with a URL are."""
        sources = self._index.sources_of(self._columns).of_files()
        return [*self._index.files.all_paths(), *(path for path, _ in sources)], self._index.scope.storage

    @property
    def labels(self) -> dict[str, dict[Any, int]]:
        """The number of each class, by column; None stands for all other values."""
        return {label.name: label.by_value for label in self._index.labels}

    # Ray calls these while it optimizes a plan ----------------------------------------------

    def supports_projection_pushdown(self) -> bool:
        return True

    def supports_predicate_pushdown(self) -> bool:
        return True

    @property
    def supports_distributed_reads(self) -> bool:
        return not self._local_only

    @property
    def remote_task_bytes(self) -> int | None:
        """The memory that a task takes which reads from a store; None if no file is in one."""
        remote = self._index.files.remote_bytes()
        if not remote:
            return None
        row_bytes, num_rows = sum(column.row_bytes for column in self._columns.values()), self._index.num_rows
        block = row_bytes * min(num_rows, choose_block_rows(row_bytes, num_rows, *self._block_size))
        # A block is there twice: as arrays, and for the object store.
        return _WORKER_BYTES + min(IN_FLIGHT_BYTES, remote) + 2 * block

    def apply_projection(self, projection_map: dict[str, str] | None) -> H5Datasource:
        """Return a datasource that reads only these columns."""
        clone: H5Datasource = super().apply_projection(projection_map)
        names = clone.get_projection_map()
        if names is not None:
            for name in names:
                if name not in self.names:
                    raise UnknownColumnError(no_column([name], self.names))
            clone.names = tuple(names)
        return clone

    def apply_predicate(self, predicate_expr: Expr) -> H5Datasource:
        """Return a datasource that reads only the rows that pass the predicate."""
        expression, names = as_expression(predicate_expr), column_names(predicate_expr)
        check_planned(names, self._added)
        # It may name columns that the argument `columns` leaves out, but not those that a selection has dropped.
        if self.get_projection_map() is not None:
            check_there(names, self.names)
        known = {**self._delivered, **self._added}
        specs = {name: known[name] for name in names if name in known}
        specs |= self._index.find([name for name in names if name not in specs])
        check_names(names, specs)
        clone: H5Datasource = super().apply_predicate(predicate_expr)
        # Ray pushes several filters one after another.
        clone._predicate = expression if self._predicate is None else self._predicate & expression
        clone._predicate_specs = {**self._predicate_specs, **{name: specs[name] for name in names}}
        return clone

    def rows_once(self) -> H5Datasource:
        """Return a datasource that reads each selected row once: without tail and weights."""
        clone = copy.copy(self)
        clone._shuffle = None if self._shuffle is None else self._shuffle.once()
        clone._tail, clone._plans, clone.epochs = None, PlanCache(), Epochs()
        return clone

    def _offsets(self) -> dict[str, tuple[int, ...]]:
        """Return the offsets of the columns of windows, by name."""
        windows = self._index.scope.windows
        columns = () if windows is None or windows.at is not None else windows.every
        return {column.name: column.offsets for column in columns if column.name in self._columns}

    def steps_once(self, names: Sequence[str]) -> H5Datasource:
        """Return a datasource that reads each step of some columns of windows once, though windows overlap."""
        clone = self.rows_once()
        clone._shuffle, clone._steps_of = None, tuple(names)
        of_tables = self._index.beside.columns.keys() - {*names}
        clone.names = tuple(name for name in clone.names if name not in of_tables)
        return clone

    def for_workers(self, world_size: int, is_resumable: bool) -> H5Datasource:
        """Return a copy for a trainer whose workers receive whole blocks in turn."""
        clone = copy.copy(self)
        clone.epochs = self.epochs.for_workers(world_size, is_resumable)
        return clone

    def estimate_inmemory_data_size(self) -> int | None:
        try:
            plan = self.plan()
        except UnusableRowsError:
            return None
        return plan.num_positions * plan.row_bytes

    # Ray calls these when it executes a plan ------------------------------------------------

    def get_read_tasks(
        self,
        parallelism: int,  # noqa: ARG002  Ray's name
        per_task_row_limit: int | None = None,
        data_context: DataContext | None = None,
    ) -> list[ReadTask]:
        """Return a task for each block. Ray's `parallelism` is not used: it would make blocks too small."""
        try:
            plan = self.plan()
        except UnusableRowsError:
            if data_context is not None:
                raise
            # Ray asks before a filter can be given, which may leave these rows out. This task is never executed.
            plan = make_plan(self._index, self._planned())
            return [task_of_nothing(schema_of(plan, self.names), None, tuple(plan.files.all_paths()))]
        # Ray calls this several times only to count tasks. The call with a context is the one whose tasks run.
        if data_context is not None:
            turn_down_logs(data_context)
            # All tasks of the execution get it: also those that shuffle Arrow's streams know the type by its name.
            data_context.set_config("ray_h5.nullable_tensor", NullableTensorType)
            self._plans.describe(self._key, plan)
            start = self.epochs.begin(plan, (self._key[0], self.names), data_context)
            return read_tasks(plan, self.reference(), self.names, start, per_task_row_limit)
        # `Dataset.input_files` takes the files from the metadata of tasks that are only counted.
        files = tuple(plan.files.all_paths())
        return read_tasks(plan, plan, self.names, start_of(plan), per_task_row_limit, files)

    def plan(self) -> ReadPlan:
        """Return the plan for the current predicate and columns."""
        return self._plans.get(self._key, self._make_plan)

    @property
    def _key(self) -> Key:
        predicate = b"" if self._predicate is None else fingerprint(self._predicate)
        return predicate, tuple(spec.name for spec in self._planned())

    def _planned(self) -> list[ColumnSpec]:
        return [self._columns[name] for name in self.names if name in self._columns]

    def _make_plan(self) -> ReadPlan:
        selection, of_files = None, self._predicate_specs.keys() - self._added.keys()
        if self._predicate is not None:
            places = place_values(self._index, self._predicate_specs.keys() - of_files)
            selection = self._index.select(self._predicate, places)
        how = self._shuffle, *self._block_size, self._tail, of_files
        plan = make_plan(self._index, self._planned(), selection, *how)
        if self._predicate is not None and not plan.num_rows:
            said = "no row matches: none of %d rows passes %s"
            logger.warning(said, self._index.num_kept, in_words(self._predicate))
        return steps_plan(plan, self._steps_of) if self._steps_of else plan


_WORKER_BYTES = 256 << 20
"""What a worker has loaded before it reads (130 MB of its own, measured), and room for what is decoded at a time."""


def labels_of(ds: Dataset) -> dict[str, dict[Any, int]]:
    """Return which number stands for which class, for the columns that `read_h5` delivers with ``labels=``.

    Parameters
    ----------
    ds : ray.data.Dataset
        A dataset of `read_h5`, or one made from it. `H5Dataset` has an attribute ``labels``.

    Returns
    -------
    dict of str to dict
        The number of each class, by column; the class None stands for all other values.

    Examples
    --------
    >>> ds = ray_h5.read_h5("data/*.h5", labels={"kind": "auto"})  # doctest: +SKIP
    >>> labels_of(ds)  # doctest: +SKIP
    {'kind': {'cat': 0, 'dog': 1}}
    """
    if not isinstance(ds, Dataset):
        raise OptionError(f"labels_of: expected a dataset of read_h5, found a {type(ds).__name__}")
    return {name: classes for datasource in sources_of(ds) for name, classes in datasource.labels.items()}


def sources_of(ds: Dataset) -> list[H5Datasource]:
    """Return the `read_h5` that a dataset is made of."""
    return [datasource for datasource in datasources(ds) if isinstance(datasource, H5Datasource)]


def by_elements(ds: Dataset, columns: Sequence[str], reduced: Collection[str]) -> list[tuple[Dataset, list[str]]]:
    """Return datasets that together have each value of some columns once, each with the columns that it is for.

    Windows overlap, so a value is in several rows. Where windows come straight from files, those columns of `reduced`
    that have offsets are read step by step.
    """
    once, sources = with_datasources(ds, H5Datasource, H5Datasource.rows_once), sources_of(ds)
    known = sources[0]._offsets() if sources and len(operators(ds)) == 1 else {}
    by_offsets: dict[tuple[int, ...] | None, list[str]] = {}
    for name in columns:
        by_offsets.setdefault(known.get(name) if name in reduced else None, []).append(name)
    return [
        (once if offsets is None else with_datasources(ds, H5Datasource, methodcaller("steps_once", names)), names)
        for offsets, names in by_offsets.items()
    ]
