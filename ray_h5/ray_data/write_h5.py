"""`write_h5` and `H5Datasink`: a Ray Dataset -> HDF5 files."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from ray.data import DataContext, Dataset, Datasink
from ray.data.block import Block, BlockAccessor
from ray.data.datasource.datasink import WriteResult

from ray_h5.codecs.encode import as_codec
from ray_h5.errors import OptionError
from ray_h5.options import as_integer, as_names, names_options, takes_options_of
from ray_h5.ray_data.arguments import as_resources, remote_options
from ray_h5.ray_data.arrow.columns_of_blocks import columns_of
from ray_h5.ray_data.datasource import H5Datasource
from ray_h5.ray_data.ray_internals import own_error
from ray_h5.storage.storage_of_path import whole_path
from ray_h5.writing.layouts import Layout
from ray_h5.writing.output_places import folder_of
from ray_h5.writing.task_files import Part, PartWriter, check_mode, publish

if TYPE_CHECKING:
    import pyarrow as pa
    from ray.data._internal.execution.interfaces import TaskContext

logger = logging.getLogger(__name__)

Mode = Literal["error", "append", "overwrite", "ignore"]


@names_options
class H5Datasink(Datasink[list[Part]]):
    """A folder of HDF5 files as a datasink of Ray Data: ``ds.write_datasink(H5Datasink("out"))``.

    Each write task makes a file, or several, under a temporary name in a hidden folder of the target. The files get
    their names when all tasks have succeeded: what a failed or retried task wrote is removed.

    Parameters
    ----------
    path : str or path-like
        The folder, which all nodes see, or its URL in a store: ``s3://``, ``gs://``, ``az://``.
    columns : sequence of str, optional
        The columns to write; by default all.
    mode : {"error", "append", "overwrite", "ignore"}
        What to do if the folder is not empty: raise, add files, replace its HDF5 files, or write nothing. The files
        that are replaced go when the new ones are there. A dataset without rows replaces none: it is an error.
    rows_per_file : int, optional
        The most rows of a file. By default a write task makes one file.
    chunk_rows : int, optional
        Rows of a chunk.
    chunk_bytes : int or str, optional
        Bytes of a chunk before it is encoded; by default 64 KiB. A row is never divided.
    codec : {"zstd", "lz4", "gzip", "blosc", "none"}
        How chunks are encoded, after a byte shuffle. Programs without HDF5 plugins read ``"gzip"`` and ``"none"``.
    page : int or str, optional
        Bytes of a page of paged file space, such as ``"4MiB"``: metadata lie together, for files in a store.
    varying : sequence of str
        Columns of tensors or lists whose rows differ in length. Name those that a function of `map_batches` makes:
        where all rows of a block agree, Ray stacks them, and blocks then differ.
    null_value : object, or mapping of str to object, optional
        What is written for numbers and texts that are missing, or that by column. By default they are an error.
    storage_options : mapping of str to object, optional
        How a store is reached, as for `read_h5`.
    threads : int
        Threads that encode in a task.

    Raises
    ------
    OutputExistsError
        If the folder is not empty, and `mode` is ``"error"``.
    OptionError
        If an argument has a value that cannot be used.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        columns: Sequence[str] | None = None,
        mode: Mode = "error",
        rows_per_file: int | None = None,
        chunk_rows: int | None = None,
        chunk_bytes: int | str | None = None,
        codec: str = "zstd",
        page: int | str | None = None,
        varying: Sequence[str] = (),
        null_value: Any = None,
        storage_options: Mapping[str, object] | None = None,
        threads: int = 1,
    ) -> None:
        self._columns = None if columns is None else as_names(columns)
        self._varying = as_names(varying, "varying")
        self._layout = Layout(chunk_rows, chunk_bytes, as_codec(codec), page)
        self._rows_per_file = None if rows_per_file is None else as_integer("rows_per_file", rows_per_file, 1)
        self._null_value, self._threads = null_value, as_integer("threads", threads, 1)
        self._mode = mode
        self._folder = folder_of(path, storage_options)
        self.skips = not check_mode(self._folder, mode)
        """Whether nothing is written: ``mode="ignore"``, and the folder is not empty."""
        if DataContext.get_current().checkpoint_config is not None:
            raise OptionError(
                "DataContext.checkpoint_config is set: Ray would note rows as written when their task ends, and these "
                "files appear when all tasks have ended; rows of a job that dies would be lost. Set it to None. Or "
                "write to Parquet with it, and then to HDF5."
            )

    @property
    def min_rows_per_write(self) -> int | None:
        return self._rows_per_file

    def check_inputs(self, sources: Sequence[H5Datasource]) -> None:
        """Raise if one of them reads a file of the folder, by whatever path: it would be removed, or be there twice.

        The callback of executions calls it before one starts: `write_datasink` does not tell a sink its dataset.
        """
        present = [] if self._mode not in {"append", "overwrite"} else self._folder.names()
        for source in sources if present else ():
            if shared := self._folder.input_among(present, *source.inputs()):
                does = "remove it" if self._mode == "overwrite" else "add copies of its rows to it"
                raise OptionError(
                    f"path: {whole_path(shared)} is read by the dataset that is written, and mode={self._mode!r} would "
                    f"{does}. Write to another folder, and rename it when you are content."
                )

    def on_write_start(self, schema: pa.Schema | None = None) -> None:  # noqa: ARG002  Ray's name
        if not self.skips:
            self._folder.begin()

    def write(self, blocks: Iterable[Block], ctx: TaskContext) -> list[Part]:
        """Write the blocks of one task; return its files, which are not in place yet."""
        if self.skips:
            return []
        with PartWriter(self._folder, ctx.task_idx, self._layout, self._rows_per_file, self._threads) as writer:
            for block in blocks:
                if rows := BlockAccessor.for_block(block).num_rows():
                    writer.append(*columns_of(block, self._columns, self._null_value, self._varying), rows)
        return writer.parts

    def on_write_complete(self, write_result: WriteResult[list[Part]]) -> None:
        if self.skips:
            return
        self.on_write_start()  # Ray does not call it for a dataset without blocks
        parts = [part for parts in write_result.write_returns for part in parts or ()]
        publish(self._folder, parts, self._mode)
        if not parts:
            logger.warning("the dataset has no rows: no file was written to %s", self._folder.path)

    def on_write_failed(self, error: Exception) -> None:  # noqa: ARG002  Ray's name
        if not self.skips:
            self._folder.abandon()


