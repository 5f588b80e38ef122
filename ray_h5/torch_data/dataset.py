"""Rows of many files as a map-style Dataset."""

from __future__ import annotations

import copy
import logging
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from traceback import walk_stack
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pyarrow.compute as pc
from torch.utils.data import Subset, get_worker_info

from ray_h5.columns.ragged.padding import Fill, Padding, PadLike
from ray_h5.errors import ImageError, OptionError, PredicateError
from ray_h5.index.file_options import FileOptions
from ray_h5.index.file_warnings import warn_of_surprises
from ray_h5.index.row_index import RowIndex
from ray_h5.loading.origin_columns import ORIGINS, check_planned, origins_of, place_values
from ray_h5.loading.rank_shares import Placed
from ray_h5.lru import first_time
from ray_h5.messages import counted, few
from ray_h5.options import takes_options_of
from ray_h5.order.draws.shuffle import Shuffle
from ray_h5.order.epoch_order import Order, plain_order
from ray_h5.order.fingerprint import Fingerprint, fingerprint
from ray_h5.plan.order_of_files import make_order
from ray_h5.plan.read_plan import ReadPlan, block_rows_of, make_plan
from ray_h5.plan.row_source import RowSource
from ray_h5.predicates.virtual_names import columns_of, in_words
from ray_h5.read.arguments import check_fit
from ray_h5.read.casting import assign
from ray_h5.source import OptionsButColumns, Source
from ray_h5.storage.find_files import PathLike
from ray_h5.torch_data.batched_dataset import BatchedDataset, Many
from ray_h5.torch_data.batches.batcher import Batcher, images_of
from ray_h5.torch_data.batches.samples import check_transform, steps_of
from ray_h5.torch_data.batches.tensors import BatchArrays, loader_processes, new_arrays
from ray_h5.transforms.sparse_tensors import take_warnings

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ray_h5.columns.derived_columns import Columns
    from ray_h5.transforms.image_transform import DecodeImage

logger = logging.getLogger(__name__)

Transform = Callable[[Any], Any] | Sequence[Callable[[Any], Any]]


class DatasetOptions(OptionsButColumns, total=False):
    """The options of `H5Dataset` except `columns`."""

    predicate: pc.Expression | None
    transform: Transform | None
    kept_bytes: int | None
    pad: PadLike
    include_paths: bool
    include_row_ids: bool
    include_row_keys: bool
    include_steps: bool
    include_padding: bool


_OF_LOADER = "A dataset has single samples. Write loader(paths, {}), which makes batches of them."


