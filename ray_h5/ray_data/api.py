"""`read_h5` and `build_index`."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import ray.data

from ray_h5.hdf5.reading.arguments import as_names
from ray_h5.hdf5.reading.casting import Casting
from ray_h5.planning.files import FileOptions
from ray_h5.planning.index.row_index import RowIndex
from ray_h5.planning.paths import DEFAULT_EXTENSIONS, PathLike
from ray_h5.planning.rows.column_kinds import ColumnLike
from ray_h5.planning.rows.kinds import RowKind
from ray_h5.planning.rows.windows import Windows
from ray_h5.planning.tables.sidecar import Sidecar
from ray_h5.ray_data.arguments import ShuffleLike, as_flag, as_resources
from ray_h5.ray_data.datasource import H5Datasource
from ray_h5.ray_data.internals.executions import begin_with_limits
from ray_h5.ray_data.tasks import in_tasks
from ray_h5.storage.storages import with_cache

if TYPE_CHECKING:
    import numpy.typing as npt


def read_h5(
    paths: PathLike | Sequence[PathLike],
    *,
    columns: Sequence[ColumnLike] | None = None,
    group: str = "/",
    rows: RowKind | None = None,
    windows: Windows | None = None,
    sidecar: Sidecar | Sequence[Sidecar] | None = None,
    attrs: Sequence[str] | Mapping[str, str] = (),
    decode_cf: bool = False,
    axes: Literal["stored", "reversed"] = "stored",
    shuffle: ShuffleLike = None,
    dtypes: Mapping[str, npt.DTypeLike] | None = None,
    casting: Casting = "checked",
    include_paths: bool = False,
    include_row_ids: bool = False,
    include_row_keys: bool = False,
    name: str | None = None,
    index_dir: PathLike | None = None,
    block_rows: int | None = None,
    tail: Literal["keep", "drop", "pad"] = "keep",
    tail_rows: int | None = None,
    preserve_order: bool = True,
    allow_external: PathLike | Sequence[PathLike] = (),
    filesystem: object = None,
    storage_options: Mapping[str, object] | None = None,
    cache_dir: PathLike | None = None,
    cache_bytes: int | str | None = None,
    file_extensions: Sequence[str] | None = DEFAULT_EXTENSIONS,
    ignore_missing_paths: bool = False,
    concurrency: int | None = None,
    override_num_blocks: int | None = None,
    num_cpus: float | None = None,
    memory: float | None = None,
    ray_remote_args: dict[str, Any] | None = None,
) -> ray.data.Dataset:
    """Read HDF5 files as a `ray.data.Dataset`.

    Every HDF5 dataset below `group` whose first axis is the row axis is a column; row i of all columns of a file
    belongs together. Files are read in parallel tasks. Filters on scalar columns (``ds.filter(expr=...)``), column
    selections and limits are pushed into the reading: other rows and columns are never fetched.

    Parameters
    ----------
    paths : str, path-like, or a sequence of them
        Files, directories (with their subdirectories) and globs. The files are sorted naturally (``f2`` before
        ``f10``), without duplicates. ``local://`` before a path means that only this node has the file. Files in
        stores have URLs: ``s3://``, ``gs://``, ``az://`` and ``https://``.
    columns : sequence of str, csr or ragged, optional
        Names, such as ``"signal"`` or ``"obs/image"``, and columns that are made of several datasets: `ray_h5.csr`,
        `ray_h5.ragged`. By default all columns.
    group : str
        The HDF5 group that names are relative to.
    rows : Groups or Grid, optional
        What a row is: `ray_h5.Groups` for an HDF5 group a row, `ray_h5.Grid` for several leading axes. By default an
        index of the first axis.
    windows : Windows, optional
        A row is a step of an episode, with the values at some offsets from it; see `ray_h5.Windows`.
    sidecar : Sidecar, or sequence of them, optional
        Tables in CSV or Parquet beside the files, whose columns join the rows; see `ray_h5.Sidecar`.
    attrs : sequence of str, or mapping of str to str, optional
        Attributes of each file, or of `group` in it, that are columns: each holds one number or one text. A mapping
        gives them other names: ``{"rate": "fs"}``. Attributes of groups that are rows: ``Groups(..., attrs=...)``.
    decode_cf : bool
        Apply the attributes that netCDF files have by the CF conventions: ``_FillValue`` and ``missing_value`` become
        NaN, ``scale_factor`` and ``add_offset`` are applied, and times since a date become timestamps.
    axes : {"stored", "reversed"}
        ``"reversed"`` takes the last axis for the row axis, and reverses the others too, as MATLAB and loom mean them.
    shuffle : bool, str, Shuffle or FileShuffleConfig, optional
        How epochs are shuffled; each epoch has another order. True draws a seed: `Position.seed` holds it, and a run
        that resumes from the position takes it over. ``"rows"``, ``"chunks"`` and ``"files"`` choose the unit that is
        shuffled; `ray_h5.Shuffle` has all options.
    dtypes : mapping of str to dtype, optional
        Dtypes that columns are cast to while reading: ``{"image": "float16"}`` halves the bytes that travel. Files may
        differ in the dtypes of such columns. ``bytes`` for a column of strings delivers them undecoded.
    casting : {"checked", "unsafe"}
        Whether a value that its new dtype cannot hold is an error: 300 or NaN for int8, 1.5 for an integer. A float may
        be rounded to another float, but not to infinity. ``"unsafe"`` casts all values as numpy's ``astype`` does.
    include_paths : bool
        Add the column ``path``: the file of each row.
    include_row_ids : bool
        Add the column ``row_id``: int64, the place of the row among the rows of all files, in path order.
    include_row_keys : bool
        Add the column ``row_key``: uint64, a function of (seed, epoch, row id). Augmentation that draws from it is
        the same in any task. If a `Shuffle` may draw a row several times in an epoch, each time has another key.
    name : str, optional
        The name of the dataset for `set_epoch`. It belongs to the dataset that was read last with it.
    index_dir : path-like, optional
        A folder that stores the row index of the files for later runs.
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
    allow_external : path-like, or sequence of them
        Folders that external links, virtual datasets and external storage may lead into; of files in a store, URLs of
        the same store. Those that lead elsewhere are refused.
    filesystem : pyarrow or fsspec file system, optional
        A local file system, or a subtree of one that relative paths start from; or a remote one, which is slower
        than a URL: its calls run in threads, and the state of a file is asked for before and after each read.
    storage_options : mapping of str to object, optional
        How stores are reached, by the names that obstore has for them: ``region``, ``endpoint``, ``skip_signature``,
        ``access_key_id``, ``timeout`` ... Without credentials here, those of the environment of each node are used.
        ``allow_unversioned=True`` reads files for which a server gives no ETag.
    cache_dir : path-like, optional
        A folder on a disk of each node, where bytes of files in stores stay: a second epoch makes no requests for what
        is there. Processes and runs share it.
    cache_bytes : int or str, optional
        How much of that disk to take, such as ``"200GB"``.
    file_extensions : sequence of str, optional
        Extensions of the files to take from directories and globs; None takes all. By default ``h5``, ``hdf5`` and
        ``h5ad``, and all matches of a glob that has an extension of its own, such as ``*.nc``.
    ignore_missing_paths : bool
        Leave out paths that do not exist.
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
        columns=columns,
        group=group,
        rows=rows,
        windows=windows,
        sidecar=sidecar,
        attrs=attrs,
        decode_cf=decode_cf,
        axes=axes,
        shuffle=shuffle,
        tail=tail,
        tail_rows=tail_rows,
        dtypes=dtypes,
        casting=casting,
        include_paths=include_paths,
        include_row_ids=include_row_ids,
        include_row_keys=include_row_keys,
        name=name,
        index_dir=index_dir,
        block_rows=block_rows,
        num_blocks=override_num_blocks,
        allow_external=allow_external,
        threads=max(1, int(resources["num_cpus"] or 1)),
        filesystem=filesystem,
        storage_options=with_cache(storage_options, cache_dir, cache_bytes),
        file_extensions=file_extensions,
        ignore_missing_paths=ignore_missing_paths,
    )
    if memory is None:
        resources["memory"] = datasource.remote_task_bytes
    ds = _dataset(datasource, **resources)
    # The dataset has its own copy of the context; the user's context stays as it is.
    ds.context.execution_options.preserve_order |= in_order
    begin_with_limits(ds)
    return ds