@takes_options_of(H5Datasink, instead={"threads": "A task encodes in one thread for each CPU: num_cpus=2."})
def write_h5(
    ds: Dataset,
    path: str | os.PathLike[str],
    *,
    concurrency: int | None = None,
    num_cpus: float | None = None,
    memory: float | None = None,
    ray_remote_args: dict[str, Any] | None = None,
    **options: Any,
) -> None:
    """Write a Ray Dataset to a folder of HDF5 files, from which `read_h5` gives the same rows.

    Rows are written exactly once, whatever dies: files appear under their names, ``part-{task}-{n}.h5``, when all
    tasks have succeeded. If the dataset preserves its order, as that of `read_h5` does, so do the files.

    Tensors and numbers become arrays, texts strings of variable length, lists and tensors of varying length a group of
    offsets and values, sparse rows a CSR matrix as AnnData has it, and structs groups.

    Parameters
    ----------
    ds : ray.data.Dataset
        The dataset.
    **options
        The options of `H5Datasink`.
    concurrency : int, optional
        The most write tasks at a time.
    num_cpus, memory : float, optional
        What a write task reserves. A task encodes in one thread for each CPU.
    ray_remote_args : dict, optional
        Further arguments of ``ray.remote`` for the write tasks.

    Raises
    ------
    OutputExistsError
        If the folder is not empty, and `mode` is ``"error"``.
    OptionError
        If the dataset reads a file of the folder, and `mode` is ``"append"`` or ``"overwrite"``.
    SchemaMismatchError
        If blocks differ in their columns, dtypes or shapes.
    NullValueError
        If a value is missing, and there is no `null_value`.
    UnsupportedColumnError
        If a column holds what HDF5 has no type for.
    WriteFailedError
        If the disk is full, or cannot be written to.

    Examples
    --------
    >>> import ray_h5
    >>> ds = ray_h5.read_h5("raw/*.h5").map_batches(preprocess)  # doctest: +SKIP
    >>> ray_h5.write_h5(ds, "prepared")  # doctest: +SKIP
    """
    if not isinstance(ds, Dataset):
        raise OptionError(f"ds={type(ds).__name__}: expected a ray.data.Dataset")
    resources = as_resources(concurrency, num_cpus, memory, ray_remote_args)
    sink = H5Datasink(path, threads=max(1, int(resources.get("num_cpus", 1))), **options)
    if sink.skips:
        return
    try:
        ds.write_datasink(sink, **remote_options(ds.write_datasink, resources))
    except Exception as exc:
        error = own_error(exc)
        if error is None or error is exc:
            raise
        raise error from None
