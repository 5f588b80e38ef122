"""Rows of many files as a map-style Dataset."""

from __future__ import annotations

import copy
import inspect
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Literal, SupportsIndex

import numpy as np
import pyarrow.compute as pc
import torch

from ray_h5.errors import ImageError, OptionError, PredicateError, UnknownOptionError
from ray_h5.hdf5.reading.casting import Casting
from ray_h5.messages import few, near_names
from ray_h5.options import as_bytes
from ray_h5.planning.epoch.coming import ComingRows
from ray_h5.planning.epoch.order import Order, make_order
from ray_h5.planning.epoch.plan import make_plan
from ray_h5.planning.epoch.shuffle import Shuffle
from ray_h5.planning.files import FileOptions
from ray_h5.planning.index.row_index import RowIndex
from ray_h5.planning.index.select import select
from ray_h5.planning.notices import warn_of_surprises
from ray_h5.planning.padding import LENGTH, Padding, PadLike, cast_rows, pad_rows
from ray_h5.planning.paths import DEFAULT_EXTENSIONS, PathLike
from ray_h5.planning.predicates.evaluate import as_expression
from ray_h5.planning.predicates.words import in_words
from ray_h5.planning.rows.column_kinds import ColumnLike, split_columns
from ray_h5.planning.rows.kinds import RowKind
from ray_h5.planning.rows.windows import Windows
from ray_h5.planning.schema import TENSOR_KINDS, Cast, ColumnSpec
from ray_h5.planning.sparse import SparseBatch, cast_sparse
from ray_h5.planning.tables.sidecar import Sidecar
from ray_h5.storage.storages import with_cache
from ray_h5.torch_data.batched import BatchedDataset, Many, check_index, check_indices, is_changed
from ray_h5.torch_data.reading.decoding import check_transform, decoded, parts_of
from ray_h5.torch_data.reading.row_source import RowSource
from ray_h5.torch_data.reading.sample_cache import SampleCache
from ray_h5.torch_data.reading.samples import Sample, batch_of, sample_of, transformed, unpadded_sample_of
from ray_h5.torch_data.reading.tensors import ragged_to_torch, to_torch
from ray_h5.transforms.sparse_tensors import csr_tensor

Transform = Callable[[Any], Any] | Sequence[Callable[[Any], Any]]


def check_options(
    called: str, options: Iterable[str], *takers: Callable[..., Any], instead: Mapping[str, str] | None = None
) -> None:
    """Raise unless one of `takers` has a parameter for each option; the error names `called`, not an inner function.

    `instead` has advice for names that people know from elsewhere.
    """
    instead = instead or {}
    known = {name for taker in takers for name in inspect.signature(taker).parameters} - {"options", *instead}
    for name in options:
        if name not in known:
            advice = f" {instead[name]}" if name in instead else near_names(name, known)
            raise UnknownOptionError(f"{called}: there is no option {name!r}.{advice}")


