"""Pairs of inputs and targets of one file, read when they are asked for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, SupportsIndex, cast

import numpy as np
from torch.utils.data import get_worker_info

from ray_h5.options import takes_options
from ray_h5.read.casting import Casting
from ray_h5.torch_data.batched_dataset import BatchedDataset, Many, check_index, check_indices, datasets_in
from ray_h5.torch_data.batches.samples import batch_of, pair_of
from ray_h5.torch_data.batches.tensors import Pair, as_python, to_torch
from ray_h5.torch_data.compat.pairs import (
    RDCC_NBYTES,
    RDCC_NSLOTS,
    RDCC_W0,
    WITHOUT_AUX,
    LivePairs,
    Transform,
    apply_transforms,
    check_chunk_cache,
    open_pairs,
)


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
        self._source = open_pairs(
            path,
            (x_key, y_key),
            (x_dtype, y_dtype),
            swmr=swmr,
            casting=casting,
            kept_bytes=rdcc_nbytes,
            storage_options=storage_options,
        )
        self.path = self._source.path if isinstance(self._source, LivePairs) else self._source.index.files.path(0)
        self.x_key, self.y_key, self.x_dtype, self.y_dtype = x_key, y_key, x_dtype, y_dtype
        self.transform, self.target_transform, self.as_tensors = transform, target_transform, as_tensors
        self.rdcc_nbytes, self.rdcc_nslots, self.rdcc_w0 = rdcc_nbytes, rdcc_nslots, rdcc_w0
        self.swmr, self.casting = swmr, casting

    def __len__(self) -> int:
        return len(self._source)

    def _one(self, index: SupportsIndex) -> Any:
        values = self._read(np.array([check_index(index, len(self), self.path)]))
        return self._sample([as_python(array[0]) for array in values])

    def _several(self, indices: Many) -> Sequence[Any]:
        values = self._read(check_indices(indices, len(self), self.path))
        if self.transform is None and self.target_transform is None:
            whole = Pair(map(to_torch, values))
            if len(whole) == 2:
                return batch_of(dict(enumerate(values)), whole, pair_of)
            # torch stacks a list. An empty batch is the tensor, which has the shape and dtype of samples.
            return list(whole[0]) if len(indices) else cast("Sequence[Any]", whole[0])
        return [self._sample([as_python(array[i]) for array in values]) for i in range(len(indices))]

    @property
    def call_bytes(self) -> int:
        """Bytes that a loader asks for at once, so that many requests are in flight; 0 if the file is on a disk."""
        return self._source.call_bytes

    def close(self) -> None:
        """Close the file, and free the memory of its rows. It is opened again when the next sample is read."""
        self.release()

    def release(self) -> None:
        """Close the file until the next sample is read."""
        self._source.release()

    def _read(self, rows: np.ndarray) -> list[np.ndarray]:
        return list(self._source.read(rows).values())

    def _sample(self, values: list[Any]) -> Any:
        transforms = self.transform, self.target_transform
        return apply_transforms(transforms, values, as_tensors=self.as_tensors, path=self.path)


def h5_worker_init_fn(_worker_id: int) -> None:
    """Close the files that a loader worker inherited from its parent: a ``worker_init_fn`` for a `DataLoader`.

    It is not needed: each process opens its own files. With it, a worker has no inherited handle from its start.
    """
    worker = get_worker_info()
    for dataset in datasets_in(None if worker is None else worker.dataset):
        if hasattr(dataset, "release"):
            dataset.release()
