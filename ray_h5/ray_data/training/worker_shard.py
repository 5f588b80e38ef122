"""The share of a dataset that a worker of a trainer reads itself, in threads of its own process.

Rows, their order, values and positions are those of the tasks of Ray: a run may begin with one and resume with the
other. No task, no object store and no coordinator is between the files and the training loop.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn, TypeAlias

import numpy as np
import pyarrow as pa
import ray
import ray.train
from ray.data import DataContext, DataIterator, Dataset, Schema
from ray.data.block import BlockAccessor
from ray.data.collate_fn import ArrowBatchCollateFn, PandasBatchCollateFn

from ray_h5.columns.schema import TENSOR_KINDS
from ray_h5.errors import OptionError
from ray_h5.loading.agreement import first_said
from ray_h5.loading.cursor import Cursor
from ray_h5.loading.origin_columns import ORIGINS, Origin
from ray_h5.loading.rank_shares import Share
from ray_h5.loading.read_calls import BatchReader
from ray_h5.options import as_integer
from ray_h5.order.position import Position
from ray_h5.plan.blocks import Block, read_block, start_of
from ray_h5.plan.read_plan import ReadPlan
from ray_h5.plan.row_source import RowSource
from ray_h5.ray_data.arrow.blocks import schema_of, to_table
from ray_h5.ray_data.datasource import H5Datasource
from ray_h5.ray_data.epochs import Epochs, check_agreement, in_words, say_begun
from ray_h5.ray_data.preprocessing.standardize import Standardize
from ray_h5.ray_data.ray_internals import steps_after_reading, world_rank
from ray_h5.transforms.augmentation import Augmentation
from ray_h5.transforms.image_transform import DecodeImage

if TYPE_CHECKING:
    import torch

Batch: TypeAlias = "dict[str, np.ndarray] | pa.Table"

RowFunction: TypeAlias = Callable[[Batch], Any]
"""Takes a batch and returns one in a format of Ray, row by row."""

_PLAIN = "biuf"
"""The kinds of dtype that stay arrays."""

_INSTEAD = "It works on tasks of Ray: data_config(reading='tasks')."


def _columns(plan: ReadPlan, block: Block, names: tuple[str, ...]) -> Batch:
    """Return columns of a block: as arrays if all are plain numbers, otherwise as the table of a task."""
    specs, origin = {spec.name: spec for spec in plan.as_arrays}, Origin.of(plan, block)
    columns: dict[str, np.ndarray] = {}
    for name in names:
        spec, values = specs.get(name), None
        if spec is None:
            values = origin.column(name) if name in ORIGINS else None
        elif spec.kind in TENSOR_KINDS and spec.dtype.kind in _PLAIN and not spec.as_bfloat16:  # a field says that
            values = block.rows.arrays[name]
        if not isinstance(values, np.ndarray):
            return to_table(plan, block, names)
        columns[name] = values
    return columns


def _after(functions: Iterable[RowFunction], batch: Batch) -> Batch:
    """Return a batch after functions."""
    for function in functions:
        batch = function(batch)
        # Between two functions Ray makes a table of what is not plain numbers.
        parts = batch.values() if isinstance(batch, dict) else [None]
        if not all(isinstance(values, np.ndarray) and values.dtype.kind in _PLAIN for values in parts):
            batch = _in_format(BlockAccessor.batch_to_block(batch), "pyarrow")
    return batch


def _called(function: Callable[[Any], Any], wanted: str, batch: Batch) -> Any:
    return function(_in_format(batch, wanted))


def read_by_workers(ds: Dataset) -> tuple[H5Datasource, list[RowFunction]] | str:
    """Return what a worker reads of a dataset, and the functions after the reading; or why only tasks of Ray can."""
    source, steps = steps_after_reading(ds)
    if not isinstance(source, H5Datasource):
        return "it is not the dataset of one read_h5, or rows are moved after the reading"
    if ds.context.checkpoint_config is not None:
        return "DataContext.checkpoint_config is set, which leaves out rows by their ids, and is known to tasks alone"
    functions: list[RowFunction] = []
    for step in steps:
        fn, of = step.fn, getattr(step.fn, "__self__", None)
        if isinstance(of, Standardize):
            fn = of._transform_arrow
        takes_both = isinstance(fn, Augmentation) or isinstance(of, Standardize)
        # Without a size, or with nulls, the type of a column depends on the other rows of a block.
        is_image = isinstance(fn, DecodeImage) and fn.size is not None and fn.on_error == "raise"
        if not (takes_both or is_image or getattr(fn, "row_by_row", False)) or not step.in_tasks:
            return f"{step.name} is no function of ray_h5, and does not say row_by_row = True"
        called = partial(fn, *step.args, **step.kwargs)
        wanted = "numpy" if step.batch_format == "default" else step.batch_format
        # Those that change their own column alone take arrays or a table.
        is_direct = takes_both and wanted == "pyarrow"
        functions.append(called if is_direct else partial(_called, called, wanted))
    return source, functions


def _refused(what: str) -> Callable[..., NoReturn]:
    """Return a method of Ray's iterators that a shard without tasks does not have."""

    def method(*_: Any, **__: Any) -> NoReturn:
        raise OptionError(f"{what}: this shard is read in the worker. {_INSTEAD}")

    return method


