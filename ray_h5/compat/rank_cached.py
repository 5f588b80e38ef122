"""A rank's shard of one file, in memory, and its order in each epoch."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import torch
from joblib import cpu_count
from torch.utils.data import get_worker_info

from ray_h5.columns.schema import TENSOR_KINDS
from ray_h5.compat.lazy_dataset import WITHOUT_AUX, H5LazyDataset, LivePairs
from ray_h5.errors import OptionError, RayH5Error, UnsupportedColumnError
from ray_h5.options import as_integer, names_options, require, takes_options_of
from ray_h5.plan.row_source import check_indices
from ray_h5.torch_data.batched_dataset import Many
from ray_h5.torch_data.batches.shared_memory import new_shared
from ray_h5.torch_data.batches.tensors import new_arrays, tensor_over
from ray_h5.torch_data.ranks import OwnRank
from ray_h5.torch_data.samplers import OrderSampler

MODES = ("contiguous", "interleave")


class DistributedError(RayH5Error, RuntimeError):
    """torch.distributed is not initialised where a rank is asked for."""


@takes_options_of(
    H5LazyDataset,
    instead={
        "as_tensors": "Its transforms get tensors.",
        "aux_keys": WITHOUT_AUX,
        "x_dtype": "It is called dtype_x here.",
        "y_dtype": "It is called dtype_y here.",
        "restrict_to_indices": "loader(path, 64, predicate=...) reads chosen rows, such as a fold of kfold.",
    },
)
class RankMemCachedH5Dataset(H5LazyDataset):
    """The shard of this rank of one HDF5 file, inputs and optional targets, read once into memory.

    The chunks are read and decoded in threads, straight into the tensors that stay, without a second copy.
    Samples are copies of these tensors; a `DataLoader` gathers a batch by one call.

    If the samples do not divide among the ranks, some ranks have one more than others, and so perhaps one
    batch more, and wait for the others for ever: draw ``common_length`` samples on each rank.

    Parameters
    ----------
    mode : {"contiguous", "interleave"}
        "contiguous" takes neighbouring samples, which are read faster; "interleave" every world_size-th
        sample, which spreads sorted classes.
    dtype_x, dtype_y : numpy dtype, optional
        Cast to these while reading; None leaves the dtype of the file.
    transform, target_transform : callable, optional
        Called with the input and with the target of each sample, as tensors.
    pin_host_memory : bool
        Pin the tensors, for faster copies to a GPU. If that is not possible, `log_fn` is called with the
        reason. Shared memory is not pinned: workers do not copy to a GPU.
    share_memory : bool
        Put the tensors into shared memory, for loader workers that are spawned.
    rdcc_nbytes, rdcc_nslots, rdcc_w0
        libhdf5's chunk cache; no effect, because all samples are in memory.
    log_fn : callable
        Called with messages for people.
    **options
        The other options of `H5LazyDataset`.

    Raises
    ------
    DistributedError
        If torch.distributed is not initialised.
    OptionError
        If `mode` is none of these.
    UnsupportedColumnError
        If a column holds no numbers.
    RayH5Error
        The leaf that says what is wrong with the file.

    Examples
    --------
    >>> dist.init_process_group("nccl")  # doctest: +SKIP
    >>> dataset = RankMemCachedH5Dataset("data/large.h5", "images", "labels")  # doctest: +SKIP
    >>> sampler = EpochShuffleSampler(dataset.common_length, seed=42)  # doctest: +SKIP
    """

    call_bytes = 0  # nothing is read any more
    _keeps_rows = False

    def __init__(
        self,
        path: str,
        x_key: str,
        y_key: str | None = None,
        *,
        mode: str = "contiguous",
        dtype_x: Any | None = np.float32,
        dtype_y: Any | None = None,
        pin_host_memory: bool = True,
        share_memory: bool = False,
        log_fn: Callable[[str], None] = print,
        **options: Any,
    ) -> None:
        require(mode in MODES, "mode", mode, f"one of {', '.join(map(repr, MODES))}")
        if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
            raise DistributedError(
                "RankMemCachedH5Dataset: torch.distributed is not initialised, so this process has no rank. "
                "Call torch.distributed.init_process_group() first (under torchrun it needs only a backend), or use "
                "H5LazyDataset in a single process."
            )
        self.rank, self.world_size = torch.distributed.get_rank(), torch.distributed.get_world_size()
        super().__init__(path, x_key, y_key, dtype_x, dtype_y, as_tensors=True, **options)
        self.mode, self.dtype_x, self.dtype_y = mode, dtype_x, dtype_y
        self._where = f"{self.path}, rank {self.rank}"
        self._total = len(self._source)
        if mode == "contiguous":
            self._row_ids = np.arange(*balanced_contiguous_shard(self._total, self.world_size, self.rank))
        else:
            self._row_ids = interleaved_indices(self._total, self.world_size, self.rank)
        if pin_host_memory and (share_memory or not torch.cuda.is_available()):
            why = "shared" if share_memory else "without a CUDA device"
            log_fn(f"pin_host_memory: {why}, the memory is not pinned")
            pin_host_memory = False
        self._tensors = self._preloaded(pin_host_memory, share_memory, log_fn)
        self._source.release()
        nbytes = sum(tensor.nbytes for tensor in self._tensors)
        log_fn(
            f"rank {self.rank} of {self.world_size}: {len(self)} samples of {self.path} in memory, "
            f"{nbytes / 2**20:.1f} MiB"
        )
        if self._total % self.world_size:
            log_fn(
                f"{self._total} samples do not divide among {self.world_size} ranks: with EpochShuffleSampler("
                "dataset.common_length) all of them get equally many batches, and none waits for the others for ever"
            )

    def _preloaded(self, pin: bool, share: bool, log_fn: Callable[[str], None]) -> list[torch.Tensor]:
        """Return the rows of this rank of each column; several threads read neighbouring rows each."""
        source, rows = self._source, self._row_ids
        if isinstance(source, LivePairs):
            columns, num_threads = source.specs, 1
        else:
            columns, num_threads = list(source.source.plan.columns), cpu_count()
        for spec in columns:
            if spec.kind not in TENSOR_KINDS:
                raise UnsupportedColumnError(f"column {spec.name!r} holds {spec.kind} values; a tensor holds numbers")
        specs = {spec.name: ((len(rows), *spec.row_shape), spec.dtype) for spec in columns}
        if share:
            tensors = {name: new_shared(shape, dtype) for name, (shape, dtype) in specs.items()}
        else:
            try:
                arrays = new_arrays(specs, pinned=pin)
            except RuntimeError as exc:
                log_fn(f"pin_host_memory: {str(exc).splitlines()[0]}; the memory is not pinned")
                arrays = new_arrays(specs)
            tensors = {name: tensor_over(array) for name, array in arrays.items()}
        cuts = np.linspace(0, len(rows), 1 + num_threads, dtype=int).tolist()

        def read(part: slice) -> None:
            source.read(rows[part], {name: tensor.numpy()[part] for name, tensor in tensors.items()})

        with ThreadPoolExecutor(num_threads) as threads:
            list(threads.map(read, map(slice, cuts, cuts[1:])))
        return list(tensors.values())

    @property
    def x(self) -> torch.Tensor:
        """All inputs of this rank."""
        return self._tensors[0]

    @property
    def y(self) -> torch.Tensor | None:
        """All targets of this rank."""
        return None if self.y_key is None else self._tensors[1]

    @property
    def common_length(self) -> int:
        """The length of the shortest shard of all ranks."""
        return self._total // self.world_size

    def __len__(self) -> int:
        return len(self._tensors[0])

    def row_ids(self, indices: Many) -> np.ndarray:
        """Return which rows of the file samples are."""
        return self._row_ids[check_indices(indices, len(self), self._where)]

    def _read(self, rows: np.ndarray) -> list[np.ndarray]:
        # Copies: what is changed in place stays as it is in memory.
        specs = {i: ((len(rows), *tensor.shape[1:]), tensor.numpy().dtype) for i, tensor in enumerate(self._tensors)}
        # A batch of pinned samples is pinned too: it is what is copied to the GPU.
        arrays = list(new_arrays(specs, pinned=get_worker_info() is None and self.x.is_pinned()).values())
        for tensor, array in zip(self._tensors, arrays, strict=True):
            np.take(tensor.numpy(), rows, axis=0, out=array, mode="clip")
        return arrays


def balanced_contiguous_shard(total: int, world_size: int, rank: int) -> tuple[int, int]:
    """Return where a rank's share of neighbouring samples begins and ends.

    Parameters
    ----------
    total : int
        Samples of all ranks.
    world_size, rank : int
        Number of ranks, and the one that is asked for.

    Returns
    -------
    tuple of int
        Start and end (exclusive). Shares differ by one sample at most; the first ranks have the larger ones.
    """
    _check(total, world_size, rank)
    length, rest = divmod(total, world_size)
    start = rank * length + min(rank, rest)
    return start, start + length + (rank < rest)


def interleaved_indices(total: int, world_size: int, rank: int) -> np.ndarray:
    """Return every `world_size`-th sample from `rank` on, as an int64 array; arguments as above."""
    _check(total, world_size, rank)
    return np.arange(rank, total, world_size, dtype=np.int64)


def _check(total: int, world_size: int, rank: int) -> None:
    if total < 0 or world_size < 1 or not 0 <= rank < world_size:
        raise OptionError(
            f"total={total}, world_size={world_size}, rank={rank}: expected no negative total, and a rank from 0 to "
            "world_size - 1"
        )


# Documents name them so, too.
_balanced_contiguous_shard = balanced_contiguous_shard
_interleaved_indices = interleaved_indices


@names_options
class EpochShuffleSampler(OrderSampler):
    """Shuffles a dataset that is a rank's own shard, differently in each epoch.

    It is not split over ranks. For a dataset that all ranks read, use `OrderSampler`.

    Parameters
    ----------
    data_len : int
        Samples of the shard.
    seed : int
        Zero or more. The order is a function of (seed, epoch).
    shuffle : bool
        False yields ``0 ... data_len - 1``.
    """

    def __init__(self, data_len: int, seed: int = 0, shuffle: bool = True) -> None:
        self.data_len = as_integer("data_len", data_len, 0, instead="; pass len(dataset)")
        self.base_seed = as_integer("seed", seed, 0)
        super().__init__(range(self.data_len), shuffle=bool(shuffle), seed=self.base_seed, rank=0, world_size=1)

    @property
    def seed(self) -> int:
        """The seed, also without a shuffle; `base_seed` is another name of it."""
        return self.base_seed

    def _check_split(self, own: OwnRank, is_asked: bool) -> None:  # noqa: ARG002  the shard of one rank
        raise OptionError(
            "EpochShuffleSampler is for a rank's own shard, and accelerate splits the batches of a prepared "
            "loader over the ranks: rows would be lost. Leave this loader out of accelerator.prepare(). For a "
            "dataset that all ranks read, write OrderSampler(dataset, seed=...)."
        )