@takes_options_of(
    Source,
    instead={
        "batch_size": _OF_LOADER.format("batch_size=64"),
        "shuffle": _OF_LOADER.format("batch_size=64, shuffle=True"),
        "num_workers": _OF_LOADER.format("batch_size=64"),
    },
)
class H5Dataset(BatchedDataset):
    """Samples of HDF5 files: sample i is the i-th row, in path order, that passes the predicate.

    A sample is a dict of tensors, and of str for text; its entries are attributes too. A `DataLoader`
    reads each batch by one call for each file, without stacking. With an `OrderSampler` or an
    `OrderBatchSampler`, the order of an epoch is the same as in Ray.

    The dataset can be pickled, and used with the start methods fork, forkserver and spawn.

    Parameters
    ----------
    predicate : expression of pyarrow or Ray, optional
        Which rows are samples; see `where`.
    transform : callable, or sequence of them, optional
        Applied to each sample, one after the other. A `DecodeImage` that comes first decodes whole batches.
    kept_bytes : int, optional
        Bound of the rows that stay in memory after they were read, for all workers of a loader
        together; 0 keeps none. The columns with the smallest rows stay, all that fit with all their
        rows. By default 128 MiB a file, the size that people give libhdf5's chunk cache, and at most
        512 MiB; divided by the number of ranks that read on this node, each of which would come to hold all rows.
        Decoded chunks of several rows stay beside them, up to 128 MiB in each process; with 0, until as many
        rows were read as there are.
    pad : bool, float or mapping of str to float, optional
        Pad rows of varying shape to the longest of a batch, with zeros (True) or this value, and add their lengths as
        ``<column>_length``; those of a column that is named, also where all rows have one shape. Without it a batch
        holds a list of tensors for such a column.
    include_paths, include_row_ids, include_row_keys, include_steps, include_padding : bool
        Add the columns ``path``, the file of a sample; ``row_id``, its number among the rows of all files; ``row_key``,
        a function of (seed, epoch, row id), the same as in Ray, for randomness that repeats; with `windows` ``step``,
        the number, in its file, of the step that its window is of; and ``is_padding``, whether it comes again only so
        that all ranks have equally many. Key and padding are those of the epoch of a `loader`, an `OrderSampler` or
        an `OrderBatchSampler`; of any other sampler they are those of epoch 0.
    **options
        The options of `ray_h5.source.Source`.

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

    _is_chosen = False
    """Whether samples are some of another dataset, in any order."""

    _is_sampled = False
    """Whether a sampler of this package has these samples: it also says which draw of drawn values is meant."""

    _makes: Callable[..., Batcher] = Batcher
    """What makes batches of samples."""

    _kept_rows = 0
    """Rows of the columns that do not fit into `kept_bytes` that stay in memory."""

    def __init__(
        self,
        paths: PathLike | Sequence[PathLike],
        columns: Columns | None = None,
        predicate: pc.Expression | None = None,
        transform: Transform | None = None,
        *,
        kept_bytes: int | None = None,
        pad: PadLike = None,
        include_paths: bool = False,
        include_row_ids: bool = False,
        include_row_keys: bool = False,
        include_steps: bool = False,
        include_padding: bool = False,
        **options: Unpack[OptionsButColumns],
    ) -> None:
        self._asked = include_paths, include_row_ids, include_row_keys, include_steps, include_padding
        self._files = FileOptions.of(paths, columns=columns, **options)
        self.transform, padding = transform, Padding.of(pad)
        if predicate is not None:
            from ray_h5.predicates.evaluate import as_expression  # imports pandas

            predicate = as_expression(predicate)
        self._kept_bytes = kept_bytes
        self._build_index(predicate, padding)

    def _build_index(self, predicate: pc.Expression | None, padding: Padding | None) -> None:
        self._index = self._files.index()
        warn_of_surprises(self._index, self._files)
        self._specs = self._index.outputs
        self._places = tuple(origins_of(self._asked, self._specs, self._index))
        if self.transform is not None:
            check_transform(self.transform, self.columns)
        if any(spec.kind == "sparse" and not spec.type.dense for spec in self._specs.values()):
            take_warnings()  # a process that gets such tensors of workers would warn
        self._fills = self._fills_of(padding)
        plan = make_plan(self._index, list(self._specs.values()), self._select(predicate))
        if (error := plan.without_value()) is not None:
            raise error
        self._source = self._source_of(plan)

    def _source_of(self, plan: ReadPlan) -> RowSource:
        return RowSource(plan, self._kept_bytes, self._kept_rows, processes=loader_processes)

    def _chosen(self, indices: Many) -> H5Dataset:
        """Return some of these samples, in this order: what a `Subset` has. Shuffles draw single rows of it."""
        is_own = self.has_own_samples or self.has_own_length
        other = _SamplesOfSubclass.of(self, indices) if is_own else copy.copy(self)
        other._is_chosen = True
        if not self.has_own_length:
            plan = self._source.plan
            row_ids = plan.row_ids(self._source.checked(indices, "Subset"))
            other._source = self._source_of(replace(plan, selection=row_ids, order=Order(len(row_ids))))
        return other

    def _fills_of(self, padding: Padding | None) -> dict[str, Fill]:
        """Return how rows of varying shape are filled up when a batch is made, by column."""
        if padding is None:
            return {}
        padding.check_names(self.columns)
        fills: dict[str, Fill | None] = {}
        images = self._images
        for name, spec in self._specs.items():
            if name in images:
                if images[name].size is None and spec.row_shape[-1:] == spec.row_shape:  # one image a row
                    # Images may differ in height, width and channels.
                    fills[name] = padding.fill(name, np.dtype(np.uint8), (None, None, None), self.columns)
            elif (spec.element or spec.dtype).base.kind not in "biufc":  # which is said of a column that is named
                fills[name] = padding.fill(name, np.dtype(object), (), self.columns)
            elif spec.element is not None and (shape := spec.type.varying_shape) is not None:
                steps = spec.row_shape if spec.kind == "list" else ()
                dtype, nullable = spec.element.base if steps else spec.element, spec.type.has_nullable_items
                fills[name] = padding.fill(name, dtype, shape[len(steps) :], self.columns, steps, is_nullable=nullable)
            elif spec.is_tensor and spec.row_shape and name in padding.names:  # lengths that are asked for
                fills[name] = padding.fill(name, spec.dtype, spec.row_shape, self.columns)
        return {name: fill for name, fill in fills.items() if fill is not None}

    @property
    def _images(self) -> dict[str, DecodeImage]:
        """The columns that are delivered as images, and not as they are read, and what decodes them."""
        return images_of(steps_of(self.transform)[0])

    @property
    def _batcher(self) -> Batcher:
        """What makes batches of samples, as the dataset is now."""
        return self._makers()[0]

    def _makers(self) -> tuple[Batcher, Callable[[Mapping[str, np.ndarray]], Sequence[Any]]]:
        """Return what reads batches, and what makes samples of their arrays, with the transform as it is now.

        The latter is a method of the dataset only if a subclass has its own: a batch is then made in one go.
        """
        decoders, steps = steps_of(self.transform)
        batcher = self._makes(self._source, self._specs, self._places, self._fills, decoders, type(self).__name__)
        is_own = type(self).samples is not H5Dataset.samples
        return batcher, self.samples if is_own else partial(batcher.samples, steps=steps)

    @property
    def columns(self) -> list[str]:
        """Columns of a sample."""
        return [*self._specs, *self._places]

    @property
    def labels(self) -> dict[str, dict[Any, int]]:
        """The number of each class, by column; None stands for all other values."""
        return {label.name: label.by_value for label in self._index.labels}

    @property
    def row_bytes(self) -> int:
        """Bytes of a sample, as it is read."""
        return self._source.plan.row_bytes

    @property
    def call_bytes(self) -> int:
        """Bytes that a loader asks for at once, so that many requests are in flight; 0 if all files are on disks."""
        return self._source.call_bytes

    @property
    def index(self) -> RowIndex:
        """Facts about the files."""
        return self._index

    @property
    def selection(self) -> np.ndarray | None:
        """int64: the row ids of the samples; None if there is a sample for each row."""
        return self._source.plan.selection

    @property
    def source(self) -> RowSource:
        """What reads the rows of samples."""
        return self._source

    def row_ids(self, indices: Many) -> np.ndarray:
        """Return the row ids of samples: positions in all files, the same as ``row_id`` in Ray.

        Of a subclass with its own ``__len__`` the indices themselves: which rows its samples are made of is not known.
        """
        if self.has_own_length:
            return super().row_ids(indices)
        return self._source.split(self._source.checked(indices, "row_ids"))[0]

    def origins(self, indices: Many) -> list[tuple[str, int]]:
        """Return the file of each sample, and its row in that file."""
        if self.has_own_length:
            raise OptionError(
                f"origins: {type(self).__name__} has its own __len__, so the rows of its samples are not "
                "known; ask an H5Dataset of the same files"
            )
        rows, files = self.row_ids(indices), self._index.files
        return [
            (files.path(file), row - int(files.starts[file]))
            for file, row in zip(files.files_of(rows).tolist(), rows.tolist(), strict=True)
        ]

    def epoch_order(self, shuffle: Shuffle | None) -> Order:
        """Return the order in which samples come; samplers ask for it."""
        if self._is_chosen or self.has_own_length:
            return plain_order(len(self), shuffle)
        return make_order(self._index, self.selection, shuffle)

    def block_rows(self, order: Order, num_rows: int) -> int:
        """Return how many rows a block has that a rank takes; samplers ask for it. It is that of Ray."""
        return block_rows_of(order, self.row_bytes, num_rows)

    def fingerprint(self, order: Order) -> Fingerprint:
        """Return what decides which row has which position in an order; samplers put it into their states."""
        return fingerprint(self._index.files, self.selection, order, self._source.plan.data)

    def __len__(self) -> int:
        return self._source.plan.num_rows

    @property
    def is_drawn(self) -> bool:
        """Whether the values of a sample are others in each epoch: blocks at corners that are drawn."""
        return self._source.plan.is_drawn and not self.has_own_length

    @property
    def _needs_places(self) -> bool:
        """Whether samplers have to say where in an epoch a sample is."""
        return any(ORIGINS[name].of_epoch for name in self._places)

    def _draws_equally(self, indices: Many) -> bool:
        """Return whether what is drawn for indices would be the same in each epoch: no sampler of ours gave them."""
        if not hasattr(indices, "__len__") or not len(indices):  # `checked` says what is no list of indices
            return False
        if isinstance(indices[0], Placed):
            return False
        return "row_key" in self._places or (self.is_drawn and not self._is_sampled)

    @property
    def has_own_length(self) -> bool:
        """Whether a subclass has a length of its own: which rows its samples are made of is not known."""
        return type(self).__len__ is not H5Dataset.__len__

    def _one(self, index: int) -> Any:
        return self._several([index], skips=False)[0]

    def _several(self, indices: Many, *, skips: bool = True) -> Sequence[Any]:
        if self._draws_equally(indices):
            # A dataset does not know the sampler of a DataLoader; samplers of this package leave a mark.
            frame, info = sys._getframe(), get_worker_info()
            is_asked = any(above.f_globals.get("__name__") == _FETCHER for above, _ in walk_stack(frame))
            if is_asked and (info is None or info.id == 0):
                warn_of_equal_draws(self)
        batcher, samples = self._makers()
        wanted = batcher.checked(indices)
        arrays = batcher.decoded(BatchArrays(batcher.arrays(wanted, indices), wanted), skips=skips)
        if len(wanted) and not len(arrays.indices):
            raise ImageError(
                f"none of the {len(wanted)} rows of this batch, the first of which is {batcher.place(wanted[0])}, has "
                "an image that can be decoded, and a DataLoader needs a sample. Pass on_error='null', or use "
                "loader(...), which leaves such batches out."
            )
        return samples(arrays)

    def read(self, indices: np.ndarray, out: Mapping[str, np.ndarray] | None = None) -> Mapping[str, np.ndarray]:
        """Read samples as arrays.

        Parameters
        ----------
        indices : numpy.ndarray
            Which samples; negative ones count from the end.
        out : mapping of str to numpy.ndarray, optional
            An array to fill for each column. If its dtype is another one than the column's, values are cast.

        Raises
        ------
        RowIndexError, OptionError
            If there is no such sample, or an array does not have the place for the samples.
        CastError
            If a value is lost in the dtype of its array, unless ``casting="unsafe"``.
        """
        batcher = self._batcher
        indices = batcher.checked(indices)
        if out is not None:
            if out.keys() != self._specs.keys():
                raise OptionError(f"out: expected an array for each of {list(self._specs)}, found {list(out)}")
            for name, spec in self._specs.items():
                check_fit(out[name], spec.row_shape, len(indices), None, f"out: column {name!r}")
        specs, out = self._source.batch_specs(len(indices)), out or {}
        # What is held in memory, and what is decoded, has the dtype of the column.
        given = {name: array[: len(indices)] for name, array in out.items() if array.dtype == specs[name][1]}
        made = new_arrays({name: spec for name, spec in specs.items() if name not in given})
        batcher.read_into({name: given[name] if name in given else made[name] for name in specs}, indices)
        for name in made if out else ():
            assign(out[name], made[name], name, self._specs[name].casting, lambda i: batcher.place(indices[i]))
        arrays = out or made
        return {**arrays, **batcher.origin_arrays(indices, [indices.tolist()])} if self._places else arrays

    def samples(self, arrays: Mapping[str, np.ndarray]) -> Sequence[Any]:
        """Return the samples that lie in the arrays that `read` returned, transformed."""
        return self._batcher.samples(arrays, steps_of(self.transform)[1])

    def collate(self, arrays: Mapping[str, np.ndarray]) -> Any:
        """Return the batch that a `DataLoader` would make of the samples in `arrays`, its transform left out."""
        return self._batcher.collate(arrays)

    def with_padding(self, pad: PadLike) -> H5Dataset:
        """Return the same samples, with another option `pad`."""
        other = copy.copy(self)
        other._fills = self._fills_of(Padding.of(pad))
        return other

    def close(self) -> None:
        """Close the files and free the memory. Samples cannot be read any more."""
        self._source.is_closed = True
        self.release()

    def release(self) -> None:
        """Close the files and free the memory until the next sample is read."""
        self._source.close()

    def _places_in(self, predicate: pc.Expression) -> dict[str, Any]:
        """Return the added columns that a predicate names, of all rows."""
        names = {*columns_of(predicate)} & {*self._places}
        check_planned(names, self._places)
        return place_values(self._index, names)

    def _select(self, predicate: pc.Expression | None) -> np.ndarray | None:
        if predicate is None:
            return None
        selection = self._index.select(predicate, self._places_in(predicate))
        if not len(selection):
            raise PredicateError(f"no sample matches: none of {self._index.num_kept} rows passes {in_words(predicate)}")
        return selection

    def __getstate__(self) -> dict[str, Any]:
        # Without the values of all rows that were looked up: the plan has the rows that they chose.
        return {**self.__dict__, "_index": replace(self._index, found=self._index.found.without_values())}

    def __repr__(self) -> str:
        names = few(self.columns, len(self.columns))
        rows, files = counted(len(self), "sample"), counted(len(self._index.files), "file")
        return f"{type(self).__name__}({rows} of {files}: {names})"


_FETCHER = "torch.utils.data._utils.fetch"
"""The module by which a `DataLoader` asks for samples."""


def warn_of_equal_draws(dataset: H5Dataset) -> None:
    """Warn once that a loader asks for drawn samples with a sampler that does not know of draws."""
    if first_time("equal draws", repr(dataset)):
        drawn = few([repr(spec.name) for spec in dataset.source.plan.columns if spec.type.drawn] or ["'row_key'"])
        logger.warning(
            "%s: this DataLoader has a sampler that counts no epochs: values of %s are drawn, the same in each epoch. "
            "For others in each epoch, iterate loader(dataset, ...); or pass sampler=OrderSampler(dataset), and call "
            "its set_epoch(epoch).",
            dataset,
            drawn,
        )


class _SamplesOfSubclass(H5Dataset):
    """Some samples of a dataset whose class makes samples itself.

    It is asked for each of them by the index that a `Subset` passes: what it adds belongs to this index.
    """

    _some: Subset[Any]

    @classmethod
    def of(cls, dataset: H5Dataset, indices: Many) -> _SamplesOfSubclass:
        """Return the samples of a dataset that have these indices."""
        made = cls.__new__(cls)
        made.__dict__.update(dataset.__dict__, _some=Subset(dataset, cast("Any", indices)))
        return made

    @property
    def has_own_length(self) -> bool:
        """Whether which rows the samples are made of is not known."""
        return cast("H5Dataset", self._some.dataset).has_own_length

    def __len__(self) -> int:
        return len(self._some)

    def __getitem__(self, index: Any) -> Any:
        return self._some[index] if isinstance(index, (int, np.integer)) else super().__getitem__(index)

    def __getitems__(self, indices: Many) -> Sequence[Any]:
        if not self._needs_places:
            return self._some.__getitems__(cast("Any", indices))
        chosen = [
            index.at(self._some.indices[index]) if isinstance(index, Placed) else self._some.indices[index]
            for index in indices
        ]
        return cast("H5Dataset", self._some.dataset).__getitems__(chosen)

    def with_padding(self, pad: PadLike) -> H5Dataset:
        """Return the same samples, with another option `pad`."""
        other = cast("_SamplesOfSubclass", super().with_padding(pad))
        other._some = Subset(cast("H5Dataset", self._some.dataset).with_padding(pad), self._some.indices)
        return other

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # also while this object is unpickled, and has nothing yet
            raise AttributeError(name)
        return getattr(self._some.dataset, name)
