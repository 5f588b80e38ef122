"""Pairs of inputs and targets of one file, read when they are asked for."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

import numpy as np
import torch
from torch.utils.data import get_worker_info

from ray_h5.columns.schema import Cast, ColumnSpec
from ray_h5.errors import OptionError, WriterActiveError
from ray_h5.hdf5.files.external_policy import Access
from ray_h5.options import takes_options
from ray_h5.plan.row_source import check_indices
from ray_h5.read.casting import Casting
from ray_h5.read.reader import FileReader
from ray_h5.storage.local import absolute_path
from ray_h5.torch_data.batched_dataset import BatchedDataset, Many, datasets_in
from ray_h5.torch_data.batches.samples import Batch, pair_of
from ray_h5.torch_data.batches.tensors import Pair, as_python, new_arrays, to_torch
from ray_h5.torch_data.dataset import H5Dataset

Transform = Callable[..., Any]

RDCC_NBYTES = 256 * 1024**2
RDCC_NSLOTS = 1_000_003
RDCC_W0 = 0.75
"""The chunk cache that people often choose for libhdf5."""

WITHOUT_AUX = "Read more columns with H5Dataset(path, columns=[...]); its transform gets the whole sample."


class LivePairs:
    """Columns of a file that a writer in SWMR mode has open, with the rows that were complete when this was made.

    The file is opened for each read: what libhdf5 has of it would be out of date at the next one. Such a writer adds to
    one column before the other, so each is read alone.
    """

    call_bytes = 0

    def __init__(self, path: str, columns: Mapping[str, str], cast: Cast) -> None:
        self.path, self._columns, self._casting = absolute_path(path), columns, cast.casting
        with FileReader(Access(self.path, swmr=True)) as reader:
            layouts = {name: reader.column(stored) for name, stored in columns.items()}
        self._length = min(layout.num_rows for layout in layouts.values())
        self.specs = [cast(replace(ColumnSpec.of(layout), name=name)) for name, layout in layouts.items()]

    def __len__(self) -> int:
        return self._length

    def read(self, rows: np.ndarray, out: Mapping[str, np.ndarray] | None = None) -> Mapping[str, np.ndarray]:
        """Read rows as arrays; see `H5Dataset.read`."""
        specs = {spec.name: ((len(rows), *spec.row_shape), spec.dtype) for spec in self.specs}
        arrays = new_arrays(specs) if out is None else out
        with FileReader(Access(self.path, swmr=True)) as reader:
            for name, stored in self._columns.items():
                reader.read_into({stored: arrays[name]}, rows, casting=self._casting)
        return arrays

    def release(self) -> None:
        """Do nothing: no file stays open."""


@takes_options(instead={"aux_keys": WITHOUT_AUX})
class H5LazyDataset(BatchedDataset):
    """Inputs of one HDF5 file, with targets if `y_key` is given.

    A view of an `H5Dataset`: each process opens the file when it reads its first sample, and a `DataLoader` reads a
    whole batch by one call.

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
        As `kept_bytes` of `H5Dataset`: how many bytes of decoded rows stay in memory; 0 keeps none.
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

    _keeps_rows = True
    """Whether decoded rows stay in memory."""

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
        if rdcc_nbytes < 0 or rdcc_nslots < 1 or not 0 <= rdcc_w0 <= 1:  # libhdf5 would not accept them
            raise OptionError(
                f"rdcc_nbytes={rdcc_nbytes}, rdcc_nslots={rdcc_nslots}, rdcc_w0={rdcc_w0}: expected bytes of 0 or "
                "more, slots of 1 or more and a policy from 0 to 1"
            )
        self.x_key, self.y_key, self.x_dtype, self.y_dtype = x_key, y_key, x_dtype, y_dtype
        self.transform, self.target_transform, self.as_tensors = transform, target_transform, as_tensors
        self.rdcc_nbytes, self.rdcc_nslots, self.rdcc_w0 = rdcc_nbytes, rdcc_nslots, rdcc_w0
        self.swmr, self.casting = swmr, casting
        if not isinstance(path, (str, os.PathLike)):
            raise OptionError(
                f"path={path!r}: expected one file, found {type(path).__name__}; H5Dataset(paths) reads several"
            )
        stored = [key for key in (x_key, y_key) if key is not None]
        names = ["x", "y"] if x_key == y_key else stored  # a column that is input and target
        columns, dtypes = dict(zip(names, stored, strict=True)), zip(names, (x_dtype, y_dtype), strict=False)
        cast = {name: dtype for name, dtype in dtypes if dtype is not None}
        options: dict[str, Any] = {"kept_bytes": rdcc_nbytes if self._keeps_rows else 0, "casting": casting}
        options["storage_options"] = storage_options
        self._source: H5Dataset | LivePairs
        try:
            self._source = H5Dataset(path, stored if names == stored else columns, dtypes=cast, **options)
            files = self._source.index.files
            if len(files) != 1:
                raise OptionError(f"{path}: expected one file, found {len(files)}; H5Dataset(paths) reads several")
            self.path = files.path(0)
        except WriterActiveError:
            if not swmr:
                raise
            self._source = LivePairs(path, columns, Cast(cast, casting))
            self.path = self._source.path
        self._where = self.path

    def __len__(self) -> int:
        return len(self._source)

    def _several(self, indices: Many) -> Sequence[Any]:
        values = self._read(check_indices(indices, len(self), self._where))
        if self.transform is None and self.target_transform is None:
            whole = Pair(map(to_torch, values))
            if len(whole) == 2:
                return Batch(whole, len(indices), pair_of)
            # torch stacks a list. An empty batch is the tensor, which has the shape and dtype of samples.
            return list(whole[0]) if len(indices) else cast("Sequence[Any]", whole[0])
        return [self._sample([as_python(array[i]) for array in values]) for i in range(len(indices))]

    def _read(self, rows: np.ndarray) -> list[np.ndarray]:
        return list(self._source.read(rows).values())

    def _sample(self, values: Sequence[Any]) -> Any:
        """Return the transformed values of a sample, as a pair or alone. Without a transform numbers are tensors."""
        transforms = {"transform": self.transform, "target_transform": self.target_transform}
        done = []
        for value, (name, transform) in zip(values, transforms.items(), strict=False):
            is_number = isinstance(value, (np.ndarray, np.number, np.bool_))
            becomes_tensor = is_number and (transform is None or self.as_tensors)
            part = torch.from_numpy(np.asarray(value)) if becomes_tensor else value  # as_tensor refuses NumPy's uint64
            try:
                done.append(part if transform is None else transform(part))
            except (AttributeError, TypeError) as exc:
                if becomes_tensor or not is_number:
                    raise
                raise OptionError(
                    f"{self.path}: {name} raised {type(exc).__name__}: {exc}. It was given a NumPy value, "
                    f"{value.dtype} of shape {value.shape}. If it expects a tensor, pass as_tensors=True"
                ) from exc
        return Pair(done) if len(done) == 2 else done[0]

    @property
    def call_bytes(self) -> int:
        """Bytes that a loader asks for at once, so that many requests are in flight; 0 if the file is on a disk."""
        return self._source.call_bytes

    def close(self) -> None:
        """Close the file, and free the memory of rows that are kept. It is opened again when the next one is read."""
        self.release()

    def release(self) -> None:
        """Close the file until the next sample is read."""
        self._source.release()


def h5_worker_init_fn(_worker_id: int) -> None:
    """Close the files that a loader worker inherited from its parent: a ``worker_init_fn`` for a `DataLoader`.

    It is not needed: each process opens its own files. With it, a worker has no inherited handle from its start.
    """
    worker = get_worker_info()
    for dataset in datasets_in(None if worker is None else worker.dataset):
        if hasattr(dataset, "release"):
            dataset.release()
