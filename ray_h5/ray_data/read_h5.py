"""`read_h5` and `build_index`."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

import ray.data

from ray_h5.index.file_options import FileOptions
from ray_h5.index.row_index import RowIndex
from ray_h5.loading.loader_registry import loader_of
from ray_h5.options import as_names, takes_options_of
from ray_h5.ray_data.arguments import ShuffleLike, as_flag, as_resources, remote_options
from ray_h5.ray_data.datasource import H5Datasource
from ray_h5.ray_data.epochs import Executions
from ray_h5.ray_data.ray_internals import begin_each_time
from ray_h5.ray_data.tasks import in_tasks
from ray_h5.source import Source, SourceOptions
from ray_h5.storage.find_files import PathLike

if TYPE_CHECKING:
    from typing_extensions import Unpack


_INSTEAD = {
    "name": "Datasets have no names: set_epoch(ds, 3) takes the dataset, and train_batches('train', 3, ...) the key of "
    "TorchTrainer(datasets={'train': ds}).",
    "batch_size": "Pass it to iter_torch_batches(batch_size=...), train_batches or map_batches.",
    "predicate": "Write read_h5(...).filter(expr=where(...)).",
    "transform": "Write read_h5(...).map_batches(function).",
}


@takes_options_of(Source, instead=_INSTEAD)
def read_h5(
    paths: PathLike | Sequence[PathLike],
    *,
    shuffle: ShuffleLike = None,
    include_paths: bool = False,
    include_row_ids: bool = False,
    include_row_keys: bool = False,
    include_steps: bool = False,
    include_padding: bool = False,
    block_rows: int | None = None,
    tail: Literal["keep", "drop", "pad"] = "keep",
    tail_rows: int | None = None,
    preserve_order: bool = True,
    concurrency: int | None = None,
    override_num_blocks: int | None = None,
    num_cpus: float | None = None,
    memory: float | None = None,
    ray_remote_args: dict[str, Any] | None = None,
    **options: Unpack[SourceOptions],
) -> ray.data.Dataset:
    """Read HDF5 files as a `ray.data.Dataset`.

    Every HDF5 dataset below `group` whose first axis is the row axis is a column; row i of all columns of a file
    belongs together. Files are read in parallel tasks. Filters on scalar columns (``ds.filter(expr=...)``), column
    selections and limits are pushed into the reading: other rows and columns are never fetched.

    Parameters
    ----------
    **options
        The options of `ray_h5.source.Source`.
    shuffle : bool, str, Shuffle or FileShuffleConfig, optional
        How epochs are shuffled; each epoch has another order. True draws a seed: `Position.seed` holds it, and a run
        that resumes from the position takes it over. ``"rows"``, ``"chunks"`` and ``"files"`` choose the unit that is
        shuffled; `ray_h5.Shuffle` has all options.
    include_paths : bool
        Add the column ``path``: the file of each row.
    include_row_ids : bool
        Add the column ``row_id``: int64, the place of the row among the rows of all files, in path order.
    include_row_keys : bool
        Add the column ``row_key``: uint64, a function of (seed, epoch, row id). Augmentation that draws from it is
        the same in any task. If a `Shuffle` may draw a row several times in an epoch, each time has another key.
    include_steps : bool
        With `windows`, add the column ``step``: the number, in its file, of the step that a window is of.
    include_padding : bool
        Add the column ``is_padding``: whether a row comes again only to fill up an epoch, by `tail` or among the ranks
        of a `loader`. ``tail="pad"`` adds it, too.
    block_rows : int, optional
        Rows of a block. By default a power of two that makes blocks of about 64 MiB.
    tail : {"keep", "drop", "pad"}
        The last rows of an epoch, if the number of rows is not a multiple of `tail_rows`: keep them, leave them out
        (others in each shuffled epoch), or fill up with rows from the beginning of the order, marked in the column
        ``is_padding``.
    tail_rows : int, optional
        Usually workers * batch size: each worker then has the same number of full batches.
    preserve_order : bool
        Deliver blocks in the order of the epoch. With False faster tasks overtake, and the order differs each time.
        A trainer has its own options: see `ray_h5.data_config`.
    concurrency : int, optional
        The most read tasks at a time.
    override_num_blocks : int, optional
        The number of blocks, instead of `block_rows`.
    num_cpus, memory : float, optional
        The CPUs, and heap memory in bytes, that a read task reserves. A task decodes in one thread for each CPU. Unless
        `memory` is given, a task that reads from a store reserves what it takes: a worker, its block, and up to 256 MiB
        of requests. With 0 it reserves none.
    ray_remote_args : dict, optional
        Further arguments of ``ray.remote`` for the read tasks. Where they differ from those of ``map_batches``, Ray
        runs the two in separate tasks.

    Returns
    -------
    ray.data.Dataset
        One Arrow column for each column. Rows that are arrays become tensors of the same shape and dtype. Complex
        numbers get a last axis of (real, imaginary), also in arrays of varying length.

    Raises
    ------
    NotFoundError, NotHDF5Error, TruncatedFileError, CorruptFileError, WriterActiveError
        If a file cannot be opened.
    SchemaMismatchError, UnknownColumnError, UnsupportedColumnError
        If files do not have the columns, or differ in their types, row shapes or first axis.
    ExternalDataError, MissingSourceError, CodecUnavailableError
        If a column cannot be read.
    CastError
        When rows are read: if one of `dtypes` cannot hold a value.

    Examples
    --------
    >>> import ray_h5
    >>> from ray.data.expressions import col
    >>> ds = ray_h5.read_h5("data/*.h5", columns=["signal", "label"])  # doctest: +SKIP
    >>> ds = ds.filter(expr=col("label") == 1)  # doctest: +SKIP
    """
    resources = as_resources(concurrency, num_cpus, memory, ray_remote_args)
    in_order = as_flag("preserve_order", preserve_order)
    datasource = H5Datasource(
        paths,
        shuffle=shuffle,
        tail=tail,
        tail_rows=tail_rows,
        include_paths=include_paths,
        include_row_ids=include_row_ids,
        include_row_keys=include_row_keys,
        include_steps=include_steps,
        include_padding=include_padding,
        block_rows=block_rows,
        num_blocks=override_num_blocks,
        threads=max(1, int(resources.get("num_cpus", 1))),
        **options,
    )
    if memory is None and "memory" not in resources and (nbytes := datasource.remote_task_bytes) is not None:
        resources["memory"] = nbytes
    with warnings.catch_warnings():
        # Some options of tasks have no parameter except ray_remote_args.
        warnings.filterwarnings("ignore", message="`ray_remote_args` is deprecated")
        # The datasource chooses blocks by their bytes. Ray chooses 200 blocks or more by default, and cuts what the
        # tasks return to get that number; it never needs to cut for 1.
        of_tasks = remote_options(ray.data.read_datasource, resources)
        ds = ray.data.read_datasource(datasource, override_num_blocks=1, **of_tasks)
    # The dataset has its own copy of the context; the user's context stays as it is.
    ds.context.execution_options.preserve_order |= in_order
    # The error of a function is raised as what it is, and not as an error of Ray around it.
    ds.context.raise_original_map_exception = True
    # Executions of the dataset, and of those derived from it, are counted once it is known what they do.
    ds.context.custom_execution_callback_classes = [*ds.context.custom_execution_callback_classes, Executions]
    begin_each_time(ds)
    return ds


@takes_options_of(Source)
def build_index(
    paths: PathLike | Sequence[PathLike],
    *,
    predicate_columns: Sequence[str] = (),
    **options: Unpack[SourceOptions],
) -> RowIndex:
    """Collect ahead the facts that planning needs about files: row counts, schema, small columns.

    They stay in the memory of this process and, with `index_dir`, on disk: `read_h5` then does not open files again
    that have not changed. Ray tasks collect them.

    Parameters
    ----------
    **options
        The options of `ray_h5.source.Source`.
    predicate_columns : sequence of str
        Scalar columns that predicates will name; their values are read too.

    Returns
    -------
    RowIndex
        The row index, with `num_rows`, `columns` and `files`.

    Raises
    ------
    RayH5Error
        As for `read_h5`.
    """
    index = FileOptions.of(paths, **options).index(spread=in_tasks)
    index.values(as_names(predicate_columns, "predicate_columns"))
    return index


@loader_of.register
def _loader_of(source: ray.data.Dataset, batch_size: int, ranks: Any, **options: Any) -> Any:
    from ray_h5.ray_data.dataset_loader import loader_of_dataset  # torch, which reading by tasks does not need

    return loader_of_dataset(source, batch_size, ranks, **options)
