"""What a user calls."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import ray.data

from ray_h5.errors import OptionError
from ray_h5.planning.paths import DEFAULT_EXTENSIONS, PathLike, expand_paths, is_local_only
from ray_h5.ray_data.datasource import H5Datasource

if TYPE_CHECKING:
    import numpy.typing as npt


def read_h5(
    paths: PathLike | Sequence[PathLike],
    *,
    columns: Sequence[str] | None = None,
    group: str = "/",
    dtypes: Mapping[str, npt.DTypeLike] | None = None,
    include_paths: bool = False,
    include_row_ids: bool = False,
    block_rows: int | None = None,
    allow_external: Sequence[PathLike] = (),
    filesystem: object = None,
    file_extensions: Sequence[str] | None = DEFAULT_EXTENSIONS,
    ignore_missing_paths: bool = False,
    concurrency: int | None = None,
    override_num_blocks: int | None = None,
    num_cpus: float | None = None,
    memory: float | None = None,
    ray_remote_args: dict[str, Any] | None = None,
) -> ray.data.Dataset:
    """Read HDF5 files as a `ray.data.Dataset`.

    Every HDF5 dataset below `group` whose first axis is the row axis is a column; row i of all
    columns of a file belongs together. Files are read in parallel tasks. Filters on scalar
    columns (``ds.filter(expr=...)``), column selections and limits are pushed into the reading:
    rows and columns that are not wanted are never fetched.

    Parameters
    ----------
    paths : str, path-like, or a sequence of them
        Files, directories (searched to the bottom) and globs. The files are sorted naturally
        (``f2`` before ``f10``), without duplicates. ``local://`` before a path says that only this
        node has the file.
    columns : sequence of str, optional
        Names, such as ``"signal"`` or ``"obs/image"``. By default all columns.
    group : str
        The group that names are relative to.
    dtypes : mapping of str to dtype, optional
        Columns to cast while reading: ``{"image": "float16"}`` halves what travels. ``bytes`` for
        a column of strings delivers them undecoded.
    include_paths : bool
        Add the column ``path``: the file of each row.
    include_row_ids : bool
        Add the column ``row_id``: int64 position of the row in all files, in path order.
    block_rows : int, optional
        Rows of a block. By default a power of two that makes blocks of up to 32 MiB.
    allow_external : sequence of path-like
        Folders that external links, virtual datasets and external storage may lead into; they are
        refused elsewhere.
    filesystem : pyarrow or fsspec file system, optional
        A local one, or a subtree of a local one that relative paths start from.
    file_extensions : sequence of str, optional
        Endings of the files to take from directories and globs; None takes all.
    ignore_missing_paths : bool
        Leave out paths that do not exist.
    concurrency : int, optional
        Most read tasks at a time.
    override_num_blocks : int, optional
        The number of blocks, in place of `block_rows`.
    num_cpus, memory : float, optional
        What a read task reserves: CPUs, and heap memory in bytes. A task decodes in as many
        threads as it has CPUs.
    ray_remote_args : dict, optional
        Further arguments of ``ray.remote`` for the read tasks.

    Returns
    -------
    ray.data.Dataset
        One Arrow column a column; rows that are arrays become tensors of the same shape and
        dtype. Complex numbers get a last axis of (real, imaginary).

    Raises
    ------
    NotFoundError, NotHDF5Error, TruncatedFileError, CorruptFileError, WriterActiveError
        If a file cannot be opened.
    SchemaMismatchError, UnknownColumnError, UnsupportedColumnError
        If the files do not have the columns, or not with one type, row shape and first axis.
    ExternalDataError, MissingSourceError, CodecUnavailableError
        If a column cannot be read.

    Examples
    --------
    >>> import ray_h5
    >>> from ray.data.expressions import col
    >>> ds = ray_h5.read_h5("data/*.h5", columns=["signal", "label"])  # doctest: +SKIP
    >>> ds = ds.filter(expr=col("label") == 1)  # doctest: +SKIP
    """
    source = H5Datasource(
        expand_paths(paths, file_extensions, ignore_missing_paths, filesystem),
        columns=_names(columns),
        group=group,
        dtypes=_known(dtypes or {}),
        include_paths=include_paths,
        include_row_ids=include_row_ids,
        block_rows=block_rows,
        num_blocks=override_num_blocks,
        allow_external=[os.fspath(root) for root in allow_external],
        threads=max(1, int(num_cpus or 1)),
        local_only=is_local_only(paths),
    )
    return ray.data.read_datasource(
        source,
        # The source sizes its blocks by their bytes. Ray's own choice is 200 blocks or more,
        # and what it asks for it makes by cutting up what the tasks return.
        override_num_blocks=1,
        concurrency=concurrency,
        num_cpus=num_cpus,
        memory=memory,
        **(ray_remote_args or {}),
    )


def _names(columns: Sequence[str] | None) -> list[str] | None:
    if isinstance(columns, str):
        raise OptionError(f"columns={columns!r}: expected a list of names, found one; write columns=[{columns!r}]")
    return None if columns is None else list(columns)


def _known(dtypes: Mapping[str, npt.DTypeLike]) -> Mapping[str, npt.DTypeLike]:
    if not isinstance(dtypes, Mapping):
        raise OptionError(f"dtypes={dtypes!r}: expected {{column: dtype}}, such as {{'image': 'float16'}}")
    return dtypes
