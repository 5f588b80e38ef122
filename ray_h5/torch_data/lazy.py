"""Samples of one file, read when they are asked for."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, SupportsIndex, cast

import numpy as np
from torch.utils.data import get_worker_info

from ray_h5.errors import OptionError
from ray_h5.hdf5.reader import RowReader
from ray_h5.torch_data.batched import BatchedDataset, Many
from ray_h5.torch_data.indices import check_index, check_indices
from ray_h5.torch_data.kept import KeptRows, check_kept, fitting, share_of
from ray_h5.torch_data.pairs import (
    RDCC_NBYTES,
    RDCC_NSLOTS,
    RDCC_W0,
    Transform,
    apply_transforms,
    check_chunk_cache,
    find_pair,
    one_path,
    open_reader,
    read_dtype,
)
from ray_h5.torch_data.samples import Pair, batch_of, pair_of
from ray_h5.torch_data.tensors import as_python, to_torch
from ray_h5.torch_data.transport import new_arrays


class H5LazyDataset(BatchedDataset):
    """Inputs, and targets if there are any, of one HDF5 file.

    The file is opened when the first sample is read, anew in each process. A `DataLoader` gets a
    whole batch by one read.

    Parameters
    ----------
    path : str
        The file.
    x_key : str
        The HDF5 dataset of inputs.
    y_key : str, optional
        The HDF5 dataset of targets; without it a sample is the input alone.
    x_dtype, y_dtype : numpy dtype, optional
        Cast to these while reading; None leaves the dtype of the file.
    transform, target_transform : callable, optional
        Applied to the input and to the target of each sample, which they get as numpy arrays (a
        target that is one number as a numpy scalar). What they return is the sample. Without them
        samples are tensors, and text is str.
    rdcc_nbytes : int
        Decoded rows stay in memory if all of them fit into so many bytes, as they would in libhdf5's
        chunk cache of that size. The bound holds for all workers of a loader together; 0 keeps none.
    rdcc_nslots, rdcc_w0
        Slots and policy of libhdf5's chunk cache. They apply where libhdf5 reads with a chunk cache,
        which is nowhere here: chunks are decoded without it, and what it reads (compound values,
        text of varying length, virtual datasets) it is asked for in ranges that split no chunk.
    swmr : bool
        Also read a file that a writer in SWMR mode is adding to: the samples that were there when
        the dataset was made. Any other file is read as it always is.

    Raises
    ------
    NotFoundError, NotHDF5Error, UnknownColumnError and other leaves of RayH5Error
        When the dataset is made, if the file or a key is not there.
    StaleIndexError
        When a sample is read, if the file is not the one that the dataset was made of.

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
    ) -> None:
        check_chunk_cache(rdcc_nbytes, rdcc_nslots, rdcc_w0)
        self.path = one_path(path, type(self).__name__)
        self.x_key = x_key
        self.y_key = y_key
        self.transform = transform
        self.target_transform = target_transform
        self.rdcc_nbytes, self.rdcc_nslots, self.rdcc_w0 = rdcc_nbytes, rdcc_nslots, rdcc_w0
        self.swmr = swmr
        self._reader: RowReader | None = None
        self._kept: tuple[int, KeptRows | None] | None = None
        self._live = False
        self._closed = False
        reader, live = open_reader(self.path, swmr)
        with reader:
            layouts, self._length = find_pair(reader, x_key, y_key, live=live)
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
            whole = Pair(to_torch(array, name) for array, (name, *_) in zip(values, self._columns, strict=True))
            if len(whole) == 2:
                return batch_of(dict(enumerate(values)), whole, pair_of)
            # torch stacks a list; of no samples the tensor tells what they are like.
            return list(whole[0]) if len(indices) else cast("Sequence[Any]", whole[0])
        return [self._sample(self._values(values, i)) for i in range(len(indices))]

    def _values(self, values: Sequence[np.ndarray], i: int) -> list[Any]:
        return [as_python(array[i], name) for array, (name, *_) in zip(values, self._columns, strict=True)]

    def close(self) -> None:
        """Let go of the file. Samples cannot be read any more."""
        self._closed = True
        self.release()

    def release(self) -> None:
        """Let go of the file until the next sample is read."""
        reader, self._reader, self._kept = self._reader, None, None
        if reader is not None:
            reader.close()

    def _read(self, rows: np.ndarray) -> list[np.ndarray]:
        if self._closed:
            raise OptionError(f"{self.path}: this dataset is closed; make a new one")
        if self._reader is None:
            self._reader, self._live = open_reader(self.path, self.swmr, expect=self._expect)
        out = new_arrays({i: ((len(rows), *shape), dtype) for i, (_, shape, dtype) in enumerate(self._columns)})
        kept = self._kept_rows()
        if kept is None:
            self._read_into(out, rows, np.arange(len(rows)))
        else:
            self._check_state()
            kept.read_through(out, rows, None, self._read_into)
        return list(out.values())

    def _read_into(self, out: Mapping[int, np.ndarray], rows: np.ndarray, places: np.ndarray) -> None:
        assert self._reader is not None
        names = [name for name, _, _ in self._columns]
        # A target that is the input, maybe of another dtype, is a column of the same name. A live writer adds to one
        # column before the other: they are not read as columns of one length.
        first = 1 if self._live else len(names)
        at_once = {names[i]: out[i] for i in reversed(range(first))}
        self._reader.read_into(at_once, rows, places)
        for i, name in enumerate(names):
            if at_once.get(name) is not out[i]:
                self._reader.read_into({name: out[i]}, rows, places)

    def _kept_rows(self) -> KeptRows | None:
        if self._kept is None or self._kept[0] != os.getpid():
            row_bytes = {i: math.prod(shape) * dtype.itemsize for i, (_, shape, dtype) in enumerate(self._columns)}
            fits = len(fitting(row_bytes, self._length, share_of(self.rdcc_nbytes))) == len(row_bytes)
            specs = {i: (shape, dtype) for i, (_, shape, dtype) in enumerate(self._columns)}
            self._kept = os.getpid(), KeptRows(specs, self._length) if fits else None
        return self._kept[1]

    def _check_state(self) -> None:
        """Raise if the file changed, also if nothing has to be read of it; a live writer may change it."""
        assert self._reader is not None
        if not self._live:
            check_kept(self.path, self._reader.identity)

    def _sample(self, values: list[Any]) -> Any:
        return apply_transforms((self.transform, self.target_transform), values)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_reader": None, "_kept": None}

    def __del__(self, at_exit: Callable[[], bool] = sys.is_finalizing) -> None:
        # At the exit of the process modules may be cleared, and files are closed by themselves.
        if not at_exit() and "_reader" in self.__dict__:
            self.release()


def h5_worker_init_fn(_worker_id: int) -> None:
    """Let go of the files that a loader's worker got from its parent: the ``worker_init_fn`` of a `DataLoader`.

    Readers of this package notice by themselves that they are in another process, so that nothing
    goes wrong without it; with it, a worker has no handle that is not its own from the start.
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