def build_index(
    paths: PathLike | Sequence[PathLike],
    *,
    columns: Sequence[ColumnLike] | None = None,
    group: str = "/",
    rows: RowKind | None = None,
    windows: Windows | None = None,
    sidecar: Sidecar | Sequence[Sidecar] | None = None,
    attrs: Sequence[str] | Mapping[str, str] = (),
    decode_cf: bool = False,
    axes: Literal["stored", "reversed"] = "stored",
    dtypes: Mapping[str, npt.DTypeLike] | None = None,
    casting: Casting = "checked",
    predicate_columns: Sequence[str] = (),
    index_dir: PathLike | None = None,
    allow_external: PathLike | Sequence[PathLike] = (),
    filesystem: object = None,
    storage_options: Mapping[str, object] | None = None,
    file_extensions: Sequence[str] | None = DEFAULT_EXTENSIONS,
    ignore_missing_paths: bool = False,
) -> RowIndex:
    """Collect ahead the facts that planning needs about files: row counts, schema, small columns.

    They stay in the memory of this process and, with `index_dir`, on disk: `read_h5` then does not open files again
    that have not changed. Ray tasks collect them.

    Parameters
    ----------
    paths, columns, group, rows, windows, sidecar, attrs, decode_cf, axes, dtypes, casting, allow_external, filesystem,
    storage_options, file_extensions, ignore_missing_paths
        As for `read_h5`.
    predicate_columns : sequence of str
        Scalar columns that predicates will name; their values are read too.
    index_dir : path-like, optional
        The folder to store the row index in.

    Returns
    -------
    RowIndex
        The row index, with `num_rows`, `columns` and `files`.

    Raises
    ------
    RayH5Error
        As for `read_h5`.
    """
    files = FileOptions.of(
        paths,
        group=group,
        rows=rows,
        windows=windows,
        sidecar=sidecar,
        attrs=attrs,
        decode_cf=decode_cf,
        axes=axes,
        dtypes=dtypes,
        casting=casting,
        allow_external=allow_external,
        index_dir=index_dir,
        filesystem=filesystem,
        storage_options=storage_options,
        file_extensions=file_extensions,
        ignore_missing_paths=ignore_missing_paths,
        columns=columns,
    )
    index = files.index(columns, in_tasks)
    index.look_up(as_names(predicate_columns, "predicate_columns"))
    return index


def _dataset(datasource: H5Datasource, **resources: Any) -> ray.data.Dataset:
    with warnings.catch_warnings():
        # Some options of tasks have no parameter except ray_remote_args.
        warnings.filterwarnings("ignore", message="`ray_remote_args` is deprecated")
        # The datasource chooses blocks by their bytes. Ray chooses 200 blocks or more by default, and cuts what the
        # tasks return to get that number; it never needs to cut for 1.
        return ray.data.read_datasource(datasource, override_num_blocks=1, **resources)