@dataclass(eq=False, repr=False)
class WorkerShard(DataIterator):
    """The share of a dataset that a worker of a trainer reads itself; `data_config` makes it."""

    name: str
    """The key of the dataset."""
    put: ray.ObjectRef[ReadPlan] | ReadPlan
    """The plan, in Ray's object store once; or the plan itself."""
    names: tuple[str, ...]
    """The columns, in order."""
    functions: list[RowFunction]
    """The functions after the reading."""
    epochs: Epochs
    """Where the first iteration begins."""
    rank: int
    """The share, of `ranks`."""
    ranks: int
    threads: int
    _source: RowSource | None = None
    _cursor: Cursor | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_source": None}

    def __repr__(self) -> str:
        return f"WorkerShard({self.name!r}, rank {self.rank} of {self.world_size()})"

    @property
    def plan(self) -> ReadPlan:
        """The plan; this process gets it once."""
        if not isinstance(self.put, ReadPlan):
            self.put = ray.get(self.put)
        return self.put

    @property
    def cursor(self) -> Cursor:
        """Where this worker is; `set_epoch` sets it."""
        if self._cursor is None:
            self._cursor = self.epochs.cursor(self.plan)
        return self._cursor

    # What users call ------------------------------------------------------------------------------

    def iter_torch_batches(
        self,
        *,
        prefetch_batches: int = 1,  # noqa: ARG002  reading ahead is bounded by bytes
        batch_size: int | None = 256,
        dtypes: Any = None,
        device: str | torch.device = "auto",
        collate_fn: Callable[[Any], Any] | None = None,
        drop_last: bool = False,
        local_shuffle_buffer_size: int | None = None,
        local_shuffle_seed: int | None = None,  # noqa: ARG002
        pin_memory: bool = False,
    ) -> Iterable[Any]:
        """Iterate over batches of tensors, as `ray.data.DataIterator.iter_torch_batches` does.

        Columns that torch has no tensor for stay numpy arrays, as with `TorchCollate`.
        """
        from ray_h5.device import can_pin, to_device
        from ray_h5.ray_data.training.collate import TorchCollate
        from ray_h5.ray_data.training.device import as_device

        _check_buffer(local_shuffle_buffer_size)
        if collate_fn is not None and dtypes is not None:
            raise OptionError("iter_torch_batches: pass dtypes or collate_fn: a function of yours casts itself")
        target, finish = as_device(device), collate_fn
        if finish is None:
            by_name = dtypes if isinstance(dtypes, Mapping) else None
            finish = TorchCollate(by_name, (pin_memory or target.type == "cuda") and can_pin(), casting="unsafe")
            if dtypes is not None and by_name is None:
                finish = partial(_cast_all, finish, dtypes)
        elif not isinstance(finish, TorchCollate):  # which takes arrays and tables
            formats = {ArrowBatchCollateFn: "pyarrow", PandasBatchCollateFn: "pandas"}
            wanted = next((name for kind, name in formats.items() if isinstance(finish, kind)), "numpy")
            finish = partial(_called, finish, wanted)
        return _Iterable(partial(self._iterate, batch_size, drop_last, finish, partial(to_device, device=target)))

    def iter_batches(
        self,
        *,
        prefetch_batches: int = 1,  # noqa: ARG002
        batch_size: int | None = 256,
        batch_format: str | None = "default",
        drop_last: bool = False,
        local_shuffle_buffer_size: int | None = None,
        local_shuffle_seed: int | None = None,  # noqa: ARG002
    ) -> Iterable[Any]:
        """Iterate over batches in a format of Ray: ``"numpy"``, ``"pandas"`` or ``"pyarrow"``."""
        _check_buffer(local_shuffle_buffer_size)
        finish = partial(_in_format, wanted="numpy" if batch_format in ("default", None) else batch_format)
        return _Iterable(partial(self._iterate, batch_size, drop_last, finish, iter))

    def iter_rows(self) -> Iterable[dict[str, Any]]:
        """Iterate over rows, as dicts."""

        def rows() -> Iterator[dict[str, Any]]:
            for table in self.iter_batches(batch_format="pyarrow"):
                yield from BlockAccessor.for_block(table).iter_rows(public_row_format=True)

        return _Iterable(rows)

    def schema(self) -> Schema:
        """Return the columns and their types."""
        plan, names = self.plan, self.names
        if not self.functions or not plan.num_positions:
            return Schema(schema_of(plan, names))
        # What functions return is known from a row: types of no values are not.
        made = _after(self.functions, to_table(plan, read_block(plan, start_of(plan), 0, 1), names))
        return Schema(_in_format(made, "pyarrow").schema)

    def stats(self) -> str:
        """Return where rows are read."""
        start, rows = self.cursor.run or (None, 0)
        done = rows - start.rows if start is not None else 0
        return f"{self!r}: read in {self.threads} threads of this process, {done} rows handed out"

    def get_context(self) -> DataContext:
        """Return the context of this process."""
        return DataContext.get_current()

    def world_size(self) -> int:
        """Return how many workers share the dataset."""
        return self.ranks

    def state_dict(self) -> dict[str, Any]:
        """Return the position after all batches handed out so far; `set_epoch` and `train_batches` take it."""
        return self.cursor.position().to_dict()

    materialize: ClassVar[Any] = _refused("materialize")
    to_tf: ClassVar[Any] = _refused("to_tf")
    # What all other iterators of Ray begin with.
    _to_ref_bundle_iterator: ClassVar[Any] = _refused("its blocks in the object store")

    # Reading --------------------------------------------------------------------------------------

    def _iterate(
        self,
        batch_size: int | None,
        drop_last: bool,
        finish: Callable[[Batch], Any],
        moved: Callable[[Iterator[list[Any]]], Iterable[Any]],
    ) -> Iterator[Any]:
        """Yield the batches of the next epoch."""
        plan, cursor = self.plan, self.cursor
        size = plan.block_rows if batch_size is None else as_integer("batch_size", batch_size, 1)
        start = cursor.begin(lambda epoch: start_of(plan, epoch, self.ranks, cursor.order.seed))
        run = start, start.rows

        def agreed() -> Iterator[list[Any]]:
            wait, batches = self._agreement(start), self.read(start, self.rank, size, drop_last, finish)
            if wait is not None:
                # The first batch is read while other workers arrive, and handed out once all agree.
                first = list(itertools.islice(batches, 1))
                wait()
                yield from first
            yield from batches

        for rows, batch in moved(agreed()):
            run = cursor.advance(rows, run)  # those of a batch that is on its way to a GPU are not handed out
            yield batch

    def read(
        self, start: Position, rank: int, batch_size: int, drop_last: bool, finish: Callable[[Batch], Any]
    ) -> Iterator[list[Any]]:
        """Return the numbers of rows and the batches that a rank reads from a position on."""
        say_begun(start)
        if self._source is None:
            self._source = RowSource(self.plan, kept_bytes=0)

        def made(block: Block) -> list[Any]:
            return [len(block.positions), _columns(self.plan, block, self.names)]

        def finished(batch: list[Any]) -> list[Any]:
            return [batch[0], finish(_after(self.functions, batch[1]))]

        # Functions of users are called one after the other, in order, in a thread of their own. Tensors are made in the
        # thread that reads: to hand a batch from thread to thread costs more.
        in_order = self.functions or vars(type(finish)).get("_in_order", True)  # a subclass says it for itself
        return iter(
            BatchReader(
                self._source,
                Share.of(self.plan, start, rank),
                batch_size,
                threads=self.threads,
                drop_last=drop_last,
                make=made if in_order else lambda block: finished(made(block)),
                finish=finished if in_order else None,
            )
        )

    def _agreement(self, start: Position) -> Callable[[], None] | None:
        """Raise if this worker begins another epoch, or at another position, than the first one.

        Workers that have torch.distributed look it up. Others have to wait for each other: return what does it.
        """
        rank, workers, own = world_rank(), self.ranks, in_words(start)
        if workers == 1 or rank is None:
            return None
        said = first_said(f"epoch/{self.name}/{self.cursor.num_begun}", f"rank {rank} for {own}", workers)
        if said is not None:
            first, words = said.split(" for ", 1)
            check_agreement({first: words, f"rank {rank}": own}, workers)
            return None

        def wait() -> None:
            from ray.train.collective import broadcast_from_rank_zero

            check_agreement({"rank 0": broadcast_from_rank_zero(own), f"rank {rank}": own}, workers)

        return wait


@dataclass(frozen=True)
class _Iterable:
    """Begins an epoch at each iteration."""

    begin: Callable[[], Iterator[Any]]

    def __iter__(self) -> Iterator[Any]:
        return self.begin()


def _check_buffer(rows: int | None) -> None:
    if rows is not None:
        raise OptionError(
            f"local_shuffle_buffer_size={rows}: the order is that of read_h5(..., shuffle=True), which costs no "
            f"buffer. {_INSTEAD}"
        )


def _in_format(batch: Batch, wanted: str) -> Any:
    if isinstance(batch, dict):
        if wanted == "numpy":
            return batch
        batch = BlockAccessor.batch_to_block(batch)
    return BlockAccessor.for_block(batch).to_batch_format(wanted)


def _cast_all(collate: Callable[[Any], Any], dtype: torch.dtype, batch: Batch) -> dict[str, Any]:
    import torch

    made = collate(batch)
    return {name: value.to(dtype) if isinstance(value, torch.Tensor) else value for name, value in made.items()}