class H5Dataset(BatchedDataset):
    """Samples of HDF5 files: sample i is the i-th row, in path order, that passes the predicate.

    A sample is a dict of tensors, and of str for text; its entries are attributes too. A `DataLoader`
    reads each batch by one call for each file, without stacking. With an `OrderSampler` or an
    `OrderBatchSampler`, the order of an epoch is the same as in Ray.

    The dataset can be pickled, and used with the start methods fork, forkserver and spawn.

    Parameters
    ----------
    paths : str, path-like, or a sequence of them
        Files, directories and globs; see `read_h5`.
    columns : sequence of str, csr or ragged, optional
        Columns of a sample; None takes all. Some are made of several datasets: `ray_h5.csr`, `ray_h5.ragged`.
    predicate : expression of pyarrow or Ray, optional
        Which rows are samples; see `where`.
    transform : callable, or sequence of them, optional
        Applied to each sample, one after the other. A `DecodeImage` that comes first decodes whole batches.
    group : str
        The group that column names are relative to.
    rows : Groups or Grid, optional
        What a row is: an HDF5 group, or an index of several leading axes. By default an index of the first axis.
    windows : Windows, optional
        A sample is a step of an episode, with the values at some offsets from it.
    sidecar : Sidecar, or sequence of them, optional
        Tables beside the files, whose columns join the samples; see `ray_h5.Sidecar`.
    attrs : sequence of str, or mapping of str to str, optional
        Attributes of each file, or of its group, that are columns.
    decode_cf : bool
        Apply the attributes that netCDF files have by the CF conventions: ``_FillValue`` and ``missing_value`` become
        NaN, ``scale_factor`` and ``add_offset`` are applied, and times since a date become timestamps.
    axes : {"stored", "reversed"}
        ``"reversed"`` takes the last axis for the row axis, and reverses the others too, as MATLAB and loom mean them.
    dtypes : mapping of str to dtype, optional
        numpy dtypes to cast columns to while reading; files may store these columns with different dtypes.
    casting : {"checked", "unsafe"}
        Whether a value that its new dtype cannot hold is an error: 300 or NaN for int8, 1.5 for an integer. A float may
        be rounded to another float, but not to infinity. ``"unsafe"`` casts all values as numpy's ``astype`` does.
    allow_external : path-like, or sequence of them
        Folders that links, virtual datasets and external storage may lead into; of files in a store, URLs of the same
        store.
    index_dir : path-like, optional
        A folder for the index of the files: a later dataset of the same files is made faster.
    filesystem : pyarrow or fsspec file system, optional
        A local one, or a subtree of a local one that relative paths start from; or a remote one, as for `read_h5`.
    storage_options : mapping of str to object, optional
        How the stores of files with URLs (``s3://bucket/run_*.h5``) are reached, as for `read_h5`.
    cache_dir : path-like, optional
        A folder on a local disk where bytes of files in stores stay, as for `read_h5`. `cache_bytes` is then how much
        of the disk to take, such as ``"200GB"``.
    file_extensions : sequence of str, optional
        Endings of the files to take from folders and globs; None takes all. By default ``h5``, ``hdf5`` and
        ``h5ad``, and what a glob matches that names an ending itself, such as ``*.nc``.
    ignore_missing_paths : bool
        Leave out paths that do not exist. If none exists, it is an error.
    cache_size : int
        Samples that stay in memory after they were read, in each process: the least recently used one is
        dropped for a new one. It has no effect if all rows stay in memory by `kept_bytes`.
    cache_bytes : int, optional
        Bound of the bytes of these samples.
    kept_bytes : int, optional
        Bound of the rows that stay in memory after they were read, for all workers of a loader
        together; 0 keeps none. The columns with the smallest rows stay, all that fit with all their
        rows. By default 128 MiB a file, the size that people give libhdf5's chunk cache, and at most
        512 MiB.
    pad : bool, float or mapping of str to float, optional
        Pad rows of varying shape to the longest of a batch, with zeros (True) or this value, and add their lengths as
        ``<column>_length``. Without it a batch holds a list of tensors for such a column.

    Raises
    ------
    NotFoundError
        If a path does not exist.
    PredicateError
        If no row passes, or the predicate cannot be evaluated.
    RayH5Error
        The leaf that says what is wrong with a file.

    Examples
    --------
    >>> dataset = H5Dataset("data/*.h5", ["signal", "label"], where(label=[1, 2]))  # doctest: +SKIP
    >>> dataset[0].signal.shape  # doctest: +SKIP
    torch.Size([43, 300])
    """

    def __init__(
        self,
        paths: PathLike | Sequence[PathLike],
        columns: Sequence[ColumnLike] | None = None,
        predicate: pc.Expression | None = None,
        transform: Transform | None = None,
        *,
        group: str = "/",
        rows: RowKind | None = None,
        windows: Windows | None = None,
        sidecar: Sidecar | Sequence[Sidecar] | None = None,
        attrs: Sequence[str] | Mapping[str, str] = (),
        decode_cf: bool = False,
        axes: Literal["stored", "reversed"] = "stored",
        dtypes: Mapping[str, object] | None = None,
        casting: Casting = "checked",
        allow_external: PathLike | Sequence[PathLike] = (),
        index_dir: PathLike | None = None,
        filesystem: object = None,
        storage_options: Mapping[str, object] | None = None,
        cache_dir: PathLike | None = None,
        file_extensions: Sequence[str] | None = DEFAULT_EXTENSIONS,
        ignore_missing_paths: bool = False,
        cache_size: int = 0,
        cache_bytes: int | str | None = None,
        kept_bytes: int | None = None,
        pad: PadLike = None,
    ) -> None:
        if cache_dir is not None:
            storage_options, cache_bytes = with_cache(storage_options, cache_dir, cache_bytes), None
        if isinstance(cache_bytes, str):
            cache_bytes = as_bytes("cache_bytes", cache_bytes)
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
        self.transform = transform
        self._padding = Padding.of(pad)
        self._files = replace(files, cast=self._cast(files.cast))
        names = split_columns(columns)[0]
        self._choice = names, None if predicate is None else as_expression(predicate)
        self._bounds = cache_size, cache_bytes, kept_bytes
        self._build_index()
        self._closed = False

    def _build_index(self) -> None:
        """Plan the reading: when the dataset is made, or again if the files changed."""
        if hasattr(self, "_index"):
            self._files = self._files.now()
        columns, predicate = self._choice
        cache_size, cache_bytes, kept_bytes = self._bounds
        self._index = self._files.index(columns)
        warn_of_surprises(self._index, columns)
        delivered = self._index.delivered
        self._specs = [delivered[name] for name in self._index.names]
        check_transform(self.transform, self.columns)
        self._as_bytes = frozenset(spec.name for spec in self._specs if spec.as_bytes)
        self._ragged = {spec.name: spec for spec in self._specs if spec.kind == "ragged"}
        self._sparse = {spec.name: spec for spec in self._specs if spec.kind == "sparse"}
        self._fills = self._fills_of(self._padding)
        selection = self._select(predicate)
        selected_by = [*self._index.looked_up, *self._selecting_columns()]
        plan = make_plan(self._index, self._specs, selection, selected_by=selected_by)
        joined = plan.joined
        if joined is not None and (error := joined.without_value(plan.files, plan.selection)) is not None:
            raise error
        self._source = RowSource(plan, kept_bytes)
        self._cache = SampleCache.bounded(self._source, cache_size, cache_bytes, self.row_bytes)

    def _fills_of(self, padding: Padding | None) -> dict[str, float]:
        self._padded_shapes = {name: spec.ragged_shape for name, spec in self._ragged.items()}
        return {} if padding is None else padding.fills({spec.name: spec for spec in self._specs})

    @property
    def columns(self) -> list[str]:
        """Columns of a sample."""
        return [spec.name for spec in self._specs]

    @property
    def row_bytes(self) -> int:
        """Bytes of a sample, as it is read."""
        return self._source.plan.row_bytes

    @property
    def is_remote(self) -> bool:
        """Whether files are in a store."""
        return self._source.is_remote

    @property
    def index(self) -> RowIndex:
        """Facts about the files."""
        return self._index

    @property
    def selection(self) -> np.ndarray | None:
        """int64: the row ids of the samples; None if there is a sample for each row."""
        return self._source.plan.selection

    @property
    def is_transformed(self) -> bool:
        """Whether samples are what a transform makes of them."""
        return parts_of(self.transform)[1] is not None

    @property
    def has_own_samples(self) -> bool:
        """Whether a subclass makes samples or batches itself."""
        return is_changed(self)

    @property
    def has_ranges(self) -> bool:
        """Whether rows are ranges of longer arrays that are stored in chunks, such as those of a sparse matrix."""
        kinds = {"sparse", "ragged"}
        return any(spec.kind in kinds and self._index.chunk_rows[spec.name] > 1 for spec in self._specs)

    @property
    def has_dense_batches(self) -> bool:
        """Whether batches are made dense of rows of a sparse matrix."""
        return any(spec.dense for spec in self._sparse.values())

    def row_ids(self, indices: Many) -> np.ndarray:
        """Return the row ids of samples: positions in all files, the same as ``row_id`` in Ray."""
        return self._source.plan.row_ids(check_indices(indices, len(self), "row_ids"))

    def epoch_order(self, shuffle: Shuffle | None) -> Order:
        """Return the order in which samples come; samplers ask for it."""
        return make_order(self._index, self.selection, shuffle)

    def __len__(self) -> int:
        return self._source.num_rows

    def _one(self, index: SupportsIndex) -> Any:
        wanted = np.array([check_index(index, len(self), type(self).__name__)])
        return self.samples(self.decoded(self.read(wanted), wanted, skips=False)[0])[0]

    def _several(self, indices: Many) -> Sequence[Any]:
        wanted = check_indices(indices, len(self), type(self).__name__)
        arrays, kept = self.decoded(self.read(wanted), wanted)
        if kept is not None and not kept.any():
            raise ImageError(
                f"none of the {len(wanted)} rows of this batch, the first of which is {self._place(wanted[0])}, has an "
                "image that can be decoded, and a DataLoader needs a sample. Pass on_error='null', or use loader(...), "
                "which leaves such batches out."
            )
        return self.samples(arrays)

    def decoded(
        self, arrays: Mapping[str, np.ndarray], indices: np.ndarray, *, skips: bool = True
    ) -> tuple[Mapping[str, np.ndarray], np.ndarray | None]:
        """Return samples that `read` returned with their images decoded, as the transform says.

        Parameters
        ----------
        arrays : mapping of str to numpy.ndarray
            The samples.
        indices : numpy.ndarray
            Which samples they are, for messages.
        skips : bool
            Whether samples may be left out.

        Returns
        -------
        mapping of str to numpy.ndarray
            The samples that are left.
        numpy.ndarray or None
            bool: which of them are left; None for all.
        """
        decoders = parts_of(self.transform)[0]
        if not decoders:
            return arrays, None
        return decoded(decoders, arrays, lambda i: self._place(indices[i]), skips=skips)

    def _place(self, index: int) -> str:
        """Return the file of a sample and its row there, for messages."""
        plan = self._source.plan
        return plan.files.where(int(plan.row_ids(np.array([index]))[0]))

    def read(self, indices: np.ndarray, out: Mapping[str, np.ndarray] | None = None) -> Mapping[str, np.ndarray]:
        """Read samples as arrays.

        Parameters
        ----------
        indices : numpy.ndarray
            int64, each in ``range(len(self))``.
        out : mapping of str to numpy.ndarray, optional
            Arrays to fill.
        """
        if self._closed:
            raise OptionError(f"{type(self).__name__}: this dataset is closed; make a new one")
        arrays = self._source.new_batch(len(indices)) if out is None else out
        self._cache.read_into(arrays, indices)
        for name, spec in self._ragged.items():
            self._cast_ragged(arrays[name], spec, indices)
        for name, spec in self._sparse.items():
            cast_sparse(arrays[name], spec, lambda i: self._place(indices[i]))
        return arrays

    def _cast_ragged(self, rows: np.ndarray, spec: ColumnSpec, indices: np.ndarray) -> None:
        """Cast rows of varying shape here, where it is known which rows they are, for messages."""
        if spec.element is None or spec.element.kind not in "biufc":
            return
        stored = list(rows)
        cast = cast_rows(stored, spec, lambda i: self._place(indices[i]))
        if cast is not stored:
            for i, row in enumerate(cast):
                rows[i] = row

    def read_batches(self, batches: Sequence[Sequence[int]], *, pinned: bool = False) -> list[dict[str, np.ndarray]]:
        """Read some batches by one call, and return the arrays of each; with `pinned`, in pinned memory."""
        indices = np.array([index for batch in batches for index in batch], np.int64)
        arrays = self.read(indices, self.new_pinned(len(indices)) if pinned else None)
        stops = itertools.accumulate(map(len, batches))
        parts = [slice(stop - len(batch), stop) for batch, stop in zip(batches, stops, strict=True)]
        read = [({name: values[part] for name, values in arrays.items()}, indices[part]) for part in parts]
        return [dict(self.decoded(*each)[0]) for each in read]

    def will_read(self, indices: np.ndarray) -> None:
        """Take the hint that these samples are read next; it does nothing while reads do not wait."""
        if not self._closed:
            self._source.will_read(indices)

    def follow(self, order: Order) -> ComingRows | None:
        """Let a cache on a disk know the order in which samples are read; None if there is no such cache."""
        return None if self._closed else self._source.follow(order)

    def samples(self, arrays: Mapping[str, np.ndarray]) -> Sequence[Any]:
        """Return the samples that lie in the arrays that `read` returned, transformed."""
        part = partial(unpadded_sample_of, fills=self._fills) if self._fills else sample_of
        batch = batch_of(arrays, self._whole(arrays), part)
        transform = parts_of(self.transform)[1]
        return batch if transform is None else [transformed(transform, sample) for sample in batch]

    def new_pinned(self, count: int) -> dict[str, np.ndarray]:
        """Return arrays for `count` samples in pinned memory, as far as tensors can hold the columns."""
        out = self._source.new_batch(count)
        for spec in self._specs:
            if spec.dtype.kind in "biufc":
                like = torch.from_numpy(out[spec.name])
                out[spec.name] = torch.empty_like(like, pin_memory=True).numpy()
        return out

    def collate(self, arrays: Mapping[str, np.ndarray]) -> Any:
        """Return the batch that a `DataLoader` would make of the samples in `arrays`, its transform left out."""
        return self._whole(arrays)

    def with_padding(self, pad: PadLike) -> H5Dataset:
        """Return the same samples, with another option `pad`."""
        other = copy.copy(self)
        other._padding = Padding.of(pad)
        other._fills = self._fills_of(other._padding)
        return other

    def row_shapes(self) -> dict[str, tuple[int | None, ...]]:
        """Return the shape of a row of each column that can be padded; None is for axes along which rows differ."""
        return {
            spec.name: spec.ragged_shape if spec.kind == "ragged" else spec.row_shape
            for spec in self._specs
            if spec.kind == "ragged" or spec.kind in TENSOR_KINDS
        }

    def padded_as(self, shapes: Mapping[str, tuple[int | None, ...]]) -> H5Dataset:
        """Return the same samples, whose columns are padded like those of other datasets with rows of these shapes."""
        if self._padding is None:
            return self
        specs, fills = {spec.name: spec for spec in self._specs}, dict(self._fills)
        for name in shapes.keys() - fills.keys():
            fill = self._padding.fill(name, specs[name].dtype, specs)
            if fill is not None:
                fills[name] = fill
        other = copy.copy(self)
        other._fills, other._padded_shapes = fills, {**self._padded_shapes, **shapes}
        return other

    def close(self) -> None:
        """Close the files and free the memory. Samples cannot be read any more."""
        self._closed = True
        self.release()

    def release(self) -> None:
        """Close the files and free the memory until the next sample is read."""
        self._source.close()
        self._cache.clear()

    def _cast(self, cast: Cast) -> Cast:
        """Return the casts of columns while they are read, given those that the user asked for."""
        return cast

    def _select(self, predicate: pc.Expression | None) -> np.ndarray | None:
        if predicate is None:
            return None
        # As in Ray, a predicate sees what is delivered.
        selection = select(self._index, self._index.delivered, predicate)
        if not len(selection):
            raise PredicateError(f"no sample matches: none of {self._index.num_rows} rows passes {in_words(predicate)}")
        return selection

    def _selecting_columns(self) -> Sequence[str]:
        """Return the columns that `_select` reads itself, not through the index."""
        return ()

    def _whole(self, arrays: Mapping[str, np.ndarray]) -> Sample:
        whole = Sample((name, self._values(name, values)) for name, values in arrays.items())
        return self._padded(whole, arrays) if self._fills else whole

    def _padded(self, whole: Sample, arrays: Mapping[str, np.ndarray]) -> Sample:
        """Return a batch whose rows of varying shape are padded, with their lengths."""
        padded = Sample()
        for name, values in whole.items():
            if name not in self._fills:
                padded[name] = values
                continue
            shape = self._padded_shapes[name]
            if name not in self._ragged:  # rows of one length, which differs from that of other datasets
                own = values.shape[1] if None not in shape[1:] else list(values.shape[1:])
                padded[name], padded[name + LENGTH] = values, torch.tensor([own] * len(values), dtype=torch.int64)
                continue
            spec = self._ragged[name]
            rows = cast_rows(list(arrays[name]), spec)
            array, lengths = pad_rows(name, rows, self._fills[name], spec.element, len(shape), shape)
            padded[name], padded[name + LENGTH] = torch.from_numpy(array), torch.from_numpy(lengths)
        return padded

    def _values(self, name: str, array: np.ndarray) -> Any:
        if (sparse := self._sparse.get(name)) is not None:
            rows = SparseBatch.of(array, sparse)
            return torch.from_numpy(rows.to_dense()) if sparse.dense else csr_tensor(*rows.canonical().parts)
        spec = self._ragged.get(name)
        return to_torch(array, name, as_bytes=name in self._as_bytes) if spec is None else ragged_to_torch(array, spec)

    def __repr__(self) -> str:
        names = few(self.columns, len(self.columns))
        return f"{type(self).__name__}({len(self)} samples of {len(self._index.files)} files: {names})"
