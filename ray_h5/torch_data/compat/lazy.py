"""Pairs of inputs and targets of one file, read when they are asked for."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, SupportsIndex, cast

import numpy as np
from torch.utils.data import get_worker_info

from ray_h5.columns.utf8 import check_utf8
from ray_h5.fork import PerProcess
from ray_h5.loading.row_cache import RowCache, check_file, columns_that_fit
from ray_h5.options import takes_options
from ray_h5.read.casting import Casting, as_casting
from ray_h5.read.reader import RowReader
from ray_h5.storage.storage_of_path import storage_of
from ray_h5.torch_data.batched_dataset import BatchedDataset, Many, check_index, check_indices
from ray_h5.torch_data.batches.samples import batch_of, pair_of
from ray_h5.torch_data.batches.tensors import Pair, as_python, loader_processes, new_arrays, to_torch
from ray_h5.torch_data.compat.pairs import (
    RDCC_NBYTES,
    RDCC_NSLOTS,
    RDCC_W0,
    WITHOUT_AUX,
    Transform,
    apply_transforms,
    check_chunk_cache,
    find_columns,
    one_file,
    open_reader,
    read_dtype,
)


@takes_options(instead={"aux_keys": WITHOUT_AUX})
class H5LazyDataset(BatchedDataset):
    """Inputs of one HDF5 file, with targets if `y_key` is given.

    Each process opens the file when it reads its first sample. A `DataLoader` reads a whole batch by one call.

    Parameters
    ----------
    path : str
        The file, or its URL in a store.
    x_key : str
        The HDF5 dataset of inputs.
    y_key : str, optional
        The HDF5 dataset of targets; without it a sample is the input alone.
    x_dtype, y_dtype : numpy dtype, optional
        Cast to these while reading; None leaves the dtype of the file.
    transform, target_transform : callable, optional
        Called with the input and with the target of each sample, as numpy arrays (a target that is one
        number is a numpy scalar). What they return is the sample. Without them samples are tensors, and
        text is str.
    rdcc_nbytes : int
        Decoded rows stay in memory if all of them fit into this many bytes, as in a chunk cache of libhdf5
        of that size. The bound holds for all workers of a loader together; 0 keeps none.
    rdcc_nslots, rdcc_w0
        Slots and policy of libhdf5's chunk cache. They have no effect: most columns are read without
        libhdf5, and the others (compound values, text of varying length, virtual datasets) in ranges that
        split no chunk.
    swmr : bool
        Also read a file to which a writer in SWMR mode adds rows: those that existed when the dataset was
        made. It has no effect for other files.
    as_tensors : bool
        Whether transforms get inputs and targets as tensors; text stays str.
    casting : {"checked", "unsafe"}
        Whether a value that its new dtype cannot hold is an error, as for `H5Dataset`.
    storage_options : mapping of str to object, optional
        How the store of a URL is reached, as for `H5Dataset`.

    Raises
    ------
    NotFoundError, NotHDF5Error, UnknownColumnError and other leaves of RayH5Error
        When the dataset is made, if the file or a key does not exist.
    StaleIndexError
        When a sample is read, if the file changed since the dataset was made.
    OptionError
        When a sample is read, if a transform raises an AttributeError or a TypeError for a numpy array. It may expect
        a tensor: pass ``as_tensors=True``.

    Examples
    --------
    >>> dataset = H5LazyDataset("data/my_dataset.h5", x_key="images", y_key="labels")  # doctest: +SKIP
    >>> loader = DataLoader(dataset, batch_size=32, shuffle=True, num_workers=4)  # doctest: +SKIP
    """

    def __init__(
        self,
        path: str,
        x_key: str,
        y_key: str | None = None,
        x_dtype: Any | None = None,
        y_dtype: Any | None = None,
        transform: Transform | None = None,
        target_transform: Transform | None = None,
        rdcc_nbytes: int = RDCC_NBYTES,
        rdcc_nslots: int = RDCC_NSLOTS,
        rdcc_w0: float = RDCC_W0,
        swmr: bool = True,
        *,
        as_tensors: bool = False,
        casting: Casting = "checked",
        storage_options: Mapping[str, object] | None = None,
    ) -> None:
        check_chunk_cache(rdcc_nbytes, rdcc_nslots, rdcc_w0)
        self.path, self._storage = one_file(path, type(self).__name__, storage_options)
        self.x_key = x_key
        self.y_key = y_key
        self.x_dtype, self.y_dtype = x_dtype, y_dtype
        self.transform = transform
        self.target_transform = target_transform
        self.as_tensors = as_tensors
        self.rdcc_nbytes, self.rdcc_nslots, self.rdcc_w0 = rdcc_nbytes, rdcc_nslots, rdcc_w0
        self.swmr = swmr
        self.casting = as_casting(casting)
        self._open = PerProcess(_OpenPair)
        reader, live = open_reader(self.path, self._storage, swmr)
        with reader:
            layouts, self._length = find_columns(reader, x_key, y_key, live=live)
            # A live writer may change the file.
            self._expect = None if live else reader.identity
        self._columns = [
            (layout.name, layout.row_shape, read_dtype(layout, dtype))
            for layout, dtype in zip(layouts, (x_dtype, y_dtype), strict=False)
        ]

    def __len__(self) -> int:
        return self._length

    def _one(self, index: SupportsIndex) -> Any:
        values = self._read(np.array([check_index(index, self._length, self.path)]))
        return self._sample(self._values(values, 0))

    def _several(self, indices: Many) -> Sequence[Any]:
        values = self._read(check_indices(indices, self._length, self.path))
        if self.transform is None and self.target_transform is None:
            whole = Pair(map(to_torch, values))
            if len(whole) == 2:
                return batch_of(dict(enumerate(values)), whole, pair_of)
            # torch stacks a list. An empty batch is the tensor, which has the shape and dtype of samples.
            return list(whole[0]) if len(indices) else cast("Sequence[Any]", whole[0])
        return [self._sample(self._values(values, i)) for i in range(len(indices))]

    def _values(self, values: Sequence[np.ndarray], i: int) -> list[Any]:
        return [as_python(array[i]) for array in values]

    @property
    def call_bytes(self) -> int:
        """Bytes that a loader asks for at once, so that many requests are in flight; 0 if the file is on a disk."""
        return storage_of(self.path, self._storage).call_bytes

    def close(self) -> None:
        """Close the file, and free the memory of its rows. It is opened again when the next sample is read."""
        self.release()

    def release(self) -> None:
        """Close the file until the next sample is read."""
        reader = self._open.value.reader
        self._open.renew()
        if reader is not None:
            reader.close()

    def _read(self, rows: np.ndarray) -> list[np.ndarray]:
        pair, reader = self._opened()
        out = new_arrays({i: ((len(rows), *shape), dtype) for i, (_, shape, dtype) in enumerate(self._columns)})
        read = partial(self._read_into, reader, pair.is_live)
        if pair.row_cache is None:
            read(out, rows, np.arange(len(rows)))
        else:
            if not pair.is_live:  # a live writer may change the file
                check_file(self.path, reader.identity, self._storage)
            pair.row_cache.read_through(out, rows, None, read)
        for (name, *_), array in zip(self._columns, out.values(), strict=True):
            if array.dtype.kind in "OS":
                check_utf8(array, name, lambda i: f"{self.path}, row {rows[i]}")
        return list(out.values())

    def _opened(self) -> tuple[_OpenPair, RowReader]:
        """Return the file as this process has it open, and its reader."""
        pair = self._open.value
        if pair.reader is None:
            pair.row_cache = self._new_row_cache()
            pair.reader, pair.is_live = open_reader(self.path, self._storage, self.swmr, expect=self._expect)
        return pair, pair.reader

    def _new_row_cache(self) -> RowCache | None:
        """Return a cache for all rows if they fit."""
        specs = {i: (shape, dtype) for i, (_, shape, dtype) in enumerate(self._columns)}
        row_bytes = {i: math.prod(shape) * dtype.itemsize for i, (shape, dtype) in specs.items()}
        fits = len(columns_that_fit(row_bytes, self._length, self.rdcc_nbytes // loader_processes())) == len(specs)
        return RowCache(specs, self._length) if fits else None

    def _read_into(
        self, reader: RowReader, is_live: bool, out: Mapping[int, np.ndarray], rows: np.ndarray, places: np.ndarray
    ) -> None:
        names = [name for name, _, _ in self._columns]
        # A target that is the input, maybe of another dtype, is a column of the same name. A live writer adds to one
        # column before the other: they are not read as columns of one length.
        first = 1 if is_live else len(names)
        at_once = {names[i]: out[i] for i in reversed(range(first))}
        reader.read_into(at_once, rows, places, casting=self.casting)
        for i, name in enumerate(names):
            if at_once.get(name) is not out[i]:
                reader.read_into({name: out[i]}, rows, places, casting=self.casting)

    def _sample(self, values: list[Any]) -> Any:
        transforms = self.transform, self.target_transform
        return apply_transforms(transforms, values, as_tensors=self.as_tensors, path=self.path)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_open"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._open = PerProcess(_OpenPair)

    def __del__(self, at_exit: Callable[[], bool] = sys.is_finalizing) -> None:
        # At the exit of the process modules may be cleared, and files are closed by themselves.
        if not at_exit() and "_open" in self.__dict__:
            self.release()


class _OpenPair:
    """The file of a dataset as one process has it open."""

    def __init__(self) -> None:
        self.reader: RowReader | None = None
        self.is_live = False  # whether a writer in SWMR mode adds to it
        self.row_cache: RowCache | None = None


def h5_worker_init_fn(_worker_id: int) -> None:
    """Close the files that a loader worker inherited from its parent: a ``worker_init_fn`` for a `DataLoader`.

    It is not needed: each process opens its own files. With it, a worker has no inherited handle from its start.
    """
    worker = get_worker_info()
    left: list[Any] = [] if worker is None else [worker.dataset]
    seen: set[int] = set()
    while left:
        dataset = left.pop()
        if dataset is None or id(dataset) in seen:
            continue
        seen.add(id(dataset))
        if hasattr(dataset, "release"):
            dataset.release()
        left.append(getattr(dataset, "dataset", getattr(dataset, "base_dataset", None)))
        several = getattr(dataset, "datasets", ())  # of ConcatDataset, and of StackDataset, which may be a dict
        left += several.values() if isinstance(several, Mapping) else several
